"""An invalid record keeps its reasons wherever it goes, and is counted."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from crawler.analyze import profile, report
from crawler.analyze.sources import find
from crawler.lpm import LocalPersistenceManager
from crawler.results.bundle import bundle, unbundle
from crawler.results.formats import flatten, spooled_table
from tests.support.patient import look
from tests.support.tasks import done, new, open_job, page

REASONS = ("owner is missing", "sales[3].price must be number")


@pytest.fixture
def lpm(tmp_path: Path) -> Iterator[LocalPersistenceManager]:
    """A store in an empty folder."""
    lpm = LocalPersistenceManager(tmp_path / "data")
    yield lpm
    lpm.close()


def collect(lpm: LocalPersistenceManager) -> None:
    """A job of three tasks; the second record is invalid."""
    job = open_job(lpm)
    lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(3)], job=job)
    for at, task in enumerate(lpm.get_next_pending("owner", 3)):
        record = {"owner": None, "missing": ["owner"]} if at == 1 else {"owner": "x"}
        lpm.save_result(done(task, record, invalid=REASONS if at == 1 else ()))


def test_the_result_has_its_reasons(lpm: LocalPersistenceManager) -> None:
    """In the ledger, in its file and in a table; a valid one has no such key."""
    collect(lpm)
    lpm.files.secure()

    good, bad, _ = list(lpm.results.read())
    file = json.loads((lpm.pending / f"{bad['task_id']}.json").read_text())

    assert "invalid" not in good
    assert "invalid" not in flatten(good)
    assert bad["invalid"] == file["invalid"] == list(REASONS)
    assert (bad["verdict"], bad["data"]["owner"]) == ("ok", None)
    assert flatten(bad)["invalid"] == " | ".join(REASONS)
    with spooled_table([good, bad], None, 100) as table:
        assert [*table.only(["invalid"])] == [[None], [" | ".join(REASONS)]]


def test_a_receipt_counts_invalid_records(lpm: LocalPersistenceManager) -> None:
    """How many there are, and how many for each reason, whatever the place in a list."""
    collect(lpm)

    receipt = lpm.jobs.receipt(lpm.jobs.named("job"))

    assert receipt.invalid == 1
    assert receipt.invalid_reasons == {"owner is missing": 1, "sales[].price must be number": 1}
    assert [(field.name, field.pages, field.of) for field in receipt.missing_fields] == [
        ("owner", 1, 3)
    ]


def test_required_fields_of_inner_records_are_counted(lpm: LocalPersistenceManager) -> None:
    """By their path, among the pages that were read for the list."""
    lpm.persist_tasks([new("http://a.example/"), new("http://a.example/1")], job=open_job(lpm))
    [first, second] = lpm.get_next_pending("owner", 2)
    lpm.save_result(done(first, {"sales": [{"date": None}], "missing": ["sales.date"]}))
    lpm.save_result(done(second, {"sales": []}))

    [field] = lpm.jobs.receipt(lpm.jobs.named("job")).missing_fields

    assert (field.name, field.pages, field.of) == ("sales.date", 1, 2)


def test_siblings_and_unchanged_pages_are_as_invalid(lpm: LocalPersistenceManager) -> None:
    """What has its record from another result has the reasons, too."""
    job = open_job(lpm)
    url = "http://a.example/map"
    lpm.persist_tasks([new(url, parcel_id=name, line=n) for n, name in enumerate("ab")], job=job)
    answer = page(url)
    answer = msgspec.structs.replace(answer, headers=(*answer.headers, ("ETag", '"1"')))
    [task] = lpm.get_next_pending("owner", 1)
    lpm.save_result(done(task, page=answer, invalid=REASONS))

    lpm.persist_tasks([new(url)], job=open_job(lpm, "again"))
    [task] = lpm.get_next_pending("owner", 1)
    same = msgspec.structs.replace(answer, status=304, body=b"", raw=b"")
    lpm.save_result(done(task, page=same, verdict="unchanged"))

    assert [result.get("invalid") for result in lpm.results.read()] == [list(REASONS)] * 3


def test_a_bundle_carries_the_reasons(lpm: LocalPersistenceManager, tmp_path: Path) -> None:
    """From one store to another."""
    collect(lpm)
    bundle(lpm, tmp_path / "b", job=None, since=None, raw=True)

    with LocalPersistenceManager(tmp_path / "other") as other:
        unbundle(other, tmp_path / "b", 1_000_000)
        found = [result.get("invalid") for result in other.results.read()]

    assert found == [None, list(REASONS), None]


def test_a_repair_keeps_the_reasons(tmp_path: Path) -> None:
    """A ledger that was replaced by an older copy gets them back from the files of results."""
    with LocalPersistenceManager(tmp_path) as lpm:
        lpm.persist_tasks([new("http://b.example/")])
    older = (tmp_path / "lpm.db").read_bytes()
    with LocalPersistenceManager(tmp_path) as lpm:
        collect(lpm)
    (tmp_path / "lpm.db").write_bytes(older)

    look(tmp_path, repair=True)

    with LocalPersistenceManager(tmp_path) as lpm:
        found = [result.get("invalid") for result in lpm.results.read()]
    assert sorted(found, key=bool) == [None, None, list(REASONS)]


def test_analysis_counts_invalid_records(lpm: LocalPersistenceManager, tmp_path: Path) -> None:
    """They are no success, with a ledger and without."""
    collect(lpm)
    export = tmp_path / "results.jsonl"
    export.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in lpm.results.read()))

    of_file = profile(find(str(export), None, tmp_path / "nowhere"))
    of_ledger = profile(find("job", None, lpm.folder))

    for found in (of_file, of_ledger):
        assert found.invalid == 1
        assert found.invalid_reasons["owner is missing"] == 1
        assert found.success_rate == pytest.approx(2 / 3)
    told = [line for section in report.sections(of_file) for line in section.lines]
    assert any(line.startswith("invalid  1 records (owner is missing: 1") for line in told)
