"""Pages in a real browser: what they show is returned, and what they try has its limits."""

import asyncio
import base64
import fcntl
import itertools
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from crawler.errors import FetchError, NotNow
from crawler.fetch import browser_process
from crawler.fetch.browser import BrowserLimits
from crawler.fetch.browser_page import PageLimits
from crawler.fetch.egress import Egress, parse_proxy
from crawler.fetch.rendering import Rendered
from crawler.fetch.session import Cookie, LiveSession, Session
from crawler.render_options import Step
from tests.integration.test_browser import listener
from tests.support.browser import Renderer, family
from tests.support.pages import Answer, Pages
from tests.support.script_site import ScriptSite
from tests.support.site import Site
from tests.support.stack import wait_for

LIMITS = PageLimits(
    requests=150,
    blocked=1_000,
    connections=200,
    traffic=1_500_000,
    navigations=3,
    dialogs=5,
    popups=5,
    workers=5,
)
NAMES = {"site.example": "127.0.0.2", "inside.example": "127.0.0.1"}


class Clock:
    """A clock that a test moves."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


CLOCK = Clock()


async def lookup(host: str) -> list[str]:
    """Resolve the names of these tests. 127.0.0.2 plays a server on the internet."""
    if host == "rebinding.example":
        return ["127.0.0.2"] if next(REBINDINGS) == 0 else ["127.0.0.1"]
    if host not in NAMES:
        raise OSError("there is no such name")
    return [NAMES[host]]


REBINDINGS = itertools.count()


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Renderer]:
    """One browser for all tests that do it no harm."""
    renderer = Renderer(
        tmp_path_factory.mktemp("browser"),
        egress=Egress(["127.0.0.2/32"], lookup, clock=CLOCK),
        page_limits=LIMITS,
        switches=["--js-flags=--max-old-space-size=64"],
    )
    with suppress(FetchError):  # it starts with its first page
        renderer.render("http://127.0.0.2:1/")
    yield renderer
    renderer.close()
    assert not renderer.processes()
    assert not list(renderer.folder.iterdir())


@pytest.fixture(scope="module")
def site() -> Iterator[ScriptSite]:
    """A site on this machine."""
    with ScriptSite() as site:
        yield site


@pytest.fixture(scope="module")
def _far() -> Iterator[ScriptSite]:
    with ScriptSite("127.0.0.2") as far:
        yield far


@pytest.fixture
def far(_far: ScriptSite) -> ScriptSite:
    """A site that counts as one on the internet, as http://site.example."""
    _far.asked.clear()
    return _far


@pytest.fixture
def hostile(request: pytest.FixtureRequest) -> Site:
    """The hostile site that other tests use, under a name that is free here."""
    site = request.getfixturevalue("_site")
    assert isinstance(site, Site)
    return site


def at(site: Pages, host: str = "site.example") -> str:
    """Return the URL of a site under another name."""
    return f"http://{host}:{site.url.rpartition(':')[2]}"


def failure(future: "Future[Rendered]") -> FetchError:
    """Return how a page has failed."""
    error = future.exception(300)
    assert isinstance(error, FetchError), error
    return error


def test_a_page_is_returned_as_its_scripts_have_made_it(
    renderer: Renderer, site: ScriptSite
) -> None:
    """The DOM as UTF-8 with its doctype, the response as it was sent, and no pictures loaded."""
    site.asked.clear()
    found = renderer.render(f"{site.url}/app#top")
    page, response = found.page, found.response
    assert b"<p>one</p><p>two</p>" in page.body
    assert page.body.startswith(b"<!DOCTYPE html>")
    assert page.header("content-type") == "text/html; charset=utf-8"
    assert not page.header("content-length")
    assert (page.status, page.final_url) == (200, f"{site.url}/app")
    assert response.body == response.raw == str(site.answers["/app"].body).encode()
    assert response.header("content-type") == "text/html; charset=utf-8"
    assert site.paths() == ["/app", "/data"]
    assert found.requests == 1
    assert found.received > len(response.body)
    assert found.refused == ()


