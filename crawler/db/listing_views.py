"""Reads listings: lists of them, one with its whole history, and what changed.

Also stores what a person notes at a visit. The other tables of listings are written with the commit
of their pages.
"""

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from crawler import urls
from crawler.config import program
from crawler.db.connection import reading, writing
from crawler.db.listing_pairs import ONE_PAGE
from crawler.db.results import iso
from crawler.db.store import LISTED, Connections, Part, as_json
from crawler.errors import StoreError, UrlError, UsageError
from crawler.models import Job

STATES = ("active", "gone", "sold")
"""A listing that is sold stays so when its page goes."""
KINDS = ("new", "changed", "gone", "back", "sold", "corrected")
"""What can happen to a listing."""
CHANGES = KINDS[:-1]
"""What happens on a site: the correction of a record is no change of the thing."""
MAX_ROWS_PER_READ = 200
"""A reader that holds one moment of the database for long lets its log grow."""
MAX_URLS = 50
"""Other URLs of a listing that are shown."""
MAX_AMBIGUOUS = 5
"""Listings that a message names if a URL has several."""
MAX_VISITS_NAMED = 20
"""Visits whose numbers a message names, the last ones."""
_STATE = """iif(sold_at IS NOT NULL, 'sold', iif(gone_at IS NOT NULL, 'gone', 'active'))"""
"""The state of a listing; the index listings_by_state has it."""
_LISTING = f"""
    SELECT l.id, l.site, l.key, l.url, {_STATE}, l.price, l.currency, l.first_seen, l.last_seen,
        l.fetched_at, l.changed_at, l.gone_at, l.sold_at, l.unchanged, l.missed, l.record,
        (SELECT task_id FROM tasks WHERE tasks.id = l.task),
        (SELECT name FROM jobs WHERE jobs.id = l.job_id)
    FROM listings l"""
_CHANGE = f"""
    SELECT c.id, c.at, c.kind, c.listing, l.site, l.key, l.url, l.record, l.price, l.currency,
        {_STATE}, c.fields, (SELECT task_id FROM tasks WHERE tasks.id = c.task),
        p.price, p.currency, p.previous_price, p.previous_currency
    FROM listing_changes c JOIN listings l ON l.id = c.listing
        LEFT JOIN price_history p ON c.kind = 'changed' AND p.listing = c.listing
            AND p.task = c.task AND p.at = c.at"""
DEFAULT_SITE = "default"
"""The site of results that no site's file describes."""
_HOW_TO_GET_SOME = (
    "the key `listings:` in its file makes some from the next crawl on, and `replay --apply` of "
    "earlier results"
)
_FIRST = 1 << 62
"""Above every number of a row."""
_NEVER = 1e18
"""After every time."""


class ListingFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which listings are wanted; None is no limit."""

    site: str | None = None
    state: str | None = None
    since: float | None = None
    """First seen since then."""
    changed_since: float | None = None
    min_price: float | None = None
    max_price: float | None = None


class ChangeFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which changes are wanted; None and an empty tuple are no limit."""

    site: str | None = None
    kinds: tuple[str, ...] = ()
    since: float | None = None


class Listing(msgspec.Struct, frozen=True):
    """A listing as it is known now."""

    id: int
    site: str
    key: str
    url: str
    state: str
    price: float | None
    currency: str | None
    first_seen: float
    last_seen: float
    fetched_at: float
    changed_at: float | None
    gone_at: float | None
    sold_at: float | None
    unchanged: int
    missed: int
    data: dict[str, Any]
    task_id: str | None
    """None if its task was pruned; so is `job`."""
    job: str | None

    @property
    def name(self) -> str:
        """What commands find it by."""
        return f"{self.site}:{self.key}"

    @property
    def title(self) -> str | None:
        """What its record calls it."""
        return _Titled(self.data.get("title"), self.data.get("name")).text


class PriceChange(msgspec.Struct, frozen=True):
    """A price that replaced another."""

    at: float
    price: float
    currency: str | None
    previous_price: float
    previous_currency: str | None

    @property
    def percent(self) -> float | None:
        """How much more the new price is; None if the two cannot be compared."""
        if not self.previous_price or self.currency != self.previous_currency:
            return None
        return (self.price / self.previous_price - 1) * 100


