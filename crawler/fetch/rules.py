"""The rules of one robots.txt for one agent (RFC 9309), read and matched within the budget of a
page.

As generous as other crawlers: names and values without a colon, misspellings, `*` within names of
agents.
"""

import math
import re
from urllib.parse import quote, quote_from_bytes

from crawler.fetch.budget import Budget

_AGENT = frozenset({"user-agent", "useragent", "user agent"})
_DELAY = frozenset({"crawl-delay", "crawl delay"})
_DISALLOW = frozenset({"disallow", "dissallow", "dissalow", "disalow", "diasllow", "disallaw"})
_ALLOW = frozenset({"allow"})
_SITE = frozenset({"sitemap", "sitemaps", "site-map", "host"})
"""Of the whole site: they end no group."""
_KNOWN = _SITE | _AGENT | _DELAY | _DISALLOW | _ALLOW
_MAX_NAME = 60
"""Characters of a line in which its name is looked for."""
_LINE_END = re.compile(r"\r\n?|\n")
_PLAIN = re.compile(r"[A-Za-z0-9_.~/=*-]+")
"""What needs no escapes, in rules as in paths."""
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_HOST = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")
_OWN, _INDEX = "/robots.txt", "/index.html"


class _Rule:
    """A path with wildcards, cut at them; `length` decides between rules that match."""

    __slots__ = ("allow", "ends", "length", "parts")

    def __init__(self, pattern: str, allow: bool) -> None:
        self.allow, self.length = allow, len(pattern)
        self.ends = pattern.endswith("$")
        parts = pattern.removesuffix("$").split("*")
        self.parts = (
            [parts[0], *filter(None, parts[1:-1]), *parts[-1:]] if len(parts) > 1 else parts
        )

    def matches(self, path: str, budget: Budget) -> bool:
        """Whether it is about a path; each wildcard takes as little as it can, which is enough to
        find a match."""
        first, *parts = self.parts
        if not path.startswith(first):
            return False
        if not parts:
            return not self.ends or path == first
        place, last = len(first), parts.pop()
        for part in parts:
            budget.check()
            place = path.find(part, place)
            if place < 0:
                return False
            place += len(part)
        if self.ends:
            return len(path) - len(last) >= place and path.endswith(last)
        return path.find(last, place) >= 0


class RuleSet:
    """What applies to one agent: the rules of the groups with the longest name that means it, else
    those for all."""

    def __init__(self, text: str, agent: str, budget: Budget) -> None:
        self.crawl_delay_s = 0.0
        rules = self._read(text, agent.lower(), budget)
        rules.sort(key=lambda rule: (rule.length, rule.allow), reverse=True)
        self._rules = rules
        self._special = [rule for rule in rules if len(rule.parts) > 1 or rule.ends]
        self._prefixes = tuple(
            [rule.parts[0] for rule in rules if len(rule.parts) == 1 and not rule.ends]
        )

    def allows(self, url: str, budget: Budget) -> bool:
        """Whether a URL may be fetched; robots.txt itself always may."""
        path = _path(url)
        if path == _OWN or path.startswith(f"{_OWN}%3F"):
            return True
        for rule in self._rules if path.startswith(self._prefixes) else self._special:
            budget.check()
            if rule.matches(path, budget):
                return rule.allow
        return True

    def _read(self, text: str, agent: str, budget: Budget) -> list[_Rule]:
        best, rules = 0, list[_Rule]()
        score, in_names = 0, False
        """How well the present group means the agent, and whether its names are still being
        read."""
        for line in _LINE_END.split(text):
            budget.check()
            name, value = _directive(line)
            if name in _AGENT:
                score = max(score if in_names else 0, _score(value.lower(), agent))
                if score > best:
                    best, self.crawl_delay_s = score, 0.0
                    rules.clear()
            in_names = name in _AGENT or (in_names and (not name or name in _SITE))
            if not score or score < best or not value:
                continue
            if name in _DELAY:
                self.crawl_delay_s = _seconds(value, self.crawl_delay_s)
            elif name in _ALLOW or name in _DISALLOW:
                _add(rules, value, name in _ALLOW)
        return rules


def _directive(line: str) -> tuple[str, str]:
    """Name and value of a line; both empty where it says nothing to us."""
    line = line.partition("#")[0].strip()
    name, colon, value = line[:_MAX_NAME].partition(":")
    name = name.strip().lower()
    if colon and (name in _KNOWN or not value or value[0].isspace()):
        return (name, line.partition(":")[2].strip()) if name in _KNOWN else ("other", "")
    words = line[:_MAX_NAME].split(None, 2)
    for count in (1, 2):
        if (name := " ".join(words[:count]).lower()) in _KNOWN:
            return name, " ".join(line.split(None, count)[count:])
    return ("other", "") if colon else ("", "")


def _score(name: str, agent: str) -> int:
    """How well a group's name means an agent: by its length where it stands at the beginning of a
    word."""
    if name == "*":
        return 1
    name = name.replace("*", "")
    place = agent.find(name) if name else -1
    while place > 0 and (agent[place - 1].isalnum() or agent[place - 1] in "-_"):
        place = agent.find(name, place + 1)
    return 1 + len(name) if place >= 0 else 0


def _seconds(value: str, otherwise: float) -> float:
    try:
        seconds = float(value[:40]) if "_" not in value[:40] and value[:40].isascii() else -1.0
    except ValueError:
        return otherwise
    return seconds if math.isfinite(seconds) and seconds >= 0 else otherwise


def _add(rules: list[_Rule], value: str, allow: bool) -> None:
    if "$" in value:  # which may be meant literally, too
        rules.append(_Rule(_normal(value.replace("$", "%24"), "*"), allow))
    anchor = "$" if value.endswith("$") else ""
    if value.startswith(("http://", "https://")):
        value = f"/{value}"
    pattern = _normal(value.removesuffix("$"), "*") + anchor
    rules.append(_Rule(pattern, allow))
    if allow and pattern.endswith(_INDEX):
        rules.append(_Rule(f"{pattern.removesuffix(_INDEX)}/$", allow))


def _path(url: str) -> str:
    """Path and query of a URL, to be compared with rules."""
    host = _HOST.match(url)
    path = _normal(url[host.end() if host else 0 :].partition("#")[0], "")
    return path if path.startswith("/") else f"/{path}"


def _normal(text: str, kept: str) -> str:
    """Text with the same escapes, however it was written: only what must be escaped is, but neither
    slash nor `%`."""
    if _PLAIN.fullmatch(text) and (kept or "*" not in text):
        return text
    if "%" not in text:
        return quote(text, safe=f"/={kept}", errors="replace")
    stays = f"/%{kept}".encode()

    def unescaped(match: re.Match[bytes]) -> bytes:
        byte = bytes.fromhex(match[1].decode())
        return match[0].upper() if byte in stays else byte

    plain = _ESCAPE.sub(unescaped, text.encode("utf-8", "replace"))
    return quote_from_bytes(plain, safe=f"/%={kept}")