def test_the_charset_of_a_page_is_understood(renderer: Renderer, site: ScriptSite) -> None:
    """The DOM is UTF-8; the response has the bytes of its server."""
    found = renderer.render(f"{site.url}/latin")
    assert "<p>\u00e9\u20ac</p>".encode() in found.page.body
    assert found.response.body == site.answers["/latin"].body
    assert found.response.header("content-type") == "text/html; charset=cp1252"


@pytest.mark.parametrize("path", ["/report.pdf", "/export", "/data"])
def test_what_is_no_document_is_returned_as_it_is(
    renderer: Renderer, site: ScriptSite, path: str
) -> None:
    """Downloads, PDF and JSON are neither saved nor shown, but returned."""
    found = renderer.render(site.url + path)
    assert found.page == found.response
    body = site.answers[path].body
    assert found.page.body == (body if isinstance(body, bytes) else body.encode())
    assert found.page.header("content-type") == site.answers[path].headers.get(
        "Content-Type", "text/html; charset=utf-8"
    )


def test_screenshot_and_pdf_are_made_on_demand(renderer: Renderer, site: ScriptSite) -> None:
    """They show pictures, which other pages do not load."""
    site.asked.clear()
    found = renderer.render(f"{site.url}/app", screenshot=True, pdf=True)
    assert found.screenshot.startswith(b"\x89PNG")
    assert found.pdf.startswith(b"%PDF")
    assert "/picture.png" in site.paths()


@pytest.mark.parametrize(
    "body",
    [
        "<p>a-secret",
        "<iframe srcdoc='a-secret'></iframe>",
        "<input id=field><script>field.value = 'a-' + 'secret'</script>",
        "<p id=a><script>a.attachShadow({mode: 'closed'}).innerHTML = 'a-' + 'secret'</script>",
        "<style>p::after { content: '\\61-secret' }</style><p>",
    ],
)
def test_what_a_picture_shows_is_returned_as_text(
    renderer: Renderer, site: ScriptSite, body: str
) -> None:
    """Also what is not in the DOM of the page as HTML."""
    site.answers["/seen"] = Answer(f"<!DOCTYPE html><body>{body}")
    assert b"a-secret" in renderer.render(f"{site.url}/seen", screenshot=True).seen
    assert renderer.render(f"{site.url}/seen").seen == b""


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/requests", "too_many_requests"),
        ("/frames", "too_many_requests"),
        ("/pictures", "too_many_requests"),
        ("/calls", "too_many_requests"),
        ("/errors", "too_many_messages"),
        ("/console", "too_many_messages"),
        ("/traffic", "too_much_traffic"),
        ("/dialogs", "too_many_dialogs"),
        ("/popups", "too_many_popups"),
        ("/workers", "too_many_workers"),
        ("/large.html", "too_large"),
        ("/bomb", "too_large"),
        ("/grows", "too_large"),
        ("/loops", "too_many_redirects"),
        ("/endless", "too_many_redirects"),
        ("/inwards", "forbidden_address"),
        ("/crashes", "page_crashed"),
        ("/closes", ""),
        ("/leaves", ""),
    ],
)
def test_a_page_that_misbehaves_fails_alone(
    renderer: Renderer, site: ScriptSite, path: str, reason: str
) -> None:
    """It fails for the reason it has given, or its attempt has no effect; the browser goes on."""
    browser = renderer.processes()[:3]
    steps = (Step(wait=10.0),) if reason else ()
    rendering = renderer.start(site.url + path, steps=steps)
    if reason:
        assert failure(rendering).reason == reason
    else:
        assert b"still here" in rendering.result(300).page.body
    assert renderer.processes()[:3] == browser


@pytest.mark.parametrize("path", ["/spins", "/spins_at_once"])
def test_a_page_whose_script_spins_is_ended_in_time(
    renderer: Renderer, site: ScriptSite, path: str
) -> None:
    """Beside it, another page is rendered."""
    spinning = renderer.start(site.url + path, timeout_s=3.0)
    assert b"<p>one</p>" in renderer.render(f"{site.url}/app").page.body
    assert failure(spinning).reason == "timeout"


