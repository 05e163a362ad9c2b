"""`scrape --stored`: the present configuration over the stored page, without the network and
without a trace."""

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from crawler.models import Page, TaskStatus
from tests.support.pages import Answer, Pages
from tests.support.site import Site
from tests.support.stack import Folder
from tests.support.tasks import done, new, page

URL = "http://county.example/parcel/7"
BODY = b"""<title>Parcel 7</title><h1>Parcel 12-3</h1>
<table><tr><th>Owner</th><td>Jane Roe</td></tr><tr><th>Value</th><td>$1,234</td></tr></table>"""
SITE = """\
hosts: [county.example]
fields:
  owner: th:contains("Owner") + td
  value:
    css: th:contains("Value") + td
    type: number
  deed:
    css: .deed
    required: true
"""


def store(folder: Folder, *answers: dict[str, Any], url: str = URL, raw: str = "all") -> None:
    """One task after the other for the URL, each with its end."""
    lpm = folder.lpm()
    lpm.pages._keep = raw
    for answer in answers:
        lpm.persist_tasks([new(url)], fresh_for_s=None)
        [task] = lpm.get_next_pending("owner")
        assert lpm.save_result(done(task, **answer)) == [True]
    lpm.close()


def good(
    body: bytes = BODY, record: dict[str, Any] | None = None, status: int = 200, **about: Any
) -> dict[str, Any]:
    return {
        "page": made(body, status, **about),
        "record": record if record is not None else {"title": "Parcel 7"},
    }


def made(body: bytes, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Page:
    plain = page(URL, body, status)
    return Page(
        **{
            name: getattr(plain, name)
            for name in ("url", "final_url", "status", "reason", "fetched_at", "fetch_s")
        },
        headers=headers or plain.headers,
        body=body,
        raw=body,
    )


def configure(folder: Folder, text: str = SITE) -> None:
    (folder.path / "config" / "sites").mkdir(parents=True, exist_ok=True)
    (folder.path / "config" / "sites" / "county.yaml").write_text(text)


def again(folder: Folder, url: str = URL) -> tuple[int, dict[str, Any], str]:
    ended = folder.crawler("scrape", url, "--stored", "--json")
    return ended.returncode, json.loads(ended.stdout) if ended.stdout else {}, ended.stderr


def contents(path: Path) -> dict[str, str]:
    """What is in the data folder; the ledger by its rows, because its files may be written back
    meanwhile."""
    import apsw

    database = apsw.Connection(str(path / "lpm.db"), flags=apsw.SQLITE_OPEN_READONLY)
    tables = [
        name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
    ]
    rows = {name: repr(list(database.execute(f"SELECT * FROM {name}"))) for name in tables}
    found = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in rows.items()}
    database.close()
    files = (each for part in ("raw", "pending") for each in (path / part).iterdir())
    return found | {str(each): hashlib.sha256(each.read_bytes()).hexdigest() for each in files}


def test_the_way_of_one_who_writes_selectors(folder: Folder, site: Site) -> None:
    """Fetched once; then each change of the file shows what it would give, and the server hears
    nothing more."""
    url = site.page(3)
    fetched = folder.crawler("scrape", url, "--local", "--json")
    assert fetched.returncode == 0, fetched.stderr
    before, hits = contents(folder.data), site.hits()

    same = folder.crawler("scrape", url, "--stored")
    configure(folder, "hosts: [127.0.0.1]\nfields:\n  heading: h1\n  title: h1\n")
    code, facts, _ = again(folder, url)
    shown = folder.crawler("scrape", url, "--stored")

    assert (same.returncode, "Nothing differs from the stored result." in same.stdout) == (
        0,
        True,
    ), same
    heading = facts["now"]["heading"]
    assert (code, facts["site"]["name"], facts["difference"]["added"]) == (
        0,
        "county",
        {"heading": heading},
    )
    assert facts["difference"]["changed"] == {"title": [facts["stored"]["title"], heading]}
    assert facts["parser"] == facts["site"]
    assert f"  + heading: {heading}\n" in shown.stdout
    assert f"  ~ title: {facts['stored']['title']} → {heading}\n" in shown.stdout
    assert site.hits() == hits
    assert contents(folder.data) == before


def test_added_removed_and_changed_fields(folder: Folder) -> None:
    """The difference names every field, those inside others too, with old and new; null is told
    from absent."""
    record = {
        "title": "Old",
        "gone": [1],
        "fields": {"Owner": "Jane Roe", "Left": "x"},
        "owner": None,
    }
    store(folder, good(record=record))
    configure(folder, f"structured: true\n{SITE}")

    code, facts, _ = again(folder)
    text = folder.crawler("scrape", URL, "--stored").stdout

    assert code == 0
    assert facts["stored"] == record
    assert (facts["now"]["owner"], facts["now"]["value"], facts["now"]["deed"]) == (
        "Jane Roe",
        1234,
        None,
    )
    assert facts["now"]["missing"] == ["deed"]
    other = facts["difference"]
    assert {
        "value": 1234,
        "deed": None,
        "fields.Value": "$1,234",
        "missing": ["deed"],
    }.items() <= other["added"].items()
    assert other["removed"] == {"gone": [1], "fields.Left": "x"}
    assert other["changed"] == {"title": ["Old", "Parcel 7"], "owner": [None, "Jane Roe"]}
    assert "  ~ owner: null → Jane Roe\n" in text
    assert "  - fields.Left: x\n" in text
    assert "  + value: 1234\n" in text


