"""The way of one page: permit, fetch, judge, parse. What comes out is stored by whoever called."""

import random
import time
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from itertools import islice
from resource import RLIM_INFINITY, RLIMIT_AS, RLIMIT_DATA, getrlimit
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from crawler.errors import FetchError, NotNow, shortage_of
from crawler.fetch import charset
from crawler.fetch.budget import SMALL, Budget, check_free
from crawler.fetch.http import USER_AGENT, Request, RequestHook
from crawler.fetch.robots import MAX_BYTES, Robots
from crawler.fetch.session import LiveSession
from crawler.fetch.wire import media_type
from crawler.judge import Verdict, decided, judge
from crawler.logs import printable
from crawler.models import UNCHANGED, Outcome, Page, RetryClass, Rule, Task, TaskStatus
from crawler.resilience import retry
from crawler.scraping.passage import Passage
from crawler.sites import selectors, structured
from crawler.sites.config import Site
from crawler.sites.depth import parse

charset.load()

Fetch = Callable[[Request, RequestHook], Awaitable[Page]]

TIMES_BESIDE, MAX_BESIDE = 100, 64_000_000
"""What reading a page takes beside it, while it lasts: so many times its size, and no more than
this."""
_encode = msgspec.json.Encoder().encode
MIN_FREE = 10_000_000
"""The same for the smallest page: bytes of memory without which none is read."""
SOON_S = 1.0
MAX_RECORD = 8_000_000
"""Bytes of a record as JSON."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A claimed task, and how its page is to be asked for."""

    task: Task
    site: Site
    rule: Rule = Rule()
    session: LiveSession | None = None
    respect_robots: bool = True

    @property
    def user_agent(self) -> str:
        """The name that this program goes by there."""
        named = next(
            (value for name, value in self.site.headers if name.lower() == "user-agent"), ""
        )
        return (self.session and self.session.user_agent) or named or USER_AGENT

    @property
    def conditional(self) -> tuple[tuple[str, str], ...]:
        """The headers that ask whether the page has changed, where its last record would be made
        the same way today."""
        known = self.task.known
        if known is None or (known.site_version, known.parser_version) != (
            self.site.version,
            _parser(self.site)[1],
        ):
            return ()
        asked = (("If-None-Match", known.etag), ("If-Modified-Since", known.last_modified))
        return tuple((name, value) for name, value in asked if value)


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """What was made of a page."""

    verdict: Verdict
    record: dict[str, Any]
    encoded: bytes = b"{}"
    """The record as JSON."""
    parser: tuple[str, str]


async def scrape(
    order: Order,
    fetch: Fetch,
    passage: Passage,
    robots: Robots,
    *,
    worker: str,
    budget: Budget,
    clock: Callable[[], float] = time.time,
    jitter: Callable[[], float] = random.random,
) -> Outcome:
    """One attempt at one task; all work on what servers send for it is done within its budget."""
    site = order.site
    passage.again = _was_refused(order.task)
    begun = Outcome(
        task=order.task,
        status=TaskStatus.FAILED,
        worker=worker,
        site=(site.name, site.version),
        rule=order.rule,
    )
    page: Page | None = None
    try:
        page = await _fetched(order, fetch, passage, robots, budget)
        begun = replace(begun, page=page)
        if page.status == 304 and order.conditional:
            passage.good = True
            ended = replace(begun, status=TaskStatus.COMPLETED, verdict=UNCHANGED)
        else:
            began = time.perf_counter()
            read = await budget.work(examine, page, site, budget)
            begun = replace(begun, parse_ms=(time.perf_counter() - began) * 1000)
            ended = _judged(begun, page, read, order, passage, clock, jitter)
    except NotNow as error:
        if passage.sent:  # what was asked for already would be asked for again and again
            refused = FetchError(
                "refused_on_the_way",
                f"the page leads to where nothing may go now: {error}",
                error.wait_s,
            )
            ended = _failed(begun, refused, RetryClass.LATER, order, passage, clock, jitter)
        else:
            ended = _postponed(begun, error, clock)
    except FetchError as error:
        passage.good = None if page is None else page.status < 500
        if error.reason == "robots_unreachable" and not passage.sent:
            # Another page has asked, and pays with an attempt; this one has not been tried.
            return _postponed(begun, _pause(order, error), clock)
        ended = _failed(begun, error, retry.class_of(error.reason), order, passage, clock, jitter)
    return replace(ended, sent=tuple(passage.sent))


def _was_refused(task: Task) -> bool:
    """Whether the last attempt at a task spoke against its domain."""
    reason = task.error_type
    if not reason:
        return False
    return bool(decided(reason).block) or reason in retry.BLOCKS or reason.startswith("http_5")