class Change(msgspec.Struct, frozen=True):
    """Something that happened to a listing."""

    id: int
    at: float
    kind: str
    listing: int
    site: str
    key: str
    url: str
    title: str | None
    last_price: float | None
    """The price that the listing has now."""
    currency: str | None
    state: str
    """Its state now."""
    fields: dict[str, tuple[Any, Any]]
    """The old and the new value of each field that changed."""
    task_id: str | None
    price: PriceChange | None

    @property
    def name(self) -> str:
        """What commands find the listing by."""
        return f"{self.site}:{self.key}"


class Conflicts(msgspec.Struct, frozen=True):
    """Keys of a site's listings that several pages of one crawl have, with different records."""

    site: str
    keys: int
    key: str
    """One of them; so are `urls`, of which the first is the page that counts."""
    urls: tuple[str, str]


class Viewing(msgspec.Struct, frozen=True):
    """What a person noted at a visit."""

    id: int
    at: float
    note: str


class Discrepancy(msgspec.Struct, frozen=True):
    """What two listings of one thing say differently."""

    field: str
    here: Any
    there: Any


class Pair(msgspec.Struct, frozen=True):
    """Another listing that may be the same thing."""

    listing: int
    site: str
    key: str
    url: str
    confidence: float
    reasons: dict[str, float]
    """What was compared; a negative number speaks against it."""
    discrepancies: list[Discrepancy]
    decision: str | None
    """same, different: what a person said."""


class ListingHistory(msgspec.Struct, frozen=True):
    """A listing, and all that is known of it."""

    listing: Listing
    changes: list[Change]
    """The oldest first; so are `prices` and `viewings`."""
    prices: list[PriceChange]
    viewings: list[Viewing]
    urls: list[str]
    """Other URLs that it was seen under, as far as their tasks are still there."""
    page_url: str | None
    """The URL of the page that it was seen on last; None if its task was pruned."""
    pairs: list[Pair]
    """The most similar first."""


