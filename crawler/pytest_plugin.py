"""A pytest plugin that runs golden sets: `pytest --crawler-golden DIR`, one test for each page.

Without the option it does nothing, and loads nothing of this package.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from crawler.sites import Sites


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("crawler", "golden sets of crawler")
    group.addoption(
        "--crawler-golden",
        metavar="DIR",
        help="run the pages of this golden set, which `crawler replay --freeze DIR` has made",
    )
    group.addoption(
        "--crawler-config",
        metavar="DIR",
        help="config folder with the sites (default: CRAWLER_CONFIG_DIR, else ./config)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Collect the folder, and nothing else if no other tests were named."""
    given = config.getoption("--crawler-golden")
    if not given:
        return
    folder = Path(given).absolute()
    if not any(folder.glob("*.json")):
        raise pytest.UsageError(f"--crawler-golden: there are no pages of a golden set in {given}")
    config_dir = config.getoption("--crawler-config")
    if config_dir and not Path(config_dir).is_dir():
        raise pytest.UsageError(f"--crawler-config: there is no folder {config_dir}")
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = []
    config.args.append(str(folder))
    config.pluginmanager.register(_GoldenSet(folder, config_dir))


class _GoldenSet:
    """Collects the pages of one folder."""

    def __init__(self, folder: Path, config_dir: str | None) -> None:
        self._folder, self._config_dir = folder, config_dir
        self._sites: Sites | None = None

    def pytest_collect_file(
        self, file_path: Path, parent: pytest.Collector
    ) -> "pytest.Collector | None":
        """Take each page of the set for a file of tests."""
        if file_path.parent != self._folder or file_path.suffix != ".json":
            return None
        file: pytest.Collector = _GoldenFile.from_parent(parent, path=file_path, golden=self)
        return file

    @property
    def sites(self) -> "Sites":
        """The sites, read once."""
        if self._sites is None:
            from crawler import config, sites

            settings = config.load()
            folder = Path(self._config_dir or settings.config_dir)
            self._sites = sites.load(folder, settings.rate)
        return self._sites


class _GoldenFile(pytest.File):
    def __init__(self, *, golden: _GoldenSet, **others: Any) -> None:
        super().__init__(**others)
        self._golden = golden

    def collect(self) -> "Iterable[pytest.Item]":
        yield _GoldenItem.from_parent(self, name="record", golden=self._golden)


class _Different(Exception):
    """The record is not the expected one."""


class _GoldenItem(pytest.Item):
    def __init__(self, *, golden: _GoldenSet, **others: Any) -> None:
        super().__init__(**others)
        self._golden = golden

    def runtest(self) -> None:
        from crawler.replay import golden

        found = golden.check(self.path, self._golden.sites)
        if found:
            raise _Different(golden.read(self.path).url, found)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show the fields that differ, not how the plugin found that."""
        from crawler.errors import CrawlerError

        if isinstance(excinfo.value, _Different):
            url, found = excinfo.value.args
            return "\n".join([url, *(f"  {line}" for line in found)])
        if isinstance(excinfo.value, CrawlerError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"golden page {self.path.stem}"
