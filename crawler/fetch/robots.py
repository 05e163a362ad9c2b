"""robots.txt (RFC 9309): asked for once per host and machine, cached, and obeyed.

The rules are read and matched within the budget of a page, as generously as by other crawlers:
misspellings, names and values without a colon, `*` within names of agents.
"""

import asyncio
import logging
import math
import os
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote, quote_from_bytes

import ada_url
import msgspec

from crawler import files, times
from crawler.errors import FetchError, UrlError
from crawler.fetch import charset
from crawler.fetch.budget import SMALL, Budget
from crawler.locks import open_lock, try_lock
from crawler.models import Page
from crawler.urls import MAX_LENGTH, check_host, normalize

MAX_BYTES = 500_000  # bytes read of a robots.txt
FRESH_S = 3600.0  # how long rules are cached
UNREACHABLE_S = 60.0  # how long a server in trouble is not asked again
HEARD_S = 1.0  # by then all processes know that a domain pauses for its robots.txt
MAX_HOSTS = 2_000  # hosts whose rules a process keeps in memory
MAX_TEXTS = 4_000_000  # characters of all their texts; the rules take 20 times that
MAX_SITEMAPS = 100  # sitemaps that one names
SWEEP_S, SWEEP_HOSTS = 3600.0, 5_000  # seconds or hosts between two sweeps of the folder
MAX_FILES = 10_000  # files that a sweep leaves
POLL_S = 0.05  # how often another process's answer is looked for
PRODUCT = "crawler"
_FAILS_PAGE = frozenset({
    "connection", "timeout", "dns", "tls", "tls_broken_off", "truncated", "bad_response",
    "forbidden_address", "proxy", "bad_request",
})  # fmt: skip
"""Reasons for which the page itself cannot be fetched either."""

_AGENT = frozenset({"user-agent", "useragent", "user agent"})
_DELAY = frozenset({"crawl-delay", "crawl delay"})
_DISALLOW = frozenset({"disallow", "dissallow", "dissalow", "disalow", "diasllow", "disallaw"})
_ALLOW = frozenset({"allow"})
_SITEMAP = frozenset({"sitemap", "sitemaps", "site-map"})
_SITE = _SITEMAP | {"host"}  # they end no group
_KNOWN = _SITE | _AGENT | _DELAY | _DISALLOW | _ALLOW
_MAX_NAME = 60  # characters of a line in which its name is looked for
_LINE_END = re.compile(r"\r\n?|\n")
_PLAIN = re.compile(r"[A-Za-z0-9_.~/=*-]+")  # needs no escapes, in rules and in paths
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_ORIGIN = re.compile(r"\A[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")
_OWN, _INDEX = "/robots.txt", "/index.html"

Fetch = Callable[[str], Awaitable[Page]]

log = logging.getLogger(__name__)


class _Rule:
    """A path with wildcards, split at them; of all rules that match, the longest decides."""

    __slots__ = ("allow", "anchored", "length", "parts")

    def __init__(self, pattern: str, allow: bool) -> None:
        self.allow, self.length = allow, len(pattern)
        self.anchored = pattern.endswith("$")
        self.parts = pattern.removesuffix("$").split("*")
        if len(self.parts) > 2:
            self.parts[1:-1] = filter(None, self.parts[1:-1])

    @property
    def is_prefix(self) -> bool:
        return len(self.parts) == 1 and not self.anchored

    def matches(self, path: str, budget: Budget) -> bool:
        """Whether it matches a path; each wildcard takes as little as possible, which suffices."""
        first, *parts = self.parts
        if not path.startswith(first):
            return False
        if not parts:
            return not self.anchored or path == first
        place, last = len(first), parts.pop()
        for part in parts:
            budget.check()
            place = path.find(part, place)
            if place < 0:
                return False
            place += len(part)
        if self.anchored:
            return len(path) - len(last) >= place and path.endswith(last)
        return path.find(last, place) >= 0