class ListingViews(Part):
    """Reads listings, some at a time, and notes visits."""

    def __init__(self, store: Connections, rows_per_read: int = MAX_ROWS_PER_READ) -> None:
        super().__init__(store)
        self._rows_per_read = rows_per_read

    # Lists

    def sites(self) -> list[str]:
        """The sites that have listings."""
        return self._db.column(
            """WITH RECURSIVE found(site) AS (
                   SELECT min(site) FROM listings UNION ALL
                   SELECT (SELECT min(site) FROM listings WHERE site > found.site) FROM found
                   WHERE found.site IS NOT NULL)
               SELECT site FROM found WHERE site IS NOT NULL"""
        )

    def counts(self) -> dict[str, dict[str, int]]:
        """How many listings each site has in each state."""
        counts: dict[str, dict[str, int]] = {}
        sql = f"SELECT site, {_STATE}, count(*) FROM listings GROUP BY 1, 2"
        for site, state, count in self._db.all(sql):
            counts.setdefault(site, dict.fromkeys(STATES, 0))[state] = count
        return counts

    def missed(self) -> dict[str, int]:
        """How many listings of each site the last whole crawl missed without being believed."""
        return dict(
            self._db.all(
                """SELECT site, count(*) FROM listings WHERE missed > 0 AND gone_at IS NULL
                   GROUP BY 1"""
            )
        )

    def conflicts(self, job: Job | None = None) -> list[Conflicts]:
        """The sites with keys that several pages have: in a crawl, or in the last one of each
        listing that is still there."""
        condition, values = "c.job_id = l.job_id AND l.gone_at IS NULL", tuple[int, ...]()
        if job is not None:
            condition, values = "c.job_id = ?", (job.id,)
        found = []
        for site, keys, first in self._db.all(
            f"""SELECT l.site, count(DISTINCT l.id), min(l.id)
                FROM listing_conflicts c JOIN listings l ON l.id = c.listing
                WHERE {condition} GROUP BY 1""",
            values,
        ):
            [(key, url, other)] = self._db.all(
                f"""SELECT l.key, ifnull((SELECT url FROM tasks WHERE tasks.id = l.task), l.url),
                        c.url
                    FROM listing_conflicts c JOIN listings l ON l.id = c.listing
                    WHERE {condition} AND l.id = ? LIMIT 1""",
                (*values, first),
            )
            found.append(Conflicts(site, keys, key, (url, other)))
        return found

    def count(self, wanted: ListingFilter) -> int:
        """How many listings are wanted."""
        condition, values = _condition(wanted)
        if wanted.site is not None:
            condition, values = f"site = ? AND {condition}", (wanted.site, *values)
        if wanted.state is not None:
            condition, values = f"{_STATE} = ? AND {condition}", (wanted.state, *values)
        return int(self._db.value(f"SELECT count(*) FROM listings WHERE {condition}", values))

    def read(self, wanted: ListingFilter, limit: int | None = None) -> Iterator[Listing]:
        """The wanted listings, the newest first."""
        ids = islice(self.ids(wanted), limit)
        while some := list(islice(ids, self._rows_per_read)):
            yield from self.numbered(some)

    def numbered(self, ids: Sequence[int]) -> list[Listing]:
        """The listings with these numbers, the newest first."""
        sql = f"{_LISTING} WHERE l.id {LISTED} ORDER BY l.id DESC"
        return list(map(_listing, self._db.all(sql, (as_json(ids),))))

    def ids(self, wanted: ListingFilter) -> Iterator[int]:
        """The numbers of the wanted listings, the highest first.

        The index has the order within one site and state; several of them are merged.
        """
        if wanted.site is None and wanted.state is None:
            return self._ids_of("1", (), wanted)
        names = self.sites() if wanted.site is None else [wanted.site]
        states = STATES if wanted.state is None else (wanted.state,)
        condition = f"site = ? AND {_STATE} = ?"
        each = (self._ids_of(condition, (s, t), wanted) for s in names for t in states)
        return heapq.merge(*each, reverse=True)

    def _ids_of(
        self, condition: str, values: tuple[Any, ...], wanted: ListingFilter
    ) -> Iterator[int]:
        others, more = _condition(wanted)
        last = _FIRST
        while ids := self._db.column(
            f"""SELECT id FROM listings WHERE {condition} AND id < ? AND {others}
                ORDER BY id DESC LIMIT ?""",
            (*values, last, *more, self._rows_per_read),
        ):
            yield from ids
            last = ids[-1]

    # One listing

    def find(self, text: str) -> int:
        """The listing with a number, a URL, or the key of a site as SITE:KEY.

        Raises `UsageError` if there is none, or several with this URL.
        """
        if text.isascii() and text.isdigit() and len(text) < len(str(_FIRST)):
            return self._numbered(int(text))
        site, colon, key = text.partition(":")
        if "://" in text and site not in self.sites():  # a key may be a URL
            return self._with_url(text)
        if not colon:
            raise UsageError(f"{text[:200]!r} is no listing: write its number, URL or SITE:KEY")
        self.check_site(site)
        found = self._db.value(
            "SELECT id FROM listings WHERE site = ? AND key = ?", (site, key.strip())
        )
        if found is None:
            hint = f"{program()} listings list --site {site}"
            raise UsageError(f"{site} has no listing with the key {key[:200]!r}; {hint}")
        return int(found)

    def check_site(self, site: str) -> None:
        """Raise `UsageError` for a site without listings; it names the nearest that has some."""
        known = self.sites()
        if site in known:
            return
        import difflib

        near = difflib.get_close_matches(site.strip().lower(), known, n=1)
        hint = _HOW_TO_GET_SOME
        if known:
            hint = f"there are listings of: {', '.join(known)}"
        if near:
            hint = f"did you mean {near[0]}?"
        raise UsageError(f"there are no listings of the site {site[:60]!r}; {hint}")

    def _numbered(self, id_: int) -> int:
        if self._db.one("SELECT 1 FROM listings WHERE id = ?", (id_,)) is None:
            raise UsageError(f"there is no listing {id_}; {program()} listings list shows them")
        return id_

    def _with_url(self, text: str) -> int:
        shown = urls.without_credentials(text)[:200]
        try:
            key = urls.parse(text).key
        except UrlError as error:
            raise UsageError(f"{shown} is no URL ({error})") from None
        found = self._db.column("SELECT id FROM listings WHERE url_key = ?", (key,))
        if not found:
            sql = "SELECT listing FROM listing_urls WHERE url_key = ? ORDER BY listing"
            found = self._db.column(sql, (key,))
        if not found:
            raise UsageError(f"{shown} is no listing: {self._why_none(key, text)}")
        if len(found) > 1:
            some = self._db.all(
                f"SELECT site || ':' || key FROM listings WHERE id {LISTED} ORDER BY id LIMIT ?",
                (as_json(found), MAX_AMBIGUOUS),
            )
            names = ", ".join(name for (name,) in some)
            raise UsageError(f"{shown} has {len(found):,} listings; name one of them: {names}")
        return int(found[0])

    def _why_none(self, url_key: bytes, url: str) -> str:
        """Why the page of a URL is no listing, and what to do."""
        row = self._db.one(
            """SELECT t.status, r.site FROM tasks t LEFT JOIN results r ON r.task = t.id
               WHERE t.url_key = ? ORDER BY r.task IS NULL, t.id DESC""",
            (url_key,),
        )
        if row is None:
            return "no page of this URL was fetched"
        status, site = row
        if site is None:
            return f"its task has no result ({status}); {program()} why {url}"
        if site in ("", DEFAULT_SITE):
            return "its result is of no site; a site's file with the key `listings:` makes listings"
        if site in self.sites():
            return f"its record has no value for the key of {site}'s listings"
        return f"{site} has no listings; {_HOW_TO_GET_SOME}"

    def show(self, id_: int) -> ListingHistory:
        """One listing with all that is known of it, of one moment."""
        with reading(self._db):
            [row] = self._db.all(f"{_LISTING} WHERE l.id = ?", (id_,))
            return ListingHistory(
                listing=_listing(row),
                changes=self._changes_of(id_),
                prices=[each for _, each in self._prices("listing = ?", (id_,))],
                viewings=self._viewings(id_),
                urls=self._urls(id_),
                page_url=self._page_url(id_),
                pairs=self._pairs(id_),
            )

    def _changes_of(self, id_: int) -> list[Change]:
        rows = self._db.all(f"{_CHANGE} WHERE c.listing = ? ORDER BY c.at, c.id", (id_,))
        return list(map(_change, rows))

    def _viewings(self, id_: int) -> list[Viewing]:
        sql = "SELECT id, at, note FROM viewings WHERE listing = ? ORDER BY at, id"
        return [Viewing(*row) for row in self._db.all(sql, (id_,))]

    def _urls(self, id_: int) -> list[str]:
        return self._db.column(
            """SELECT DISTINCT t.url FROM listing_urls u JOIN tasks t ON t.url_key = u.url_key
               WHERE u.listing = ? LIMIT ?""",
            (id_, MAX_URLS),
        )

    def _page_url(self, id_: int) -> str | None:
        sql = "SELECT t.url FROM listings l JOIN tasks t ON t.id = l.task WHERE l.id = ?"
        found: str | None = self._db.value(sql, (id_,))
        return found

    def _pairs(self, id_: int) -> list[Pair]:
        rows = self._db.all(
            f"""SELECT l.id = a, l.id, l.site, l.key, l.url, confidence, reasons, discrepancies,
                   decision
               FROM (SELECT *, b AS other FROM listing_pairs WHERE a = ?1 UNION ALL
                     SELECT *, a AS other FROM listing_pairs WHERE b = ?1)
               JOIN listings l ON l.id = other JOIN listings own ON own.id = ?1
               WHERE decision NOT NULL OR NOT {ONE_PAGE.format("own", "l")}
               ORDER BY confidence DESC, l.id""",
            (id_,),
        )
        return [_pair(row[1:], is_b=row[0]) for row in rows]

    def visit(self, id_: int, at: float, note: str) -> None:
        """Note a visit of a listing."""
        with writing(self._durable):
            self._durable.execute(
                "INSERT INTO viewings (listing, at, note) VALUES (?, ?, ?)", (id_, at, note)
            )

    def remove_visit(self, id_: int, number: int) -> Viewing:
        """Remove a note about a visit of a listing; raises `UsageError` if it has none with this
        number."""
        with writing(self._durable):
            row = self._durable.one(
                "DELETE FROM viewings WHERE id = ? AND listing = ? RETURNING id, at, note",
                (number, id_),
            )
        if row is None:
            known = ", ".join(str(each.id) for each in self._viewings(id_)[-MAX_VISITS_NAMED:])
            hint = f"it has: {known}" if known else "it has none"
            raise UsageError(f"the listing has no visit {number}; {hint}")
        return Viewing(*row)

    # Changes

    def change_counts(self, wanted: ChangeFilter) -> dict[str, dict[str, int]]:
        """How many of the wanted changes each site has of each kind."""
        condition, values = _change_condition(wanted)
        counts: dict[str, dict[str, int]] = {}
        sql = f"""SELECT l.site, c.kind, count(*) FROM listing_changes c
                  JOIN listings l ON l.id = c.listing WHERE {condition} GROUP BY 1, 2"""
        for site, kind, count in self._db.all(sql, values):
            counts.setdefault(site, dict.fromkeys(KINDS, 0))[kind] = count
        return counts

    def changes(self, wanted: ChangeFilter, limit: int | None = None) -> Iterator[Change]:
        """The wanted changes, the newest first."""
        return islice(self._each_change(wanted), limit)

    def _each_change(self, wanted: ChangeFilter) -> Iterator[Change]:
        condition, values = _change_condition(wanted)
        last_at, last_id = _NEVER, _FIRST
        while rows := self._db.all(
            f"""{_CHANGE} WHERE (c.at, c.id) < (?, ?) AND {condition}
                ORDER BY c.at DESC, c.id DESC LIMIT ?""",
            (last_at, last_id, *values, self._rows_per_read),
        ):
            yield from map(_change, rows)
            last_id, last_at = rows[-1][:2]

    def price_changes(self, wanted: ChangeFilter) -> Iterator[tuple[int, str, PriceChange]]:
        """Every change of a price of a site, or of all, since a time; with listing and site."""
        last = 0
        condition, values = "1", list[Any]()
        if wanted.site is not None:
            condition, values = "l.site = ?", [wanted.site]
        if wanted.since is not None:
            condition, values = f"{condition} AND p.at >= ?", [*values, wanted.since]
        while rows := self._db.all(
            f"""SELECT p.id, l.id, l.site, p.at, p.price, p.currency, p.previous_price,
                    p.previous_currency
                FROM price_history p JOIN listings l ON l.id = p.listing
                WHERE p.id > ? AND {condition} ORDER BY p.id LIMIT ?""",
            (last, *values, self._rows_per_read),
        ):
            for _, listing, site, *price in rows:
                yield listing, site, PriceChange(*price)
            last = rows[-1][0]

    def prices_of(self, ids: Sequence[int]) -> dict[int, list[PriceChange]]:
        """All changes of the prices of these listings, the oldest first."""
        found: dict[int, list[PriceChange]] = {}
        for listing, price in self._prices(f"listing {LISTED}", (as_json(ids),)):
            found.setdefault(listing, []).append(price)
        return found

    def _prices(self, condition: str, values: Sequence[Any]) -> list[tuple[int, PriceChange]]:
        rows = self._db.all(
            f"""SELECT listing, at, price, currency, previous_price, previous_currency
                FROM price_history WHERE {condition} ORDER BY listing, at, id""",
            values,
        )
        return [(row[0], PriceChange(*row[1:])) for row in rows]

    def changes_of_job(self, job: Job) -> dict[str, int]:
        """How many changes of each kind the pages and the end of a job brought."""
        found = self._db.all(
            """SELECT c.kind, count(*) FROM listing_changes c WHERE c.at >= ?1 AND (c.job_id = ?2
                   OR EXISTS (SELECT 1 FROM tasks t WHERE t.id = c.task AND t.job_id = ?2))
               GROUP BY 1""",
            (job.created_at, job.id),
        )
        return dict.fromkeys(KINDS, 0) | dict(found)


