"""A wrong byte in a column: what contradicts it tells, and says what was there."""

from pathlib import Path

import pytest

from crawler import urls
from crawler.bulk import import_file
from crawler.config import Settings
from crawler.doctor import exit_code
from crawler.lpm import LocalPersistenceManager
from tests.support.patient import (
    change,
    crawl,
    empty_index,
    ledger,
    look,
    of,
    spoil,
    swap_index,
    wrong,
)
from tests.support.tasks import done, new, open_job, page

TASKS = (
    "SELECT id, url, url_key, domain, status, queue, priority, deadline, not_before, job_id "
    "FROM tasks ORDER BY id"
)
ROWS = """SELECT url, source_line, source_item, t.input FROM tasks t UNION ALL
          SELECT url, l.source_line, l.source_item, l.input
          FROM job_links l JOIN tasks ON id = task ORDER BY 1, 2"""


def verify(data: Path) -> list[str]:
    """What the job's receipt does not account for."""
    lpm = LocalPersistenceManager(data)
    try:
        return lpm.receipt(lpm.jobs.named("job")).problems
    finally:
        lpm.close()


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("url = 'http://a.example/x5' WHERE id = 15", "url is 'http://a.example/x5', but url_key"),
        ("url = 'http://a.example/x5' WHERE id = 5", "url is 'http://a.example/x5', but url_key"),
        ("url = 'hxtp://a.example/5' WHERE id = 5", "url is 'hxtp://a.example/5', which is no URL"),
        ("url_key = randomblob(16) WHERE id = 5", "but url_key is that of another page"),
        ("url_key = randomblob(16) WHERE id = 15", "but url_key is that of another page"),
        (
            "domain = 'a.exbmple' WHERE id = 15",
            "domain is 'a.exbmple', but url is 'http://a.example/14'",
        ),
        ("queue = 'defbult' WHERE id = 15", "queue is 'defbult'"),
        ("priority = 0 WHERE id = 15", "priority is '0'"),
        ("priority = 'x' WHERE id = 15", "priority is 'x'"),
        ("deadline = -1 WHERE id = 15", "deadline is '-1.0'"),
        ("not_before = 8e15 WHERE id = 15", "not_before is '8000000000000000.0'"),
        ("strikes = x'00' WHERE id = 15", "strikes is"),
        ("attempts = -7 WHERE id = 15", "attempts is '-7'"),
    ],
)
def test_a_column_that_contradicts_another_is_named_and_put_right(
    tmp_path: Path, sql: str, said: str
) -> None:
    """Task, column and contradiction are told; a repair finds what was there, and the job is
    accounted for."""
    crawl(tmp_path, 20, 10)
    before = ledger(tmp_path, TASKS)
    [(task_id,)] = ledger(tmp_path, f"SELECT task_id FROM tasks WHERE {sql.partition('WHERE ')[2]}")
    change(tmp_path, f"UPDATE tasks SET {sql}")

    found = look(tmp_path)
    assert f"task {task_id}: " in of(found, "ledger", "wrong")[0]
    assert said in of(found, "ledger", "wrong")[0]
    assert exit_code(found) == 4

    repaired = look(tmp_path, repair=True)
    assert "1 columns of tasks corrected" in of(repaired, "ledger", "mended")[0]
    assert wrong(look(tmp_path)) == []
    assert ledger(tmp_path, TASKS) == before
    assert verify(tmp_path) == []


def test_a_url_that_nothing_tells_any_more_is_a_loss(tmp_path: Path) -> None:
    """No task is fetched under a wrong URL: it is removed, and its job is unaccounted for until
    somebody says so."""
    lpm = LocalPersistenceManager(tmp_path)
    job = open_job(lpm)
    lpm.persist_tasks([new(f"http://a.example/{n}", line=n) for n in range(2, 12)], job=job)
    lpm.imports.close(job, lpm.now())
    lpm.close()
    change(tmp_path, "UPDATE tasks SET url = 'http://a.example/x' WHERE id = 5")

    repaired = look(tmp_path, repair=True)

    assert "1 tasks removed, because their URLs are lost" in of(repaired, "ledger", "mended")[0]
    assert exit_code(repaired) == 1
    assert (
        "job job: 1 of its 10 tasks were lost; no row is left of the lines 6"
        in of(repaired, "jobs", "wrong")[0]
    )
    assert ledger(tmp_path, "SELECT count(*) FROM tasks WHERE url LIKE '%x'") == [(0,)]
    assert "1 of its 10 tasks were lost" in verify(tmp_path)[0]


