"""Fetches through forms, and signing in: one process does it, and no secret gets out."""

import asyncio
import base64
import logging
import random
import stat
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from msgspec.structs import replace

from crawler import urls
from crawler.db.links import Start
from crawler.errors import FetchError, InputError, SigningIn
from crawler.fetch.budget import Budget
from crawler.fetch.egress import Egress
from crawler.fetch.http import Client, Request
from crawler.fetch.session import (
    MAX_SECRET_VALUES,
    Cookie,
    LiveSession,
    Session,
    Sessions,
    SignIn,
    read_secrets,
    save,
)
from crawler.files import session_path
from crawler.lpm import LocalPersistenceManager
from crawler.models import Link, Page, Role, Task
from crawler.scraping import form_fetch
from crawler.scraping.form_fetch import Door, Fetched, FormFetch
from crawler.scraping.redaction import Redactor
from crawler.sites import Site, crawlfile
from crawler.sites.crawlfile import Login
from crawler.sites.forms import Forms, FormTask, next_task, read_task, start_task, unpack
from crawler.sites.parser import parse
from tests.support.portal import PASSWORD, USER, Portal, Reply, moved
from tests.support.tasks import done, open_job, page

SITE = Site(name="county", version="1")
SECRETS = Session(secrets={"user": USER, "password": PASSWORD})
NOW = 1_800_000_000.0


def form_of(**given: Any) -> crawlfile.Form:
    """A form of a site's file."""
    return crawlfile.Form(**given)


def task_of(url: str, given: FormTask, number: int = 1) -> Task:
    """A claimed task of method FORM."""
    return Task(
        id=number,
        task_id=f"task-{number}",
        url=url,
        domain="127.0.0.1",
        queue="default",
        priority=5,
        fence=1,
        attempts=0,
        failures=0,
        loopback=True,
        job_id=1,
        job_size=1,
        method="FORM",
        body=given.packed(),
    )


def run(work: Callable[[Client], Awaitable[Any]], *nets: str) -> Any:
    """Do something with a client."""

    async def with_client() -> Any:
        async with Client(1_000_000, egress=Egress(nets)) as client:
            return await work(client)

    return asyncio.run(with_client())


def fetch(
    portal: Portal, path: str, given: FormTask, live: LiveSession, number: int = 1
) -> Fetched:
    """Fetch the page that a form of the portal leads to."""
    url = f"{portal.url}{path}"
    plain = Request(url=url, loopback=True, session=live, budget=Budget())
    task = task_of(url, given, number)
    fetched: Fetched = run(lambda client: FormFetch(plain, client.fetch, SITE).fetch(task))
    return fetched


def following(fetched: Fetched, given: FormTask) -> FormTask | None:
    """The task of the next page, made of a page that was fetched."""
    budget = Budget()
    forms = Forms(parse(fetched.page.body, budget), fetched.page.final_url, "utf-8", budget)
    return next_task(given.packed(), forms, "a.next", fetched.session)


async def send(request: Request, client: Client) -> Page:
    """Send a request."""
    return await client.fetch(request)


# Redirects of a POST


@pytest.mark.parametrize(
    ("status", "method", "body"),
    [
        (301, "GET", b""),
        (302, "GET", b""),
        (303, "GET", b""),
        (307, "POST", b"a=1"),
        (308, "POST", b"a=1"),
    ],
)
def test_a_redirect_of_a_post(status: int, method: str, body: bytes) -> None:
    """It becomes a GET without a body, unless the status keeps the method."""
    with Portal() as portal:
        portal.answers["/post"] = moved("/end", status)
        portal.answers["/end"] = Reply("<h1>end</h1>")
        request = Request(
            url=f"{portal.url}/post",
            loopback=True,
            method="POST",
            body=b"a=1",
            content_type="text/x",
            referer=f"{portal.url}/form?q=1",
        )
        page: Page = run(lambda client: client.fetch(request))

    first, last = portal.heard
    assert page.final_url == f"{portal.url}/end"
    assert (last.method, last.body) == (method, body)
    assert ("content-type" in last.headers) == ("content-length" in last.headers) == bool(body)
    for heard in (first, last):
        assert heard.headers["referer"] == f"{portal.url}/form?q=1"
        assert heard.headers.get("origin") == (portal.url if heard.method == "POST" else None)


