"""Bundles: carried whole, and refused where they were damaged or made to do damage."""

import io
import json
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from crawler.errors import InputError
from crawler.lpm import LocalPersistenceManager
from crawler.models import RawLocation
from crawler.results import bundle
from crawler.results.archive import ZSTD_OPTIONS
from crawler.results.bundle import unbundle
from tests.support.patient import look, wrong
from tests.support.tasks import collect, done, new

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdFile
else:
    from backports.zstd import ZstdFile

MAX_BODY = 1_000_000

Entry = tuple[bytes, bytes]
"""A member's header and its data."""


@pytest.fixture
def lpm(tmp_path: Path) -> Iterator[LocalPersistenceManager]:
    """A store with three results of a job and their pages."""
    lpm = LocalPersistenceManager(tmp_path / "data")
    collect(lpm, "first", 3)
    yield lpm
    lpm.close()


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> list[Entry]:
    """The members of a good bundle."""
    folder = tmp_path_factory.mktemp("good")
    lpm = LocalPersistenceManager(folder / "data")
    collect(lpm, "first", 3)
    bundle.bundle(lpm, folder / "b", job=None, since=None, raw=True)
    lpm.close()
    return unpack(folder / "b")


def unpack(path: Path) -> list[Entry]:
    with ZstdFile(path) as file, tarfile.open(fileobj=io.BytesIO(file.read())) as tar:
        files = [(info.name, tar.extractfile(info)) for info in tar]
        return [entry(name, file.read()) for name, file in files if file]


def entry(name: str, data: bytes) -> Entry:
    return bundle.tar_header(name, len(data)), data


def other(data: bytes = b"", **fields: Any) -> Entry:
    """A member as another program could write it."""
    info = tarfile.TarInfo(fields.pop("name", "records/000002.jsonl"))
    for key, value in fields.items():
        setattr(info, key, value)
    info.size = fields.get("size", len(data))
    return info.tobuf(tarfile.GNU_FORMAT), data


def pack(path: Path, entries: Sequence[Entry], end: bytes = bytes(1024)) -> Path:
    with ZstdFile(path, "w", options=ZSTD_OPTIONS) as out:
        for header, data in entries:
            out.write(header + data + bytes(-len(data) % 512))
        out.write(end)
    return path


def signed(records: Sequence[dict[str, Any]], raw: bytes, **fields: Any) -> list[Entry]:
    """A bundle with a manifest that fits these members, whatever they hold."""
    lines = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    members = [(b"records/000001.jsonl", lines), (b"raw/000001.warc.gz", raw)]
    listed = [
        {"name": name.decode(), "size": len(data), "sha256": sha256(data).hexdigest()}
        for name, data in members
        if data
    ]
    manifest = {
        "format": "crawler bundle", "version": 1, "crawler": "1", "ledger": "x", "created_at": "x",
        "job": None, "since": None, "results": len(records),
        "pages": sum(record["raw"] is not None for record in records), "members": listed,
    }  # fmt: skip
    files = [
        *((name.decode(), data) for name, data in members if data),
        ("manifest.json", json.dumps(manifest | fields).encode()),
    ]
    return [entry(name, data) for name, data in files]


def refused(path: Path, reason: str = ".") -> None:
    """Nothing of the file is stored, not even a store is made."""
    lpm = LocalPersistenceManager(path.parent / "other")
    with pytest.raises(InputError, match=reason) as info:
        unbundle(lpm, path, MAX_BODY)
    assert info.value.path == str(path)
    assert not lpm.folder.exists()


def parts(entries: Sequence[Entry]) -> tuple[list[dict[str, Any]], bytes]:
    return [json.loads(line) for line in entries[0][1].splitlines()], entries[1][1]