def test_a_lost_url_of_a_page_that_was_found_elsewhere(tmp_path: Path) -> None:
    """A result is kept under the URL where it was found, and its job says that something of its
    input is lost."""
    lpm = LocalPersistenceManager(tmp_path)
    job = open_job(lpm)
    lpm.persist_tasks([new("http://a.example/1", line=2)], job=job)
    lpm.imports.close(job, lpm.now())
    [task] = lpm.get_next_pending("owner", 1)
    lpm.save_result(done(task, page=page("http://a.example/other")))
    lpm.close()
    change(tmp_path, "UPDATE tasks SET url = 'http://a.example/x'")
    next((tmp_path / "pending").iterdir()).unlink()

    look(tmp_path, repair=True)

    assert ledger(tmp_path, "SELECT url, url_key, status FROM tasks") == [
        ("http://a.example/other", urls.parse("http://a.example/1").key, "completed")
    ]
    assert "the input of 1 of its tasks was lost" in verify(tmp_path)[0]
    assert not of(look(tmp_path), "ledger", "wrong")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"pending", b"expired"),
        (b"pending", b"pendinh"),
        (urls.parse("http://a.example/14").key, bytes(16)),
    ],
)
def test_bytes_that_no_index_knows(tmp_path: Path, before: bytes, after: bytes) -> None:
    """A row that its indexes contradict is found without --repair, too; no task ends that nobody
    has fetched."""
    crawl(tmp_path, 20, 10)
    rows = ledger(tmp_path, TASKS)
    spoil(tmp_path, "tasks", before, after)

    assert exit_code(look(tmp_path)) == 4
    assert not wrong(look(tmp_path, repair=True))
    assert wrong(look(tmp_path)) == []
    assert ledger(tmp_path, TASKS) == rows


@pytest.mark.parametrize("ended", ["completed", "failed", "expired"])
def test_a_state_that_the_timeline_contradicts(tmp_path: Path, ended: str) -> None:
    """A task that has ended otherwise than its timeline says is found; without a result it is
    collected again."""
    crawl(tmp_path, 20, 10)
    change(tmp_path, (
        "UPDATE tasks SET status = 'skipped', completed_at = 1 WHERE id = 15; "
        f"INSERT INTO events (task, at, kind, detail) VALUES (15, 1, '{ended}', '{{}}')"
    ))  # fmt: skip

    assert (
        "1 tasks with another end than their timelines say"
        in of(look(tmp_path), "books", "wrong")[0]
    )

    look(tmp_path, repair=True)
    assert wrong(look(tmp_path)) == []
    expected = "pending" if ended == "completed" else ended
    assert ledger(tmp_path, "SELECT status FROM tasks WHERE id = 15") == [(expected,)]


def test_a_digest_that_is_not_that_of_the_page(tmp_path: Path) -> None:
    """Every page is compared; where it is whole, its result gets the digest back."""
    crawl(tmp_path, 300, 300)
    [(digest,)] = ledger(tmp_path, "SELECT body_sha256 FROM results WHERE task = 155")
    change(tmp_path, f"UPDATE results SET body_sha256 = '{str(digest)[:-1]}x' WHERE task = 155")

    found = look(tmp_path)
    said = of(found, "segments", "wrong")[0]
    assert said.startswith("body_sha256 of 1 results is not that of their pages")
    assert "http://a.example/154" in said
    assert of(found, "projections", "wrong")

    look(tmp_path, repair=True)
    assert wrong(look(tmp_path)) == []
    assert ledger(tmp_path, "SELECT body_sha256 FROM results WHERE task = 155") == [(digest,)]


