"""The public names, and the page that explains them."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import crawler
from crawler.batches import BatchOptions
from crawler.coordinator import CrawlCoordinator
from crawler.errors import UsageError
from crawler.lpm import LocalPersistenceManager

PAGE = (Path(__file__).parents[2] / "docs" / "LIBRARY.md").read_text()


def test_the_page_has_each_public_name() -> None:
    """The table at its top names what `crawler.__all__` has, and nothing else."""
    table = PAGE[: PAGE.index("`import crawler` loads")]

    assert set(re.findall(r"^\| \[?`(\w+)`", table, re.MULTILINE)) == set(crawler.__all__)
    assert all(hasattr(crawler, name) for name in crawler.__all__)
    assert set(dir(crawler)) >= set(crawler.__all__)


@pytest.mark.parametrize("kind", [CrawlCoordinator, crawler.Store])
def test_the_page_has_each_method(kind: type) -> None:
    """And each public method is named with its arguments."""
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if name.startswith("_"):
            continue
        wanted = [each for each in inspect.signature(method).parameters if each != "self"]
        [*found] = re.findall(rf"{name}\(([^)]*)\)`", PAGE)
        assert found or f"`{name}`" in PAGE, name
        for argument in wanted:
            assert argument in PAGE, (name, argument)


def test_the_page_has_each_option() -> None:
    """With its default."""
    section = PAGE[PAGE.index("## Options") : PAGE.index("## Results")]

    assert re.findall(r"^\| `(\w+)`", section, re.MULTILINE) == list(BatchOptions.__struct_fields__)


def test_what_is_not_public_is_an_error() -> None:
    """A wrong name fails as with any module."""
    with pytest.raises(AttributeError, match="has no attribute 'Coordinator'"):
        crawler.Coordinator  # noqa: B018


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: crawler.scrape(3), "url: Expected `str`"),  # type: ignore[arg-type]
        (lambda: CrawlCoordinator(give_up_s=-1), "give_up_s: Expected `float` >= 0.0"),
        (lambda: CrawlCoordinator(give_up_s=float("nan")), "give_up_s: Expected `float` >= 0.0"),
        (lambda: crawler.scrape("http://x/", timeout_s=-1), "timeout_s: Expected `float` >= 0.0"),
        (
            lambda: crawler.scrape("http://x/", timeout_s=float("nan")),
            "timeout_s: Expected `float` >= 0.0",
        ),
        (lambda: crawler.Store(3), "path: Expected a path"),  # type: ignore[arg-type]
        (lambda: CrawlCoordinator(data_dir=3), "data_dir: Expected a path"),  # type: ignore[arg-type]
        (lambda: CrawlCoordinator(distributed="no"), "distributed: Expected `bool`"),  # type: ignore[arg-type]
        (
            lambda: CrawlCoordinator().crawl_many_sync([], None, 3),  # type: ignore[arg-type]
            "on_progress: Expected a function",
        ),
    ],
)
def test_a_wrong_argument_is_named(call: Callable[[], object], says: str) -> None:
    """Each is refused as every error of the package, before anything is stored."""
    with pytest.raises(UsageError) as caught:
        call()

    assert str(caught.value).startswith(says)


def test_a_store_refuses_what_is_no_name(tmp_path: Path) -> None:
    """A task, URL or job that is no text is named, too."""
    with LocalPersistenceManager(tmp_path) as lpm:
        lpm.open()
    with crawler.Store(tmp_path) as store:
        for read in (store.result, store.page, store.timeline):
            with pytest.raises(UsageError, match="task_or_url: Expected `str`"):
                read(3)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="job: Expected `str"):
            list(store.results(3))  # type: ignore[arg-type]


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    """Reading creates nothing."""
    with pytest.raises(UsageError, match="there is no store"):
        crawler.Store(tmp_path / "nothing")

    assert list(tmp_path.iterdir()) == []