def test_no_way_of_a_page_leads_into_this_machine_or_around_the_proxy(
    renderer: Renderer, far: ScriptSite, site: ScriptSite
) -> None:
    """Not of a page on the internet: by tag, script, worker, frame, redirect, WebSocket, WebRTC,
    prefetch, popup or download, by address or by name."""
    stun = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with stun, listener() as (port, heard):
        stun.bind(("127.0.0.1", 0))
        stun.setblocking(False)
        inside = [f"http://{host}:{port}" for host in ("127.0.0.1", "localhost", "inside.example")]
        far.intrude(inside, f"ws://127.0.0.1:{port}/socket", stun.getsockname()[1])
        found = renderer.render(f"{at(far)}/intruder")
        with pytest.raises(BlockingIOError):
            stun.recv(1)
    assert heard == []
    assert any(f"127.0.0.1:{port}" in url for url in found.refused)
    unwanted = {"/popup", "/prefetch", "/service.js", "/rules"}
    assert not unwanted & {*far.paths()}
    assert f"{at(far)}/export" in found.refused


def test_a_page_of_this_machine_reaches_its_own_origin_only(
    renderer: Renderer, site: ScriptSite, far: ScriptSite
) -> None:
    """No other port, and no redirect by way of another site back to its own."""
    back = f"{at(far)}/bounce?{site.url}/back"
    with listener() as (port, heard):
        site.answers["/own"] = Answer(
            f"<body><iframe src={at(far)}/app></iframe><script>"
            f"for (const url of ['http://127.0.0.1:{port}/x', '{back}'])"
            "fetch(url, {mode: 'no-cors'}).catch(() => {}); fetch('/data')</script>"
        )
        site.answers["/away"] = Answer("", 302, {"Location": f"{at(far)}/home"})
        far.answers["/home"] = Answer("", 302, {"Location": f"{site.url}/app"})
        site.asked.clear()
        found = renderer.render(f"{site.url}/own")
        assert failure(renderer.start(f"{site.url}/away")).reason == "forbidden_address"
        assert failure(renderer.start(f"{site.url}/app", loopback=False)).reason == (
            "forbidden_address"
        )
    assert heard == []
    assert site.paths() == ["/own", "/data", "/away"]
    assert "/app" not in far.paths()
    assert found.requests


def test_a_name_that_leads_elsewhere_meanwhile_is_refused(
    renderer: Renderer, far: ScriptSite
) -> None:
    """Each lookup is judged, and what was judged is dialled."""
    far.answers["/twice"] = Answer(
        "<body><script>fetch('/held').then(a => a.text()).then(() => fetch('/inner'))"
        ".then(() => document.body.append('got in'), () => document.body.append('kept out'))"
        "</script>"
    )
    answer = far.rule

    def later(path: str) -> Answer | None:
        if path == "/held":
            CLOCK.now += 60  # its addresses are looked up again
        return answer(path)

    far.rule = later
    found = renderer.render(f"{at(far, 'rebinding.example')}/twice")
    far.rule = answer
    assert b"kept out" in found.page.body
    assert far.paths() == ["/twice", "/held"]


def test_each_navigation_passes_the_hook(renderer: Renderer, site: ScriptSite) -> None:
    """A redirect and a script's navigation do, subresources do not; waits there cost no time."""
    site.answers["/start"] = Answer("", 302, {"Location": "/script"})
    site.answers["/script"] = Answer("<script>location = '/app'</script>")
    passed: list[str] = []
    inside: list[str] = []

    @asynccontextmanager
    async def hook(url: str) -> AsyncIterator[None]:
        await asyncio.sleep(1.5)
        passed.append(url.removeprefix(site.url))
        inside.append(url)
        assert len(inside) == 1
        yield
        inside.remove(url)

    found = renderer.render(f"{site.url}/start", hook, timeout_s=4.0)
    assert passed == ["/start", "/script", "/app"]
    assert inside == []
    assert b"<p>two</p>" in found.page.body
    assert found.page.final_url == f"{site.url}/app"