@pytest.mark.parametrize(
    ("table", "column", "where"),
    [("results", "record", "task = 4"), ("tasks", "url", "id = 15"),
     ("tasks", "error_message", "id = 4"), ("events", "detail", "task = 4"),
     ("jobs", "name", "id = 1"), ("results", "final_url", "task = 4")],
)  # fmt: skip
def test_a_text_that_is_none(tmp_path: Path, table: str, column: str, where: str) -> None:
    """A byte that no UTF-8 has is found in every column, and what it cost is told or made again."""
    crawl(tmp_path, 20, 10)
    broken = f"CAST(CAST(coalesce({column}, '{{}}') AS BLOB) || x'b0' AS TEXT)"
    if column in ("record", "detail"):
        broken = """CAST(x'7b2261223a22b0227d' AS TEXT)"""
    change(tmp_path, f"UPDATE {table} SET {column} = {broken} WHERE {where}")

    found = look(tmp_path)
    assert f"the row of {table} with" in of(found, "ledger", "wrong")[0]
    assert exit_code(found) == 4

    look(tmp_path, repair=True)
    left = look(tmp_path)
    assert {finding.check for finding in wrong(left)} <= {"jobs"}
    assert ledger(tmp_path, "SELECT count(*) FROM results") == [(10,)]
    tasks = ledger(tmp_path, "SELECT count(*) FROM tasks")
    assert tasks == [(20,)] or of(left, "jobs", "wrong"), "a task was lost, and nobody says so"


def test_a_page_of_two_results_is_lost_to_both(tmp_path: Path) -> None:
    """What lies where an unchanged page was found before is named by each of its results."""
    crawl(tmp_path, 20, 10)
    columns = "raw_segment, raw_offset, raw_length, body_sha256"
    change(
        tmp_path,
        f"UPDATE results SET ({columns}) = (SELECT {columns} FROM results WHERE task = 4) "
        "WHERE task = 5",
    )
    [(name, offset)] = ledger(
        tmp_path, "SELECT raw_segment, raw_offset FROM results WHERE task = 4"
    )
    path = tmp_path / "raw" / str(name)
    content = bytearray(path.read_bytes())
    content[int(str(offset)) + 60] ^= 1
    path.write_bytes(content)

    assert "2 pages cannot be read" in of(look(tmp_path), "segments", "wrong")[0]
    look(tmp_path, repair=True)
    assert ledger(tmp_path, "SELECT task FROM results WHERE raw_segment IS NULL") == [(4,), (5,)]


@pytest.mark.parametrize("left", ["file", "nothing", "checksum"])
def test_a_record_with_a_wrong_byte(tmp_path: Path, left: str) -> None:
    """The checksum in the timeline tells: the record comes back from its file, or its page is
    collected again."""
    crawl(tmp_path, 20, 10)
    [(task_id, record)] = ledger(
        tmp_path, "SELECT task_id, record FROM results JOIN tasks ON id = task WHERE task = 4"
    )
    if left == "checksum":
        change(
            tmp_path,
            "UPDATE events SET detail = json_set(detail, '$.record_crc32', 5) WHERE task = 4",
        )
    else:
        change(tmp_path, 'UPDATE results SET record = \'{"title":"y"}\' WHERE task = 4')
    if left == "nothing":
        (tmp_path / "pending" / f"{task_id}.json").unlink()

    found = look(tmp_path)
    assert f"task {task_id}: record is not the one" in of(found, "ledger", "wrong")[0]
    assert exit_code(found) == 4

    assert exit_code(look(tmp_path, repair=True)) == 0
    assert wrong(look(tmp_path)) == []
    if left == "nothing":
        assert ledger(tmp_path, "SELECT status FROM tasks WHERE id = 4") == [("pending",)]
    else:
        assert ledger(tmp_path, "SELECT record FROM results WHERE task = 4") == [(record,)]


@pytest.mark.parametrize("lost", ["", "DELETE FROM tasks WHERE id = 4"])
@pytest.mark.parametrize("left", ["file", "nothing", "another"])
def test_a_damaged_record_is_never_taken_over(tmp_path: Path, left: str, lost: str) -> None:
    """Whether its task has a row or is rebuilt: a record without the checksum of its timeline comes
    from its file, or is collected again; a file that fits neither is kept aside."""
    crawl(tmp_path, 20, 10)
    [(task_id, record)] = ledger(
        tmp_path, "SELECT task_id, record FROM results JOIN tasks ON id = task WHERE task = 4"
    )
    change(tmp_path, f'UPDATE results SET record = \'{{"titye":"x"}}\' WHERE task = 4; {lost}')
    path = tmp_path / "pending" / f"{task_id}.json"
    if left == "nothing":
        path.unlink()
    elif left == "another":
        path.write_bytes(path.read_bytes().replace(b'"title":"x"', b'"title":"z"'))

    look(tmp_path, repair=True)

    assert {finding.check for finding in wrong(look(tmp_path))} <= {"jobs"}
    if left == "file":
        assert ledger(tmp_path, "SELECT record FROM results WHERE task = 4") == [(record,)]
    else:
        assert ledger(tmp_path, "SELECT status FROM tasks WHERE id = 4") == [("pending",)]
    aside = list((tmp_path / "pending").glob(f"{task_id}.json.damaged-*"))
    assert len(aside) == (left == "another")