class RuleSet:
    """The rules for one agent: of the groups with the longest name that matches, else of `*`."""

    def __init__(self, text: str, agent: str, budget: Budget) -> None:
        self.crawl_delay_s = 0.0
        self._rules = self._parse(text, agent.lower(), budget)
        self._rules.sort(key=lambda rule: (rule.length, rule.allow), reverse=True)
        self._wildcards = [rule for rule in self._rules if not rule.is_prefix]
        self._prefixes = tuple([rule.parts[0] for rule in self._rules if rule.is_prefix])

    def allows(self, url: str, budget: Budget) -> bool:
        """Whether a URL may be fetched; robots.txt itself always may."""
        path = _path(url)
        if path == _OWN or path.startswith(f"{_OWN}%3F"):
            return True
        rules = self._rules if path.startswith(self._prefixes) else self._wildcards
        for rule in rules:
            budget.check()
            if rule.matches(path, budget):
                return rule.allow
        return True

    def _parse(self, text: str, agent: str, budget: Budget) -> list[_Rule]:
        rules: list[_Rule] = []
        best = score = 0  # how well a group matches the agent: the best so far, and the current
        in_names = False  # whether the names of the current group are still being read
        for line in _LINE_END.split(text):
            budget.check()
            name, value = _directive(line)
            if name in _AGENT:
                if not in_names:
                    score = 0
                score = max(score, _score(value.lower(), agent))
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
    """Return name and value of a line; "other" for unknown names, both empty for no directive."""
    line = line.partition("#")[0].strip()
    name, colon, value = line[:_MAX_NAME].partition(":")
    name = name.strip().lower()
    if colon and name in _KNOWN:
        return name, line.partition(":")[2].strip()
    if colon and (not value or value[0].isspace()):
        return "other", ""
    words = line[:_MAX_NAME].split(None, 2)
    for count in (1, 2):
        if (name := " ".join(words[:count]).lower()) in _KNOWN:
            return name, " ".join(line.split(None, count)[count:])
    return ("other", "") if colon else ("", "")


def _score(name: str, agent: str) -> int:
    """How well a group's name matches an agent: its length, if it is at the start of a word."""
    if name == "*":
        return 1
    name = name.replace("*", "")
    place = agent.find(name) if name else -1
    while place > 0 and (agent[place - 1].isalnum() or agent[place - 1] in "-_"):
        place = agent.find(name, place + 1)
    if place < 0:
        return 0
    return 1 + len(name)


def _seconds(value: str, otherwise: float) -> float:
    text = value[:40]
    if "_" in text or not text.isascii():
        return otherwise
    try:
        seconds = float(text)
    except ValueError:
        return otherwise
    if math.isfinite(seconds) and seconds >= 0:
        return seconds
    return otherwise


def _add(rules: list[_Rule], value: str, allow: bool) -> None:
    if "$" in value:  # it may be meant literally, too
        rules.append(_Rule(_normal(value.replace("$", "%24"), "*"), allow))
    anchor = "$" if value.endswith("$") else ""
    if value.startswith(("http://", "https://")):
        value = f"/{value}"
    pattern = _normal(value.removesuffix("$"), "*") + anchor
    rules.append(_Rule(pattern, allow))
    if allow and pattern.endswith(_INDEX):
        rules.append(_Rule(f"{pattern.removesuffix(_INDEX)}/$", allow))


def _path(url: str) -> str:
    """Return path and query of a URL, to be compared with rules."""
    path = _normal(_ORIGIN.sub("", url).partition("#")[0], "")
    return "/" + path.removeprefix("/")


def _normal(text: str, kept: str) -> str:
    """Escape only what must be escaped, but decode neither an escaped slash nor `%`."""
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


class RobotsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A host's answer for robots.txt, as it is cached in a file."""

    origin: str
    at: float  # by the machine's uptime, which no clock step changes
    boot: str = ""  # the boot that `at` belongs to
    status: int
    text: str = ""  # empty if everything is allowed

    @property
    def unreachable(self) -> bool:
        """Whether the server is in trouble: then nothing is allowed for now."""
        return self.status >= 500 or self.status in (407, 429)

    def is_fresh(self, now: float, since: float | None = None) -> bool:
        """Whether it still holds, for a page whose permit was given at `since`.

        A permit that came after the pause means that somebody reset the domain: ask again.
        """
        if self.unreachable and since is not None and since > self.at + HEARD_S:
            return False
        lifetime_s = UNREACHABLE_S if self.unreachable else FRESH_S
        return self.boot == times.boot_id() and 0 <= now - self.at < lifetime_s


