"""A real-estate portal in Bulgarian: windows-1251, prices in two currencies, three ways to page.

Each listing can be reached in one way only (`WAYS`), but all are in the sitemaps, and some are
linked again from other lists: with tracking parameters, with a session's, or by their old path.
A listing can be changed, go and come back (`Imoti.change`).
"""

import gzip
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from html import escape
from random import Random
from typing import Any, NamedTuple

from crawler.examples import pictures
from crawler.examples.server import Listing, Request, Response, integer, not_found, redirect

HOST = "imoti.localhost"
PER_PAGE, PER_SITEMAP = 20, 1000
WAYS = (
    "sale", "sale", "sale", "sale", "rent", "rent", "rent", "new", "api", "sitemap",
)  # fmt: skip
"""Where listing n is linked: the entry at n modulo ten."""
SALES, RENTALS, LUXURY = "/prodazhbi", "/naemi", "/luks"
KINDS = ("двустаен апартамент", "тристаен апартамент", "къща", "парцел", "офис")
PLOT = 3
"""The place of plots in KINDS: they have no floor, and their area is in decares."""

_PAGE = "text/html; charset=windows-1251"
_CITIES = ("София", "Пловдив", "Варна", "Бургас", "Русе", "Самоков")
_QUARTERS = ("Лозенец", "Център", "Младост 1", "Овча купел", "Гео Милев", "Изток")
_FEATURES = (
    "с изглед към планината", "до метростанция", "след основен ремонт",
    "с двор и гараж", "в тиха улица", "с южно изложение",
)  # fmt: skip
_START = datetime(2026, 1, 5, 8, tzinfo=UTC)


class Offer(NamedTuple):
    """What the portal knows about a listing."""

    kind: str
    city: str
    quarter: str
    amount: int | None
    currency: str
    area: int
    """Square metres."""
    floor: int | None
    floors: int | None
    photos: int
    published: str
    feature: str


