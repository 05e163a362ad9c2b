"""The sites of `config/`: scraping_defaults.yaml for all hosts, sites/<site>.yaml for some, and
classes in scrapers/<site>.py or installed packages.

`live.py` reads them again when they change.
"""

import difflib
import math
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar, overload
from urllib.parse import quote

import msgspec

from crawler.config import interval
from crawler.errors import InputError, UsageError
from crawler.models import BROWSER, HTTP, RENDERED, Fetcher, JobOptions, Page, RateRule
from crawler.render_options import RenderOptions
from crawler.sites import crawlfile, fieldfile, scrapers, secret_files, sitefile, yamlfile
from crawler.sites.crawlfile import CrawlSettings, PageKind
from crawler.sites.fieldfile import Field
from crawler.sites.listingfile import URL, Listings
from crawler.sites.schedulefile import schedule_faults
from crawler.sites.sitefile import PLACEHOLDER, host_of

DEFAULTS, START_URLS = "scraping_defaults.yaml", "start_urls.yaml"
DEFAULT = "default"  # the name of the site of all hosts that no file names
BUILT_IN: dict[str, Any] = msgspec.to_builtins(CrawlSettings()) | {"headers": {}}
"""Every key of a file, and its value where no file sets it."""
_CACHED_HOSTS = 10_000
_NAME = re.compile(r"[a-z0-9_-][a-z0-9._-]{0,98}(?<!\.)")
T = TypeVar("T")
_LIMITS = ("rate", "delay_s", "concurrency", "limit_per")
_OF_ANY_PAGE = frozenset({
    "title", "description", "canonical", "language", "headings", "json_ld", "opengraph",
    "microdata", "fields", "tables", "links", "text", "json",
})  # fmt: skip
"""Keys of a record that has what any page says about itself."""


class Site(CrawlSettings, frozen=True, kw_only=True):
    """The settings of the pages of some hosts."""

    name: str
    version: str
    """Twelve digits that change with any setting in effect, and with nothing else."""
    rule: RateRule = RateRule(interval_s=0.5, at_a_time=2)
    structured: bool = True
    scraper: scrapers.Source | None = None
    """The class of the site, if it has one."""

    @property
    def start_urls(self) -> tuple[str, ...]:
        """The pages and sitemaps that a crawl of the site begins with."""
        return (*(start.url for start in self.start), *self.sitemaps)

    def covers(self, url: str) -> bool:
        """Return whether the host of a URL is one of the site's."""
        return any(_covers(pattern, host_of(url)) for pattern in self.hosts)

    def encoding_of(self, page: Page) -> str | None:
        """Return the charset that the site's file names for a page; a rendered one is UTF-8."""
        return None if page.header(RENDERED) else self.encoding

    def rendering_of(self, url: str, job: JobOptions) -> RenderOptions:
        """Return what a browser does with a page: by its job, its entry of `pages`, its site."""
        kind = self.kind_of(url)
        found = kind.browser.over(self.browser) if kind else self.browser
        return job.browser.over(found) if job.browser else found

    def fetcher_of(self, url: str, job: JobOptions) -> Fetcher:
        """Return what fetches a page: a browser, if something is wanted that only one can do."""
        if job.fetcher != HTTP and self.rendering_of(url, job).needs_browser:
            return "browser"
        return job.fetcher or self.fetcher

    @property
    def fetchers(self) -> set[Fetcher]:
        """What fetches its pages, by its file."""
        asked = (self.browser, *(kind.browser for kind in self.pages))
        if any(options.needs_browser for options in asked):
            return {self.fetcher, "browser"}
        return {self.fetcher}

    def __repr__(self) -> str:
        """Hide the values of headers, which may be secrets."""
        headers = tuple((name, "***") for name, _ in self.headers)
        shown = msgspec.structs.asdict(self) | {"headers": headers}
        return f"Site({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


Places = dict[str, tuple[Path, int]]
"""The file and the line that each key comes from."""


class _Given(NamedTuple):
    """The checked values of a file, and where each is set."""

    values: dict[str, Any]
    places: Places


