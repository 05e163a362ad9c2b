"""Listings: what the key of a site identifies, and what happened to it.

They change in the transaction that ends a task or a crawl, so that a kill neither loses nor doubles
a change. A page that was fetched before the last one is a slow twin, and changes nothing. Nor does
a second page of one crawl that has the key of a listing and another record: the listing would
change to and fro with each crawl.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from crawler import canonical
from crawler.config import failpoint
from crawler.db import listing_pairs
from crawler.db.connection import Database, writing
from crawler.db.links import FIND, REDIRECTED
from crawler.db.store import LISTED, as_json
from crawler.models import FILE, FORM, UNCHANGED, Job, Outcome, Page, SeenListing, TaskStatus

log = logging.getLogger(__name__)

GONE = ("http_404", "http_410")
"""How the task of a listing's own page ends when the listing is gone."""
MAX_GONE_PER_COMMIT = 2_000
MIN_DOUBTFUL = 10
"""Fewer listings that are missing at once are believed to be gone, however many there were."""
MAX_AHEAD_S = 300.0
"""By how much a noted time may lie ahead of the clock; more is a mistake of the clock."""
NO_URL = b""
"""The key of a URL that leads to no single listing."""
_MISSED = "missed {}"
"""Key in `meta` of the last crawl of a site that missed too many listings to be believed."""

_KNOWN = """id, url_key, record_hash, price, currency, fetched_at, gone_at, sold_at, unchanged,
    task, job_id"""
_NOT_WHOLE = """
    SELECT 1 FROM tasks t WHERE job_id = ?1 AND role IN ('start', 'index', 'sitemap')
        AND status <> 'completed' AND NOT (status = 'skipped' AND (
            error_type IN ('redirected', 'sitemap', 'no_robots_txt', 'read_again')
            OR (role <> 'start' AND error_type IN ('out_of_scope', 'robots', 'login_page'))
            OR (error_type = 'no_sitemap' AND EXISTS (SELECT 1 FROM tasks p
                WHERE p.id = t.parent AND p.role = 'sitemap' AND p.url LIKE '%/robots.txt'))))
    UNION ALL
    SELECT 1 FROM crawl_counts WHERE job_id = ?1 AND kind = 'guard'
        AND name IN ('depth', 'limit', 'site_limit', 'sitemaps')
    UNION ALL
    SELECT 1 FROM losses WHERE job_id = ?1
    LIMIT 1"""
"""What a crawl may have lacked: a list that was not read, links beyond a limit, lost tasks. There
need not be a sitemap where robots.txt or nobody names one."""
_TARGET = f"""iif({{0}}.status = 'skipped' AND {{0}}.error_type = '{REDIRECTED}', (
    SELECT unhex(detail ->> '$.target') FROM events
    WHERE task = {{0}}.id AND kind = 'skipped' ORDER BY events.id DESC LIMIT 1), NULL)"""
_END_OF_REDIRECTS = f"""
    WITH RECURSIVE way(id, target) AS (
        SELECT tasks.id, {_TARGET.format("tasks")}
        UNION
        SELECT n.id, {_TARGET.format("n")}
        FROM way CROSS JOIN tasks n ON n.job_id = tasks.job_id AND n.url_key = way.target
            AND n.method = 'GET' AND n.body = '' AND n.role NOT NULL AND n.source <> 'bundle')
    SELECT e.id FROM way CROSS JOIN tasks e USING (id) WHERE {{}}"""
"""The page of its crawl that a task redirects to in the end, if something is true of it. The page
may be known to the crawl by another link, so the task need not be its parent."""
_IS_GONE = f"(e.status = 'failed' AND e.error_type IN {GONE})"
_IS_IN_CRAWL = f"""EXISTS (SELECT 1 FROM tasks WHERE job_id = ?2 AND url_key = {{}}
    AND method = 'GET' AND body = '' AND role NOT NULL AND source <> 'bundle'
    AND NOT (status = 'skipped' AND error_type = '{REDIRECTED}' AND EXISTS (
        {_END_OF_REDIRECTS.format(f"e.status = 'completed' OR {_IS_GONE}")}))
    AND NOT EXISTS (SELECT 1 FROM listings other WHERE other.task = tasks.id AND other.site = ?1
        AND other.id <> listings.id))"""
