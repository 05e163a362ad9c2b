"""Begins crawls: URLs and names of sites become a job with its starts and sitemaps."""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from crawler import urls
from crawler.bulk import INPUT, Secrets, rows, source_name
from crawler.config import Settings
from crawler.db.imports import RejectedRow
from crawler.db.links import Start
from crawler.errors import InputError, UrlError, UsageError
from crawler.fetch.session import Session
from crawler.lpm import LocalPersistenceManager
from crawler.models import CrawlOptions, Job, JobOptions, Link, Role
from crawler.scraping.follow import SITEMAP, origin_of
from crawler.sites import Site, Sites
from crawler.sites.crawlfile import Form
from crawler.sites.forms import FormTask, start_task
from crawler.sites.selectors import pattern

COMMIT_ROWS = 5_000
"""Rows of a file that are stored together."""


class RowForm(NamedTuple):
    """A form that is submitted once for each row of a file."""

    address: urls.Address
    form: Form


class Plan(msgspec.Struct, frozen=True):
    """What a crawl begins with."""

    options: JobOptions
    starts: list[Start]
    row_forms: list[RowForm]
    name: str
    credentials: list[tuple[str, str]]
    """User names and passwords of the URLs, by origin."""


class Begun(NamedTuple):
    """The job of a crawl: how many starts are new, and where its bad rows are."""

    job: Job
    added: int
    note: str = ""
    """What is left out, and why."""
    rejected: int = 0
    rejects_file: Path | None = None


def plan(
    known: Sites, given: Sequence[str], options: JobOptions, *, subdomains: bool, **scope: Any
) -> Plan:
    """Find out where a crawl begins and how far it goes; raises `UsageError` for what is neither a
    URL nor the name of a site."""
    begun = _Beginning(known, scope["sitemap"])
    for text in given:
        begun.add(text, subdomains)
    addresses = [start.link.address for start in begun.starts]
    addresses += [each.address for each in begun.row_forms]
    crawl = CrawlOptions(
        starts=tuple(map(urls.without_credentials, given)),
        hosts=tuple(dict.fromkeys(begun.hosts)),
        origins=tuple(dict.fromkeys(origin_of(address.url) for address in addresses)),
        **{**scope, "sitemap": scope["sitemap"] or "include"},
    )
    for text in (*crawl.include, *crawl.exclude):
        try:
            pattern(text)
        except ValueError as error:
            raise UsageError(f"{text!r}: {error}") from None
    how = msgspec.structs.replace(options, crawl=crawl)
    return Plan(how, begun.starts, begun.row_forms, begun.name, begun.credentials)


def begin(
    settings: Settings,
    begun: Plan,
    *,
    rows_file: Path | None = None,
    job_name: str | None = None,
    queue: str = "default",
    deadline: float | None = None,
    session: Session | None = None,
) -> Begun:
    """Open the job of a crawl, or continue it while it is open."""
    note = _missing_rows(begun, rows_file)
    if note and not begun.starts:
        raise UsageError(note)
    crawl = begun.options.crawl
    assert crawl is not None
    checksum, source_file, batches = "", None, iter(list[_Batch]())
    if rows_file:
        checksum, source_file = rows.checksum(rows_file), source_name(rows_file)
        batches = _batches(rows_file, begun)
        batches = chain([next(batches)], batches)
    digest = sha256(msgspec.json.encode([sorted(crawl.starts), checksum])).hexdigest()
    key = f"name:{job_name}" if job_name else f"crawl:{digest}:{queue}"
    with LocalPersistenceManager(settings.data_dir) as lpm:
        paused = lpm.crawls.find_paused(key, job_name, begun.starts)
        job = lpm.imports.open_job(
            key=key,
            name=job_name or begun.name,
            queue=queue,
            source="crawl",
            source_file=source_file,
            batch_size=100,
            now=lpm.now(),
            watched=True,
            deadline=deadline,
            options=begun.options,
            checksum=checksum,
        )
        if job.id == paused:
            lpm.jobs.release(job)
        secrets = Secrets(lpm.folder / "sessions", job.name, session)
        if not all(map(secrets.take, begun.credentials)):
            raise UsageError("two starts name different users or passwords for one origin")
        secrets.save()
        with lpm.importing(job):
            added = lpm.crawls.add_starts(job, begun.starts, lpm.now())
            if not rows_file:
                lpm.imports.close(job, lpm.now())
                return Begun(job, added, note)
            return _add_rows(lpm, job, batches, rows_file, checksum, added)


def _missing_rows(begun: Plan, rows_file: Path | None) -> str:
    """Say which forms are left out because no file has values for them."""
    columns = ", ".join(dict.fromkeys(_columns(begun)))
    if rows_file and not columns:
        raise UsageError("--rows: no form of these sites takes a value from a column")
    if columns and not rows_file:
        forms = ", ".join(dict.fromkeys(each.address.url for each in begun.row_forms))
        needed = f"needs the columns {columns}: give them with --rows FILE"
        return f"the form at {forms} is left out; it {needed}"
    return ""