def test_a_form_is_not_sent_on_to_another_server() -> None:
    """Neither values nor the page's address go to where a redirect leads."""
    with Portal() as portal, Portal() as other:
        for status in (307, 308):
            portal.answers["/post"] = moved(f"{other.url}/end", status)
            request = Request(url=f"{portal.url}/post", loopback=True, method="POST", body=b"a=1")
            with pytest.raises(FetchError, match="not to get the form's values") as caught:
                run(partial(send, request), "127.0.0.0/8")
            assert caught.value.reason == "bad_redirect"
        portal.answers["/post"] = moved(f"{other.url}/end", 302)
        request = replace(request, referer=f"{portal.url}/form")
        run(lambda client: client.fetch(request), "127.0.0.0/8")

    [heard] = other.heard
    assert (heard.method, heard.body) == ("GET", b"")
    assert "referer" not in heard.headers


# Forms


def test_a_form_in_windows_1251_with_token_and_cookie() -> None:
    """The page, its submission and the redirect are one fetch, in the charset of the page."""
    live = LiveSession()
    given = start_task(
        form_of(values={"owner": "{Owner}", "kind": "сграда"}), {"owner": "Елена "}.get
    )
    with Portal() as portal:
        page = fetch(portal, "/search", given, live).page

        assert portal.paths() == ["/search", "/find", "/results"]
        assert "Елена, 2, Търси: page 1" in page.body.decode()
        assert (page.url, page.final_url) == (f"{portal.url}/search", f"{portal.url}/results")
        # Other pages of the job have the cookie, too.
        run(
            lambda client: client.fetch(Request(url=f"{portal.url}/x", loopback=True, session=live))
        )
    assert portal.heard[-1].headers["cookie"].startswith("sid=")


def test_two_searches_at_a_time_do_not_mix() -> None:
    """Each form has cookies of its own: the server keeps the search by them."""
    live = LiveSession()
    with Portal() as portal:

        async def search(client: Client, owner: str, number: int) -> bytes:
            url = f"{portal.url}/search"
            plain = Request(url=url, loopback=True, session=live, budget=Budget())
            given = FormTask(values={"owner": owner})
            fetched = await FormFetch(plain, client.fetch, SITE).fetch(task_of(url, given, number))
            return fetched.page.body

        owners = [f"owner-{n}" for n in range(10)]

        async def all_at_once(client: Client) -> list[bytes]:
            return await asyncio.gather(*[search(client, each, n) for n, each in enumerate(owners)])

        bodies = run(all_at_once)
    assert [body.decode().partition("<h1>")[2].partition(",")[0] for body in bodies] == owners


def test_the_next_page_of_a_list_by_its_state() -> None:
    """Where the state is in the page's fields, the next page costs one request in any process."""
    given, found = FormTask(form=False), []
    with Portal(items=35) as portal:
        fetched = fetch(portal, "/list", given, LiveSession())
        while after := following(fetched, given):
            given = read_task(after.packed())
            fetched = fetch(portal, "/list", given, LiveSession(), given.page)
            found.append(f"page {given.page}" in fetched.page.body.decode())

    assert found == [True] * 3
    assert [heard.method for heard in portal.heard] == ["GET", "POST", "POST", "POST"]


def test_the_next_page_of_a_list_by_cookie() -> None:
    """The process that has the cookies goes on from the page before; another one, or one whose
    server has forgotten the search, begins with the form."""
    given = FormTask(values={"owner": "Ada"})
    live = LiveSession()
    with Portal(items=35) as portal:
        first = fetch(portal, "/search", given, live)
        second_task = following(first, given)
        assert second_task is not None

        portal.heard.clear()
        second = fetch(portal, "/search", second_task, live, 2)
        assert portal.paths() == ["/results"]

        portal.heard.clear()
        again = fetch(portal, "/search", second_task, LiveSession(), 2)
        assert portal.paths() == ["/search", "/find", "/results", "/results"]

        third_task = following(second, second_task)
        assert third_task is not None
        assert third_task.page == 3
        portal.forget()
        portal.heard.clear()
        third = fetch(portal, "/search", third_task, live, 3)
        assert portal.paths() == [
            "/results", "/search", "/search", "/find", "/results", "/results", "/results",
        ]  # fmt: skip

    assert second.page.body == again.page.body
    assert "Ada, 1, Търси: page 3" in third.page.body.decode()