async def _fetched(
    order: Order, fetch: Fetch, passage: Passage, robots: Robots, budget: Budget
) -> Page:
    """The page, with every request on the way to it permitted by its domain and by robots.txt."""
    site = order.site
    about = Request(
        url=order.task.url,
        loopback=order.task.loopback,
        timeout_s=site.timeout_s,
        connect_timeout_s=site.connect_timeout_s,
        headers=site.headers,
        session=order.session,
        budget=budget,
        unlimited=not order.rule.limited,
    )

    async def robots_txt(url: str) -> Page:
        # A redirect's robots.txt is another origin's: it gets no secrets, and is not to be found on
        # this machine.
        home = "{0.scheme}://{0.netloc}".format(urlsplit(about.url))
        named = about.loopback and url.startswith(f"{home}/")
        request = replace(about, url=url, home=home, loopback=named, max_body=MAX_BYTES, cut=True)
        return await fetch(request, passage.request)

    since = robots.clock() if order.rule.limited else None

    async def check(url: str) -> None:
        before = len(passage.sent)
        try:
            delay_s = await robots.check(url, order.user_agent, robots_txt, budget, since)
        except FetchError as error:
            if error.reason == "robots_unreachable" and len(passage.sent) > before:
                passage.pause(url, error.retry_after_s or 0.0, error.message)
            raise
        passage.obey(url, delay_s)

    gate = partial(passage.request, check=check if order.respect_robots else None)
    conditional = order.conditional
    page = await fetch(
        replace(about, headers=(*site.headers, *conditional)) if conditional else about, gate
    )
    known = order.task.known
    if page.status == 304 and conditional and known and page.final_url != known.final_url:
        page = await fetch(about, gate)  # another page than the one that is known has not changed
    return replace(page, fetch_s=sum([sent.seconds for sent in passage.sent]))


def _judged(
    begun: Outcome,
    page: Page,
    read: Read,
    order: Order,
    passage: Passage,
    clock: Callable[[], float],
    jitter: Callable[[], float],
) -> Outcome:
    verdict = read.verdict
    evidence = () if verdict.name == "ok" else verdict.evidence
    begun = replace(begun, verdict=verdict.name, evidence=evidence, quarantine=verdict.quarantine)
    passage.good, passage.block = page.status < 500, verdict.block
    if verdict.completed:
        return replace(begun, status=TaskStatus.COMPLETED, record=read.encoded, parser=read.parser)
    message = f"the server answered {page.status} {printable(page.reason[:100])[:100]}".rstrip()
    if not verdict.name.startswith("http_"):
        message += f", and the page is: {verdict.name.replace('_', ' ')}"
        message += f" ({verdict.vendor})" if verdict.vendor else ""
    wait_s = retry.retry_after(page.header("retry-after"), clock())
    passage.retry_after_s = wait_s or 0.0
    error = FetchError(verdict.name, message, wait_s)
    return _failed(
        begun, error, verdict.retry or retry.class_of(verdict.name), order, passage, clock, jitter
    )


def _failed(
    begun: Outcome,
    error: FetchError,
    kind: RetryClass,
    order: Order,
    passage: Passage,
    clock: Callable[[], float],
    jitter: Callable[[], float],
) -> Outcome:
    """What is done about a failure: by its class, by the attempts that are left, and by what the
    server asked for."""
    passage.block = passage.block or (error.reason if error.reason in retry.BLOCKS else "")
    policy, failures = order.site.retry, order.task.failures
    again = kind not in (RetryClass.GIVE_UP, RetryClass.POISON) and failures + 1 < policy.attempts
    wait_s = (
        retry.delay(kind, failures, error.retry_after_s, policy.base_s, policy.cap_s, jitter)
        if again
        else 0.0
    )
    ended = TaskStatus.SKIPPED if error.reason == "robots" else TaskStatus.FAILED
    return replace(
        begun,
        status=TaskStatus.PENDING if again else ended,
        error_type=error.reason,
        error_message=error.message,
        retry=kind,
        not_before=clock() + wait_s if again else 0.0,
    )


def _pause(order: Order, error: FetchError) -> NotNow:
    """The pause of a host whose robots.txt another page has asked for in vain; where the domain's
    permit keeps to it, the page soon waits there, and a reset wakes it."""
    left_s = error.retry_after_s or 0.0
    wait_s = min(left_s, SOON_S) if order.rule.limited else left_s
    return NotNow(order.task.domain, error.message, wait_s)


def _postponed(begun: Outcome, error: NotNow, clock: Callable[[], float]) -> Outcome:
    return replace(
        begun,
        status=TaskStatus.PENDING,
        error_message=str(error),
        not_before=clock() + error.wait_s,
        charge=False,
    )


