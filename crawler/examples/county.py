"""A county's parcel portal: search forms, result lists, layout tables, and an area behind a login.

Each parcel can be reached in one way only (`WAYS`), so a crawl that cannot use a form, a postback
or the login misses some.
"""

import base64
from collections.abc import Callable, Iterator
from datetime import date
from functools import lru_cache
from hashlib import sha256
from html import escape
from random import Random
from typing import Any, NamedTuple
from urllib.parse import urlencode

from crawler.examples.server import Listing, Request, Response, integer, not_found, redirect

HOST = "county.localhost"
USER, PASSWORD = "surveyor", "plat & deed"
"""No page shows the password, so a store that holds it has got it from the request."""
PER_PAGE = 25
SESSION_PAGES = 200
"""Pages of the members' area that one login is good for."""
WAYS = (
    "browse", "browse", "browse", "browse", "search",
    "search", "registry", "registry", "advanced", "members",
)  # fmt: skip
"""How parcel n can be found: the entry at n modulo ten."""
CODES = ("A-1", "R-1", "R-2", "C-3", "M-1")

_TOWNSHIPS = ("Alder", "Bittern", "Cedar Fork", "Dunmore", "Elk Prairie", "Fairwater")
_OWNERS = (
    "Whitfield, Nora", "O'Brien & Sons <Trust>", "Müller-Lüdke, Jörg", "Nguyễn Thị Ánh",
    'The "Old Mill" Company', "D’Angelo – Rosa", "Ivanova, Елена", "Smith Family, LLC",
    "Ŝtefan Žižka", "100% Farms; Inc.", "Peña, José María", "St. John's Church",
)  # fmt: skip
_STREETS = ("Orchard Lane", "Mill Road", "Quarry Street", "Depot Avenue", "County Road 12")
_MENU = "".join(
    f"<tr><td><a href='{path}'>{name}</a></td></tr>"
    for path, name in (
        ("/", "Home"), ("/browse", "Browse"), ("/search", "Search"), ("/advanced", "Advanced"),
        ("/registry", "Registry"), ("/members/", "Members"), ("/help", "Help"),
    )
)  # fmt: skip


class Sale(NamedTuple):
    """One sale of a parcel."""

    date: str
    price: int
    seller: str


class Parcel(NamedTuple):
    """What the portal knows about a parcel."""

    parcel: str
    owner: str
    address: str
    township: str
    zoning: str
    value: int
    acres: float
    built: int
    sales: list[Sale]


