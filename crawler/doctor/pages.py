"""Checks of raw/ and pending/, and results rebuilt from stored pages."""

import mmap
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from isal import isal_zlib

from crawler import urls
from crawler.db import jobs, raw_pages, timeline
from crawler.db.connection import Database, reading, writing
from crawler.db.pending import UNFINISHED, is_whole, missing_files
from crawler.db.results import NEXT_SEQ, PRUNED, agrees, encoded_reasons
from crawler.db.store import Opened
from crawler.db.tasks import Tasks
from crawler.doctor import Context, Observation, listed, repair_command
from crawler.doctor.reconciliation import insert_row
from crawler.errors import CrawlerError, FetchError, StoreError, UrlError
from crawler.fetch.body import decode_stored
from crawler.files import read_regular
from crawler.models import RawLocation

_MAX_SHOWN = 20
_READ_BYTES = 1 << 16
_MAX_PAGE_BYTES = 1 << 30
_CAPTURES_PER_WORD = 100
_GRACE_S = 60
"""How long a file may lag behind the ledger while a process works."""

_SEGMENTS_IN_USE = """
    SELECT name FROM raw_segments
    UNION SELECT raw_segment FROM results WHERE raw_segment IS NOT NULL ORDER BY 1"""
_SEGMENTS_IN_TIMELINES = f"""
    SELECT json_extract(detail, '$.raw.segment') FROM events WHERE detail LIKE '%"raw":%'
    EXCEPT SELECT substr(key, {len(PRUNED) + 1}) FROM meta WHERE key LIKE '{PRUNED}%'"""
_JOBS_THAT_WANT_PAGE = f"""
    SELECT j.id
    FROM results JOIN (
        SELECT job_id AS id FROM tasks WHERE id = ?1
        UNION SELECT job_id FROM job_links WHERE task = ?1) j
    WHERE task = ?1 AND j.id IS NOT NULL AND {jobs.WANTED_PAGE.format(job="j.id")}"""
"""The jobs of a task, its own and those that share it, without those that gave up its page."""


class ExpectedPage(msgspec.Struct, frozen=True):
    """Where a result says that its page is, and the digest of its body."""

    offset: int
    task: int
    length: int
    digest: str
    final_url: str


class Scan(msgspec.Struct):
    """What reading a segment from beginning to end has found."""

    size: int = -1
    """Negative if there is no such file."""
    intact: set[int] = msgspec.field(default_factory=set)
    """Tasks whose pages are as their results say."""
    digests: dict[int, str] = msgspec.field(default_factory=dict)
    """Digests of intact pages whose results have another one: the result is damaged."""
    gaps: list[tuple[int, int]] = msgspec.field(default_factory=list)
    """Ranges without a whole record."""
    end: int = 0
    """Where the last whole record ends."""


# Stored pages


def check_segments(context: Context) -> Iterator[Observation]:
    """Check that each segment is as long as the ledger says, and that each page can be read."""
    files = {path.name: path for path in sorted((context.folder / "raw").glob("[!.]*.warc.gz"))}
    names = context.db.column(_SEGMENTS_IN_USE)
    if unused := files.keys() - set(names):
        # Only timelines name those of failed attempts; reading all timelines takes long.
        names += sorted(unused.intersection(context.db.column(_SEGMENTS_IN_TIMELINES)))
    total = context.db.value("SELECT count(raw_segment) FROM results")
    bad = 0
    for number, name in enumerate(names, 1):
        context.progress(f"reading segment {number} of {len(names)}: {name} …")
        end, expected = _expected_pages(context, name)
        scan = Scan()
        if name in files:
            scan = _scan(files[name], end, expected)
        if scan.digests:
            bad += len(scan.digests)
            yield _correct_digests(context, name, scan.digests)
        found = scan.intact | scan.digests.keys()
        lost = [page for page in expected if page.task not in found]
        bad += len(lost)
        if name in files and end is None:
            yield _list_again(context, name, scan)
        # A disk that is not mounted can come back. A name in no list, next to segments that exist,
        # is noise.
        may_return = name not in files and (end is not None or not files)
        yield from _report_damage(context, name, end or scan.size, scan, lost, may_return)
    for name in sorted(files.keys() - set(names)):
        yield from _report_unknown(context, files[name])
    if not bad:
        yield Observation("ok", f"{total} stored pages in {len(files)} segments can be read")


