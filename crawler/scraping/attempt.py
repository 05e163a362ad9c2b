"""One attempt at a page: permit, fetch, judge, parse."""

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import urljoin, urlsplit

import msgspec
from msgspec.structs import replace

from crawler import urls
from crawler.errors import FetchError, InputError, NotNow, SigningIn
from crawler.fetch.budget import Budget
from crawler.fetch.http import MAX_REDIRECTS, USER_AGENT, Request, RequestHook, redirect_of
from crawler.fetch.rendering import Rendered
from crawler.fetch.robots import MAX_BYTES, Robots, sitemap_lines
from crawler.fetch.session import LiveSession
from crawler.judge import Verdict, decided
from crawler.judge.rules import judge
from crawler.logs import counted, printable
from crawler.models import (
    BROWSER,
    FILE,
    FORM,
    GET,
    HTTP,
    LINKS,
    RENDERED,
    UNCHANGED,
    Capture,
    Fetcher,
    JobOptions,
    LeftOut,
    Link,
    Outcome,
    Page,
    PreviousPage,
    RateRule,
    Rendering,
    RetryClass,
    Role,
    Task,
    TaskStatus,
)
from crawler.render_options import RenderOptions
from crawler.resilience import retry_after, retry_delay
from crawler.scraping import file_fetch, form_fetch, scope
from crawler.scraping.examine import (
    ParsedPage,
    examine,
    is_html,
    parser_of,
    shows_more,
)
from crawler.scraping.file_links import file_hosts
from crawler.scraping.follow import LinkFilter, LinkFinder
from crawler.scraping.redaction import Redactor, hide_in_links, hide_in_parsed
from crawler.scraping.request_gate import RequestGate
from crawler.sites import Site, images, scrapers, sitemaps
from crawler.sites.crawlfile import Files

Fetch = Callable[[Request, RequestHook], Awaitable[Page]]
Render = Callable[[Request, RequestHook, RenderOptions], Awaitable[Rendered]]
StoredPageOf = Callable[[PreviousPage], Awaitable[Page | None]]

MAX_PAUSE_S = 1.0
"""Maximum pause outside the permit, after another page could not get robots.txt."""
SCRAPER_WAIT_S = 30.0
"""Pause of a domain whose scraper cannot be loaded."""
BROWSER_CRASHED = "browser_crashed"
"""Why a page has not come that was not alone in its browser when that died."""
_OK, _NOT_MODIFIED, _TOO_MANY_REQUESTS = 200, 304, 429
_MISSING = (404, 410)
_DAY_S = 86_400
_PNG = "image/png"
_NOWHERE = "null"
"""The origin of a request that gets no secrets: headers of a job are for the hosts of its crawl."""
_HTML = re.compile(
    rb"\s*(?:<!--.{0,500}?-->\s*)?<(?:!doctype html|html)\b", re.IGNORECASE | re.DOTALL
)


class FetchOptions(msgspec.Struct, frozen=True):
    """How the pages of a job are fetched."""

    options: JobOptions = JobOptions()
    session: LiveSession | None = None
    links: LinkFilter | None = None
    """Of a crawl: which links it follows."""

    def file_rules(self, task: Task) -> Files:
        """Return the limits on a file, by the site that names it as its file is now."""
        site = self.links.site_named(task.body) if self.links else None
        return (site and site.files) or Files()


def needed(task: Task, fetcher: Fetcher, was_learned: bool = False) -> str:
    """Return what a task needs to be fetched now: its page may need a browser, and nothing else
    does. `was_learned`: pages like it need one."""
    if task.method != GET or task.role is Role.SITEMAP:
        return HTTP
    if fetcher != "auto":
        return fetcher
    if was_learned:
        return BROWSER
    # One that has not been tried was left to a browser for what others like it had shown.
    return task.needs if task.attempts else HTTP