class Rules:
    """The rules of a robots.txt by agent, parsed when they are first asked for."""

    def __init__(self, answer: RobotsAnswer) -> None:
        self.answer = answer
        self._sets: dict[str, RuleSet] = {}

    def allow(self, url: str, agent: str, budget: Budget | None = None) -> bool:
        budget = budget or Budget()
        if agent not in self._sets:
            self._sets[agent] = RuleSet(self.answer.text, agent, budget)
        return self._sets[agent].allows(url, budget)

    def crawl_delay_s(self, agent: str) -> float:
        """Return the Crawl-delay for an agent that was asked about with `allow`."""
        return self._sets[agent].crawl_delay_s


class Robots:
    """The robots.txt of all hosts; the processes of a machine share answers in a folder."""

    def __init__(self, folder: Path, clock: Callable[[], float] = times.uptime) -> None:
        self._folder, self.clock = folder, clock
        self._rules: OrderedDict[str, Rules] = OrderedDict()
        self._length = 0  # characters of all texts in `_rules`
        self._asked: dict[str, asyncio.Task[Rules]] = {}
        self._swept_at, self._written = -math.inf, 0
        self._sweeping: asyncio.Future[int] | None = None

    async def check(
        self,
        url: str,
        user_agent: str,
        fetch: Fetch,
        budget: Budget | None = None,
        since: float | None = None,
    ) -> float:
        """Raise `FetchError` if the URL may not be fetched; return the Crawl-delay.

        `since` is when the page got its permit, by `clock`.
        """
        agent = product(user_agent)
        origin = url[: url.index("/", 8)]  # in WHATWG's normal form there is always a path
        budget = budget or Budget()
        rules = self.known(origin, since) or await self._learn(origin, fetch, budget, since)
        answer = rules.answer
        if answer.unreachable:
            left_s = answer.at + UNREACHABLE_S - self.clock()
            message = f"{origin}/robots.txt answered {answer.status}"
            raise FetchError("robots_unreachable", message, max(1.0, left_s))
        if not answer.text:
            return 0.0
        run = budget.at_once if len(answer.text) <= SMALL else budget.work
        if not await run(rules.allow, url, agent, budget):
            raise FetchError(
                "robots",
                f"{origin}/robots.txt does not let {agent} fetch this page (--ignore-robots would)",
            )
        return rules.crawl_delay_s(agent)

    def known(self, origin: str, since: float | None = None) -> Rules | None:
        """Return the rules that this process knows already, if they are fresh."""
        rules = self._rules.get(origin)
        if rules and rules.answer.is_fresh(self.clock(), since):
            return rules
        return None

    async def _learn(self, origin: str, fetch: Fetch, budget: Budget, since: float | None) -> Rules:
        """Ask once at a time for each host; later pages wait for the same answer."""
        task = self._asked.get(origin)
        if task is None:
            finding = self._find(origin, fetch, budget, since)
            task = self._asked[origin] = asyncio.ensure_future(finding)
            task.add_done_callback(lambda _: self._asked.pop(origin, None))
        return await asyncio.shield(task)

    async def _find(self, origin: str, fetch: Fetch, budget: Budget, since: float | None) -> Rules:
        """Read another process's answer, or ask the host under the machine-wide lock."""
        path = self._folder / sha256(origin.encode()).hexdigest()[:32]
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = _open_lock(path)
        try:
            while True:
                mine = try_lock(lock)  # the kernel frees the lock of a killed process
                if mine and not os.fstat(lock).st_nlink:
                    os.close(lock)  # swept away: the next process would lock another file
                    lock = _open_lock(path)
                    continue
                answer = _read(path, origin)
                if answer is not None and answer.is_fresh(self.clock(), since):
                    break
                if mine:
                    answer = await self._ask(origin, fetch, budget)
                    _write(path, answer)
                    self._sweep_if_due()
                    break
                await asyncio.sleep(POLL_S)
        finally:
            os.close(lock)
        self._keep(origin, rules := Rules(answer))
        return rules

    def _keep(self, origin: str, rules: Rules) -> None:
        """Cache the rules of a host, and drop the oldest if there are too many or too long ones."""
        if replaced := self._rules.pop(origin, None):
            self._length -= len(replaced.answer.text)
        self._rules[origin] = rules
        self._length += len(rules.answer.text)
        while len(self._rules) > MAX_HOSTS or (self._length > MAX_TEXTS and len(self._rules) > 1):
            _, oldest = self._rules.popitem(last=False)
            self._length -= len(oldest.answer.text)

    def _sweep_if_due(self) -> None:
        """Remove expired files in a thread, so that no page waits for it."""
        now = self.clock()
        self._written += 1
        if 0 <= now - self._swept_at < SWEEP_S and self._written < SWEEP_HOSTS:
            return
        if self._sweeping is None or self._sweeping.done():
            self._swept_at, self._written = now, 0
            loop = asyncio.get_running_loop()
            self._sweeping = loop.run_in_executor(None, sweep, self._folder, now)

    async def _ask(self, origin: str, fetch: Fetch, budget: Budget) -> RobotsAnswer:
        status, text = 404, ""
        try:
            page = await fetch(f"{origin}/robots.txt")
        except FetchError as error:
            if error.reason in _FAILS_PAGE:
                raise  # else the file cannot be had, as in a redirect loop: all is allowed
        else:
            status = page.status
            if 200 <= status < 300:
                body = page.body[:MAX_BYTES]
                text, _ = await budget.at_once(charset.decode, body, "text/plain; charset=utf-8")
        return RobotsAnswer(
            origin=origin,
            boot=times.boot_id(),
            at=self.clock(),
            status=status,
            text=text.removeprefix("\ufeff"),
        )