class _Described(msgspec.Struct, frozen=True):
    """A site with what its own files say."""

    site: Site
    own: dict[str, Any]
    path: Path
    places: Places

    def refuse(self, reason: str, key: str) -> NoReturn:
        path, line = self.places.get(key, (self.path, None))
        raise InputError(str(path), reason, line)

    @property
    def limits(self) -> list[Any]:
        return [self.own.get(key) for key in _LIMITS]


class Sites:
    """The sites by host, by domain and by name."""

    def __init__(self, default: _Described, sites: Iterable[_Described]) -> None:
        self._default = default
        self._named = {each.site.name: each for each in sites}
        self._hosts: dict[str, _Described] = {}
        self._domains: dict[str, _Described] = {}
        self._cache: dict[str, _Described] = {}
        for each in self._named.values():
            for host in each.site.hosts:
                other = self._hosts.setdefault(host, each)
                if other is not each:
                    each.refuse(f"the host {host} belongs to {other.path} already", "hosts")
        if self._hosts:
            self._refuse_two_limits()

    @property
    def default(self) -> Site:
        """The site of every host that no file names."""
        return self._default.site

    def of(self, url: str, platform: str | None = None) -> Site:
        """Return the site of a URL's host, else that of the task's platform.

        The platform's headers stay behind: they may be secrets, and are for its own hosts only.
        """
        found = self._of_host(host_of(url))
        if platform and found is self._default and (named := self.named(platform)):
            return msgspec.structs.replace(named, headers=self.default.headers)
        return found.site

    @property
    def fetchers(self) -> set[Fetcher]:
        """What fetches the pages of all sites."""
        every = (self._default, *self._named.values())
        return {fetcher for each in every for fetcher in each.site.fetchers}

    def named(self, name: str) -> Site | None:
        """Return the site whose file has that name."""
        found = self._named.get(name.strip().lower())
        return found.site if found else None

    def find(self, name: str) -> Site:
        """Return the site of that name; for an unknown one an error that names the nearest."""
        return self.find_all([name])[0]

    def find_all(self, names: Iterable[str]) -> list[Site]:
        """Return the sites of these names; one error names all that are unknown."""
        found = {name: self.named(name) for name in names}
        unknown = [name for name, site in found.items() if site is None]
        if unknown:
            raise UsageError(self._no_such_sites(unknown))
        return [site for site in found.values() if site]

    def _no_such_sites(self, unknown: Sequence[str]) -> str:
        """Say which sites do not exist, and which names are near theirs."""
        near = {name: self._nearest(name) for name in unknown}
        known = f"; known are: {', '.join(self.names) or 'none'}"
        if len(near) == 1:
            [(name, nearest)] = near.items()
            hint = f"; did you mean {nearest}?" if nearest else known
            return f"there is no site {name[:60]!r}{hint}"
        hints = {name: f" (did you mean {nearest}?)" for name, nearest in near.items() if nearest}
        listed = ", ".join(f"{name[:60]!r}{hints.get(name, '')}" for name in near)
        if len(hints) == len(near):
            known = ""
        return f"there are no sites {listed}{known}"

    def _nearest(self, name: str) -> str:
        near = difflib.get_close_matches(name.strip().lower(), self.names, n=1)
        return near[0] if near else ""

    @property
    def names(self) -> list[str]:
        """The names of the sites that have a file."""
        return list(self._named)

    def places(self, name: str) -> Places:
        """Return where each key of a site is set; one that is not there is built in."""
        return self._named.get(name, self._default).places

    @property
    def classes(self) -> list[scrapers.Source]:
        """The classes of the sites that have one."""
        return [each.site.scraper for each in self._named.values() if each.site.scraper]

    @property
    def templates(self) -> list[str]:
        """The names of the sites that make a URL of a row's columns."""
        return [name for name, each in self._named.items() if each.site.url_template]

    def rule(self, domain: str, rate: str | None = None) -> RateRule:
        """Return the limits of a registrable domain; a job's own `rate` overrides all files."""
        found = self._of_domain(domain)
        if rate is None:
            return found.site.rule
        return _rule_by_hand(interval(rate), found.own)

    def limit_per(self, domain: str) -> str:
        """Say whether the limits hold per `domain` for all of the fleet, or per `ip`."""
        return self._of_domain(domain).site.limit_per

    def _of_domain(self, domain: str) -> _Described:
        return self._domains.get(domain) or self._of_host(domain)

    def _of_host(self, host: str) -> _Described:
        found = self._cache.get(host)
        if found is None:
            if len(self._cache) >= _CACHED_HOSTS:
                self._cache.clear()
            found = self._cache[host] = self._hosts.get(host) or self._by_suffix(host)
        return found

    def _by_suffix(self, host: str) -> _Described:
        rest = host
        while rest:
            rest = rest.partition(".")[2]
            if rest and (found := self._hosts.get(f"*.{rest}")):
                return found
        return self._default

    def _refuse_two_limits(self) -> None:
        """Limits are for a whole domain: two sites that share one need the same limits."""
        from crawler.urls import domain  # its list of public suffixes is large

        for host, each in self._hosts.items():
            shared = domain(host.removeprefix("*."))
            other = self._domains.setdefault(shared, each)
            if each.limits != other.limits:
                keys = [key for key in _LIMITS if key in each.own]
                each.refuse(
                    f"{', '.join(_LIMITS)} must be the same here and in {other.path}, "
                    f"because limits are for all of {shared}",
                    [*keys, "hosts"][0],
                )


