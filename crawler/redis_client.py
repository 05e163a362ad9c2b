"""Redis as the package uses it: every call has a deadline, and an unfit server is refused."""

import redis

from crawler.errors import ServiceError
from crawler.redis_address import RedisAddress


def connect(url: str) -> redis.Redis:
    """A client whose every call has a deadline, for an address in any spelling."""
    address = RedisAddress.parse(url).for_redis()
    return redis.Redis.from_url(address, socket_timeout=5, socket_connect_timeout=2)


def check_redis(client: redis.Redis) -> None:
    """Refuse a Redis that would throw messages away when its memory is full."""
    policy = client.info("memory").get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise ServiceError(
            f"Redis is set to maxmemory-policy {policy}: it would throw work away when its memory is full; "
            "set it with: redis-cli CONFIG SET maxmemory-policy noeviction"
        )
