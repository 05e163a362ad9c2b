"""Fetches through forms: a form's page, its submission and its redirects are one fetch of a task.
Signs a job in, once for all processes.

No secret leaves this module except in a request: not in an error or a log line. Whoever fetches a
page through it hides them there (`redaction.py`).
"""

import logging
import re
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from crawler import urls
from crawler.config import failpoint
from crawler.errors import FetchError, SigningIn
from crawler.fetch import charset
from crawler.fetch.budget import Budget
from crawler.fetch.http import Request, redirect_of
from crawler.fetch.session import LiveSession, SignIn
from crawler.judge.rules import judge
from crawler.models import Page, Role, Task
from crawler.scraping.redaction import HIDDEN, Redactor
from crawler.sites import Site
from crawler.sites.crawlfile import Login
from crawler.sites.forms import Forms, FormTask, State, Submission, read_task, start_task, unpack
from crawler.sites.parser import parse

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_CHAIN = 100
"""Pages of a list that are fetched again to reach the next one."""
MAX_REFUSALS, REFUSAL_WAIT_S = 2, 10.0
"""How often a job tries to sign in if it is refused (accounts get locked), and the wait between."""
MAX_USELESS, USELESS_WAIT_S, MAX_USELESS_WAIT_S = 3, 30.0, 3600.0
"""Sign-ins in a row after which the page still asks to sign in; then each further one waits, twice
as long every time."""
MAX_SIGN_INS = 8
"""Sign-ins during one attempt at a page: other pages may use up a short session before it."""
BUSY_WAIT_S = 1.0
"""How long a page waits while another process signs in."""
PARSE_MEMORY_FACTOR, MAX_PARSE_MEMORY = 100, 64_000_000
"""Memory for parsing a page: this many times its size, up to the maximum in bytes."""
NO_SESSION = "none"
"""The session of a list that must be begun anew: its first page was fetched with other cookies."""
_LOGOUT = re.compile(r"/(?:log|sign)[-_]?(?:out|off)\b", re.IGNORECASE)

Send = Callable[[Request], Awaitable[Page]]
"""Sends a request and follows its redirects, each with a permit and by robots.txt."""


class Fetched(msgspec.Struct, frozen=True):
    """The page that a form has led to, and the session that its list goes on with."""

    page: Page
    session: str = ""
    is_doubtful: bool = False
    """Whether the server was trusted to remember the list: a page without items may mean that it
    did not."""


class _Wall(Exception):
    """A page that has no such form, because it is an error page, a captcha or the like."""

    def __init__(self, page: Page) -> None:
        super().__init__(page)
        self.page = page


