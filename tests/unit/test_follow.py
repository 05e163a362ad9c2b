"""`results follow`: each result once, in the order of commits, whatever is killed."""

import itertools
import json
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from crawler.db.results import LAST_SEQ, NEXT_SEQ, number_again
from crawler.errors import InputError, StoreError, UsageError
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job
from crawler.results.follow import Cursor, OutputFile, follow
from tests.support.disk import only_reading
from tests.support.stack import Folder, wait_for
from tests.support.tasks import collect, done, new, open_job

WRITERS, ROUNDS, GROUP = 4, 25, 4
WRITER = f"""
import sys
from pathlib import Path
from crawler.lpm import LocalPersistenceManager
from tests.support.tasks import done

with LocalPersistenceManager(Path(sys.argv[1])) as lpm:
    for _ in range({ROUNDS}):
        lpm.save_result(*map(done, lpm.get_next_pending(sys.argv[2], {GROUP})))
"""


class Lines:
    """A consumer in memory."""

    def __init__(self) -> None:
        self.got: list[dict[str, object]] = []
        self.synced = 0
        self.on_wait: Callable[[], None] = lambda: None

    def write(self, line: bytes) -> None:
        """Take a line."""
        self.got.append(json.loads(line))

    def sync(self) -> None:
        """Count how often all was safe."""
        self.synced += 1

    def wait(self, seconds: float) -> None:
        """Do what the test does meanwhile."""
        assert seconds > 0
        self.on_wait()

    @property
    def seqs(self) -> list[object]:
        """The numbers of all lines."""
        return [line["seq"] for line in self.got]


@pytest.fixture
def lpm(tmp_path: Path) -> Iterator[LocalPersistenceManager]:
    """A store."""
    with LocalPersistenceManager(tmp_path / "data") as lpm:
        yield lpm


def everything(lpm: LocalPersistenceManager, first: int = 0, job: Job | None = None) -> Lines:
    """What there is behind a number."""
    lines = Lines()
    follow(lpm, lines, Cursor(first), job=job, wait=False)
    return lines


def test_lines_are_in_the_order_of_commits_with_their_number_first(
    lpm: LocalPersistenceManager,
) -> None:
    """The last task may be stored first; `--from` continues behind a number."""
    # Given three tasks whose results come in the reverse order
    job = open_job(lpm)
    lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(3)], job=job)
    tasks = lpm.get_next_pending("owner", 3)
    for task in reversed(tasks):
        lpm.save_result(done(task))

    # When they are followed
    lines = everything(lpm)

    # Then they come in that order, and each line says how to go on
    assert [line["task_id"] for line in lines.got] == [task.task_id for task in reversed(tasks)]
    assert lines.seqs == [1, 2, 3]
    assert [next(iter(line)) for line in lines.got] == ["seq"] * 3
    assert everything(lpm, 2).seqs == [3]


def test_no_reader_sees_an_earlier_number_after_a_later_one(
    lpm: LocalPersistenceManager,
) -> None:
    """While several processes store results, what was read up to a number is all there is up to
    it."""
    # Given processes that store results at the same time
    total = WRITERS * ROUNDS * GROUP
    job = open_job(lpm)
    lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(total)], job=job)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(lpm.folder), f"writer-{n}"],
            cwd=Path(__file__).parents[2],
        )
        for n in range(WRITERS)
    ]

    # When a reader follows them, and reads all again after each step
    last, got = 0, list[tuple[int, str]]()
    while len(got) < total:
        found = lpm.results.behind(last)
        got += [(seq, result["task_id"]) for seq, result in found.results]
        last = found.seq
        before = lpm.store.db.all(
            "SELECT seq, task_id FROM results JOIN tasks ON id = task WHERE seq <= ? ORDER BY seq",
            (last,),
        )

        # Then nothing has come in behind its back
        assert got == before
        if all(writer.poll() is not None for writer in writers) and not found.results:
            break
    assert [writer.wait() for writer in writers] == [0] * WRITERS
    assert [seq for seq, _ in got] == list(range(1, total + 1))


