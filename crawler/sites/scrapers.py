"""Sites as Python classes: where they are, how they are run, and what they may return.

A class is found and its settings are read without running its file: a broken or slow file must not
keep commands from working, and a worker's parent process must not load what its children replace.
"""

import logging
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from itertools import islice
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from crawler.errors import CrawlerError, FetchError, InputError
from crawler.logs import printable
from crawler.models import Page, Role
from crawler.sites.crawlfile import CHECKS, CrawlSettings
from crawler.sites.fieldfile import MISSING
from crawler.sites.sitefile import checked_entries
from crawler.sites.yamlfile import Entries

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from crawler.fetch.budget import Budget
    from crawler.sites import Site
    from crawler.sites.page_view import PageView

log = logging.getLogger(__name__)

FOLDER, GROUP = "scrapers", "crawler.sites"
METHODS = ("extract_listing", "extract_listing_urls")
ROLES = ("listing", "index", "file")
MAX_RECORDS, MAX_URLS = 10_000, 100_000  # of one page
MAX_MESSAGE = 500  # characters of an error that a class raised
MIN_FREE = 64_000_000  # bytes; with fewer free, a MemoryError is not the scraper's
_NOT_IN_NAMES = re.compile(r"\W")

Link = tuple[str, str]
"""The URL and the role of a page that a scraper asks for."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The class of a site, as found without running it."""

    site: str
    path: str
    version: str
    """Twelve digits of the hash of its source."""
    class_name: str
    code: bytes
    module: str = ""
    """The importable module of an installed package; empty for a file of the config folder."""
    entries: Entries = {}
    """The keys of a site's file that the class has as attributes."""

    def __repr__(self) -> str:
        return f"Source({self.path}, {self.class_name}, {self.version})"

    def settings(self) -> dict[str, Any]:
        """Return the attributes that are keys of a site's file, checked as these are."""
        return checked_entries(self.path, self.entries, CrawlSettings, CHECKS)


def readers(config: Path) -> list[Callable[[], Source]]:
    """Return what reads each class: those of installed packages, and those of the config folder,
    which go before them."""
    installed, paths = _entry_points(), files(config)
    if not installed and not paths:
        return []
    from crawler.sites import scraper_files  # reads Python, for those who need it

    return [
        *(partial(scraper_files.read_installed, entry) for entry in installed),
        *(partial(scraper_files.read, path) for path in paths),
    ]


def files(config: Path) -> list[Path]:
    """Return the files with classes; those whose names begin with _ are shared by them."""
    return [path for path in python_files(config / FOLDER) if path.name[0] not in "._"]


def python_files(folder: Path) -> list[Path]:
    """Return all files of the scrapers' folder."""
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".py")
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(str(folder), f"the folder cannot be read ({error.strerror})") from error


@cache
def _entry_points() -> "tuple[EntryPoint, ...]":
    from importlib.metadata import entry_points  # takes as long as all else here

    return tuple(entry_points(group=GROUP))


# Running. User code is trusted, but an error in it may cost no more than its page.

_instances: dict[tuple[str, str], Any] = {}
_lock = threading.RLock()
_loaded: dict[str, Source] = {}
"""The first version of each class that this process has run."""
_told_faults: set[str] = set()


def is_loaded(source: Source) -> bool:
    """Say whether this process has run the file of a class, in this version."""
    return (source.path, source.version) in _instances


def were_replaced(sources: Iterable[Source]) -> bool:
    """Say whether this process has run another version of one of these classes."""
    return any(
        source.path in _loaded and _loaded[source.path].version != source.version
        for source in sources
    )


def instance_of(source: Source) -> Any:
    """Run the file of a class, once per process, and return its scraper; `InputError` where that
    fails."""
    with _lock:
        if not is_loaded(source):
            _instances[source.path, source.version] = _instance(source)
            _loaded.setdefault(source.path, source)
        return _instances[source.path, source.version]


def log_wait(source: Source, error: InputError) -> None:
    """Log, once for each reason, that pages wait for a class that cannot be run."""
    if str(error) not in _told_faults:
        _told_faults.add(str(error))
        log.warning("the pages of %s wait: %s", source.site, error)


def _instance(source: Source) -> Any:
    try:
        module = _imported(source) if source.module else _run(source)
        vars(module).setdefault("print", _print)
        made = getattr(module, source.class_name)()
    except BaseException as error:
        if _is_interrupt(error):
            raise
        if isinstance(error, SyntaxError) and error.filename:
            raise InputError(error.filename, f"not Python: {error.msg}", error.lineno) from None
        path, line = place_of(error, source.path) or (source.path, None)
        raise InputError(path, f"the file cannot be run: {_told(error)}", line) from None
    if not any(callable(getattr(made, name, None)) for name in METHODS):
        raise InputError(source.path, f"{source.class_name} has no {' and no '.join(METHODS)}")
    return made