def check_captures(context: Context) -> Iterator[Observation]:
    """Check that each screenshot and each PDF can be read, where its segment is there."""
    raw = context.folder / "raw"
    lost: list[tuple[int, str]] = []
    rows = context.db.all(
        """SELECT task, field, capture FROM result_files WHERE capture ->> '$.raw.segment' IN
               (SELECT name FROM raw_segments)"""
    )
    for number, (task, name, text) in enumerate(rows, 1):
        if number % _CAPTURES_PER_WORD == 0:
            context.progress(f"reading file {number} of {len(rows)} that a browser has made …")
        fields = msgspec.json.decode(text, type=_Capture)
        if (raw / fields.raw.segment).exists() and not _is_whole(raw, fields):
            lost.append((task, name))
    if not lost:
        return
    shown = _listed_urls(context, [task for task, _ in lost])
    detail = f"{len(lost)} screenshots and PDFs cannot be read, their results are whole: {shown}"
    if not context.repair:
        yield Observation("wrong", detail, repair_command(context))
        return
    with context.lpm() as lpm:
        with writing(lpm.store.durable):
            lpm.store.durable.executemany(
                """UPDATE result_files SET capture = json_remove(capture, '$.raw')
                   WHERE task = ? AND field = ? AND capture NOT NULL""",
                lost,
            )
        for task, _ in lost:
            lpm.files.write_one(task)
    yield Observation("mended", f"{detail}; their places were removed")


class _Capture(msgspec.Struct, frozen=True):
    """Where a screenshot or a PDF is, and its digest."""

    sha256: str
    raw: RawLocation


def _is_whole(raw: Path, capture: _Capture) -> bool:
    try:
        body = raw_pages.read_capture(raw, capture.raw)
    except StoreError:
        return False
    return sha256(body).hexdigest() == capture.sha256


def _expected_pages(context: Context, name: str) -> tuple[int | None, list[ExpectedPage]]:
    """Return a segment's committed end and its pages, in one snapshot: it may be growing."""
    with reading(context.db):
        end = context.db.value("SELECT end FROM raw_segments WHERE name = ?", (name,))
        pages = context.db.all(
            """SELECT raw_offset, task, raw_length, body_sha256, final_url
               FROM results WHERE raw_segment = ?""",
            (name,),
        )
    return end, [ExpectedPage(*page) for page in pages]


def _scan(path: Path, end: int | None, expected: list[ExpectedPage]) -> Scan:
    """Read a segment record by record, and compare each page with its results."""
    scan = Scan(path.stat().st_size)
    if scan.size == 0:
        return scan
    by_offset: dict[int, list[ExpectedPage]] = {}
    for page in expected:  # an unchanged page is at the place of the earlier one
        by_offset.setdefault(page.offset, []).append(page)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        limit = len(data)
        if end is not None:
            limit = min(end, limit)
        at = 0
        while at < limit:
            pages = by_offset.get(at, [])
            member = _read_member(data, at, limit, whole=bool(pages))
            if member is None:
                following = data.find(raw_pages.GZIP, at + 1, limit)
                if following < 0:
                    following = limit
                scan.gaps.append((at, following))
            else:
                following, record = member
                length = following - at
                _compare(scan, record, [page for page in pages if page.length == length])
                scan.end = following
            at = following
    return scan


