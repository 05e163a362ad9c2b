"""raw/ and pending/: every stored page can be read, and every result has its file."""

import mmap
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import msgspec
from isal import isal_zlib

from crawler import urls
from crawler.db import jobs, results, timeline
from crawler.db import raw_pages as warc
from crawler.db.connection import reading, writing
from crawler.db.pending import UNFINISHED, is_whole, missing_files
from crawler.db.results import PRUNED
from crawler.db.store import Opened
from crawler.db.tasks import Tasks
from crawler.doctor import Context, Seen, repair
from crawler.errors import FetchError, UrlError
from crawler.fetch.body import decoded
from crawler.files import read_regular

_SHOWN = 20
_STEP = 1 << 16
_GRACE_S = 60
"""What somebody at work may not have done yet."""


class Place(msgspec.Struct, frozen=True):
    """Where a result says that its page is, and what its body is known by."""

    offset: int
    task: int
    length: int
    digest: str
    final_url: str


class Walk(msgspec.Struct):
    """What a walk through a segment has found."""

    size: int = -1
    """Negative where there is no such file."""
    good: set[int] = msgspec.field(default_factory=set)
    """The tasks whose pages are as they should be."""
    digests: dict[int, str] = msgspec.field(default_factory=dict)
    """What the pages of these tasks have for a digest, where the results say another: by all else
    it is the page."""
    gaps: list[tuple[int, int]] = msgspec.field(default_factory=list)
    """Stretches without a whole record."""
    end: int = 0
    """Where the last whole record ends."""


def segments(context: Context) -> Iterator[Seen]:
    """Every segment is as long as the ledger knows it, and every page in it can be read."""
    known = [name for (name,) in context.db.all(_KNOWN)]
    there = {path.name: path for path in sorted((context.folder / "raw").glob("[!.]*.warc.gz"))}
    if there.keys() - set(
        known
    ):  # those of failed attempts are named by events alone, and there are many of these
        known += sorted((there.keys() - set(known)) & {name for (name,) in context.db.all(_TOLD)})
    [(total,)] = context.db.all("SELECT count(raw_segment) FROM results")
    bad = 0
    for number, name in enumerate(known, 1):
        context.tell(f"reading segment {number} of {len(known)}: {name} …")
        end, places = _places(context, name)
        walk = _walk(there[name], end, places) if name in there else Walk()
        if walk.digests:
            bad += len(walk.digests)
            yield _other_digests(context, name, walk.digests)
        lost = [
            place
            for place in places
            if place.task not in walk.good and place.task not in walk.digests
        ]
        bad += len(lost)
        if name in there and end is None:
            yield _unlisted(context, name, walk)
        # A disk that is not mounted comes back; a name that is in no list, beside segments that are
        # there, is noise.
        waits = name not in there and (end is not None or not there)
        yield from _judge(context, name, end or walk.size, walk, lost, waits)
    for name in sorted(there.keys() - set(known)):
        yield from _orphan(context, there[name])
    if not bad:
        yield Seen("ok", f"{total} stored pages in {len(there)} segments can be read")


_KNOWN = """SELECT name FROM raw_segments
            UNION SELECT raw_segment FROM results WHERE raw_segment IS NOT NULL ORDER BY 1"""
_TOLD = f"""SELECT json_extract(detail, '$.raw.segment') FROM events WHERE detail LIKE '%"raw":%'
            EXCEPT SELECT substr(key, {len(PRUNED) + 1}) FROM meta WHERE key LIKE '{PRUNED}%'"""


def _places(context: Context, name: str) -> tuple[int | None, list[Place]]:
    """A segment's committed end and the pages in it, as of one moment: it may be growing."""
    with reading(context.db):
        row = context.db.one("SELECT end FROM raw_segments WHERE name = ?", (name,))
        rows = context.db.all(
            "SELECT raw_offset, task, raw_length, body_sha256, final_url FROM results WHERE raw_segment = ?",
            (name,),
        )
    return row[0] if row else None, [Place(*place) for place in rows]