def _imported(source: Source) -> ModuleType:
    """Import a module of an installed package; run it again if an older version was."""
    before = sys.modules.get(source.module)
    if before is None or all(source.module != each.module for each in _loaded.values()):
        return import_module(source.module)
    exec(compile(source.code, source.path, "exec", dont_inherit=True), vars(before))  # noqa: S102
    return before


def _run(source: Source) -> ModuleType:
    """Run the very bytes whose hash is the version: the file may have changed meanwhile."""
    _find_shared(Path(source.path).parent)
    module = ModuleType(f"crawler_scraper_{_NOT_IN_NAMES.sub('_', source.site)}")
    module.__file__ = source.path
    vars(module)["print"] = _print
    sys.modules[module.__name__] = module  # dataclasses and pickle look there
    exec(compile(source.code, source.path, "exec", dont_inherit=True), vars(module))  # noqa: S102
    return module


class _Uncached(SourceFileLoader):
    """Compiles a file each time: a cached one survives an edit within the same second."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


class _SharedFinder:
    """Finds `_name.py` of the scrapers' folder as the module `_name`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found: set[str] = set()

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the module's spec, as the import system asks for it."""
        file = str(self.folder / f"{name}.py")
        if path is not None or not name.startswith("_") or not Path(file).is_file():
            return None
        self.found.add(name)
        return spec_from_file_location(name, file, loader=_Uncached(name, file))


def _find_shared(folder: Path) -> None:
    """Let files import those that they share, as these are now."""
    finders = [finder for finder in sys.meta_path if isinstance(finder, _SharedFinder)]
    for finder in finders:
        for name in finder.found:
            sys.modules.pop(name, None)
        finder.found.clear()
    if not any(finder.folder == folder for finder in finders):
        sys.meta_path.append(_SharedFinder(folder))


def _print(*values: object, file: Any = None, **how: Any) -> None:
    """Print to stderr, a worker's log: stdout is for the data of commands."""
    with suppress(OSError):  # a terminal that is gone must not cost a page
        print(*values, file=file or sys.stderr, **how)


def _is_interrupt(error: BaseException) -> bool:
    """Say whether it is Ctrl-C, and not an error that user code raised."""
    is_main = threading.current_thread() is threading.main_thread()
    return isinstance(error, KeyboardInterrupt) and is_main


def place_of(error: BaseException, path: str) -> tuple[str, int] | None:
    """Return the last line of a file, or of one beside it, that an error came through."""
    folder, place = Path(path).parent, None
    trace = error.__traceback__
    while trace:
        name = trace.tb_frame.f_code.co_filename
        if name == path or Path(name).parent == folder:
            place = name, trace.tb_lineno
        trace = trace.tb_next
    return place