def test_a_job_ends_when_all_of_it_was_handed_on(lpm: LocalPersistenceManager) -> None:
    """It waits while the job is open, and leaves out other jobs' results."""
    # Given a job with one result of two, and another job
    collect(lpm, "other", 3)
    job = open_job(lpm, "mine")
    lpm.persist_tasks([new("http://m.example/1"), new("http://m.example/2")], job=job)
    first, second = lpm.get_next_pending("owner", 2)
    lpm.save_result(done(first))
    lpm.imports.close(job, time.time())
    lines = Lines()

    # When the second one comes while it is followed, by another process
    def finish() -> None:
        with LocalPersistenceManager(lpm.folder) as other:
            other.save_result(done(second))
            other.jobs.finalise(time.time())

    lines.on_wait = finish
    follow(lpm, lines, Cursor(0), job=job)

    # Then both have come, and it has ended by itself
    assert [line["url"] for line in lines.got] == [first.url, second.url]
    assert lines.synced == 2


def test_only_results_of_a_site_or_role(lpm: LocalPersistenceManager) -> None:
    """Filters leave lines out; the cursor moves on all the same."""
    job = open_job(lpm)
    lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(4)], job=job)
    for n, task in enumerate(lpm.get_next_pending("owner", 4)):
        lpm.save_result(done(task, site=("portal" if n % 2 else "default", "1")))

    found = lpm.results.behind(0, site="portal")

    assert [seq for seq, _ in found.results] == [2, 4]
    assert lpm.results.behind(0, roles=["listing"])[:2] == ((), 4)


def test_large_records_come_in_parts(lpm: LocalPersistenceManager) -> None:
    """What is read at a time fits in memory; one record that does not is read alone."""
    job = open_job(lpm)
    lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(4)], job=job)
    for size, task in zip((9, 9, 20, 1), lpm.get_next_pending("owner", 4), strict=True):
        lpm.save_result(done(task, {"text": "x" * size * 1_000_000}))

    seq, parts = 0, []
    while not (found := lpm.results.behind(seq)).is_last:
        parts.append([number for number, _ in found.results])
        seq = found.seq
    parts.append([number for number, _ in found.results])

    assert parts == [[1], [2], [3], [4]]


def test_a_replaced_record_comes_again(lpm: LocalPersistenceManager) -> None:
    """It has a new number; so does a result that the doctor numbers again."""
    collect(lpm, "job", 3)
    before = everything(lpm).got

    lpm.store.durable.execute(f"UPDATE results SET seq = {NEXT_SEQ} WHERE seq = 1")

    [again] = everything(lpm, 3).got
    assert again == {**before[0], "seq": 4}
    lpm.store.durable.execute("UPDATE results SET seq = NULL WHERE seq = 4")
    number_again(lpm.store.durable)
    lpm.store.durable.execute("INSERT INTO meta VALUES (?, '9')", (LAST_SEQ,))
    assert (lpm.results.last_seq(), everything(lpm, 3).seqs) == (9, [4])


def test_a_slow_consumer_does_not_keep_the_log_from_being_cut(
    lpm: LocalPersistenceManager,
) -> None:
    """No transaction is open while a line is written."""
    collect(lpm, "job", 3)
    cut = []

    class Slow(Lines):
        def write(self, line: bytes) -> None:
            with LocalPersistenceManager(lpm.folder) as other:
                cut.append(other.store.cut_log())

    follow(lpm, Slow(), Cursor(0), wait=False)

    assert cut == [True] * 3