def test_another_process_continues_a_list_with_its_cookies(tmp_path: Path) -> None:
    """They are in a file of the job, which only its owner may read."""
    given = FormTask(values={"owner": "Ada"})
    first_process, second_process = (Sessions(tmp_path).of("job") for _ in range(2))
    with Portal(items=35) as portal:
        first = fetch(portal, "/search", given, first_process)
        second_task = following(first, given)
        assert second_task is not None
        first_process.store_branch(first.session)
        portal.heard.clear()
        second = fetch(portal, "/search", second_task, second_process, 2)
        assert portal.paths() == ["/results"]
        assert "Ada, 1, Търси: page 2" in second.page.body.decode()
    [file] = tmp_path.glob("*.cookies")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    file.write_bytes(b"{")
    with Portal(items=35) as portal:
        third_process = Sessions(tmp_path).of("job")
        again = fetch(portal, "/search", second_task, third_process, 2)
        assert portal.paths() == ["/search", "/find", "/results", "/results"]
    assert second.page.body == again.page.body


def test_a_large_state_is_not_kept() -> None:
    """The list is read again from its first page, up to a maximum."""
    budget = Budget()
    state = base64.b64encode(random.Random(1).randbytes(100_000)).decode()
    html = (
        f"<form method=post><input type=hidden name=__VIEWSTATE value='{state}'>"
        "<a class=next href=\"javascript:__doPostBack('a','')\">"
    )
    forms = Forms(parse(html, budget), "http://a.example/", "utf-8", budget)
    after = next_task("", forms, "a.next")
    assert after == FormTask(form=False, postback="a.next", page=2)

    with Portal() as portal:
        deep = FormTask(form=False, postback="a.next", page=form_fetch.MAX_CHAIN + 2)
        with pytest.raises(FetchError, match="page 102 of the list cannot be reached"):
            fetch(portal, "/list", deep, LiveSession())
        with pytest.raises(FetchError, match=r"page 4 of the list has no 'a.next' any more"):
            fetch(portal, "/list", FormTask(form=False, postback="a.next", page=9), LiveSession())


@pytest.mark.parametrize("state", ["x", "eJw=", "AAAA"])
def test_a_damaged_state(state: str) -> None:
    """It is an error of the task, whatever is in it."""
    with pytest.raises(FetchError, match="cannot be read"):
        unpack(state)
    with pytest.raises(FetchError, match="cannot be read"):
        read_task("{")


def test_a_wall_in_place_of_the_form_is_the_page() -> None:
    """It is judged like any other page, and not called a missing form."""
    with Portal() as portal:
        portal.answers["/search"] = Reply("<h1>Down</h1>", 503)
        page = fetch(portal, "/search", FormTask(), LiveSession()).page
        assert page.status == 503
        wall = "<title>Sign in</title><p>Please sign in to continue.</p><form><input type=password>"
        portal.answers["/search"] = Reply(wall)
        page = fetch(portal, "/search", FormTask(css="#search"), LiveSession()).page
        assert page.body.decode() == wall
        portal.answers["/search"] = Reply("<h1>Parcels</h1>" + "<p>There is much to read. " * 50)
        with pytest.raises(FetchError, match="'#search' selects nothing"):
            fetch(portal, "/search", FormTask(css="#search"), LiveSession())


# Secrets


def test_a_column_cannot_name_a_secret() -> None:
    """Only the site's file can: a row is input from elsewhere."""
    form = form_of(values={"a": "{x}", "b": "$key"})
    assert start_task(form, {"x": "$key"}.get) == FormTask(
        values={"a": "$key"}, secrets={"b": "key"}
    )
    with pytest.raises(ValueError, match="the columns that the form needs are empty: x"):
        start_task(form, lambda column: None)
    with pytest.raises(ValueError, match="the column 'y' is missing"):
        start_task(form_of(values={"a": "{x}", "b": "{y}"}), {"x": "1"}.get)


