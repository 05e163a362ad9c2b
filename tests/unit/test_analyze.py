"""Analysis: numbers worked out by hand, folders with anything in them, hostile text, two runs."""

import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any

import pytest

from crawler.analyze import Field, Numbers, Profile, Range, profile, report
from crawler.analyze.compare import Comparison, Value, VerdictChange, compare
from crawler.analyze.report import html_page
from crawler.analyze.sources import find
from crawler.errors import InputError, StoreFull, UsageError
from crawler.lpm import LocalPersistenceManager
from crawler.models import Outcome, TaskStatus
from tests.support import tasks
from tests.support.patient import put_in_place

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

HOSTILE = "<img src=x onerror=alert(1)>\"'&\x1b[31m\u202e"


def result(n: int, data: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A result as the store writes it."""
    return {
        "task_id": f"{n:032x}",
        "parcel_id": None,
        "platform": None,
        "data": data,
        "scraped_at": f"2026-11-16T10:00:{n % 60:02d}.000Z",
        "parse_duration_ms": float(n),
        "url": f"http://a.example/{n}",
        "verdict": "ok",
        "attempts": 1,
        "parser": {"name": "default", "version": "1"},
    } | fields


def write(path: Path, results: list[dict[str, Any]]) -> Path:
    """An export of these results."""
    path.write_text("".join(json.dumps(each) + "\n" for each in results))
    return path


def profiled(path: Path | str, job: str | None = None, data_dir: Path = Path("nowhere")) -> Profile:
    """What is found behind a path."""
    source = find(str(path), job, data_dir)
    try:
        return profile(source)
    finally:
        source.close()


def compared(a: Path, b: Path) -> Comparison:
    """What changed between two paths."""
    first, second = (find(str(path), None, Path("nowhere")) for path in (a, b))
    try:
        return compare(first, second)
    finally:
        first.close()
        second.close()


def named(found: Profile, path: str) -> Field:
    """One field of a profile."""
    return next(field for field in found.fields if field.path == path)


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """Four results whose profile is easy to work out by hand."""
    return write(
        tmp_path / "four.jsonl",
        [
            result(
                1, {"title": "one", "items": [{"price": 5}, {"price": 1.5}], "sold": "2026-01-01"}
            ),
            result(
                2, {"title": "three", "items": [], "sold": "2025-12-31T23:00:00-05:00"}, attempts=2
            ),
            result(
                3,
                {"title": " ", "items": [{"price": 30}, {"price": None}], "sold": "never"},
                platform="zillow",
            ),
            result(
                4,
                {"title": "one", "owner": {"name": "Eve", "agent": False}},
                verdict="thin",
                platform="zillow",
            ),
        ],
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalPersistenceManager]:
    """A store with a job of two results and a 404, and another job of one result."""
    lpm = LocalPersistenceManager(tmp_path / "data")
    first = [tasks.new(f"http://a.example/{n}") for n in range(3)]
    lpm.persist_tasks(first, job=tasks.open_job(lpm, "first"))
    lpm.persist_tasks([tasks.new("http://b.example/")], job=tasks.open_job(lpm, "second"))
    one, two, gone, other = lpm.get_next_pending("owner", 4)
    lpm.save_result(
        tasks.done(one, page=tasks.page(one.url, b"x" * 100)),
        tasks.done(two, page=tasks.page(two.url, b"x" * 300)),
        Outcome(
            task=gone,
            status=TaskStatus.FAILED,
            worker="w",
            error_type="http_404",
            error_message="not there",
        ),
        tasks.done(other, page=tasks.page(other.url, b"x" * 500)),
    )
    yield lpm
    lpm.close()


def test_fields_are_counted_by_their_paths(export: Path) -> None:
    """Coverage, emptiness, types, examples and ranges are those worked out by hand."""
    found = profiled(export)

    title = named(found, "title")
    assert (title.records, title.share, title.empty, title.types) == (4, 1.0, 1, {"text": 4})
    assert (title.examples, title.numbers) == (["one", "three"], None)
    price = named(found, "items[].price")
    assert (price.records, price.share, price.empty, price.types) == (
        2,
        0.5,
        0,
        {"number": 3, "null": 1},
    )
    assert price.numbers == Range(min=1.5, median=5, max=30)
    assert (named(found, "items[]").empty, named(found, "owner.agent").types) == (1, {"boolean": 1})


def test_totals_are_those_of_the_files(export: Path) -> None:
    """Without a ledger, success is by verdict, and what only a ledger knows is not guessed."""
    found = profiled(export)

    assert (found.results, found.success_rate, found.verdicts) == (4, 0.75, {"ok": 3, "thin": 1})
    assert found.unreadable == 0
    assert (found.tasks, found.errors, found.fetch_ms, found.page_bytes) == (None, None, None, None)
    assert found.parsers == {"default 1": 4}
    assert (found.first, found.seconds, found.pages_per_s) == (
        "2026-11-16T10:00:01.000Z",
        3.0,
        1.333,
    )


def test_what_most_have_and_some_lack_is_named(tmp_path: Path) -> None:
    """Records that lack a common field are named, also those that came before it was first seen."""
    data: list[dict[str, Any]] = [
        {"a": 1},
        {"a": 1, "b": 2},
        {"a": 1, "b": 3},
        {"a": 1, "b": 4},
        {"a": 1, "b": ""},
        {"a": 1, "b": 1, "c": 1},
    ]
    found = profiled(write(tmp_path / "x.jsonl", [result(n, each) for n, each in enumerate(data)]))

    [lack] = report.missing(found)
    assert (lack.fields, lack.records) == (["b"], 2)
    assert [example.url for example in lack.examples] == [
        "http://a.example/0",
        "http://a.example/4",
    ]
    assert named(found, "a").lacking == []


def test_percentiles_are_exact_for_what_fits(tmp_path: Path) -> None:
    """Of 1 to 100, p50 is 50.5, p90 is 90.1, p95 is 95.05 and p99 is 99.01."""
    spread = profiled(
        write(tmp_path / "x.jsonl", [result(n, {}) for n in range(100, 0, -1)])
    ).parse_ms

    assert spread is not None
    assert report.percentiles(spread) == [
        ("p50", 50.5),
        ("p90", 90.1),
        ("p95", 95.05),
        ("p99", 99.01),
        ("max", 100),
    ]
    assert (spread.min, spread.count, spread.exact) == (1, 100, True)


def test_more_numbers_than_fit_are_sampled_fairly() -> None:
    """Beyond the limit count and ends stay exact, percentiles are near, and the same numbers give
    the same answer."""
    answers = []
    for _ in range(2):
        numbers = Numbers(1000, Random(0))
        for number in range(100_000):
            numbers.add(number)
        answers.append(numbers.distribution())

    spread = answers[0]
    assert spread is not None
    assert answers[0] == answers[1]
    assert (spread.count, spread.min, spread.max, spread.exact) == (100_000, 0, 99_999, False)
    assert spread.p50 == pytest.approx(50_000, rel=0.1)
    assert spread.p95 == pytest.approx(95_000, rel=0.05)


def test_the_largest_domains_are_named_and_the_rest_is_summed(tmp_path: Path) -> None:
    """Twenty domains by size, then how many others there are and what they hold together."""
    urls = [f"http://www.site{n}.example/{k}" for n in range(25) for k in range(1 + (n < 20))]
    found = profiled(
        write(tmp_path / "x.jsonl", [result(n, {}, url=url) for n, url in enumerate(urls)])
    ).domains

    assert len(found.top) == 20
    assert {
        (group.name.startswith("site"), group.results, group.failed) for group in found.top
    } == {(True, 2, None)}
    assert (found.other_names, found.other_results, found.other_failed) == (5, 5, None)


@pytest.mark.parametrize("form", ["array", "indented array", "archive", "folder", "one file"])
def test_every_form_says_the_same(tmp_path: Path, export: Path, form: str) -> None:
    """The same results give the same profile from an array, an archive and a folder as from
    lines."""
    expected = profiled(export)
    results = [json.loads(line) for line in export.read_text().splitlines()]
    path = tmp_path / "form.json"
    if form == "archive":
        path = tmp_path / "form.jsonl.zst"
        path.write_bytes(zstd.compress(export.read_bytes()))
    elif form == "folder":
        path = tmp_path / "folder"
        path.mkdir()
        for each in results:
            (path / f"{each['task_id']}.json").write_text(json.dumps(each))
    elif form == "one file":
        results, expected = results[:1], profiled(write(export, results[:1]))
        path.write_text("\ufeff" + json.dumps(results[0], indent=1))
    else:
        path.write_text(json.dumps(results, indent=2 if form == "indented array" else None))

    found = profiled(path)

    for name in set(Profile.__struct_fields__) - {"source"}:
        assert getattr(found, name) == getattr(expected, name), name


def test_an_array_is_read_whatever_its_size(tmp_path: Path) -> None:
    """Elements that lie across the borders of what is read at a time are whole."""
    results = [result(n, {"text": "é" * (n % 7 * 50_000), "n": n}) for n in range(40)]
    path = tmp_path / "x.json"
    path.write_text(json.dumps(results, ensure_ascii=False))

    found = profiled(path)

    assert (found.results, found.unreadable) == (40, 0)
    assert named(found, "n").numbers == Range(min=0, median=19.5, max=39)


def test_a_broken_element_of_an_array_costs_one_result(tmp_path: Path) -> None:
    """The results before and behind a broken element of an export count; the element is told."""
    first, second, third = (json.dumps(result(n, {"n": n})) for n in range(3))
    path = tmp_path / "x.json"
    path.write_text(f"[{first},\n{second[:-1]},\n{third}]")

    found = profiled(path)

    assert (found.results, found.unreadable) == (2, 1)
    assert found.unreadable_examples[0].startswith("x.json, result 2: not JSON: ")


def test_a_folder_with_anything_in_it_is_read(tmp_path: Path) -> None:
    """What is no result is counted and the first are named; a file that is being written is
    neither."""
    good = json.dumps(result(1, {"a": 1})).encode()
    files = {
        "1.json": good,
        "2.json": b"",
        "3.json": good[:50],
        "4.json": b'{"name": "package"}',
        "5.json": b'{"data": {"a": "\xff"}, "url": "x"}',
        "6.json": b"[" * 100_000,
        "7.json": b'{"data": {}, "url": 7}',
        "notes.txt": b"hello",
        ".8.json": good[:50],
        "9.json": json.dumps(result(9, {"a": None})).encode(),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "gone.json").symlink_to(
        tmp_path / "nothing"
    )  # as one that vanished since the folder was listed

    found = profiled(tmp_path)

    assert (found.results, found.unreadable) == (2, 8)
    assert [example.partition(":")[0] for example in found.unreadable_examples] == [
        f"{n}.json" for n in range(2, 7)
    ]
    assert found.unreadable_examples[0] == "2.json: empty"
    assert 'no "data" object' in found.unreadable_examples[2]


@pytest.mark.parametrize("ending", [".json", ".jsonl", ".jsonl.zst"])
def test_a_torn_file_is_read_up_to_the_tear(tmp_path: Path, ending: str) -> None:
    """The results before the place where a file breaks off count; what is behind it is told."""
    results = [result(n, {"text": str(Random(n).random())}) for n in range(2000)]
    whole = "".join(json.dumps(each) + "\n" for each in results).encode()
    path = tmp_path / f"x{ending}"
    if ending == ".json":
        path.write_bytes(json.dumps(results).encode()[:-100])
    else:
        path.write_bytes((zstd.compress(whole) if ending == ".jsonl.zst" else whole)[:-100])

    found = profiled(path)

    assert 0 < found.results < 2000
    assert found.unreadable == 1


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("empty", None, "there are no results in it"),
        ("x.json", "{}", 'could not be read, first x.json: not a result (no "data" object)'),
        ("x.json", "[]", "there are no results in it"),
        ("x.csv", "url\n", "no file that ends in .json, .jsonl, .jsonl.zst"),
        ("x.jsonl.zst", "no zstd", "could not be read"),
    ],
)
def test_nothing_to_analyze_is_an_error(
    tmp_path: Path, name: str, content: str | None, reason: str
) -> None:
    """One line that says what is the matter."""
    path = tmp_path / name
    path.mkdir() if content is None else path.write_text(content)

    with pytest.raises(InputError, match=r".+") as error:
        profiled(path)

    assert reason in str(error.value)


def test_what_is_not_there_is_an_error(tmp_path: Path, store: LocalPersistenceManager) -> None:
    """Neither file nor job: the nearest job is named; a job is picked only where there are jobs."""
    with pytest.raises(InputError, match="there is no such file or folder, and no store in"):
        profiled("nothing")
    with pytest.raises(InputError, match="and there is no job frist; did you mean first"):
        profiled("frist", data_dir=store.folder)
    with pytest.raises(
        UsageError, match=r"--job picks a job of a data folder; there is no lpm\.db"
    ):
        profiled(tmp_path, job="first")
    with pytest.raises(UsageError, match="there is no job third"):
        profiled(store.folder, job="third")


def test_a_store_knows_what_files_do_not(store: LocalPersistenceManager) -> None:
    """The folder of a store and the store itself give tasks, reasons, sizes, fetch times, and
    failures by domain."""
    for path in (store.folder, store.pending):
        found = profiled(path)

        assert found.tasks is not None
        assert (found.results, found.tasks.accepted, found.success_rate) == (3, 4, 0.75)
        [error] = found.errors or []
        assert (error.status, error.reason, error.count) == ("failed", "http_404", 1)
        assert (error.url, error.message) == ("http://a.example/2", "not there")
        assert found.page_bytes is not None
        assert (found.page_bytes.min, found.page_bytes.p50, found.page_bytes.max) == (100, 300, 500)
        assert found.fetch_ms is not None
        assert (found.fetch_ms.count, found.fetch_ms.p99) == (3, 10)
        rows = [(group.name, group.results, group.failed) for group in found.domains.top]
        assert rows == [("a.example", 2, 1), ("b.example", 1, 0)]


def test_one_job_of_a_store(store: LocalPersistenceManager) -> None:
    """A job is picked by its name, or by --job of its data folder, and only its tasks count."""
    by_name = profiled("first", data_dir=store.folder)
    by_option = profiled(store.folder, job="second")

    assert (by_name.job, by_name.results, by_name.success_rate) == ("first", 2, 2 / 3)
    assert (by_option.job, by_option.results, by_option.errors) == ("second", 1, [])
    assert [group.name for group in by_option.domains.top] == ["b.example"]


def test_the_files_of_a_damaged_store_are_read(tmp_path: Path) -> None:
    """A store that cannot be opened costs what only it knows, and says so."""
    (tmp_path / "pending").mkdir()
    (tmp_path / "pending" / "1.json").write_text(json.dumps(result(1, {"a": 1})))
    (tmp_path / "lpm.db").write_bytes(b"no database" * 1000)

    found = profiled(tmp_path / "pending")

    assert (found.results, found.tasks) == (1, None)
    assert "the store beside it cannot be used" in found.notes[0]
    assert (tmp_path / "lpm.db").read_bytes() == b"no database" * 1000


@pytest.mark.parametrize("kind", ["folder", "pipe", "renamed"])
def test_what_is_no_file_is_made_again_before_it_is_counted(
    store: LocalPersistenceManager, kind: str
) -> None:
    """A report on pending/ is one of all results that the ledger has for it, whatever lies there
    under their names."""
    before = profiled(store.pending).results
    put_in_place(min(store.pending.iterdir()), kind)

    found = profiled(store.pending)

    assert found.results == before
    assert found.notes[0].startswith("1 files were missing or torn")


def test_missing_files_that_cannot_be_made_again_are_an_error(
    store: LocalPersistenceManager,
) -> None:
    """Where pending/ lacks files and cannot be written, the results that are there do not pass for
    all."""
    missing = min(store.pending.iterdir())
    missing.unlink()
    (
        store.pending / f".{missing.stem}.{os.getpid()}.{threading.get_native_id()}"
    ).mkdir()  # root may write anywhere

    with pytest.raises(StoreFull, match="cannot be made again"):
        profiled(store.pending)


def test_what_was_archived_is_not_counted(store: LocalPersistenceManager) -> None:
    """A file that a killed archive has left in pending/ is of a result that is elsewhere."""
    before = profiled(store.pending).results
    left = min(store.pending.iterdir())
    content = left.read_bytes()
    store.mark_synced([left.stem])
    left.write_bytes(content)
    left.with_suffix(".jsonl").write_bytes(content)

    found = profiled(store.pending)

    assert (found.results, found.unreadable) == (before - 1, 1)


def test_records_without_measure_are_bounded(tmp_path: Path) -> None:
    """Ever new keys, deep nesting, numbers of any length and ever new values do not grow the
    profile."""
    deep: Any = 1
    for _ in range(500):
        deep = {"x": deep}
    results = [result(n, {f"key{n}-{k}": k for k in range(30)}) for n in range(100)]
    results += [
        result(n, {"n": n, "big": 10**400, "deep": deep, "k" * 5000: 1}) for n in range(1500)
    ]
    found = profiled(write(tmp_path / "x.jsonl", list(reversed(results))))

    assert (len(found.fields), found.fields_capped) == (2000, True)
    assert len(named(found, "n").examples) == 3
    assert named(found, "n").numbers == Range(min=0, median=749.5, max=1499)
    assert named(found, "big").numbers is None
    assert max(len(field.path) for field in found.fields) == 100
    assert "deep" + ".x" * 29 in {field.path for field in found.fields}


def test_two_runs_field_by_field(tmp_path: Path) -> None:
    """Matched by URL and parcel: what changed, appeared and vanished, with examples, what changed
    most first."""
    a = write(
        tmp_path / "a.jsonl",
        [
            result(1, {"price": "10", "name": "x", "gone": "g", "same": 1}),
            result(2, {"price": "20", "name": "x", "gone": "", "same": 1}),
            result(3, {"price": "30", "same": 1}, parcel_id="p"),
            result(4, {"price": "40", "same": 1}),
        ],
    )
    b = write(
        tmp_path / "b.jsonl",
        [
            result(
                1,
                {"price": 10, "name": "y", "same": 1},
                url="http://a.example/1?utm_source=mail#top",
            ),
            result(2, {"price": 20, "name": "x", "new": [1, 2], "same": 1}, verdict="thin"),
            result(3, {"price": "30", "same": 1}, parcel_id="other"),
            result(4, {"price": "40", "same": 1}, parser={"name": "default", "version": "2"}),
        ],
    )
    found = compared(a, b)

    assert (found.both, found.same, found.only_a, found.only_b) == (3, 1, 1, 1)
    assert (found.only_a_examples, found.only_b_examples) == (
        ["http://a.example/3"],
        ["http://a.example/3"],
    )
    assert found.verdicts == [VerdictChange(a="ok", b="thin", count=1, url="http://a.example/2")]
    changes = {
        f.path: (f.share_a, f.share_b, f.changed, f.appeared, f.vanished) for f in found.fields
    }
    assert changes == {
        "price": (1.0, 1.0, 2, 0, 0),
        "gone": (0.25, 0.0, 0, 0, 1),
        "new[]": (0.0, 0.25, 0, 1, 0),
        "name": (0.5, 0.5, 1, 0, 0),
    }
    assert found.fields[0].path == "price"
    assert found.fields[0].examples[0] == Value(
        url="http://a.example/1?utm_source=mail#top", old='"10"', new="10"
    )
    assert next(f for f in found.fields if f.path == "new[]").examples[0].new == "1, 2"
    assert found.fields_same == 1
    assert found.a.parsers == {"default 1": 4}
    assert found.b.parsers == {"default 1": 3, "default 2": 1}


def test_the_list_of_missing_fields_is_no_field(tmp_path: Path) -> None:
    """Neither one run nor the comparison of two has it among the fields."""
    lacking = {"owner": None, "price": 1, "missing": ["owner"]}
    a = write(tmp_path / "a.jsonl", [result(1, lacking), result(2, lacking)])
    b = write(tmp_path / "b.jsonl", [result(1, {"owner": "x", "price": 1}), result(2, lacking)])

    found = compared(a, b)

    assert {field.path for field in profiled(a).fields} == {"owner", "price"}
    assert [(field.path, field.appeared) for field in found.fields] == [("owner", 1)]
    assert (found.same, found.fields_same) == (1, 1)


def test_the_newest_of_several_counts(tmp_path: Path) -> None:
    """Where a run holds a page twice, its newest result is compared, wherever in the file it is."""
    times = {"old": "2026-11-16T10:00:00Z", "new": "2026-11-16T11:00:00Z"}
    twice = [result(1, {"v": word}, scraped_at=times[word]) for word in ("new", "old")]

    found = compared(write(tmp_path / "a.jsonl", twice), write(tmp_path / "b.jsonl", twice[:1]))

    assert (found.both, found.same, found.fields) == (1, 1, [])


def test_a_page_that_failed_in_the_other_run_is_told(
    tmp_path: Path, store: LocalPersistenceManager
) -> None:
    """Between stores, a page that is only in one run says by its reason why it is not in the
    other."""
    before = write(tmp_path / "before.jsonl", [result(n, {"title": "x"}) for n in range(3)])

    found = compared(before, store.folder)

    assert (found.both, found.same, found.only_a, found.only_b) == (2, 2, 1, 1)
    assert found.verdicts == [
        VerdictChange(a="ok", b="http_404", count=1, url="http://a.example/2")
    ]


class _Tags(HTMLParser):
    """What a browser would see of a page: its elements and their attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes |= {name for name, _ in attrs}


@pytest.mark.parametrize("runs", [1, 2])
def test_scraped_text_is_only_text_on_the_page(tmp_path: Path, runs: int) -> None:
    """Hostile names, values, URLs and sites add no element, no attribute and no address to the
    report."""

    def made(word: str) -> str:
        fields: dict[str, Any] = {
            "platform": word,
            "verdict": word,
            "url": f"http://a.example/{word}",
            "task_id": word,
        }
        bad = [
            result(n, {"a": 1, f"field {word}": f"value {word}"}, **fields, parser={"name": word})
            for n in range(3)
        ]
        data = {"a": 1, f"field {word}": "other"}
        a = write(tmp_path / f"{len(word)}.jsonl", [*bad, result(9, {"a": 1}), {"task_id": word}])
        b = write(
            tmp_path / f"{len(word)}b.jsonl",
            [result(9, data, verdict=word), result(8, data, **fields)],
        )
        return html_page(profiled(a) if runs == 1 else compared(a, b))

    hostile, harmless = made(HOSTILE), made("harmless")

    assert (_Tags(hostile).tags, _Tags(hostile).attributes) == (
        _Tags(harmless).tags,
        _Tags(harmless).attributes,
    )
    assert not _Tags(hostile).attributes & {"src", "href", "onerror", "onclick"}
    assert not {"script", "link", "img", "iframe", "a"} & set(_Tags(hostile).tags)
    assert "&lt;img src=x onerror=alert(1)&gt;&quot;&#x27;&amp;\\x1b[31m\\u202e" in hostile
    assert "\x1b" not in hostile
    assert "content=\"default-src 'none'; style-src 'unsafe-inline'\"" in hostile
    assert "url(" not in hostile


def test_the_page_shows_what_was_found(store: LocalPersistenceManager, export: Path) -> None:
    """The numbers, reasons, fields and bars of a profile are on its page."""
    shown = html_page(profiled(store.folder))
    from_files = html_page(profiled(export))

    for text in (
        "4 tasks",
        "completed <b>3</b>",
        "http_404",
        "75.0 %",
        "fetch",
        "page size",
        "10 ms",
    ):
        assert text in shown
    assert from_files.count("<svg") >= 3
    assert "items[].price" in from_files
    assert report.UNKNOWN in from_files


def test_what_ends_while_it_is_read_counts_as_open(tmp_path: Path) -> None:
    """No task counts as completed whose result came in behind the reader."""
    lpm = LocalPersistenceManager(tmp_path)
    lpm.persist_tasks([tasks.new(f"http://a.example/{n}") for n in range(20)])
    last, *others = lpm.get_next_pending("owner", 20)
    lpm.save_result(*(tasks.done(task) for task in others))
    source = find(str(tmp_path), None, tmp_path)

    def end_last(_: dict[str, Any]) -> None:
        lpm.save_result(tasks.done(last))

    found = profile(source, each=end_last)
    source.close()
    lpm.close()

    assert found.tasks
    assert (found.results, found.tasks.completed, found.tasks.open) == (19, 19, 1)


def test_only_all_is_a_hundred_percent() -> None:
    """Rounding never turns nearly all into all, nor hardly any into none."""
    shares = (1.0, 0.99999, 0.5, 0.00001, 0.0, None)
    assert [report.percent(share) for share in shares] == [
        "100.0 %",
        "99.9 %",
        "50.0 %",
        "0.1 %",
        "0.0 %",
        "–",
    ]