def test_a_refusal_of_the_hook_ends_the_page(renderer: Renderer, site: ScriptSite) -> None:
    """What the hook raises on the way is raised, and the request is not sent."""
    site.answers["/start"] = Answer("", 302, {"Location": "/forbidden"})
    site.asked.clear()

    @asynccontextmanager
    async def hook(url: str) -> AsyncIterator[None]:
        if url.endswith("/forbidden"):
            raise NotNow("127.0.0.1", "rate", 7.0)
        yield

    error = renderer.start(f"{site.url}/start", hook).exception(300)
    assert isinstance(error, NotNow)
    assert site.paths() == ["/start"]


def test_redirects_are_returned_where_they_are_links(renderer: Renderer, site: ScriptSite) -> None:
    """With `follow=False`, as the HTTP client does."""
    site.answers["/start"] = Answer("", 302, {"Location": "/app"})
    found = renderer.render(f"{site.url}/start", follow=False)
    assert (found.page.status, found.page.header("location")) == (302, "/app")


def test_headers_and_cookies_of_the_session_go_to_their_own_origin(
    renderer: Renderer, site: ScriptSite, far: ScriptSite
) -> None:
    """Cookies that servers and scripts set come back; no secret goes to another origin."""
    far.answers["/signed"] = Answer(
        f"<body><script>document.cookie = 'script=1'; fetch('/data');"
        f"fetch('{site.url}/elsewhere', {{mode: 'no-cors'}});"
        f"fetch('/bounce?{at(far, 'site.example')}/same');"
        f"fetch('/bounce?http://other.example:{far.url.rpartition(':')[2]}/other',"
        "{mode: 'no-cors'})</script>",
        headers={"Set-Cookie": "server=2; HttpOnly"},
    )
    NAMES["other.example"] = "127.0.0.2"
    given = Cookie(name="known", value="0", domain="site.example")
    session = LiveSession(
        Session(headers=(("X-Key", "secret"), ("Accept-Language", "bg")), cookies=(given,))
    )
    renderer.render(f"{at(far)}/signed", session=session, headers=(("X-Site", "secret"),))
    asked = {request.path.partition("?")[0]: request.headers for request in far.asked}
    for path in ("/signed", "/data", "/same"):
        assert (asked[path]["x-key"], asked[path]["x-site"]) == ("secret", "secret")
        assert "known=0" in asked[path]["cookie"]
    assert not {"x-key", "x-site", "cookie"} & asked["/other"].keys()
    assert {headers["accept-language"] for headers in asked.values()} == {"bg"}
    assert {headers["user-agent"] for headers in asked.values()} == {asked["/signed"]["user-agent"]}
    assert "crawler/" in asked["/signed"]["user-agent"]
    kept = {cookie.name: cookie.value for cookie in session.live_cookies()}
    assert kept == {"known": "0", "server": "2", "script": "1"}


def test_steps_are_taken_until_they_bring_nothing(renderer: Renderer, site: ScriptSite) -> None:
    """A button is clicked until it is gone, and a page is scrolled until it no longer grows."""
    steps = (
        Step(click=".more:contains('More')", times=20),
        Step(fill="#name", value="mill"),
        Step(press="Enter", selector="#name"),
        Step(scroll=20),
        Step(wait_for="li:nth-child(7)"),
        Step(wait=0.01),
    )
    body = renderer.render(f"{site.url}/more", wait_for=".more", steps=steps).page.body
    shown = body.partition(b'<ul id="list">')[2].partition(b"</ul>")[0]
    assert shown == b"".join(
        b"<li>%s</li>" % text
        for text in (b"1", b"2", b"3", b"4", b"mill", b"scrolled", b"scrolled")
    )