def _read_member(
    data: mmap.mmap, at: int, limit: int, whole: bool = False
) -> tuple[int, bytes] | None:
    """Return the end of the gzip member at an offset, and its text or only the beginning of it.
    None if there is none with the right checksum."""
    if data[at : at + len(raw_pages.GZIP)] != raw_pages.GZIP:
        return None
    inflater, begin = isal_zlib.decompressobj(wbits=31), at
    texts: list[bytes] = []
    try:
        while at < limit and not inflater.eof:
            piece = data[at : min(at + _READ_BYTES, limit)]
            text = inflater.decompress(piece)
            if at == begin and not text.startswith(b"WARC/"[: len(text)]):
                return None
            if whole or not texts:
                texts.append(text)
            at += len(piece)
    except isal_zlib.error:  # type: ignore[misc]  # its stub does not say that it is an exception
        return None
    if not inflater.eof:
        return None
    return at - len(inflater.unused_data), b"".join(texts)


def _compare(scan: Scan, record: bytes, pages: list[ExpectedPage]) -> None:
    """Note whether a record's body is the one that its results were made from."""
    if not pages:
        return
    try:
        fields, head, received = raw_pages.response(record)
        digest = sha256(decode_stored(head, received, limit=_MAX_PAGE_BYTES)).hexdigest()
    except (ValueError, FetchError):
        return
    for page in pages:
        target = b"WARC-Target-URI: " + page.final_url.encode()
        if digest == page.digest:
            scan.intact.add(page.task)
        elif target in fields and _has_own_digest(fields, received):
            scan.digests[page.task] = digest


def _has_own_digest(fields: list[bytes], received: bytes) -> bool:
    """Return whether a body still has the digest that was written with it."""
    return b"WARC-Payload-Digest: sha256:" + sha256(received).hexdigest().encode() in fields


def _correct_digests(context: Context, name: str, digests: dict[int, str]) -> Observation:
    """Correct results whose digest is damaged, while their pages are intact."""
    shown = _listed_urls(context, list(digests))
    detail = (
        f"body_sha256 of {len(digests)} results is not that of their pages in {name}, "
        f"which are whole: {shown}"
    )
    if not context.repair:
        return Observation("wrong", detail, repair_command(context))
    with context.lpm() as lpm:
        with writing(lpm.store.durable):
            lpm.store.durable.executemany(
                "UPDATE results SET body_sha256 = ? WHERE task = ?",
                [(digest, task) for task, digest in digests.items()],
            )
        for task in digests:
            lpm.files.write_one(task)
    return Observation("mended", detail)


def _list_again(context: Context, name: str, scan: Scan) -> Observation:
    """Put a segment whose row was lost into the list again: a worker removes unlisted ones."""
    detail = f"{name} is not in the ledger's list of segments, but tasks have their pages there"
    if not context.repair:
        return Observation("wrong", detail, repair_command(context))
    with context.lpm() as lpm, writing(lpm.store.durable):
        lpm.store.durable.execute(
            "INSERT INTO raw_segments (name, end, created_at) VALUES (?, ?, ?)",
            (name, scan.end, lpm.now()),
        )
    return Observation("mended", detail)


def _report_damage(
    context: Context,
    name: str,
    end: int,
    scan: Scan,
    lost: list[ExpectedPage],
    may_return: bool,
) -> Iterator[Observation]:
    what = f"{name} is damaged"
    if scan.size < 0:
        what = f"{name} is missing"
    elif scan.size < end:
        what = f"{name} has {scan.size} of {end} bytes"
    if not lost:
        if scan.size < end or scan.gaps:
            whose = _pages_of_attempts(context, name, [*scan.gaps, (scan.size, end)])
            yield Observation("note", f"{what}; this concerns {whose}, and no result")
        return
    shown = _listed_urls(context, [page.task for page in lost])
    detail = f"{what}: {len(lost)} pages cannot be read, their results are whole: {shown}"
    if may_return and not _is_wanted(context, name):
        accepted = f"the jobs of its {len(lost)} pages have accepted that"
        yield Observation("note", f"{what}; {accepted}")
    elif may_return:
        path = context.folder / "raw" / name
        yield Observation("wrong", detail, f"bring {path} back: mount its disk, or take a backup")
    elif context.repair:
        _note_lost_pages(context, name, lost)
        done = "this is noted at each task, and the segment was left as it is"
        yield Observation("mended", f"{detail}; {done}")
    else:
        yield Observation("wrong", detail, repair_command(context))