"""Whether a crawl has a page, unless it is the page of another listing now, or redirects to a page
that was read: if that had shown the listing, the crawl would have seen it."""
_MISSING = f"""site = ?1 AND gone_at IS NULL AND job_id IS NOT ?2
    AND last_seen < (SELECT created_at FROM jobs WHERE id = ?2)
    AND NOT {_IS_IN_CRAWL.format("listings.url_key")}
    AND NOT EXISTS (SELECT 1 FROM listing_urls u WHERE u.listing = listings.id
                    AND {_IS_IN_CRAWL.format("u.url_key")})"""
"""Whether a listing was seen neither by a crawl nor since it began, and has no page of its own
there."""
_REDIRECTED_TO_GONE = f"""
    SELECT l.id, page.id, page.completed_at
    FROM tasks CROSS JOIN listings l ON l.url_key = tasks.url_key AND l.gone_at IS NULL
    CROSS JOIN tasks page ON page.id = ({_END_OF_REDIRECTS.format(_IS_GONE)})
    WHERE tasks.job_id = ?1 AND tasks.status = 'skipped' AND tasks.error_type = '{REDIRECTED}'
        AND tasks.method = 'GET' AND l.job_id IS NOT ?1
        AND (l.fetched_at <= page.completed_at OR l.fetched_at > ?2)
        AND NOT EXISTS (SELECT 1 FROM listing_conflicts c WHERE c.listing = l.id AND c.job_id = ?1)
    LIMIT {MAX_GONE_PER_COMMIT}"""
"""Listings whose own URL redirects to a page that is gone, and that a crawl has seen nowhere
else."""
_MEDIA_TYPE = "substr({0}.content_type, 1, instr({0}.content_type || ';', ';') - 1)"
_READ_AS_BEFORE = f"""
    SELECT o.parent, (
        SELECT ifnull(iif(n.status = 'completed',
            o.status <> 'completed' OR (nr.site_version = r.site_version
                AND {_MEDIA_TYPE.format("nr")} = {_MEDIA_TYPE.format("r")}),
            n.status = 'skipped' AND n.error_type = o.error_type
                AND n.error_type IN ('redirected', 'sitemap', 'no_robots_txt', 'read_again')), 0)
        FROM tasks n LEFT JOIN results nr ON nr.task = n.id
        WHERE n.job_id = ?2 AND n.url_key = o.url_key AND n.method = o.method AND n.body = o.body
            AND n.role NOT NULL AND n.source <> 'bundle')
    FROM tasks o LEFT JOIN results r ON r.task = o.id WHERE o.id = ?1"""
"""The parent of an earlier task, and whether a crawl has read the same page, as the same kind of
content and by the same rules; null if it does not have that page."""
_MORE_LEFT_OUT = """
    SELECT 1 FROM crawl_counts n WHERE job_id = ?1 AND kind = 'guard' AND count > 2 * ifnull((
        SELECT count FROM crawl_counts o WHERE o.job_id = ?2 AND o.kind = 'guard'
            AND o.name = n.name), 0) LIMIT 1"""
"""Whether a guard of a crawl has left out far more links than in an earlier crawl."""


# Functions that are part of a transaction


def note(db: Database, outcome: Outcome, now: float) -> None:
    """Note what the end of a task says of listings; its result is stored already."""
    if outcome.status is TaskStatus.COMPLETED:
        if outcome.task.method == FILE:
            listing_pairs.note_image(db, outcome.task.id)
        elif outcome.listings and outcome.page:
            _see_all(db, outcome, outcome.page, now)
    elif outcome.error_type in GONE and outcome.status is TaskStatus.FAILED:
        at = outcome.page.fetched_at if outcome.page else now
        _note_gone_page(db, outcome.task.id, at, now)
    elif outcome.error_type == REDIRECTED:
        for link in outcome.links:
            _note_redirect(db, outcome.task.id, link.address.key)


class _Sight(NamedTuple):
    """Where and when listings were seen."""

    at: float
    """When the page was fetched, or, if it was not, when its link was found."""
    fetched_at: float
    was_fetched: bool
    site: str
    url: str
    url_key: bytes
    page_hash: str
    task: int
    job_id: int | None
    page: "_Request"
    """What the page was asked for with; that of an item's list is not its URL."""
    is_of_crawl: bool


