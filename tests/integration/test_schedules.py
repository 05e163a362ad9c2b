"""Beat runs the schedules of config/schedules.yaml: by Celery's own commands, and with `up`."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from crawler.config import Settings
from crawler.db.connection import writing
from crawler.errors import ServiceError
from crawler.orchestrator import Orchestrator
from crawler.redis_server import free_port
from crawler.schedules import SiteSchedules
from crawler.stack import Stack, is_beat_running, read_stack, record_path
from tests.support.pages import HTML, Answer, Pages, parcel
from tests.support.stack import Folder, left_behind, wait_for

YEARLY = "yearly: {sites: here, every: 366d}\n"
"""No period of it begins while a test runs."""


def configure(folder: Folder, pages: Pages, schedules: str = YEARLY) -> Settings:
    """Write the file of a site with four pages, and that of schedules."""
    links = "".join(f'<a href="/parcel/{n}">{n}</a>' for n in range(3))
    pages.answers["/"] = Answer(f"{parcel(0)}{links}", headers=HTML)
    for n in range(3):
        pages.answers[f"/parcel/{n}"] = Answer(parcel(n), headers=HTML)
    config = folder.path / "config"
    (config / "sites").mkdir(parents=True, exist_ok=True)
    (config / "sites" / "here.yaml").write_text(f"start: {pages.url}/\nsitemaps: []\n")
    (config / "schedules.yaml").write_text(schedules)
    return msgspec.structs.replace(folder.settings, config_dir=config)


def miss_periods(folder: Folder, settings: Settings) -> None:
    """Make the ledger say that the schedules last ran some periods ago."""
    folder.make_store()
    SiteSchedules(settings).run_due(time.time())
    with folder.lpm() as lpm, writing(lpm.store.durable):
        lpm.store.durable.execute("UPDATE schedules SET period = period - 3 * 366 * 86400")


def beat(folder: Folder) -> subprocess.Popen[str]:
    return folder.start("celery", "-A", "crawler", "beat")


def job_names(folder: Folder) -> list[str]:
    with folder.lpm() as lpm:
        return [job.name for job in lpm.jobs.all()]


def call_count(folder: Folder) -> int:
    with folder.lpm() as lpm:
        return int(lpm.store.db.value("SELECT count(*) FROM site_calls"))


def has_run(folder: Folder) -> bool:
    """Whether the ledger knows that the schedule has run."""
    with folder.lpm() as lpm:
        state = lpm.site_jobs.schedules().get("yearly")
    return state is not None and state.ran_at is not None


def shelves(folder: Folder) -> list[str]:
    """The files in which Celery's own scheduler would keep what has run."""
    return [path.name for path in folder.path.rglob("celerybeat*")]