class County:
    """The portal with `size` parcels, the same for the same seed."""

    host = HOST

    def __init__(self, size: int = 500, seed: int = 1, session_pages: int = SESSION_PAGES) -> None:
        self.size, self.seed, self._session_pages = size, seed, session_pages
        self._sessions: dict[str, int] = {}
        self._visits = 0
        self.logins = 0
        self._detail = lru_cache(maxsize=10_000)(self._rendered_detail)

    # Its truth.

    def parcel(self, n: int) -> Parcel:
        """Return parcel n."""
        chance = Random(self.seed * 1_000_003 + n)
        township = _TOWNSHIPS[n % len(_TOWNSHIPS)]
        value = chance.randint(600, 9000) * 100
        built = chance.randint(1904, 2015)
        sales = [
            Sale(
                date(year, chance.randint(1, 12), chance.randint(1, 28)).isoformat(),
                int(value * 0.97 ** (2025 - year)),
                chance.choice(_OWNERS),
            )
            for year in sorted(chance.sample(range(built, 2025), n % 4), reverse=True)
        ]
        return Parcel(
            parcel=self.parcel_id(n),
            owner=chance.choice(_OWNERS),
            address=f"{chance.randint(10, 4900)} {chance.choice(_STREETS)}, {township} Township",
            township=township,
            zoning=CODES[n % len(CODES)],
            value=value,
            acres=chance.randint(12, 900) / 100,
            built=built,
            sales=sales,
        )

    def parcel_id(self, n: int) -> str:
        """Return the number of parcel n, as people write it."""
        return f"{1 + n % len(_TOWNSHIPS):02d}-{n:06d}-{n * 7 % 10}"

    def number(self, parcel_id: str) -> int | None:
        """Return n of a parcel's number, or None if there is no such parcel."""
        middle = parcel_id.strip()[3:9]
        if middle.isdigit() and int(middle) < self.size:
            n = int(middle)
            return n if self.parcel_id(n) == parcel_id.strip() else None
        return None

    def path(self, n: int) -> str:
        """Return the path of parcel n."""
        area = "/members" if WAYS[n % 10] == "members" else ""
        return f"{area}/parcel/{self.parcel_id(n)}"

    def record(self, n: int) -> dict[str, Any]:
        """Return what the detail page of parcel n says."""
        it = self.parcel(n)
        return it._asdict() | {"sales": [sale._asdict() for sale in it.sales]}

    def listings(self, base: str) -> Iterator[Listing]:
        """Yield every parcel; `base` is the portal's address."""
        for n in range(self.size):
            yield Listing(base + self.path(n), WAYS[n % 10], self.record(n))

    def rows(self) -> list[dict[str, str]]:
        """Return the rows to search for: parcels that only the search form finds."""
        return [{"parcel_id": self.parcel_id(n)} for n in self._found_by("search")]

    def _found_by(self, way: str) -> list[int]:
        return [n for n in range(self.size) if WAYS[n % 10] == way]

    # Its answers.

    def answer(self, request: Request) -> Response:
        """Answer one request."""
        path = request.path
        if path.startswith("/members/"):
            return self._members(request)
        if path.startswith("/parcel/"):
            n = self.number(path.removeprefix("/parcel/"))
            if n is None or WAYS[n % 10] == "members":
                return not_found()
            return Response(self._detail(n))
        if path.startswith("/township/"):
            return self._township(request)
        pages: dict[str, Callable[[Request], Response]] = {
            "/search": lambda asked: self._with_form(asked, _SEARCH_FORM, "Search"),
            "/advanced": self._advanced,
            "/results": self._results,
            "/registry": self._registry,
            "/login": self._login,
        }
        if path in pages:
            return pages[path](request)
        return _FIXED.get(path) or not_found()

    def _township(self, request: Request) -> Response:
        name = request.path.removeprefix("/township/").replace("-", " ").title()
        if name not in _TOWNSHIPS:
            return not_found()
        place = _TOWNSHIPS.index(name)
        numbers = [n for n in self._found_by("browse") if n % len(_TOWNSHIPS) == place]
        return self._list(f"Township of {name}", numbers, request, {})

    def _list(
        self, title: str, numbers: list[int], request: Request, query: dict[str, str]
    ) -> Response:
        """One page of a list, with links to the next and the previous one."""
        page = max(1, integer(request.query.get("page", "1")))
        shown = numbers[(page - 1) * PER_PAGE : page * PER_PAGE]
        if not shown:
            return _page(title, "<p class='no-results'>No parcels were found.</p>")
        pager = ""
        for number, name in ((page - 1, "prev"), (page + 1, "next")):
            if 1 <= number <= -(-len(numbers) // PER_PAGE):
                link = escape(f"{request.path}?{urlencode(query | {'page': number})}")
                pager += f"<a class='{name}' href='{link}'>{name}</a> "
        return _page(title, self._table(shown) + f"<p class='pager'>{pager}</p>")

    def _table(self, numbers: list[int]) -> str:
        rows = "".join(
            f"<tr><td><a class='parcel' href='{self.path(n)}'>{it.parcel}</a></td>"
            f"<td>{escape(it.owner)}</td><td>{escape(it.address)}</td>"
            f"<td><a rel='nofollow' href='/print{self.path(n)}'>print</a></td></tr>"
            for n, it in ((n, self.parcel(n)) for n in numbers)
        )
        head = "<tr><th>Parcel</th><th>Owner</th><th>Address</th><th></th></tr>"
        return f"<table class='results'>{head}{rows}</table>"

    # Forms.

    def _token(self, visit: str) -> str:
        return sha256(f"{self.seed} {visit}".encode()).hexdigest()[:24]

    def _with_form(self, request: Request, form: str, title: str) -> Response:
        """A page with a form whose token is good only together with this visitor's cookie."""
        visit = request.cookies.get("visit", "")
        cookies: tuple[tuple[str, str], ...] = ()
        if not visit:
            self._visits += 1
            visit = sha256(f"visit {self.seed} {self._visits}".encode()).hexdigest()[:16]
            cookies = (("Set-Cookie", f"visit={visit}; Path=/; HttpOnly"),)
        content = form.replace("{csrf}", self._token(visit)).replace("{state}", _signed("search"))
        return _page(title, content)._replace(headers=cookies)

    def _is_genuine(self, request: Request, given: dict[str, str]) -> bool:
        visit = request.cookies.get("visit", "")
        return bool(visit) and given.get("csrf") == self._token(visit)

    def _results(self, request: Request) -> Response:
        """The search form's answer, by GET; further pages need no token."""
        query = request.query
        if "page" not in query and "ticket" not in query and not self._is_genuine(request, query):
            return _page("Not verified", "<p class='error'>The request has no valid token.", 403)
        if parcel := query.get("parcel", "").strip():
            n = self.number(parcel)
            found = [n] if n is not None and WAYS[n % 10] == "search" else []
            return self._list("Search results", found, request, {"parcel": parcel})
        zoning, owner = query.get("zoning", ""), query.get("owner", "").lower()
        found = [
            n
            for n in self._found_by("advanced" if "ticket" in query else "search")
            if zoning in ("", "all", CODES[n % len(CODES)])
            and (not owner or owner in self.parcel(n).owner.lower())
        ]
        kept = {key: query[key] for key in query if key in ("zoning", "owner", "ticket")}
        return self._list("Search results", found, request, kept)

    def _advanced(self, request: Request) -> Response:
        """The other search form: POST, with hidden state, answered by a redirect to a list."""
        if request.method != "POST":
            return self._with_form(request, _ADVANCED_FORM, "Advanced search")
        form = request.form
        if _unsigned(form.get("__VIEWSTATE", "")) != "search" or form.get("go") != "Search":
            return _page("Error", "<p class='error'>The state information is invalid.", 500)
        if not self._is_genuine(request, form):
            return _page("Not verified", "<p class='error'>The request has no valid token.", 403)
        kept = {key: form[key] for key in ("zoning", "owner") if form.get(key)}
        return redirect(f"/results?{urlencode(kept | {'ticket': 'advanced'})}", 303)

    def _registry(self, request: Request) -> Response:
        """A list whose pages are turned by a script that submits the page's form."""
        page = 1
        if request.method == "POST":
            shown = _unsigned(request.form.get("__VIEWSTATE", ""))
            target, argument = (request.form.get(f"__EVENT{it}") for it in ("TARGET", "ARGUMENT"))
            page = integer((argument or "").removeprefix("Page$"))
            is_near = shown.isdigit() and abs(int(shown) - page) <= 10
            if not is_near or target != "ctl00$grid":
                return _page("Error", "<p class='error'>The state information is invalid.", 500)
        numbers = self._found_by("registry")
        rows = numbers[(page - 1) * PER_PAGE : page * PER_PAGE]
        pager = ""
        if page * PER_PAGE < len(numbers):
            action = escape(f"javascript:__doPostBack('ctl00$grid','Page${page + 1}')")
            pager = f'<a class="next-page" href="{action}">Next</a>'
        hidden = {"__EVENTTARGET": "", "__EVENTARGUMENT": "", "__VIEWSTATE": _signed(str(page))}
        inputs = "".join(
            f"<input type='hidden' name='{name}' value='{value}'>" for name, value in hidden.items()
        )
        return _page(
            "Registry",
            f"<form id='aspnetForm' method='post' action='/registry'>{inputs}{self._table(rows)}"
            f"<p>{pager}</p></form>",
        )

    # The members' area.

    def _login(self, request: Request) -> Response:
        if request.method != "POST":
            return self._with_form(request, _LOGIN_FORM, "Sign in")
        form = request.form
        if not self._is_genuine(request, form):
            return _page("Not verified", "<p class='error'>The request has no valid token.", 403)
        if (form.get("user"), form.get("password")) != (USER, PASSWORD):
            return self._with_form(request, _LOGIN_FORM, "Sign in: wrong name or password")
        self.logins += 1
        session = sha256(f"session {self.seed} {self.logins}".encode()).hexdigest()
        self._sessions[session] = self._session_pages
        return redirect("/members/", 303, f"session={session}; Path=/; HttpOnly")

    def _members(self, request: Request) -> Response:
        session = request.cookies.get("session", "")
        if self._sessions.get(session, 0) <= 0:
            self._sessions.pop(session, None)
            return self._with_form(request, _LOGIN_FORM, "Sign in")
        self._sessions[session] -= 1
        if request.path == "/members/":
            return self._list("Members", self._found_by("members"), request, {})
        n = self.number(request.path.removeprefix("/members/parcel/"))
        if n is None or WAYS[n % 10] != "members":
            return not_found()
        return Response(self._detail(n))

    # A detail page: tables inside tables, as such portals are.

    def _rendered_detail(self, n: int) -> bytes:
        it = self.parcel(n)
        land = it.value // 3
        owner = escape(it.owner).replace(" ", "\n  ", 1)  # white space is not part of a name
        money = (
            "<table class='inner'><tr><td>Land</td><td>Improvements</td><td>Total</td></tr>"
            f"<tr><td>${land:,}</td><td>${it.value - land:,}</td>"
            f"<td class='total'>${it.value:,}</td></tr></table>"
        )
        sales = "".join(
            f"<tr><td>{_american(sale.date)}</td><td>${sale.price:,}.00</td>"
            f"<td>{escape(sale.seller)}</td></tr>"
            for sale in it.sales
        )
        content = f"""<table class="facts" cellspacing="0">
<tr><td class="label">Parcel:</td><td class="value">{it.parcel}</td>
<td class="label">Township:</td><td class="value">{it.township}</td></tr>
<tr><td class="label">Owner:</td><td class="value" colspan="3">{owner}</td></tr>
<tr><td class="label">Situs address:</td><td class="value" colspan="3">{it.address}</td></tr>
<tr><td class="label">Zoning:</td><td class="value">{it.zoning}</td>
<td class="label">Acreage:</td><td class="value">{it.acres:.2f} ac</td></tr>
<tr><td class="label">Year built:</td><td class="value">{it.built}</td>
<td class="label">Assessed:</td><td class="value">{money}</td></tr>
</table>
<h2>Sale history</h2>
<table class="sales"><thead><tr><th>Date</th><th>Price</th><th>Seller</th></tr></thead>
<tbody>{sales or "<tr><td colspan='3'>No sales are recorded.</td></tr>"}</tbody></table>
<p class="description">{_description(it)}</p>"""
        return _page(f"Parcel {it.parcel}", content).body


_SEARCH_FORM = """<form id="search" action="/results" method="get">
<input type="hidden" name="csrf" value="{csrf}">
<label>Parcel number <input name="parcel"></label> <label>Owner <input name="owner"></label>
<select name="kind"><option value="all" selected>All</option><option>sold</option></select>
<input type="submit" name="go" value="Search"> <input type="submit" name="clear" value="Clear">
</form>"""
_ADVANCED_FORM = """<form id="site-search" action="/results"><input name="q"></form>
<form id="advanced" action="/advanced" method="post">
<input type="hidden" name="csrf" value="{csrf}">
<input type="hidden" name="__VIEWSTATE" value="{state}">
<label>Owner <input name="owner"></label>
<select name="zoning"><option value="">-</option><option value="all">All</option>"""
_ADVANCED_FORM += "".join(f"<option>{code}</option>" for code in CODES)
_ADVANCED_FORM += """</select><button name="go" value="Search">Search</button></form>"""
_LOGIN_FORM = """<form id="login" action="/login" method="post">
<input type="hidden" name="csrf" value="{csrf}">
<p>Sign in to see the parcels of the members' area.</p>
<label>User <input name="user"></label>
<label>Password <input name="password" type="password"></label>
<button>Sign in</button></form>"""


def _page(title: str, content: str, status: int = 200) -> Response:
    return Response(
        f"""<!doctype html>
<html lang="en"><head><title>{escape(title)} | Marsh County</title></head><body>
<table class="layout" width="100%"><tr><td class="menu"><table>{_MENU}</table></td>
<td class="content"><h1>{escape(title)}</h1>
{content}
</td></tr><tr><td colspan="2" class="foot">Marsh County Assessor</td></tr></table></body></html>
""".encode(),
        status,
    )


def _description(it: Parcel) -> str:
    return (
        f"This parcel of {it.acres} acres lies in {it.township} Township and is zoned {it.zoning}. "
        f"The dwelling on it was built in {it.built}. The assessment rests on the sales of "
        "comparable parcels, on the state of the buildings at the last inspection, and on the "
        "use that the owner has declared."
    )


def _township_links() -> str:
    return "".join(
        f"<li><a href='/township/{name.lower().replace(' ', '-')}'>{name}</a></li>"
        for name in _TOWNSHIPS
    )


def _american(day: str) -> str:
    return f"{date.fromisoformat(day):%m/%d/%Y}"


def _signed(text: str) -> str:
    """Hidden state in the manner of ASP.NET: it must come back as it was."""
    mark = sha256(f"state {text}".encode()).hexdigest()[:8]
    return base64.b64encode(f"{text}|{mark}".encode()).decode()


def _unsigned(state: str) -> str:
    try:
        text, _, _ = base64.b64decode(state, validate=True).decode().rpartition("|")
    except ValueError:
        return ""
    return text if _signed(text) == state else ""


_FIXED = {
    "/": _page("Assessor of Marsh County", "<p>Parcels, owners and sales.</p>"),
    "/browse": _page("Townships", f"<ul class='townships'>{_township_links()}</ul>"),
    "/help": _page("Help", "<p>Ask at the courthouse. <a href='mailto:a@b.test'>Mail</a></p>"),
    "/robots.txt": Response(b"User-agent: *\nDisallow: /print/\n", kind="text/plain"),
}