def _pages_of_attempts(context: Context, name: str, gaps: list[tuple[int, int]]) -> str:
    """Name the attempts whose pages were in these gaps: failed ones, and those whose pages were
    noted as damaged before."""
    rows = context.db.all(
        """SELECT DISTINCT url, json_extract(detail, '$.raw.offset')
           FROM events JOIN tasks ON tasks.id = task
           WHERE json_extract(detail, '$.raw.segment') = ?""",
        (name,),
    )
    found = [url for url, offset in rows if any(begin <= offset < end for begin, end in gaps)]
    if not found:
        return "no page of a task"
    return f"the pages of {listed(found[:_MAX_SHOWN], len(found))}"


def _listed_urls(context: Context, tasks: list[int]) -> str:
    return listed([_url(context, task) for task in tasks[:_MAX_SHOWN]], len(tasks))


def _url(context: Context, task: int) -> str:
    return str(context.db.value("SELECT url FROM tasks WHERE id = ?", (task,), f"task {task}"))


def _note_lost_pages(context: Context, name: str, lost: list[ExpectedPage]) -> None:
    """Note at each task that its page is lost, and remove the place from its result."""
    with context.lpm() as lpm:
        db = lpm.store.durable
        with writing(db):
            pages_by_job: Counter[int] = Counter()
            for page in lost:
                pages_by_job.update(db.column(_JOBS_THAT_WANT_PAGE, (page.task,)))
                detail = {"segment": name, "offset": page.offset}
                timeline.note(db, page.task, "raw page damaged", detail, lpm.now())
                db.execute(
                    """UPDATE results SET raw_segment = NULL, raw_offset = NULL, raw_length = NULL
                       WHERE task = ?""",
                    (page.task,),
                )
            for job_id, count in pages_by_job.items():
                what = f"the stored pages of {count:,} of its results were lost with {name}"
                jobs.note_loss(db, job_id, what, lpm.now(), jobs.LOST_PAGES)
        for page in lost:
            lpm.files.write_one(page.task)


def _is_wanted(context: Context, name: str) -> bool:
    """Return whether a job wants a page in a segment."""
    sql = f"""SELECT count(*) FROM results r JOIN tasks t ON t.id = r.task
              WHERE raw_segment = ? AND {jobs.PAGE_WANTED_BY_ANY}"""
    return bool(context.db.value(sql, (name,)))


def _report_unknown(context: Context, path: Path) -> Iterator[Observation]:
    """Report a segment that the ledger does not know: a writer died early, or the rest is lost."""
    if context.in_use:
        return  # it may be a living writer's, before its first commit
    what = f"{path.name} holds pages that no task knows"
    if not context.repair:
        what += "; the next worker removes it"
        yield Observation("note", what, repair_command(context))
        return
    tasks = Tasks(Opened(context.db))
    unknown = [url for url in _target_urls(path) if not tasks.for_url(urls.parse(url).key)]
    what += f"; it was set aside as {context.set_aside(path).name}"
    if unknown:
        what += f"; no task is for {listed(unknown[:_MAX_SHOWN], len(unknown))}"
    yield Observation("mended", what)


def _target_urls(path: Path) -> list[str]:
    """Return the URLs of the pages in a segment, up to the first unreadable record."""
    targets: dict[str, None] = {}
    if path.stat().st_size == 0:
        return []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = 0
        while at < len(data) and (member := _read_member(data, at, len(data))) is not None:
            at, record = member
            head = record.partition(b"\r\n\r\n")[0]
            for line in head.decode("utf-8", "replace").split("\r\n"):
                name, _, url = line.partition(": ")
                with suppress(UrlError):
                    if name == "WARC-Target-URI" and urls.parse(url):
                        targets[url] = None
    return list(targets)


# Files in pending/