@pytest.mark.parametrize("how", ["replaced", "removed"])
def test_a_store_that_is_exchanged_is_an_error(lpm: LocalPersistenceManager, how: str) -> None:
    """It is said up to which number all was handed on."""
    collect(lpm, "job", 3)
    lines = Lines()

    def exchange() -> None:
        if how == "replaced":
            lpm.path.with_name("copy").write_bytes(lpm.path.read_bytes())
            lpm.path.with_name("copy").replace(lpm.path)
        else:
            lpm.path.unlink()

    lines.on_wait = exchange

    with pytest.raises(StoreError, match=r"replaced or removed .* up to number 3 was handed on"):
        follow(lpm, lines, Cursor(0))


@pytest.mark.parametrize("how", ["older", "older and grown again", "another"])
def test_a_store_that_is_restored_in_place_is_an_error(
    lpm: LocalPersistenceManager, tmp_path: Path, how: str
) -> None:
    """The file stays the same one, but what it holds is not what was followed."""
    # Given a copy of the store with fewer results, or another store with more
    collect(lpm, "job", 2)
    copy = tmp_path / "copy.db"
    if how == "another":
        with LocalPersistenceManager(tmp_path / "other") as other:
            collect(other, "other", 9)
            back_up(other.path, copy)
    else:
        back_up(lpm.path, copy)
    collect(lpm, "more", 2)
    lines = Lines()

    # When it is restored while the store is followed
    def restore() -> None:
        lines.on_wait = lambda: pytest.fail("it was not noticed")
        back_up(copy, lpm.path)
        if how == "older and grown again":
            with LocalPersistenceManager(lpm.folder) as restored:
                collect(restored, "again", 5)

    lines.on_wait = restore

    # Then that is said, and nothing of it was handed on
    with pytest.raises(StoreError, match=r"replaced or removed .* up to number 4 was handed on"):
        follow(lpm, lines, Cursor(0))
    assert lines.seqs == [1, 2, 3, 4]


def back_up(source: Path, target: Path) -> None:
    """What `sqlite3 TARGET ".restore SOURCE"` does."""
    with (
        closing(apsw.Connection(str(source))) as old,
        closing(apsw.Connection(str(target))) as copy,
        copy.backup("main", old, "main") as backup,
    ):
        backup.step()


# Files


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """A file to write to."""
    return tmp_path / "results.jsonl"


def append(lpm: LocalPersistenceManager, output: Path) -> list[int]:
    """Write to a file what is not in it; returns the numbers in it."""
    with closing(OutputFile(output, lpm.folder, time.sleep)) as file:
        file.check_store(lpm)
        follow(lpm, file, Cursor(file.last.seq if file.last else 0), wait=False)
    return [json.loads(line)["seq"] for line in output.read_text().splitlines()]


@pytest.mark.parametrize("left", [1, 5, 100, 400, -1])
def test_a_torn_line_is_cut_and_written_again(
    lpm: LocalPersistenceManager, output: Path, left: int
) -> None:
    """Whatever a kill or a power cut has left of the last line."""
    collect(lpm, "job", 3)
    assert append(lpm, output) == [1, 2, 3]
    whole = output.read_bytes()
    *lines, last = whole.splitlines(keepends=True)

    output.write_bytes(b"".join(lines) + last[:left])

    assert append(lpm, output) == [1, 2, 3]
    assert output.read_bytes() == whole
    output.write_bytes(last[:left] if left < 7 else last[:left] + bytes(9))
    assert append(lpm, output) == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("hello", 1),
        ("url\nhttp://a.example/\n", 1),
        ('{"task_id":"x"}\n', 1),
        ('{"seq":1,"task_id":"x"}\nhello', 2),
        ('{"seq":1,"task_id":"x"}\n{"seq":2,"ta\n{"seq":3,"task_id":"x"}\n', 2),
        ('{"seq":2,"task_id":"x"}\n{"seq":1,"task_id":"x"}\n', 2),
        ('{"seq":1,"task_id":"x"}\n{"task_id":"x","seq":2}\n', 2),
        ('{"seq":9,"task_id":"x"}\n', 1),
        ('{"seq":1,"task_id":"x"}\n{"seq":2,"task_id":"of another store"}\n', 2),
    ],
)
def test_a_file_that_is_not_ours_is_left_as_it_is(
    lpm: LocalPersistenceManager, output: Path, text: str, line: int
) -> None:
    """The error names its line."""
    collect(lpm, "job", 3)
    output.write_text(text)

    with pytest.raises(InputError) as failure:
        append(lpm, output)

    assert failure.value.line == line
    assert output.read_text() == text


