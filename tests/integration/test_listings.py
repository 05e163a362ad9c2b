"""`listings` through the door: list, show, changes, history, visit and export."""

import csv
import json
from collections.abc import Iterator

import pyarrow.parquet
import pytest

from crawler.cli.running import report
from tests.support import tasks
from tests.support.listing_rows import DAY, HOSTILE, T0, Writer
from tests.support.stack import PATIENCE_S, Folder, wait_for
from tests.support.terminal import Terminal

URL = "http://imoti.example/flat/1"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    """A folder with listings of two sites, and a job whose page one of them is."""
    folder = Folder(tmp_path_factory.mktemp("filled"), CRAWLER_TIMEZONE="UTC", COLUMNS="57")
    with folder.lpm() as lpm:
        tasks.collect(lpm, "crawl", 1)
        writer = Writer(lpm)
        one = writer.add("imoti", "1", url=URL, task=1, job_id=1, area=60, title="=HYPERLINK(1)")
        other = writer.add("homes", "x", day=1, price=None, title=HOSTILE)
        third = writer.add("imoti", "3", day=2, price=50_000)
        writer.reprice(one, 100_000, 95_000, day=3)
        writer.change(one, "changed", day=4, fields={"area": (60, 62), "floor": (None, 3)})
        writer.change(third, "gone", day=5)
        writer.other_url(one, "http://crawl.example/0")
        writer.pair(one, other, 0.87)
        writer.set(other, missed=1)
    yield folder
    folder.stop()