def check_pending(context: Context) -> Iterator[Observation]:
    """Check that pending/ holds each result that was neither synced nor archived, and no other."""
    folder = context.folder / "pending"
    context.progress(f"reading {folder} …")
    before = float("inf")
    if context.in_use:
        before = time.time() - _GRACE_S
    names, gone = _expected_files(context, before)
    files: dict[str, list[Path]] = {"unreadable": [], "different": [], "stale": [], "foreign": []}
    whole = 0
    if folder.is_dir():
        for path in folder.iterdir():
            kind = _kind(context, path, gone)
            whole += kind == "whole"
            if kind in files:
                files[kind].append(path)
            if path.suffix == ".json":
                names.discard(path.stem)
    missing = missing_files(context.db, folder, names, lambda: context.in_use)
    if foreign := sorted(path.name for path in files["foreign"]):
        shown = listed(foreign[:_MAX_SHOWN], len(foreign))
        yield Observation("note", f"{len(foreign)} files in pending/ are not ours: {shown}")
    unreadable, different, stale = files["unreadable"], files["different"], files["stale"]
    what = f"{len(missing)} files are missing in pending/, {len(unreadable)} cannot be read"
    what += f", {len(stale)} should be gone"
    if different:
        task_ids = [path.stem for path in different[:_MAX_SHOWN]]
        what += f", {len(different)} say something else than the ledger: "
        what += listed(task_ids, len(different))
    wrong = missing or unreadable or different
    if not wrong and not stale:
        yield Observation("ok", f"{whole} results in pending/ are whole")
    elif context.repair:
        made = _restore_pending(context, unreadable + different, stale)
        yield Observation("mended", f"{what}; {made} were written again from the ledger")
    elif wrong:
        yield Observation("wrong", what, repair_command(context))
    else:
        yield Observation("note", what, repair_command(context))


def _restore_pending(context: Context, damaged: list[Path], stale: list[Path]) -> int:
    """Set damaged files aside, remove stale ones and write what is missing. Returns how many."""
    for path in damaged:
        context.set_aside(path)
    for path in stale:
        if path.is_dir():
            context.set_aside(path)
        else:
            path.unlink(missing_ok=True)
    with context.lpm() as lpm:
        return lpm.files.restore()


def _kind(context: Context, path: Path, gone: set[str]) -> str | None:
    """Return what a file in pending/ is; None for files in the making and hidden files of
    others."""
    if path.name.startswith("."):
        ours = UNFINISHED.fullmatch(path.name)
        if ours and time.time() - path.lstat().st_mtime > _GRACE_S:
            return "stale"
        return None
    known = context.db.one("SELECT 1 FROM tasks WHERE task_id = ?", (path.stem,))
    if path.suffix != ".json" or not known:
        return "foreign"
    if path.stem in gone:
        return "stale"
    if not is_whole(path):
        return "unreadable"
    with suppress(FileNotFoundError):  # it has just been sent
        if not agrees(context.db, path.stem, msgspec.json.decode(read_regular(path))):
            return "different"
    return "whole"


def _expected_files(context: Context, before: float) -> tuple[set[str], set[str]]:
    """Return the task ids that must have a file, and those that must not: their results left
    pending/ before that time."""
    due: set[str] = set()
    gone: set[str] = set()
    for task_id, has_left, long_ago in context.db.execute(
        """SELECT task_id, state = 'synced' OR archived_at IS NOT NULL,
               max(coalesce(synced_at, 0), coalesce(archived_at, 0)) < ?
           FROM outbox JOIN tasks ON id = task""",
        (before,),
    ):
        if not has_left:
            due.add(task_id)
        elif long_ago:
            gone.add(task_id)
    return due, gone


# Lost results, rebuilt from their stored pages

_LOST_RESULTS = """
    SELECT t.id, t.url, c.at, c.detail, iif(t.method = 'FILE', t.body, '')
    FROM tasks t JOIN events c
        ON c.id = (SELECT max(id) FROM events WHERE task = t.id AND kind = 'completed')
    WHERE t.status IN ('pending', 'expired') AND t.id NOT IN (SELECT task FROM results)
      AND t.id IN (SELECT task FROM events WHERE kind = 'result lost' AND id > c.id)"""


