"""`replay`: today's parser over yesterday's pages, what it applies, and golden sets."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from crawler import sites
from crawler.models import UNCHANGED
from crawler.scraping.examine import examine
from tests.support import replays
from tests.support.replays import (
    CLASS,
    SITE,
    configure,
    configure_class,
    pending,
    records,
    replayed,
)
from tests.support.site import Site
from tests.support.stack import Folder
from tests.support.tasks import done, new, open_job, page

PAGES = 12
BROKEN = SITE.replace(".value", ".price")


def collect(folder: Folder, numbers: int = PAGES, parcels: str = "-") -> None:
    """Pages that were collected with the present configuration."""
    with folder.lpm() as lpm:
        replays.collect(lpm, folder.path / "config", range(numbers), parcels)


def fields(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {field["path"]: field for field in report["fields"]}


def test_a_broken_selector_is_caught_and_named(folder: Folder) -> None:
    """The field that lost its value comes first, with its share, an example and the command that
    shows the page; nothing is changed."""
    # Given pages that were collected with a good selector
    configure(folder.path)
    collect(folder)
    before = records(folder)
    assert replayed(folder, "--site", "county", "--fail-under", "1")["share"] == 1.0

    # When it is broken, and another field is added
    configure(folder.path, f"{BROKEN}  heading: h1\n")
    shown = folder.crawler("replay", "--site", "county", "--fail-under", "0.98", "--apply")

    # Then that is what one reads first
    assert shown.returncode == 1
    first, second, *_ = shown.stdout.splitlines()
    assert first == "FAILED: value kept its value on 0.0 % of 12 pages, less than 98.0 %"
    assert second.strip().startswith(f"{replays.HOST}/parcel/")
    assert second.endswith(("00 → (nothing)", ": 0 → (nothing)"))
    assert f"raw {replays.HOST}/parcel/" in shown.stdout
    assert "Nothing was applied" in shown.stdout
    report = replayed(folder, "--fail-under", "0.98", code=1)
    assert report["below"] == ["value"]
    assert {path: (f["had"], f["kept"], f["new"]) for path, f in fields(report).items()} == {
        "value": (12, 0, 0),
        "owner": (12, 12, 0),
        "heading": (0, 0, 12),
    }
    assert records(folder) == before == pending(folder)


def test_a_required_field_that_is_mended_is_applied(folder: Folder) -> None:
    """The list of missing fields goes, and that is no loss: neither for --fail-under, nor for `why`
    and `analyze`, nor for a golden set."""
    # Given pages that were collected with a required field that no page has
    mended = SITE.replace("owner: .owner", "owner: {css: .owner, required: true}")
    configure(folder.path, mended.replace(".owner", ".holder"))
    collect(folder, 3)
    assert all(record["missing"] == ["owner"] for record in records(folder).values())
    replayed(folder, "--freeze", "golden")
    folder.crawler("results", "export", "--format", "jsonl", "--output", "before.jsonl")

    # When its selector is mended
    configure(folder.path, mended)
    expected = run_golden(folder)
    report = replayed(folder, "--fail-under", "1", "--apply")

    # Then the records are replaced, and only the field has changed
    assert (report["below"], report["kept"], report["applied"]["replaced"]) == ([], 3, 3)
    assert fields(report).keys() == {"owner", "value"}
    assert records(folder)[next(iter(records(folder)))].keys() == {"owner", "value"}
    assert "owner: (nothing) → Owner" in expected.stdout
    assert "missing[]" not in expected.stdout + folder.crawler("why", replays.url(1)).stdout
    folder.crawler("results", "export", "--format", "jsonl", "--output", "after.jsonl")
    told = json.loads(folder.crawler("analyze", "before.jsonl", "after.jsonl", "--json").stdout)
    assert [field["path"] for field in told["fields"]] == ["owner"]


def test_pages_are_chosen_by_site_job_time_and_number(folder: Folder) -> None:
    """Each is read once, whatever number of results it has; what was not asked for is not read."""
    configure(folder.path)
    collect(folder, 5, parcels="ab")

    assert replayed(folder)["pages"] == 5
    assert replayed(folder, "--limit", "3")["pages"] == 3
    assert replayed(folder, "--job", "job", "--since", "1h")["pages"] == 5
    for args in (("--since", "0s"), ("--site", "default")):
        nothing = folder.crawler("replay", *args)
        assert nothing.returncode == 2
        assert "there is no stored page" in nothing.stderr
    unknown = folder.crawler("replay", "--site", "conty")
    assert (unknown.returncode, "did you mean county?" in unknown.stderr) == (2, True)
    both = folder.crawler("replay", "--apply", "--against", "x.jsonl")
    assert (both.returncode, "leave --against away" in both.stderr) == (2, True)


def test_an_export_and_a_golden_set_can_be_compared_with(folder: Folder) -> None:
    """The records of a file count as the earlier ones; pages that it lacks are counted."""
    # Given an export of the first pages, made with another parser
    configure(folder.path)
    collect(folder, 6)
    folder.results()
    export = folder.path / "export.jsonl"
    lines = [json.loads(line) for line in export.read_text().splitlines()]
    lines[0]["data"]["owner"] = "another"
    export.write_text("".join(json.dumps(line) + "\n" for line in lines[:4]))

    # When it is compared with today's parser
    report = replayed(folder, "--against", str(export), "--fail-under", "0.9", code=1)

    # Then one page of four differs
    assert (report["compared"], report["same"], report["unmatched"]) == (4, 3, 2)
    assert report["below"] == ["owner"]
    [example] = fields(report)["owner"]["examples"]
    assert (example["old"], example["new"]) == ("another", "Owner 0")
    replayed(folder, "--freeze", "golden")
    assert replayed(folder, "--against", "golden")["same"] == 6
    for name, reason in (("none.jsonl", "no such file"), ("config", "no pages of a golden set")):
        refused = folder.crawler("replay", "--against", name)
        assert (refused.returncode, reason in refused.stderr) == (2, True), refused.stderr


def test_nothing_compared_fails_a_replay_that_is_to_judge(folder: Folder) -> None:
    """With --fail-under, pages that are all gone, or unknown to the other side, prove nothing."""
    # Given a file with a record of another page, and pages with a better parser by now
    configure(folder.path)
    collect(folder, 2)
    folder.results()
    export = folder.path / "export.jsonl"
    line = json.loads(export.read_text().splitlines()[0]) | {"url": replays.url(99)}
    export.write_text(json.dumps(line) + "\n")

    # When nothing is compared: no page is in the file, and then all pages are gone
    unmatched = folder.crawler("replay", "--against", str(export), "--fail-under", "0.9")
    configure(folder.path, f"{SITE}  heading: h1\n")
    with folder.lpm() as lpm:
        lpm.store.db.execute("UPDATE results SET raw_segment = NULL, raw_offset = NULL")
    gone = folder.crawler("replay", "--fail-under", "0.9", "--apply")

    # Then that fails, and says so first; without --fail-under, nothing is judged
    for ended in (unmatched, gone):
        assert ended.returncode == 1, ended.stdout
        assert ended.stdout.startswith("FAILED: no page was compared")
    assert "0 stored pages parsed (" in gone.stdout
    assert "Nothing was applied" in gone.stdout
    assert replayed(folder)["compared"] == 0


def test_apply_makes_the_new_records_current(folder: Folder) -> None:
    """Results, exports and pending/ have them, also of siblings and of unchanged pages; `why` shows
    both; the doctor finds nothing to repair; a second time there is nothing to do."""
    # Given pages with two results each, and one that was found unchanged later
    configure(folder.path)
    collect(folder, 3, parcels="ab")
    with folder.lpm() as lpm:
        [(known, key)] = lpm.store.db.all("SELECT id, url_key FROM tasks ORDER BY id LIMIT 1")
        lpm.store.db.execute("INSERT INTO validators VALUES (?, 'tag', NULL, ?)", (key, known))
        job = open_job(lpm, "again")
        lpm.persist_tasks([new(replays.url(0))], job=job)
        [task] = lpm.get_next_pending("owner")
        assert task.known
        lpm.save_result(done(task, verdict=UNCHANGED))
        lpm.imports.close(job, time.time())
    configure(folder.path, SITE.replace("fields:\n", "fields:\n  heading: h1\n"))

    # When the new records are applied, with a bar that they pass
    first = replayed(folder, "--apply", "--fail-under", "1")
    second = replayed(folder, "--apply")

    # Then they are everywhere
    assert (first["pages"], first["applied"]["replaced"]) == (3, 7)
    assert (second["same"], second["applied"]["replaced"]) == (3, 0)
    found = records(folder)
    assert len(found) == 7
    assert {each["heading"][:7] for each in found.values()} == {"Parcel "}
    assert pending(folder) == found
    assert {each["task_id"]: each["data"] for each in folder.results()} == found
    [why, *_] = json.loads(folder.crawler("why", replays.url(1), "--json").stdout)
    assert [each["data"] for each in why["versions"]] == [{"owner": "Owner 1", "value": 100}]
    text = folder.crawler("why", replays.url(1)).stdout
    assert "replayed     record 2" in text
    assert "replaced     record 1" in text
    assert "changed heading: (nothing) → Parcel 1" in text
    doctor = folder.crawler("doctor", "--repair")
    assert doctor.returncode == 0, doctor.stdout
    assert "repaired" not in doctor.stdout.lower()
    assert records(folder) == found


def test_apply_corrects_listings(folder: Folder) -> None:
    """What a later parser makes of the same page is no change of the thing: it has no price
    history, and `listings history` calls it corrected."""
    key = "listings: {key: owner, price: value}\n"
    configure(folder.path, BROKEN.replace(".price", "h1") + key)
    collect(folder, 3)

    configure(folder.path, SITE + key)
    assert replayed(folder, "--apply")["applied"]["replaced"] == 2  # page 0 has the same values

    first = json.loads(folder.crawler("listings", "list", "--json").stdout)["listings"][0]
    assert (first["key"], first["price"], first["data"]["value"]) == ("Owner 2", 200, 200)
    history = json.loads(folder.crawler("listings", "history", first["url"], "--json").stdout)
    assert [each["kind"] for each in history["changes"]] == ["new", "corrected"]
    assert history["prices"] == []


def test_apply_corrects_listings_by_other_rules(folder: Folder) -> None:
    """The records stay the same; a second time, nothing is left to correct."""
    site = SITE + "  number: {css: h1, type: number}\n"
    configure(folder.path, site + "listings: {key: owner, price: value}\n")
    collect(folder, 3)
    rules = "listings: {key: owner, price: number, sold: {owner: [Owner 2]}}\n"
    configure(folder.path, site + rules)

    for _ in range(2):
        replayed(folder, "--apply")

    first = json.loads(folder.crawler("listings", "list", "--json").stdout)["listings"][0]
    assert (first["key"], first["price"], first["state"]) == ("Owner 2", 2, "sold")
    history = json.loads(folder.crawler("listings", "history", first["url"], "--json").stdout)
    assert [each["kind"] for each in history["changes"]] == ["new", "corrected"]
    assert history["changes"][-1]["fields"] == {
        "price": {"old": 200, "new": 2},
        "sold": {"old": False, "new": True},
    }
    assert history["prices"] == []


@pytest.mark.parametrize("replaced", [False, True])
def test_apply_corrects_listings_of_later_results_of_a_page(folder: Folder, replaced: bool) -> None:
    """Also where the first result of the page, or every one, has the new record already; the next
    sight of the page is no change."""
    # Given a page with the new record, and an answer 304 that a worker with the old file stored
    key = "listings: {key: owner, price: value}\n"
    configure(folder.path, BROKEN + key)
    collect(folder, 1)
    with folder.lpm() as lpm:
        old = sites.load(folder.path / "config").of(replays.url(0))
        parsed = examine(page(replays.url(0), replays.body(0)), old)
    configure(folder.path, SITE + key)
    replayed(folder, "--apply")
    with folder.lpm() as lpm:
        db = lpm.store.durable
        [(known, url_key)] = db.all("SELECT id, url_key FROM tasks")
        db.execute("INSERT INTO validators VALUES (?, 'tag', NULL, ?)", (url_key, known))
        lpm.persist_tasks([new(replays.url(0))], job=open_job(lpm, "again"))
        [task] = lpm.get_next_pending("owner")
        site = (old.name, old.version)
        later = page(task.url, replays.body(0))
        lpm.save_result(
            done(task, parsed.encoded, page=later, verdict=UNCHANGED, site=site,
                 listings=parsed.listings)
        )  # fmt: skip
        db.execute("UPDATE results SET record = ? WHERE task = ?",
                   (parsed.encoded.decode(), task.id))  # fmt: skip
        if replaced:
            db.execute("UPDATE results SET record = (SELECT record FROM results WHERE task = ?)",
                       (known,))  # fmt: skip

    # When it is replayed, and seen once more with the new file
    replayed(folder, "--apply")
    with folder.lpm() as lpm:
        lpm.persist_tasks([new(replays.url(0))], job=open_job(lpm, "once more"))
        [task] = lpm.get_next_pending("owner")
        replays.save(lpm, sites.load(folder.path / "config"), task)

        # Then the listing was corrected last, and has not changed since
        changes = lpm.store.db.column("SELECT kind FROM listing_changes ORDER BY id")
        assert changes == ["new", "corrected", "changed", "corrected"]


@pytest.mark.parametrize(
    "failpoint",
    ["replacing-records:1", "replaced-records:1", "replacing-records:2", "replaced-files:1"],
)
def test_an_apply_that_is_killed_is_completed_by_the_next(folder: Folder, failpoint: str) -> None:
    """Killed at any step, each record is the earlier or the new one, and its version fits; the
    second run completes it, files included, and the doctor finds nothing to repair."""
    # Given more results than one commit takes
    configure(folder.path)
    collect(folder, 6, parcels="".join(map(chr, range(0x100, 0x100 + 120))))
    configure(folder.path, SITE.replace("owner:", "holder:"))

    # When the first run is killed
    killed = folder.crawler("replay", "--apply", CRAWLER_FAILPOINT=failpoint)

    # Then nothing is half done
    assert killed.returncode in (-9, 137)
    with folder.lpm() as lpm:
        rows = lpm.store.db.all(
            """SELECT record, (SELECT count(*) FROM record_versions v WHERE v.task = r.task),
                      (SELECT count(*) FROM events e WHERE e.task = r.task AND kind = 'replayed')
               FROM results r"""
        )
    assert {("holder" in record, versions, events) for record, versions, events in rows} <= {
        (True, 1, 1),
        (False, 0, 0),
    }
    replayed_before = sum("holder" in record for record, _, _ in rows)
    assert replayed_before == {"replacing-records:1": 0}.get(failpoint, 480)

    # And the second run completes it
    report = replayed(folder, "--apply")
    assert report["applied"]["replaced"] == len(rows) - replayed_before
    found = records(folder)
    assert all("holder" in each for each in found.values())
    assert pending(folder) == found
    doctor = folder.crawler("doctor")
    assert doctor.returncode == 0, doctor.stdout


@pytest.mark.parametrize(
    ("action", "reason", "message"),
    [
        ("raise ValueError('no such owner')", "scraper_error", "ValueError: no such owner"),
        ("os._exit(3)", "poison", "ended its process (exit code 3)"),
        ("os.kill(os.getpid(), 9)", "poison", "ended its process by SIGKILL"),
        ("re.match('(a+)+b', 'a' * 100)", "poison", "hung the parser"),
    ],
)
def test_a_page_that_raises_kills_or_hangs_costs_itself(
    folder: Folder, action: str, reason: str, message: str
) -> None:
    """The others are parsed, and the report names the page and why."""
    configure_class(folder.path)
    collect(folder)
    configure_class(folder.path, action)

    report = replayed(folder, "--apply", code=1, CRAWLER_STALL_S="1")

    assert (report["pages"], report["same"], report["failed"]["count"]) == (PAGES, PAGES - 1, 1)
    [problem] = report["failed"]["examples"]
    assert (problem["url"], problem["reason"]) == (replays.url(2), reason)
    assert message in problem["message"]
    assert report["applied"]["replaced"] == 0


def test_a_class_that_cannot_be_run_is_an_error(folder: Folder) -> None:
    """One clear line with file and line, and not one failure for each page."""
    configure_class(folder.path)
    collect(folder, 2)
    (folder.path / "config" / "scrapers" / "county.py").write_text(
        CLASS.replace("import os", "import no_such_module, os")
    )

    ended = folder.crawler("replay")

    assert ended.returncode == 2
    assert "county.py, line 2: the file cannot be run" in ended.stderr


def test_damaged_and_pruned_pages_are_counted_and_named(folder: Folder) -> None:
    """A page that cannot be read costs itself; one that was pruned is no failure."""
    configure(folder.path)
    collect(folder, 4)
    with folder.lpm() as lpm:
        first, second, *_ = lpm.versions.stored_results(None, None)
        assert first.page
        lpm.store.db.execute(
            "UPDATE results SET raw_segment = NULL, raw_offset = NULL WHERE task = ?",
            (second.task,),
        )
    assert replayed(folder)["gone"]["count"] == 1
    with (folder.data / "raw" / first.page.segment).open("r+b") as segment:
        segment.seek(first.page.offset + 30)
        segment.write(b"damage")

    report = replayed(folder, code=1)

    assert (report["pages"], report["unreadable"]["count"], report["gone"]["count"]) == (2, 1, 1)
    assert report["unreadable"]["examples"][0]["url"] == first.url
    assert report["gone"]["examples"][0]["url"] == second.url


def run_golden(folder: Folder, *args: str) -> subprocess.CompletedProcess[str]:
    """Pytest with this project's own settings over the golden set."""
    own = Path(__file__).parents[2] / "pyproject.toml"
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", str(own),
         "--crawler-golden", "golden", "--crawler-config", "config", *args],
        cwd=folder.path, env=dict(os.environ) | {"COLUMNS": "200"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def test_a_golden_set_is_run_by_pytest(folder: Folder) -> None:
    """One test for each page; a failure shows the fields that differ and no traceback; frozen again
    it passes, and only what differs is written."""
    # Given a golden set of three pages
    configure(folder.path)
    collect(folder, 3)
    folder.crawler("replay", "--freeze", "golden")
    names = sorted(path.name for path in (folder.path / "golden").iterdir())
    assert len(names) == 6
    assert names[0].startswith("county-parcel-0-")

    # When nothing has changed, and when a selector is broken
    good = run_golden(folder)
    configure(folder.path, BROKEN)
    bad = run_golden(folder)

    # Then that is what pytest says
    assert good.returncode == 0, good.stdout + good.stderr
    assert "3 passed" in good.stdout
    assert bad.returncode == 1
    assert "3 failed" in bad.stdout
    assert f"{replays.url(1)}\n  value: 100 → (nothing)" in bad.stdout
    assert "Traceback" not in bad.stdout
    assert "pytest_plugin.py" not in bad.stdout
    again = replayed(folder, "--freeze", "golden")
    assert again["frozen"] == 3
    assert replayed(folder, "--freeze", "golden")["frozen"] == 0
    assert sorted(path.name for path in (folder.path / "golden").iterdir()) == names
    assert run_golden(folder, "-k", "parcel-1").stdout.count("1 passed, 2 deselected") == 1
    none = run_golden(folder, "--crawler-golden", "config")
    assert (none.returncode, "no pages of a golden set" in none.stderr) == (4, True)
    nowhere = run_golden(folder, "--crawler-config", "nowhere")
    assert (nowhere.returncode, "there is no folder nowhere" in nowhere.stderr) == (4, True)
    inside = folder.crawler("replay", "--freeze", "data/golden")
    assert (inside.returncode, "choose another one" in inside.stderr) == (2, True)


def test_the_plugin_loads_nothing_without_its_option() -> None:
    """Every pytest of an environment with this package loads the plugin: it must cost nothing."""
    code = (
        "import sys, crawler.pytest_plugin\n"
        "print(sorted(name for name in sys.modules if name.startswith('crawler')))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert shown.stdout.strip() == "['crawler', 'crawler.pytest_plugin']"


def test_a_new_parser_is_tried_without_fetching_again(folder: Folder, site: Site) -> None:
    """Scenario B in three commands: collect a sample, replay it with the new parser, apply it. The
    server hears nothing after the first; the roles of a crawl's pages are kept."""
    # Given a site with a class that finds links and makes records of listings only
    scrapers = folder.path / "config" / "scrapers"
    scrapers.mkdir(parents=True)
    text = """
class Here:
    hosts = ["127.0.0.1"]
    rate = "none"

    def extract_listing_urls(self, page):
        return [f"/page/{n}" for n in range(5)]

    def extract_listing(self, page):
        return {"heading": page.css_first("h1").text()}
"""
    (scrapers / "here.py").write_text(text)
    crawled = folder.crawler("crawl", site.page(7), "--limit", "6", "--sitemap", "skip")
    assert crawled.returncode == 0, crawled.stdout + crawled.stderr
    hits = site.hits()

    # When the parser is replaced
    same = replayed(folder)
    (scrapers / "here.py").write_text(text.replace('"heading"', '"title"'))
    report = replayed(folder, "--site", "here")
    starts = replayed(folder, "--role", "start", "--role", "index")
    applied = replayed(folder, "--site", "here", "--apply")

    # Then the listings have the new field, the start page keeps its record, and nothing is fetched
    assert (same["pages"], same["share"]) == (6, 1.0)
    assert (starts["pages"], starts["share"]) == (1, 1.0)
    assert fields(report)["heading"]["lost"] == 5
    assert applied["applied"]["replaced"] == 5
    assert sum(list(each) == ["title"] for each in records(folder).values()) == 5
    assert site.hits() == hits