def output(folder: Folder, *args: str) -> str:
    """What a command prints that must succeed."""
    done = folder.crawler("listings", *args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_list_counts_and_shows(filled: Folder) -> None:
    """Sites with their states, a warning of doubtful listings, and a table, the newest first."""
    text = output(filled, "list", "--limit", "2").splitlines()
    facts = json.loads(output(filled, "list", "--site", "imoti", "--price", "60000..", "--json"))
    none = output(filled, "list", "--state", "sold")
    gone = output(filled, "list", "--site", "imoti", "--state", "gone").splitlines()

    assert text[:3] == [
        "homes: 1 active",
        "imoti: 1 active, 1 gone",
        "homes: the last whole crawl missed 1 of 1 active listings; they count as gone if the next "
        "one misses them, too",
    ]
    assert text[4].split() == ["id", "listing", "state", "price", "first", "seen", "changed", "url"]
    assert text[5].split()[:5] == ["3", "imoti:3", "gone", "50,000", "EUR"]
    assert len(text) == 7
    assert facts["sites"] == {"imoti": {"active": 1, "gone": 1, "sold": 0, "missed": 0}}
    assert facts["total"] == 1
    [listing] = facts["listings"]
    assert listing["first_seen"] == "2026-11-06T21:20:00.000Z"
    assert (listing["key"], listing["data"]["area"], listing["job"]) == ("1", 60, "crawl")
    assert none.endswith("No listing is like that\n")
    assert gone[:3] == ["all of imoti: 1 active, 1 gone", "", "1 listing of these:"]


def test_a_table_fits_the_terminal(filled: Folder) -> None:
    """On a narrow terminal the last column is cut in its middle, and less important ones are left
    out. Control characters of pages are escaped."""
    terminal = Terminal(filled, "crawler", "listings", "list")
    assert terminal.process.wait(PATIENCE_S) == 0
    wait_for(lambda: "imoti:1" in terminal.text, 10, "the table")
    lines = terminal.text.splitlines()
    terminal.close()
    wide = output(filled, "changes", "--site", "homes")

    assert any("http://im" in line and "…" in line and line.endswith("flat/1") for line in lines)
    assert "first seen" not in terminal.text
    assert max(map(len, lines[3:])) <= 57
    assert "\\x1b[31m" in wide
    assert "\x1b" not in wide


def test_a_narrow_list_of_changed_listings_shows_when_they_changed(filled: Folder) -> None:
    """With --changed-since, 80 columns have room for that time."""
    filled.env["COLUMNS"] = "80"
    terminal = Terminal(filled, "crawler", "listings", "list", "--changed-since", "2026-11-01")
    filled.env["COLUMNS"] = "57"
    assert terminal.process.wait(PATIENCE_S) == 0
    wait_for(lambda: "imoti:1" in terminal.text, 10, "the table")
    lines = terminal.text.splitlines()
    terminal.close()

    [row] = [line for line in lines if "imoti:1" in line]
    assert "2026-11-10 21:20" in row
    assert "first seen" not in terminal.text
    assert len(row) <= 80


@pytest.mark.parametrize(
    "command", [["list"], ["changes"], ["duplicates"], ["duplicates", "--merged"]], ids=" ".join
)
def test_80_columns_are_enough(folder: Folder, command: list[str]) -> None:
    """Whatever names, prices and URLs there are: tables have one line for each row, names keep both
    ends, and sentences go on between two words."""
    with folder.lpm() as lpm:
        writer = Writer(lpm)
        long = "https://a-very-long-name.example/" + "x" * 60 + "/last"
        one = writer.add("a-long-name-of-a-site", long, price=123_456_789.5, title="Къща " * 40)
        two = writer.add("imoti", "1", price=123_000_000, address="Изток " * 20)
        writer.reprice(one, 123_456_000, 123_456_789.5, day=3)
        writer.pair(one, two, 0.93)
        for each in (one, two):
            writer.set(each, matched=1, missed=1, job_id=7)
        writer.conflict(two, f"http://imoti.example/{'y' * 30}", 7)
    folder.env["COLUMNS"] = "80"
    terminal = Terminal(folder, "crawler", "listings", *command)
    assert terminal.process.wait(PATIENCE_S) == 0
    wait_for(lambda: "imoti:1" in terminal.text, 10, "the table")
    lines = terminal.text.splitlines()
    terminal.close()

    # A URL is not broken; it has a line of its own.
    wide = [line for line in lines if len(line) > 80]
    assert all(len(line.split()) == 1 and "http" in line for line in wide), wide
    if command != ["list"]:
        return
    [row] = [line for line in lines if line.startswith("1 ")]
    assert "/last" in row.split()[1]
    assert "a-long" in row.split()[1]


def test_show_has_all_that_is_known(filled: Folder) -> None:
    """The record, times, prices, URLs, the page's command and similar listings; JSON the same."""
    text = output(filled, "show", URL)
    facts = json.loads(output(filled, "show", "http://crawl.example/0", "--json"))

    for part in (
        "imoti:1  active",
        "also seen at  http://crawl.example/0",
        "price         95,000 EUR",
        "raw http://crawl.example/0",
        "  area                     60",
        "2026-11-09 21:20  100,000 → 95,000 EUR (−5.0 %)",
        "  0.87  homes:x  http://homes.example/x",
        "    for: address, area\n    against: floor\n    price: 100000 here, 90000 there",
    ):
        assert part in text
    assert facts["key"] == "1"
    assert [each["kind"] for each in facts["changes"]] == ["new", "changed", "changed"]
    assert facts["changes"][2]["fields"] == {
        "area": {"old": 60, "new": 62},
        "floor": {"old": None, "new": 3},
    }
    assert facts["prices"][0]["percent"] == -5.0
    [duplicate] = facts["duplicates"]
    assert duplicate["confidence"] == 0.87
    assert duplicate["discrepancies"] == [{"field": "price", "here": 100_000, "there": 90_000}]


def test_what_a_person_said_of_a_pair_has_its_own_heading(folder: Folder) -> None:
    """A confirmed pair is the same, a separated one is not, and no other one is wholly sure."""
    with folder.lpm() as lpm:
        writer = Writer(lpm)
        one, *others = (writer.add(site, "1") for site in ("imoti", "homes", "domove", "flats"))
        for other, decision in zip(others, ("different", "same", None), strict=True):
            writer.pair(one, other, 0.9996, decision)

    lines = output(folder, "show", "imoti:1").splitlines()

    assert [line for line in lines if "same as" in line or line.startswith("  0.")] == [
        "the same as, by a person",
        "  0.99  domove:1  http://domove.example/1",
        "may be the same as",
        "  0.99  flats:1  http://flats.example/1",
        "not the same as, by a person",
        "  0.99  homes:1  http://homes.example/1",
    ]


def test_history_and_changes(filled: Folder) -> None:
    """A history has each change with its fields, the oldest first; changes have the newest first,
    with their counts, and can be limited."""
    history = output(filled, "history", "1").splitlines()
    facts = json.loads(output(filled, "history", "imoti:1", "--json"))
    changes = output(filled, "changes", "--kind", "changed", "--kind", "gone").splitlines()
    limited = filled.crawler("listings", "changes", "--limit", "1", "--json")
    nothing = output(filled, "changes", "--since", "2026-11-17T10:00")

    assert history == [
        f"imoti:1  active  {URL}",
        "  2026-11-06 21:20  new        price 100,000 EUR",
        "  2026-11-09 21:20  changed    price 100,000 → 95,000 EUR (−5.0 %)",
        "  2026-11-10 21:20  changed    area: 60 → 62",
        "                               floor: – → 3",
    ]
    assert [each["kind"] for each in facts["changes"]] == ["new", "changed", "changed"]
    assert changes[0] == "imoti: 2 changed, 1 gone"
    assert changes[3:] == [
        "2026-11-11 21:20  gone     imoti:3  50,000 EUR  Flat 3",
        "2026-11-10 21:20  changed  imoti:1  area: 60 → 62; floor: – → 3",
        "2026-11-09 21:20  changed  imoti:1  price 100,000 → 95,000 EUR (−5.0 %)",
    ]
    assert json.loads(limited.stdout)["total"] == 6
    assert len(json.loads(limited.stdout)["changes"]) == 1
    assert nothing == "Nothing changed since 2026-11-17 10:00\n"


def test_corrections_are_counted_and_shown_on_demand(folder: Folder) -> None:
    """What a later parser has read in another way hides no change of a site."""
    with folder.lpm() as lpm:
        writer = Writer(lpm)
        one = writer.add("imoti", "1")
        for day in range(1, 4):
            writer.change(one, "corrected", day=day, fields={"area": (day, day + 1)})

    text = output(folder, "changes").splitlines()
    since = output(folder, "changes", "--since", "2026-11-07T12:00").splitlines()
    facts = json.loads(output(folder, "changes", "--json"))
    shown = json.loads(output(folder, "changes", "--kind", "corrected", "--json"))

    assert text[0] == "imoti: 1 new"
    assert text[-1] == "3 corrections by a later parser: --kind corrected shows what"
    assert [line.split()[2] for line in text[3:-1]] == ["new"]
    assert since[0].startswith("Nothing changed since")
    assert since[1] == text[-1]
    assert (facts["total"], facts["sites"]["imoti"]["corrected"]) == (1, 3)
    assert [each["kind"] for each in facts["changes"]] == ["new"]
    assert [each["kind"] for each in shown["changes"]] == ["corrected"] * 3


def test_a_report_is_written_whole(filled: Folder) -> None:
    """--html writes the report and prints only where it is; `-` is stdout alone. No file of the
    store is replaced."""
    done = filled.crawler("listings", "changes", "--since", "2026-11-01", "--html", "report.html")
    piped = output(filled, "changes", "--html", "-")
    refused = filled.crawler("listings", "changes", "--html", "data/lpm.db")
    missing = filled.crawler("listings", "changes", "--html", "no/report.html")

    assert (done.returncode, done.stdout) == (0, "Report written to report.html\n")
    text = (filled.path / "report.html").read_text()
    assert "<h1>Changes of listings since 2026-11-01 00:00</h1>" in text
    assert piped.startswith("<!doctype html>")
    assert piped.endswith("</html>\n")
    assert (refused.returncode, missing.returncode) == (2, 2)
    assert "belongs to the store" in refused.stderr


def test_visits_are_noted(filled: Folder) -> None:
    """A visit has the time that is given, or now, but no future one; it is shown with the listing
    and in its history."""
    first = output(filled, "visit", "homes:x", "--note", " quiet \x1b[31m", "--at", "2025-11-15")
    facts = json.loads(output(filled, "visit", "2", "--note", "again", "--json"))
    empty = filled.crawler("listings", "visit", "homes:x", "--note", "  ")
    future = filled.crawler("listings", "visit", "2", "--note", "x", "--at", "2999-01-02T14:00")

    assert first == "Noted for 2025-11-15 00:00; homes:x has 1 visit\n"
    assert facts["viewings"][0] == {
        "id": 1, "at": "2025-11-15T00:00:00.000Z", "note": "quiet \x1b[31m",
    }  # fmt: skip
    assert facts["viewings"][1]["note"] == "again"
    assert "visits\n  2025-11-15 00:00  1: quiet \\x1b[31m\n" in output(filled, "show", "2")
    assert "  2025-11-15 00:00  visit 1    quiet" in output(filled, "history", "2")
    history = json.loads(output(filled, "history", "2", "--json"))
    assert [each["note"] for each in history["viewings"]] == ["quiet \x1b[31m", "again"]
    assert future.returncode == 2
    assert "Invalid value for '--at': '2999-01-02T14:00' is in the future" in future.stderr
    assert empty.returncode == 2
    assert "Invalid value for --note: it is empty" in empty.stderr


def test_a_note_of_a_visit_is_removed_by_its_number(filled: Folder) -> None:
    """Only if the listing has it, and once."""

    def note(listing: str, text: str) -> str:
        given = ("--note", text, "--at", "2025-11-15", "--json")
        noted = json.loads(output(filled, "visit", listing, *given))["viewings"]
        return str(max(each["id"] for each in noted if each["note"] == text))

    loud, dear, far = note("homes:x", "loud"), note("homes:x", "dear"), note("imoti:1", "far")

    text = output(filled, "visit", "homes:x", "--remove", loud)
    facts = json.loads(output(filled, "visit", "2", "--remove", dear, "--json"))
    again = filled.crawler("listings", "visit", "homes:x", "--remove", dear)
    refused = [
        filled.crawler("listings", "visit", "homes:x", *arguments).returncode
        for arguments in (("--remove", far), ("--remove", far, "--note", "x"), ())
    ]

    assert text.startswith("Removed the note of 2025-11-15 00:00: loud\nhomes:x has ")
    assert facts["removed"] == {"id": int(dear), "at": "2025-11-15T00:00:00.000Z", "note": "dear"}
    assert not {int(loud), int(dear)} & {each["id"] for each in facts["viewings"]}
    assert (again.returncode, refused) == (2, [2, 2, 2])
    assert f"the listing has no visit {dear}; it has" in again.stderr
    assert f"  {far}: far" in output(filled, "show", "imoti:1")


def test_export_in_each_format(filled: Folder) -> None:
    """Every format has all listings with their facts; formulas are quoted, and filters apply."""
    for form in ("json", "jsonl", "csv", "xlsx", "md", "parquet"):
        assert output(filled, "export", "--output", f"all.{form}") == (
            f"Exported 3 listings to all.{form}\n"
        )
    with (filled.path / "all.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    facts = json.loads(
        output(filled, "export", "--output", "gone.jsonl", "--state", "gone", "--json")
    )
    piped = output(filled, "export", "--output", "-", "--format", "jsonl", "--site", "homes")
    unknown = filled.crawler("listings", "export", "--output", "x.warc.gz")

    assert [row["key"] for row in rows] == ["3", "x", "1"]
    assert (rows[2]["data.title"], rows[2]["price"]) == ("'=HYPERLINK(1)", "95000.0")
    assert (rows[0]["state"], rows[0]["gone_at"]) == ("gone", "2026-11-11T21:20:00.000Z")
    assert list(rows[0])[-3:] == ["missed", "task_id", "job"]
    listed = json.loads((filled.path / "all.json").read_text())
    assert [each["key"] for each in listed] == ["3", "x", "1"]
    table = pyarrow.parquet.read_table(filled.path / "all.parquet")
    assert table.column("price").to_pylist() == [50_000.0, None, 95_000.0]
    assert (filled.path / "all.md").read_text().startswith("# Listings\n")
    assert facts == {"listings": 1, "file": "gone.jsonl", "format": "jsonl"}
    assert json.loads(piped)["key"] == "x"
    assert (unknown.returncode, list(filled.path.glob("x.*"))) == (2, [])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("list", "--site", "imot"), "no listings of the site 'imot'; did you mean imoti?"),
        (("list", "--price", "5"), "'5' is no range; write 100000..150000, 100000.. or ..150000"),
        (("list", "--price", "9..1"), "'9..1' is no range"),
        (("list", "--price", "nan..1"), "'nan..1' is no range"),
        (("list", "--since", "soon"), "'soon' is not a time"),
        (("list", "--since", "2h ago"), "a date such as 2026-11-15, or both"),
        (("list", "--state", "lost"), "'lost' is not one of 'active', 'gone', 'sold'"),
        (("changes", "--kind", "lost"), "'lost' is not one of"),
        (("show", "imoti:7"), "imoti has no listing with the key '7'"),
        (("history", "http://crawl.example/9"), "no page of this URL was fetched"),
        (("visit", "77", "--note", "x"), "there is no listing 77"),
        (("export", "--output", "data/lpm.db", "--format", "csv"), "belongs to the store"),
    ],
)
def test_bad_input_gets_one_clear_line(filled: Folder, args: tuple[str, ...], message: str) -> None:
    """What is wrong with a command is said, with exit code 2; nothing is written."""
    done = filled.crawler("listings", *args)

    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_store_without_listings_says_how_to_get_some(folder: Folder) -> None:
    """Without a store there is an error, and without listings a line that names the key of a
    site's file."""
    absent = folder.crawler("listings", "list")
    folder.make_store()
    texts = [output(folder, name) for name in ("list", "changes")]
    facts = json.loads(output(folder, "list", "--json"))

    assert absent.returncode == 2
    assert "there is no store in" in absent.stderr
    assert all(
        "There are no listings yet; the key `listings:` in a site's file" in t for t in texts
    )
    assert facts == {"sites": {}, "conflicts": [], "total": 0, "listings": []}