def test_a_step_that_fails_is_named(renderer: Renderer, site: ScriptSite) -> None:
    """By its number, its action and its selector; the page is there as the step before left it."""
    steps = (Step(click=".more"), Step(click=".gone", seconds=0.2))
    found = renderer.render(f"{site.url}/more", steps=steps)
    assert found.step_failed == (
        "step 2 (click .gone): there is no such element that it can be done with within 0.2 s"
    )
    assert b"<li>2</li>" in found.page.body


@pytest.mark.parametrize("height", ["NaN", "'high'", "null", "{}", "new Promise(() => {})"])
def test_a_page_that_lies_about_its_height_is_shown(
    renderer: Renderer, site: ScriptSite, height: str
) -> None:
    """Its scripts cannot break off the page by what they say to a picture or while it scrolls."""
    site.answers["/lies"] = Answer(
        "<p>still here<script>Object.defineProperty(Element.prototype, 'scrollHeight',"
        f"{{get() {{ return {height} }}}})</script>"
    )
    steps = () if "Promise" in height else (Step(scroll=2),)
    found = renderer.render(f"{site.url}/lies", screenshot=True, steps=steps)
    assert b"still here" in found.page.body
    assert found.screenshot.startswith(b"\x89PNG")


def test_failures_have_the_words_of_the_http_client(renderer: Renderer, site: ScriptSite) -> None:
    """An unknown name, a closed port, TLS with a server that speaks none, and no URL at all."""
    with socket.create_server(("127.0.0.2", 0)) as server:
        closed = server.getsockname()[1]
    urls = {
        "http://nowhere.example/": "dns",
        f"http://site.example:{closed}/": "connection",
        f"https://site.example:{closed}/": "connection",
        f"https://{site.url.removeprefix('http://')}/": "tls",
        "file:///etc/passwd": "bad_url",
    }
    assert {url: failure(renderer.start(url)).reason for url in urls} == urls


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/truncated", "truncated"),
        ("/chunked-broken", "bad_response"),
        ("/bad-gzip", "bad_encoding"),
        ("/http09", "bad_response"),
        ("/close", "connection"),
    ],
)
def test_a_broken_answer_is_no_page(
    renderer: Renderer, hostile: Site, path: str, reason: str
) -> None:
    """What has come before the end is not returned, with the reason of the HTTP client."""
    assert failure(renderer.start(hostile.url + path)).reason == reason


def test_an_answer_that_asks_to_sign_in_to_a_proxy_is_none(
    renderer: Renderer, site: ScriptSite
) -> None:
    """The browser would take it for ours, sign in and ask again, without a permit and a count."""
    headers = {"Proxy-Authenticate": 'Basic realm="crawler"'}
    site.answers["/proxy"] = Answer("", 407, headers)
    site.answers["/own"] = Answer("<body><script>fetch('/proxy').catch(() => {})</script>")
    site.asked.clear()
    error = failure(renderer.start(f"{site.url}/proxy"))
    renderer.render(f"{site.url}/own")
    assert error.reason == "bad_response"
    assert site.paths() == ["/proxy", "/own", "/proxy"]


def test_only_pages_of_the_browser_use_the_proxy(renderer: Renderer, site: ScriptSite) -> None:
    """It asks other programs of this machine for a name that they cannot know."""
    renderer.render(f"{site.url}/app")
    site.asked.clear()
    port = int(renderer.browser._proxy.url.rpartition(":")[2])
    guess = base64.b64encode(b"page:password").decode()
    for header in ("", f"Proxy-Authorization: Basic {guess}\r\n"):
        with socket.create_connection(("127.0.0.1", port)) as talk:
            talk.sendall(f"GET {site.url}/app HTTP/1.1\r\n{header}\r\n".encode())
            assert talk.recv(1000).startswith(b"HTTP/1.1 407 ")
    assert site.paths() == []


def test_a_page_of_this_machine_has_no_service_worker(renderer: Renderer, site: ScriptSite) -> None:
    """Not even there, where browsers allow them without TLS."""
    site.intrude([], "", 9)
    site.asked.clear()
    renderer.render(f"{site.url}/intruder")
    assert "/service.js" not in site.paths()