class _Completed(msgspec.Struct, frozen=True):
    """What the timeline of a task says about its lost result."""

    status: int = 200
    verdict: str = "ok"
    fetch_ms: float = 0.0
    parse_ms: float = 0.0
    raw: RawLocation | None = None
    record_crc32: int | None = None


def rebuild_results(context: Context) -> Iterator[Observation]:
    """Rebuild results that a repair could not save, if their stored pages can be read."""
    if not context.repair or context.reparse is None:
        return
    lost = context.db.all(_LOST_RESULTS)
    if not lost:
        return
    context.close()
    made, same = [], 0
    with context.lpm() as lpm:
        now, db = lpm.now(), lpm.store.durable
        with writing(db):
            for task, url, at, told, named_by in lost:
                completed = msgspec.json.decode(told, type=_Completed)
                result = _rebuilt(context, url, at, completed, named_by)
                if result is None:
                    continue
                checksum = zlib.crc32(result["record"].encode())
                _store(db, task, result, at, now)
                detail = {
                    "again": "from the stored page",
                    "raw": completed.raw,
                    "record_crc32": checksum,
                }
                timeline.note(db, task, "completed", detail, now)
                same += checksum == completed.record_crc32
                made.append(task)
        lpm.jobs.finalise(now)
        for task in made:
            lpm.files.write_one(task)
    if made:
        what = f"{len(made)} of {len(lost)} lost results were rebuilt from their stored pages"
        if len(made) > same:
            what += f", {len(made) - same} of them with another record than before"
        yield Observation("mended", what)


def _rebuilt(
    context: Context, url: str, at: float, completed: _Completed, named_by: str
) -> dict[str, Any] | None:
    """Return the columns of a result, except its task; None if its page cannot be read, or has no
    record any more. `named_by` is the site that names a file."""
    place = completed.raw
    if place is None or context.reparse is None:
        return None
    try:
        record = zlib.decompress(raw_pages.member(context.folder / "raw", place), wbits=31)
        fields, head, received = raw_pages.response(record)
        final_url, date = _field(fields, b"WARC-Target-URI: "), _field(fields, b"WARC-Date: ")
        if named_by:  # the same bytes may have come from another URL first
            final_url = url
        parsed = context.reparse(url, final_url, head, received, named_by)
    except (CrawlerError, ValueError, zlib.error):
        return None
    if parsed is None:
        return None
    return {
        "record": parsed.record.decode(),
        "final_url": final_url,
        "status_code": completed.status,
        "content_type": parsed.content_type,
        "verdict": completed.verdict,
        "bytes": len(parsed.body),
        "body_sha256": sha256(parsed.body).hexdigest(),
        "fetch_ms": completed.fetch_ms,
        "parse_ms": completed.parse_ms,
        "parser": parsed.parser[0],
        "parser_version": parsed.parser[1],
        "raw_segment": place.segment,
        "raw_offset": place.offset,
        "raw_length": place.length,
        "scraped_at": _timestamp(date, at),
        "site": parsed.site[0],
        "site_version": parsed.site[1],
        "invalid": encoded_reasons(parsed.invalid),
    }


def _field(fields: list[bytes], name: bytes) -> str:
    return next((line.removeprefix(name).decode() for line in fields if line.startswith(name)), "")


def _timestamp(date: str, default: float) -> float:
    try:
        return datetime.fromisoformat(date).timestamp()
    except ValueError:
        return default


def _store(db: Database, task: int, result: dict[str, Any], at: float, now: float) -> None:
    seq = db.value(f"SELECT {NEXT_SEQ}")
    insert_row(db, "results", {"task": task, **result, "seq": seq})
    db.execute(
        """UPDATE tasks SET status = 'completed', owner = NULL, error_type = NULL,
               error_message = NULL, completed_at = ?
           WHERE id = ?""",
        (at, task),
    )
    db.execute(
        """INSERT OR IGNORE INTO outbox (task, state, created_at)
           SELECT id, iif(source = 'gateway', 'ready', 'held'), ? FROM tasks WHERE id = ?""",
        (now, task),
    )
