"""What tests share: the site and folders with commands in them."""

import faulthandler
import gc
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from crawler.worker import GARBAGE_THRESHOLDS
from tests.support import browser
from tests.support.pages import Pages
from tests.support.site import Site
from tests.support.stack import Folder

# A shell starts what is to run in the background deaf to Ctrl-C, and nohup to a closed terminal,
# and so would be all that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


MAX_SHOWN_BYTES = 16
LAST_TO_WAIT = 0.9
"""Where in the list of tests the last file that mostly waits begins, at the latest: long tests are
not to begin last."""
IN_A_BROWSER = [
    "integration/test_browser.py",
    "integration/test_browser_pages.py",
    "integration/test_browser_steps.py",
    "integration/test_pictures.py",
    "integration/test_rendering.py",
]
collect_ignore = [] if browser.chromium() else IN_A_BROWSER


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the files whose tests mostly wait among those whose tests mostly compute.

    Processes that run tests get equal parts of the list. In alphabetical order, one would get all
    that wait, and at the end all processes would wait with little to compute.
    """
    waiting = [item for item in items if item.path.parent.name != "unit"]
    computing = [item for item in items if item.path.parent.name == "unit"]
    begins: dict[Path, float] = {}
    for part, share in ((waiting, LAST_TO_WAIT), (computing, 1.0)):
        for number, item in enumerate(part):
            begins.setdefault(item.path, share * number / len(part))
    items.sort(key=lambda item: begins[item.path])


def pytest_collection_finish() -> None:
    """Keep the collected tests out of garbage collection, as a worker does with its modules.

    Otherwise a collection of this large heap counts as time of whatever a test measures.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Disarm a worker's watchdog that a test has left behind.

    Otherwise it ends this process in the middle of a later test.
    """
    faulthandler.cancel_dump_traceback_later()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what this machine lacks."""
    if collect_ignore:
        terminalreporter.write_line(browser.LACKING)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name cases by their argument instead of by packed bytes, which hold the time of day."""
    return argname if isinstance(val, bytes) and len(val) > MAX_SHOWN_BYTES else None


@pytest.fixture(scope="session")
def _site() -> Iterator[Site]:
    with Site() as site:
        yield site


@pytest.fixture
def site(_site: Site) -> Site:
    """The hostile site, with its books empty."""
    _site.reset()
    return _site


@pytest.fixture
def pages() -> Iterator[Pages]:
    """A site whose pages a test writes, and may hold back."""
    with Pages() as pages:
        yield pages


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    """A folder to type commands in; whatever was started there is stopped."""
    folder = Folder(tmp_path)
    yield folder
    folder.stop()


@pytest.fixture(scope="session")
def _redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from crawler.config import Settings
    from crawler.orchestrator import Orchestrator
    from crawler.stack import read_stack

    data = tmp_path_factory.mktemp("valkey")
    with Orchestrator(Settings(data_dir=data)) as stack:
        stack.start_redis()
        yield str(read_stack(data).redis_url)


@pytest.fixture
def redis_url(_redis_url: str) -> str:
    """A private Valkey for the whole run, emptied for each test."""
    with redis.Redis.from_url(_redis_url) as client:
        client.flushall()
    return _redis_url
