"""Begins crawls: URLs and names of sites become a job with its starts and sitemaps."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec

from crawler import sites, urls
from crawler.bulk import INPUT, Secrets, rows, source_name
from crawler.config import Settings
from crawler.db.dispatch import MAX_TASKS_PER_MESSAGE
from crawler.db.imports import RejectedRow
from crawler.db.links import Start
from crawler.db.site_jobs import SiteCall
from crawler.errors import InputError, UrlError, UsageError
from crawler.fetch import session as sessions
from crawler.fetch.session import Session, read_secrets
from crawler.logs import counted
from crawler.lpm import LocalPersistenceManager
from crawler.models import FORM, SITEMAP, CrawlOptions, Job, JobOptions, Link, Role
from crawler.scraping.follow import origin_of
from crawler.scraping.jobs import chord_id
from crawler.sites import Site, Sites
from crawler.sites.crawlfile import Form
from crawler.sites.forms import FormTask, start_task
from crawler.sites.selectors import pattern

_NARROWING = ("include", "exclude", "depth", "sitemap")
"""Options without which the crawl of a site finds all of its pages."""
COMMIT_ROWS = 5_000
"""Rows of a file that are stored together."""


class RowForm(NamedTuple):
    """A form that is submitted once for each row of a file."""

    address: urls.Address
    form: Form
    site: tuple[str, int] | None
    """Name and page limit of its site, if that has a limit."""


class Plan(msgspec.Struct, frozen=True):
    """What a crawl begins with."""

    options: JobOptions
    starts: list[Start]
    row_forms: list[RowForm]
    name: str
    credentials: list[tuple[str, str]]
    """User names and passwords of the URLs, by origin."""
    secret_files: dict[str, str]
    """By site: the file that its login takes its secrets from."""
    site_limits: dict[str, int | None]
    """Maximum pages of each site."""
    known_by: Sequence[str]
    """What the same starts have in common, however they are written."""

    def key(self, checksum: str = "") -> str:
        """What the job is known by: the same starts continue it while it is open."""
        digest = sha256(msgspec.json.encode([sorted(self.known_by), checksum])).hexdigest()
        return f"crawl:{digest}"


class Begun(NamedTuple):
    """The job of a crawl: how many starts are new, and where its bad rows are."""

    job: Job
    added: int
    note: str = ""
    """What is left out, and why."""
    rejected: int = 0
    rejects_file: Path | None = None
    continued: bool = False
    """Whether the job was there before."""


def plan(
    known: Sites, given: Sequence[str], options: JobOptions, *, subdomains: bool, **scope: Any
) -> Plan:
    """Find out where a crawl begins and how far it goes; raises `UsageError` for what is neither a
    URL nor the name of a site."""
    begun = _Beginning(known, scope["sitemap"])
    for text in given:
        begun.add(text, subdomains)
    return _planned(begun, given, options, scope)


def plan_site(
    known: Sites,
    name: str,
    given: Sequence[str] = (),
    limit: int | None = None,
    options: JobOptions | None = None,
    recrawl: bool = False,
) -> Plan:
    """Find out where the crawl of one site begins: at these URLs, or at all that its files name.

    With `recrawl`, listings that have not changed for long are fetched less often.

    Raises `UsageError` for an unknown site, and for a URL of another one. Only what the site's own
    files name may reach loopback.
    """
    begun = _Beginning(known, None)
    site = known.find(name)
    # By their keys: however a URL is written, it is the same start.
    keyed = {_page_of(site, text, Role.START).link.address.key: text for text in given}
    given = list(keyed.values())
    if not given or keyed.keys() == {urls.parse(url).key for url in site.start_urls}:
        begun.add_site(site)
        given = ()
    else:
        begun.add_pages(site, given)
    scope: dict[str, Any] = {"sitemap": None, "recrawl": recrawl}
    if limit is not None:
        scope["limit"] = limit
    planned = _planned(begun, (site.name, *given), options or JobOptions(), scope)
    known_by = [site.name]
    if given:
        known_by += [key.hex() for key in keyed]
    return msgspec.structs.replace(planned, known_by=known_by)


def _planned(
    begun: "_Beginning", given: Sequence[str], options: JobOptions, scope: dict[str, Any]
) -> Plan:
    addresses = [start.link.address for start in begun.starts]
    addresses += [each.address for each in begun.row_forms]
    crawl = CrawlOptions(
        whole=len(given) == 1
        and begun.is_whole
        and all(scope.get(name) in (None, ()) for name in _NARROWING),
        starts=tuple(map(urls.without_credentials, given)),
        hosts=tuple(dict.fromkeys(begun.hosts)),
        origins=tuple(dict.fromkeys(origin_of(address.url) for address in addresses)),
        site=begun.only_site,
        **{**scope, "sitemap": scope["sitemap"] or "include"},
    )
    for text in (*crawl.include, *crawl.exclude):
        try:
            pattern(text)
        except ValueError as error:
            raise UsageError(f"{text!r}: {error}") from None
    return Plan(
        msgspec.structs.replace(options, crawl=crawl),
        begun.starts,
        begun.row_forms,
        begun.name,
        begun.credentials,
        begun.secret_files,
        begun.site_limits,
        known_by=crawl.starts,
    )


def without_loopback(begun: Plan) -> Plan:
    """Return the plan of a crawl that comes over the network: it may not reach loopback."""
    starts = [
        msgspec.structs.replace(start, link=msgspec.structs.replace(start.link, loopback=False))
        for start in begun.starts
    ]
    return msgspec.structs.replace(begun, starts=starts)


def check(settings: Settings, begun: Plan, session: Session | None = None) -> str:
    """See that a crawl can begin without rows; returns what it leaves out, and why.

    Raises `UsageError` or `InputError`; stores nothing.
    """
    note = _left_out(begun, None)
    _with_secrets(settings, begun, session)
    return note


def begin(
    settings: Settings,
    begun: Plan,
    *,
    rows_file: Path | None = None,
    job_name: str | None = None,
    new_name: str | None = None,
    queue: str = "default",
    deadline: float | None = None,
    session: Session | None = None,
) -> Begun:
    """Open the job of a crawl, or continue it while it is open.

    `job_name` names the job to continue, or else to begin. `new_name` only names a new one: what
    continues it are its starts.
    """
    note = _left_out(begun, rows_file)
    checksum, source_file, batches = "", None, iter(list[_Batch]())
    if rows_file:
        checksum, source_file = rows.checksum(rows_file), source_name(rows_file)
        batches = _batches(rows_file, begun)
        batches = chain([next(batches)], batches)
    key = begun.key(checksum)
    if job_name:
        key = f"name:{job_name}"
    session = _with_secrets(settings, begun, session)
    with LocalPersistenceManager(settings.data_dir) as lpm:
        ended = lpm.jobs.unreported(key)
        if ended and not rows_file and lpm.crawls.has_starts(ended, begun.starts):
            return Begun(ended, 0, note, continued=True)
        paused = lpm.crawls.find_paused(key, job_name, begun.starts)
        now = lpm.now()
        job = lpm.imports.open_job(
            key=key,
            name=job_name or new_name or begun.name,
            queue=queue,
            source="crawl",
            source_file=source_file,
            batch_size=min(settings.chunk_size, MAX_TASKS_PER_MESSAGE),
            now=now,
            watched=True,
            deadline=deadline,
            options=begun.options,
            checksum=checksum,
        )
        if job.id == paused:
            lpm.jobs.release(job)
        lpm.jobs.raise_queue(job, queue)
        _save_secrets(lpm, job, begun, session)
        with lpm.importing(job):
            added = lpm.crawls.add_starts(job, begun.starts, lpm.now())
            if pages := lpm.crawls.bring_back(job, begun.site_limits, lpm.now()):
                told = f"a limit is higher now: {counted(pages, 'page')} will be read again, from"
                note = "; ".join(
                    filter(None, (note, f"{told} the store, for links left out before"))
                )
            stored = Begun(job, added)
            if rows_file:
                stored = _add_rows(lpm, job, batches, rows_file, checksum, added)
            else:
                lpm.imports.close(job, lpm.now())
            return stored._replace(note=note, continued=job.created_at != now)


def begin_site(
    settings: Settings, begun: Plan, call: SiteCall, name: str, queue: str = "default"
) -> Begun:
    """Begin the crawl of a site for a call, or continue it while it is open.

    Safe to repeat: a call that was made before finds the same job, also one that has ended.
    """
    note = _left_out(begun, None)
    with LocalPersistenceManager(settings.data_dir) as lpm, lpm.errors():
        key = begun.key()
        job, added = _open_for_call(settings, lpm, begun, call, key, name, queue)
    return Begun(job, added, note)


def _open_for_call(
    settings: Settings,
    lpm: LocalPersistenceManager,
    begun: Plan,
    call: SiteCall,
    key: str,
    name: str,
    queue: str,
) -> tuple[Job, int]:
    session = _with_secrets(settings, begun, None)
    return lpm.site_jobs.begin(
        call,
        begun.starts,
        lpm.now(),
        key=key,
        name=name,
        queue=queue,
        batch_size=min(settings.chunk_size, MAX_TASKS_PER_MESSAGE),
        options=begun.options,
        prepare=lambda job: _save_missing_secrets(lpm, job, begun, session),
    )


def site_call(call_id: str, site: str, group_id: str | None = None) -> SiteCall:
    """Return the call of a site, under the name that the site's files have."""
    return SiteCall(call_id, site.strip().lower(), group_id)