def test_a_secret_in_a_form_is_in_no_page() -> None:
    """A page that repeats it is kept without it, in its body, headers and URL."""
    live = LiveSession(Session(secrets={"key": PASSWORD}))
    given = FormTask(values={"kind": "1"}, secrets={"owner": "key"})
    echoed = quote(PASSWORD, safe="")
    with Portal() as portal:
        portal.answers["/results"] = moved(f"/end?q={echoed}", 302)
        portal.answers[f"/end?q={echoed}"] = Reply(
            f"<p>{PASSWORD} {echoed} swordfish &amp; &lt;chips&gt;/äö swordfish</p>",
            headers=[("X-Echo", echoed)],
        )
        page = Redactor(live.hidden_values).page(fetch(portal, "/search", given, live).page)
        assert page.body.decode() == "<p>*** *** *** swordfish</p>"
        assert page.raw == page.body
        assert dict(page.headers)["X-Echo"] == "***"
        assert page.final_url == f"{portal.url}/end?q=***"
        with pytest.raises(
            FetchError, match=r"needs the secret \$key: give it with --secrets FILE"
        ):
            fetch(portal, "/search", given, LiveSession())
    following_task = next_task(
        given.packed(),
        Forms(
            parse("<form><a onclick='__doPostBack(\"a\")'>", Budget()),
            "http://a/",
            "utf-8",
            Budget(),
        ),
        "a",
    )
    assert following_task is not None
    assert following_task.state == ""


@pytest.mark.parametrize(
    ("action", "problem"),
    [
        ("method=get", r"in its URL \(method GET\)"),
        ("method=post action=http://evil.example/", "to evil.example, another domain"),
    ],
)
def test_a_secret_is_sent_only_where_it_is_safe(action: str, problem: str) -> None:
    """Not in a URL, and not to another domain."""
    live = LiveSession(Session(secrets={"key": PASSWORD}))
    with Portal() as portal:
        portal.answers["/form"] = Reply(f"<form {action}><input name=a></form>")
        with pytest.raises(FetchError, match=f"would send a secret {problem}"):
            fetch(portal, "/form", FormTask(secrets={"a": "key"}), live)
        assert portal.paths() == ["/form"]


def test_cookie_values_are_hidden() -> None:
    """Names and attributes stay."""
    page = Page(
        url="", final_url="", status=200, reason="", body=b"", raw=b"", fetched_at=0, fetch_s=0,
        headers=(("Set-Cookie", "sid=geheim; Path=/"), ("set-cookie", "geheim"), ("X", "sid=1")),
    )  # fmt: skip
    hidden = (("Set-Cookie", "sid=***; Path=/"), ("set-cookie", "***"), ("X", "sid=1"))
    assert form_fetch.without_cookie_values(page).headers == hidden


def test_the_cookies_of_a_login_are_hidden_in_pages() -> None:
    """What signs the job in, also after the server has renewed it; but no word, date or path, which
    any page may have, and no token that a form must repeat."""
    values = {
        "auth": "a1b2c3d4", "long": "x" * 16, "day": "2026-11-17", "land": "Bulgaria",
        "last": "/members/1234", "csrftoken": "c0ffee00c0ffee00", "short": "a1b2c3",
    }  # fmt: skip
    cookies = tuple(
        Cookie(name=name, value=value, domain="a.example") for name, value in values.items()
    )
    live = LiveSession(Session(secrets={"password": PASSWORD}))
    live.keep(SignIn(number=1, cookies=cookies))

    assert live.hidden_values == [PASSWORD, "a1b2c3d4", "x" * 16]
    live.take("http", "a.example", "/", ["auth=e5f6a7b8; Path=/", "seen=e5f6a7b9; Path=/"])
    assert live.hidden_values[1:] == ["a1b2c3d4", "x" * 16, "e5f6a7b8"]
    live.take("http", "a.example", "/", [f"auth={n:08}f; Path=/" for n in range(100)])
    assert len(live.hidden_values) == 1 + MAX_SECRET_VALUES
    assert "00000099f" in live.hidden_values


