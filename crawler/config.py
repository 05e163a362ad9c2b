"""Settings from environment variables. No other module reads the environment."""

import difflib
import ipaddress
import os
import re
import shlex
import signal
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from crawler.errors import ConfigError
from crawler.redis_client import RedisAddress

_SECRETS = (
    "redis_url", "http_proxy", "https_proxy", "gateway_url", "gateway_token", "api_token",
)  # fmt: skip
DEFAULT_RATE = "2/s"
_KINDS = {"int": "a whole number", "float": "a number"}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings. A field is read from `CRAWLER_<FIELD>`, or from its name in `_OTHER_NAMES`."""

    data_dir: Path = Path("data")
    """The whole store: lpm.db, pending/, raw/, redis/, run/."""
    redis_url: str | None = None
    """The Redis to use. Default: that of the running stack, else 127.0.0.1:6379."""
    standalone: bool = False
    """Never connect to a Gateway, whatever else is set."""
    gateway_sync: Literal["enabled", "disabled"] = "enabled"
    """`disabled` has the same effect as STANDALONE=true."""
    gateway_url: str | None = None
    """The address of the Gateway. It must be https, unless the Gateway is on this machine."""
    gateway_token: str | None = None
    """The secret that the Gateway expects."""
    gateway_token_file: Path | None = None
    """A file with the secret, used if GATEWAY_TOKEN is not set. It may be replaced at any time."""
    gateway_dialect: Literal["plain", "typed"] = "plain"
    """`typed`: the Gateway has the paths /internal/parcel/… and /internal/party/…, and its times
    have no zone."""
    api_token: str | None = None
    """The token of the operator for the API of `serve`. More tokens: `serve token add`."""
    api_token_file: Path | None = None
    """A file with that token, used if CRAWLER_API_TOKEN is not set. It may be replaced at any
    time."""
    window: int = 2000
    """Maximum number of tasks in Redis at a time. All tasks are in the ledger."""
    raw: Literal["all", "failed", "none"] = "all"
    """Which raw pages are kept."""
    timezone: str | None = None
    """The time zone of times on the command line and in output. Default: that of the system."""
    config_dir: Path = Path("config")
    """The folder with scraping_defaults.yaml and sites/."""
    rate: str | None = None
    """The request rate per domain, such as `50/s`, `30/m` or `none`. A site's file overrides it."""
    circuit_breaker_fail_max: int = 5
    """Blocks in a row that open the circuit of a domain."""
    redis_circuit_breaker_db: int = 2
    """The Redis database that holds the state of domains."""
    redis_rate_limiter_db: int = 2
    """Must be the same number: both are kept in one hash per domain."""
    allow_nets: tuple[str, ...] = ()
    """Private networks that may be fetched from, such as 10.0.0.0/8,192.168.1.0/24."""
    http_proxy: str | None = None
    """The proxy for http pages."""
    https_proxy: str | None = None
    """The proxy for https pages."""
    no_proxy: str | None = None
    """Hosts to reach without a proxy, separated by commas. This machine is always one of them."""
    browser_path: Path | None = None
    """The Chromium for pages that need a browser. Default: the first of chromium-headless-shell,
    chromium, chromium-browser, google-chrome and google-chrome-stable on PATH."""
    min_free: int = 500_000_000
    """Free bytes on the disk below which fetching pauses."""
    pages: int = 256
    """Maximum number of pages in flight per worker process. It uses as many as it can handle."""
    tabs: int = 4
    """Maximum number of pages that the browser of a worker process renders at a time."""
    max_body: int = 10_000_000
    """Maximum size of a page in bytes, after decompression."""
    stall_s: float = 20.0
    """Seconds after which a worker process that hangs is killed, even inside a parser's C code."""
    slice_s: float = 30.0
    """Seconds for which a worker process works on one message."""
    chunk_size: int = 50
    """Pages in a chunk of a site's crawl: at most this many go into one message, and progress is
    counted in chunks."""
    soft_time_limit: int = 600
    """Seconds after which the attempt at a page of a site's crawl is ended and tried again."""
    hard_time_limit: int = 720
    """Seconds after which a page is taken from a process that still holds it. Celery's own time
    limits stay as they are."""
    parallel_scraping: bool = False
    """Whether `sites crawl` crawls all sites at the same time, or one after the other."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe level that is logged."""
    failpoint: str | None = None
    """For tests: `name:n` kills the process when it reaches a named step for the n-th time, and
    `name:n:hang` makes it hang there."""

    def __repr__(self) -> str:
        """Hide what may be a secret."""
        shown = msgspec.structs.asdict(self)
        shown |= {name: "***" for name in _SECRETS if shown[name]}
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    @property
    def gateway_enabled(self) -> bool:
        """Whether a Gateway may be contacted at all."""
        return not self.standalone and self.gateway_sync != "disabled"