def test_a_bundle_comes_back_as_it_was(lpm: LocalPersistenceManager, tmp_path: Path) -> None:
    """Packed again from its parts, a bundle is taken in: the same results and pages, held, in a job
    that is done."""
    written = bundle.bundle(lpm, tmp_path / "b", job=None, since=None, raw=True)
    entries = unpack(tmp_path / "b")
    there = LocalPersistenceManager(tmp_path / "there")
    stored = unbundle(there, pack(tmp_path / "again", entries), MAX_BODY)

    assert (stored.results, stored.new, stored.known, stored.pages, stored.job) == (
        3,
        3,
        0,
        3,
        "again",
    )
    assert stored.checksum == written.checksum == sha256(entries[-1][1]).hexdigest()
    here = [result | {"raw": None, "job": "again"} for result in lpm.results.read()]
    assert [result | {"raw": None} for result in there.results.read()] == here
    assert [there.pages.read(n) for n in (1, 2, 3)] == [lpm.pages.read(n) for n in (1, 2, 3)]
    assert there.store.db.all("SELECT state FROM outbox") == [("held",)] * 3
    assert there.store.db.all("SELECT status, size FROM jobs") == [("done", 3)]
    for column in ("imported_at", "completed_at", "content_type", "bytes", "fetch_ms"):
        sql = f"SELECT {column} FROM results JOIN tasks ON tasks.id = task ORDER BY task"
        assert there.store.db.all(sql) == lpm.store.db.all(sql)
    there.close()


def test_pages_that_are_lacking_come_with_a_later_bundle(
    lpm: LocalPersistenceManager, tmp_path: Path
) -> None:
    """After a bundle without pages, the full one brings them; a third time there is nothing to
    bring."""
    bundle.bundle(lpm, tmp_path / "bare", job=None, since=None, raw=False)
    bundle.bundle(lpm, tmp_path / "full", job=None, since=None, raw=True)
    there = LocalPersistenceManager(tmp_path / "there")
    bare = unbundle(there, tmp_path / "bare", MAX_BODY)
    results = [result | {"raw": None} for result in there.results.read()]

    full, again = (unbundle(there, tmp_path / "full", MAX_BODY) for _ in range(2))

    assert (bare.new, bare.added_pages) == (3, 0)
    assert (full.new, full.known, full.added_pages, again.added_pages) == (0, 3, 3, 0)
    assert [there.pages.read(n) for n in (1, 2, 3)] == [lpm.pages.read(n) for n in (1, 2, 3)]
    assert [result | {"raw": None} for result in there.results.read()] == results
    files = {path.stem: json.loads(path.read_bytes()) for path in there.pending.glob("*.json")}
    assert files == {result["task_id"]: result for result in there.results.read()}
    there.close()
    assert wrong(look(tmp_path / "there")) == []


def test_a_page_with_another_digest_is_not_taken_in(
    lpm: LocalPersistenceManager, tmp_path: Path
) -> None:
    """The page of a known result is only that whose digest the ledger has."""
    bundle.bundle(lpm, tmp_path / "full", job=None, since=None, raw=True)
    lpm.store.durable.execute(
        "UPDATE results SET raw_segment = NULL, raw_offset = NULL, raw_length = NULL"
    )
    lpm.store.durable.execute(
        "UPDATE results SET body_sha256 = ? WHERE task = 2", (sha256(b"other").hexdigest(),)
    )

    done = unbundle(lpm, tmp_path / "full", MAX_BODY)

    assert (done.known, done.added_pages) == (3, 2)
    found = lpm.store.db.all("SELECT task, raw_segment IS NULL FROM results ORDER BY task")
    assert found == [(1, 0), (2, 1), (3, 0)]


def test_a_gateways_id_travels(tmp_path: Path) -> None:
    """A Gateway's own id comes along, so that another machine can deliver the result."""
    here, there = (
        LocalPersistenceManager(tmp_path / "here"),
        LocalPersistenceManager(tmp_path / "there"),
    )
    here.persist_tasks([new("http://a.example/1", external_id="t-1")], source="gateway")
    here.save_result(done(here.get_next_pending("owner")[0]))
    bundle.bundle(here, tmp_path / "b", job=None, since=None, raw=False)
    unbundle(there, tmp_path / "b", MAX_BODY)

    assert there.store.db.all("SELECT external_id, source FROM tasks") == [("t-1", "bundle")]
    here.close()
    there.close()