class PageFetch:
    """Fetches the page of one task: through the gate, by robots.txt, signed in, or by a form."""

    def __init__(
        self,
        task: Task,
        site: Site,
        how: FetchOptions,
        *,
        send: Fetch,
        render: Render | None,
        gate: RequestGate,
        robots: Robots,
        budget: Budget,
        rule: RateRule,
        asked: RenderOptions,
    ) -> None:
        """With `render`, a browser fetches the page, and does with it what is asked."""
        self._task, self._site, self._how = task, site, how
        self._send, self._render, self._gate, self._robots = send, render, gate, robots
        self._asked = asked
        self.rendering: Rendering | None = None
        """How the page was rendered that was fetched last."""
        self.step_failed = ""
        """Why a step could not be taken on it."""
        self._plain = Request(
            url=task.url,
            loopback=task.loopback,
            timeout_s=site.timeout_s,
            connect_timeout_s=site.connect_timeout_s,
            headers=site.headers,
            session=how.session,
            budget=budget,
            unlimited=not rule.limited,
            # In a crawl, redirects are links; but a file is what the address in the record brings.
            follow=task.method == FILE or not (task.role and how.links),
        )
        if task.role is Role.SITEMAP:
            self._plain = replace(self._plain, max_body=sitemaps.MAX_BYTES)
        elif task.method == FILE:
            self._plain = replace(self._plain, max_body=how.file_rules(task).max_bytes)
            if how.links and not how.links.scope.has_host(task.url):
                self._plain = replace(self._plain, home=_NOWHERE)
        self.door: form_fetch.Door | None = None
        self.is_doubtful = False
        """Whether a page without items may mean that the server has forgotten the list."""
        self.form_session = ""
        """The session with which a list goes on."""

    async def fetch(
        self, conditional: tuple[tuple[str, str], ...] = (), *, anew: bool = False
    ) -> Page:
        """Return the page; its domain and robots.txt must permit every request on the way.

        `anew`: if a form leads to the page, whatever its server remembers.
        """
        site, gate, plain = self._site, self._gate, self._plain
        pass_gate: RequestHook = gate.request
        heeds_robots = site.respect_robots and not self._how.options.ignore_robots
        if heeds_robots and not _is_robots_txt(self._task):
            pass_gate = partial(gate.request, check=self._robots_check())
        if self._task.method == FILE:
            pass_gate = self._within_file_hosts(pass_gate)
        if site.login and plain.session:
            if not self.door:
                self.door = form_fetch.Door(site.login, plain, self._sender(pass_gate), site)
            await self.door.enter()
        request = plain
        if conditional:
            request = replace(plain, headers=(*site.headers, *conditional))
        if self._task.method == FORM:
            page = await self._fetch_form(pass_gate, anew)
        elif self._render:
            page = await self._fetch_rendered(self._render, pass_gate)
        else:
            page = await self._fetch_plain(request, pass_gate)
        known = self._task.known
        unchanged = page.status == _NOT_MODIFIED and conditional
        if unchanged and known and page.final_url != known.final_url:
            page = await self._send(plain, pass_gate)  # another page than the known one
        if self.door:
            page = form_fetch.without_cookie_values(page)
        if redactor := self.redactor:
            encoding, shown = site.encoding_of(page), page.body
            page = await plain.budget.work(redactor.page, page, encoding, plain.budget)
            if self.rendering and page.body != shown:  # a picture shows what the text hides
                self.rendering = replace(self.rendering, captures=())
        return replace(page, fetch_s=sum([sent.seconds for sent in gate.sent]))

    async def _fetch_plain(self, request: Request, hook: RequestHook) -> Page:
        page = await self._send(request, hook)
        if not self._plain.follow:
            page = await self._follow_to_itself(page, hook)
        if self._plain.session and self._plain.session.has_gained_cookies:
            self.go_on_with(form_fetch.NO_SESSION)
        return page

    async def _fetch_rendered(self, render: Render, hook: RequestHook) -> Page:
        """Have a browser fetch the page. In a crawl, a way to another page is a redirect."""
        within = hook
        if not self._plain.follow:
            within = partial(_only_to, self._task.url, hook)
        try:
            rendered = await render(self._plain, within, self._asked)
        except _LedElsewhereError as error:
            return _redirect(self._task.url, error.url)
        self.step_failed = rendered.step_failed
        response, budget = rendered.response, self._plain.budget
        if not is_html(response.header("content-type"), response.body):
            return response
        if self.door:
            response = form_fetch.without_cookie_values(response)
        captures = _captures(rendered)
        if redactor := self.redactor:
            response = await budget.work(redactor.page, response, self._site.encoding, budget)
            if await budget.work(redactor.is_in, rendered.seen, budget):
                captures = ()
        self.rendering = Rendering(
            response=response,
            requests=rendered.requests,
            received=rendered.received,
            refused=rendered.refused,
            captures=captures,
        )
        return _as_rendered(rendered.page)

    @property
    def redactor(self) -> Redactor:
        """What hides the secrets of the job as they are now: servers renew cookies."""
        session = self._plain.session
        return Redactor(session.hidden_values if session else ())

    def _within_file_hosts(self, hook: RequestHook) -> RequestHook:
        """Return a hook that holds each redirect of a file against the hosts it may come from."""
        links, rules = self._how.links, self._how.file_rules(self._task)
        hosts = file_hosts(self._task.url, rules.hosts)

        def within(url: str) -> AbstractAsyncContextManager[None]:
            if not hosts.has_host(url) and not (links and links.scope.has_host(url)):
                shown = urls.without_credentials(url)[:300]
                message = f"it redirects to {shown}, a host that files may not come from"
                raise FetchError("out_of_scope", message)
            return hook(url)

        return within

    def _user_agent(self) -> str:
        if self._how.session and self._how.session.user_agent:
            return self._how.session.user_agent
        headers = {name.lower(): value for name, value in reversed(self._site.headers)}
        return headers.get("user-agent") or USER_AGENT

    def _robots_check(self) -> Callable[[str], Awaitable[None]]:
        """Return what holds the requests of a page against the robots.txt of their origins."""
        gate, plain = self._gate, self._plain
        since = None
        if not plain.unlimited:
            since = self._robots.clock()

        async def robots_txt(url: str) -> Page:
            # A redirect's robots.txt belongs to another origin: it gets no secrets, and may not be
            # on this machine.
            home = "{0.scheme}://{0.netloc}".format(urlsplit(plain.url))
            named = plain.loopback and url.startswith(f"{home}/")
            about = replace(
                plain,
                url=url,
                home=plain.home or home,
                loopback=named,
                max_body=MAX_BYTES,
                cut=True,
                follow=True,
            )
            return await self._send(about, gate.request)

        async def check(url: str) -> None:
            before, agent = len(gate.sent), self._user_agent()
            try:
                delay_s = await self._robots.check(url, agent, robots_txt, plain.budget, since)
            except FetchError as error:
                if error.reason == "robots_unreachable" and len(gate.sent) > before:
                    gate.pause(url, error.retry_after_s or 0.0, error.message)
                raise
            gate.obey(url, delay_s)

        return check

    def _sender(self, hook: RequestHook) -> form_fetch.Send:
        async def send(request: Request) -> Page:
            return await self._send(request, hook)

        return send

    async def _fetch_form(self, hook: RequestHook, anew: bool) -> Page:
        """Fetch the page that a form leads to, within the scope of the crawl."""
        links = self._how.links

        def within_scope(url: str) -> AbstractAsyncContextManager[None]:
            if links and not links.scope.has_host(url):
                shown = urls.without_credentials(url)[:300]
                raise FetchError("out_of_scope", f"the form leads to {shown}, out of scope")
            return hook(url)

        forms = form_fetch.FormFetch(self._plain, self._sender(within_scope), self._site)
        fetched = await forms.fetch(self._task, anew=anew)
        self.is_doubtful = fetched.is_doubtful
        self.go_on_with(fetched.session)
        return fetched.page

    def go_on_with(self, session: str) -> None:
        """Set the session with which a list goes on."""
        if any(rule.postback for rule in self._site.pagination):
            self.form_session = session

    async def _follow_to_itself(self, page: Page, hook: RequestHook) -> Page:
        """Follow redirects that lead back to the same page, as those that set a cookie do. Others
        are links."""
        here = self._task.url
        for _ in range(MAX_REDIRECTS):
            target = redirect_of(page)
            if not target:
                return page
            after = page
            if not _same_page(target, here):
                after = await self._return_from(page, target, hook)
                if after is page:
                    return page
                target = redirect_of(after)
            page = await self._send(replace(self._plain, url=target), hook)
        raise FetchError("too_many_redirects", f"more than {MAX_REDIRECTS} redirects to itself")

    async def _return_from(self, page: Page, target: str, hook: RequestHook) -> Page:
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
            answer = await self._send(replace(self._plain, url=target), hook)
            target = redirect_of(answer)
            if not target:
                return page
            if _same_page(target, self._task.url):
                return answer
        return page


