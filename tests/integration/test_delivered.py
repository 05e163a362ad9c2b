"""What the desk's commands say of a Gateway: what it has got, is to get and has refused, and its
names for tasks."""

import fcntl
import json
import time
from collections.abc import Iterator

import pytest

from crawler.db.gateway import Assignment
from crawler.errors import StackIsUp
from crawler.orchestrator import Orchestrator
from tests.support.stack import Folder, wait_for
from tests.support.tasks import collect, give

URL = "https://gateway.example"
DEADLINE = time.time() + 3 * 86400


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    """A store whose agent runs: of six results three are delivered, two are not, one is rejected; a
    task had no URL.

    The Gateway is to hear of the last two.
    """
    folder = Folder(tmp_path_factory.mktemp("shared"))
    lpm = folder.lpm()
    lpm.gateway.set_note("url", URL)
    job = give(lpm, 6, deadline=DEADLINE)
    refused = Assignment(external_id="no/url", deadline=DEADLINE, refusal="it names no page")
    lpm.gateway.assign(job, [refused], (), time.time())
    parcels = lpm.outbox.pages(6, time.time())
    lpm.mark_synced([parcel.own_id for parcel in parcels[:3]])
    lpm.outbox.refused(parcels[3], 422, "no such parcel", None)
    lpm.close()
    yield folder
    folder.stop()


def test_status_names_the_gateway_and_what_waits_for_it(shared: Folder) -> None:
    """A line where something is to be delivered or was rejected, and all the facts for a
    program."""
    text, facts = shared.crawler("status").stdout, shared.status()

    assert f"Gateway {URL}: 4 to be delivered, 1 rejected (python -m crawler sync status)\n" in text
    about = facts["gateway"]
    assert (about["url"], about["ready"], about["synced"], about["rejected"]) == (URL, 2, 3, 1)
    assert (about["reports_ready"], about["reports_rejected"]) == (2, 0)
    assert about["oldest"] <= time.time()
    assert (facts["job_facts"]["gateway"]["state"], about["heard_at"]) == ("open", None)


def test_without_a_gateway_nothing_is_said_of_one(folder: Folder) -> None:
    """A standalone store has no such line, and null for a program; its results are where they
    always are."""
    lpm = folder.lpm()
    collect(lpm, "file", 2)
    lpm.close()

    assert folder.status()["gateway"] is None
    for command in (("status",), ("job", "verify", "file"), ("resume",)):
        assert "Gateway" not in folder.crawler(*command).stdout
    assert folder.crawler("results", "list").stdout == f"2 results in {folder.data}/pending/\n"
    assert (
        folder.crawler("resume").stdout
        == f"2 of 2 pages collected; results in {folder.data}/pending/\n"
    )


def test_only_what_is_there_is_said_to_be_there(shared: Folder) -> None:
    """`resume` and `results list` tell what lies in pending/ from what was delivered."""
    there = f"{shared.data}/pending/"
    on_the_way = "3 were delivered, 2 wait for the Gateway (python -m crawler ondemand, "
    on_the_way += "or python -m crawler sync push)"

    resumed = shared.crawler("resume").stdout
    listed = shared.crawler("results", "list")
    facts = json.loads(shared.crawler("results", "list", "--json").stdout)

    said = f"6 of 7 pages collected; 3 results in {there}; {on_the_way}, 1 were rejected by it"
    assert resumed.startswith(said), resumed
    assert (
        listed.stdout
        == f"6 results, 3 of them in {there} (3 delivered, 2 to be delivered, 1 rejected)\n"
    )
    assert shared.crawler("results", "list", "--job", "gateway").stdout == listed.stdout
    counts = (
        facts["results"],
        facts["files"]["results"],
        facts["delivery"]["results"],
        facts["delivery"]["synced"],
    )
    assert counts == (6, 3, 6, 3)


def test_files_are_counted_without_a_ledger(folder: Folder) -> None:
    """`results list` counts what lies in pending/ also where the ledger cannot be read, and says
    so."""
    (folder.data / "pending").mkdir(parents=True)
    (folder.data / "pending" / "a.json").write_text('{"task_id":"a","data":{}}\n')
    (folder.data / "lpm.db").write_bytes(b"this is not a database" * 100)

    done = folder.crawler("results", "list")

    assert (done.returncode, done.stdout) == (0, f"1 results in {folder.data}/pending/\n")
    assert "only files are counted" in done.stderr
    assert folder.crawler("results", "list", "--limit", "1").returncode == 4