class _Request(NamedTuple):
    """What a task asks for; each crawl has one task for it."""

    url: str
    url_key: bytes
    method: str
    body: str


class _Known(NamedTuple):
    """What is stored of a listing, as far as a new sight of it needs that."""

    id: int
    url_key: bytes
    record_hash: str
    price: float | None
    currency: str | None
    fetched_at: float
    gone_at: float | None
    sold_at: float | None
    unchanged: int
    task: int
    job_id: int | None
    was_sold: bool = False
    """By today's rules, as are `price` and `currency`."""
    corrections: Mapping[str, tuple[Any, Any]] = {}
    """What today's rules read in another way."""


def _see_all(db: Database, outcome: Outcome, page: Page, now: float) -> None:
    task = outcome.task
    [(url_key, page_hash)] = db.all(
        """SELECT url_key, body_sha256 FROM tasks JOIN results ON task = id WHERE id = ?""",
        (task.id,),
    )
    was_fetched = bool(outcome.sent)
    sight = _Sight(
        at=page.fetched_at if was_fetched else now,
        fetched_at=page.fetched_at,
        was_fetched=was_fetched,
        site=outcome.site[0],
        url=task.url,
        url_key=NO_URL if task.method == FORM else url_key,
        page_hash=page_hash,
        task=task.id,
        job_id=task.job_id,
        page=_Request(task.url, url_key, task.method, task.body),
        is_of_crawl=task.role is not None,
    )
    _see_each(db, outcome.listings, sight, now, bool(task.hops))


def _see_each(
    db: Database, found: Sequence[SeenListing], sight: _Sight, now: float, was_redirected: bool
) -> None:
    redirects = _urls_before(db, sight.task) if was_redirected else []
    for seen in found:
        if seen.is_item:
            listing = _see(db, seen, _of_item(sight, seen), now)
        else:
            listing = _see(db, seen, sight, now)
            for key in redirects:
                _note_url(db, key, listing)


def see_stored(db: Database, task: int, site: str, found: Sequence[SeenListing], now: float) -> int:
    """Note the listings of a result that was stored before its site had any, or that comes from
    elsewhere; returns how many of them are new.

    Results come in the order of their time. One that is older than what its listing shows changes
    nothing.
    """
    known = [_fetched_at(db, site, each.key) for each in found]
    row = db.one(
        """SELECT url, url_key, method, body, job_id, hops, role NOT NULL AND source <> 'bundle',
               body_sha256, scraped_at
           FROM tasks JOIN results ON task = id WHERE id = ?""",
        (task,),
    )
    if row is None:  # pruned meanwhile
        return 0
    url, url_key, method, body, job_id, hops, is_of_crawl, page_hash, at = row
    sight = _Sight(
        at=at,
        fetched_at=at,
        was_fetched=True,
        site=site,
        url=url,
        url_key=NO_URL if method == FORM else url_key,
        page_hash=page_hash,
        task=task,
        job_id=job_id,
        page=_Request(url, url_key, method, body),
        is_of_crawl=bool(is_of_crawl),  # a bundle has results of several crawls
    )
    later = [
        each for each, before in zip(found, known, strict=True) if before is None or before < at
    ]
    _see_each(db, later, sight, now, bool(hops))
    return known.count(None)


def _fetched_at(db: Database, site: str, key: str) -> float | None:
    found: float | None = db.value(
        "SELECT fetched_at FROM listings WHERE site = ? AND key = ?", (site, key)
    )
    return found


def _of_item(sight: _Sight, seen: SeenListing) -> _Sight:
    """Where an item of a list was seen: the page is not its own."""
    if seen.address is None:
        return sight._replace(url_key=NO_URL)
    return sight._replace(url=seen.address.url, url_key=seen.address.key)


def _urls_before(db: Database, task: int) -> list[bytes]:
    """Keys of the URLs that redirected to a task's."""
    return db.column(
        """WITH RECURSIVE way(id, hops, parent, url_key) AS (
               SELECT id, hops, parent, url_key FROM tasks WHERE id = ?1
               UNION
               SELECT t.id, t.hops, t.parent, t.url_key FROM tasks t
               JOIN way ON t.id = way.parent AND way.hops > 0)
           SELECT url_key FROM way WHERE id <> ?1""",
        (task,),
    )