def test_a_damaged_page_does_not_hold_up_its_record(
    lpm: LocalPersistenceManager, tmp_path: Path
) -> None:
    """A page that cannot be read is left out of the bundle and counted; the bundle is good."""
    [path] = lpm.raw.iterdir()
    place = place_of(lpm, 2)
    with path.open("r+b") as file:
        file.seek(place.offset + place.length // 2)
        file.write(b"\0\0\0\0")

    written = bundle.bundle(lpm, tmp_path / "b", job=None, since=None, raw=True)
    there = LocalPersistenceManager(tmp_path / "there")
    stored = unbundle(there, tmp_path / "b", MAX_BODY)

    assert (written.results, written.pages, written.unreadable) == (3, 2, 1)
    assert (stored.new, stored.pages) == (3, 2)
    assert [there.pages.read(n) is not None for n in (1, 2, 3)] == [True, False, True]
    there.close()


def place_of(lpm: LocalPersistenceManager, task: int) -> RawLocation:
    place = lpm.results.place_of(task)
    assert place is not None
    return place


def test_a_task_that_is_open_here_is_left_as_it_is(
    lpm: LocalPersistenceManager, tmp_path: Path
) -> None:
    """Where a ledger has the task but not the result, as after a restored backup, that is said, and
    no more."""
    bundle.bundle(lpm, tmp_path / "b", job=None, since=None, raw=True)
    there = LocalPersistenceManager(tmp_path / "there")
    there.persist_tasks([new("http://first.example/0", parcel_id="0")])
    [(task_id,)] = lpm.store.db.all("SELECT task_id FROM tasks WHERE id = 1")
    there.store.durable.execute("UPDATE tasks SET task_id = ?", (task_id,))

    stored = unbundle(there, tmp_path / "b", MAX_BODY)

    assert (stored.new, stored.known, stored.open) == (2, 1, 1)
    books = there.counts.totals()
    assert (books.accepted, books.pending, books.completed, books.results) == (3, 1, 2, 2)
    there.close()


@pytest.mark.parametrize("cut", [0, 1, 4, 100, -200, -5, -1])
def test_a_truncated_bundle(entries: list[Entry], tmp_path: Path, cut: int) -> None:
    """A file that ends too early, wherever."""
    path = pack(tmp_path / "b", entries)
    path.write_bytes(path.read_bytes()[:cut])
    refused(path, "truncated|not a bundle")


def test_flipped_bits_in_a_bundle(entries: list[Entry], tmp_path: Path) -> None:
    """One wrong bit anywhere, in the file or in what it packs, is noticed."""
    path = pack(tmp_path / "b", entries)
    good = path.read_bytes()
    with ZstdFile(path) as file:
        plain = file.read()
    for place in range(0, len(good), len(good) // 40):
        path.write_bytes(good[:place] + bytes([good[place] ^ 4]) + good[place + 1 :])
        with suppress(Exception), ZstdFile(path) as file:
            if file.read() == plain:
                continue  # a bit that zstd has no use for
        refused(path)
    for number, (header, data) in enumerate(entries[:2]):
        for place in range(0, len(data), len(data) // 10):
            flipped = (header, data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
            refused(pack(path, [*entries[:number], flipped, *entries[number + 1 :]]))


HOSTILE: dict[str, tuple[Callable[[list[Entry]], list[Entry]], str]] = {
    "path": (lambda e: [other(b"x", name="../../etc/passwd"), *e], "does not write"),
    "own path": (lambda e: [entry("../../etc/passwd", b"x"), *e], "passwd where records/000001"),
    "absolute": (lambda e: [entry("/etc/passwd", b"x"), *e], "passwd where records/000001"),
    "escape": (lambda e: [entry("\x1b[2J", b"x"), *e], r"\\x1b\[2J where records/000001"),
    "symlink": (lambda e: [*e[:2], other(type=tarfile.SYMTYPE, linkname="/etc"), e[2]],
                "does not write"),
    "hard link": (lambda e: [*e[:2], other(type=tarfile.LNKTYPE, linkname="x"), e[2]],
                  "does not write"),
    "device": (lambda e: [*e[:2], other(type=tarfile.CHRTYPE, devmajor=1, devminor=5), e[2]],
               "does not write"),
    "fifo": (lambda e: [other(type=tarfile.FIFOTYPE), *e], "does not write"),
    "pax": (lambda e: [other(b"30 mtime=1\n", type=tarfile.XHDTYPE), *e], "does not write"),
    "other mode": (lambda e: [other(e[0][1], name="records/000001.jsonl", mode=0o4755), *e[1:]],
                   "does not write"),
    "twice": (lambda e: [e[0], e[0], *e[1:]], "not where its record says"),
    "pages twice": (lambda e: [e[0], e[1], e[1], e[2]], "where records/000002"),
    "order": (lambda e: [e[1], e[0], e[2]], "raw/000001.warc.gz where"),
    "no pages": (lambda e: [e[0], e[2]], "not where its record says"),
    "no records": (lambda e: [e[2]], "has 0 members"),
    "no manifest": (lambda e: e[:2], "no manifest"),
    "behind the manifest": (lambda e: [*e, e[0]], "after its manifest"),
    "empty": (lambda e: [], "no manifest"),
    "empty records": (lambda e: [entry("records/000001.jsonl", b""), *e[1:]], "whole lines"),
    "huge": (lambda e: [(bundle.tar_header("records/000001.jsonl", 8**11 - 1), b"")],
             "more than a bundle's members"),
    "lying size": (lambda e: [(bundle.tar_header("records/000001.jsonl", 9_999_999), b"")],
                   "truncated"),
    "negative size": (lambda e: [(b"records/000001.jsonl".ljust(124, b"\0") + b"\xff" * 388, b"")],
                      "does not write"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_tar(entries: list[Entry], tmp_path: Path, kind: str) -> None:
    """Members that a bundle does not have, or not there, are refused by name, and no file appears
    anywhere."""
    change, reason = HOSTILE[kind]
    refused(pack(tmp_path / "b", change(entries)), reason)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b"]


@pytest.mark.parametrize(
    ("end", "reason"),
    [(b"", "truncated"), (bytes(512), "truncated"), (bytes(9999), "after its end")],
)
def test_what_is_behind_the_end(
    entries: list[Entry], tmp_path: Path, end: bytes, reason: str
) -> None:
    """A tar ends with two empty blocks, and then there is nothing."""
    refused(pack(tmp_path / "b", entries, end), reason)


def test_what_is_no_bundle(tmp_path: Path) -> None:
    """Text, nothing, a folder, a missing file and plain zstd are one clear error each."""
    path = tmp_path / "b"
    refused(path, "no such file")
    path.write_bytes(b"")
    refused(path, "truncated")
    path.write_bytes(b"task_id,url\n" * 100)
    refused(path, "not a bundle")
    with ZstdFile(path, "w") as out:
        out.write(b"task_id,url\n" * 100)
    refused(path, "not a bundle")
    path.unlink()
    path.mkdir()
    refused(path, "not a file")


def test_bombs(entries: list[Entry], tmp_path: Path) -> None:
    """What unpacks to far more than it may is refused as soon as that is seen."""
    path = tmp_path / "b"
    with ZstdFile(path, "w") as out:
        for _ in range(16):
            out.write(bytes(1 << 24))
    refused(path, "after its end")
    records, _ = parts(entries)
    fields = b"WARC/1.1\r\nWARC-Type: response\r\n"
    packer = zlib.compressobj(wbits=31)
    bomb = (
        packer.compress(fields)
        + b"".join(packer.compress(bytes(1 << 20)) for _ in range(64))
        + packer.flush()
    )
    record = records[0] | {
        "raw": {"segment": "raw/000001.warc.gz", "offset": 0, "length": len(bomb)}
    }
    refused(pack(path, signed([record], bomb)), "cannot be used: more than")


BAD_FIELDS: list[dict[str, Any]] = [
    {"task_id": "../../../etc/passwd"}, {"task_id": "0" * 32 + "\n"}, {"task_id": 5},
    {"url": "ftp://a.example/"}, {"url": ""}, {"priority": 0}, {"priority": 1 << 70},
    {"queue": "fast"}, {"scraped_at": "yesterday"}, {"scraped_at": "2026-11-04T10:00:00"},
    {"attempts": -1}, {"data": []}, {"input": "x"}, {"carried": None}, {"raw_html_hash": "0" * 64},
    {"status_code": 1000}, {"parser": {}},
    {"raw": {"segment": "raw/000001.warc.gz", "offset": 1, "length": 5}},
    {"raw": {"segment": "raw/000001.warc.gz", "offset": 0, "length": -5}},
    {"raw": {"segment": "../raw", "offset": 0, "length": 5}},
]  # fmt: skip


@pytest.mark.parametrize("fields", BAD_FIELDS, ids=str)
def test_records_that_cannot_be(
    entries: list[Entry], tmp_path: Path, fields: dict[str, Any]
) -> None:
    """A manifest that fits does not make a record good: each field is checked, and no secret is
    repeated."""
    records, raw = parts(entries)
    path = pack(tmp_path / "b", signed([records[0] | fields, *records[1:]], raw))
    refused(path, r"records/000001.jsonl, line 1")
    with pytest.raises(InputError) as info:
        unbundle(LocalPersistenceManager(tmp_path / "other"), path, MAX_BODY)
    assert "geheim" not in str(info.value)


def test_secrets_in_a_bundle_cost_no_row(entries: list[Entry], tmp_path: Path) -> None:
    """A bundle of an older store, with passwords in URLs of any column, comes in whole and without
    them."""
    records, raw = parts(entries)
    secret = "http://ada:geheim@a.example/1"
    held: dict[str, Any] = {"url": secret, "final_url": secret, "parcel_id": secret}
    held |= {"input": {"source": f"see {secret}", "more": [{"of": secret}]}}
    path = pack(tmp_path / "b", signed([records[0] | held, *records[1:]], raw))

    other = LocalPersistenceManager(tmp_path / "other")
    assert unbundle(other, path, MAX_BODY).new == len(records)

    rows = other.store.db.all("SELECT url, parcel_id, input FROM tasks ORDER BY input IS NULL")
    url, parcel, given = rows[0]
    assert (url, parcel) == ("http://a.example/1",) * 2
    assert json.loads(given) == {"source": f"see {url}", "more": [{"of": url}]}
    other.close()
    assert not [
        path
        for path in (tmp_path / "other").rglob("*")
        if path.is_file() and b"geheim" in path.read_bytes()
    ]


@pytest.mark.parametrize(
    "line", [b"[]", b"{", b"\xff", b'{"data":' + b"[" * 5000 + b"]" * 5000 + b"}", b""]
)
def test_lines_that_are_no_records(entries: list[Entry], tmp_path: Path, line: bytes) -> None:
    """No traceback, whatever stands there."""
    bad = entry("records/000001.jsonl", line + b"\n" + entries[0][1])
    refused(pack(tmp_path / "b", [bad, *entries[1:]]), "line 1")


def test_manifests_that_lie(entries: list[Entry], tmp_path: Path) -> None:
    """Counts, members, format and version must be right, and a newer version is said to be one."""
    records, raw = parts(entries)
    path = tmp_path / "b"
    refused(
        pack(path, signed(records, raw, results=4)),
        "3 results and 3 pages, but its manifest says 4",
    )
    refused(pack(path, signed(records, raw, pages=2)), "but its manifest says 3 and 2")
    refused(pack(path, signed(records, raw, members=[])), "has 2 members")
    refused(pack(path, signed(records, raw, format="other")), "manifest cannot be read")
    refused(pack(path, signed(records, raw, version=2)), "newer version")
    refused(pack(path, signed(records, raw, version="x")), "manifest cannot be read")
    refused(
        pack(path, [*entries[:2], entry("manifest.json", b"[" * 9999)]), "manifest cannot be read"
    )
    refused(pack(path, signed(records, raw + entries[1][1])), "holds more than the pages")


def test_a_page_beyond_this_machines_limit(entries: list[Entry], tmp_path: Path) -> None:
    """CRAWLER_MAX_BODY holds for pages that come in a bundle too."""
    path = pack(tmp_path / "b", entries)
    with pytest.raises(InputError, match="larger than 10 bytes"):
        unbundle(LocalPersistenceManager(tmp_path / "other"), path, 10)
