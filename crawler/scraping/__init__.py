"""One attempt at a page: permit, fetch, judge, parse. Stored pages can be parsed again."""

import random
import re
import shlex
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from resource import RLIM_INFINITY, RLIMIT_AS, RLIMIT_DATA, getrlimit
from typing import Any
from urllib.parse import urljoin, urlsplit

import msgspec
from msgspec.structs import replace

from crawler import urls
from crawler.config import program
from crawler.errors import (
    FetchError,
    InputError,
    NotNow,
    SigningIn,
    UsageError,
    shortage_of,
)
from crawler.fetch import charset
from crawler.fetch.body import decode_stored
from crawler.fetch.budget import SMALL, Budget, check_free
from crawler.fetch.http import MAX_REDIRECTS, USER_AGENT, Request, RequestHook, redirect_of
from crawler.fetch.robots import MAX_BYTES, Robots, sitemap_lines
from crawler.fetch.session import LiveSession
from crawler.fetch.wire import media_type, stored_head
from crawler.judge import Verdict, decided
from crawler.judge.rules import judge
from crawler.logs import counted, printable
from crawler.lpm import LocalPersistenceManager
from crawler.models import (
    UNCHANGED,
    JobOptions,
    LeftOut,
    Link,
    Outcome,
    Page,
    PreviousPage,
    RetryClass,
    Role,
    Task,
    TaskStatus,
)
from crawler.resilience import retry_after, retry_delay
from crawler.scraping import form_fetch, scope
from crawler.scraping.follow import Followed, LinkFilter, LinkFinder
from crawler.scraping.request_gate import RequestGate
from crawler.sites import Site, scrapers, selectors, sitemaps, structured, validation
from crawler.sites.crawlfile import PageKind
from crawler.sites.fieldfile import MISSING
from crawler.sites.page_view import PageView
from crawler.sites.parser import parse

charset.load()

Fetch = Callable[[Request, RequestHook], Awaitable[Page]]
StoredPageOf = Callable[[PreviousPage], Awaitable[Page | None]]

PARSE_MEMORY_FACTOR, MAX_PARSE_MEMORY = 100, 64_000_000
"""Memory for parsing a page: this many times its size, up to the maximum in bytes."""
MIN_FREE_MEMORY = 10_000_000
"""Bytes of free memory that even the smallest page needs."""
MAX_PAUSE_S = 1.0
"""Maximum pause outside the permit, after another page could not get robots.txt."""
SCRAPER_WAIT_S = 30.0
"""Pause of a domain whose scraper cannot be loaded."""
MAX_RECORD_BYTES = 8_000_000
"""Maximum size of a record as JSON."""
_MAX_STORED_BODY = 1 << 30
"""Maximum body of a stored page. The setting does not apply: it may have been higher before."""
_OK, _NOT_MODIFIED, _TOO_MANY_REQUESTS = 200, 304, 429
_MISSING = (404, 410)
_DAY_S = 86_400
_HTML = re.compile(
    rb"\s*(?:<!--.{0,500}?-->\s*)?<(?:!doctype html|html)\b", re.IGNORECASE | re.DOTALL
)
_encode = msgspec.json.Encoder().encode


class FetchOptions(msgspec.Struct, frozen=True):
    """How the pages of a job are fetched."""

    options: JobOptions = JobOptions()
    session: LiveSession | None = None
    links: LinkFilter | None = None
    """Of a crawl: which links it follows."""