def _see(db: Database, seen: SeenListing, sight: _Sight, now: float) -> int:
    """Note a listing that a page shows; returns its number."""
    row = db.one(
        f"""SELECT {_KNOWN} FROM listings WHERE site = ? AND key = ?""",
        (sight.site, seen.key),
    )
    if row is None:
        return _add(db, seen, sight)
    known = _by_todays_rules(db, _Known(*row), seen)
    if _is_another_page(db, known, seen, sight):
        _note_conflict(db, known, seen, sight)
    elif not sight.was_fetched:
        _see_link(db, known, seen, sight)
    elif sight.fetched_at >= _last_news(known, sight, now):
        _see_page(db, known, seen, sight)
    return known.id


def _by_todays_rules(db: Database, known: _Known, seen: SeenListing) -> _Known:
    """What is known of a listing, with price and state read from its record by the rules that the
    new page was read by: a change of the site's file is no change of the listing."""
    was_sold = known.sold_at is not None
    is_same = seen.record_hash == known.record_hash and not _is_new_price(known, seen)
    if is_same and seen.sold == was_sold:
        return known._replace(was_sold=was_sold)
    record = _decoded(db.value("SELECT record FROM listings WHERE id = ?", (known.id,)))
    price, currency = canonical.price_of(record.get(seen.price_field))
    if price is None and _once_had_price(db, known, seen):
        price, currency = known.price, known.currency  # the last one
    read = known._replace(
        price=price,
        currency=currency or known.currency,
        was_sold=canonical.is_sold(record, seen.sold_values),
    )
    return read._replace(corrections=_corrections(known, read.price, read.was_sold))


def _once_had_price(db: Database, known: _Known, seen: SeenListing) -> bool:
    """Whether a listing had a price where today's rules read it, by its changes; if not, other
    rules have read the stored one from another field."""
    if not seen.counted.of({seen.price_field: known.price}):
        return True  # changes of the field are not noted
    changes = db.column(
        """SELECT field.value FROM listing_changes c,
               json_each(iif(json_valid(c.fields), c.fields, '{}')) field
           WHERE c.listing = ? AND field.key = ? AND field.type = 'array'""",
        (known.id, seen.price_field),
    )
    values = (value for change in changes for value in msgspec.json.decode(change))
    return any(canonical.price_of(value)[0] is not None for value in values)


def _corrections(known: _Known, price: float | None, sold: bool) -> dict[str, tuple[Any, Any]]:
    """What is read in another way than it was stored, from the same record."""
    found: dict[str, tuple[Any, Any]] = {}
    if price is not None and known.price is not None and price != known.price:
        found["price"] = known.price, price
    if sold != (known.sold_at is not None):
        found["sold"] = not sold, sold
    return found


def _is_another_page(db: Database, known: _Known, seen: SeenListing, sight: _Sight) -> bool:
    """Whether a page shows another record than the page that the listing has in the same crawl.

    A listing that has moved since the last crawl has no other page in this one. Where both pages
    were there last time, the one that counted then counts again, whichever comes first: only if a
    whole crawl has not found the listing there does the other one count in the next.
    """
    if not sight.is_of_crawl or known.task == sight.task or known.gone_at is not None:
        return False
    if not _differs(db, known, seen):
        return False
    row = db.one("SELECT url, url_key, method, body FROM tasks WHERE id = ?", (known.task,))
    if row is None or _Request(*row)[1:] == sight.page[1:]:
        return False  # its page was pruned, or is fetched again
    conflict = db.value(
        "SELECT job_id FROM listing_conflicts WHERE listing = ? AND url_key = ? AND body = ?",
        (known.id, sight.page.url_key, sight.page.body),
    )
    if known.job_id == sight.job_id:
        return conflict is not None or _was_fetched(db, known)
    if conflict is None or conflict != known.job_id:
        return False
    status = db.value(FIND.format("status"), (sight.job_id, *row[1:]))
    return status in (None, "pending", "processing")


def _was_fetched(db: Database, known: _Known) -> bool:
    """Whether the crawl that has seen a listing last has fetched its page."""
    # Both a 304 and a page that was not asked for are unchanged; only the latter is an old one.
    found = db.value(
        """SELECT verdict <> ? OR ? >= (SELECT created_at FROM jobs WHERE id = ?)
           FROM results WHERE task = ?""",
        (UNCHANGED, known.fetched_at, known.job_id, known.task),
    )
    return bool(found)