def test_one_process_at_a_time_writes_to_a_file(lpm: LocalPersistenceManager, output: Path) -> None:
    """Nor may it be one of the store's own, a folder, or one that was moved away meanwhile."""
    collect(lpm, "job", 3)
    with closing(OutputFile(output, lpm.folder, time.sleep)) as file:
        with pytest.raises(UsageError, match="another process writes to"):
            append(lpm, output)
        output.rename(output.with_name("moved"))
        with pytest.raises(UsageError, match="was moved or removed"):
            follow(lpm, file, Cursor(0), wait=False)
    with pytest.raises(UsageError, match="belongs to the store"):
        append(lpm, lpm.path)
    with pytest.raises(UsageError, match="is not a file"):
        append(lpm, lpm.folder)


# The command


def test_ten_kills_between_lines_hand_on_each_result_once(folder: Folder) -> None:
    """kill -9 after every seventh line, and the same command again."""
    with closing(folder.lpm()) as lpm:
        collect(lpm, "job", 75)
        wanted = everything(lpm).got
    command = ("results", "follow", "--no-wait", "--output", "out.jsonl")

    codes = [folder.crawler(*command, CRAWLER_FAILPOINT="followed:7").returncode for _ in range(10)]
    last = folder.crawler(*command)

    assert (codes, last.returncode) == ([-signal.SIGKILL] * 10, 0)
    assert last.stderr == "5 results handed on; the same command continues\n"
    lines = (folder.path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == wanted


def test_a_waiting_command_ends_as_its_pipe_and_its_signals_say(folder: Folder) -> None:
    """A reader that has enough ends it with 0 at once; SIGTERM with 143."""
    with closing(folder.lpm()) as lpm:
        collect(lpm, "job", 2)
    argv = [sys.executable, "-m", "crawler", "results", "follow"]
    options = {"cwd": folder.path, "env": folder.env, "stderr": subprocess.PIPE}

    # Given one whose reader goes after a line, and one that is told to end
    with subprocess.Popen(argv, stdout=subprocess.PIPE, **options) as piped:  # type: ignore[call-overload]
        assert piped.stdout.readline().startswith(b'{"seq":1,')
        piped.stdout.close()
        assert piped.wait(120) == 0
        assert piped.stderr.read() == b""
    with subprocess.Popen([*argv, "--from", "now"], stdout=subprocess.PIPE, **options) as told:  # type: ignore[call-overload]
        # When results come until it has seen one
        names = (f"later-{number}" for number in itertools.count())

        def has_come() -> bool:
            with closing(folder.lpm()) as lpm:
                collect(lpm, next(names), 1)
            return bool(select.select([told.stdout], [], [], 1)[0])

        wait_for(has_come, 60, "a result")
        told.send_signal(signal.SIGTERM)

        # Then it has none of the earlier ones, and each of the others once
        assert told.wait(120) == 128 + signal.SIGTERM
        found = [json.loads(line)["seq"] for line in told.stdout]
        assert found == list(range(found[0], found[0] + len(found)))
        assert found[0] > 2
        assert told.stderr.read() == b""


def test_a_store_that_may_only_be_read_is_followed_while_others_write(folder: Folder) -> None:
    """Also if nobody had it open when it was opened, so that there were no locks."""
    with closing(folder.lpm()) as lpm:
        collect(lpm, "job", 2)
    before = only_reading(folder.data)
    try:
        with subprocess.Popen(
            [*before, sys.executable, "-m", "crawler", "results", "follow"],
            cwd=folder.path,
            env=folder.env,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            got = [json.loads(process.stdout.readline())["seq"] for _ in range(2)]
            if before:  # we are root, and may write all the same
                for n in range(3):
                    with closing(folder.lpm()) as lpm:
                        collect(lpm, f"later-{n}", 1)
                    got.append(json.loads(process.stdout.readline())["seq"])
            process.terminate()
            assert process.wait(120) == 128 + signal.SIGTERM
        assert got == [*range(1, 1 + len(got))]
    finally:
        for path in (folder.data, *folder.data.rglob("*")):
            path.chmod(0o700)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--from", "7"), "--from 7 is after the newest result, which has the number 2"),
        (("--from", "then"), "'then' is no number of a result; write one, or now"),
        (("--site", "portal"), "there is no site 'portal'"),
        (("--job", "jib"), "there is no job jib; did you mean job?"),
    ],
)
def test_bad_options_are_refused(folder: Folder, options: tuple[str, ...], problem: str) -> None:
    """One clear line, and exit code 2."""
    with closing(folder.lpm()) as lpm:
        collect(lpm, "job", 2)

    refused = folder.crawler("results", "follow", *options)

    assert refused.returncode == 2
    assert problem in refused.stderr
    assert refused.stdout == ""