def test_a_page_has_no_shared_worker(renderer: Renderer, site: ScriptSite) -> None:
    """Nobody would count its requests."""
    site.asked.clear()
    renderer.render(f"{site.url}/shared")
    assert site.paths() == ["/shared"]


def test_a_call_opens_no_socket_to_the_local_network(renderer: Renderer, site: ScriptSite) -> None:
    """Chromium would listen to multicast DNS, to give its addresses names."""
    site.answers["/call"] = Answer(
        "<body><script>const call = new RTCPeerConnection();"
        "call.createDataChannel('x');"
        "call.createOffer().then(offer => call.setLocalDescription(offer));"
        "call.onicegatheringstatechange = () => { if (call.iceGatheringState == 'complete')"
        "document.body.append(Object.assign(document.createElement('p'), {id: 'done'})) }</script>"
    )
    rendering = renderer.start(f"{site.url}/call", steps=(Step(wait_for="#done"), Step(wait=2.0)))
    ports = set()
    while not rendering.done():
        for process in renderer.processes():
            with suppress(psutil.Error):
                ports |= {each.laddr.port for each in process.net_connections("udp")}
    rendering.result()
    assert 5353 not in ports


def test_an_operators_proxy_is_used_after_the_check(renderer: Renderer) -> None:
    """It gets whole addresses of http pages and CONNECT for others; what is forbidden it never
    sees."""
    with Pages() as operator:
        operator.rule = lambda path: Answer("<p>by proxy")
        place = operator.url.removeprefix("http://")
        through = LiveSession(Session(proxy=parse_proxy(f"user:pass@{place}")))
        found = renderer.render("http://site.example/page?x=1", session=through)
        forbidden = failure(renderer.start("http://inside.example/", session=through))
        refused = failure(renderer.start("https://site.example/", session=through))
        credentials = operator.asked[0].headers["proxy-authorization"]
    unreachable = failure(renderer.start("http://site.example/", session=through))
    assert b"by proxy" in found.page.body
    assert operator.paths() == ["http://site.example/page?x=1"]
    assert credentials == f"Basic {base64.b64encode(b'user:pass').decode()}"
    assert forbidden.reason == "forbidden_address"
    assert refused.message.startswith(f"the proxy {place} answered 501 ")
    assert unreachable.message.startswith(f"the proxy {place} cannot be reached")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Renderer]:
    """A browser that tests may break."""
    folder = tmp_path_factory.mktemp("broken")
    renderer = Renderer(folder, limits=BrowserLimits(slots=2), clock=CLOCK)
    yield renderer
    renderer.close()
    assert not renderer.processes()
    assert not list(renderer.folder.iterdir())


@pytest.mark.parametrize("victim", ["driver", "guard", "browser"])
def test_a_page_whose_browser_is_killed_fails_and_the_next_has_a_new_one(
    own: Renderer, site: ScriptSite, victim: str
) -> None:
    """Whichever of its processes dies; none is left, and no zombie."""
    arrived, go_on = threading.Event(), threading.Event()
    with holding(site, arrived, go_on):
        rendering = own.start(f"{site.url}/held")
        arrived.wait(60)
        processes = own.processes()
        with_profile = [one for one in processes if "--no-startup-window" in one.cmdline()]
        victims = {"driver": processes[0], "guard": with_profile[0], "browser": with_profile[-1]}
        victims[victim].kill()
        assert failure(rendering).reason == "browser_crashed"
    wait_for(lambda: not any(map(is_there, processes)), 10, "the end of the killed browser")


def test_a_browser_that_hangs_is_replaced(own: Renderer, site: ScriptSite) -> None:
    """A page that cannot be closed does not hold its slot."""
    arrived, go_on = threading.Event(), threading.Event()
    with holding(site, arrived, go_on):
        rendering = own.start(f"{site.url}/held", timeout_s=2.0)
        arrived.wait(60)
        processes = own.processes()
        for process in processes[1:]:
            process.suspend()
        assert failure(rendering).reason == "timeout"
    wait_for(lambda: not any(map(is_there, processes)), 30, "the end of the hanging browser")