def _differs(db: Database, known: _Known, seen: SeenListing) -> bool:
    """Whether a page shows something else than what is known of a listing."""
    if seen.sold != known.was_sold or _is_new_price(known, seen):
        return True
    return seen.record_hash != known.record_hash and bool(_differences(db, known.id, seen))


def _note_conflict(db: Database, known: _Known, seen: SeenListing, sight: _Sight) -> None:
    """Note that another page has the key of a listing; the listing stays as it is."""
    page = sight.page
    db.execute(
        """INSERT OR REPLACE INTO listing_conflicts (listing, url_key, body, url, record_hash,
               job_id) VALUES (?, ?, ?, ?, ?, ?)""",
        (known.id, page.url_key, page.body, page.url, seen.record_hash, sight.job_id),
    )
    db.execute(
        "UPDATE listings SET last_seen = max(last_seen, ?), missed = 0 WHERE id = ?",
        (sight.at, known.id),
    )


def _last_news(known: _Known, sight: _Sight, now: float) -> float:
    """When a listing was last seen, or found to be gone; an older page is a slow twin."""
    news = [known.fetched_at]
    if sight.url_key == known.url_key:  # else it has moved, and only its old page is gone
        news.append(known.gone_at or 0.0)
    # What lies far ahead was noted while the clock was wrong.
    return max((at for at in news if at <= now + MAX_AHEAD_S), default=0.0)


def _add(db: Database, seen: SeenListing, sight: _Sight) -> int:
    db.execute(
        """INSERT INTO listings (site, key, url, url_key, record, record_hash, page_hash, price,
               currency, first_seen, last_seen, fetched_at, sold_at, task, job_id)
           VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?10, ?11, ?12, ?13, ?14)""",
        (sight.site, seen.key, sight.url, sight.url_key, seen.record.decode(), seen.record_hash,
         sight.page_hash, seen.price, seen.currency, sight.at, sight.fetched_at,
         sight.at if seen.sold else None, sight.task, sight.job_id),
    )  # fmt: skip
    listing = db.last_insert_rowid()
    _note_change(db, listing, sight.at, "new", sight.task)
    return listing


def _see_link(db: Database, known: _Known, seen: SeenListing, sight: _Sight) -> None:
    """Note that a listing is still there, by its link: its page was not fetched again."""
    # The stored page may be an older one than the listing's, or another one with its key.
    is_same = sight.url_key == known.url_key or seen.record_hash == known.record_hash
    is_its_page = is_same and sight.fetched_at >= known.fetched_at
    db.execute(
        """UPDATE listings SET last_seen = max(last_seen, ?), gone_at = NULL, missed = 0,
               task = ?, job_id = ? WHERE id = ?""",
        (sight.at, sight.task if is_its_page else known.task, sight.job_id, known.id),
    )
    if known.gone_at is not None:
        _note_change(db, known.id, sight.at, "back", sight.task)
    if sight.url_key != known.url_key:
        _note_url(db, sight.url_key, known.id)