def job_name(call: SiteCall) -> str:
    """Return the name of the job that a call begins."""
    return f"scrape_{call.site}_{sha256(call.id.encode()).hexdigest()[:8]}"


def call_site(
    settings: Settings,
    call: SiteCall,
    given: Sequence[str] = (),
    limit: int | None = None,
    queue: str = "default",
    known: Sites | None = None,
) -> dict[str, Any]:
    """Begin the crawl of a site for a call; returns what `scrape_site_task` does.

    `known` are the sites, if they are loaded already.
    """
    known = known or sites.load(settings.config_dir, settings.rate)
    plan = plan_site(known, call.site, given, limit)
    job = begin_site(settings, plan, call, job_name(call), queue).job
    with LocalPersistenceManager(settings.data_dir) as lpm, lpm.errors():
        total = lpm.counts.progress(job).accepted
        callback = chord_id(lpm.store.id, job.name)
    return {"job_id": job.name, "chord_id": callback, "total_urls": total}


def add_chunk(
    settings: Settings, given: Sequence[str], job_id: str, site_name: str
) -> list[dict[str, Any]]:
    """Add listings of a site to a job; returns what `scrape_chunk_task` does."""
    known = sites.load(settings.config_dir, settings.rate)
    site = known.find(site_name)
    pages: dict[str, Start] = {}
    found: list[dict[str, Any]] = []
    for url in given:
        shown = urls.without_credentials(url)[:2000]
        try:
            pages[url] = _page_of(site, url, Role.LISTING)
        except UsageError as error:
            found.append({"url": shown, "error": str(error)})
        else:
            found.append({"url": shown})
    plan = _planned(_Beginning(known, None).of(site), (site.name,), JobOptions(), {"sitemap": None})
    with LocalPersistenceManager(settings.data_dir) as lpm, lpm.errors():
        job = _job_of_chunk(settings, lpm, plan, job_id, site.name)
        task_ids = dict(
            zip(pages, lpm.site_jobs.add_pages(job, pages.values(), lpm.now()), strict=True)
        )
    for url, each in zip(given, found, strict=True):
        if url in task_ids:
            each["task_id"] = task_ids[url]
    return found