def test_an_old_browser_is_replaced(own: Renderer, site: ScriptSite) -> None:
    """The page that is still in it goes on; then all of its processes end."""
    arrived, go_on = threading.Event(), threading.Event()
    with holding(site, arrived, go_on):
        held = own.start(f"{site.url}/held")
        arrived.wait(60)
        old = own.processes()
        CLOCK.now += 2000
        assert b"<p>one</p>" in own.render(f"{site.url}/app").page.body
        assert all(map(is_there, old[:3]))
        assert old[0] in own.processes()
        assert len(own.processes()) > len(old)
        go_on.set()
        assert b"released" in held.result(60).page.body
    wait_for(lambda: not any(map(is_there, old)), 10, "the end of the old browser")


def test_no_process_outlives_a_program_that_is_killed(tmp_path: Path, site: ScriptSite) -> None:
    """Neither browser, guard nor driver, nor the folder of the profile."""
    program = f"""
        import asyncio
        from pathlib import Path
        from crawler.fetch.browser import Browser
        from crawler.fetch.http import Request

        async def main():
            async with Browser(Path({str(tmp_path)!r}), 1_000_000) as browser:
                await browser.render(Request(url="{site.url}/held", loopback=True))

        asyncio.run(main())
    """
    arrived, go_on = threading.Event(), threading.Event()
    with holding(site, arrived, go_on):
        started = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)])
        arrived.wait(60)
        processes = family(psutil.Process(started.pid), tmp_path)
        assert len(processes) > 3
        os.kill(started.pid, signal.SIGKILL)
        started.wait()
        wait_for(lambda: not any(map(is_there, processes)), 30, "the end of all processes")
    wait_for(lambda: not list(tmp_path.iterdir()), 10, "the removal of the profile")


def test_leftovers_of_killed_browsers_are_removed(tmp_path: Path) -> None:
    """Should their guards have been killed, too; what is in use stays."""
    left, used = tmp_path / "left", tmp_path / "used"
    for folder in (left, used):
        folder.mkdir()
        (folder / "lock").touch()
    with (used / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        argv = [sys.executable, "-c", "input()", f"--user-data-dir={left}/profile"]
        orphan = subprocess.Popen(argv, stdin=subprocess.PIPE)
        Renderer(tmp_path).close()
        orphan.communicate(timeout=60)
        assert orphan.returncode == -signal.SIGKILL
        assert [folder.name for folder in tmp_path.iterdir()] == ["used"]


def test_what_is_missing_is_named(
    tmp_path: Path, site: ScriptSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Debian package, or the program that a setting names."""
    renderer = Renderer(tmp_path, program=tmp_path / "none")
    error = failure(renderer.start(f"{site.url}/app"))
    renderer.close()
    assert (error.reason, error.message) == (
        "browser_missing",
        f"CRAWLER_BROWSER_PATH={tmp_path / 'none'}: there is no such program",
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    assert browser_process.lacking(None) == (
        "pages in a browser need Chromium; install it: apt-get install chromium-headless-shell; "
        "or name another one with CRAWLER_BROWSER_PATH"
    )


@contextmanager
def holding(site: ScriptSite, arrived: threading.Event, go_on: threading.Event) -> Iterator[None]:
    """Let a page `/held` wait for its script until an event, or the end of the block."""
    site.answers["/held"] = Answer("<body><script src=/script></script><p>released")

    def rule(path: str) -> Answer | None:
        if path == "/script":
            arrived.set()
            go_on.wait(600)
        return site.answer(path)

    site.rule = rule
    try:
        yield
    finally:
        go_on.set()
        site.rule = site.answer


def is_there(process: psutil.Process) -> bool:
    """Whether a process runs, or is a zombie that nobody but this process can reap."""
    try:
        is_zombie = process.status() == psutil.STATUS_ZOMBIE
        return process.is_running() and (not is_zombie or process.ppid() == os.getpid())
    except psutil.NoSuchProcess:
        return False