@pytest.mark.parametrize(
    ("value", "is_hidden"),
    [
        ("%2Fsearch%2Fresults", False),
        ("%252Fsearch%252Fresults", False),
        ("\\/search\\/results", False),
        ("https%3A%2F%2Fa.example%2Fresults", False),
        ("https://a.example/results", False),
        ("results.php%3Fpage%3D12", False),
        ("new%20flats%20in%20Sofia", False),
        ("a1b2%2Fc3%2Bd4%3D%3D", True),
        ("s%3Aa1b2c3d4.e5%2Ff6", True),
        ("%7B%22key%22%3A%20%22a1b2c3d4%22%7D", True),
    ],
)
def test_an_escaped_cookie_is_judged_by_what_it_says(value: str, is_hidden: bool) -> None:
    """A page is searched for that, too, and would lose its links to an escaped path."""
    live = LiveSession(Session())
    live.keep(SignIn(number=1, cookies=(Cookie(name="last", value=value, domain="a.example"),)))
    assert live.hidden_values == [value] * is_hidden


def test_a_file_of_secrets(tmp_path: Path) -> None:
    """Errors name file and line, and never a value."""
    file = tmp_path / "secrets"
    file.write_bytes(b"\xef\xbb\xbf# mine\r\n\r\nuser = ada\npassword=a = b # c\n")
    assert read_secrets(file) == {"user": "ada", "password": "a = b # c"}
    for text, problem in (
        ("swordfish", "line 1: must be name=value"),
        ("a=1\na=swordfish", "line 2: names a a second time"),
        ("a=", "line 1: the value of a must have 1 to 10,000 characters"),
        ("a b=swordfish", "line 1: must be name=value"),
    ):
        file.write_text(text)
        with pytest.raises(InputError) as caught:
            read_secrets(file)
        assert problem in str(caught.value)
        assert "swordfish" not in str(caught.value)
    with pytest.raises(InputError, match="cannot be read"):
        read_secrets(tmp_path / "none")


# Signing in


class Visitor:
    """A process with a page that needs to be signed in, at a time of the test's own."""

    def __init__(self, portal: Portal, folder: Path, now: list[float]) -> None:
        self.live = Sessions(folder, clock=lambda: now[0]).of("job")
        form = form_of(css="#login", values={"user": "$user", "password": "$password"})
        self._login = Login(url=f"{portal.url}/login", form=form)
        self._portal, self._now = portal, now
        self.door: Door | None = None

    async def page(self, client: Client, number: int = 1) -> bytes:
        """Fetch a page as an attempt does."""
        url = f"{self._portal.url}/members/{number}"
        plain = Request(url=url, loopback=True, session=self.live, budget=Budget())
        door = Door(self._login, plain, client.fetch, SITE, lambda: self._now[0])
        for times in range(10):
            await door.enter()
            page = await client.fetch(plain)
            walled = b"Sign in" in page.body or door.leads_to_login(page)
            if not walled and times:
                door.note_useful()
            if not walled or not await door.enter_again(times):
                return page.body
        raise AssertionError("it signs in again and again")

    def get(self, number: int = 1) -> bytes:
        """The same, with a client of its own."""
        body: bytes = run(lambda client: self.page(client, number))
        return body


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    """A folder with the session of a job that has the right secrets."""
    save(tmp_path, "job", SECRETS)
    return tmp_path


def test_one_process_signs_in_for_all(sessions: Path) -> None:
    """The others take over its cookies from the session's file, which is for its owner only."""
    now = [NOW]
    with Portal() as portal:
        first, second = (Visitor(portal, sessions, now) for _ in range(2))
        assert b"Parcel 1" in first.get(1)
        assert b"Parcel 2" in second.get(2)
        assert portal.logins == 1
        third = Visitor(portal, sessions, now)
        assert b"Parcel 3" in third.get(3)
    assert portal.logins == 1
    assert stat.S_IMODE(session_path(sessions, "job").stat().st_mode) == 0o600
    for live in (first.live, third.live):
        assert not any(secret in repr(live) for secret in (USER, PASSWORD, "member-"))


