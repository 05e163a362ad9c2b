"""robots.txt as RFC 9309 has it: asked for once per host and machine, kept for a while, obeyed."""

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

import msgspec

from crawler import files, times
from crawler.errors import FetchError
from crawler.fetch import charset
from crawler.fetch.budget import SMALL, Budget
from crawler.fetch.rules import RuleSet
from crawler.locks import open_lock, try_lock
from crawler.models import Page

MAX_BYTES = 500_000
"""What is read of a robots.txt; what lies behind that does not count."""
FRESH_S, UNREACHABLE_S = 3600.0, 60.0
"""How long rules hold, and how long a server in trouble is not asked again."""
MAX_HOSTS, MAX_TEXTS = 2_000, 4_000_000
"""The hosts whose rules a process keeps in memory, and the characters of all their texts: rules
take 20 times that."""
SWEEP_S, SWEEP_HOSTS, MAX_FILES = 3600.0, 5_000, 10_000
"""A process looks for files that can go at its first host and after so many seconds or hosts; so
many stay at most."""
LOOK_S = 0.05
PRODUCT = "crawler"
_AWAY = frozenset(
    {
        "connection",
        "timeout",
        "dns",
        "tls",
        "tls_broken_off",
        "truncated",
        "bad_response",
        "forbidden_address",
        "proxy",
    }
    | {"bad_request"}
)
"""What keeps the page itself from being fetched, too, and is its failure."""

Fetch = Callable[[str], Awaitable[Page]]

log = logging.getLogger(__name__)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a host's robots.txt says, as it is kept in a file: `text` is empty where all is
    allowed."""

    origin: str
    at: float
    """The machine's uptime: no clock step makes an answer older or younger."""
    boot: str = ""
    """The boot that `at` belongs to; after another the host is asked again."""
    status: int
    text: str = ""

    @property
    def unreachable(self) -> bool:
        """Whether the server could not tell: then nothing is allowed for now. A missing file allows
        everything."""
        return self.status >= 500 or self.status in (407, 429)

    def is_fresh(self, now: float) -> bool:
        """Whether it still holds."""
        age_s = now - self.at
        return self.boot == times.boot_id() and 0 <= age_s < (
            UNREACHABLE_S if self.unreachable else FRESH_S
        )