def test_a_damaged_file_is_not_put_back(tmp_path: Path) -> None:
    """The timeline has the checksum of a lost result: a file with another record is kept aside, and
    its page collected again; a file that is newer than the timeline counts."""
    crawl(tmp_path, 20, 10)
    ids = [row[0] for row in ledger(tmp_path, "SELECT task_id FROM tasks WHERE id IN (4, 5)")]
    for task_id in ids:
        path = tmp_path / "pending" / f"{task_id}.json"
        path.write_bytes(path.read_bytes().replace(b'"title":"x"', b'"title":"z"'))
    change(tmp_path, "DELETE FROM results WHERE task IN (4, 5)")
    change(tmp_path, "UPDATE events SET at = at - 9999 WHERE task = 5")

    assert exit_code(look(tmp_path, repair=True)) == 0

    assert wrong(look(tmp_path)) == []
    assert ledger(tmp_path, "SELECT status FROM tasks WHERE id = 4") == [("pending",)]
    assert ledger(tmp_path, "SELECT record FROM results WHERE task = 5") == [('{"title":"z"}',)]
    [aside] = (tmp_path / "pending").glob("*.damaged-*")
    assert aside.name.startswith(str(ids[0]))


@pytest.mark.parametrize(
    ("before", "after", "counts"),
    [
        (b'"queue":"default"', b'"queue":"defauly"', True),
        (b'"priority":5', b'"priority":0', True),
        (b'"attempts":1', b'"attempts":-1', True),
        (b'"raw_html_hash":"', b'"raw_html_hash":"0', False),
        (b'"scraped_at":"20', b'"scraped_at":"90', False),
        (b'"scraped_at":"20', b'"scraped_at":"00', False),
        (b'"final_url":', b'"final_uri":', False),
    ],
)
def test_a_damaged_file_makes_no_damaged_row(
    tmp_path: Path, before: bytes, after: bytes, counts: bool
) -> None:
    """A task and a result that only their file still has get no value that is never written."""
    crawl(tmp_path, 20, 10)
    [(task_id,)] = ledger(tmp_path, "SELECT task_id FROM tasks WHERE id = 4")
    path = tmp_path / "pending" / f"{task_id}.json"
    content = path.read_bytes()
    assert before in content
    path.write_bytes(content.replace(before, after))
    change(tmp_path, "DELETE FROM results WHERE task = 4; DELETE FROM tasks WHERE id = 4")

    look(tmp_path, repair=True)

    assert {finding.check for finding in wrong(look(tmp_path))} <= {"jobs"}
    rows = ledger(tmp_path, f"SELECT count(*) FROM tasks WHERE task_id = '{task_id}'")
    assert rows == [(int(counts),)]


def test_a_file_that_says_something_else(tmp_path: Path) -> None:
    """A file in pending/ that says something else than the ledger is named, kept aside and made
    again."""
    crawl(tmp_path, 20, 10)
    [(task_id,)] = ledger(tmp_path, "SELECT task_id FROM tasks WHERE id = 4")
    path = tmp_path / "pending" / f"{task_id}.json"
    before = path.read_bytes()
    path.write_bytes(before.replace(b'"title":"x"', b'"title":"y"'))

    said = of(look(tmp_path), "projections", "wrong")[0]
    assert said.endswith(f"1 say something else than the ledger: {task_id}")

    assert exit_code(look(tmp_path, repair=True)) == 0
    assert of(look(tmp_path), "projections", "wrong") == []
    assert path.read_bytes() == before
    assert len(list((tmp_path / "pending").glob(f"{task_id}.json.damaged-*"))) == 1