def test_a_file_is_continued_only_as_it_was_begun(folder: Folder) -> None:
    """With another filter it would miss results or mix them, and --from would skip or repeat."""
    # Given two files, one of them of a job only
    with closing(folder.lpm()) as lpm:
        collect(lpm, "one", 2)
        collect(lpm, "two", 2)
    follow_to = ("results", "follow", "--no-wait", "--output")
    plain, of_job = (*follow_to, "all.jsonl"), (*follow_to, "one.jsonl", "--job", "one")
    assert folder.crawler(*plain).returncode == folder.crawler(*of_job).returncode == 0
    before = {path: path.read_bytes() for path in folder.path.glob("*.jsonl*")}
    assert {path.name for path in before} == {"all.jsonl", "one.jsonl", "one.jsonl.filter"}

    # When they are continued otherwise
    refused = {
        "one.jsonl was begun with --job one; nothing was written: choose another file for results "
        "with --job two": folder.crawler(*of_job[:-1], "two"),
        "one.jsonl was begun with --job one; nothing was written: choose another file for results "
        "without --job, --site and --role": folder.crawler(*of_job[:-2]),
        "all.jsonl was begun without --job, --site and --role": folder.crawler(
            *plain, "--role", "listing", "--job", "one"
        ),
        "all.jsonl has results up to number 4 and is continued there": folder.crawler(
            *plain, "--from", "0"
        ),
        "leave out --from, or choose another file": folder.crawler(*plain, "--from", "now"),
    }

    # Then it is refused; as before, they go on
    for problem, command in refused.items():
        assert command.returncode == 2
        assert problem in command.stderr
    assert {path: path.read_bytes() for path in folder.path.glob("*.jsonl*")} == before
    assert folder.crawler(*plain).returncode == folder.crawler(*of_job).returncode == 0

    # And a new file of the same name has a filter of its own
    (folder.path / "one.jsonl").unlink()
    assert folder.crawler(*of_job[:-2], "--from", "3").returncode == 0
    assert not (folder.path / "one.jsonl.filter").exists()
    assert len((folder.path / "one.jsonl").read_text().splitlines()) == 1


def test_pages_of_one_store_are_no_other_stores(tmp_path: Path, output: Path) -> None:
    """A file of one store is refused for another."""
    for name in ("one", "two"):
        with LocalPersistenceManager(tmp_path / name) as lpm:
            collect(lpm, name, 2)
    with LocalPersistenceManager(tmp_path / "one") as lpm:
        append(lpm, output)
    before = output.read_bytes()

    with (
        LocalPersistenceManager(tmp_path / "two") as lpm,
        pytest.raises(InputError, match="line 2: number 2 is not a result of"),
    ):
        append(lpm, output)

    assert output.read_bytes() == before