def _see_page(db: Database, known: _Known, seen: SeenListing, sight: _Sight) -> None:
    """Note a listing as its page shows it now."""
    fields: dict[str, Any] = {}
    if seen.record_hash != known.record_hash:
        # The hash may differ because other fields count now.
        fields = _differences(db, known.id, seen)
    is_back = known.gone_at is not None
    price, currency = seen.price, seen.currency or known.currency
    if price is None:
        price, currency = known.price, known.currency
    has_new_price = _is_new_price(known, seen)
    sold_at = None
    if seen.sold:
        sold_at = known.sold_at or sight.at
    db.execute(
        """UPDATE listings SET url = ?2, url_key = ?3, record = ?4, record_hash = ?5,
               page_hash = ?6, price = ifnull(?7, price), currency = ifnull(?8, currency),
               last_seen = max(last_seen, ?9), fetched_at = ?9,
               changed_at = iif(?10, ?9, changed_at), gone_at = NULL, sold_at = ?11,
               unchanged = ?12, missed = 0, task = ?13, job_id = ?14,
               matched = iif(?15, min(matched, 1) - 1, matched) WHERE id = ?1""",
        (known.id, sight.url, sight.url_key, seen.record.decode(), seen.record_hash,
         sight.page_hash, price, currency, sight.fetched_at, bool(fields), sold_at,
         0 if fields or is_back else known.unchanged + 1, sight.task, sight.job_id,
         bool(fields or known.corrections) or has_new_price or is_back),
    )  # fmt: skip
    if known.corrections:
        _note_change(db, known.id, sight.at, "corrected", sight.task, known.corrections)
    if is_back:
        _note_change(db, known.id, sight.at, "back", sight.task)
    if fields:
        _note_change(db, known.id, sight.at, "changed", sight.task, fields)
    if seen.sold and not known.was_sold:
        _note_change(db, known.id, sight.at, "sold", sight.task)
    if has_new_price:
        db.execute(
            """INSERT INTO price_history (listing, at, price, currency, previous_price,
                   previous_currency, task) VALUES (?, ?, ?, ?, ?, ?, ?)""",
            (known.id, sight.at, price, currency, known.price, known.currency, sight.task),
        )
    if sight.url_key != known.url_key:
        _note_url(db, known.url_key, known.id)
    if sight.is_of_crawl:  # what another page of the crawl has shown before is no conflict then
        db.execute(
            "DELETE FROM listing_conflicts WHERE listing = ? AND job_id = ? AND record_hash = ?",
            (known.id, sight.job_id, seen.record_hash),
        )


def _is_new_price(known: _Known, seen: SeenListing) -> bool:
    """Whether a price differs from the last one; a first one does not."""
    if seen.price is None or known.price is None:
        return False
    other_currency = seen.currency and known.currency and seen.currency != known.currency
    return seen.price != known.price or bool(other_currency)


def _differences(db: Database, listing: int, seen: SeenListing) -> dict[str, Any]:
    """The old and the new value of each field that counts as a change."""
    stored = db.value("SELECT record FROM listings WHERE id = ?", (listing,))
    old, new = (canonical.fields(seen.counted.of(_decoded(it))) for it in (stored, seen.record))
    return canonical.differences(old, new)