def _job_of_chunk(
    settings: Settings, lpm: LocalPersistenceManager, plan: Plan, job_id: str, site: str
) -> Job:
    """The job of that name; begun now if there is none."""
    try:
        job = lpm.jobs.named(job_id)
    except UsageError:
        call = SiteCall(f"chunk:{job_id}", site)
        job = _open_for_call(settings, lpm, plan, call, f"name:{job_id}", job_id, "default")[0]
    crawl = job.options.crawl
    if not crawl:
        raise UsageError(f"job {job.name} is no crawl: it takes no pages of a site")
    if job.cancelled:
        raise UsageError(f"job {job.name} was cancelled")
    if crawl.site != site:
        raise UsageError(f"job {job.name} is no crawl of the site {site}")
    return job


def session_for(settings: Settings, site: Site, session: Session | None) -> Session | None:
    """Add the secrets of a site's login to what is sent, unless the user has given others."""
    return _add_secrets(settings, _secret_files(site), session)


def _with_secrets(settings: Settings, begun: Plan, session: Session | None) -> Session | None:
    return _add_secrets(settings, begun.secret_files, session)


def _secret_files(site: Site) -> dict[str, str]:
    if site.login and site.login.secrets:
        return {site.name: site.login.secrets}
    return {}


def _add_secrets(
    settings: Settings, files: Mapping[str, str], session: Session | None
) -> Session | None:
    if not files or (session and session.secrets):
        return session
    found: dict[str, str] = {}
    for site, name in files.items():
        found |= _secrets_of(site, settings.config_dir / name)
    return msgspec.structs.replace(session or Session(), secrets=found)