def test_a_receipt_says_what_is_not_delivered(shared: Folder) -> None:
    """Facts beside the receipt; everything is accounted for, so its exit code stays 0."""
    done = shared.crawler("job", "verify", "gateway")
    facts = json.loads(shared.crawler("job", "verify", "gateway", "--json").stdout)

    assert done.returncode == 0, done.stdout
    assert (
        "The Gateway has 3 results and 0 reports\n  not delivered yet: 2 results and 2 reports;"
        in done.stdout
    )
    assert (
        "  rejected: 1 results and 0 reports; reasons: python -m crawler sync rejected\n"
        in done.stdout
    )
    assert (facts["delivery"]["ready"], facts["delivery"]["reports_ready"], facts["problems"]) == (
        2,
        2,
        [],
    )


def test_the_job_of_a_gateway_is_open_and_from_a_gateway(shared: Folder) -> None:
    """While an agent runs it takes more tasks, but it is no import."""
    assert shared.crawler("job", "list").stdout.split()[:2] == ["gateway", "open"]
    [facts] = json.loads(shared.crawler("job", "list", "--json").stdout)
    assert (facts["state"], facts["source"]) == ("open", "gateway")
    assert shared.crawler("job", "show", "gateway").stdout.startswith(
        "gateway: open, queue default, from a Gateway\n"
    )


def test_tasks_are_called_as_the_gateway_calls_them(shared: Folder) -> None:
    """What a list shows can be given to `why`, also where a task has no URL."""
    listed = shared.crawler("tasks", "list").stdout.splitlines()
    ids = [
        json.loads(line)["their_id"]
        for line in shared.crawler("tasks", "list", "--json").stdout.splitlines()
    ]

    assert ids == [*(f"t-{n}" for n in range(6)), "no/url"]
    assert listed[0].endswith(" t-0 http://g.example/0")
    assert listed[-1].endswith(" no/url")
    assert "    no/url: it names no page\n" in shared.crawler("job", "show", "gateway").stdout
    [timeline] = json.loads(shared.crawler("why", "no/url", "--json").stdout)
    assert (timeline["their_id"], timeline["url"]) == ("no/url", "")


def test_why_gives_a_task_without_a_url_its_name_and_a_deadline_its_day(shared: Folder) -> None:
    """The first line is the Gateway's id where there is no URL; a time of another day has that
    day."""
    nameless, named = (
        shared.crawler("why", name, CRAWLER_TIMEZONE="UTC").stdout for name in ("no/url", "t-1")
    )

    assert nameless.startswith("no/url\ntask ")
    assert named.startswith("http://g.example/1\ntask ")
    assert "their task t-1" in named
    assert f"deadline {time.strftime('%a %d %b %Y %H:%M:%S', time.gmtime(DEADLINE))}" in named


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("t-17", "no task, by our id or a Gateway's, is called 't-17', and it is no URL"),
        ("bay:17", "no task, by our id or a Gateway's, is called 'bay:17', and it is no URL"),
        ("123456", "no task, by our id or a Gateway's, is called '123456'"),
        ("g.example/1", "and it is no URL; does it lack http:// at the beginning?"),
        ("ftp://g.example/1", "only http and https are fetched, not ftp:"),
        ("http://g.example/99", "no task is known for http://g.example/99"),
    ],
)
def test_an_unknown_name_is_told_from_an_unknown_url(shared: Folder, text: str, said: str) -> None:
    """One line says which names were looked for."""
    done = shared.crawler("why", text)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.rstrip().endswith(said)


def test_the_live_view_tells_it_too(shared: Folder) -> None:
    """`status --watch` has the line of `status` below its jobs, also where this is no terminal."""
    watch = shared.start("crawler", "status", "--watch", "--interval", "0.2")

    wait_for(
        lambda: f"  Gateway {URL}: 4 to be delivered, 1 rejected" in shared.log(watch),
        30,
        "the line",
    )


def test_who_wants_a_second_stack_is_told_how_to_end_the_first(folder: Folder) -> None:
    """`down` ends `up` and `ondemand` alike, and whoever needs it hears so."""
    folder.lpm().close_after_check()
    with (folder.data / "run" / "supervisor.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with (
            pytest.raises(StackIsUp, match="whether `up` or `ondemand` has started it"),
            Orchestrator(folder.settings, join=False),
        ):
            pass

    assert "the stack that `up` or `ondemand` started" in folder.crawler("down", "--help").stdout