_OTHER_NAMES = {
    "redis_url": "REDIS_URL",
    "standalone": "STANDALONE",
    "gateway_sync": "GATEWAY_SYNC",
    "gateway_url": "GATEWAY_URL",
    "gateway_token": "GATEWAY_TOKEN",
    "gateway_token_file": "GATEWAY_TOKEN_FILE",
    "circuit_breaker_fail_max": "CIRCUIT_BREAKER_FAIL_MAX",
    "redis_circuit_breaker_db": "REDIS_CIRCUIT_BREAKER_DB",
    "redis_rate_limiter_db": "REDIS_RATE_LIMITER_DB",
    "chunk_size": "SCRAPING_CHUNK_SIZE",
    "soft_time_limit": "SCRAPING_SOFT_TIME_LIMIT",
    "hard_time_limit": "SCRAPING_HARD_TIME_LIMIT",
    "parallel_scraping": "PARALLEL_SCRAPING",
    "http_proxy": "HTTP_PROXY",
    "https_proxy": "HTTPS_PROXY",
    "no_proxy": "NO_PROXY",
}
VARIABLES = {
    _OTHER_NAMES.get(field.name, f"CRAWLER_{field.name.upper()}"): field
    for field in msgspec.structs.fields(Settings)
}
_ALIASES = {"PARALLEL_SCRAPING_ENABLED": "PARALLEL_SCRAPING"}
"""Second names of settings; the first name goes before it."""
NOT_YET = {"MIN_PROXIES": "pool of proxies"}
"""Variables of features that are still missing. They are refused, so that nobody relies on them."""
_MINIMUM = {
    "window": 1,
    "circuit_breaker_fail_max": 1,
    "redis_circuit_breaker_db": 0,
    "redis_rate_limiter_db": 0,
    "min_free": 0,
    "pages": 1,
    "tabs": 1,
    "max_body": 1000,
    "stall_s": 1.0,
    "slice_s": 0.1,
    "chunk_size": 1,
    "soft_time_limit": 1,
    "hard_time_limit": 1,
}
_LOWER_CASE_TOO = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def program(data_dir: Path | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """Return how a suggested command begins, so that it acts on the same store as typed."""
    store = str(data_dir or environ.get("CRAWLER_DATA_DIR", "").strip())
    if not store:
        return "python -m crawler"
    return f"python -m crawler --data-dir {shlex.quote(store)}"


def argument(text: str) -> str:
    """Quote the last argument of a suggested command; one that begins with a dash follows `--`."""
    if text.startswith("-"):
        return f"-- {shlex.quote(text)}"
    return shlex.quote(text)


def load(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings. An unknown name or a bad value is an error that names the nearest valid
    one."""
    for name in environ:
        if name.startswith("CRAWLER_") and name not in VARIABLES:
            [near] = difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0)
            raise ConfigError(f"{name}: there is no such setting; did you mean {near}?")
    for name, feature in NOT_YET.items():
        if environ.get(name, "").strip():
            raise ConfigError(
                f"{name} is not in force yet: this version has no {feature}; unset it"
            )
    lower = {name: environ[name.lower()] for name in _LOWER_CASE_TOO if name.lower() in environ}
    environ = lower | dict(environ)
    for alias, name in _ALIASES.items():
        if not environ.get(name, "").strip():
            environ[name] = environ.get(alias, "")
    given: dict[str, Any] = {
        field.name: _read(name, environ[name], field)
        for name, field in VARIABLES.items()
        if environ.get(name, "").strip()
    }
    settings = Settings(**given)
    if "config_dir" in given and not settings.config_dir.is_dir():
        raise ConfigError(f"CRAWLER_CONFIG_DIR={settings.config_dir}: there is no such folder")
    if settings.redis_circuit_breaker_db != settings.redis_rate_limiter_db:
        raise ConfigError(
            f"REDIS_CIRCUIT_BREAKER_DB={settings.redis_circuit_breaker_db} and "
            f"REDIS_RATE_LIMITER_DB={settings.redis_rate_limiter_db}: must be the same, "
            "because both live in one hash per domain"
        )
    if settings.soft_time_limit >= settings.hard_time_limit:
        raise ConfigError(
            f"SCRAPING_SOFT_TIME_LIMIT={settings.soft_time_limit}: must be less than "
            f"SCRAPING_HARD_TIME_LIMIT={settings.hard_time_limit}"
        )
    return settings


def _read(name: str, text: str, field: msgspec.structs.FieldInfo) -> object:
    text = text.strip()
    try:
        if field.name == "allow_nets":
            nets = filter(None, map(str.strip, text.split(",")))
            return tuple(str(ipaddress.ip_network(net, strict=False)) for net in nets)
        if field.type is bool:
            return _boolean(text)
        value: object = msgspec.convert(
            text, field.type, strict=False, dec_hook=lambda kind, raw: kind(raw)
        )
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"{name}={text}: {_explain(error, text, field)}") from None
    minimum = _MINIMUM.get(field.name)
    if minimum is not None and isinstance(value, int | float) and not minimum <= value < 1e12:
        raise ConfigError(f"{name}={text}: must be at least {minimum}")
    check = _CHECKS.get(field.name)
    if check and (problem := check(text)):
        if field.name in _SECRETS:  # an address may hold a password
            raise ConfigError(f"{name}: {problem}")
        raise ConfigError(f"{name}={text}: {problem}")
    return value


def _boolean(text: str) -> bool:
    if text.lower() in ("true", "1", "yes", "on"):
        return True
    if text.lower() in ("false", "0", "no", "off"):
        return False
    raise ValueError("must be true or false")


def _explain(error: Exception, text: str, field: msgspec.structs.FieldInfo) -> str:
    choices = getattr(field.type, "__args__", ())
    if choices and all(isinstance(choice, str) for choice in choices):
        hint = ""
        if near := difflib.get_close_matches(text.lower(), choices, n=1):
            hint = f"; did you mean {near[0]}?"
        return f"must be one of {', '.join(choices)}{hint}"
    if name := _KINDS.get(getattr(field.type, "__name__", "")):
        return f"must be {name}"
    return str(error)


def interval(text: str) -> float:
    """Return the seconds between requests of a rate such as `50/s`, 0 for `none`; raises
    `ValueError`."""
    if text == "none":
        return 0.0
    match = re.fullmatch(r"(\d+(?:\.\d+)?)/(s|m|h)", text)
    if not match or not 1e-4 <= float(match[1]) <= 1e6:
        raise ValueError("must be none, or a rate such as 50/s, 30/m or 500/h")
    return {"s": 1.0, "m": 60.0, "h": 3600.0}[match[2]] / float(match[1])


def bad_rate(text: str) -> str | None:
    """Return what is wrong with a rate."""
    try:
        interval(text)
    except ValueError as error:
        return str(error)
    return None


def _bad_timezone(text: str) -> str | None:
    try:
        ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return "there is no such time zone; write it as Europe/Sofia or UTC"
    return None


def _bad_redis_url(text: str) -> str | None:
    try:
        RedisAddress.parse(text)
    except ValueError as error:
        return str(error)
    return None


def _bad_gateway(text: str) -> str | None:
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = None
    if not good:
        return "is not an address; write https://host or https://host/path"
    if parts.username or parts.password:
        return "must hold no user name or password; the secret is GATEWAY_TOKEN"
    if parts.query or parts.fragment:
        return "must have neither a query nor a fragment"
    return None


def _bad_token(text: str) -> str | None:
    if re.fullmatch(r"[!-~]{1,4096}", text):
        return None
    return "must be printable ASCII without spaces"


def _bad_proxy(text: str) -> str | None:
    try:
        parts = urlsplit(text)
        good = parts.scheme == "http" and parts.hostname and parts.port != 0
    except ValueError:
        good = None
    if good:
        return None
    return "is not a proxy's address; write http://host:port"


def _bad_failpoint(text: str) -> str | None:
    if re.fullmatch(r"[a-z-]+:[1-9]\d*(:hang)?", text):
        return None
    return "must be name:n or name:n:hang, such as committed:3"


_CHECKS = {
    "rate": bad_rate,
    "timezone": _bad_timezone,
    "redis_url": _bad_redis_url,
    "gateway_url": _bad_gateway,
    "gateway_token": _bad_token,
    "api_token": _bad_token,
    "http_proxy": _bad_proxy,
    "https_proxy": _bad_proxy,
    "failpoint": _bad_failpoint,
}

_passages: Counter[str] = Counter()
_failpoint = os.environ.get("CRAWLER_FAILPOINT", "").split(":")


def failpoint(name: str) -> None:
    """Kill this process, or hang, if CRAWLER_FAILPOINT names this step and its count is reached."""
    if _failpoint[0] == name:
        _passages[name] += 1
        if _passages[name] == int(_failpoint[1]):
            if _failpoint[2:]:
                re.match("(a+)+b", "a" * 100)  # hangs inside C code, as a parser may
            os.kill(os.getpid(), signal.SIGKILL)