class FormFetch:
    """Fetches the page of one task through forms."""

    def __init__(self, plain: Request, send: Send, site: Site) -> None:
        """`plain` is the request of the task's own URL."""
        # In a crawl, redirects are tasks of their own, but not those of a form.
        self._plain, self._send = replace(plain, follow=True), send
        self._budget, self._encoding = plain.budget, site.encoding
        self._held = 0
        """Bytes that the budget counts for the last page."""
        self.live = plain.session or LiveSession()

    async def fetch(self, task: Task, *, anew: bool = False) -> Fetched:
        """Return the page of a task of method FORM; `anew`: whatever its server remembers."""
        given = read_task(task.body)
        if given.state and not anew and (fetched := await self._from_state(unpack(given.state))):
            return replace(fetched, is_doubtful=given.page <= MAX_CHAIN + 1)
        if given.page > MAX_CHAIN + 1:
            message = f"page {given.page:,} of the list cannot be reached: its server keeps no"
            message += f" state, and more than {MAX_CHAIN} pages would have to be fetched before it"
            raise FetchError("bad_form", message)
        branch = self.live.branch()
        assert branch is not None
        try:
            page = await self._from_start(given, branch)
        except _Wall as wall:
            return Fetched(replace(wall.page, url=task.url))
        page = replace(page, url=task.url)
        return Fetched(page, self.live.keep_branch(branch, task.task_id))

    async def submit(self, url: str, session: LiveSession, given: FormTask) -> Page:
        """Get a page, fill in its form and submit it; return the answer."""
        values = self._values(given)
        here = replace(self._plain, url=url, session=session)

        def fill(forms: Forms) -> Submission:
            form = forms.choose(given.css, values)
            form.fill(values, given.secrets)
            return form.submission(given.submit)

        page, submission = await self._read(await self._get(here), fill)
        if given.secrets:
            _check_safe(submission, page.final_url)
        return await self._get(self._request(submission, session, page.final_url, url))

    async def has_form(self, page: Page, given: FormTask) -> bool:
        """Whether a page has the form, with all controls that get a value."""

        def look(forms: Forms) -> bool:
            wanted = {*given.values, *given.secrets}
            return wanted <= set(forms.choose(given.css, wanted).names)

        try:
            return (await self._read(page, look))[1]
        except (_Wall, FetchError):
            return False

    async def _from_start(self, given: FormTask, session: LiveSession) -> Page:
        """Repeat all that leads to a page: the form, and each postback."""
        if given.form:
            page = await self.submit(self._plain.url, session, given)
        else:
            page = await self._get(replace(self._plain, session=session))
        for number in range(1, given.page):
            before, sent = await self._read(page, lambda forms: forms.postback(given.postback))
            if sent is None:
                message = f"page {number} of the list has no {given.postback!r} any more"
                raise FetchError("bad_form", f"{message}: the list has changed")
            page = await self._get(self._request(sent, session, before.final_url))
        return page

    async def _from_state(self, state: State) -> Fetched | None:
        """Send what the page before has kept; None if the server does not remember it, or another
        process has the cookies for it."""
        branch = self.live.branch(state.session)
        if branch is None:
            return None
        sent = state.submission
        page = await self._get(self._request(sent, branch, self._plain.url))
        expected = (state.path, urlsplit(sent.url).path)
        was_lost = b"__VIEWSTATE" in (sent.body or b"") and b"__VIEWSTATE" not in page.body
        if page.status >= 400 or was_lost or urlsplit(page.final_url).path not in expected:
            self._budget.release(self._held)
            return None
        session = ""
        if state.session:
            session = self.live.keep_branch(branch, state.session)
        return Fetched(replace(page, url=self._plain.url), session)

    def _values(self, given: FormTask) -> dict[str, str]:
        """Return the values of all controls."""
        values = dict(given.values)
        for control, name in given.secrets.items():
            if name not in self.live.secrets:
                message = f"the form needs the secret ${name}: give it with --secrets FILE"
                raise FetchError("bad_form", message)
            values[control] = self.live.secrets[name]
        return values

    def _request(
        self, sent: Submission, session: LiveSession, referer: str, home: str = ""
    ) -> Request:
        here, there = urlsplit(home or self._plain.url), urlsplit(sent.url)
        return replace(
            self._plain,
            url=sent.url,
            # A page's form must not lead into this machine, unless the page is there itself.
            loopback=self._plain.loopback and here[:2] == there[:2],
            home="{0.scheme}://{0.netloc}".format(urlsplit(self._plain.url)),
            method=sent.method,
            body=sent.body,
            content_type=sent.content_type,
            referer=referer,
            session=session,
        )

    async def _get(self, request: Request) -> Page:
        held = self._budget.held
        page = await self._send(request)
        self._held = self._budget.held - held
        return page

    async def _read(self, page: Page, use: Callable[[Forms], T]) -> tuple[Page, T]:
        """Use the forms of a page that is not needed any more afterwards, but for its URL."""
        found = await self._budget.work(_read, page, self._encoding, use, self._budget)
        self._budget.release(self._held)
        self._held = 0
        return replace(page, body=b"", raw=b""), found


