"""Redis addresses, as Celery and redis-py spell them, and clients with timeouts."""

from functools import cache
from typing import TYPE_CHECKING, Literal, Self, cast
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import msgspec

from crawler.errors import ServiceError

if TYPE_CHECKING:
    import redis
    from redis.driver_info import DriverInfo

_SCHEMES = {"redis": "redis", "rediss": "rediss", "unix": "unix", "redis+socket": "unix"}
_CERT_REQS = ("none", "optional", "required")
_TLS_OPTIONS = (
    "ssl_cert_reqs",
    "ssl_ca_certs",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_check_hostname",
)
_FORMS = "redis://host:port/number, rediss://… or redis+socket:///path?virtual_host=number"


class RedisAddress(msgspec.Struct, frozen=True):
    """A parsed Redis address; `tls` holds the options of a `rediss://` address."""

    scheme: Literal["redis", "rediss", "unix"]
    place: str
    db: int
    username: str
    password: str
    tls: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an address; raises `ValueError` with the reason if it cannot be used."""
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            raise ValueError(f"is not an address; write {_FORMS}") from None
        if "sentinel" in parts.scheme:
            raise ValueError(
                f"{parts.scheme}:// is not supported: give the master's own address, as {_FORMS}"
            )
        if parts.scheme not in _SCHEMES or port == 0 or parts.fragment:
            raise ValueError(
                "must begin with redis://, rediss:// or redis+socket://, "
                "and have a port that exists"
            )
        scheme = _SCHEMES[parts.scheme]
        options = dict(parse_qsl(parts.query))
        number = options.get("virtual_host") or options.get("db") or ""
        if scheme == "unix":
            place = unquote(parts.path)
            if parts.hostname or not place.strip("/"):
                raise ValueError(
                    "names no socket; write redis+socket:///path/to/redis.sock?virtual_host=number"
                )
        else:
            host = parts.hostname or "127.0.0.1"
            if ":" in host:
                host = f"[{host}]"
            place = f"{host}:{port or 6379}"
            number = number or unquote(parts.path)
        number = number.strip("/") or "0"
        if not (number.isascii() and number.isdecimal() and len(number) < 6):
            raise ValueError("the database must be a number, as in redis://host:port/0")
        tls: tuple[tuple[str, str], ...] = ()
        if scheme == "rediss":
            tls = _tls(options)
        return cls(
            scheme=cast(Literal["redis", "rediss", "unix"], scheme),
            place=place,
            db=int(number),
            username=unquote(parts.username or "") or options.get("username", ""),
            password=unquote(parts.password or "") or options.get("password", ""),
            tls=tls,
        )

    def for_celery(self, db: int | None = None) -> str:
        """Return the address as Celery expects it, with this database or another."""
        if db is None:
            db = self.db
        if self.scheme == "unix":
            # kombu takes no password in the query.
            return f"redis+socket://{self._user}{quote(self.place)}?virtual_host={db}"
        url = f"{self.scheme}://{self._user}{self.place}/{db}"
        if self.tls:
            url += f"?{urlencode(self.tls)}"
        return url

    def for_redis(self, db: int | None = None) -> str:
        """Return the address as redis-py expects it, with this database or another."""
        if self.scheme != "unix":
            return self.for_celery(db)
        if db is None:
            db = self.db
        return f"unix://{self._user}{quote(self.place)}?db={db}"

    @property
    def _user(self) -> str:
        if not self.username and not self.password:
            return ""
        return f"{quote(self.username, safe='')}:{quote(self.password, safe='')}@"


def _tls(options: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the options in the spelling that kombu, Celery and redis-py share.

    Without `ssl_cert_reqs`, kombu would not check the certificate.
    """
    wanted = options.get("ssl_cert_reqs", "required").lower().removeprefix("cert_")
    if wanted not in _CERT_REQS:
        raise ValueError(f"ssl_cert_reqs must be one of {', '.join(_CERT_REQS)}")
    given = options | {"ssl_cert_reqs": wanted}
    return tuple((key, given[key]) for key in _TLS_OPTIONS if given.get(key))


@cache
def driver_info() -> "DriverInfo":
    """What redis-py tells Redis of itself.

    Otherwise each connection reads its version anew from the files of the installed package, which
    takes longer than connecting.
    """
    import redis
    from redis.driver_info import DriverInfo

    return DriverInfo(lib_version=redis.__version__)


def connect(url: str) -> "redis.Redis":
    """Return a client with timeouts, for an address in any spelling."""
    import redis

    address = RedisAddress.parse(url).for_redis()
    return redis.Redis.from_url(
        address, socket_timeout=5, socket_connect_timeout=2, driver_info=driver_info()
    )


def check_redis(client: "redis.Redis") -> None:
    """Refuse a Redis that would drop messages when its memory is full."""
    policy = client.info("memory").get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise ServiceError(
            f"Redis is set to maxmemory-policy {policy}: it would throw work away when its memory "
            "is full; set it with: redis-cli CONFIG SET maxmemory-policy noeviction"
        )