def _decoded(record: str | bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(record, type=dict[str, Any])
    except msgspec.DecodeError:  # a wrong byte in the ledger: all that the new record has is new
        return {}


def _note_change(
    db: Database,
    listing: int,
    at: float,
    kind: str,
    task: int | None,
    fields: Mapping[str, Any] | None = None,
    job_id: int | None = None,
) -> None:
    """`job_id` is the crawl that has missed it, where no task shows the change."""
    encoded = as_json(fields) if fields else None
    db.execute(
        """INSERT INTO listing_changes (listing, at, kind, fields, task, job_id)
           VALUES (?, ?, ?, ?, ?, ?)""",
        (listing, at, kind, encoded, task, job_id),
    )


def _note_url(db: Database, url_key: bytes, listing: int) -> None:
    if url_key != NO_URL:
        db.execute(
            "INSERT OR IGNORE INTO listing_urls (url_key, listing) VALUES (?, ?)",
            (url_key, listing),
        )


def _note_redirect(db: Database, task: int, target: bytes) -> None:
    """Note that the URL of a task redirects to a page, for the listings that are there."""
    db.execute(
        """INSERT OR IGNORE INTO listing_urls (url_key, listing)
           SELECT t.url_key, l.listing FROM tasks t CROSS JOIN (
               SELECT id AS listing FROM listings WHERE url_key = ?2
               UNION SELECT listing FROM listing_urls WHERE url_key = ?2) l
           WHERE t.id = ?1 AND t.method = 'GET'""",
        (task, target),
    )


def _note_gone_page(db: Database, task: int, at: float, now: float) -> None:
    """Note that the own page of listings is gone, unless it was fetched since, or another page of
    the crawl has their key."""
    gone = db.column(
        """UPDATE listings SET gone_at = ?2, missed = 0
           WHERE url_key = (SELECT url_key FROM tasks WHERE id = ?1 AND method = 'GET')
           AND gone_at IS NULL AND (fetched_at <= ?2 OR fetched_at > ?3)
           AND NOT EXISTS (SELECT 1 FROM listing_conflicts c WHERE c.listing = listings.id
               AND c.job_id = (SELECT job_id FROM tasks WHERE id = ?1)) RETURNING id""",
        (task, at, now + MAX_AHEAD_S),
    )
    for listing in gone:
        _note_change(db, listing, at, "gone", task)


def correct(db: Database, task: int, seen: Sequence[SeenListing], now: float) -> int:
    """Replace what listings have from the page of a task by what a later parser, or other rules,
    have made of it; returns how many differ.

    That is no change of the listing, and its price has no history. What a later page has shown
    stays, and so does the currency where the page names none.
    """
    corrected = 0
    for each in seen:
        row = db.one(
            f"""SELECT {_KNOWN} FROM listings
               WHERE site = (SELECT site FROM results WHERE task = ?1) AND key = ?2
               AND task = ?1""",
            (task, each.key),
        )
        if row is None:
            continue
        known = _Known(*row)
        fields: dict[str, Any] = {}
        if known.record_hash != each.record_hash:
            fields = _differences(db, known.id, each)
        fields = _corrections(known, each.price, each.sold) | fields
        db.execute(
            """UPDATE listings SET record = ?2, record_hash = ?3, price = ifnull(?4, price),
                   currency = iif(?4 IS NULL, currency, ifnull(?5, currency)), sold_at = ?6,
                   matched = min(matched, 1) - 1
               WHERE id = ?1""",
            (known.id, each.record.decode(), each.record_hash, each.price, each.currency,
             (known.sold_at or now) if each.sold else None),
        )  # fmt: skip
        if fields:
            _note_change(db, known.id, now, "corrected", task, fields)
            corrected += 1
    return corrected


def stale_tasks(db: Database, tasks: Sequence[int], seen: Sequence[SeenListing]) -> set[int]:
    """Those of the tasks of one page that `correct` would change listings of."""
    stale: set[int] = set()
    for each in seen:
        stale.update(
            db.column(
                """SELECT l.task FROM results r JOIN listings l
                        ON l.task = r.task AND l.site = r.site AND l.key = ?2
                    WHERE r.task IN (SELECT value FROM json_each(?1))
                    AND ((l.record_hash, l.record) <> (?3, ?4)
                        OR (?5 IS NOT NULL
                            AND (l.price, l.currency) IS NOT (?5, ifnull(?6, l.currency)))
                        OR (l.sold_at IS NOT NULL) <> ?7)""",
                (
                    as_json(tasks),
                    each.key,
                    each.record_hash,
                    each.record.decode(),
                    each.price,
                    each.currency,
                    each.sold,
                ),
            )
        )
    return stale


# The end of a crawl


def end_crawl_in_parts(db: Database, job: Job, now: float) -> None:
    """Before a crawl ends: mark the listings that are gone, some at a time, if there are too many
    for one transaction.

    After a kill, the same again does the rest.
    """
    while len(_redirected_to_gone(db, job, now)) == MAX_GONE_PER_COMMIT:
        with writing(db):
            _end_redirected(db, job, now)
        failpoint("listings-gone")
    missing = _missed_by(db, job)
    if len(missing) <= MAX_GONE_PER_COMMIT:
        return
    doubted = _doubted(db, job, missing)
    believed = [listing for listing in missing if listing not in doubted]
    for begin in range(0, len(believed), MAX_GONE_PER_COMMIT):
        with writing(db):
            _end_missing(db, job, believed[begin : begin + MAX_GONE_PER_COMMIT], now)
        failpoint("listings-gone")


def end_crawl(db: Database, job: Job, now: float) -> None:
    """Mark the listings that a crawl has found to be gone by a redirect, and those that a whole
    crawl has missed. Part of the transaction that ends it."""
    _end_redirected(db, job, now)
    missing = _missed_by(db, job)
    doubted = _doubted(db, job, missing)
    _end_missing(db, job, [listing for listing in missing if listing not in doubted], now)
    if doubted:
        _doubt(db, job, sorted(doubted), now)


def _redirected_to_gone(db: Database, job: Job, now: float) -> list[tuple[int, int, float]]:
    """Some listings whose URLs redirect to pages that are gone: each with the page, and when."""
    if job.options.crawl is None:  # its tasks follow redirects themselves
        return []
    return db.all(_REDIRECTED_TO_GONE, (job.id, now + MAX_AHEAD_S))


def _end_redirected(db: Database, job: Job, now: float) -> None:
    for listing, page, at in _redirected_to_gone(db, job, now):
        db.execute("UPDATE listings SET gone_at = ?, missed = 0 WHERE id = ?", (at, listing))
        _note_change(db, listing, at, "gone", page)


def _doubt(db: Database, job: Job, missing: Sequence[int], now: float) -> None:
    """Note that a crawl has missed listings; those that the one before has missed, too, are
    gone."""
    noted = _MISSED.format(_site(job))
    if db.value("SELECT value FROM meta WHERE key = ?", (noted,)) == str(job.id):
        return  # its end was noted before, and then some of its pages were tried again
    db.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (noted, str(job.id)))
    before = db.column(f"SELECT id FROM listings WHERE missed > 0 AND id {LISTED}",
                       (as_json(missing),))  # fmt: skip
    _end_missing(db, job, before, now)
    db.execute(
        f"UPDATE listings SET missed = missed + 1 WHERE gone_at IS NULL AND id {LISTED}",
        (as_json(missing),),
    )
    if doubted := len(missing) - len(before):
        log.warning(
            "job %s has not found %d listings of %s, but they are many, or the lists that led to "
            "them were not read as before: they count as gone only if the next whole crawl does "
            "not find them either",
            job.name, doubted, _site(job), extra={"job": job.name},
        )  # fmt: skip