def _walk(path: Path, end: int | None, places: list[Place]) -> Walk:
    """Go through a segment record by record, and compare the bodies of pages with what results say
    of them."""
    walk = Walk(path.stat().st_size)
    if walk.size == 0:
        return walk
    at_offset: dict[int, list[Place]] = {}
    for place in places:  # an unchanged page is at the place of the one it is the same as
        at_offset.setdefault(place.offset, []).append(place)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at, limit = 0, len(data) if end is None else min(end, len(data))
        while at < limit:
            wanted = at_offset.get(at, [])
            found = _member(data, at, limit, whole=bool(wanted))
            if found is None:
                following = data.find(warc.GZIP, at + 1, limit)
                behind = limit if following < 0 else following
                walk.gaps.append((at, behind))
            else:
                behind, record = found
                _compare(walk, record, [place for place in wanted if place.length == behind - at])
                walk.end = behind
            at = behind
    return walk


def _member(data: mmap.mmap, at: int, limit: int, whole: bool = False) -> tuple[int, bytes] | None:
    """The end of the gzip member that begins there, if it is one with the right checksum, and its
    text (or the beginning of that)."""
    if data[at : at + len(warc.GZIP)] != warc.GZIP:
        return None
    inflater, begin = isal_zlib.decompressobj(wbits=31), at
    texts: list[bytes] = []
    try:
        while at < limit and not inflater.eof:
            piece = data[at : min(at + _STEP, limit)]
            text = inflater.decompress(piece)
            if at == begin and not text.startswith(b"WARC/"[: len(text)]):
                return None
            if whole or not texts:
                texts.append(text)
            at += len(piece)
    except isal_zlib.error:  # type: ignore[misc]  # its stub does not tell that it is an exception
        return None
    return (at - len(inflater.unused_data), b"".join(texts)) if inflater.eof else None


def _compare(walk: Walk, record: bytes, places: list[Place]) -> None:
    """Whether the body of a record is the one that results were made of."""
    if not places:
        return
    try:
        fields, head, received = warc.response(record)
        digest = sha256(decoded(head, received, limit=1 << 30)).hexdigest()
    except (ValueError, FetchError):
        return
    for place in places:
        if digest == place.digest:
            walk.good.add(place.task)
        elif b"WARC-Target-URI: " + place.final_url.encode() in fields and _is_intact(
            fields, received
        ):
            walk.digests[place.task] = digest


def _is_intact(fields: list[bytes], received: bytes) -> bool:
    """Whether a body is as long ago, when it was written with its own digest."""
    return b"WARC-Payload-Digest: sha256:" + sha256(received).hexdigest().encode() in fields


def _other_digests(context: Context, name: str, digests: dict[int, str]) -> Seen:
    """Results that know their pages by another digest than these have: it is the ledger that is
    damaged there."""
    shown = _listed([_url(context, task) for task in list(digests)[:_SHOWN]], len(digests))
    detail = f"body_sha256 of {len(digests)} results is not that of their pages in {name}, which are whole: {shown}"
    if not context.repair:
        return Seen("wrong", detail, repair(context))
    with context.lpm() as lpm:
        with writing(lpm.store.durable):
            lpm.store.durable.executemany(
                "UPDATE results SET body_sha256 = ? WHERE task = ?",
                [(digest, task) for task, digest in digests.items()],
            )
        for task in digests:
            lpm.files.write_one(task)
    return Seen("mended", detail)


def _unlisted(context: Context, name: str, walk: Walk) -> Seen:
    """Put a segment whose row was lost into the list again, or it would be taken for nobody's and
    removed."""
    detail = f"{name} is not in the ledger's list of segments, but tasks have their pages there"
    if not context.repair:
        return Seen("wrong", detail, repair(context))
    with context.lpm() as lpm, writing(lpm.store.durable):
        lpm.store.durable.execute(
            "INSERT INTO raw_segments (name, end, created_at) VALUES (?, ?, ?)",
            (name, walk.end, lpm.now()),
        )
    return Seen("mended", detail)