def test_the_body_is_decoded_as_its_headers_say(folder: Folder) -> None:
    """Compressed pages and other charsets are read as they were when they came."""
    import gzip

    text = "<title>Größe</title>".encode("latin-1")
    zipped = made(
        gzip.compress(text),
        headers=(("Content-Type", "text/html; charset=latin-1"), ("Content-Encoding", "gzip")),
    )
    store(folder, {"page": zipped, "record": {"title": "Größe"}})

    code, facts, _ = again(folder)

    assert (code, facts["now"], facts["difference"]) == (
        0,
        {"title": "Größe"},
        {"added": {}, "removed": {}, "changed": {}},
    )


def test_not_modified_means_the_page_before(folder: Folder) -> None:
    """An answer 304 has no page of its own: the one that it confirms is read."""
    with Pages() as server:
        server.answers["/7"] = Answer(BODY, headers={"ETag": '"1"'})
        url = f"{server.url}/7"
        for command in (("scrape", url, "--local"), ("run", str(folder.write("urls.txt", [url])))):
            fetched = folder.crawler(*command)
            assert fetched.returncode == 0, fetched.stderr
    configure(folder, SITE.replace("county.example", "127.0.0.1"))

    code, facts, _ = again(folder, url)

    assert [result["verdict"] for result in folder.results()] == ["thin", "unchanged"]
    assert (code, facts["status_code"], facts["now"]["owner"]) == (0, 200, "Jane Roe")


def test_a_good_page_goes_before_a_later_wall(folder: Folder) -> None:
    """What failed last does not hide what was collected before; where nothing was, its page is
    read."""
    wall = {
        "status": TaskStatus.FAILED,
        "page": made(b"<title>Denied</title>", 403),
        "error_type": "http_403",
    }
    wall |= {"record": {}, "verdict": None, "error_message": "the server answered 403"}
    store(folder, good(), wall)
    store(folder, wall, url=f"{URL}8")

    _, first, _ = again(folder)
    code, second, _ = again(folder, f"{URL}8")
    shown = folder.crawler("scrape", f"{URL}8", "--stored").stdout

    assert first["stored"] == {"title": "Parcel 7"}
    assert (code, second["status_code"], second["stored"], second["now"]) == (0, 403, None, {})
    assert second["verdict"] != "ok"
    assert f"it is {second['verdict']}: " in shown
    assert "the task of this page failed" in shown


def test_where_nothing_is_stored(folder: Folder) -> None:
    """No store, no task, not fetched yet, not kept, pruned: each is said, and the exit code is
    2."""
    empty = again(folder)
    store(folder, good(), raw="none")
    unknown, not_kept = again(folder, f"{URL}1"), again(folder)
    store(folder, good(), url=f"{URL}3")
    for path in (folder.data / "raw").iterdir():
        os.utime(path, (time.time() - 7200,) * 2)
    assert folder.crawler("prune", "--raw", "--older-than", "1h").returncode == 0
    pruned = again(folder, f"{URL}3")
    lpm = folder.lpm()
    lpm.persist_tasks([new(f"{URL}2")])
    lpm.close()
    waiting = again(folder, f"{URL}2")

    for (code, facts, message), reason in (
        (empty, "there is no store in"),
        (unknown, "was never fetched"),
        (not_kept, "its page was not kept (CRAWLER_RAW)"),
        (waiting, "its task is pending"),
        (pruned, "was removed by prune"),
    ):
        assert (code, facts) == (2, {})
        assert reason in message


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (made(b"<div>" * 6_000), "too_deep"),
        (
            made(
                b"not gzip", headers=(("Content-Type", "text/html"), ("Content-Encoding", "gzip"))
            ),
            "bad_encoding",
        ),
    ],
    ids=["deep", "coding"],
)
def test_a_page_that_cannot_be_read(folder: Folder, answer: Page, reason: str) -> None:
    """It is said why, and the exit code is 1."""
    store(folder, {"page": answer, "record": {}})

    code, facts, message = again(folder)

    assert (code, facts, f"({reason})" in message) == (1, {}, True)


def test_a_mistake_in_the_configuration_is_told_first(folder: Folder) -> None:
    """The loop of writing selectors ends in the line that is wrong."""
    store(folder, good())
    configure(folder, "hosts: [county.example]\nfields:\n  owner: td >\n")

    code, _, message = again(folder)

    assert (code, message) == (
        2,
        "Error: config/sites/county.yaml, line 3: css: 'td >' is not a CSS selector\n",
    )


def test_rows_without_a_url_are_imported_by_their_platform(folder: Folder) -> None:
    """bulk import, its rehearsal and --strict make the same URLs out of columns, and reject the
    same rows."""
    configure(folder, "url_template: https://assessor.county.example/parcel/{parcel_id}\n")
    (folder.path / "parcels.csv").write_text("platform,parcel_id\ncounty,12-3\ncounty,\n")

    dry = folder.crawler("bulk", "import", "parcels.csv", "--dry-run")
    strict = folder.crawler("bulk", "import", "parcels.csv", "--strict")
    imported = folder.crawler("bulk", "import", "parcels.csv", "--json")

    facts = json.loads(imported.stdout)
    assert "https://assessor.county.example/parcel/12-3" in dry.stdout
    assert (strict.returncode, "the column 'parcel_id' is empty" in strict.stderr) == (2, True)
    assert (imported.returncode, facts["rows"], facts["accepted"], facts["rejected"]) == (
        1,
        2,
        1,
        1,
    )
    reject = json.loads((folder.path / "parcels.csv.rejects.jsonl").read_text())
    assert (reject["line"], "the column 'parcel_id' is empty" in reject["reason"]) == (3, True)