def _site(job: Job) -> str:
    return job.options.crawl.site if job.options.crawl else ""


def _missed_by(db: Database, job: Job) -> list[int]:
    """The active listings that a crawl did not find; none for one that was not whole."""
    crawl = job.options.crawl
    if crawl is None or not crawl.whole or job.cancelled:
        return []
    if not db.one("SELECT 1 FROM listings WHERE site = ? LIMIT 1", (crawl.site,)):
        return []
    if db.one(_NOT_WHOLE, (job.id,)):
        return []
    return db.column(f"SELECT id FROM listings WHERE {_MISSING} ORDER BY id", (crawl.site, job.id))


def _doubted(db: Database, job: Job, missing: Sequence[int]) -> set[int]:
    """Those of the missing listings that one crawl is not believed: more than half of all, or
    those whose lists it has not read as before."""
    active = "SELECT count(*) FROM listings WHERE site = ? AND gone_at IS NULL"
    if len(missing) >= MIN_DOUBTFUL and 2 * len(missing) > db.value(active, (_site(job),)):
        return set(missing)
    lists = _EarlierLists(db, job.id)
    rows = db.all(f"SELECT id, task, job_id FROM listings WHERE id {LISTED}", (as_json(missing),))
    return {id_ for id_, task, before in rows if not lists.were_read(task, before)}


class _EarlierLists:
    """Tells whether a crawl has read the pages that once led to a listing."""

    def __init__(self, db: Database, job_id: int) -> None:
        self._db, self._job_id = db, job_id
        self._read: dict[int, bool] = {}
        self._left_out_more: dict[int | None, bool] = {}

    def were_read(self, task: int, before: int | None) -> bool:
        """Whether the crawl has read what led to a task of an earlier job as that had, and no guard
        has left out far more links."""
        if before not in self._left_out_more:
            more = self._db.one(_MORE_LEFT_OUT, (self._job_id, before))
            self._left_out_more[before] = more is not None
        return not self._left_out_more[before] and self._was_read(task)

    def _was_read(self, task: int) -> bool:
        """Whether the nearest page on the way to a task that the crawl has was read as before.

        A way of which nothing is known is believed: its tasks were pruned, or it began there.
        """
        way: list[int] = []
        was_read, page = True, task
        while page not in way:
            if page in self._read:
                was_read = self._read[page]
                break
            way.append(page)
            parent, found = self._db.one(_READ_AS_BEFORE, (page, self._job_id)) or (None, None)
            if found is not None:
                was_read = bool(found)
            if found is not None or parent is None:
                break
            page = parent
        self._read |= dict.fromkeys(way, was_read)
        return was_read


def _end_missing(db: Database, job: Job, ids: Sequence[int], now: float) -> None:
    gone = db.column(
        f"""UPDATE listings SET gone_at = ?3, missed = 0
            WHERE id IN (SELECT value FROM json_each(?4)) AND {_MISSING} RETURNING id""",
        (_site(job), job.id, now, as_json(ids)),
    )
    for listing in gone:
        _note_change(db, listing, now, "gone", None, job_id=job.id)