class Rules:
    """A robots.txt, ready to be asked."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.unreachable = answer.unreachable
        self._sets: dict[str, RuleSet] = {}

    def allow(self, url: str, agent: str, budget: Budget | None = None) -> bool:
        """Whether this program may fetch the URL under that name."""
        budget = budget or Budget()
        if agent not in self._sets:
            self._sets[agent] = RuleSet(self.answer.text, agent, budget)
        return self._sets[agent].allows(url, budget)

    def crawl_delay_s(self, agent: str) -> float:
        """The seconds between requests that it asks for, once `allow` was asked; 0 where it asks
        for none."""
        return self._sets[agent].crawl_delay_s


class Robots:
    """The robots.txt of all hosts, shared by the processes of this machine through a folder."""

    def __init__(self, folder: Path, clock: Callable[[], float] = times.uptime) -> None:
        self._folder, self._clock = folder, clock
        self._rules: OrderedDict[str, Rules] = OrderedDict()
        self._length = 0
        """The characters of all texts in `_rules`."""
        self._asked: dict[str, asyncio.Task[Rules]] = {}
        self._swept, self._written = -math.inf, 0
        self._sweeping: asyncio.Future[int] | None = None

    async def check(
        self, url: str, user_agent: str, fetch: Fetch, budget: Budget | None = None
    ) -> float:
        """Raise where robots.txt does not let the URL be fetched; returns the Crawl-delay that it
        asks for."""
        agent = product(user_agent)
        origin = url[: url.index("/", 8)]  # in WHATWG's normal form there is always a path
        budget = budget or Budget()
        rules = self.known(origin) or await self._learn(origin, fetch, budget)
        if rules.unreachable:
            status, left_s = rules.answer.status, rules.answer.at + UNREACHABLE_S - self._clock()
            message = f"{origin}/robots.txt answered {status}, so nothing is fetched from there yet"
            raise FetchError("robots_unreachable", message, max(1.0, left_s))
        if not rules.answer.text:
            return 0.0
        asking = (rules.allow, url, agent, budget)
        small = len(rules.answer.text) <= SMALL
        if not await (budget.at_once(*asking) if small else budget.work(*asking)):
            raise FetchError(
                "robots",
                f"{origin}/robots.txt does not let {agent} fetch this page (--ignore-robots would)",
            )
        return rules.crawl_delay_s(agent)

    def known(self, origin: str) -> Rules | None:
        """What this process knows of a host already, if it still holds."""
        rules = self._rules.get(origin)
        return rules if rules and rules.answer.is_fresh(self._clock()) else None

    async def _learn(self, origin: str, fetch: Fetch, budget: Budget) -> Rules:
        """Once at a time for each host in this process: whoever comes second waits for the
        first."""
        task = self._asked.get(origin)
        if task is None:
            task = self._asked[origin] = asyncio.ensure_future(self._find(origin, fetch, budget))
            task.add_done_callback(lambda _: self._asked.pop(origin, None))
        return await asyncio.shield(task)

    async def _find(self, origin: str, fetch: Fetch, budget: Budget) -> Rules:
        path = self._folder / sha256(origin.encode()).hexdigest()[:32]
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = _open_lock(path)
        try:
            while True:
                # One process of the machine asks, and the kernel frees the lock of a killed one.
                mine = try_lock(lock)
                if (
                    mine and not os.fstat(lock).st_nlink
                ):  # swept away: the next process would lock another file
                    os.close(lock)
                    lock = _open_lock(path)
                    continue
                answer = _read(path, origin)
                if answer is not None and answer.is_fresh(self._clock()):
                    break
                if mine:
                    answer = await self._ask(origin, fetch, budget)
                    _write(path, answer)
                    self._sweep_now_and_then()
                    break
                await asyncio.sleep(LOOK_S)
        finally:
            os.close(lock)
        self._keep(origin, rules := Rules(answer))
        return rules

    def _keep(self, origin: str, rules: Rules) -> None:
        """Remember the rules of a host, and forget those of others where they are too many or too
        long."""
        replaced = self._rules.pop(origin, None)
        self._rules[origin] = rules
        self._length += len(rules.answer.text) - (len(replaced.answer.text) if replaced else 0)
        while len(self._rules) > MAX_HOSTS or (self._length > MAX_TEXTS and len(self._rules) > 1):
            _, oldest = self._rules.popitem(last=False)
            self._length -= len(oldest.answer.text)

    def _sweep_now_and_then(self) -> None:
        """Have expired files removed by a thread, so that no page waits for it."""
        now = self._clock()
        self._written += 1
        if 0 <= now - self._swept < SWEEP_S and self._written < SWEEP_HOSTS:
            return
        if self._sweeping is None or self._sweeping.done():
            self._swept, self._written = now, 0
            self._sweeping = asyncio.get_running_loop().run_in_executor(
                None, sweep, self._folder, now
            )

    async def _ask(self, origin: str, fetch: Fetch, budget: Budget) -> Answer:
        try:
            page = await fetch(f"{origin}/robots.txt")
        except FetchError as error:
            if error.reason in _AWAY:
                raise
            return self._answer(origin, 404)  # a file that cannot be had, such as in a loop
        text = ""
        if 200 <= page.status < 300:
            body = page.body[:MAX_BYTES]
            text, _ = await budget.at_once(charset.decode, body, "text/plain; charset=utf-8")
            text = text.removeprefix("\ufeff")
        return self._answer(origin, page.status, text)

    def _answer(self, origin: str, status: int, text: str = "") -> Answer:
        return Answer(
            origin=origin, boot=times.boot_id(), at=self._clock(), status=status, text=text
        )


@lru_cache(maxsize=1_000)
def product(user_agent: str) -> str:
    """The name that rules are looked up by: of our own agent ours, else the first word of what was
    given."""
    if PRODUCT in user_agent:
        return PRODUCT
    match = re.match(r"[A-Za-z_-]+", user_agent)
    return match[0] if match else PRODUCT


def sweep(folder: Path, now: float, most: int = MAX_FILES) -> int:
    """Remove what has expired, and of the rest the oldest beyond the limit; returns of how many
    hosts.

    The files are dated by the machine's uptime, so what an earlier boot left may stay for an hour.
    """
    ages: dict[str, float] = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                name, _, suffix = entry.name.partition(".")
                with suppress(FileNotFoundError):
                    if not suffix or name not in ages:  # where there is an answer, its age counts
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
    """Remove a host's files unless it is being asked, or was since `at`."""
    lock = _open_lock(path)
    try:
        if not try_lock(lock) or (path.exists() and path.stat().st_mtime > at + 0.001):
            return False
        path.unlink(missing_ok=True)
        path.with_suffix(".part").unlink(missing_ok=True)
        path.with_suffix(".lock").unlink(missing_ok=True)
    finally:
        os.close(lock)
    return True


def _open_lock(path: Path) -> int:
    return open_lock(path.with_suffix(".lock"))


def _read(path: Path, origin: str) -> Answer | None:
    try:
        answer = msgspec.json.decode(path.read_bytes(), type=Answer)
    except (OSError, msgspec.MsgspecError):
        return None
    return answer if answer.origin == origin else None


def _write(path: Path, answer: Answer) -> None:
    part = path.with_suffix(".part")  # one name for all processes: the writer holds the lock
    files.replace_file(path, msgspec.json.encode(answer), part=part)
    os.utime(path, (answer.at, answer.at))  # by which it is swept