def _captures(rendered: Rendered) -> tuple[Capture, ...]:
    """What a browser has made of a page besides its DOM."""
    found = []
    if picture := rendered.screenshot:
        width, height = images.size_of(picture, _PNG) or (None, None)
        found.append(
            Capture(name="screenshot", type=_PNG, body=picture, width=width, height=height)
        )
    if rendered.pdf:
        found.append(Capture(name="pdf", type="application/pdf", body=rendered.pdf))
    return tuple(found)


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
        render: Render | None = None,
        was_learned: bool = False,
        clock: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Without `render`, this process has no browser. `was_learned`: other pages like this one
        needed one."""
        self._task, self._site, self._how = task, site, how
        self._has_browser = render is not None
        fetcher = how.options.fetcher or site.fetcher
        if how.options.needs == BROWSER:
            fetcher = "browser"  # for all pages of the job
        self._fetcher = site.fetcher_of(task.url, how.options)
        self._needs = needed(task, self._fetcher, was_learned)
        self._gate, self._budget, self._stored_page = gate, budget, stored_page
        self._clock, self._jitter = clock, jitter
        self._finder: LinkFinder | None = None
        if task.role and how.links and task.method != FILE:
            links = how.links.without_memory() if task.method == LINKS else how.links
            self._finder = LinkFinder(task, task.role, site, links, budget)
        self._outcome = Outcome(
            task=task,
            status=TaskStatus.FAILED,
            worker=worker,
            site=(site.name, site.version),
            rule=gate.rule(task.domain),
            fetcher=fetcher,
            needs=HTTP if self._needs == HTTP else None,
            crawl=how.options.crawl,
        )
        self._page_fetch = PageFetch(
            task,
            site,
            how,
            send=fetch,
            render=render if self._needs == BROWSER else None,
            gate=gate,
            robots=robots,
            budget=budget,
            rule=self._outcome.rule,
            asked=site.rendering_of(task.url, how.options),
        )

    async def run(self, limit_s: float | None = None) -> Outcome:
        """Fetch, judge and parse the page within a time limit; the caller stores the outcome."""
        try:
            async with asyncio.timeout(limit_s):
                await self._run()
        except TimeoutError:
            message = f"the page was not done after {limit_s} s (SCRAPING_SOFT_TIME_LIMIT)"
            self._fail(decided("timeout"), message, None)
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
                if error.reason == BROWSER_CRASHED:
                    self._spare()
        if self._outcome.error_message:
            # It may show the URL that a server has led to.
            shown = self._page_fetch.redactor.text(self._outcome.error_message)
            self._note(error_message=shown)
        return replace(self._outcome, sent=tuple(self._gate.sent))

    async def _run(self) -> None:
        if self._task.method == FILE:
            await self._read_file()
            return
        if self._needs == BROWSER and not self._has_browser:
            message = "it needs a browser, and this process has none"
            self._note(
                status=TaskStatus.PENDING, needs=BROWSER, error_message=message, charge=False
            )
            return
        if self._site.scraper:
            await self._load_scraper(self._site.scraper)
        if self._task.role is Role.SITEMAP:
            await self._read_sitemap()
        elif self._task.method == LINKS:
            await self._read_links_again()
        elif not self._skip_login_page() and not await self._keep_stored():
            await self._read_page()

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

    async def _read_page(self, sign_ins: int = 0, anew: bool = False) -> None:
        """Read the page, again after signing in if it asks for that; `anew`: its form, too."""
        conditional = self._conditional_headers()
        page = await self._page_fetch.fetch(conditional, anew=anew)
        unchanged = page.status == _NOT_MODIFIED and conditional
        if unchanged and self._reads_stored and not await self._follow_stored():
            page = await self._page_fetch.fetch(anew=anew)
            unchanged = ()
        self._note(page=page, rendering=self._page_fetch.rendering)
        door = self._page_fetch.door
        walled = door is not None and door.leads_to_login(page)
        if unchanged:
            self._note(status=TaskStatus.COMPLETED, verdict=UNCHANGED)
        elif walled or not self._finder or not self._follow_redirect(page):
            began = time.perf_counter()
            if walled:
                parsed = ParsedPage(verdict=decided("login_wall", "led to the login page"))
            else:
                parsed = await self._examine(page)
                walled = parsed.verdict.name == "login_wall"
                parsed = self._with_steps(parsed)
            if walled and door and await door.enter_again(sign_ins):
                await self._read_page(sign_ins + 1, anew)
                return
            is_doubtful = self._page_fetch.is_doubtful
            if is_doubtful and parsed.verdict.completed and not parsed.followed.found:
                # The page before said that there is more: the server may have forgotten the list.
                await self._read_page(sign_ins, anew=True)
                return
            self._keep_form_session(parsed.followed.links)
            if self._fetcher == "auto" and await self._learn(page, parsed.verdict):
                return
            self._apply(page, parsed, (time.perf_counter() - began) * 1000)
        if door and not walled:
            door.note_useful()

    def _with_steps(self, parsed: ParsedPage) -> ParsedPage:
        """Fail a good page on which a step could not be taken: without it, something is missing."""
        problem = self._page_fetch.step_failed
        if not problem or not parsed.verdict.completed:
            return parsed
        return ParsedPage(verdict=decided("step_failed", problem))

    async def _examine(self, page: Page) -> ParsedPage:
        """Judge and parse a page within the budget."""
        finder, session = self._finder, self._page_fetch.form_session
        if finder and session:
            finder = finder._replace(form_session=session)
        return await self._parse(page, finder)

    async def _parse(self, page: Page, finder: LinkFinder | None) -> ParsedPage:
        parsed = await self._budget.work(examine, page, self._site, self._budget, finder)
        if redactor := self._page_fetch.redactor:
            # What the tags of a page divide, a record may join again.
            parsed = await self._budget.work(hide_in_parsed, parsed, redactor)
        return parsed

    async def _learn(self, page: Page, verdict: Verdict) -> bool:
        """Note whether a page needs a browser; True if this one is left to one, which counts as an
        attempt and as no failure."""
        rendering = self._page_fetch.rendering
        if rendering:
            work = self._budget.work
            gained = await work(shows_more, page, rendering.response, self._site, self._budget)
            if verdict.completed and not gained:
                self._note(learned=False)
            return False
        if self._task.method != GET:
            return False
        if verdict.name != "empty_shell":
            if verdict.completed:
                self._note(learned=False)
            return False
        found = decided("needs_browser", *verdict.evidence)
        self._note(
            status=TaskStatus.PENDING,
            needs=BROWSER,
            learned=True,
            verdict=found.name,
            evidence=found.evidence,
            quarantine=found.quarantine,
        )
        return True

    def _skip_login_page(self) -> bool:
        """Leave out pages of a crawl that sign in or out: the job's session must survive it."""
        login = self._site.login
        if not self._finder or not login or not form_fetch.changes_session(self._task.url, login):
            return False
        self._skip("login_page", "it signs in or out, which only the job itself does")
        return True

    def _conditional_headers(self) -> tuple[tuple[str, str], ...]:
        """Return the headers that ask whether the page has changed, if its last record would be
        made the same way today."""
        known = self._task.known
        if known is None or self._needs == BROWSER or not self._would_be_the_same(known):
            return ()
        if self._reads_stored and not known.is_stored:
            return ()
        asked = (("If-None-Match", known.etag), ("If-Modified-Since", known.last_modified))
        return tuple((name, value) for name, value in asked if value)

    @property
    def _reads_stored(self) -> bool:
        """Whether the bytes of an unchanged page are needed: for its links, or its listings."""
        return self._finder is not None or self._site.listings is not None

    def _would_be_the_same(self, known: PreviousPage) -> bool:
        """Whether the same page would give the same record today."""
        if self._task.method == FILE:
            return known.parser_version == file_fetch.PARSER[1]
        if self._task.method != GET:
            return False
        if self._finder and not _same_page(known.final_url, self._task.url):
            return False  # a redirect led there, and the crawl has that page by itself
        rules = self._site.kind_of(self._task.url) or self._site
        made_with = (self._site.version, parser_of(self._site, rules)[1])
        return (known.site_version, known.parser_version) == made_with

    def _keep_form_session(self, links: Iterable[Link]) -> None:
        """Keep the session of a list before the task of its next page is in the ledger."""
        session = self._page_fetch.form_session
        if not self._finder or not session or not self._how.session:
            return
        if any(link.method == FORM for link in links):
            self._how.session.store_branch(session)

    # Crawls

    def _follow_redirect(self, page: Page) -> bool:
        """End a task whose page is another one: that becomes a task if the crawl covers it."""
        target = redirect_of(page)
        if not target or not self._how.links:
            return False
        if self._task.hops >= MAX_REDIRECTS:
            raise FetchError("too_many_redirects", f"more than {MAX_REDIRECTS} redirects")
        link = self._how.links.follow_redirect(self._task, target)
        if isinstance(link, Link) and self._page_fetch.redactor.shows(link.address.url):
            link = "secret"
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

    async def _keep_stored(self) -> bool:
        """Keep the stored page where a sitemap says that it has not changed since, or where the
        time to fetch a listing again has not come."""
        known = self._task.known
        if known is None:
            return False
        why = self._why_unmodified(known, self._task.modified_at)
        if not why and self._task.modified_at is None:
            why = self._why_not_yet(known)
        if not why or not self._would_be_the_same(known) or not await self._follow_stored():
            return False
        self._note(
            status=TaskStatus.COMPLETED,
            verdict=UNCHANGED,
            evidence=(f"{why}; it was not asked for",),
        )
        return True

    def _why_unmodified(self, known: PreviousPage, modified_at: float | None) -> str:
        if modified_at is None:
            return ""
        # A day, or a second: the page may have changed until its end.
        if modified_at % _DAY_S == 0:
            modified_at += _DAY_S
        elif modified_at % 1 == 0:
            modified_at += 1
        if modified_at >= known.scraped_at:
            return ""
        return f"by its sitemap it has not changed since {_minute(modified_at)}"

    def _why_not_yet(self, known: PreviousPage) -> str:
        rules, state = self._site.listings, known.listing
        if rules is None or state is None:
            return ""
        due_at = state.fetched_at + rules.interval(state.unchanged)
        if self._clock() >= due_at:
            return ""
        seen = f"unchanged {counted(state.unchanged, 'time')}"
        return f"it is a listing ({seen}) that is fetched again from {_minute(due_at)}"

    async def _follow_stored(self) -> bool:
        """Follow the links of the stored page; False if it cannot be read any more."""
        known = self._task.known
        page = await self._stored_page(known) if known else None
        if page is None:
            return False
        self._page_fetch.go_on_with(form_fetch.NO_SESSION)
        try:
            parsed = await self._examine(page)
        except FetchError:
            return False
        self._note(page=page, **_found_by(parsed))
        return True

    async def _read_links_again(self) -> None:
        """Follow the links of the stored page, or else of the page as it is now; no result."""
        if not await self._follow_stored():
            page = await self._page_fetch.fetch()
            if self._follow_redirect(page):
                return
            parsed = await self._parse(page, self._finder)
            if not parsed.verdict.completed:
                self._apply(page, parsed, 0.0)
                return
            self._note(links=parsed.followed.links)
        # Guards have counted the other links when the page was read first.
        self._note(page=None, left_out=(), files=(), listings=())
        self._skip("read_again", "its links were read again")

    async def _read_sitemap(self) -> None:
        """Turn the URLs of a robots.txt or a sitemap into links."""
        filter_ = self._how.links
        page = await self._page_fetch.fetch()
        self._note(page=page)
        if filter_ is None or self._follow_redirect(page):
            return
        answered = page.status < 500 and page.status != _TOO_MANY_REQUESTS
        reason = "sitemap"
        if answered and _is_robots_txt(self._task):
            listed = []
            if page.status != _OK:
                reason = "no_robots_txt"
            else:
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
        followed = hide_in_links(followed, self._page_fetch.redactor)
        self._note(links=followed.links, left_out=followed.left_out)
        message = f"read: {counted(len(read.urls), 'URL')}"
        if reason == "no_robots_txt":
            message = f"there is no robots.txt (status {page.status}); /sitemap.xml is tried"
        self._skip(reason, message)

    # Files

    async def _read_file(self, sign_ins: int = 0) -> None:
        """Read an image or a document that a record names."""
        conditional = self._conditional_headers()
        try:
            page = await self._page_fetch.fetch(conditional)
        except FetchError as error:
            if error.reason != "out_of_scope":
                raise
            self._note(left_out=(LeftOut("files_host", 1, self._task.url),))
            self._skip(error.reason, error.message)
            return
        self._note(page=page)
        door = self._page_fetch.door
        if page.status == _NOT_MODIFIED and conditional:
            self._note(status=TaskStatus.COMPLETED, verdict=UNCHANGED)
            return
        began = time.perf_counter()
        rules = self._how.file_rules(self._task)
        examined = (file_fetch.examine_file, page, rules, self._site, self._budget)
        parsed = await self._budget.work(*examined)
        if parsed.verdict.name == "login_wall" and door and await door.enter_again(sign_ins):
            await self._read_file(sign_ins + 1)
            return
        self._apply(page, parsed, (time.perf_counter() - began) * 1000)
        if door and parsed.verdict.completed:
            door.note_useful()

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
            self._note(status=TaskStatus.COMPLETED, **_found_by(parsed), **made)
            return
        message = f"the server answered {page.status} {printable(page.reason[:100])[:100]}".rstrip()
        if verdict.name in (*file_fetch.REFUSALS, "step_failed"):
            message = verdict.evidence[0]
        elif not verdict.name.startswith("http_"):
            message += f", and the page is: {verdict.name.replace('_', ' ')}"
            if verdict.vendor:
                message += f" ({verdict.vendor})"
            if verdict.name == "empty_shell" and self._needs != BROWSER:
                message += ", which a browser may fill: fetcher auto"
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
        elif verdict.name == "robots" or form_fetch.is_foreign_wall(
            verdict.name, self._task, self._site, self._how.session
        ):
            self._note(status=TaskStatus.SKIPPED)

    def _spare(self) -> None:
        """Try a page again that was in a browser when it died, with others: none is blamed."""
        wait_s = retry_delay(RetryClass.SOON, 0, None, 1.0, 1.0, self._jitter)
        self._note(status=TaskStatus.PENDING, charge=False, not_before=self._clock() + wait_s)

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