@pytest.mark.parametrize(
    "index",
    ["tasks_waiting", "tasks_due", "tasks_by_job", "tasks_by_task_id", "tasks_by_url",
     "results_by_content", "events_by_task"],
)  # fmt: skip
def test_an_index_that_lacks_its_entries(tmp_path: Path, index: str) -> None:
    """Pages that are sound, but do not hold what the table does, are damage; a repair makes the
    index again."""
    crawl(tmp_path, 20, 10)
    rows = ledger(tmp_path, TASKS)
    change(tmp_path, "UPDATE tasks SET not_before = 2e9 WHERE id = 15")
    empty_index(tmp_path, index)

    assert exit_code(look(tmp_path)) == 4

    assert exit_code(look(tmp_path, repair=True)) == 0
    assert wrong(look(tmp_path)) == []
    assert ledger(tmp_path, "SELECT id FROM tasks WHERE status = 'pending' AND not_before > 0") == [
        (15,)
    ]
    change(tmp_path, "UPDATE tasks SET not_before = 0 WHERE id = 15")
    assert ledger(tmp_path, TASKS) == rows
    assert verify(tmp_path) == []


@pytest.mark.parametrize(
    "index", ["tasks_published", "tasks_waiting", "outbox_ready", "reports_ready", "losses_by_job"]
)
def test_an_empty_index_with_the_page_of_something_else(tmp_path: Path, index: str) -> None:
    """Where no row belongs into an index SQLite's own check does not look into it; the first such
    row would."""
    crawl(tmp_path, 20, 10)
    swap_index(tmp_path, index, "events")

    assert exit_code(look(tmp_path)) == 4

    assert exit_code(look(tmp_path, repair=True)) == 0
    assert wrong(look(tmp_path)) == []
    change(tmp_path, "UPDATE tasks SET not_before = 5, message_id = 'x' WHERE status = 'pending'")
    assert wrong(look(tmp_path)) == []


def test_a_sound_store_of_every_kind_contradicts_nothing(tmp_path: Path) -> None:
    """URLs with ports, addresses, other scripts and tracking parameters are what they were when
    they are read again."""
    given = ("http://127.0.0.1:8000/?b=1&a=2", "https://[2001:db8::1]:8443/x",
             "http://bücher.example/ü?utm_source=x", "http://localhost", "https://x.co.uk/#top",
             "http://a.b.c.example.com:81/%7Ea?&&q")  # fmt: skip
    lpm = LocalPersistenceManager(tmp_path)
    job = open_job(lpm)
    lpm.persist_tasks([new(url, line=n) for n, url in enumerate(given)], job=job)
    lpm.imports.close(job, lpm.now())
    lpm.close()
    assert wrong(look(tmp_path)) == []


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE tasks SET input = replace(input, 'Bay', 'Bax') WHERE id = 15",
        "UPDATE tasks SET input = replace(input, 'Bay', 'Bax') WHERE id = 5",
        "UPDATE tasks SET source_line = 19 WHERE id = 15",
        "UPDATE tasks SET source_item = 3 WHERE id = 15",
        "UPDATE tasks SET input = NULL WHERE id = 15",
        "UPDATE tasks SET row_crc32 = 7 WHERE id = 15",
        "UPDATE job_links SET input = replace(input, 'Bay', 'Bax')",
        "UPDATE job_links SET source_line = 90",
    ],
)
def test_a_row_of_input_with_a_wrong_byte_is_told_and_comes_back(
    tmp_path: Path, damage: str
) -> None:
    """Nothing else tells what an open task's row was: its checksum does, and its file brings it
    back."""
    # Given a file with twenty pages, one of them twice, of which ten are collected, and a wrong
    # byte in a row
    file = tmp_path / "parcels.csv"
    lines = [f"http://a.example/{n},Bay {n}" for n in (*range(20), 3)]
    file.write_text("\n".join(["url,county", *lines]))
    settings = Settings(data_dir=tmp_path / "data")
    import_file(settings, file, job_name="job")
    lpm = LocalPersistenceManager(settings.data_dir)
    lpm.save_result(*(done(task) for task in lpm.get_next_pending("owner", 10)))
    lpm.close()
    assert wrong(look(settings.data_dir)) == []
    before = ledger(settings.data_dir, ROWS)
    change(settings.data_dir, damage)

    # When the doctor looks and mends
    found = of(look(settings.data_dir), "ledger", "wrong")[0]
    mended = of(look(settings.data_dir, repair=True), "ledger", "mended")[0]

    # Then the row is a loss of its job, until its file is imported again
    assert "is not the one whose checksum was noted" in found
    assert "1 damaged rows of input, to be imported again" in mended
    assert any("import its file again" in problem for problem in verify(settings.data_dir))
    import_file(settings, file, job_name="job")
    assert ledger(settings.data_dir, ROWS) == before
    assert verify(settings.data_dir) == []
    assert wrong(look(settings.data_dir)) == []