def _rule_by_hand(interval_s: float, own: dict[str, Any]) -> RateRule:
    """Return the limits for a rate given by hand: a second's worth of requests at a time."""
    at_a_time = 0
    if interval_s:
        at_a_time = max(2, math.ceil(1 / interval_s))
    return RateRule(interval_s=interval_s, at_a_time=own.get("concurrency", at_a_time))


# Loading.


def load(folder: Path, rate: str | None = None) -> Sites:
    """Read every file; `rate` (CRAWLER_RATE) overrides the defaults, but not a site's own file."""

    def refuse(error: InputError) -> NoReturn:
        raise error

    return Sites(*_read_all(folder, rate, refuse))


def built_in(rate: str | None = None) -> Sites:
    """Return what holds without any file."""
    site = _merged(DEFAULT, {}, {}, rate)
    return Sites(_Described(site, {}, Path(DEFAULTS), {}), [])


def faults(folder: Path, rate: str | None = None, run: bool = False) -> list[InputError]:
    """Return all that is wrong in each file, also schedules.yaml, and then between those that can
    be read.

    With `run`, the files of classes are run, too: they may fail, or never end.
    """
    found: list[InputError] = []

    def note(error: InputError) -> None:
        found.extend([error, *error.others])

    described = _read_all(folder, rate, note)
    try:
        Sites(*described)
    except InputError as error:
        note(error)
    for each in described[1]:
        try:
            if run and each.site.scraper:
                scrapers.instance_of(each.site.scraper)
        except InputError as error:
            note(error)
    # A site whose own file is broken is not missing.
    known = None if found else load(folder, rate)
    return found + schedule_faults(folder, known)


def file_faults(path: Path, folder: Path, rate: str | None = None) -> list[InputError]:
    """Return all that is wrong in one file; one that lies elsewhere is that of a site."""
    if not path.exists():
        return [InputError(str(path), "there is no such file")]
    if folder.resolve() in path.resolve().parents:
        every = faults(folder, rate)
        return [fault for fault in every if Path(fault.path).resolve() == path.resolve()]
    try:
        _site_elsewhere(path, folder, rate)
    except InputError as error:
        return [error, *error.others]
    return []


def check_secrets(
    folder: Path, rate: str | None = None, only: Iterable[Path] = ()
) -> secret_files.Checked:
    """Check the secrets files that the logins of all sites name, or only those of some files.

    Files of sites with other faults are left out: `faults` returns those.
    """
    described = list(_read_all(folder, rate, lambda error: None)[1])
    chosen = {path.resolve() for path in only}
    for path in only:
        if folder.resolve() not in path.resolve().parents:
            with suppress(InputError):
                described.append(_site_elsewhere(path, folder, rate))
    logins = [
        secret_files.NamedLogin(each.site.login, *each.places.get("login", (each.path, None)))
        for each in described
        if each.site.login
    ]
    return secret_files.check(
        (each for each in logins if not chosen or each.path.resolve() in chosen), folder
    )