def test_a_key_that_was_added_later_asks_for_another_crawl(folder: Folder) -> None:
    """If a site's file has the key but nothing was collected since, every command says to crawl
    again; what needs two sites says so, and an empty export has its reason on stderr."""
    folder.make_store()
    (folder.path / "config" / "sites").mkdir(parents=True)
    text = "hosts: [imoti.example]\nlistings: {key: url}\n"
    (folder.path / "config" / "sites" / "imoti.yaml").write_text(text)
    again = "python -m crawler sites crawl imoti brings some"
    export = ("export", "--output", "-", "--format", "jsonl")
    asked = (
        ("list",), ("list", "--site", "imoti"), ("changes",), export, (*export, "--site", "imoti"),
        ("duplicates",), ("duplicates", "--site", "imoti", "--json"),
    )  # fmt: skip
    for args in asked:
        done = folder.crawler("listings", *args)
        assert done.returncode == 0, done.stderr
        assert again in done.stdout + done.stderr, args
    unknown = folder.crawler("listings", "list", "--site", "other")

    with folder.lpm() as lpm:
        Writer(lpm).add("imoti", "1")
    alone = folder.crawler("listings", "duplicates")
    sold = folder.crawler("listings", *export, "--state", "sold")

    assert unknown.returncode == 2
    assert "the key `listings:` in its file makes some from the next crawl on" in unknown.stderr
    assert "only imoti has listings" in alone.stderr
    assert (sold.returncode, sold.stdout) == (0, "")
    assert "No listing is like that" in sold.stderr