def _judge(
    context: Context, name: str, end: int, walk: Walk, lost: list[Place], waits: bool
) -> Iterator[Seen]:
    what = (
        "is missing"
        if walk.size < 0
        else f"has {walk.size} of {end} bytes"
        if walk.size < end
        else "is damaged"
    )
    if lost:
        shown = _listed([_url(context, place.task) for place in lost[:_SHOWN]], len(lost))
        detail = (
            f"{name} {what}: {len(lost)} pages cannot be read, their results are whole: {shown}"
        )
        if waits and not _wanted(context, name):
            yield Seen(
                "note", f"{name} {what}; the jobs of its {len(lost)} pages have accepted that"
            )
        elif waits:
            yield Seen(
                "wrong",
                detail,
                f"bring {context.folder / 'raw' / name} back: mount its disk, or take a backup",
            )
        elif context.repair:
            _forget(context, name, lost)
            yield Seen(
                "mended", f"{detail}; this is noted at each task, and the segment was left as it is"
            )
        else:
            yield Seen("wrong", detail, repair(context))
    elif walk.size < end or walk.gaps:
        others = _without_place(context, name, [*walk.gaps, (walk.size, end)])
        whose = (
            f"the pages of {_listed(others[:_SHOWN], len(others))}"
            if others
            else "no page of a task"
        )
        yield Seen("note", f"{name} {what}; this concerns {whose}, and no result")


def _listed(names: list[str], count: int) -> str:
    return ", ".join(names) + (f" and {count - len(names)} more" if count > len(names) else "")


def _without_place(context: Context, name: str, gaps: list[tuple[int, int]]) -> list[str]:
    """The URLs of attempts whose pages were there: failed ones, and those that were noted as
    damaged before."""
    rows = context.db.all(
        """SELECT DISTINCT url, json_extract(detail, '$.raw.offset') FROM events JOIN tasks ON tasks.id = task
           WHERE json_extract(detail, '$.raw.segment') = ?""",
        (name,),
    )
    return [url for url, offset in rows if any(begin <= offset < end for begin, end in gaps)]


def _url(context: Context, task: int) -> str:
    row = context.db.one("SELECT url FROM tasks WHERE id = ?", (task,))
    return str(row[0]) if row else f"task {task}"


def _forget(context: Context, name: str, lost: list[Place]) -> None:
    """Note at each task that its page is lost; its result no longer names a place."""
    with context.lpm() as lpm:
        with writing(lpm.store.durable):
            whose: Counter[int] = Counter()
            for place in lost:
                whose.update(job_id for (job_id,) in lpm.store.durable.all(_WHOSE, (place.task,)))
                about = {"segment": name, "offset": place.offset}
                timeline.note(lpm.store.durable, place.task, "raw page damaged", about, lpm.now())
                lpm.store.durable.execute(
                    "UPDATE results SET raw_segment = NULL, raw_offset = NULL, raw_length = NULL WHERE task = ?",
                    (place.task,),
                )
            for job_id, count in whose.items():
                what = f"the stored pages of {count:,} of its results were lost with {name}"
                jobs.note_loss(lpm.store.durable, job_id, what, lpm.now(), jobs.LOST_PAGES)
        for place in lost:
            if _projects(context, place.task):
                lpm.files.write_one(place.task)


_WHOSE = f"""
    SELECT j.id FROM results JOIN (
        SELECT job_id AS id FROM tasks WHERE id = ?1 UNION SELECT job_id FROM job_links WHERE task = ?1) j
    WHERE task = ?1 AND j.id IS NOT NULL AND {jobs.WANTED_PAGE.format(job="j.id")}"""
"""The jobs that a task counts for, its own and those that share it, unless they do without its
page."""


def _wanted(context: Context, name: str) -> int:
    """How many results have a page in a segment that some job does not do without."""
    sql = f"""SELECT count(*) FROM results r JOIN tasks t ON t.id = r.task
              WHERE raw_segment = ? AND {jobs.PAGE_WANTED_BY_ANY}"""
    [(count,)] = context.db.all(sql, (name,))
    return int(count)


def _projects(context: Context, task: int) -> bool:
    return bool(
        context.db.one(
            "SELECT 1 FROM outbox WHERE task = ? AND state <> 'synced' AND archived_at IS NULL",
            (task,),
        )
    )


def _orphan(context: Context, path: Path) -> Iterator[Seen]:
    """A segment that the ledger does not know: a dead writer's beginning, or all that is left of
    something."""
    if context.alive:
        return  # a living writer's, before its first commit
    if context.repair:
        tasks = Tasks(Opened(context.db))
        unknown = [url for url in _targets(path) if not tasks.for_url(urls.parse(url).key)]
        whose = f"; no task is for {_listed(unknown[:_SHOWN], len(unknown))}" if unknown else ""
        kept = context.aside(path)
        yield Seen(
            "mended",
            f"{path.name} holds pages that no task knows; it was set aside as {kept.name}{whose}",
        )
    else:
        yield Seen(
            "note",
            f"{path.name} holds pages that no task knows; the next worker removes it",
            repair(context),
        )


