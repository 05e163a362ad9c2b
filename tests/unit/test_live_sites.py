"""A running process uses the files of config/ as they are, or as they last were without a fault."""

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from crawler import sites
from crawler.errors import InputError, shortage_of
from crawler.lpm import LocalPersistenceManager
from crawler.models import QUEUES
from crawler.resilience.memory import MemoryPermit
from crawler.sites.live import LOOK_INTERVAL_S, LiveSites, file_state
from crawler.worker.claims import Claims
from crawler.worker.health import FreeSpace
from tests.support.clock import Clock
from tests.support.tasks import new

URL = "http://a.example/"

Edit = Callable[[str], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A config folder with the site `county`, two requests a second."""
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "county.yaml").write_text("hosts: a.example\nrate: 2/s\n")
    return tmp_path


def looked(live: LiveSites, clock: Clock, times: int = 2) -> LiveSites:
    for _ in range(times):
        clock.now += LOOK_INTERVAL_S
        live.look()
    return live


@pytest.mark.parametrize("name", ["sites/county.yaml", "sites/other.yaml", "start_urls.yaml"])
def test_a_changed_file_is_read_again(folder: Path, name: str) -> None:
    """Also a new one, and one that is deleted."""
    clock = Clock(100)
    live = LiveSites(folder, clock=clock)
    before = live.of(URL).version
    text = {
        "sites/county.yaml": "hosts: a.example\nrate: 5/s\n",
        "sites/other.yaml": "hosts: b.example\nrate: 5/s\n",
        "start_urls.yaml": "county: {config: {limit: 5}}\n",
    }[name]
    changed = "http://b.example/" if "other" in name else URL
    unchanged = live.of(changed).version

    (folder / name).write_text(text)
    looked(live, clock)
    assert live.of(changed).version != unchanged

    (folder / name).unlink()
    (folder / "sites" / "county.yaml").write_text("hosts: a.example\nrate: 2/s\n")
    assert looked(live, clock).of(URL).version == before


def test_a_file_of_the_same_size_and_time_is_seen_by_its_inode(folder: Path) -> None:
    """A file put in its place with an old date counts, as rsync and git leave it."""
    clock = Clock(100)
    live = LiveSites(folder, clock=clock)
    path = folder / "sites" / "county.yaml"
    times = path.stat()
    fresh = folder / "fresh"
    fresh.write_text("hosts: a.example\nrate: 9/s\n")
    os.utime(fresh, ns=(times.st_atime_ns, times.st_mtime_ns))
    fresh.replace(path)

    assert looked(live, clock).rule("a.example").interval_s == pytest.approx(1 / 9)


def test_the_folder_is_looked_at_once_a_second_and_a_file_must_be_at_rest(folder: Path) -> None:
    """An editor that empties a file before it writes it disturbs nobody."""
    clock = Clock(100)
    live = LiveSites(folder, clock=clock)
    path = folder / "sites" / "county.yaml"

    path.write_text("")
    live.look()
    looked(live, clock, 1)
    path.write_text("hosts: a.example\nrate: 5/s\n")
    looked(live, clock, 1)
    assert (live.problem, live.rule("a.example").interval_s) == ("", 0.5)

    live.look()
    assert live.rule("a.example").interval_s == 0.5
    assert looked(live, clock, 1).rule("a.example").interval_s == 0.2


def test_a_broken_file_leaves_the_old_settings_in_force(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, with file and line, until it is mended."""
    clock = Clock(100)
    live = LiveSites(folder, clock=clock)
    path = folder / "sites" / "county.yaml"

    with caplog.at_level(logging.INFO):
        path.write_text("hosts: a.example\nrat: 5/s\n")
        looked(live, clock, 5)
        assert live.rule("a.example").interval_s == 0.5
        assert f"{path}, line 2: there is no key 'rat'" in live.problem
        path.write_text("hosts: a.example\nrate: 5/s\n")
        looked(live, clock)

    assert (live.problem, live.rule("a.example").interval_s) == ("", 0.2)
    [first, second] = caplog.messages
    assert "line 2: there is no key 'rat'" in first
    assert "still fetched with the files as they were before" in first
    assert "have changed and were read again" in second


def test_a_file_that_cannot_be_read_is_not_a_missing_one(folder: Path) -> None:
    """Each reason for which a file is not there, and each mode, is a state of its own."""
    path = folder / "sites" / "county.yaml"
    states = [file_state(path)]
    path.chmod(0)
    states.append(file_state(path))
    path.unlink()
    states.append(file_state(path))
    path.symlink_to(path)
    states.append(file_state(path))
    states.append(file_state(folder / "scraping_defaults.yaml" / path.name))
    (folder / "scraping_defaults.yaml").touch()
    states.append(file_state(folder / "scraping_defaults.yaml" / path.name))
    assert [states.index(each) for each in states] == [0, 1, 2, 3, 2, 5]


def test_an_unforeseen_error_leaves_the_old_settings_in_force(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a changed file makes of its reader, the process goes on, and says so."""
    clock = Clock(100)
    live = LiveSites(folder, clock=clock)

    def fail(*_: object) -> None:
        raise RecursionError("too deep")

    with monkeypatch.context() as patched:
        patched.setattr("crawler.sites.live.load", fail)
        (folder / "sites" / "county.yaml").write_text("hosts: a.example\nrate: 10/s\n")
        assert looked(live, clock).rule("a.example").interval_s == 0.5

    assert live.problem == f"{folder}: RecursionError: too deep"
    assert "still fetched with the files as they were before" in caplog.text
    (folder / "sites" / "county.yaml").write_text("hosts: a.example\nrate: 5/s\n")
    assert looked(live, clock).rule("a.example").interval_s == 0.2


def lacking_descriptors(*_: object) -> None:
    """As a reader that finds no descriptor left on this machine."""
    lack = OSError(errno.ENFILE, "Too many open files in system")
    raise InputError("county.yaml", "the file cannot be read") from lack


def lacking_memory(*_: object) -> None:
    raise MemoryError


@pytest.mark.parametrize("fail", [lacking_descriptors, lacking_memory])
def test_files_that_a_shortage_hid_are_read_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fail: Callable[..., None]
) -> None:
    """They need not change once more. Who looks at them is told of the shortage each time."""
    clock = Clock(100)
    live = LiveSites(folder, clock=clock)
    (folder / "sites" / "county.yaml").write_text("hosts: a.example\nrate: 5/s\n")
    looked(live, clock, 1)

    with monkeypatch.context() as patched:
        patched.setattr("crawler.sites.live.load", fail)
        for _ in range(3):
            with pytest.raises((InputError, MemoryError)) as told:
                looked(live, clock, 1)
            assert shortage_of(told.value)
    assert live.rule("a.example").interval_s == 0.5

    assert looked(live, clock, 1).rule("a.example").interval_s == 0.2


def test_files_that_a_shortage_hid_at_the_start_are_read_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then the process has what its parent read."""
    clock = Clock(100)
    parent = sites.load(folder)
    (folder / "sites" / "county.yaml").write_text("hosts: a.example\nrate: 5/s\n")
    with monkeypatch.context() as patched:
        patched.setattr("crawler.sites.live.load", lacking_descriptors)
        live = LiveSites(folder, None, parent, clock)
    assert live.rule("a.example").interval_s == 0.5

    assert looked(live, clock).rule("a.example").interval_s == 0.2


def test_a_folder_that_is_gone_is_no_empty_one(folder: Path) -> None:
    """An unmounted disk takes no site's limits away."""
    clock = Clock(100)
    config = folder / "config"
    config.mkdir()
    (folder / "sites").rename(config / "sites")
    live = LiveSites(config, clock=clock)

    config.rename(folder / "elsewhere")

    assert looked(live, clock).of(URL).name == "county"
    assert "the folder is gone" in live.problem


def test_a_process_that_begins_with_a_broken_file_has_what_its_parent_read(folder: Path) -> None:
    """Without that it does not begin; it goes over to the file once that is mended."""
    clock = Clock(100)
    parent = sites.load(folder)
    path = folder / "sites" / "county.yaml"
    path.write_text("rat: 1")

    with pytest.raises(InputError, match="there is no key 'rat'"):
        LiveSites(folder, clock=clock)
    live = LiveSites(folder, None, parent, clock)

    assert (live.of(URL).name, "no key 'rat'" in live.problem) == ("county", True)
    path.write_text("hosts: a.example\nrate: 5/s\n")
    assert looked(live, clock).rule("a.example").interval_s == 0.2


def test_a_changed_rate_counts_for_the_next_claim(folder: Path) -> None:
    """Claims ask for permits with the limits of the file as it is now."""
    clock = Clock(100)
    live = LiveSites(folder, clock=clock)
    lpm = LocalPersistenceManager(folder / "data")
    lpm.persist_tasks([new(f"{URL}{n}") for n in range(3)])
    permit = MemoryPermit("owner", 5, fresh=False)
    claims = Claims(lpm, "owner", permit, live, FreeSpace(folder, 0))
    [first], _ = claims.claim(QUEUES, room=1, idle=True)

    (folder / "sites" / "county.yaml").write_text("hosts: a.example\nrate: none\nconcurrency: none")
    for _ in range(2):
        clock.now += LOOK_INTERVAL_S
        claims.look_at_sites()
    rest, _ = claims.claim(QUEUES, room=5, idle=True)

    assert first.reservation is not None
    assert [claimed.reservation for claimed in rest] == [None, None]
    claims.close()