def examine(page: Page, site: Site, budget: Budget | None = None) -> Read:
    """What a page is and what it says; needs nothing but the page, so that a stored one can be read
    again.

    The record is counted for the page from here on, because it waits for the store like the body.
    """
    budget = budget or Budget()
    beside = min(TIMES_BESIDE * len(page.body), MAX_BESIDE)
    before = budget.held
    budget.hold(beside)
    try:
        if any(getrlimit(limit)[0] != RLIM_INFINITY for limit in (RLIMIT_AS, RLIMIT_DATA)):
            # Is there so much? Libraries crash, or blame the page, where memory ends in their work.
            check_free(beside + MIN_FREE)
        read = _examined(page, site, budget)
    finally:
        budget.release(budget.held - before)
    budget.hold(len(read.encoded))
    return read


def _examined(page: Page, site: Site, budget: Budget) -> Read:
    declared = page.header("content-type")
    if not page.body:
        return _unread(page)
    try:
        if not is_html(declared, page.body):
            return _plainly_read(page, declared, site, budget)
        html = charset.utf8(page.body, declared, budget, site.encoding)
        if not html:
            return _unread(page)
        tree = parse(html, budget, 0 if html is page.body else len(html))
        large = len(html) > SMALL
        if large:
            budget.look()
        verdict = judge(page, html, tree, budget)
        record: dict[str, Any] = {}
        encoded = b"{}"
        if verdict.completed:
            if large:
                budget.look()
            fields = selectors.extract(tree, site.fields, page.final_url, budget)
            record = (
                structured.extract(tree, page.final_url, budget) | fields
                if site.structured
                else fields
            )
            if large:
                budget.look()
            encoded = _encoded(record, fields, budget)
        return Read(verdict=verdict, record=record, encoded=encoded, parser=_parser(site))
    except FetchError:
        if 200 <= page.status < 300:
            raise
        return _unread(page)
    except Exception as error:
        if shortage_of(error):
            raise
        raise FetchError(
            "parse_error", f"the parser failed ({type(error).__name__}: {error})"
        ) from error


def _plainly_read(page: Page, declared: str, site: Site, budget: Budget) -> Read:
    """What is not HTML: data of JSON, and text, are a record; all else has none but the site's
    fields, which nothing but HTML has."""
    unread = _unread(page)
    if not unread.verdict.completed:
        return unread
    kind = media_type(declared)
    is_json = kind.endswith(("/json", "+json"))
    fields = selectors.lacking(site.fields)
    record: dict[str, Any] = {}
    if site.structured and (is_json or kind == "text/plain"):
        body = charset.utf8(page.body, declared, budget, site.encoding)
        record = structured.extract_plain(body, is_json, budget)
    elif not fields:
        return unread
    record |= fields
    return replace(
        unread, record=record, encoded=_encoded(record, fields, budget), parser=_parser(site)
    )


def _encoded(record: dict[str, Any], fields: Collection[str], budget: Budget) -> bytes:
    """A record as JSON; of one that is too large the largest parts are cut, but never the fields of
    a site."""
    pieces: list[bytes] = []
    sizes: dict[str, int] = {}
    total = 1
    for (
        name,
        value,
    ) in record.items():  # one at a time: all of them together may be many times what is kept
        piece = b"%b:%b" % (_encode(name), _encode(value))
        sizes[name] = len(piece) + 1
        total += sizes[name]
        if total <= MAX_RECORD:
            pieces.append(piece)
    if total <= MAX_RECORD:
        return b"{%b}" % b",".join(pieces)
    pieces.clear()
    while total > MAX_RECORD:
        budget.look()
        largest = max(sizes.keys() - fields, key=lambda name: sizes[name], default=None)
        if largest is None:
            raise FetchError("too_large", f"the page's fields have more than {MAX_RECORD:,} bytes")
        total -= sizes.pop(largest)
        record[largest] = half = _first_half(record[largest])
        if not half:
            del record[largest]
            continue
        sizes[largest] = len(_encode(largest)) + len(_encode(half)) + 2
        total += sizes[largest]
    return _encode(record)


def _first_half(value: Any) -> Any:
    if isinstance(value, dict):
        return dict(islice(value.items(), len(value) // 2))
    return value[: len(value) // 2]


def _unread(page: Page) -> Read:
    return Read(verdict=judge(page, b"", None), record={}, parser=("none", structured.VERSION))


def _parser(site: Site) -> tuple[str, str]:
    if site.fields or not site.structured:
        return site.name, site.version
    return structured.NAME, structured.VERSION


def is_html(declared: str, body: bytes) -> bool:
    """Whether a page says that it is HTML, or says nothing and looks like it."""
    kind = media_type(declared)
    if kind:
        return kind in ("text/html", "application/xhtml+xml")
    return body[:512].lstrip()[:1] == b"<"