def test_the_summary_of_a_job_tells_what_changed(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    """The end of a crawl says how many of its listings are new, changed, gone and back, and whose
    keys several pages share; `listings list` says the latter, too."""
    with folder.lpm() as lpm:
        tasks.collect(lpm, "crawl", 2)
        job = lpm.jobs.named("crawl")
        writer, day = Writer(lpm), (lpm.now() - T0) / DAY
        one = writer.add("imoti", "1", day=day, task=1)
        writer.add("imoti", "2", day=day, task=2)
        writer.change(one, "gone", day=day, job_id=job.id)
        two = writer.add("imoti", "3", day=day, task=2, job_id=job.id)
        writer.conflict(two, "http://imoti.example/garage", job.id)
        page = lpm.store.db.value("SELECT url FROM tasks WHERE id = 2")

    assert report(folder.settings, job, as_json=False) == 0
    text = capsys.readouterr().out
    assert report(folder.settings, job, as_json=True) == 0
    facts = json.loads(capsys.readouterr().out)

    assert text.splitlines()[1] == "  listings: 3 new, 1 gone"
    told = "imoti: 1 key of listings is on several pages that differ"
    assert text.splitlines()[2].startswith(f"  {told}")
    assert text.splitlines()[2].endswith(f"3 is on {page} and http://imoti.example/garage")
    urls = [page, "http://imoti.example/garage"]
    conflicts = [{"site": "imoti", "keys": 1, "key": "3", "urls": urls}]
    assert facts["listing_conflicts"] == conflicts
    assert told in folder.crawler("listings", "list").stdout
    listed = json.loads(folder.crawler("listings", "list", "--json").stdout)
    assert listed["conflicts"] == conflicts
    assert facts["listing_changes"] == {
        "new": 3, "changed": 0, "gone": 1, "back": 0, "sold": 0, "corrected": 0,
    }  # fmt: skip