@lru_cache(maxsize=1_000)
def product(user_agent: str) -> str:
    """Return the name that rules are looked up by: ours, or the first word of another agent."""
    if PRODUCT in user_agent:
        return PRODUCT
    if match := re.match(r"[A-Za-z_-]+", user_agent):
        return match[0]
    return PRODUCT


def sweep(folder: Path, now: float, most: int = MAX_FILES) -> int:
    """Remove expired files, and the oldest beyond `most`; return the number of hosts removed.

    Files are dated by the machine's uptime, so those of an earlier boot may stay for an hour.
    """
    ages: dict[str, float] = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                name, _, suffix = entry.name.partition(".")
                with suppress(FileNotFoundError):
                    if not suffix or name not in ages:  # the age of the answer counts, if any
                        ages[name] = now - entry.stat().st_mtime
        youngest = sorted(ages, key=ages.__getitem__)
        kept = [name for name in youngest if abs(ages[name]) < FRESH_S][:most]
        return sum(_remove(folder / name, now - ages[name]) for name in ages.keys() - set(kept))
    except OSError as error:
        log.warning(
            "expired answers in %s cannot be removed (%s); they are in nobody's way", folder, error
        )
        return 0


def _remove(path: Path, at: float) -> bool:
    """Remove a host's files unless it is being asked now, or was since `at`."""
    lock = _open_lock(path)
    try:
        if not try_lock(lock) or (path.exists() and path.stat().st_mtime > at + 0.001):
            return False
        for suffix in ("", ".part", ".lock"):
            path.with_suffix(suffix).unlink(missing_ok=True)
    finally:
        os.close(lock)
    return True


def _open_lock(path: Path) -> int:
    return open_lock(path.with_suffix(".lock"))


def _read(path: Path, origin: str) -> RobotsAnswer | None:
    try:
        answer = msgspec.json.decode(path.read_bytes(), type=RobotsAnswer)
    except (OSError, msgspec.MsgspecError):
        return None
    if answer.origin != origin:
        return None
    return answer


def _write(path: Path, answer: RobotsAnswer) -> None:
    part = path.with_suffix(".part")  # only the holder of the lock writes
    # The date is the one that `sweep` goes by.
    files.replace_file(path, msgspec.json.encode(answer), part=part, date=answer.at)


def sitemap_lines(body: bytes, url: str, budget: Budget) -> list[str]:
    """Return the URLs of the sitemaps that the robots.txt at a URL names."""
    text, _ = charset.decode(body[:MAX_BYTES], "text/plain; charset=utf-8")
    found: dict[str, None] = {}
    for line in _LINE_END.split(text.removeprefix("\ufeff")):
        budget.check()
        name, value = _directive(line)
        if name not in _SITEMAP or not value or len(value) > MAX_LENGTH:
            continue
        with suppress(UrlError, ValueError):
            check_host(value)
            found[normalize(ada_url.join_url(url, value))] = None
        if len(found) == MAX_SITEMAPS:
            break
    return list(found)