class ParsedPage(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a page, and its record."""

    verdict: Verdict
    record: dict[str, Any] = {}
    encoded: bytes = b"{}"
    """The record as JSON."""
    parser: tuple[str, str] = ("none", structured.VERSION)
    followed: Followed = Followed()
    invalid: tuple[str, ...] = ()
    """Why the record is invalid."""


class Attempt:
    """One attempt at one task. All work on what servers send is done within the page's budget."""

    def __init__(
        self,
        task: Task,
        site: Site,
        how: FetchOptions,
        *,
        fetch: Fetch,
        gate: RequestGate,
        robots: Robots,
        budget: Budget,
        worker: str,
        stored_page: StoredPageOf,
        clock: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._task, self._site, self._how = task, site, how
        self._fetch, self._gate, self._robots, self._budget = fetch, gate, robots, budget
        self._stored_page = stored_page
        self._clock, self._jitter = clock, jitter
        self._door: form_fetch.Door | None = None
        self._form_anew = self._is_doubtful = False
        self._finder: LinkFinder | None = None
        if task.role and how.links:
            self._finder = LinkFinder(task, task.role, site, how.links, budget)
        self._outcome = Outcome(
            task=task,
            status=TaskStatus.FAILED,
            worker=worker,
            site=(site.name, site.version),
            rule=gate.rule(task.domain),
            crawl=how.options.crawl,
        )

    async def run(self) -> Outcome:
        """Fetch, judge and parse the page; the caller stores the outcome."""
        try:
            if self._site.scraper:
                await self._load_scraper(self._site.scraper)
            if self._task.role is Role.SITEMAP:
                await self._read_sitemap()
            elif not self._skip_login_page() and not await self._keep_unmodified():
                await self._read_page()
        except NotNow as error:
            may_wait = isinstance(error, SigningIn) or not self._gate.sent
            if may_wait:
                self._postpone(error)
            else:  # a postponed page would make the same requests again and again
                message = f"the page leads to where nothing may go now: {error}"
                self._fail(decided("refused_on_the_way"), message, error.wait_s)
        except FetchError as error:
            if error.reason == "robots_unreachable" and not self._gate.sent:
                # Another page has asked, and pays with an attempt; this one has not been tried.
                self._postpone(self._pause(error))
            else:
                self._fail(decided(error.reason), error.message, error.retry_after_s)
        return replace(self._outcome, sent=tuple(self._gate.sent))

    async def _load_scraper(self, source: scrapers.Source) -> None:
        """Load the class before any request: as long as it cannot be loaded, its pages wait."""
        if scrapers.is_loaded(source):
            return
        try:
            await self._budget.work(scrapers.instance_of, source)
        except InputError as error:
            scrapers.log_wait(source, error)
            self._gate.pause(self._task.url, SCRAPER_WAIT_S, str(error))
            raise NotNow(self._task.domain, str(error), SCRAPER_WAIT_S) from None

    def _note(self, **facts: Any) -> None:
        self._outcome = replace(self._outcome, **facts)

    async def _read_page(self, sign_ins: int = 0) -> None:
        """Read the page, again after signing in if it asks for that."""
        conditional = self._conditional_headers()
        page = await self._fetch_page(conditional)
        unchanged = page.status == _NOT_MODIFIED and conditional
        if unchanged and self._finder and not await self._follow_stored():
            page = await self._fetch_page(())
            unchanged = ()
        self._note(page=page)
        walled = self._door is not None and self._door.leads_to_login(page)
        if unchanged:
            self._note(status=TaskStatus.COMPLETED, verdict=UNCHANGED)
        elif walled or not self._finder or not self._follow_redirect(page):
            began = time.perf_counter()
            if walled:
                parsed = ParsedPage(verdict=decided("login_wall", "led to the login page"))
            else:
                examined = self._budget.work(examine, page, self._site, self._budget, self._finder)
                parsed = await examined
                walled = parsed.verdict.name == "login_wall"
            if walled and self._door and await self._door.enter_again(sign_ins):
                await self._read_page(sign_ins + 1)
                return
            if self._is_doubtful and parsed.verdict.completed and not parsed.followed.found:
                # The page before said that there is more: the server may have forgotten the list.
                self._form_anew = True
                await self._read_page(sign_ins)
                return
            self._keep_form_session(parsed.followed.links)
            self._apply(page, parsed, (time.perf_counter() - began) * 1000)
        if self._door and not walled:
            self._door.note_useful()

    def _skip_login_page(self) -> bool:
        """Leave out pages of a crawl that sign in or out: the job's session must survive it."""
        login = self._site.login
        if not self._finder or not login or not form_fetch.changes_session(self._task.url, login):
            return False
        self._skip("login_page", "it signs in or out, which only the job itself does")
        return True

    def _user_agent(self) -> str:
        if self._how.session and self._how.session.user_agent:
            return self._how.session.user_agent
        headers = {name.lower(): value for name, value in reversed(self._site.headers)}
        return headers.get("user-agent") or USER_AGENT

    def _conditional_headers(self) -> tuple[tuple[str, str], ...]:
        """Return the headers that ask whether the page has changed, if its last record would be
        made the same way today."""
        known = self._task.known
        if known is None or not self._would_be_the_same(known):
            return ()
        if self._finder and not known.is_stored:  # a page without its bytes would have no links
            return ()
        asked = (("If-None-Match", known.etag), ("If-Modified-Since", known.last_modified))
        return tuple((name, value) for name, value in asked if value)

    def _would_be_the_same(self, known: PreviousPage) -> bool:
        """Whether the same page would give the same record today."""
        if self._task.method != "GET":
            return False
        if self._finder and not _same_page(known.final_url, self._task.url):
            return False  # a redirect led there, and the crawl has that page by itself
        rules = self._site.kind_of(self._task.url) or self._site
        made_with = (self._site.version, _parser(self._site, rules)[1])
        return (known.site_version, known.parser_version) == made_with

    async def _fetch_page(self, conditional: tuple[tuple[str, str], ...]) -> Page:
        """Fetch the page; its domain and robots.txt must permit every request on the way."""
        site, gate = self._site, self._gate
        plain = Request(
            url=self._task.url,
            loopback=self._task.loopback,
            timeout_s=site.timeout_s,
            connect_timeout_s=site.connect_timeout_s,
            headers=site.headers,
            session=self._how.session,
            budget=self._budget,
            unlimited=not self._outcome.rule.limited,
            follow=self._finder is None,
        )
        if self._task.role is Role.SITEMAP:
            plain = replace(plain, max_body=sitemaps.MAX_BYTES)
        pass_gate: RequestHook = gate.request
        if site.respect_robots and not self._how.options.ignore_robots and not self._is_robots_txt:
            pass_gate = partial(gate.request, check=self._robots_check(plain))
        if site.login and plain.session:
            if not self._door:
                self._door = form_fetch.Door(site.login, plain, self._sender(pass_gate), site)
            await self._door.enter()
        request = plain
        if conditional:
            request = replace(plain, headers=(*site.headers, *conditional))
        if self._task.method == "FORM":
            page = await self._fetch_form(plain, pass_gate)
        else:
            page = await self._fetch(request, pass_gate)
            if self._finder:
                page = await self._follow_to_itself(page, plain, pass_gate)
            if plain.session and plain.session.has_gained_cookies:
                self._go_on_with(form_fetch.NO_SESSION)
        if self._door:
            page = form_fetch.without_cookie_values(page)
        if plain.session and plain.session.secrets:
            page = form_fetch.redacted(page, plain.session.secrets.values())
        known = self._task.known
        unchanged = page.status == _NOT_MODIFIED and conditional
        if unchanged and known and page.final_url != known.final_url:
            page = await self._fetch(plain, pass_gate)  # another page than the known one
        return replace(page, fetch_s=sum([sent.seconds for sent in gate.sent]))

    def _robots_check(self, plain: Request) -> Callable[[str], Awaitable[None]]:
        """Return what holds the requests of a page against the robots.txt of their origins."""
        gate = self._gate
        since = None
        if self._outcome.rule.limited:
            since = self._robots.clock()

        async def robots_txt(url: str) -> Page:
            # A redirect's robots.txt belongs to another origin: it gets no secrets, and may not be
            # on this machine.
            home = "{0.scheme}://{0.netloc}".format(urlsplit(plain.url))
            named = plain.loopback and url.startswith(f"{home}/")
            about = replace(
                plain,
                url=url,
                home=home,
                loopback=named,
                max_body=MAX_BYTES,
                cut=True,
                follow=True,
            )
            return await self._fetch(about, gate.request)

        async def check(url: str) -> None:
            before, agent = len(gate.sent), self._user_agent()
            try:
                delay_s = await self._robots.check(url, agent, robots_txt, self._budget, since)
            except FetchError as error:
                if error.reason == "robots_unreachable" and len(gate.sent) > before:
                    gate.pause(url, error.retry_after_s or 0.0, error.message)
                raise
            gate.obey(url, delay_s)

        return check

    def _sender(self, hook: RequestHook) -> form_fetch.Send:
        async def send(request: Request) -> Page:
            return await self._fetch(request, hook)

        return send

    async def _fetch_form(self, plain: Request, hook: RequestHook) -> Page:
        """Fetch the page that a form leads to, within the scope of the crawl."""
        links = self._how.links

        def within_scope(url: str) -> AbstractAsyncContextManager[None]:
            if links and not links.scope.has_host(url):
                shown = urls.without_credentials(url)[:300]
                raise FetchError("out_of_scope", f"the form leads to {shown}, out of scope")
            return hook(url)

        forms = form_fetch.FormFetch(plain, self._sender(within_scope), self._site)
        fetched = await forms.fetch(self._task, anew=self._form_anew)
        self._is_doubtful = fetched.is_doubtful
        self._go_on_with(fetched.session)
        return fetched.page

    def _keep_form_session(self, links: Iterable[Link]) -> None:
        """Keep the session of a list before the task of its next page is in the ledger."""
        if not self._finder or not self._finder.form_session or not self._how.session:
            return
        if any(link.method == "FORM" for link in links):
            self._how.session.store_branch(self._finder.form_session)

    def _go_on_with(self, session: str) -> None:
        """Set the session with which a list goes on."""
        if self._finder and any(rule.postback for rule in self._site.pagination):
            self._finder = self._finder._replace(form_session=session)

    # Crawls

    @property
    def _is_robots_txt(self) -> bool:
        is_sitemap = self._task.role is Role.SITEMAP
        return is_sitemap and urlsplit(self._task.url).path == "/robots.txt"

    async def _follow_to_itself(self, page: Page, plain: Request, hook: RequestHook) -> Page:
        """Follow redirects that lead back to the same page, as those that set a cookie do. Others
        are links."""
        here = self._task.url
        for _ in range(MAX_REDIRECTS):
            target = redirect_of(page)
            if not target:
                return page
            after = page
            if not _same_page(target, here):
                after = await self._return_from(page, target, plain, hook)
                if after is page:
                    return page
                target = redirect_of(after)
            page = await self._fetch(replace(plain, url=target), hook)
        raise FetchError("too_many_redirects", f"more than {MAX_REDIRECTS} redirects to itself")

    async def _return_from(
        self, page: Page, target: str, plain: Request, hook: RequestHook
    ) -> Page:
        """Follow a redirect that sets a cookie; return the answer that redirects back to the page,
        or the given one where none does."""
        links = self._how.links
        answer = page
        for _ in range(MAX_REDIRECTS):
            sets_cookie = any(name.lower() == "set-cookie" for name, _ in answer.headers)
            if answer is page and not sets_cookie:
                return page
            if links is None or not links.scope.has_host(target):
                return page
            answer = await self._fetch(replace(plain, url=target), hook)
            target = redirect_of(answer)
            if not target:
                return page
            if _same_page(target, self._task.url):
                return answer
        return page

    def _follow_redirect(self, page: Page) -> bool:
        """End a task whose page is another one: that becomes a task if the crawl covers it."""
        target = redirect_of(page)
        if not target or not self._how.links:
            return False
        if self._task.hops >= MAX_REDIRECTS:
            raise FetchError("too_many_redirects", f"more than {MAX_REDIRECTS} redirects")
        link = self._how.links.follow_redirect(self._task, target)
        shown = urls.without_credentials(target)[:300]
        if isinstance(link, Link):
            self._note(links=(link,))
            self._skip("redirected", f"it redirects to {shown}")
        else:
            reason = link.replace("_", " ")
            if link != scope.OUT:
                self._note(left_out=(LeftOut(link, 1, shown),))
            self._skip("out_of_scope", f"it redirects to {shown}, which is left out: {reason}")
        return True

    async def _keep_unmodified(self) -> bool:
        """Keep the stored page where a sitemap says that it has not changed since."""
        known, modified_at = self._task.known, self._task.modified_at
        if known is None or modified_at is None:
            return False
        if modified_at % _DAY_S == 0:  # a day: the page may have changed until its end
            modified_at += _DAY_S
        if modified_at >= known.scraped_at:
            return False
        if not self._would_be_the_same(known) or not await self._follow_stored():
            return False
        since = f"{datetime.fromtimestamp(modified_at, UTC):%Y-%m-%d %H:%M} UTC"
        why = f"by its sitemap it has not changed since {since}; it was not asked for"
        self._note(status=TaskStatus.COMPLETED, verdict=UNCHANGED, evidence=(why,))
        return True

    async def _follow_stored(self) -> bool:
        """Follow the links of the stored page; False if it cannot be read any more."""
        known = self._task.known
        page = await self._stored_page(known) if known else None
        if page is None:
            return False
        self._go_on_with(form_fetch.NO_SESSION)
        try:
            parsed = await self._budget.work(examine, page, self._site, self._budget, self._finder)
        except FetchError:
            return False
        self._note(page=page, links=parsed.followed.links, left_out=parsed.followed.left_out)
        return True

    async def _read_sitemap(self) -> None:
        """Turn the URLs of a robots.txt or a sitemap into links."""
        filter_ = self._how.links
        page = await self._fetch_page(())
        self._note(page=page)
        if filter_ is None or self._follow_redirect(page):
            return
        if self._is_robots_txt and page.status < 500 and page.status != _TOO_MANY_REQUESTS:
            listed = []
            if page.status == _OK:
                listed = await self._budget.work(
                    sitemap_lines, page.body, page.final_url, self._budget
                )
            listed = listed or [urljoin(page.final_url, "/sitemap.xml")]
            read = sitemaps.Sitemap("index", [(url, None) for url in listed], False)
        else:
            verdict = judge(page, b"", None)
            if page.status in _MISSING or (verdict.completed and _HTML.match(page.body)):
                self._skip("no_sitemap", f"there is no sitemap at {self._task.url}")
                return
            if not verdict.completed:
                self._apply(page, ParsedPage(verdict=verdict), 0.0)
                return
            work = self._budget.work
            read = await work(sitemaps.read, page.body, page.final_url, self._budget)
        followed = await self._budget.work(filter_.follow_sitemap, self._task, read, self._budget)
        self._note(links=followed.links, left_out=followed.left_out)
        self._skip("sitemap", f"read: {counted(len(read.urls), 'URL')}")

    def _skip(self, reason: str, message: str) -> None:
        self._note(status=TaskStatus.SKIPPED, error_type=reason, error_message=message)

    # Outcomes

    def _apply(self, page: Page, parsed: ParsedPage, parse_ms: float) -> None:
        verdict = parsed.verdict
        self._note(
            parse_ms=parse_ms,
            verdict=verdict.name,
            evidence=verdict.evidence * (verdict.name != "ok"),
            quarantine=verdict.quarantine,
        )
        if verdict.completed:
            made = {"record": parsed.encoded, "parser": parsed.parser, "invalid": parsed.invalid}
            links, left_out, _ = parsed.followed
            self._note(status=TaskStatus.COMPLETED, links=links, left_out=left_out, **made)
            return
        message = f"the server answered {page.status} {printable(page.reason[:100])[:100]}".rstrip()
        if not verdict.name.startswith("http_"):
            message += f", and the page is: {verdict.name.replace('_', ' ')}"
            if verdict.vendor:
                message += f" ({verdict.vendor})"
        wait_s = retry_after(page.header("retry-after"), self._clock())
        self._note(retry_after_s=wait_s or 0.0)
        self._fail(verdict, message, wait_s)

    def _fail(self, verdict: Verdict, message: str, retry_after_s: float | None) -> None:
        """Decide whether to try again: by the kind of failure, the attempts left and the server's
        Retry-After."""
        policy, failures = self._site.retry, self._task.failures
        kind = verdict.retry or RetryClass.GIVE_UP
        self._note(
            error_type=verdict.name,
            error_message=message,
            retry=kind,
            block=verdict.block,
        )
        if kind.tries_again and failures + 1 < policy.attempts:
            wait_s = retry_delay(
                kind, failures, retry_after_s, policy.base_s, policy.cap_s, self._jitter
            )
            self._note(status=TaskStatus.PENDING, not_before=self._clock() + wait_s)
        elif verdict.name == "robots":
            self._note(status=TaskStatus.SKIPPED)

    def _pause(self, error: FetchError) -> NotNow:
        """Return the pause of a host whose robots.txt another page could not get. The permit of a
        limited domain keeps that pause: the page waits there, and a reset ends the wait."""
        wait_s = error.retry_after_s or 0.0
        if self._outcome.rule.limited:
            wait_s = min(wait_s, MAX_PAUSE_S)
        return NotNow(self._task.domain, error.message, wait_s)

    def _postpone(self, error: NotNow) -> None:
        self._note(
            status=TaskStatus.PENDING,
            error_message=str(error),
            not_before=self._clock() + error.wait_s,
            charge=False,
        )


def _same_page(url: str, other: str) -> bool:
    """Whether two URLs mean the same page, in whatever session."""
    if url == other:
        return True
    return urls.parse(scope.without_session(url)).key == urls.parse(other).key


# Judging and parsing


def examine(
    page: Page, site: Site, budget: Budget | None = None, finder: LinkFinder | None = None
) -> ParsedPage:
    """Judge and parse a page. It needs nothing but the page, so it works for stored ones, too.

    The record's memory counts against the page's budget until the page is stored, like the body's.
    """
    budget = budget or Budget()
    needed = min(PARSE_MEMORY_FACTOR * len(page.body), MAX_PARSE_MEMORY)
    before = budget.held
    budget.hold(needed)
    try:
        if any(getrlimit(limit)[0] != RLIM_INFINITY for limit in (RLIMIT_AS, RLIMIT_DATA)):
            # Libraries crash or report a broken page if memory runs out while they work.
            check_free(needed + MIN_FREE_MEMORY)
        read = _examined(page, site, budget, finder)
    finally:
        budget.release(budget.held - before)
    budget.hold(len(read.encoded))
    return read


def _examined(page: Page, site: Site, budget: Budget, finder: LinkFinder | None) -> ParsedPage:
    declared = page.header("content-type")
    if not page.body:
        return _unread(page)
    try:
        if not is_html(declared, page.body):
            return _parsed_text(page, declared, site, budget, finder)
        html = charset.utf8(page.body, declared, budget, site.encoding)
        if not html:
            return _unread(page)
        return _parsed_html(page, html, site, budget, finder)
    except FetchError:
        if 200 <= page.status < 300:
            raise
        return _unread(page)
    except InputError:
        raise  # the scraper cannot be loaded
    except Exception as error:
        if shortage_of(error):
            raise
        what = f"the parser failed ({type(error).__name__}: {error})"
        raise FetchError("parse_error", what) from error


def _parsed_html(
    page: Page, html: bytes, site: Site, budget: Budget, finder: LinkFinder | None
) -> ParsedPage:
    copied = len(html) * (html is not page.body)
    tree = parse(html, budget, copied)
    look = _do_nothing
    if len(html) > SMALL:
        look = budget.look
    look()
    url = page.final_url
    rules = site.kind_of(url) or site
    verdict = judge(page, html, tree, budget)
    if not verdict.completed:
        return ParsedPage(verdict=verdict, parser=_parser(site, rules))
    look()
    followed = Followed()
    if finder:
        followed = finder.in_html(tree, html, page)
        look()
    if scrapers.makes_record(site, finder and finder.role):
        view = PageView(site, page, budget, html, tree)
        return _scraped(view, ParsedPage(verdict=verdict, followed=followed), rules)
    fields = record = selectors.extract(tree, rules.fields, url, budget, required=rules.required)
    if rules.structured:
        record = structured.extract(tree, url, budget) | fields
    look()
    read = ParsedPage(verdict=verdict, followed=followed)
    return _with_record(read, record, fields, site, rules, budget)


def _with_record(
    read: ParsedPage,
    record: dict[str, Any],
    fields: Collection[str],
    site: Site,
    rules: Site | PageKind,
    budget: Budget,
) -> ParsedPage:
    encoded = _encoded(record, fields, budget)
    invalid: tuple[str, ...] = ()
    if rules.validate or MISSING in fields:
        budget.check(len(encoded))
        invalid = validation.reasons(record, rules.validate)
        budget.check(len(encoded))
    made = {"record": record, "encoded": encoded, "invalid": invalid}
    return replace(read, parser=_parser(site, rules), **made)


def _do_nothing() -> None:
    return


def _parsed_text(
    page: Page, declared: str, site: Site, budget: Budget, finder: LinkFinder | None
) -> ParsedPage:
    """Parse a page that is not HTML. Only JSON and plain text have a record; fields that need HTML
    are empty."""
    unread = _unread(page)
    if not unread.verdict.completed:
        return unread
    kind = media_type(declared)
    is_json = kind.endswith(("/json", "+json"))
    is_text = is_json or kind == "text/plain"
    rules = site.kind_of(page.final_url) or site
    body = b""
    if is_text and (rules.fields or rules.structured or (finder and is_json)):
        body = charset.utf8(page.body, declared, budget, site.encoding)
    if finder and is_json:
        unread = replace(unread, followed=finder.in_json(body, page))
    if scrapers.makes_record(site, finder and finder.role):
        return _scraped(PageView(site, page, budget), unread, rules)
    if not rules.fields and not (rules.structured and is_text):
        return unread
    fields = selectors.extract(
        None,
        rules.fields,
        page.final_url,
        budget,
        required=rules.required,
        body=body,
        is_json=is_json,
    )
    record: dict[str, Any] = {}
    if rules.structured and is_text:
        record = structured.extract_plain(body, is_json, budget)
    return _with_record(unread, record | fields, fields, site, rules, budget)


def _scraped(view: PageView, unread: ParsedPage, rules: Site | PageKind) -> ParsedPage:
    """Have the class of a site make the record."""
    record = scrapers.listing(view)
    records = record["records"] if list(record) == ["records"] else [record]
    for name in rules.required:
        if any(each.get(name) in (None, "", []) for each in records):
            record.setdefault(MISSING, []).append(name)
    return _with_record(unread, record, record, view.site, rules, view.budget)


def _encoded(record: dict[str, Any], fields: Collection[str], budget: Budget) -> bytes:
    """Encode a record. If it is too large, halve its largest parts, but never a site's fields."""
    pieces: list[bytes] = []
    sizes: dict[str, int] = {}
    total = 1
    for name, value in record.items():  # one at a time, because all may be far too large
        piece = b"%b:%b" % (_encode(name), _encode(value))
        sizes[name] = len(piece) + 1
        total += sizes[name]
        if total <= MAX_RECORD_BYTES:
            pieces.append(piece)
    if total <= MAX_RECORD_BYTES:
        return b"{%b}" % b",".join(pieces)
    pieces.clear()
    while total > MAX_RECORD_BYTES:
        budget.look()
        largest = max(sizes.keys() - fields, key=lambda name: sizes[name], default=None)
        if largest is None:
            raise FetchError(
                "too_large", f"the page's fields have more than {MAX_RECORD_BYTES:,} bytes"
            )
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


def _unread(page: Page) -> ParsedPage:
    return ParsedPage(verdict=judge(page, b"", None))


def _parser(site: Site, rules: Site | PageKind) -> tuple[str, str]:
    if site.scraper:
        return site.name, f"{site.version}+{site.scraper.version}"
    if rules.fields or not rules.structured:
        return site.name, site.version
    return structured.NAME, structured.VERSION


def is_html(declared: str, body: bytes) -> bool:
    """Return whether a page declares HTML, or declares nothing and looks like HTML."""
    kind = media_type(declared)
    if kind:
        return kind in ("text/html", "application/xhtml+xml")
    return body[:512].lstrip()[:1] == b"<"


# Stored pages


class StoredPage(msgspec.Struct, frozen=True):
    """A stored page, with its task and result."""

    page: Page
    task_id: str
    result: dict[str, Any] | None
    """None if the task failed: its page was kept, but no record was made."""


class Difference(msgspec.Struct, frozen=True):
    """The difference between two records, by field; inner fields are named `outer.inner`."""

    added: dict[str, Any] = {}
    removed: dict[str, Any] = {}
    changed: dict[str, tuple[Any, Any]] = {}
    """Old and new."""

    def __bool__(self) -> bool:
        """Return whether the records differ."""
        return bool(self.added or self.removed or self.changed)


def find_stored_page(lpm: LocalPersistenceManager, url: str, key: bytes) -> StoredPage:
    """Return the newest stored page of a URL that has a result, or else the newest one.

    Answers with "304 Not Modified" have no page. Raises `UsageError` with the reason if there is
    none.
    """
    tasks = lpm.tasks.for_url(key)
    if not tasks:
        raise UsageError(f"{url} was never fetched: no task is known for it")
    failed: StoredPage | None = None
    gone: str | None = None
    has_result = False
    for task in tasks:
        report, result = lpm.results.report(task), None
        if "data" in report:
            result, has_result = report, True
        stored = lpm.pages.read(task)
        if stored is None:
            gone = gone or lpm.pages.why_gone(task)
            continue
        page = rebuild_page(*stored, report["url"], report.get("final_url"))
        if page.status == _NOT_MODIFIED:
            continue
        found = StoredPage(page, report["task_id"], result)
        if result is not None:
            return found
        failed = failed or found
    if failed:
        return failed
    if gone:
        again = f"{program()} scrape {shlex.quote(url)}"
        raise UsageError(f"the page of {url} {gone}; {again} fetches it again")
    if has_result:
        raise UsageError(f"there is a result for {url}, but its page was not kept (CRAWLER_RAW)")
    raise UsageError(f"no page is stored for {url}: {_why_not(lpm, tasks[0])}")


def _why_not(lpm: LocalPersistenceManager, task: int) -> str:
    report = lpm.results.report(task)
    status, reason = report["status"], report["error_type"]
    if reason:
        status += f" ({reason})"
    return f"its task is {status}"


def rebuild_page(head: str, raw: bytes, url: str, final_url: str | None = None) -> Page:
    """Rebuild a page from its stored header block and body; raises `FetchError` if the body cannot
    be decoded."""
    first, headers = stored_head(head)
    _, _, rest = first.partition(" ")
    code, _, reason = rest.partition(" ")
    status = 0
    if code.isascii() and code.isdecimal():
        status = int(code)
    return Page(
        url=url,
        final_url=final_url or url,
        status=status,
        reason=reason,
        headers=headers,
        body=decode_stored(head, raw, _MAX_STORED_BODY),
        raw=raw,
        fetched_at=0.0,
        fetch_s=0.0,
    )


def difference(old: dict[str, Any], new: dict[str, Any]) -> Difference:
    """Compare two records as JSON, the form in which they are stored."""
    found = Difference({}, {}, {})
    _compare(old, msgspec.json.decode(msgspec.json.encode(new)), "", found)
    return found


def _compare(old: dict[str, Any], new: dict[str, Any], prefix: str, found: Difference) -> None:
    for name in {**old, **new}:
        path = f"{prefix}{name}"
        if name not in old:
            found.added[path] = new[name]
        elif name not in new:
            found.removed[path] = old[name]
        elif isinstance(old[name], dict) and isinstance(new[name], dict):
            _compare(old[name], new[name], f"{path}.", found)
        elif old[name] != new[name] or type(old[name]) is not type(new[name]):
            found.changed[path] = (old[name], new[name])
