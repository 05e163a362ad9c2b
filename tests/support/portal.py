"""A county portal on loopback with a search form, a login and lists that go on by script.

`/search` is in windows-1251: its form needs the token and the cookie of its page, and the search is
kept by cookie. `/list` keeps its place in `__VIEWSTATE`. `/members/<n>` needs a login, which lasts
for some pages only.
"""

import secrets
import threading
from collections import Counter
from dataclasses import dataclass, field
from html import escape
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

from tests.support.pages import parcel

USER, PASSWORD = "ada.lovelace", "swordfish & <chips>/äö"
PAGE = 10
"""Items on a page of a list."""


class Heard(NamedTuple):
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Reply:
    """What is answered."""

    html: str
    status: int = 200
    headers: list[tuple[str, str]] = field(default_factory=list)
    charset: str = "utf-8"


def moved(location: str, status: int = 302, *headers: tuple[str, str]) -> Reply:
    """A redirect."""
    return Reply("moved", status, [("Location", location), *headers])


class Portal:
    """The portal while a test runs; `lasts` is the number of pages after which a login ends."""

    def __init__(self, items: int = 35, lasts: int = 1_000_000) -> None:
        self.items, self.lasts = items, lasts
        self.heard: list[Heard] = []
        self.answers: dict[str, Reply] = {}
        """What paths answer in place of the portal's own pages."""
        self.logins = 0
        """Sign-ins that succeeded."""
        self.refused = 0
        self.forgetful = 0
        """How many postbacks of /list are answered with an empty list and status 200."""
        self.broken = False
        """Whether the further pages of a search are answered with status 500."""
        self.echoes = False
        """Whether pages behind the login show their visitor's cookie."""
        self.wall_status = 200
        """How a page says that it needs a login: the login page itself, or 302 to it."""
        self._tokens: dict[str, str] = {}
        self._searches: dict[str, str] = {}
        self._left: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def expire(self) -> None:
        """End all logins."""
        with self._lock:
            self._left.clear()

    def forget(self) -> None:
        """Lose all searches, as a server that starts anew does."""
        with self._lock:
            self._searches.clear()
            self._tokens.clear()

    def paths(self, method: str = "") -> list[str]:
        """What was asked for, in order, robots.txt left out."""
        asked = [heard for heard in self.heard if heard.path != "/robots.txt"]
        return [heard.path for heard in asked if method in ("", heard.method)]

    def _answer(self, heard: Heard) -> Reply:
        if heard.path in self.answers:
            return self.answers[heard.path]
        path = urlsplit(heard.path).path
        cookies = {
            name: each.value for name, each in SimpleCookie(heard.headers.get("cookie", "")).items()
        }
        if path == "/search":
            return self._search(cookies)
        if path == "/find":
            return self._find(heard, cookies)
        if path == "/results":
            return self._results(heard, cookies)
        if path == "/list":
            return self._list(heard)
        if path == "/login":
            return self._login(heard)
        if path == "/welcome":
            return Reply(parcel(0, "Welcome"))
        if path.startswith("/members/"):
            return self._members(int(path.removeprefix("/members/")), cookies)
        if path.startswith("/parcel/"):
            return Reply(parcel(int(path.removeprefix("/parcel/"))))
        return Reply("<h1>Not here</h1>", 404)

    def _search(self, cookies: dict[str, str]) -> Reply:
        sid = secrets.token_hex(8)
        token = self._tokens[sid] = secrets.token_hex(8)
        html = (
            "<meta charset=windows-1251><title>Търсене</title><table><form id=search method=post "
            f"action=/find><tr><td><input type=hidden name=token value={token}>"
            "<input name=owner>"
            "<select name=kind><option value=1>земя<option value=2>сграда</select>"
            "<input type=submit name=go value=Търси></td></tr></form></table>"
        )
        return Reply(html, headers=[("Set-Cookie", f"sid={sid}; Path=/")], charset="windows-1251")

    def _find(self, heard: Heard, cookies: dict[str, str]) -> Reply:
        sent = {name: each[0] for name, each in parse_qs(
            heard.body.decode(), encoding="windows-1251", keep_blank_values=True
        ).items()}  # fmt: skip
        sid = cookies.get("sid", "")
        if heard.method != "POST" or self._tokens.get(sid, "-") != sent.get("token"):
            return Reply("<h1>The form is out of date</h1>", 403)
        self._searches[sid] = f"{sent['owner']}, {sent['kind']}, {sent['go']}"
        return moved("/results", 303)

    def _results(self, heard: Heard, cookies: dict[str, str]) -> Reply:
        if self.broken and heard.method == "POST":
            return Reply("<h1>Out of order</h1>", 500)
        search = self._searches.get(cookies.get("sid", ""))
        if search is None:
            return moved("/search")
        return Reply(self._grid(heard, search))

    def _list(self, heard: Heard) -> Reply:
        return Reply(self._grid(heard, "all"))

    def _grid(self, heard: Heard, search: str) -> str:
        """A page of a list, by the state that was sent."""
        state = parse_qs(heard.body.decode()).get("__VIEWSTATE", [""])[0]
        number = 1
        if state and self.forgetful:
            self.forgetful -= 1
            state = "page-1000"
        if state:
            number = int(state.removeprefix("page-")) + 1
        first = (number - 1) * PAGE
        items = range(first, min(first + PAGE, self.items))
        links = "".join(f"<li><a class=item href=/parcel/{n}>Parcel {n}</a>" for n in items)
        more = ""
        if first + PAGE < self.items:
            more = "<a class=next href=\"javascript:__doPostBack('grid','Page$Next')\">next</a>"
        return (
            f"<title>List</title><h1>{escape(search)}: page {number}</h1><form method=post>"
            "<input type=hidden name=__EVENTTARGET><input type=hidden name=__EVENTARGUMENT>"
            f"<input type=hidden name=__VIEWSTATE value=page-{number}><ul>{links}</ul>{more}"
            f"</form><p>{'These are the parcels of the county, in the order of their number. ' * 5}"
        )

    def _login(self, heard: Heard) -> Reply:
        if heard.method == "GET":
            return Reply(self._form())
        sent = {name: each[0] for name, each in parse_qs(heard.body.decode()).items()}
        with self._lock:
            if (sent.get("user"), sent.get("password")) != (USER, PASSWORD):
                self.refused += 1
                return Reply(self._form(sent.get("password", "")))
            self.logins += 1
            sid = f"member-{secrets.token_hex(8)}"
            self._left[sid] = self.lasts
        return moved("/welcome", 302, ("Set-Cookie", f"auth={sid}; Path=/; HttpOnly"))

    def _form(self, password: str = "") -> str:
        return (
            "<title>Sign in</title><h1>Sign in</h1><p>You must sign in to see this page.</p>"
            "<form id=login method=post action=/login><input name=user>"
            f"<input type=password name=password value='{escape(password)}'>"
            "<button>Sign in</button></form>"
        )

    def _members(self, number: int, cookies: dict[str, str]) -> Reply:
        sid = cookies.get("auth", "")
        with self._lock:
            if not self._left[sid]:
                if self.wall_status == 200:
                    return Reply(self._form())
                return moved(f"/login?to=/members/{number}", self.wall_status)
            self._left[sid] -= 1
        renewed = ("Set-Cookie", f"auth={sid}; Path=/; HttpOnly")
        owner = sid if self.echoes else "Nora Whitfield"
        return Reply(parcel(number, owner), headers=[renewed])

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        portal = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                body = self.rfile.read(int(headers.get("content-length", "0")))
                heard = Heard(self.command, self.path, headers, body)
                portal.heard.append(heard)
                reply = portal._answer(heard)
                data = reply.html.encode(reply.charset)
                self.send_response(reply.status)
                self.send_header("Content-Type", f"text/html; charset={reply.charset}")
                self.send_header("Content-Length", str(len(data)))
                for name, value in reply.headers:
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_POST = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        return Handler