def _columns(begun: Plan) -> list[str]:
    return [column for each in begun.row_forms for column in each.form.columns]


class _Batch(NamedTuple):
    """Some rows of a file: the starts made of them, and those that none could be made of."""

    starts: list[Start]
    bad: list[rows.Reject]
    rows: int


def _batches(file: Path, begun: Plan) -> Iterator[_Batch]:
    """Read a file; raises `InputError` for one that cannot be used before anything is stored."""
    read = rows.read_fields(file, frozenset({*_columns(begun), "parcel_id", "priority"}))
    is_first = True
    while items := list(islice(read, COMMIT_ROWS)):
        batch = _Batch([], [], len(items))
        for item in items:
            if isinstance(item, rows.Reject):
                batch.bad.append(item)
                continue
            try:
                batch.starts.extend(_row_starts(item, begun.row_forms))
            except ValueError as error:
                batch.bad.append(rows.rejected(item, str(error)))
        if is_first and not batch.starts and len(items) < COMMIT_ROWS:
            first = batch.bad[0]
            raise InputError(str(file), f"no row of it can be used: {first.reason}", first.line)
        is_first = False
        yield batch


def _add_rows(
    lpm: LocalPersistenceManager,
    job: Job,
    batches: Iterable[_Batch],
    file: Path,
    checksum: str,
    added: int,
) -> Begun:
    """Submit each form once for each row; a bad row costs no good one."""
    number = lpm.imports.number_of(job, checksum)
    count = rejected = 0
    with rows.RejectsFile(file, lpm.folder / INPUT) as rejects:
        for batch in batches:
            for reject in batch.bad:
                rejects.add(reject)
            reasons = [
                RejectedRow(each.line, each.reason, each.text, each.item) for each in batch.bad
            ]
            lpm.imports.reject(job, reasons, number)
            added += lpm.crawls.add_starts(job, batch.starts, lpm.now(), source_name(file), number)
            count, rejected = count + batch.rows, rejected + len(batch.bad)
        lpm.imports.close(job, lpm.now(), checksum, count)
    return Begun(job, added, "", rejected, rejects.path if rejected else None)


def _row_starts(item: rows.Fields, forms: list[RowForm]) -> list[Start]:
    priority = rows.priority(item.fields.get("priority"))
    return [
        Start(
            _form_link(each.address, start_task(each.form, item.fields.get)),
            item.fields,
            item.line,
            item.item,
            priority,
        )
        for each in forms
    ]


def _form_link(address: urls.Address, task: FormTask) -> Link:
    return Link(address=address, role=Role.START, loopback=True, method="FORM", body=task.packed())


class _Beginning:
    """Gathers the starts of a crawl and the hosts in its scope."""

    def __init__(self, known: Sites, sitemap: str | None) -> None:
        self._known, self._sitemap = known, sitemap
        self.name = ""
        self.starts: list[Start] = []
        self.row_forms: list[RowForm] = []
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
        if subdomains and urls.is_public_suffix(host.removeprefix("www.")):
            owners = f"the hosts below {host.removeprefix('www.')} belong to different owners"
            raise UsageError(f"--subdomains: {owners}")
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
            if start.form and mode != "only":
                self._add_form(start.url, start.form)
            else:
                self._add(start.url, mode, site.sitemaps)
        for url in site.sitemaps:
            self._insert(url, Role.SITEMAP)

    def _add(self, url: str, sitemap: str, listed: tuple[str, ...]) -> None:
        if sitemap != "only":
            self._insert(url, Role.START)
        if sitemap != "skip" and not listed:
            self._insert(f"{origin_of(url)}/robots.txt", Role.SITEMAP)

    def _add_form(self, url: str, form: Form) -> None:
        """Add a form: now, or for each row of a file if its values are columns of it."""
        address = urls.parse(url)
        if form.columns:
            self.row_forms.append(RowForm(address, form))
        else:
            self.starts.append(Start(_form_link(address, start_task(form, lambda column: None))))

    def _insert(self, url: str, role: Role) -> None:
        method = SITEMAP if role is Role.SITEMAP else "GET"
        link = Link(address=urls.parse(url), role=role, loopback=True, method=method)
        self.starts.append(Start(link))

    def _neither(self, text: str, error: UrlError) -> str:
        import difflib

        near = difflib.get_close_matches(text, self._known.names, n=1)
        hint = f"; did you mean the site {near[0]}?" if near else ""
        return f"{urls.without_credentials(text)[:200]!r} is no site, and no URL: {error}{hint}"
