"""Begins crawls: URLs and names of sites become a job with its starts and sitemaps."""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import msgspec

from crawler import urls
from crawler.bulk import Secrets
from crawler.config import Settings
from crawler.errors import UrlError, UsageError
from crawler.fetch.session import Session
from crawler.lpm import LocalPersistenceManager
from crawler.models import CrawlOptions, Job, JobOptions, Link, Role
from crawler.scraping.follow import origin_of
from crawler.sites import Site, Sites
from crawler.sites.crawlfile import Form
from crawler.sites.forms import start_task
from crawler.sites.selectors import pattern

Row = Mapping[str, Any]


class Plan(msgspec.Struct, frozen=True):
    """What a crawl begins with."""

    options: JobOptions
    starts: list[tuple[Link, Row]]
    name: str
    credentials: list[tuple[str, str]]
    """User names and passwords of the URLs, by origin."""


def plan(
    known: Sites,
    given: Iterable[str],
    options: JobOptions,
    *,
    subdomains: bool,
    rows: Iterable[Row] = (),
    **scope: Any,
) -> Plan:
    """Find out where a crawl begins and how far it goes; raises `UsageError` for what is neither a
    URL nor the name of a site."""
    begun = _Beginning(known, scope["sitemap"], list(rows))
    for text in given:
        begun.add(text, subdomains)
    crawl = CrawlOptions(
        starts=tuple(map(urls.without_credentials, given)),
        hosts=tuple(dict.fromkeys(begun.hosts)),
        origins=tuple(dict.fromkeys(origin_of(link.address.url) for link, _ in begun.starts)),
        **{**scope, "sitemap": scope["sitemap"] or "include"},
    )
    for text in (*crawl.include, *crawl.exclude):
        try:
            pattern(text)
        except ValueError as error:
            raise UsageError(f"{text!r}: {error}") from None
    how = msgspec.structs.replace(options, crawl=crawl)
    return Plan(how, begun.starts, begun.name, begun.credentials)


def begin(
    settings: Settings,
    begun: Plan,
    *,
    job_name: str | None = None,
    queue: str = "default",
    deadline: float | None = None,
    session: Session | None = None,
) -> tuple[Job, int]:
    """Open the job of a crawl, or continue it while it is open; returns also how many starts are
    new."""
    crawl = begun.options.crawl
    assert crawl is not None
    digest = sha256(msgspec.json.encode(sorted(crawl.starts))).hexdigest()
    with LocalPersistenceManager(settings.data_dir) as lpm:
        job = lpm.imports.open_job(
            key=f"name:{job_name}" if job_name else f"crawl:{digest}:{queue}",
            name=job_name or begun.name,
            queue=queue,
            source="crawl",
            source_file=None,
            batch_size=100,
            now=lpm.now(),
            watched=True,
            deadline=deadline,
            options=begun.options,
        )
        secrets = Secrets(lpm.folder / "sessions", job.name, session)
        if not all(map(secrets.take, begun.credentials)):
            raise UsageError("two starts name different users or passwords for one origin")
        secrets.save()
        with lpm.importing(job):
            added = lpm.crawls.add_starts(job, begun.starts, lpm.now())
            lpm.imports.close(job, lpm.now())
    return job, added


class _Beginning:
    """Gathers the starts of a crawl and the hosts in its scope."""

    def __init__(self, known: Sites, sitemap: str | None, rows: list[Row]) -> None:
        self._known, self._sitemap, self._rows = known, sitemap, rows
        self.name = ""
        self.starts: list[tuple[Link, Row]] = []
        self.hosts: list[str] = []
        self.credentials: list[tuple[str, str]] = []

    def add(self, text: str, subdomains: bool) -> None:
        """Add the starts of a URL or of a site."""
        site = self._known.named(text)
        if site:
            self._add_site(site)
            return
        try:
            address = urls.parse(text)
        except UrlError as error:
            raise UsageError(self._neither(text, error)) from None
        if secret := urls.credentials(text):
            self.credentials.append(secret)
        _, authority, host, _, _ = urls.split(address.url)
        self.name = self.name or host
        self.hosts.append(authority)
        if subdomains:
            self.hosts += [authority, f"*.{host.removeprefix('www.')}"]
        self._add(address.url, self._sitemap or "include", ())

    def _add_site(self, site: Site) -> None:
        if not site.start and not site.sitemaps:
            raise UsageError(f"the site {site.name} names neither start nor sitemaps in its file")
        self.name = self.name or site.name
        self.hosts += [host if host.startswith("*.") else f"{host}:*" for host in site.hosts]
        mode = self._sitemap or ("include" if site.sitemaps else "skip")
        for start in site.start:
            if start.form:
                self._add_form(site, start.url, start.form)
            else:
                self._add(start.url, mode, site.sitemaps)
        for url in site.sitemaps:
            self._insert(url, Role.SITEMAP)

    def _add(self, url: str, sitemap: str, listed: tuple[str, ...]) -> None:
        if sitemap != "only":
            self._insert(url, Role.START)
        if sitemap != "skip" and not listed:
            self._insert(f"{origin_of(url)}/robots.txt", Role.SITEMAP)

    def _add_form(self, site: Site, url: str, form: Form) -> None:
        """Add a form, once for each row of the input if its values are columns of it."""
        rows: list[Row] = [{}]
        if form.columns:
            rows = self._rows
            if not rows:
                needed = f"a form of the site {site.name} needs the columns"
                raise UsageError(f"{needed} {', '.join(form.columns)}: give them with --rows FILE")
        for number, row in enumerate(rows, 1):
            values = {str(name).strip().lower(): value for name, value in row.items()}
            try:
                body = start_task(form, values.get).packed()
            except ValueError as error:
                raise UsageError(f"row {number} of the input: {error}") from None
            address = urls.parse(url)
            link = Link(address=address, role=Role.START, loopback=True, method="FORM", body=body)
            self.starts.append((link, row))

    def _insert(self, url: str, role: Role) -> None:
        link = Link(address=urls.parse(url), role=role, loopback=True)
        self.starts.append((link, {}))

    def _neither(self, text: str, error: UrlError) -> str:
        import difflib

        near = difflib.get_close_matches(text, self._known.names, n=1)
        hint = f"; did you mean the site {near[0]}?" if near else ""
        return f"{urls.without_credentials(text)[:200]!r} is no site, and no URL: {error}{hint}"