def _read(page: Page, encoding: str | None, use: Callable[[Forms], T], budget: Budget) -> T:
    if page.status >= 400:
        raise _Wall(page)
    needed = min(PARSE_MEMORY_FACTOR * len(page.body), MAX_PARSE_MEMORY)
    budget.hold(needed)
    try:
        declared = page.header("content-type")
        html = charset.utf8(page.body, declared, budget, encoding)
        name = charset.of(page.body, declared, budget, encoding)
        tree = parse(html, budget, len(html) * (html is not page.body))
        try:
            return use(Forms(tree, page.final_url, name, budget))
        except FetchError as error:
            if error.reason == "bad_form" and not judge(page, html, tree, budget).completed:
                raise _Wall(page) from None
            raise
    finally:
        budget.release(needed)


# Signing in.


class Door:
    """Signs a job in at its site, so that its pages get the site's cookies."""

    def __init__(
        self,
        login: Login,
        plain: Request,
        send: Send,
        site: Site,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`plain` is the request of the page that waits meanwhile."""
        self._login, self._clock = login, clock
        self._forms = FormFetch(plain, send, site)
        self._live = self._forms.live
        self._domain = urls.parse(plain.url).domain
        self._used = 0
        """The number of the sign-in whose cookies the page was fetched with."""

    async def enter(self) -> None:
        """Sign in if the job never has; to be called before a page's request."""
        live = self._live
        live.refresh()
        host = urlsplit(self._login.url).hostname or ""
        if not live.sign_in.number and not live.has_cookies_for(host):
            self._used = 0
            await self._sign_in()
        self._used = live.sign_in.number

    async def enter_again(self, times: int) -> bool:
        """Sign in after a page asked for it; False if it still asks after so many times, or if
        that would hardly help."""
        self._live.refresh(now=True)
        if times:
            self._note(useful=False)
        now = self._live.sign_in
        waits = now.useless >= MAX_USELESS and self._clock() < now.not_before
        if times >= MAX_SIGN_INS or (now.number == self._used and waits):
            return False
        await self._sign_in()
        return True

    def note_useful(self) -> None:
        """Note that a page could be read, if that signing in helps was in doubt."""
        if self._live.sign_in.useless:
            self._note(useful=True)

    def _note(self, useful: bool) -> None:
        with self._live.signing_in() as mine:
            self._live.refresh(now=True)
            now = self._live.sign_in
            if not mine or now.number != self._used or (useful and not now.useless):
                return
            useless = 0 if useful else now.useless + 1
            wait_s = min(USELESS_WAIT_S * 2 ** min(useless, 10), MAX_USELESS_WAIT_S)
            self._live.keep(replace(now, useless=useless, not_before=self._clock() + wait_s))

    def leads_to_login(self, page: Page) -> bool:
        """Whether a page is the login page, or redirects there."""
        return _is_login_page(redirect_of(page) or page.final_url, self._login)

    async def _sign_in(self) -> None:
        """Sign in, unless another process does or has; raises `SigningIn` if the page must wait."""
        with self._live.signing_in() as mine:
            self._live.refresh(now=True)
            before = self._live.sign_in
            if before.number != self._used:
                return
            missing = [each for each in self._login.form.secrets if each not in self._live.secrets]
            if missing:
                needed = f"signing in needs the secret ${missing[0]}: give it with --secrets FILE"
                needed += ", or in a file that `secrets:` in the site's login names"
                raise FetchError("login_failed", needed)
            if before.failures >= MAX_REFUSALS:
                raise self._failed(before.problem)
            if not mine:
                raise SigningIn(self._domain, "another page of the job signs in", BUSY_WAIT_S)
            wait_s = before.not_before - self._clock()
            if before.failures and wait_s > 0:
                raise SigningIn(self._domain, "the job was refused when it signed in", wait_s)
            trial = self._live.fresh()
            problem = await self._try(trial)
            failpoint("signed-in")
            if not problem:
                cookies = trial.gained_cookies()
                useless, until = before.useless, before.not_before
                number = before.number + 1
                self._live.keep(
                    SignIn(number=number, cookies=cookies, useless=useless, not_before=until)
                )
                failpoint("login-kept")
                return
            self._note_refusal(before, problem)

    def _note_refusal(self, before: SignIn, problem: str) -> None:
        failures, until = before.failures + 1, self._clock() + REFUSAL_WAIT_S
        told = {"failures": failures, "problem": problem, "not_before": until}
        self._live.keep(replace(before, **told))
        if failures >= MAX_REFUSALS:
            log.error("%s", self._failed(problem))
            raise self._failed(problem)
        raise SigningIn(self._domain, "the job was refused when it signed in", REFUSAL_WAIT_S)

    def _failed(self, problem: str) -> FetchError:
        message = f"signing in at {self._login.url} failed: {problem}. It is not tried again until "
        return FetchError("login_failed", f"{message}the job gets other secrets (--secrets FILE)")

    async def _try(self, session: LiveSession) -> str:
        """Send the login form; return why it was refused, or an empty string.

        Raises `FetchError` if there was no answer to judge by, which a later try may change.
        """
        login = self._login
        given = start_task(login.form, lambda column: None)
        secrets = [self._live.secrets.get(name, "") for name in given.secrets.values()]
        redactor = Redactor(secrets, shortest=1)
        sent = True
        try:
            page = await self._forms.submit(login.url, session, given)
        except _Wall as wall:
            page, sent = wall.page, False
        except FetchError as error:
            message = redactor.text(error.message)
            if error.reason == "bad_form":
                return message
            reason = error.reason
            if reason == "robots":  # the page itself may be allowed, and is not skipped
                reason = "login_failed"
            raise FetchError(reason, f"signing in: {message}", error.retry_after_s) from None
        if page.status >= 500 or page.status == 429:
            message = f"signing in: the server answered {page.status}"
            raise FetchError(f"http_{page.status}", message)
        if page.status >= 400:
            return f"the server answered {page.status}"
        if not sent:
            return "the login page has no such form now"
        if await self._forms.has_form(page, given):
            return "the server shows the login form again, so the secrets are probably wrong"
        return ""


def changes_session(url: str, login: Login) -> bool:
    """Whether a URL is that of the login page, or looks like one that signs out."""
    return _is_login_page(url, login) or bool(_LOGOUT.search(urlsplit(url).path))


def _is_login_page(url: str, login: Login) -> bool:
    return urlsplit(url)[:3] == urlsplit(login.url)[:3]


def is_foreign_wall(verdict: str, task: Task, site: Site, session: LiveSession | None) -> bool:
    """Whether a page asks to sign in that the crawl only came across: a link led there, no rule of
    the site's file wants it, and the job was given nothing to sign in with."""
    if verdict != "login_wall" or task.role not in (Role.INDEX, Role.FILE):
        return False
    if site.login or site.scraper or site.follow is not None or site.kind_of(task.url):
        return False
    return session is None or not session.has_credentials


# Keeping secrets.


def _check_safe(sent: Submission, page: str) -> None:
    """Refuse to send a secret in a URL, without TLS where the page has it, or to another domain."""
    here, there = urlsplit(page), urlsplit(sent.url)
    problem = ""
    if sent.method == "GET":
        problem = "in its URL (method GET)"
    elif here.scheme == "https" and there.scheme != "https":
        problem = "without TLS"
    elif urls.domain(here.hostname or "") != urls.domain(there.hostname or ""):
        problem = f"to {there.hostname}, another domain"
    if problem:
        raise FetchError("bad_form", f"the form would send a secret {problem}")


def without_cookie_values(page: Page) -> Page:
    """Hide the values of cookies in a page's headers: whoever reads the stored page could use them
    to be signed in."""
    headers = tuple(
        (name, _hide_cookie(value) if name.lower() == "set-cookie" else value)
        for name, value in page.headers
    )
    return page if headers == page.headers else replace(page, headers=headers)


def _hide_cookie(text: str) -> str:
    pair, semicolon, attributes = text.partition(";")
    name, equals, _ = pair.partition("=")
    return f"{name if equals else ''}{equals}{HIDDEN}{semicolon}{attributes}"