def ended(process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> float:
    """Tell a process to end; returns the seconds that it took."""
    began = time.monotonic()
    process.send_signal(number)
    process.wait(120)
    return time.monotonic() - began


def test_two_beats_begin_a_missed_period_once(folder: Folder, pages: Pages, redis_url: str) -> None:
    """One job begins, a worker collects its pages; both beats end when told to, and leave no
    file."""
    # Given a worker, and a schedule that has missed three periods
    folder.env["REDIS_URL"] = redis_url
    miss_periods(folder, configure(folder, pages))
    folder.worker(concurrency=1)

    # When two beats run
    beats = [beat(folder), beat(folder)]
    wait_for(lambda: all("next run" in folder.log(each) for each in beats), 60, "both to begin")
    books = folder.wait_until_done(4, 120)

    # Then the period has run once
    wait_for(lambda: has_run(folder), 60, "the note that the period has run")
    assert (books.completed, call_count(folder), len(job_names(folder))) == (4, 1, 1)
    logs = [folder.log(each) for each in beats]
    assert sum(log.count("schedule yearly has run") for log in logs) == 1
    assert sorted(pages.paths()) == ["/", "/parcel/0", "/parcel/1", "/parcel/2"]

    # And they end
    for each, number in zip(beats, (signal.SIGTERM, signal.SIGINT), strict=True):
        ended(each, number)
        assert each.returncode == 0, folder.log(each)
    assert shelves(folder) == []


def test_a_worker_with_a_beat_runs_the_schedule(
    folder: Folder, pages: Pages, redis_url: str
) -> None:
    """`worker --beat` does both, and leaves neither a process nor a file."""
    folder.env["REDIS_URL"] = redis_url
    miss_periods(folder, configure(folder, pages))

    worker = folder.start("celery", "-A", "crawler", "worker", "--beat", "-c", "1")
    books = folder.wait_until_done(4, 120)
    family = [process.pid for process in psutil.Process(worker.pid).children(recursive=True)]
    ended(worker)

    assert (books.completed, call_count(folder)) == (4, 1)
    assert len(family) >= 2
    wait_for(lambda: not any(map(psutil.pid_exists, family)), 60, "the end of its processes")
    assert shelves(folder) == []


def test_the_beat_of_a_killed_worker_ends(folder: Folder, pages: Pages, redis_url: str) -> None:
    """kill -9 of `worker --beat` leaves no process behind."""
    folder.env["REDIS_URL"] = redis_url
    configure(folder, pages)
    worker = folder.start("celery", "-A", "crawler", "worker", "--beat", "-c", "1")
    wait_for(lambda: "schedule yearly" in folder.log(worker), 60, "the beat's first words")
    family = [process.pid for process in psutil.Process(worker.pid).children(recursive=True)]

    worker.kill()
    worker.wait(60)

    wait_for(lambda: not any(map(psutil.pid_exists, family)), 60, "the end of its processes")


def test_a_beat_needs_no_redis(folder: Folder, pages: Pages) -> None:
    """Without Redis the job is in the ledger, for the worker that comes later."""
    folder.env["REDIS_URL"] = f"redis://127.0.0.1:{free_port()}/0"
    miss_periods(folder, configure(folder, pages))

    process = beat(folder)
    wait_for(lambda: has_run(folder), 60, "the run")
    ended(process)

    assert (process.returncode, len(job_names(folder))) == (0, 1), folder.log(process)


def test_a_beat_that_waits_for_the_store_ends_when_told_to(folder: Folder, pages: Pages) -> None:
    """While another process writes, a signal ends it at once; the next beat runs the period."""
    folder.env["REDIS_URL"] = f"redis://127.0.0.1:{free_port()}/0"
    miss_periods(folder, configure(folder, pages))
    with folder.lpm() as lpm, writing(lpm.store.durable):
        process = beat(folder)
        wait_for(lambda: "next run" in folder.log(process), 60, "the beat's first words")
        wait_for(lambda: is_asleep(process.pid), 60, "its wait for the store")
        took_s = ended(process)
    assert (process.returncode, job_names(folder)) == (0, []), folder.log(process)
    assert took_s < 10

    beat(folder)
    wait_for(lambda: has_run(folder), 60, "the run")
    assert len(job_names(folder)) == 1


def is_asleep(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_SLEEPING


def test_a_store_that_is_gone_is_said_once_and_waited_for(folder: Folder, pages: Pages) -> None:
    """The beat goes on trying, and runs what is due when the store is back."""
    folder.env["REDIS_URL"] = f"redis://127.0.0.1:{free_port()}/0"
    miss_periods(folder, configure(folder, pages, "# none yet\n"))
    process = beat(folder)
    wait_for(lambda: "there are no schedules" in folder.log(process), 60, "its first words")
    away = folder.path / "away"
    folder.data.rename(away)
    (folder.path / "config" / "schedules.yaml").write_text(YEARLY)

    wait_for(lambda: "is gone" in folder.log(process), 60, "the log to say it")
    assert not folder.data.exists()
    away.rename(folder.data)

    wait_for(lambda: "recovered from" in folder.log(process), 60, "the store to be found")
    assert folder.log(process).count("tried again every second") == 1


def test_a_running_beat_takes_up_changed_schedules(folder: Folder, pages: Pages) -> None:
    """New ones within seconds; a broken file is said with its line, and changes nothing."""
    folder.env["REDIS_URL"] = f"redis://127.0.0.1:{free_port()}/0"
    configure(folder, pages, "")
    file = folder.path / "config" / "schedules.yaml"
    process = beat(folder)
    wait_for(lambda: "there are no schedules" in folder.log(process), 60, "its first words")

    file.write_text(YEARLY)
    wait_for(lambda: "schedule yearly (every 366d)" in folder.log(process), 60, "the new one")
    file.write_text(YEARLY.replace("here", "her"))
    wait_for(
        lambda: "line 1: sites: there is no site 'her'" in folder.log(process), 60, "the fault"
    )

    assert process.poll() is None
    [fault] = folder.status()["config_faults"]
    assert "did you mean here?" in fault
    shown = folder.crawler("status").stdout
    assert "beats go on with the files as they were before" in shown
    assert "next run unknown (schedules.yaml is broken)" in shown  # only the beat knows it
    file.write_text(YEARLY)
    assert re.search(r"next run .+ \(yearly\)$", folder.crawler("status").stdout, re.MULTILINE)


@pytest.mark.parametrize("content", [b"yearly: [", b"\xff: 1", None])
def test_status_promises_nothing_of_a_beat_that_does_not_run(
    folder: Folder, pages: Pages, content: bytes | None
) -> None:
    """A broken schedules.yaml is named in one line, whatever is wrong with it, also a folder of
    its name; so is a site's file without a worker."""
    configure(folder, pages)
    folder.make_store()
    file = folder.path / "config" / "schedules.yaml"
    if content is None:
        file.unlink()
        file.mkdir()
    else:
        file.write_bytes(content)
    (folder.path / "config" / "sites" / "here.yaml").write_text("rat: 1\n")

    shown = folder.crawler("status").stdout

    [schedules] = [line for line in shown.splitlines() if "schedules.yaml" in line]
    [site] = [line for line in shown.splitlines() if "here.yaml" in line]
    assert schedules.endswith("; no beat starts until this is corrected")
    assert site.endswith("; no worker starts until this is corrected")
    assert "go on with" not in shown


@pytest.mark.parametrize("arguments", ["beat", "worker --beat -c 1"])
def test_a_broken_file_is_refused_in_one_line(
    folder: Folder, pages: Pages, redis_url: str, arguments: str
) -> None:
    """With file, line and reason; exit code 2, and no process is left."""
    folder.env["REDIS_URL"] = redis_url
    configure(folder, pages, "yearly:\n  sites: here\n  every: 1s\n")

    process = folder.start("celery", "-A", "crawler", *arguments.split())
    code = process.wait(120)

    assert code == 2, folder.log(process)
    [line] = [line for line in folder.log(process).splitlines() if "every must be" in line]
    assert "schedules.yaml, line 3: every must be whole seconds" in line
    assert "Traceback" not in folder.log(process)


def test_a_store_that_cannot_be_used_is_refused_in_one_line(folder: Folder, pages: Pages) -> None:
    """Exit code 4."""
    configure(folder, pages)
    folder.data.mkdir()
    (folder.data / "lpm.db").write_bytes(b"no database" * 1000)

    process = beat(folder)
    code = process.wait(120)

    assert code == 4, folder.log(process)
    assert "is damaged or not a database" in folder.log(process)
    assert "Traceback" not in folder.log(process)


STATIC = """
from crawler.celery_app import app
import crawler.tasks
app.conf.beat_schedule = {
    "page": {"task": "scrape_task", "schedule": 3600 * 24, "args": ["http://x.example/"]},
}
"""


def test_static_schedules_of_celery_do_not_hold_up_those_of_sites(
    folder: Folder, pages: Pages
) -> None:
    """`beat_schedule` needs Redis; without one, sites are crawled all the same."""
    folder.env["REDIS_URL"] = f"redis://127.0.0.1:{free_port()}/0"
    miss_periods(folder, configure(folder, pages))
    (folder.path / "own.py").write_text(STATIC)

    process = folder.start("celery", "-A", "own", "beat")
    wait_for(lambda: has_run(folder), 60, "the run")
    wait_for(lambda: "tasks of beat_schedule wait" in folder.log(process), 60, "the log to say it")
    ended(process)

    assert process.returncode == 0, folder.log(process)


def test_static_schedules_of_celery_are_sent(folder: Folder, pages: Pages, redis_url: str) -> None:
    """As by Celery's own scheduler."""
    folder.env["REDIS_URL"] = redis_url
    configure(folder, pages)
    text = STATIC.replace("3600 * 24", "1").replace("http://x.example/", f"{pages.url}/")
    (folder.path / "own.py").write_text(text)

    folder.start("celery", "-A", "own", "beat")

    wait_for(lambda: folder.redis().llen("urgent"), 60, "the message")


# What `sites schedules` and `status` tell.


def test_a_site_that_could_not_begin_is_told_until_it_begins(folder: Folder, pages: Pages) -> None:
    """By `sites schedules` and `status`, with the reason; no longer when a later run begins it, or
    when the schedule no longer names it."""
    # Given two sites, of which one signs in with secrets that are not there
    settings = configure(folder, pages, YEARLY.replace("here", "[here, shut]"))
    form = "form: {css: form, values: {user: $user, password: $pw}}"
    login = f"login: {{url: http://shut.example/in, {form}, secrets: gone.txt}}"
    shut = folder.path / "config" / "sites" / "shut.yaml"
    shut.write_text(f"start: http://shut.example/\n{login}\n")
    miss_periods(folder, settings)

    # When a period runs
    SiteSchedules(settings).run_due(time.time())

    # Then both commands name the site and the reason
    told = "shut was not crawled: "
    shown = folder.crawler("sites", "schedules").stdout
    assert (told in shown, "gone.txt" in shown) == (True, True), shown
    [line] = [line for line in folder.crawler("status").stdout.splitlines() if told in line]
    assert line.startswith("SCHEDULE yearly: shut was not crawled: ")
    assert "gone.txt" in line
    [about] = folder.status()["schedules"]
    assert (about["name"], [*about["problems"]]) == ("yearly", ["shut"])
    [about] = json.loads(folder.crawler("sites", "schedules", "--json").stdout)["schedules"]
    assert [*about["problems"]] == ["shut"]

    # And not for a schedule without the site, nor after a run that begins it
    file = folder.path / "config" / "schedules.yaml"
    file.write_text(YEARLY)
    assert told not in folder.crawler("status").stdout
    file.write_text(YEARLY.replace("here", "[here, shut]"))
    assert told in folder.crawler("status").stdout
    shut.write_text("start: http://shut.example/\n")
    with folder.lpm() as lpm, writing(lpm.store.durable):
        lpm.store.durable.execute("UPDATE schedules SET period = period - 366 * 86400")
    SiteSchedules(settings).run_due(time.time())
    assert told not in folder.crawler("status").stdout
    assert told not in folder.crawler("sites", "schedules").stdout


def test_the_jobs_of_the_last_run_are_shown(folder: Folder, pages: Pages, redis_url: str) -> None:
    """A crawl that is done with what it found, an open one with how far it is; jobs of earlier runs
    are not."""
    # Given a run whose crawl is done
    folder.env["REDIS_URL"] = redis_url
    settings = configure(folder, pages)
    miss_periods(folder, settings)
    SiteSchedules(settings).run_due(time.time())
    worker = folder.worker(concurrency=1)
    folder.wait_until_done(4, 120)
    [name] = job_names(folder)

    def last_jobs() -> list[dict[str, Any]]:
        [about] = json.loads(folder.crawler("sites", "schedules", "--json").stdout)["schedules"]
        return [*about["jobs"]]

    wait_for(lambda: last_jobs()[0]["state"] == "done", 60, "the end of the job")
    counts = {"found": 4, "fetched": 4, "failed": 0, "open": 0}
    assert last_jobs() == [{"site": "here", "job": name, "state": "done"} | counts]
    shown = folder.crawler("sites", "schedules").stdout
    assert f"\n    {name} done, 4 found, 4 fetched, 0 failed\n" in shown

    # When the next period begins another
    ended(worker)
    SiteSchedules(settings).run_due(time.time() + 366 * 86400)

    # Then that one is shown
    [about] = last_jobs()
    assert (about["job"] == name, about["state"], about["open"]) == (False, "open", 1)
    shown = folder.crawler("sites", "schedules").stdout
    assert f"\n    {about['job']} open, 0 of 1 done, 0 failed\n" in shown
    assert name not in shown


def test_a_broken_file_of_schedules_hides_no_last_run(folder: Folder, pages: Pages) -> None:
    """The fault is on stderr, and the ledger's schedules are shown without a rule; exit code 2."""
    settings = configure(folder, pages)
    miss_periods(folder, settings)
    SiteSchedules(settings).run_due(time.time())
    [name] = job_names(folder)
    (settings.config_dir / "schedules.yaml").write_text(YEARLY.replace("here", "her"))

    shown = folder.crawler("sites", "schedules")
    as_json = folder.crawler("sites", "schedules", "--json")

    assert (shown.returncode, as_json.returncode) == (2, 2)
    for done in (shown, as_json):
        assert "schedules.yaml, line 1: sites: there is no site 'her'" in done.stderr
    title, last, job = shown.stdout.splitlines()
    assert (title, last.startswith("  last run: ")) == ("yearly", True)
    assert ("not yet" in last, "next" in last, name in job) == (False, False, True)
    facts = json.loads(as_json.stdout)
    [about] = facts["schedules"]
    assert (about["name"], about["rule"], about["next_run"]) == ("yearly", None, None)
    assert about["last_run"]
    assert len(facts["faults"]) == 1


def test_a_broken_file_of_a_site_hides_no_schedule(folder: Folder, pages: Pages) -> None:
    """Rules, sites and next runs are shown; the fault is on stderr, and the exit code 2."""
    settings = configure(folder, pages, f"{YEARLY}every-site: {{sites: all, every: 1h}}\n")
    (settings.config_dir / "sites" / "here.yaml").write_text("stat: http://here.example/\n")

    shown = folder.crawler("sites", "schedules")

    assert (shown.returncode, "here.yaml, line 1: there is no key 'stat'" in shown.stderr) == (
        2,
        True,
    )
    lines = shown.stdout.splitlines()
    assert lines[::2] == ["yearly  every 366d  here", "every-site  every 1h  all"]
    assert all(line.startswith("  last run: not yet; next: ") for line in lines[1::2])


# With `up`, and with an orchestrator.


def test_up_with_a_beat(folder: Folder, pages: Pages) -> None:
    """The supervisor starts beat and restarts it, `status` shows it, its log is its own, and `down`
    ends it."""
    # Given a stack with a beat, and a period that was missed
    miss_periods(folder, configure(folder, pages))
    done = folder.crawler("up", "--workers", "1", "--beat")
    assert done.returncode == 0, done.stderr
    assert "without --beat" not in done.stderr
    assert folder.crawler("sites", "schedules").stderr == ""

    # Then the schedule runs, and the beat is known
    assert folder.wait_until_done(4, 120).completed == 4
    pid = wait_for(lambda: folder.status()["pids"]["beat"], 60, "beat")
    next_run = rf"beat {pid} · next run .+, in .+ \(yearly\)$"
    assert re.search(next_run, folder.crawler("status").stdout, re.MULTILINE)
    assert (folder.data / "logs" / "beat.log").read_text().count("schedule yearly has run") == 1
    shown = folder.crawler("sites", "schedules")
    assert "yearly  every 366d  here" in shown.stdout
    assert "last run: not yet" not in shown.stdout
    assert shown.stderr == ""
    assert json.loads(folder.crawler("sites", "schedules", "--json").stdout)["beat"]

    # When it is killed, it comes back
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: folder.status()["pids"]["beat"] not in (None, pid), 60, "another beat")
    again = folder.crawler("up", "--beat")
    assert (again.returncode, "already" in again.stdout) == (0, True)

    # And `down` leaves nothing
    assert folder.crawler("down").returncode == 0
    assert left_behind(folder) == []
    assert (len(job_names(folder)), shelves(folder)) == (1, [])
    assert "next run" not in folder.crawler("status").stdout
    assert folder.status()["schedules"][0]["next_run"] is None
    assert "no beat runs" in folder.crawler("sites", "schedules").stderr


def test_up_without_a_beat_says_that_schedules_do_not_run(folder: Folder, pages: Pages) -> None:
    """In one line; and `up --beat` on that stack is refused, not ignored."""
    configure(folder, pages)

    done = folder.crawler("up", "--workers", "1")
    refused = folder.crawler("up", "--beat")

    assert done.returncode == 0, done.stderr
    assert done.stderr.count("schedules do not run without --beat") == 1
    assert folder.status()["pids"]["beat"] is None
    assert (refused.returncode, "with other options" in refused.stderr) == (2, True)


def test_up_with_a_beat_refuses_a_broken_file(folder: Folder, pages: Pages) -> None:
    """Before anything is started."""
    configure(folder, pages, "yearly: {sites: her, every: 366d}\n")

    done = folder.crawler("up", "--beat")

    assert (done.returncode, "there is no site 'her'" in done.stderr) == (2, True), done.stderr
    assert left_behind(folder) == []


def test_a_beat_that_cannot_start_ends_the_start_of_its_stack(folder: Folder, pages: Pages) -> None:
    """With the reason from its log; nothing is left. That is a file that breaks after `up` has
    checked it."""
    settings = configure(folder, pages, "yearly: {sites: here, every: 1s}\n")

    with (
        pytest.raises(
            ServiceError, match=r"beat ended at once: /.*schedules\.yaml, line 1: every must be"
        ) as error,
        Orchestrator(settings, workers=1, beat=True) as stack,
    ):
        stack.start_all()

    assert "\n" not in str(error.value)
    assert left_behind(folder) == []
    assert not record_path(folder.data).exists()


def test_a_dead_beat_that_cannot_come_back_leaves_the_stack_up(
    folder: Folder, pages: Pages
) -> None:
    """The supervisor goes on trying and restarts other processes; a mended file brings it back."""
    configure(folder, pages)
    done = folder.crawler("up", "--workers", "1", "--beat")
    assert done.returncode == 0, done.stderr
    before = read_stack(folder.data)
    assert before.beat
    assert before.worker

    file = folder.path / "config" / "schedules.yaml"
    file.write_text("yearly: {sites: here, every: 1s}\n")
    os.kill(before.beat.pid, signal.SIGKILL)
    log = folder.data / "logs" / "beat.log"
    wait_for(lambda: "every must be" in log.read_text(), 60, "the beat that cannot start")
    os.kill(before.worker.pid, signal.SIGKILL)
    wait_for(lambda: read_stack(folder.data).worker != before.worker, 60, "another worker")
    assert read_stack(folder.data).supervisor == before.supervisor
    assert read_stack(folder.data).up

    file.write_text(YEARLY)
    wait_for(lambda: is_beat_running(folder.data), 60, "the beat")


@pytest.mark.parametrize(
    ("given", "schedules", "expected"),
    [(None, YEARLY, True), (None, "", False), (True, "", True), (False, YEARLY, False)],
)
def test_an_orchestrator_starts_a_beat_if_there_are_schedules(
    folder: Folder, pages: Pages, given: bool | None, schedules: str, expected: bool
) -> None:
    """`start_celery` starts worker and beat, once each; `beat` decides otherwise."""
    settings = configure(folder, pages, schedules)
    with Orchestrator(settings, workers=1, beat=given) as stack:
        stack.start_redis()
        stack.start_celery()
        before = read_stack(folder.data)
        stack.start_celery()
        after = read_stack(folder.data)

    assert (before.beat is not None, before) == (expected, after)
    assert not any(mark.find() for mark in before.services)


def test_run_starts_no_beat(folder: Folder, pages: Pages) -> None:
    """A temporary stack runs its own job and no schedule."""
    miss_periods(folder, configure(folder, pages))

    done = folder.crawler("run", str(folder.write("one.txt", [f"{pages.url}/parcel/0"])))

    assert done.returncode == 0, done.stderr
    assert (call_count(folder), (folder.data / "logs" / "beat.log").exists()) == (0, False)


def test_the_record_of_an_older_program_is_readable(tmp_path: Path) -> None:
    """One without a beat."""
    (tmp_path / "run").mkdir()
    record_path(tmp_path).write_text('{"redis_url":"redis://127.0.0.1:1/0","ready":true}')

    assert read_stack(tmp_path) == Stack(redis_url="redis://127.0.0.1:1/0", ready=True)


def test_workers_do_not_load_the_scheduler() -> None:
    """Neither do commands that read no schedules."""
    program = "import sys, crawler.child; print([*sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert "crawler.child" in done.stdout
    assert "'crawler.beat'" not in done.stdout
    assert "'crawler.schedules'" not in done.stdout
