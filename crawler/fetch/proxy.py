"""Which proxy a request goes through, if any."""

import ipaddress
from urllib.parse import unquote

import ada_url
import msgspec

from crawler.errors import UsageError
from crawler.fetch.egress import literal, names_loopback


class Proxy(msgspec.Struct, frozen=True):
    """An HTTP proxy; its password is in no text made of it."""

    host: str
    port: int
    user_password: str = ""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"Proxy({self})"


def parse(text: str) -> Proxy:
    """Read a proxy's address as `http://[user:password@]host:port`; raises `UsageError` without
    repeating it."""
    if "://" not in text:
        text = f"http://{text}"
    try:
        url = ada_url.URL(text.strip())
    except ValueError:
        raise UsageError("the proxy's address is no URL; write http://host:port") from None
    if url.protocol != "http:" or not url.hostname:
        raise UsageError(
            f"a proxy's address begins with http://, not {url.protocol[:20]}//; write http://host:port"
        )
    if url.pathname not in ("", "/") or url.search or url.hash:
        raise UsageError("a proxy's address ends with its port; write http://host:port")
    if url.port == "0":
        raise UsageError("the proxy's port 0 cannot be connected to")
    secret = (
        f"{unquote(url.username)}:{unquote(url.password)}" if url.username or url.password else ""
    )
    if any(ord(sign) < 32 or ord(sign) == 127 for sign in secret):
        raise UsageError("the proxy's user name or password holds control characters")
    return Proxy(url.hostname, int(url.port or 80), secret)


class Proxies(msgspec.Struct, frozen=True):
    """The proxies of the environment, and for whom they are not."""

    http: Proxy | None = None
    https: Proxy | None = None
    exempt: tuple[str, ...] = ()

    def choose(self, scheme: str, host: str, port: int, own: Proxy | None = None) -> Proxy | None:
        """The proxy for a request, a job's `own` before the environment's; this machine is reached
        without."""
        proxy = own or (self.https if scheme == "https" else self.http)
        if (
            proxy is None
            or names_loopback(host)
            or any(_exempts(rule, host, port) for rule in self.exempt)
        ):
            return None
        return proxy


def from_environment(http: str | None, https: str | None, exempt: str | None) -> Proxies:
    """The proxies that HTTP_PROXY, HTTPS_PROXY and NO_PROXY name."""
    rules = tuple(rule.strip().lower() for rule in (exempt or "").split(",") if rule.strip())
    return Proxies(parse(http) if http else None, parse(https) if https else None, rules)


def _exempts(rule: str, host: str, port: int) -> bool:
    """Whether an entry of NO_PROXY means a host: `*`, a domain and all below it, a network, with or
    without a port."""
    if rule == "*":
        return True
    address = literal(host)
    if address:
        try:
            return address in ipaddress.ip_network(rule.strip("[]"), strict=False)
        except ValueError:
            pass
    name, colon, digits = rule.rpartition(":")
    if (
        colon
        and digits.isascii()
        and digits.isdigit()
        and not (":" in name and not name.endswith("]"))
    ):
        if int(digits) != port:
            return False
        rule = name
    name, own = rule.removeprefix("*").strip("[]").strip("."), host.strip("[]").rstrip(".")
    return bool(name) and (own == name or own.endswith(f".{name}"))