def _secrets_of(site: str, path: Path) -> dict[str, str]:
    try:
        return read_secrets(path)
    except InputError as error:
        reason = f"{error.reason}; login.secrets of the site {site} names this file"
        raise InputError(error.path, reason, error.line) from None


def _save_secrets(
    lpm: LocalPersistenceManager, job: Job, begun: Plan, session: Session | None
) -> None:
    secrets = Secrets(lpm.folder / "sessions", job.name, session)
    if not all(map(secrets.take, begun.credentials)):
        raise UsageError("two starts name different users or passwords for one origin")
    secrets.save()


def _save_missing_secrets(
    lpm: LocalPersistenceManager, job: Job, begun: Plan, session: Session | None
) -> None:
    """Save secrets for a job that may be open already: what its command gave it stays."""
    kept = sessions.load(lpm.folder / "sessions", job.name)
    if kept and session:
        session = msgspec.structs.replace(kept, secrets=kept.secrets or session.secrets)
    _save_secrets(lpm, job, begun, session)


def _left_out(begun: Plan, rows_file: Path | None) -> str:
    """Say which forms are left out because no file has values for them.

    Raises `UsageError` if nothing else is left to begin with.
    """
    columns = ", ".join(dict.fromkeys(_columns(begun)))
    if rows_file and not columns:
        raise UsageError("--rows: no form of these sites takes a value from a column")
    if rows_file or not columns:
        return ""
    forms = ", ".join(dict.fromkeys(each.address.url for each in begun.row_forms))
    needed = f"needs the columns {columns}: give them with crawl --rows FILE"
    note = f"the form at {forms} is left out; it {needed}"
    if not begun.starts:
        raise UsageError(note)
    return note


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
            _form_link(each.address, start_task(each.form, item.fields.get), each.site),
            item.fields,
            item.line,
            item.item,
            priority,
        )
        for each in forms
    ]


def _form_link(address: urls.Address, task: FormTask, site: tuple[str, int] | None) -> Link:
    return Link(
        address=address,
        role=Role.START,
        loopback=True,
        method=FORM,
        body=task.packed(),
        site=site,
    )


def _page_of(site: Site, text: str, role: Role) -> Start:
    """Make a start of a URL that a program names. It may reach loopback where the site's own
    files do."""
    try:
        address = urls.parse(text)
    except UrlError as error:
        raise UsageError(f"{urls.without_credentials(text)[:200]!r}: {error}") from None
    if not site.covers(address.url):
        hosts = ", ".join(site.hosts)
        raise UsageError(f"{address.url} is no page of the site {site.name} ({hosts})")
    loopback = origin_of(address.url) in map(origin_of, site.start_urls)
    return Start(Link(address=address, role=role, loopback=loopback))