# What the rows mean


class _Titled(msgspec.Struct):
    """The fields of a record that may name the thing."""

    title: Any = None
    name: Any = None

    @property
    def text(self) -> str | None:
        named = (each for each in (self.title, self.name) if isinstance(each, str) and each.strip())
        return next(named, None)


_TIMES = frozenset({"at", "first_seen", "last_seen", "fetched_at", "changed_at", "gone_at",
                    "sold_at"})  # fmt: skip


def as_facts(value: msgspec.Struct) -> dict[str, Any]:
    """One of these values as JSON shows it, with its times as text."""
    facts = msgspec.structs.asdict(value)
    for name in _TIMES & facts.keys():
        facts[name] = facts[name] and iso(facts[name])
    if isinstance(value, Change):
        facts["price"] = value.price and as_facts(value.price)
        facts["fields"] = {
            name: {"old": old, "new": new} for name, (old, new) in value.fields.items()
        }
    if isinstance(value, PriceChange):
        percent = value.percent
        facts["percent"] = None if percent is None else round(percent, 2)
    return facts


def _condition(wanted: ListingFilter) -> tuple[str, tuple[Any, ...]]:
    """The condition for all but the site and the state."""
    limits = {
        "first_seen >= ?": wanted.since,
        "changed_at >= ?": wanted.changed_since,
        "price >= ?": wanted.min_price,
        "price <= ?": wanted.max_price,
    }
    used = {condition: value for condition, value in limits.items() if value is not None}
    return " AND ".join(used) or "1", tuple(used.values())