@pytest.mark.parametrize("wall", [200, 302])
def test_a_session_that_has_ended_is_renewed_once(sessions: Path, wall: int) -> None:
    """One process signs in again when a page asks for it; another finds that done."""
    now = [NOW]
    with Portal() as portal:
        portal.wall_status = wall
        first, second = (Visitor(portal, sessions, now) for _ in range(2))
        first.get()
        second.get()
        portal.expire()
        assert b"Parcel 1" in first.get(1)
        assert b"Parcel 2" in second.get(2)
    assert portal.logins == 2


def test_pages_wait_while_another_signs_in(sessions: Path) -> None:
    """Of many pages in several processes, one signs in, and the others are told to wait."""
    now = [NOW]
    with Portal() as portal:
        visitors = [Visitor(portal, sessions, now) for _ in range(4)]

        async def all_at_once(client: Client) -> list[Any]:
            pages = [visitor.page(client, n) for n in range(3) for visitor in visitors]
            return await asyncio.gather(*pages, return_exceptions=True)

        ended = run(all_at_once)
        again = [visitor.get() for visitor in visitors]
    assert portal.logins == 1
    waiting = [each for each in ended if isinstance(each, SigningIn)]
    assert len(waiting) == 11
    assert {each.wait_s for each in waiting} == {form_fetch.BUSY_WAIT_S}
    assert all(b"Parcel" in body for body in again)