class _Beginning:
    """Gathers the starts of a crawl and the hosts in its scope."""

    def __init__(self, known: Sites, sitemap: str | None) -> None:
        self._known, self._sitemap = known, sitemap
        self.name = ""
        self.starts: list[Start] = []
        self.row_forms: list[RowForm] = []
        self.hosts: list[str] = []
        self.credentials: list[tuple[str, str]] = []
        self.secret_files: dict[str, str] = {}
        self._names: list[str] = []
        """Of each start that was given, the name of its site, or nothing for a URL."""

    @property
    def site_limits(self) -> dict[str, int | None]:
        """Maximum pages of each site that there is: links may lead to any of them."""
        return {name: self._known.find(name).limit for name in self._known.names}

    @property
    def only_site(self) -> str:
        """The name of the site, if a site alone was given."""
        return self._names[0] if len(self._names) == 1 else ""

    @property
    def is_whole(self) -> bool:
        """Whether a site alone was given, and everything on it can be found without rows."""
        return bool(self.only_site and self.starts and not self.row_forms)

    def add(self, text: str, subdomains: bool) -> None:
        """Add the starts of a URL or of a site."""
        site = self._known.named(text)
        if site:
            self.add_site(site)
            return
        self._names.append("")
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

    def add_site(self, site: Site) -> None:
        """Add all starts and sitemaps of a site."""
        if not site.start_urls:
            raise UsageError(f"the site {site.name} names neither start nor sitemaps in its file")
        self.of(site)
        mode = self._sitemap or ("include" if site.sitemaps else "skip")
        for start in site.start:
            if start.form and mode != "only":
                self._add_form(start.url, start.form)
            else:
                self._add(start.url, mode, site.sitemaps)
        for url in site.sitemaps:
            self._insert(url, Role.SITEMAP)

    def add_pages(self, site: Site, given: Iterable[str]) -> None:
        """Add some starts of a site: those of its files as they are there, others as plain
        pages."""
        self.of(site)
        forms = {start.url: start.form for start in site.start}
        for text in given:
            page = _page_of(site, text, Role.START)
            url = page.link.address.url
            form = forms.get(url)
            if secret := urls.credentials(text):
                self.credentials.append(secret)
            if form:
                self._add_form(url, form)
            elif url in site.sitemaps:
                self._insert(url, Role.SITEMAP)
            else:
                self.starts.append(page)

    def of(self, site: Site) -> Self:
        """Put a site into the scope, without its starts."""
        self._names.append(site.name)
        self.name = self.name or site.name
        self.hosts += [host if host.startswith("*.") else f"{host}:*" for host in site.hosts]
        self.secret_files |= _secret_files(site)
        return self

    def _add(self, url: str, sitemap: str, listed: tuple[str, ...]) -> None:
        if sitemap != "only":
            self._insert(url, Role.START)
        if sitemap != "skip" and not listed:
            self._insert(f"{origin_of(url)}/robots.txt", Role.SITEMAP)

    def _add_form(self, url: str, form: Form) -> None:
        """Add a form: now, or for each row of a file if its values are columns of it."""
        address, site = urls.parse(url), self._limit_of(url)
        if form.columns:
            self.row_forms.append(RowForm(address, form, site))
        else:
            task = start_task(form, lambda column: None)
            self.starts.append(Start(_form_link(address, task, site)))

    def _insert(self, url: str, role: Role) -> None:
        address = urls.parse(url)
        if role is Role.SITEMAP:
            link = Link(address=address, role=role, loopback=True, method=SITEMAP)
        else:
            link = Link(address=address, role=role, loopback=True, site=self._limit_of(url))
        self.starts.append(Start(link))

    def _limit_of(self, url: str) -> tuple[str, int] | None:
        """Return name and page limit of a URL's site, if that has a limit: starts count, too."""
        site = self._known.of(url)
        return (site.name, site.limit) if site.limit else None

    def _neither(self, text: str, error: UrlError) -> str:
        import difflib

        shown = urls.without_credentials(text)[:200]
        if near := difflib.get_close_matches(text, self._known.names, n=1):
            return f"{shown!r} is no site, and no URL; did you mean the site {near[0]}?"
        return f"{shown!r} is no site, and no URL: {error}"