def _change_condition(wanted: ChangeFilter) -> tuple[str, tuple[Any, ...]]:
    conditions, values = ["1"], list[Any]()
    if wanted.since is not None:
        conditions.append("c.at >= ?")
        values.append(wanted.since)
    if wanted.site is not None:
        # The plus keeps the order of the time's index: a page of rows needs no sorting then.
        conditions.append("+l.site = ?")
        values.append(wanted.site)
    if wanted.kinds:
        conditions.append(f"c.kind {LISTED}")
        values.append(as_json(list(wanted.kinds)))
    return " AND ".join(conditions), tuple(values)


def _listing(row: tuple[Any, ...]) -> Listing:
    facts = dict(zip(Listing.__struct_fields__, row, strict=True))
    return Listing(**facts | {"data": _decoded(row[0], facts["data"], dict[str, Any])})


class _StoredDiscrepancy(msgspec.Struct):
    """What the listings `a` and `b` of a pair say differently."""

    field: str
    a: Any
    b: Any


def _pair(row: tuple[Any, ...], is_b: bool) -> Pair:
    """The pair of a row, as it is seen from the listing `a` or `b` of it."""
    facts = dict(zip(Pair.__struct_fields__, row, strict=True))
    reasons = _decoded(row[0], facts["reasons"], dict[str, float])
    differing = [
        Discrepancy(each.field, each.b, each.a) if is_b else Discrepancy(each.field, each.a, each.b)
        for each in _decoded(row[0], facts["discrepancies"], list[_StoredDiscrepancy])
    ]
    return Pair(**facts | {"reasons": reasons, "discrepancies": differing})


def _change(row: tuple[Any, ...]) -> Change:
    *known, price, currency, previous_price, previous_currency = row
    facts = dict(zip(Change.__struct_fields__, known, strict=False))
    listing, fields = facts["listing"], dict[str, tuple[Any, Any]]()
    if facts["fields"]:
        fields = _decoded(listing, facts["fields"], dict[str, tuple[Any, Any]])
    priced = None
    if price is not None:
        priced = PriceChange(facts["at"], price, currency, previous_price, previous_currency)
    title = _decoded(listing, facts["title"], _Titled).text
    return Change(**facts | {"title": title, "fields": fields, "price": priced})


def _decoded(listing: int, text: str, kind: Any = Any) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        damage = f"listing {listing} is damaged in lpm.db ({error})"
        raise StoreError(f"{damage}; {program()} doctor") from error