def test_a_wrong_password(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is tried twice with a wait between, said once, and then every page fails at once; other
    secrets begin anew."""
    save(tmp_path, "job", Session(secrets={"user": USER, "password": "wrong-1"}))
    now = [NOW]
    with Portal() as portal, caplog.at_level(logging.INFO):
        visitors = [Visitor(portal, tmp_path, now) for _ in range(2)]
        for visitor in visitors:
            with pytest.raises(SigningIn, match="was refused") as caught:
                visitor.get()
            assert 0 < caught.value.wait_s <= form_fetch.REFUSAL_WAIT_S
        assert portal.refused == 1
        now[0] += form_fetch.REFUSAL_WAIT_S + 1
        for _ in range(5):
            for visitor in visitors:
                with pytest.raises(FetchError, match="shows the login form again") as failed:
                    visitor.get()
                assert failed.value.reason == "login_failed"
            now[0] += 10_000
        assert (portal.refused, portal.logins) == (2, 0)
        said = [
            record.getMessage() for record in caplog.records if record.name.startswith("crawler")
        ]
        assert len(said) == 1
        assert "wrong-1" not in "".join(said) + str(failed.value) + repr(visitors[0].live)

        save(tmp_path, "job", SECRETS)
        assert b"Parcel 1" in Visitor(portal, tmp_path, now).get()
    assert portal.logins == 1


def test_a_page_that_always_asks_to_sign_in_does_not_hammer_the_login(sessions: Path) -> None:
    """After some sign-ins that did not help, the job waits longer and longer before the next."""
    now = [NOW]
    with Portal(lasts=0) as portal:
        visitor = Visitor(portal, sessions, now)
        for _ in range(20):
            assert b"Sign in" in visitor.get()
        assert portal.logins <= 1 + form_fetch.MAX_USELESS + 1
        before = portal.logins
        now[0] += form_fetch.MAX_USELESS_WAIT_S
        visitor.get()
        assert before < portal.logins <= before + 2
        portal.lasts = 1_000
        now[0] += form_fetch.MAX_USELESS_WAIT_S
        assert b"Parcel 1" in visitor.get()
        portal.expire()
        assert b"Parcel 1" in visitor.get()


def test_without_its_secrets_nothing_is_sent(tmp_path: Path) -> None:
    """The page fails with the option that is missing."""
    with Portal() as portal:
        told = (
            r"needs the secret \$user: give it with --secrets FILE, or .* `secrets:` in the site's"
        )
        with pytest.raises(FetchError, match=told):
            Visitor(portal, tmp_path, [NOW]).get()
        assert portal.heard == []


def test_cookies_of_the_operator_are_tried_first(tmp_path: Path) -> None:
    """With cookies for the host, a job signs in only if a page asks for it."""
    cookie = Cookie(name="auth", value="mine", domain="127.0.0.1", given=True)
    save(tmp_path, "job", replace(SECRETS, cookies=(cookie,)))
    with Portal() as portal:
        assert b"Parcel 1" in Visitor(portal, tmp_path, [NOW]).get()
    assert portal.paths()[:2] == ["/members/1", "/login"]
    assert portal.heard[0].headers["cookie"] == "auth=mine"
    assert portal.heard[-1].headers["cookie"].startswith("auth=member-")


def test_a_login_that_cannot_be_judged_is_no_refusal(sessions: Path) -> None:
    """A server in trouble costs the page an attempt, and no try of the login."""
    now = [NOW]
    with Portal() as portal:
        portal.answers["/login"] = Reply("busy", 503)
        visitor = Visitor(portal, sessions, now)
        for _ in range(4):
            with pytest.raises(FetchError, match="signing in: the server answered 503") as caught:
                visitor.get()
            assert caught.value.reason == "http_503"
        del portal.answers["/login"]
        assert b"Parcel 1" in visitor.get()


def test_a_session_keeps_its_other_cookies(sessions: Path) -> None:
    """Another process's sign-in replaces none of the cookies that this process has got."""
    now = [NOW]
    with Portal() as portal:
        first, second = (Visitor(portal, sessions, now) for _ in range(2))
        first.get()
        first.live.take("http", "127.0.0.1", "/", ["seen=1"])
        portal.expire()
        second.get()
        assert b"Parcel 2" in first.get(2)
    assert "seen=1" in portal.heard[-1].headers["cookie"]


def test_what_changes_the_session_is_known_by_its_url() -> None:
    """A crawl leaves out the login page and what signs out."""
    login = Login(url="https://a.example/login", form=form_of())
    for url in (
        "https://a.example/login?to=/x",
        "https://a.example/user/logout",
        "https://a.example/Sign-Out.aspx",
    ):
        assert form_fetch.changes_session(url, login)
    for url in ("https://a.example/", "https://b.example/login", "https://a.example/logoutside"):
        assert not form_fetch.changes_session(url, login)


def test_the_answer_to_a_form_says_nothing_about_its_page(tmp_path: Path) -> None:
    """Searches of one URL are pages of their own, and no one of them is asked for by its ETag."""
    with LocalPersistenceManager(tmp_path) as lpm:
        job = open_job(lpm)
        links = [
            Link(address=urls.parse("http://a.example/"), role=Role.START, method=method, body=body)
            for method, body in (("GET", ""), ("FORM", "a"), ("FORM", "b"))
        ]
        starts = [Start(link, {"parcel_id": str(n)}) for n, link in enumerate(links)]
        lpm.crawls.add_starts(job, starts, NOW)
        tasks = lpm.get_next_pending("owner", 9)
        assert [(task.method, task.body) for task in tasks] == [
            ("GET", ""), ("FORM", "a"), ("FORM", "b"),
        ]  # fmt: skip
        answer = replace(page("http://a.example/"), headers=(("ETag", '"of a form"'),))
        lpm.save_result(done(tasks[1], page=answer))
        assert lpm.store.db.all("SELECT etag FROM validators") == []
        assert lpm.store.db.all("SELECT count(*) FROM results") == [(1,)]
        lpm.save_result(done(tasks[0], page=replace(answer, headers=(("ETag", '"own"'),))))
        lpm.save_result(done(tasks[2]))
        assert lpm.store.db.all("SELECT etag FROM validators") == [('"own"',)]


def test_a_session_file_of_before_is_read(tmp_path: Path) -> None:
    """Its fields have got more, and none is lost."""
    save(tmp_path, "job", Session(user_agent="me"))
    path = session_path(tmp_path, "job")
    stored = msgspec.json.decode(path.read_bytes())
    del stored["session"]["secrets"], stored["session"]["sign_in"]
    path.write_bytes(msgspec.json.encode(stored))
    assert Sessions(tmp_path).of("job").user_agent == "me"