def _targets(path: Path) -> list[str]:
    """The URLs of the pages in a segment, as far as they can be read."""
    targets: dict[str, None] = {}
    if path.stat().st_size == 0:
        return []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = 0
        while at < len(data) and (found := _member(data, at, len(data))) is not None:
            behind, record = found
            head = record.partition(b"\r\n\r\n")[0]
            for line in head.decode("utf-8", "replace").split("\r\n"):
                name, _, url = line.partition(": ")
                with suppress(UrlError):
                    if name == "WARC-Target-URI" and urls.parse(url):
                        targets[url] = None
            at = behind
    return list(targets)


def projections(context: Context) -> Iterator[Seen]:
    """pending/ holds each result that was neither synced nor archived, and nothing else of ours."""
    folder = context.folder / "pending"
    context.tell(f"reading {folder} …")
    names, gone = _expected(context, time.time() - _GRACE_S if context.alive else float("inf"))
    files: dict[str, list[Path]] = {"unreadable": [], "other": [], "left": [], "foreign": []}
    whole = 0
    for path in folder.iterdir() if folder.is_dir() else ():
        kind = _kind(context, path, gone)
        whole += kind == "whole"
        if kind in files:
            files[kind].append(path)
        if path.suffix == ".json":
            names.discard(path.stem)
    due = missing_files(context.db, folder, names, lambda: context.alive)
    unreadable, left, foreign = (
        files["unreadable"],
        files["left"],
        sorted(path.name for path in files["foreign"]),
    )
    other = files["other"]
    if foreign:
        shown = _listed(foreign[:_SHOWN], len(foreign))
        yield Seen("note", f"{len(foreign)} files in pending/ are none of ours: {shown}")
    what = f"{len(due)} files are missing in pending/, {len(unreadable)} cannot be read, {len(left)} should be gone"
    if other:
        what += f", {len(other)} say something else than the ledger: "
        what += _listed([path.stem for path in other[:_SHOWN]], len(other))
    if not due and not unreadable and not left and not other:
        yield Seen("ok", f"{whole} results in pending/ are whole")
    elif context.repair:
        for path in unreadable + other:
            context.aside(path)
        for path in left:
            if path.is_dir():
                context.aside(path)
            else:
                path.unlink(missing_ok=True)
        with context.lpm() as lpm:
            made = lpm.files.restore()
        yield Seen("mended", f"{what}; {made} were made again from the ledger")
    else:
        yield Seen("wrong" if due or unreadable or other else "note", what, repair(context))


def _kind(context: Context, path: Path, gone: set[str]) -> str | None:
    """What a file in pending/ is; None for what somebody is just writing, and for what others hide
    there."""
    if path.name.startswith("."):
        ours = UNFINISHED.fullmatch(path.name)
        return "left" if ours and time.time() - path.lstat().st_mtime > _GRACE_S else None
    if path.suffix != ".json" or not context.db.one(
        "SELECT 1 FROM tasks WHERE task_id = ?", (path.stem,)
    ):
        return "foreign"
    if path.stem in gone:
        return "left"
    if not is_whole(path):
        return "unreadable"
    with suppress(FileNotFoundError):  # it has just been sent
        if not results.agrees(context.db, path.stem, msgspec.json.decode(read_regular(path))):
            return "other"
    return "whole"


def _expected(context: Context, before: float) -> tuple[set[str], set[str]]:
    """The names that must be there, and those that must not be: what left before that time."""
    due: set[str] = set()
    gone: set[str] = set()
    for name, ended, long_ago in context.db.execute(
        """SELECT task_id, state = 'synced' OR archived_at IS NOT NULL,
               max(coalesce(synced_at, 0), coalesce(archived_at, 0)) < ?
           FROM outbox JOIN tasks ON id = task""",
        (before,),
    ):
        if not ended:
            due.add(name)
        elif long_ago:
            gone.add(name)
    return due, gone