def _minute(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"


def _found_by(parsed: ParsedPage) -> dict[str, Any]:
    """Return what was found on a page, and what guards left out, as an outcome has them."""
    followed, found = parsed.followed, parsed.found
    return {
        "links": followed.links,
        "files": found.files,
        "listings": parsed.listings,
        "left_out": (*followed.left_out, *found.left_out),
    }


def _same_page(url: str, other: str) -> bool:
    """Whether two URLs mean the same page, in whatever session."""
    if url == other:
        return True
    return urls.parse(scope.without_session(url)).key == urls.parse(other).key


class _LedElsewhereError(FetchError):
    """A browser that renders a page of a crawl is led to another page."""

    def __init__(self, url: str) -> None:
        super().__init__("redirected", "it leads to another page")
        self.url = url


def _only_to(page: str, hook: RequestHook, url: str) -> AbstractAsyncContextManager[None]:
    """A hook that lets a browser go to one page only."""
    if not _same_page(url, page):
        raise _LedElsewhereError(url)
    return hook(url)


def _as_rendered(page: Page) -> Page:
    """A rendered page with headers that say what it is: UTF-8, whatever its server sent."""
    headers = [
        (name, value)
        for name, value in page.headers
        if name.lower() not in ("content-type", "content-encoding", "content-length", RENDERED)
    ]
    own = (("content-type", "text/html; charset=utf-8"), (RENDERED, "yes"))
    return replace(page, headers=(*headers, *own))


def _redirect(url: str, target: str) -> Page:
    """The answer of a page that leads to another one."""
    return Page(
        url=url, final_url=url, status=302, reason="Found", headers=(("location", target),),
        body=b"", raw=b"", fetched_at=time.time(), fetch_s=0.0,
    )  # fmt: skip


def _is_robots_txt(task: Task) -> bool:
    return task.role is Role.SITEMAP and urlsplit(task.url).path == "/robots.txt"