def _site_elsewhere(path: Path, folder: Path, rate: str | None) -> _Described:
    """Describe the site of a file that does not lie in the config folder."""
    source = None
    if path.suffix == ".py":
        from crawler.sites import scraper_files  # imports `ast`, which few commands need

        source = scraper_files.read(path)
    return _site(path, _Given({}, {}), _common(folder / DEFAULTS), rate, source)


def _read_all(
    folder: Path, rate: str | None, report: Callable[[InputError], None]
) -> tuple[_Described, list[_Described]]:
    def attempt(read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except InputError as error:
            report(error)
            return otherwise

    common = attempt(partial(_common, folder / DEFAULTS), _Given({}, {}))
    site = _merged(DEFAULT, common.values, {}, rate)
    default = _Described(site, {}, folder / DEFAULTS, common.places)
    attempt(partial(_check_required, default), None)
    no_starts: dict[str, _Given] = {}
    given = attempt(partial(_start_urls, folder / START_URLS), no_starts)
    no_files: list[Path] = []
    described: list[_Described | None] = []
    no_classes: list[Callable[[], scrapers.Source]] = []
    readers = attempt(partial(scrapers.readers, folder), no_classes)
    classes = {each.site: each for read in readers if (each := attempt(read, None))}
    for path in attempt(partial(_site_files, folder / "sites"), no_files):
        own = given.pop(path.stem, _Given({}, {}))
        source = classes.pop(path.stem, None)
        described.append(attempt(partial(_site, path, own, common, rate, source), None))
    for source in classes.values():
        own = given.pop(source.site, _Given({}, {}))
        path = Path(source.path)
        described.append(attempt(partial(_site, path, own, common, rate, source), None))
    for name, own in given.items():
        read = partial(_described, name, folder / START_URLS, own, common, rate)
        described.append(attempt(read, None))
    return default, [each for each in described if each]


def _site_files(folder: Path) -> list[Path]:
    try:
        paths = sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(str(folder), f"the folder cannot be read ({error.strerror})") from error
    return [path for path in paths if path.suffix in (".yaml", ".yml") and path.name[0] != "."]


def _common(path: Path) -> _Given:
    site_only = (*sitefile.SITE_ONLY, *crawlfile.CHECKS)
    values, lines = sitefile.read(path, CrawlSettings, {}, site_only)
    return _Given(values, {key: (path, line) for key, line in lines.items()})


def _start_urls(path: Path) -> dict[str, _Given]:
    found, lines = yamlfile.read_entries(path, crawlfile.start_urls)
    given: dict[str, _Given] = {}
    for name, entries in found.items():
        if reason := bad_name(name):
            raise InputError(str(path), reason, lines[name])
        places = {key: (path, line) for key, (line, _) in entries.items()}
        given[name] = _Given({key: value for key, (_, value) in entries.items()}, places)
    return given


def _site(
    path: Path, given: _Given, common: _Given, rate: str | None, source: scrapers.Source | None
) -> _Described:
    """Describe the site of a file, of a class, or of both; then the class goes before the file,
    and what start_urls.yaml gives before both."""
    name = source.site if source else path.stem
    if path.suffix == ".yml":
        raise InputError(str(path), "the name of a site's file must end in .yaml")
    if reason := bad_name(name):
        raise InputError(str(path), reason)
    values: dict[str, Any] = {}
    places: dict[str, tuple[Path, int]] = {}
    if path.suffix == ".yaml":
        values, lines = sitefile.read(path, CrawlSettings, crawlfile.CHECKS)
        places = {key: (path, line) for key, line in lines.items()}
    if source:
        values |= source.settings()
        places |= {key: (Path(source.path), line) for key, (line, _) in source.entries.items()}
    own = _Given(values | given.values, places | given.places)
    return _described(name, path, own, common, rate, source)


def bad_name(name: str) -> str:
    """Return why a text cannot be the name of a site; empty if it can."""
    if name == DEFAULT:
        return f"what holds for all sites is in {DEFAULTS}"
    if _NAME.fullmatch(name):
        return ""
    allowed = "lower case letters, digits, -, _ and dots, which stand between others"
    return f"the name of a site consists of {allowed}; {name[:60]!r} is none"


def _described(
    name: str,
    path: Path,
    own: _Given,
    common: _Given,
    rate: str | None,
    source: scrapers.Source | None = None,
) -> _Described:
    values, places = own
    needed = [(key, host_of(url)) for key, url in crawlfile.addresses(values)]
    if needed:
        values.setdefault("hosts", tuple(dict.fromkeys(host for _, host in needed)))
    if not values.get("hosts"):
        if path.name == START_URLS:
            line = min(line for _, line in places.values())
            raise InputError(str(path), f"{name} has no file of its own, and no urls here", line)
        reason = "hosts is missing: a list of the host names that these settings are for"
        raise InputError(str(path), reason)
    site = msgspec.structs.replace(_merged(name, common.values, values, rate), scraper=source)
    described = _Described(site, values, path, common.places | places)
    _check_required(described)
    _check_listings(described)
    _check_files(described)
    _check_browser(described)
    for key, host in needed:
        if not any(_covers(pattern, host) for pattern in values["hosts"]):
            described.refuse(f"the host of {key}, {host}, is not among hosts", key)
    return described


def _check_required(described: _Described) -> None:
    """Refuse a required field that no page could have; a class may make any."""
    for name in described.site.required:
        if name not in described.site.fields and not described.site.scraper:
            hint = _nearest(name, described.site.fields)
            described.refuse(f"required: there is no field {name[:60]!r}{hint}", "required")


def _check_listings(described: _Described) -> None:
    """Refuse fields of listings that no page could have; a class may make any, and so may a page
    that says something about itself."""
    site, rules = described.site, described.site.listings
    kinds: list[Site | PageKind] = [site, *site.pages]
    described_by = [kind for kind in kinds if kind.fields]
    is_open = not described_by or any(kind.structured for kind in described_by)
    if rules is None or site.scraper or is_open:
        return
    fields = {name: field for kind in described_by for name, field in kind.fields.items()}
    if rules.each:
        if rules.each not in fields or not fields[rules.each].fields:
            records = [name for name, field in fields.items() if field.fields]
            reason = f"there is no field {rules.each[:60]!r} with fields of its own"
            hint = _nearest(rules.each, records)
            described.refuse(f"listings: each: {reason}{hint}", "listings")
        fields = fields[rules.each].fields
    for key, name in rules.named_fields:
        if name not in fields and (key, name) != ("key", URL):
            reason = f"there is no field {name[:60]!r}{_nearest(name, fields)}"
            described.refuse(f"listings: {key}: {reason}", "listings")


def _nearest(name: str, fields: Iterable[str]) -> str:
    """Return a hint at the field that was meant, if there is any field."""
    known = sorted(fields)
    return f"; {yamlfile.nearest(name, known)}" if known else ""


def _check_files(described: _Described) -> None:
    """Refuse a field with files that no record could have; a class may make any."""
    site = described.site
    if site.files is None or site.scraper:
        return
    known = set(site.fields).union(*(kind.fields for kind in site.pages))
    if site.structured or any(kind.structured for kind in site.pages):
        known |= _OF_ANY_PAGE
    for path in site.files.fields:
        name = path.partition(".")[0]
        if path not in known and name not in known:
            hint = _nearest(name, known)
            described.refuse(f"files: there is no field {name[:60]!r}{hint}", "files")


def _check_browser(described: _Described) -> None:
    """Refuse what only a browser can do where nothing but HTTP is to be used, and steps that take
    longer than a page may."""
    site = described.site
    if described.own.get("fetcher") == HTTP and BROWSER in described.site.fetchers:
        reason = "browser asks for what only a browser can do, and fetcher is http"
        described.refuse(f"{reason}; take it out, or write auto", "fetcher")
    for key, options in (
        ("browser", site.browser),
        *(("pages", each.browser) for each in site.pages),
    ):
        if options.waits_s >= site.timeout_s:
            reason = f"its steps wait {options.waits_s:g} s, and timeout_s is {site.timeout_s:g}"
            described.refuse(f"browser: {reason}", key)


def _covers(pattern: str, host: str) -> bool:
    return pattern == host or (pattern.startswith("*.") and host.endswith(pattern[1:]))


def _merged(name: str, common: dict[str, Any], own: dict[str, Any], rate: str | None) -> Site:
    merged = _overlaid(_overlaid(BUILT_IN, common), own)
    merged["pages"] = [_page_kind(kind, merged) for kind in merged["pages"]]
    if merged["listings"]:
        merged["pages"] = [_with_key(kind, merged["listings"]) for kind in merged["pages"]]
    merged["structured"] = _is_structured(merged["structured"], merged["fields"])
    merged["fields"] = fieldfile.with_locale(merged["fields"], merged["locale"] or "")
    if rate is None or "rate" in own:
        interval_s = max(interval(merged["rate"]), merged["delay_s"])
        rule = RateRule(interval_s=interval_s, at_a_time=merged["concurrency"])
    else:
        rule = _rule_by_hand(interval(rate), own)
        interval_s = max(rule.interval_s, own.get("delay_s", 0.0))
        rule = msgspec.structs.replace(rule, interval_s=interval_s)
    # Files are no part of a record: with other ones the same page has the same record.
    made_by = {key: value for key, value in merged.items() if key != "files"}
    version = sha256(msgspec.json.encode(made_by, order="sorted")).hexdigest()[:12]
    merged["headers"] = tuple(merged["headers"].items())
    return msgspec.convert(merged | {"name": name, "version": version, "rule": rule}, Site)


def _page_kind(kind: PageKind, site: dict[str, Any]) -> PageKind:
    """Complete an entry of `pages` by what its file says for all pages."""
    structured = site["structured"] if kind.structured is None else kind.structured
    return msgspec.structs.replace(
        kind,
        fields=fieldfile.with_locale(kind.fields, site["locale"] or ""),
        structured=_is_structured(structured, kind.fields),
    )


def _with_key(kind: PageKind, rules: Listings) -> PageKind:
    """Require the key of listings on their pages: without it, a record is none."""
    if kind.role != "listing":
        return kind
    key = [name for name in rules.key if name in kind.fields and name not in kind.required]
    return msgspec.structs.replace(kind, required=(*kind.required, *key))


def _is_structured(given: bool | None, fields: dict[str, Field]) -> bool:
    return not fields if given is None else given


def _overlaid(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merge settings; those that are mappings are merged key by key."""
    merged = below | above
    for key in ("retry", "fields", "browser"):
        merged[key] = below[key] | above.get(key, {})
    headers = above.get("headers", {})
    replaced = {name.lower() for name in headers}
    kept = {name: text for name, text in below["headers"].items() if name.lower() not in replaced}
    set_here = {name: text for name, text in headers.items() if text is not None}
    merged["headers"] = kept | set_here
    return merged


# For programs that use the sites.


def get_scraper(name: str) -> "scrapers.Scraper":
    """Return the scraper of a site of the config folder; `UsageError` if there is none."""
    from crawler import config

    settings = config.load()
    return scrapers.Scraper(load(settings.config_dir, settings.rate).find(name))


def load_start_urls() -> dict[str, list[str]]:
    """Return the start URLs of every site that has some, from start_urls.yaml and the sites'
    files."""
    from crawler import config

    settings = config.load()
    known = load(settings.config_dir, settings.rate)
    found = {name: known.find(name).start_urls for name in known.names}
    return {name: list(starts) for name, starts in found.items() if starts}


class _AvailableSites(Sequence[str]):
    """The names of the sites that there are now; reads the config folder each time."""

    def _names(self) -> list[str]:
        from crawler import config

        settings = config.load()
        return sorted(load(settings.config_dir, settings.rate).names)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self._names()[index]

    def __len__(self) -> int:
        return len(self._names())

    def __repr__(self) -> str:
        return repr(self._names())


AVAILABLE_SITES = _AvailableSites()


# URLs of columns.


def expand(template: str, column: Callable[[str], str | None]) -> str:
    """Make the URL for a row; raises `ValueError` where a column gives no usable value."""

    def value(match: re.Match[str]) -> str:
        name = match[1].strip().lower()
        found = column(name)
        its = f"the column {name[:60]!r} is"
        if found is None:
            raise ValueError(f"{its} missing, and the url_template of the platform needs it")
        text = found.strip()
        if not text:
            raise ValueError(f"{its} empty, and the url_template of the platform needs it")
        if text in (".", ".."):
            raise ValueError(f"{its} {text!r}, which is a place and no value")
        return quote(text, safe="")

    return PLACEHOLDER.sub(value, template)
