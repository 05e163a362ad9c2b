"""One Redis address in every spelling: Celery, kombu and redis-py are led to the same place."""

from typing import Any

import pytest
import redis
from celery import Celery
from kombu import Connection

from crawler import config, urls
from crawler.celery_app import backend_address
from crawler.errors import ConfigError
from crawler.redis_client import RedisAddress

FORMS: dict[str, dict[str, Any]] = {
    "redis://h": {"host": "h", "port": 6379, "db": 0},
    "redis://h:1/": {"host": "h", "port": 1, "db": 0},
    "redis://h:1/4": {"host": "h", "port": 1, "db": 4},
    "redis://h:1?db=4": {"host": "h", "port": 1, "db": 4},
    "redis:///3": {"host": "127.0.0.1", "port": 6379, "db": 3},
    "redis://:pw@h:1/4": {"host": "h", "port": 1, "db": 4, "password": "pw"},
    "redis://h:1/4?password=p%26w": {"host": "h", "port": 1, "db": 4, "password": "p&w"},
    "redis://us%3Aer:p%40%2F%3F%23w@h:1/4": {
        "host": "h",
        "db": 4,
        "username": "us:er",
        "password": "p@/?#w",
    },
    "redis://[::1]:7/2": {"host": "::1", "port": 7, "db": 2},
    "redis://:pw@[fe80::1]/": {"host": "fe80::1", "port": 6379, "db": 0, "password": "pw"},
    "rediss://h:1/4": {"host": "h", "port": 1, "db": 4, "ssl_cert_reqs": "required"},
    "rediss://u:pw@h:1?ssl_cert_reqs=CERT_NONE": {
        "host": "h",
        "db": 0,
        "password": "pw",
        "ssl_cert_reqs": "none",
    },
    "rediss://h/4?ssl_cert_reqs=required&ssl_ca_certs=/a%20b/ca.pem": {
        "db": 4,
        "ssl_ca_certs": "/a b/ca.pem",
    },
    "rediss://h/?ssl_check_hostname=false&ssl_certfile=/c&ssl_keyfile=/k": {
        "ssl_certfile": "/c",
        "ssl_keyfile": "/k",
    },
    "redis+socket:///run/r.sock": {"path": "/run/r.sock", "db": 0},
    "redis+socket:///run/r.sock?virtual_host=3&password=pw": {
        "path": "/run/r.sock",
        "db": 3,
        "password": "pw",
    },
    "redis+socket://u:p%40w@/run/r%20s.sock?virtual_host=/3": {
        "path": "/run/r s.sock",
        "db": 3,
        "password": "p@w",
    },
    "unix:///run/r.sock?db=3": {"path": "/run/r.sock", "db": 3},
    "unix://:pw@/run/r.sock": {"path": "/run/r.sock", "db": 0, "password": "pw"},
}


@pytest.mark.parametrize("text", FORMS)
def test_everybody_goes_to_the_same_place(text: str) -> None:
    """Host, port, socket, user, password and TLS options arrive; the database is the wanted one."""
    address, expected = RedisAddress.parse(text), FORMS[text]
    with Connection(address.for_celery()) as broker:
        kombu = _kombu(broker)
    stored: Any = Celery("t", backend=backend_address(text)).backend
    backend = stored.connparams
    told = redis.Redis.from_url(address.for_redis(2)).connection_pool.connection_kwargs

    for found, db in ((kombu, address.db), (backend, address.db + 1), (told, 2)):
        assert {key: _plain(found.get(key)) for key in expected} == expected | (
            {"db": db} if "db" in expected else {}
        )


def _kombu(broker: Connection) -> dict[str, object]:
    """What kombu gives redis-py, without a connection being made."""
    transport: Any = broker.transport
    channel = object.__new__(transport.Channel)
    channel.connection = transport
    found: dict[str, object] = channel._connparams()
    return found


def _plain(value: object) -> object:
    """Constants of TLS in words."""
    name = getattr(value, "name", "")
    return name.removeprefix("CERT_").lower() if name else value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("sentinel://h:26379/0", "sentinel:// is not supported"),
        ("redis+sentinel://h:26379/0", "is not supported"),
        ("http://h", "must begin with redis://"),
        ("h:6379", "must begin with redis://"),
        ("redis://h:0/1", "a port that exists"),
        ("redis://h:port/1", "is not an address"),
        ("redis://a;redis://b", "must be a number"),
        ("redis://h/one", "the database must be a number"),
        ("redis://h/-1", "the database must be a number"),
        ("redis+socket://?virtual_host=1", "names no socket"),
        ("unix://host/run/r.sock", "names no socket"),
        ("rediss://h?ssl_cert_reqs=maybe", "ssl_cert_reqs must be one of"),
    ],
)
def test_addresses_that_are_refused(text: str, reason: str) -> None:
    """Each is refused before anything starts, with the reason, and without its password."""
    with pytest.raises(ConfigError) as caught:
        config.load({"REDIS_URL": text.replace("://", "://:secret@", 1)})
    assert reason in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("text", [*FORMS, "redis://:p/w@h:1/0"])
def test_no_password_is_shown(text: str) -> None:
    """Whether it stands before the host or in the query, messages do not have it."""
    shown = urls.without_credentials(text)

    assert not any(secret in shown for secret in ("pw", "p%26w", "p%40", "p/w")), shown