class Imoti:
    """The portal with `size` listings, the same for the same seed."""

    host = HOST

    def __init__(
        self,
        size: int = 500,
        seed: int = 1,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.size, self.seed, self._clock = size, seed, clock
        self.edits: dict[int, int] = {}
        """How often a listing was changed since the start (`/_edit?id=…`)."""
        self._edited_at: dict[int, datetime] = {}
        self.gone: set[int] = set()
        """Listings that are gone (`/_gone?id=…`) and not back (`/_back?id=…`)."""
        self._detail = lru_cache(maxsize=10_000)(self._rendered_detail)

    # Its truth.

    def offer(self, n: int) -> Offer:
        """Return listing n."""
        chance = Random(self.seed * 1_000_033 + n)
        kind = n // 10 % len(KINDS)
        highest = chance.randint(2, 12)
        amount: int | None = chance.randint(30, 400) * 1000 + self.edits.get(n, 0)
        if WAYS[n % 10] == "rent":
            amount = chance.randint(20, 300) * 10 + self.edits.get(n, 0)
        if n % 50 == 21:
            amount = None
        city, quarter = chance.choice(_CITIES), chance.choice(_QUARTERS)
        floor: int | None = None
        floors: int | None = None
        if kind == PLOT:
            area = chance.randint(5, 90) * 100
        else:
            area, floor, floors = chance.randint(35, 240), chance.randint(0, highest), highest
        return Offer(
            kind=KINDS[kind],
            city=city,
            quarter=quarter,
            amount=amount,
            currency=("EUR", "BGN", "EUR")[n % 3],
            area=area,
            floor=floor,
            floors=floors,
            photos=n % 4,
            published=f"{_START - timedelta(days=n % 300):%Y-%m-%d}",
            feature=chance.choice(_FEATURES),
        )

    def path(self, n: int) -> str:
        """Return the path of listing n."""
        return f"/obiava/{100_000 + n}-{('apartament', 'kashta', 'parcel')[n // 10 % 3]}"

    def number(self, text: str) -> int | None:
        """Return n of a listing's id, or None if there is no such listing."""
        digits = text.partition("-")[0]
        if digits.isascii() and digits.isdigit() and 0 <= int(digits) - 100_000 < self.size:
            return int(digits) - 100_000
        return None

    def record(self, n: int, base: str) -> dict[str, Any]:
        """Return what the detail page of listing n says."""
        it = self.offer(n)
        price = {"amount": it.amount, "currency": it.currency} if it.amount is not None else None
        floor = {"floor": it.floor, "floors": it.floors} if it.floors is not None else None
        return {
            "id": str(100_000 + n),
            "title": _title(it),
            "price": price,
            "area": it.area,
            "floor": floor,
            "city": it.city,
            "quarter": it.quarter,
            "photos": [f"{base}/photos/{100_000 + n}-{k}.jpg" for k in range(it.photos)],
            "published": it.published,
        }

    def listings(self, base: str) -> Iterator[Listing]:
        """Yield every listing; `base` is the portal's address."""
        for n in range(self.size):
            if n not in self.gone:
                yield Listing(base + self.path(n), WAYS[n % 10], self.record(n, base))

    def change(self, how: str, n: int) -> None:
        """Change listing n: `edit` its price, let it be `gone`, or `back`."""
        if how == "edit":
            self.edits[n] = self.edits.get(n, 0) + 1
            self._edited_at[n] = self._clock()
            self._detail.cache_clear()
        elif how == "gone":
            self.gone.add(n)
        else:
            self.gone.discard(n)

    def _linked(self, way: str) -> list[int]:
        return [n for n in range(self.size) if WAYS[n % 10] == way and n not in self.gone]

    def _modified(self, n: int) -> datetime:
        return self._edited_at.get(n, _START + timedelta(hours=n % 1000))

    # Its answers.

    def answer(self, request: Request) -> Response:
        """Answer one request."""
        path = request.path
        if path.startswith("/obiava/"):
            return self._listing(request)
        if path.startswith("/photos/"):
            return self._photo(request)
        if path == SALES or path.startswith(f"{SALES}/p-"):
            numbers = self._linked("sale")
            page = integer(path.removeprefix(SALES).removeprefix("/p-") or "1")
            links = [self.path(n) for n in numbers]
            return self._list("Продажби", links, page, f"{SALES}/p-")
        match path:
            case "/":
                return _page("Имоти", "<p>Обяви за имоти в цялата страна.</p>")
            case "/naemi":
                links = [self._rental_link(n) for n in self._linked("rent")]
                page = integer(request.query.get("page", "1"))
                return self._list("Наеми", links, page, f"{RENTALS}?page=")
            case "/luks":
                shown = (n for n in range(0, self.size, 7) if n not in self.gone)
                links = [self._other_link(n) for n in shown]
                page = integer(request.query.get("page", "1"))
                return self._list("Лукс", links, page, f"{LUXURY}?page=")
            case "/novi" | "/api/novi":
                return self._newest(request)
            case "/oferta.php":
                n = self.number(request.query.get("id", ""))
                return not_found() if n is None else redirect(self.path(n), 301)
            case "/robots.txt":
                text = f"User-agent: *\nDisallow: /admin/\nSitemap: {request.base}/sitemap.xml\n"
                return Response(text.encode(), kind="text/plain")
            case "/_edit" | "/_gone" | "/_back":
                n = self.number(request.query.get("id", ""))
                if n is not None:
                    self.change(path.removeprefix("/_"), n)
                return Response(b"", 204)
        if path == "/sitemap.xml" or path.startswith("/sitemaps/"):
            return self._sitemap(request)
        return not_found()

    def _rental_link(self, n: int) -> str:
        """A link as lists have them: some with tracking parameters, some by the old path."""
        if n % 6 == 0:
            return f"{self.path(n)}?utm_source=lista&utm_medium=web"
        if n % 11 == 0:
            return f"/oferta.php?id={100_000 + n}"
        return self.path(n)

    def _other_link(self, n: int) -> str:
        """A link to a listing that another list has, too."""
        if n % 3 == 0:
            mark = sha256(f"{self.seed} {n}".encode()).hexdigest()[:26]
            return f"{self.path(n)}?PHPSESSID={mark}"
        return f"{self.path(n)}?fbclid=IwAR{n}#snimki"

    def _list(self, title: str, links: list[str], page: int, pages: str) -> Response:
        shown = links[(page - 1) * PER_PAGE : page * PER_PAGE] if page else []
        if not shown:
            return _page(title, "<p class='no-results'>Няма намерени обяви.</p>")
        last = -(-len(links) // PER_PAGE)
        around = [k for k in range(page - 2, page + 3) if 1 <= k <= last]
        pager = " ".join(f"<a href='{pages}{k}'>{k}</a>" for k in around)
        return _page(title, f"{_cards(shown)}<div class='pager'>{pager}</div>")

    def _newest(self, request: Request) -> Response:
        """Listings behind a cursor: as a page, and as JSON."""
        is_json = request.path.startswith("/api/")
        numbers = self._linked("api" if is_json else "new")
        start = integer(request.query.get("after", "c0").removeprefix("c"))
        shown = numbers[start : start + PER_PAGE]
        following = f"c{start + PER_PAGE}" if start + PER_PAGE < len(numbers) else None
        if is_json:
            items = [{"id": 100_000 + n, "url": request.base + self.path(n)} for n in shown]
            answer = {"items": items, "meta": {"next": following, "total": len(numbers)}}
            return Response(json.dumps(answer).encode(), kind="application/json")
        more = f"<div id='more' data-cursor='{following}'>Още</div>" if following else ""
        return _page("Нови обяви", _cards([self.path(n) for n in shown]) + more)

    def _listing(self, request: Request) -> Response:
        n = self.number(request.path.removeprefix("/obiava/"))
        if n is None:
            return not_found()
        if n in self.gone:
            return not_found()._replace(status=410)
        if request.path != self.path(n):
            return redirect(self.path(n), 301)
        body = self._detail(n, request.base)
        tag = f'"{n}-{self.edits.get(n, 0)}"'
        modified = f"{self._modified(n):%a, %d %b %Y %H:%M:%S GMT}"
        headers = (("ETag", tag), ("Last-Modified", modified), ("Cache-Control", "no-cache"))
        if request.headers.get("if-none-match") == tag:
            return Response(b"", 304, headers=headers)
        kind = _PAGE if n % 2 else "text/html"  # the others say it in a meta tag only
        return Response(body, kind=kind, headers=headers)

    def _photo(self, request: Request) -> Response:
        """A photo of a listing; every fifth listing has the photos of the one before it."""
        name = request.path.removeprefix("/photos/").removesuffix(".jpg")
        n, k = self.number(name), integer(name.partition("-")[2])
        if n is None or k >= self.offer(n).photos:
            return not_found()
        chance = Random(self.seed * 1_000_033 + (n - 1 if n % 5 == 3 else n) * 10 + k)
        rows = [[chance.randint(0, 255) for _ in range(12)] for _ in range(8)]
        body = pictures.jpeg(rows)
        tag = f'"{sha256(body).hexdigest()[:16]}"'
        if request.headers.get("if-none-match") == tag:
            return Response(b"", 304, headers=(("ETag", tag),))
        return Response(body, kind="image/jpeg", headers=(("ETag", tag),))

    def _sitemap(self, request: Request) -> Response:
        base = request.base
        parts = range(-(-self.size // PER_SITEMAP))
        if request.path == "/sitemap.xml":
            names = ["pages.xml", *(f"obiavi-{part}.xml.gz" for part in parts)]
            text = "".join(
                f"<sitemap><loc>{base}/sitemaps/{name}</loc></sitemap>" for name in names
            )
            return _xml("sitemapindex", text)
        name = request.path.removeprefix("/sitemaps/")
        if name == "pages.xml":
            lists = (SALES, RENTALS, LUXURY, "/novi")
            return _xml("urlset", "".join(f"<url><loc>{base}{it}</loc></url>" for it in lists))
        part = integer(name.removeprefix("obiavi-").removesuffix(".xml.gz"))
        numbers = range(part * PER_SITEMAP, min(self.size, (part + 1) * PER_SITEMAP))
        text = "".join(
            f"<url><loc>{base}{self.path(n)}</loc>"
            f"<lastmod>{self._modified(n):%Y-%m-%dT%H:%M:%SZ}</lastmod></url>"
            for n in numbers
            if n not in self.gone
        )
        packed = gzip.compress(_xml("urlset", text).body, 1, mtime=0)
        return Response(packed, kind="application/gzip") if numbers else not_found()

    def _rendered_detail(self, n: int, base: str) -> bytes:
        it = self.offer(n)
        described = {
            "@context": "https://schema.org",
            "@type": "Product",
            "sku": str(100_000 + n),
            "name": _title(it),
            "releaseDate": it.published,
            "address": {"@type": "PostalAddress", "addressLocality": it.city},
        }
        photos = "".join(
            f"<img src='/static/wait.gif' data-src='/photos/{100_000 + n}-{k}.jpg' alt=''>"
            for k in range(it.photos)
        )
        facts = [("Град", it.city), ("Квартал", it.quarter), ("Площ", _area(it))]
        if it.floor is not None and it.floors is not None:
            facts.append(("Етаж", _floor(it.floor, it.floors)))
        rows = "".join(f"<li><span>{name}:</span> <b>{value}</b></li>" for name, value in facts)
        content = f"""<script type="application/ld+json">{json.dumps(described)}</script>
<p class="price">{_price(it, WAYS[n % 10] == "rent")}</p>
<ul class="params">{rows}</ul>
<div class="gallery">{photos}</div>
<p class="description">Предлагаме {it.kind} {it.feature}, {it.city}, квартал {it.quarter}. Имотът е
готов за оглед след уговорка с нашия консултант. Документите са проверени от юрист, а цената
подлежи на договаряне при бърза сделка.</p>
<p class="published">Публикувана на {_date(it.published)} г.</p>
<p><a href="{SALES}" class="back">Към всички обяви</a>
<a href="/obiava/{100_000 + n}-{"apartament"}?sort=price" rel="nofollow">Сортирай</a></p>"""
        head = f"<link rel='canonical' href='{base}{self.path(n)}'>"
        return _page(_title(it), content, head).body


def _title(it: Offer) -> str:
    return f"{it.kind.capitalize()}, {it.city}, {it.quarter}"


def _price(it: Offer, is_monthly: bool) -> str:
    if it.amount is None:
        return "Цена при запитване"
    amount = f"{it.amount:,}".replace(",", " ")
    period = "/месец" if is_monthly else ""
    if it.currency == "BGN":
        return f"{amount} лв.{period}"
    return f"{amount} EUR{period}" if is_monthly else f"€ {amount}"


def _area(it: Offer) -> str:
    if it.kind == KINDS[PLOT]:
        return f"{it.area / 1000:g} дка".replace(".", ",")
    return f"{it.area} кв.м"


def _floor(floor: int, floors: int) -> str:
    if floor == 0:
        return f"партер от {floors}"
    ending = {1: "ви", 2: "ри", 7: "ми", 8: "ми"}.get(floor, "ти")
    return f"{floor}-{ending} от {floors}"


def _date(day: str) -> str:
    year, month, date = day.split("-")
    return f"{date}.{month}.{year}"


def _cards(links: list[str]) -> str:
    return "".join(
        f"<div class='card'><a class='title' href='{escape(link)}'>Обява</a></div>"
        for link in links
    )


def _page(title: str, content: str, head: str = "") -> Response:
    text = f"""<!doctype html>
<html lang="bg"><head><meta charset="windows-1251"><title>{title} - Имоти</title>{head}</head><body>
<nav><a href="{SALES}">Продажби</a> <a href="{RENTALS}">Наеми</a> <a href="{LUXURY}">Лукс</a>
<a href="/novi">Нови</a> <a href="tel:+35925550100">Обади се</a></nav>
<main><h1>{title}</h1>
{content}
</main><footer>Имоти ООД</footer></body></html>
"""
    return Response(text.encode("cp1251", "xmlcharrefreplace"), kind=_PAGE)


def _xml(name: str, entries: str) -> Response:
    space = "http://www.sitemaps.org/schemas/sitemap/0.9"
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{name} xmlns="{space}">{entries}</{name}>\n'
    return Response(text.encode(), kind="application/xml")