def _told(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # an error of the user's own class may have any __str__
        text = "an error without a text"
    return f"{type(error).__name__}: {text[:MAX_MESSAGE]}".rstrip(": ")


def defines(source: Source | None, method: str) -> bool:
    """Say whether a class has a method of its own; else the site's file decides."""
    return source is not None and callable(getattr(instance_of(source), method, None))


def makes_record(site: "Site", role: Role | None) -> bool:
    """Say whether the class of a site makes the record of a page.

    In a crawl it makes those of listings, if anything tells which pages are listings.
    """
    source = site.scraper
    if source is None or not defines(source, METHODS[0]):
        return False
    is_told = defines(source, METHODS[1]) or site.follow is not None or site.pages
    return role in (None, Role.LISTING) or not is_told


def finds_links(site: "Site", role: Role) -> bool:
    """Say whether the class of a site finds the links of a page in a crawl."""
    return role in (Role.START, Role.INDEX) and defines(site.scraper, METHODS[1])


def listing(page: "PageView") -> dict[str, Any]:
    """Return the record that a class makes of a page; several are a list under `records`.

    Whatever goes wrong in the class, `FetchError` says so with file and line.
    """
    source = _source_of(page)
    with _blamed(source, METHODS[0], page.budget):
        made = _records(_called(source, METHODS[0], page))
        if made is None:
            return {}
        record = msgspec.json.decode(msgspec.json.encode(made))
    if isinstance(made, list):
        return {"records": record}
    result: dict[str, Any] = record
    return result


def links(page: "PageView") -> list[Link]:
    """Return the URLs that a class finds in a page, absolute, each once, with their roles."""
    source = _source_of(page)
    with _blamed(source, METHODS[1], page.budget):
        return _links(_called(source, METHODS[1], page), page)


def _source_of(page: "PageView") -> Source:
    source = page.site.scraper
    assert source is not None, page.site.name
    return source


def _links(found: Any, page: "PageView") -> list[Link]:
    links: dict[str, str] = {}
    for item in islice(_not_async(found) or (), MAX_URLS):
        url, role = item, ROLES[0]
        if isinstance(item, tuple) and len(item) == 2:
            url, role = item
        if not isinstance(url, str) or role not in ROLES:
            what = f"{item!r:.100} is neither a URL nor a pair of URL and role"
            raise TypeError(f"{what}; roles are {', '.join(ROLES)}")
        if address := page.urljoin(url):
            links.setdefault(address, role)
    return list(links.items())


def _called(source: Source, method: str, page: "PageView") -> Any:
    """Call a method. The name of this function tells a crash report where user code begins."""
    scraper = instance_of(source)
    function = getattr(scraper, method)
    if _takes_html(type(scraper), method):  # type: ignore[arg-type]  # a class is hashable
        return function(page.html, page.url)
    return function(page)


@cache
def _takes_html(scraper: type, method: str) -> bool:
    """Say whether a method is written as `extract_listing(html, url)`."""
    import inspect

    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(getattr(scraper, method)).parameters.values()
    needed = [each for each in parameters if each.kind in kinds and each.default is each.empty]
    return [each.name for each in needed][-2:] == ["html", "url"]


def _records(made: Any) -> Any:
    """Return what a class returned, with the items of a generator as a list."""
    if isinstance(_not_async(made), Iterator):
        made = list(islice(made, MAX_RECORDS + 1))
    if isinstance(made, list | tuple):
        if len(made) > MAX_RECORDS:
            raise ValueError(f"it returned more than {MAX_RECORDS:,} records")
        made = [_mapping(each) for each in made]
    elif made is not None:
        made = _mapping(made)
    return made


def _not_async(made: Any) -> Any:
    import inspect  # nearly all that it loads is for other things

    if inspect.iscoroutine(made):
        made.close()
    if inspect.isawaitable(made) or inspect.isasyncgen(made):
        raise TypeError("it is async, and scrapers are called without await")
    return made


def _mapping(made: Any) -> dict[Any, Any]:
    """Return a record as a dict of JSON values; dataclasses and the like are fine."""
    plain = msgspec.to_builtins(made, str_keys=True)
    if not isinstance(plain, dict):
        wanted = "a dict, a list of dicts, or None"
        raise TypeError(f"it returned {type(made).__name__}, where {wanted} is expected")
    missing = plain.get(MISSING, [])
    if not isinstance(missing, list) or not all(isinstance(name, str) for name in missing):
        meaning = "the list of required fields that the page lacks"
        raise TypeError(f"it returned {MISSING!r}, which is {meaning}")
    return plain


@contextmanager
def _blamed(source: Source, method: str, budget: "Budget") -> Iterator[None]:
    """Turn whatever user code raises into an error of its page."""
    try:
        with budget.without_turns():
            yield
    except CrawlerError:
        raise  # a limit of the page, or a lack of this machine
    except BaseException as error:
        if _is_interrupt(error):
            raise
        if isinstance(error, MemoryError):
            from crawler.fetch.budget import check_free

            check_free(MIN_FREE)  # else the lack is ours
        path, line = place_of(error, source.path) or (source.path, None)
        where = f"{path}, line {line}" if line else path
        name = f"{source.class_name}.{method}"
        message = f"{name} failed: {_told(error)} ({where})"
        raise FetchError("scraper_error", printable(message)) from None
    budget.look()


class Scraper:
    """A site with one interface, whether its file, its class or both describe it."""

    def __init__(self, site: "Site") -> None:
        self.site, self.name = site, site.name
        if site.scraper:
            instance_of(site.scraper)

    def __repr__(self) -> str:
        return f"<scraper {self.name}>"

    def page(self, html: "PageView | str | bytes", url: str = "") -> "PageView":
        """Return the page of an HTML text, or of bytes in the page's charset."""
        from crawler.sites.page_view import PageView

        if isinstance(html, PageView):
            return html
        utf8 = None
        if isinstance(html, str):
            html = utf8 = html.encode("utf-8", "replace")
        answer = Page(
            url=url, final_url=url, status=200, reason="OK", headers=(), body=html, raw=html,
            fetched_at=0.0, fetch_s=0.0,
        )  # fmt: skip
        return PageView(self.site, answer, html=utf8)

    def extract_listing(self, page: "PageView | str | bytes", url: str = "") -> Any:
        """Return the record of a page: a dict, a list of dicts, or None.

        What a class raises comes through as it is.
        """
        view = self.page(page, url)
        if defines(self.site.scraper, METHODS[0]):
            return _records(_called(_source_of(view), METHODS[0], view))
        return view.record

    def extract_listing_urls(self, page: "PageView | str | bytes", url: str = "") -> list[str]:
        """Return the absolute URLs to which a page leads."""
        return [address for address, _ in self.links(page, url)]

    def links(self, page: "PageView | str | bytes", url: str = "") -> list[Link]:
        """Return the same with the role of each."""
        view = self.page(page, url)
        if defines(self.site.scraper, METHODS[1]):
            return _links(_called(_source_of(view), METHODS[1], view), view)
        return view.links
