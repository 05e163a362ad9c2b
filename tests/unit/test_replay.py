"""Replays: the comparison field by field, the share that a field kept, and versions of records."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from crawler.analyze.compare import FieldCounts, compare_records
from crawler.db.record_versions import Replacement, StoredResult, is_same_record
from crawler.lpm import LocalPersistenceManager
from crawler.models import TaskStatus
from crawler.replay import golden
from crawler.replay.parser import ParseAnswer
from crawler.replay.report import Tally
from tests.support import replays
from tests.support.tasks import give, new, page

encode = msgspec.json.encode


@pytest.fixture
def lpm(tmp_path: Path) -> Iterator[LocalPersistenceManager]:
    with LocalPersistenceManager(tmp_path / "data") as lpm:
        yield lpm


def collected(lpm: LocalPersistenceManager, numbers: int, parcels: str = "-") -> list[StoredResult]:
    """So many results, as a replay reads them."""
    replays.configure(lpm.folder.parent)
    replays.collect(lpm, lpm.folder.parent / "config", range(numbers), parcels)
    return list(lpm.versions.stored_results(None, None))


def replacement(*results: StoredResult, **record: Any) -> Replacement:
    """Another record for results of one page."""
    assert results[0].page
    return Replacement(
        tasks=[result.task for result in results],
        page=results[0].page,
        record=encode(record or {"owner": "somebody else"}),
        invalid=[],
        parser=("county", "2"),
        site=("county", "2"),
        changed="owner: …",
    )


def answer(**changes: tuple[Any, Any]) -> ParseAnswer:
    """What a parser says whose fields have these old and new values."""
    old, new_ = ({name: pair[at] for name, pair in changes.items()} for at in (0, 1))
    found = compare_records(encode(old), encode(new_))
    return ParseAnswer(verdict="ok", completed=True, site=("county", "1"), changes=found)


@pytest.mark.parametrize(
    ("old", "new_", "kind"),
    [
        (1, 2, "changed"),
        (1, "1", "changed"),
        (["a", "b"], ["b", "a"], "changed"),
        (1, None, "vanished"),
        ("x", " ", "vanished"),
        ([], "x", "appeared"),
        (None, False, "appeared"),
        ({"a": 1}, {"a": 1}, None),
        (None, "", None),
    ],
)
def test_a_field_is_changed_new_or_lost(old: Any, new_: Any, kind: str | None) -> None:
    """Empty values count as none, and a number is no text."""
    found = compare_records(encode({"field": old}), encode({"field": new_}))

    assert [change.kind for change in found.changes] == [kind] * (kind is not None)


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_list_of_missing_fields_is_no_field(wrapped: bool) -> None:
    """It is neither lost where a field is mended, nor new where one is lost; in all records that a
    class makes of a page. What a page itself calls missing is a value."""
    lacking: dict[str, Any] = {"owner": None, "value": 1, "missing": ["owner"]}
    whole: dict[str, Any] = {"owner": "Jane", "value": 1}
    of_page = {"missing": "a word", "fields": {"missing": ["deed"]}}
    owner = "owner"
    if wrapped:
        lacking = {"records": [lacking, whole], "missing": ["owner"]}
        whole = {"records": [whole, whole]}
        owner = "records[].owner"

    mended = compare_records(encode(lacking), encode(whole))
    broken = compare_records(encode(whole), encode(lacking))

    assert {change.path for change in mended.changes + broken.changes} == {owner}
    assert not any("missing" in path for path in mended.had)
    assert compare_records(encode(of_page), encode(of_page)).had == ["missing", "fields.missing[]"]


def test_both_values_are_shown_where_they_look_alike() -> None:
    """1 and "1" differ, and one sees how; a long text is cut before it is joined."""
    [change] = compare_records(b'{"n": 1}', b'{"n": "1"}').changes
    [long] = compare_records(b'{"n": 1}', encode({"n": "x" * 1_000_000})).changes

    assert (change.old, change.new) == ("1", '"1"')
    assert len(long.new) == 80


def test_the_kept_share_is_of_pages_that_had_a_value() -> None:
    """Pages without a value before do not count, changed and lost values do."""
    counts = FieldCounts()
    pairs = [(1, 1), (1, 2), (1, None), (None, 1), (None, None)]
    for old, new_ in pairs:
        counts.add("u", compare_records(encode({"f": old}), encode({"f": new_})))

    assert (counts.had("f"), counts.kept("f")) == (3, 1)
    assert [counts.of("f", kind) for kind in ("changed", "vanished", "appeared")] == [1, 1, 1]


def test_a_new_field_fails_nothing_and_the_worst_comes_first(
    lpm: LocalPersistenceManager,
) -> None:
    """Below the bar are only fields that had values; exactly the bar is enough."""
    # Given four pages: a kept on half of them, b on three, c on all; d is new
    [stored] = collected(lpm, 1)
    tally = Tally("stored")
    for n in range(4):
        a, b = (1, 2 if n < 2 else 1), (1, None if n < 1 else 1)
        tally.add(stored, answer(a=a, b=b, c=(1, 1), d=(None, 1)), "ok", True)

    # When the bar is 0.75
    report = tally.report(1.0, 0.75)

    # Then only a is below it
    assert report.below == ["a"]
    assert [(f.path, f.share) for f in report.fields] == [
        ("a", 0.5),
        ("b", 0.75),
        ("c", 1.0),
        ("d", None),
    ]
    assert (report.compared, report.same, report.share) == (4, 0, 0.0)


def test_a_page_that_fails_has_lost_all_fields(lpm: LocalPersistenceManager) -> None:
    """A parser that raises on a page does not make its fields look better."""
    [stored] = collected(lpm, 1)
    lost = compare_records(b'{"a": 1}', b"{}")
    tally = Tally("stored")
    tally.add(stored, ParseAnswer(end="failed", reason="scraper_error", changes=lost), "ok", True)

    report = tally.report(1.0, 0.98)

    assert (report.below, report.failed.count, report.has_failed) == (["a"], 1, True)
    assert [(v.a, v.b) for v in report.verdicts] == [("ok", "scraper_error")]


def test_a_new_record_is_current_and_the_earlier_a_version(lpm: LocalPersistenceManager) -> None:
    """Results and pending/ have the new one, under a new number; the rest stays."""
    first, second = collected(lpm, 2)
    [before] = [each for each in lpm.results.read() if each["task_id"] == first.task_id]

    counts = lpm.replace_records([replacement(first)])

    assert (counts.replaced, counts.held) == (1, 0)
    after = lpm.results.of_task(first.task)
    assert after
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"data", "parser", "site"}
    assert after["data"] == {"owner": "somebody else"}
    file = msgspec.json.decode((lpm.pending / f"{first.task_id}.json").read_bytes())
    assert file == after
    [version] = lpm.versions.versions(first.task)
    assert (version["version"], version["data"]) == (1, before["data"])
    numbers = dict(lpm.store.db.all("SELECT task, seq FROM results"))
    assert numbers[first.task] > numbers[second.task]


def test_what_is_current_already_is_not_replaced_again(lpm: LocalPersistenceManager) -> None:
    """The same again does nothing, nor does another order of the fields; a third one is the second
    version."""
    [stored] = collected(lpm, 1)
    lpm.replace_records([replacement(stored, a=1, b=2)])

    assert lpm.replace_records([replacement(stored, b=2, a=1)]).same == 1
    assert lpm.replace_records([replacement(stored, a=2)]).replaced == 1
    assert [each["version"] for each in lpm.versions.versions(stored.task)] == [1, 2]
    assert not is_same_record(b'{"a": 1}', b'{"a": true}')


def test_all_results_of_a_page_get_its_record(lpm: LocalPersistenceManager) -> None:
    """Siblings share the page, and so the new record."""
    results = collected(lpm, 1, parcels="abc")
    assert len({(result.page, result.record) for result in results}) == 1

    assert lpm.replace_records([replacement(*results)]).replaced == 3

    assert {each["data"]["owner"] for each in lpm.results.read()} == {"somebody else"}


def test_a_task_that_is_fetched_again_is_left_alone(lpm: LocalPersistenceManager) -> None:
    """So is a result that has another page by now."""
    first, second = collected(lpm, 2)
    lpm.store.db.execute("UPDATE tasks SET status = 'pending' WHERE id = ?", (first.task,))
    lpm.store.db.execute("UPDATE results SET raw_offset = 1 WHERE task = ?", (second.task,))

    assert lpm.replace_records([replacement(first), replacement(second)]).busy == 2

    assert not lpm.versions.versions(first.task)


def test_delivered_and_archived_results_are_held(lpm: LocalPersistenceManager) -> None:
    """The new record goes nowhere by itself, and lies in pending/; `release` lets it go."""
    # Given a result that was delivered, one that was archived, and one that is on its way
    replays.configure(lpm.folder.parent)
    give(lpm, 3)
    synced, archived, sending = lpm.versions.stored_results(None, None)
    lpm.mark_synced([synced.task_id])
    lpm.files.mark_archived([archived.task_id], time.time())
    lpm.files.remove(archived.task_id)
    lpm.store.db.execute("UPDATE outbox SET batch = 'b' WHERE task = ?", (sending.task,))

    # When all three get another record
    counts = lpm.replace_records([replacement(each) for each in (synced, archived, sending)])

    # Then the first two are here again, and the third is as it was
    assert (counts.replaced, counts.held, counts.sending) == (2, 2, 1)
    states = dict(lpm.store.db.all("SELECT task, state FROM outbox"))
    assert states[synced.task] == "held"
    assert {path.stem for path in lpm.pending.glob("*.json")} == {
        synced.task_id,
        archived.task_id,
        sending.task_id,
    }
    assert not lpm.versions.versions(sending.task)
    assert lpm.outbox.release(task_ids=[synced.task_id]) == 1
    assert synced.task_id in {each["task_id"] for each in lpm.get_unsynced_results()}


def test_a_file_with_the_earlier_record_is_made_again(lpm: LocalPersistenceManager) -> None:
    """Killed between commit and files, a replay leaves files of earlier records: the next start
    corrects them, and sets nothing aside."""
    stored, other = collected(lpm, 2)
    lpm.files.secure()
    path = lpm.pending / f"{stored.task_id}.json"
    earlier = path.read_bytes()
    lpm.replace_records([replacement(stored)])
    path.write_bytes(earlier)

    assert lpm.files.restore() == 1

    assert msgspec.json.decode(path.read_bytes())["data"] == {"owner": "somebody else"}
    assert sorted(each.stem for each in lpm.pending.iterdir()) == sorted(
        [stored.task_id, other.task_id]
    )


def test_results_are_read_in_the_order_of_their_pages(lpm: LocalPersistenceManager) -> None:
    """Those that were asked for are marked; others come with them, as they may have their page."""
    collected(lpm, 5)
    lpm.persist_tasks([new("http://other.example/")])
    job = lpm.find_job("job")

    found = list(lpm.versions.stored_results(job, None))
    none = list(lpm.versions.stored_results(job, time.time() + 10))

    assert [each.page.offset for each in found if each.page] == sorted(
        each.page.offset for each in found if each.page
    )
    assert ([each.chosen for each in found], [each.chosen for each in none]) == (
        [True] * 5,
        [False] * 5,
    )
    assert TaskStatus.COMPLETED in {TaskStatus(lpm.tasks.state_of(each.task)[0]) for each in found}


def test_a_golden_page_keeps_no_secret(tmp_path: Path) -> None:
    """Golden sets go into repositories: of the headers, only those do that parsing can depend on.
    The same page again writes nothing."""
    kept = [
        ("Content-Type", "text/html; charset=windows-1251"),
        ("X-Robots-Tag", "nofollow"),
        ("CF-Mitigated", "challenge"),
    ]
    dropped = ("Set-Cookie", "Authorization", "X-Api-Key", "Location", "Content-Encoding")
    secrets = [(name, "session=secret; Path=/") for name in dropped]
    realm = ("WWW-Authenticate", 'Digest nonce="secret"')
    made = msgspec.structs.replace(page(), headers=(*secrets, *kept, realm))
    expected = golden.GoldenPage(
        url=made.url, final_url=made.url, status=200, site="a", body="", verdict="ok"
    )
    name = golden.name_of("a", "http://a.example/Some/Path?q=1", b"key", None, "GET", "")

    assert golden.write(tmp_path, name, made, expected)
    assert not golden.write(tmp_path, name, made, expected)

    text = (tmp_path / f"{name}.json").read_text()
    assert "secret" not in text
    assert golden.read(tmp_path / f"{name}.json").headers == [*kept, ("WWW-Authenticate", "")]
    assert name.startswith("a-some-path-q-1-")
