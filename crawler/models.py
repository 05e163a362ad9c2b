"""The values that travel between the parts: tasks, pages, outcomes, jobs, counts."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec

from crawler.render_options import RenderOptions
from crawler.urls import Address, without_secrets

NO_DEADLINE = 9e15
"""Stored for a task without a deadline, so that ordering needs no special case."""

UNCHANGED = "unchanged"
"""The verdict on a page that has not changed since last time, by its server's word."""

QUEUES = ("urgent", "default")
"""The queues of tasks, the more urgent one first."""

HTTP, BROWSER = "http", "browser"
"""What a task may need to be fetched."""
NEEDS = (HTTP, BROWSER)
MESSAGE_QUEUES = (*QUEUES, BROWSER)
"""The queues of messages. That of browsers has those of all tasks that need one."""


class TaskStatus(StrEnum):
    """Where a task stands; the first two are open, the others final."""

    PENDING = "pending"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"
    EXPIRED = "expired"


class Role(StrEnum):
    """What a page is to the crawl that fetches it."""

    START = "start"
    """Given by the user."""
    INDEX = "index"
    """Its links are followed."""
    LISTING = "listing"
    """An item with a record; links on it are followed only by a rule that says so."""
    FILE = "file"
    """Stored; has no links."""
    SITEMAP = "sitemap"
    """A robots.txt or a sitemap: has links, and leaves no result."""


class JobStatus(StrEnum):
    """Where a job stands; `importing` keeps it from ending while its file is read."""

    IMPORTING = "importing"
    OPEN = "open"
    DONE = "done"


class RetryClass(StrEnum):
    """What to do about a fetch that gave no page."""

    SOON = "retry soon"
    LATER = "retry later"
    SLOW_DOWN = "slow the domain down"
    GIVE_UP = "give up"
    POISON = "poison"

    @property
    def tries_again(self) -> bool:
        """Whether the page is tried again while attempts are left."""
        return self not in (RetryClass.GIVE_UP, RetryClass.POISON)


HEADROOM = 0.97
"""The share of a rate that is used, so that late packets never exceed the rate in any window."""


class RateRule(msgspec.Struct, frozen=True, kw_only=True):
    """The limits on a domain: seconds between requests and requests at a time; 0 is no limit."""

    interval_s: float = 0.0
    at_a_time: int = 0

    @property
    def limited(self) -> bool:
        """Whether requests need a permit."""
        return bool(self.interval_s or self.at_a_time)

    @property
    def window_s(self) -> float:
        """The window in which the rate is counted: a second, a minute or an hour."""
        return next((each for each in (1.0, 60.0) if self.interval_s <= each), 3600.0)

    def __str__(self) -> str:
        parts = []
        if self.interval_s:
            unit = {1.0: "s", 60.0: "m", 3600.0: "h"}[self.window_s]
            parts.append(f"{self.window_s / self.interval_s:g}/{unit}")
        if self.at_a_time:
            parts.append(f"{self.at_a_time} at a time")
        return ", ".join(parts) or "no limit"


class Line(NamedTuple):
    """Where workers take tasks from: a queue, and what its tasks need."""

    queue: str
    needs: str = HTTP


class NewTask(msgspec.Struct, frozen=True, kw_only=True):
    """A URL to import, with all that came with it."""

    address: Address
    priority: int = 5
    parcel_id: str = ""
    line: int | None = None
    item: int = 1
    """Its number on its line: a JSON array may have all rows on one."""
    input: dict[str, Any] = {}
    external_id: str | None = None
    needs: str = HTTP


def encoded_input(given: dict[str, Any]) -> str | None:
    """Encode the other columns of a row, without user names and passwords in URLs."""
    if not given:
        return None
    encoded = msgspec.json.encode(given)
    if b"@" in encoded:
        encoded = msgspec.json.encode(without_secrets(given))
    return encoded.decode()


class PreviousPage(msgspec.Struct, frozen=True):
    """The last page of a URL: its validators, and what made its record."""

    etag: str | None
    last_modified: str | None
    site_version: str
    parser_version: str
    task: int
    final_url: str
    scraped_at: float
    is_stored: bool
    """Whether its bytes were kept, so that its links can be read again."""
    listing: "ListingState | None" = None
    """For a listing in a crawl that fetches it again only after a while."""


class ListingState(msgspec.Struct, frozen=True):
    """When the page of a listing was fetched last, and how many fetches have changed nothing."""

    fetched_at: float
    unchanged: int


GET: Final = "GET"
"""The method of tasks that fetch a page."""
FORM: Final = "FORM"
"""The method of tasks that submit the form of a page; their body says how."""
SITEMAP: Final = "SITEMAP"
"""The method of sitemaps: a page may link to one, and is another task then."""
LINKS: Final = "LINKS"
"""The method of tasks of a crawl that only read the links of a stored page again; their body is the
number of the page's task."""
FILE: Final = "FILE"
"""The method of tasks of a crawl that fetch an image or a document which a record names; their body
is the name of the site whose file says so. A page may link to it, too, and is another task then."""
Method = Literal["GET", "FORM", "SITEMAP", "LINKS", "FILE"]
METHODS: tuple[str, ...] = get_args(Method)
"""Every method that a task can have."""
MAX_CRAWL_PAGES = 100_000
"""Pages of a crawl that names no other limit."""


class CrawlOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a crawl begins with, and which links it follows."""

    starts: tuple[str, ...]
    """URLs and names of sites, as they were given."""
    hosts: tuple[str, ...]
    """The hosts in scope, with their port if it is not the scheme's; `*.` covers all below."""
    origins: tuple[str, ...] = ()
    """The origins of the starts: links there may reach loopback if their start may."""
    include: tuple[str, ...] = ()
    """Regular expressions: only matching links are followed."""
    exclude: tuple[str, ...] = ()
    on_path: bool = False
    """Whether both are searched in the path of a URL only."""
    below: str = ""
    """Only paths that begin with this one are followed."""
    depth: int | None = None
    """Maximum links between a start and a page."""
    limit: int = MAX_CRAWL_PAGES
    """Maximum tasks; 0 is no limit."""
    sitemap: Literal["include", "skip", "only"] = "include"
    site: str = ""
    """The name of the site, for the crawl of one site by its name."""
    whole: bool = False
    """Whether it goes everywhere on the site: what it does not find is gone."""
    recrawl: bool = False
    """Whether listings that have not changed for long are fetched less often."""

    @property
    def subdomains(self) -> bool:
        """Whether links to hosts below those of the starts are followed."""
        names = {host.removeprefix("*.") for host in self.hosts if host.startswith("*.")}
        return any(host.partition(":")[0].removeprefix("www.") in names for host in self.hosts)


Fetcher = Literal["http", "browser", "auto"]
"""What fetches a page; `auto` is HTTP, and a browser for pages that need one."""


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a job's pages are fetched, apart from its secrets."""

    rate: str | None = None
    ignore_robots: bool = False
    url_column: str | None = None
    """The column with the URLs, if it is not `url`."""
    crawl: CrawlOptions | None = None
    """For a job that follows links."""
    fetcher: Fetcher | None = None
    """If it is not what the files of the sites say."""
    browser: RenderOptions | None = None
    """What a browser does with its pages; goes before what the files of the sites say."""

    @property
    def needs(self) -> str:
        """What its pages need, as far as the job itself says."""
        asks = self.browser is not None and self.browser.needs_browser and self.fetcher != HTTP
        return BROWSER if asks or self.fetcher == BROWSER else HTTP


RENDERED = "crawler-rendered"
"""A header of pages that a browser has rendered: whatever charset their server used, they are
UTF-8."""


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """A picture or a document that a browser has made of a page."""

    name: str
    """screenshot or pdf."""
    type: str
    body: bytes
    width: int | None = None
    height: int | None = None


class Rendering(msgspec.Struct, frozen=True, kw_only=True):
    """What else is known of a page that a browser has rendered."""

    response: "Page"
    """The response that it came from."""
    requests: int
    """Requests of the page for other things than itself."""
    received: int
    """Bytes over the wire, with those of the response."""
    refused: tuple[str, ...] = ()
    """Addresses that the page asked for and did not get, shortened."""
    captures: tuple[Capture, ...] = ()


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A task that a worker has claimed; `fence` is the number of the claim."""

    id: int
    task_id: str
    url: str
    domain: str
    queue: str
    priority: int
    fence: int
    attempts: int
    failures: int
    loopback: bool
    """Whether its URL may name loopback: it came from this machine's command line."""
    job_id: int | None
    job_size: int | None
    platform: str | None = None
    """The site that a Gateway's task names."""
    error_type: str | None = None
    """How its last attempt ended."""
    needs: str = HTTP
    role: Role | None = None
    """Only for tasks of a crawl."""
    depth: int = 0
    hops: int = 0
    """Redirects that led to it."""
    method: str = GET
    body: str = ""
    modified_at: float | None = None
    """When its page last changed, by a sitemap."""
    list_crc32: int | None = None
    """For a page of a list: checksum of the links on the page before it."""
    known: "PreviousPage | None" = None


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A request that a page of a crawl leads to."""

    address: Address
    role: Role
    depth: int = 0
    hops: int = 0
    loopback: bool = False
    method: str = GET
    body: str = ""
    modified_at: float | None = None
    list_crc32: int | None = None
    site: tuple[str, int] | None = None
    """Name and page limit of its site, if that has a limit."""


class NamedFile(msgspec.Struct, frozen=True):
    """An image or a document that a field of a record names."""

    field: str
    link: Link


class LeftOut(msgspec.Struct, frozen=True):
    """How many links a guard of a crawl has left out, and one of them."""

    guard: str
    links: int
    example: str

    def and_more(self, links: int = 1) -> "LeftOut":
        """Return the same for more links."""
        return LeftOut(self.guard, self.links + links, self.example)


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """An answer: `body` has no content coding, `raw` is as received, without transfer coding."""

    url: str
    final_url: str
    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    raw: bytes
    fetched_at: float
    fetch_s: float

    def header(self, name: str) -> str:
        """Return the first header of that lower-case name, or an empty string."""
        for key, value in self.headers:
            if key.lower() == name:
                return value
        return ""


class SentRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request that was made: its domain, start and duration."""

    domain: str
    began: float
    seconds: float


class RawLocation(msgspec.Struct, frozen=True, kw_only=True):
    """Where a page is stored in `raw/`."""

    segment: str
    offset: int
    length: int


class CountedFields(msgspec.Struct, frozen=True):
    """Which fields of a listing count as a change: some, or all but some."""

    only: tuple[str, ...] = ()
    """If empty: all."""
    ignore: tuple[str, ...] = ()

    def of(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return these fields of a record."""
        if self.only:
            return {name: record[name] for name in self.only if name in record}
        if self.ignore:
            return {name: value for name, value in record.items() if name not in self.ignore}
        return record


class SeenListing(msgspec.Struct, frozen=True, kw_only=True):
    """A listing as one page shows it."""

    key: str
    """What identifies it on its site."""
    record: bytes
    """Its record as JSON."""
    record_hash: str
    """Of the fields that count as a change, in canonical form."""
    counted: CountedFields = CountedFields()
    price: float | None = None
    currency: str | None = None
    sold: bool = False
    price_field: str = "price"
    """The field that the price is read from; an earlier record is read by the same rule."""
    sold_values: dict[str, tuple[str, ...]] = {}
    """By field: the values that mean sold."""
    is_item: bool = False
    """Whether it is one of several on the page, which is not its own then."""
    address: Address | None = None
    """Of an item, if it names one."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one attempt at a task ended; the store applies it only to the claim it belongs to."""

    task: Task
    status: TaskStatus
    """`pending` means: try again at `not_before`."""
    worker: str
    page: Page | None = None
    rendering: Rendering | None = None
    """If a browser has rendered the page."""
    record: bytes = b"{}"
    """The record as JSON, made within the page's budget."""
    parse_ms: float = 0.0
    parser: tuple[str, str] = ("none", "1")
    """Name and version of what made the record."""
    site: tuple[str, str] = ("default", "")
    """Name and version of its configuration."""
    verdict: str | None = None
    evidence: tuple[str, ...] = ()
    """What the verdict rests on."""
    invalid: tuple[str, ...] = ()
    """Why its record is invalid."""
    quarantine: bool = False
    """Whether the page is kept apart from the good ones."""
    error_type: str | None = None
    error_message: str | None = None
    retry: RetryClass | None = None
    """What to do about a failure."""
    not_before: float = 0.0
    block: str = ""
    """The kind of block that the domain's circuit breaker counts, if any."""
    retry_after_s: float = 0.0
    """How long the server asks to be left alone."""
    charge: bool = True
    """Whether a failure counts; not if a stop interrupted it or its domain must wait."""
    shortage: bool = False
    """Whether this process or machine lacked something: then no attempt is counted."""
    sent: tuple[SentRequest, ...] = ()
    """The requests that were made; without any, no attempt is counted."""
    rule: RateRule = RateRule()
    """The limits that these requests kept."""
    fetcher: Fetcher = "http"
    """What fetches the task's page, by its job or its site."""
    needs: str | None = None
    """What the task needs from now on, where that is not what it needed before."""
    learned: bool | None = None
    """Whether pages like this one need a browser, if that has turned out."""
    crawl: CrawlOptions | None = None
    """Of the crawl that the task belongs to."""
    links: tuple[Link, ...] = ()
    """What the crawl follows from here; stored together with the end of the task."""
    files: tuple[NamedFile, ...] = ()
    """The files that the record names; each becomes a task, and is linked from the result."""
    left_out: tuple[LeftOut, ...] = ()
    """What guards left out."""
    listings: tuple[SeenListing, ...] = ()
    """What the site's key identifies on the page."""


class Imported(msgspec.Struct, frozen=True):
    """How many tasks of a batch were new, and how many known."""

    accepted: int
    known: int


class TaskCounts(msgspec.Struct, frozen=True):
    """The counts of a job or the whole ledger; `accepted` is the sum of the six states."""

    accepted: int = 0
    pending: int = 0
    processing: int = 0
    completed: int = 0
    failed: int = 0
    skipped: int = 0
    expired: int = 0
    results: int = 0
    unsynced: int = 0
    synced: int = 0

    @property
    def open(self) -> int:
        """Tasks that are not in a final state yet."""
        return self.pending + self.processing

    @property
    def by_state(self) -> dict[str, int]:
        """The count of each of the six states."""
        return {str(state): getattr(self, state) for state in TaskStatus}


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Many tasks started together."""

    id: int
    name: str
    status: JobStatus
    queue: str
    source_file: str | None
    created_at: float
    completed_at: float | None
    deadline: float | None = None
    hold: str | None = None
    """`paused` or `cancelled`: nothing more is claimed; `resuming`: it is about to go on."""
    source: str = "file"
    """Where its tasks came from."""
    options: JobOptions = JobOptions()

    @property
    def of_gateway(self) -> bool:
        """Whether it holds a Gateway's tasks: then it stays open while an agent runs."""
        return self.source == "gateway"

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled: its file, imported again, is another job."""
        return self.hold == "cancelled"

    @property
    def options_lost(self) -> bool:
        """Whether it is a crawl that no longer knows which links it follows."""
        is_open = self.status is not JobStatus.DONE and not self.cancelled
        return is_open and self.source == "crawl" and self.options.crawl is None

    @property
    def incomplete(self) -> bool:
        """Whether its input is still being read, or reading was interrupted."""
        return self.status is JobStatus.IMPORTING and not self.of_gateway

    @property
    def state(self) -> str:
        """Its status, or what holds it up."""
        if self.cancelled or (self.hold and self.status is not JobStatus.DONE):
            return str(self.hold)
        if self.of_gateway and self.status is JobStatus.IMPORTING:
            return JobStatus.OPEN
        return self.status


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that keeps tasks from going on."""

    kind: str
    """disk, trouble, worker, browser, stopped, redis, clock, damage, paused, circuit, retry_after,
    robots, rate, retry, page."""
    what: str
    until: float | None = None
    """When it ends, if known."""
    command: str = ""
    """The command that changes it, if any."""
    effect: str = ""
    """What the command does, or what happens by itself."""
    tasks: int = 0
    domain: str = ""
    stops: bool = True
    """Whether it stops everything that was asked about, or only a part."""


class MissingField(msgspec.Struct, frozen=True):
    """A required field that some of the parsed pages lack."""

    name: str
    pages: int
    of: int


class CrawlProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a crawl is."""

    found: int
    """Tasks, with sitemaps and redirects."""
    fetched: int
    failed: int
    guards: dict[str, int]
    """Links that each guard acted on."""

    def __str__(self) -> str:
        line = f"{self.found:,} found, {self.fetched:,} fetched, {self.failed:,} failed"
        guards = ", ".join(f"{name} {links:,}" for name, links in self.guards.items())
        return f"{line}; guards: {guards}" if guards else line


class CrawlReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a crawl found."""

    roles: dict[str, dict[str, int]]
    """Tasks by role and state."""
    pages: int
    """Tasks that are pages: no sitemaps, no redirects, and no files that records name."""
    bad: int
    """Tasks that should have brought a page and did not."""
    left_out: list[LeftOut]
    """Links that guards left out, by guard."""
    files: int = 0
    """Tasks for files that records name; they are no pages."""
    files_collected: int = 0


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What became of every row of a job; `problems` lists what does not add up."""

    job: str
    status: str
    rows: int
    """All rows of the input: new tasks, known tasks and rejected rows."""
    known: int
    rejected: int
    books: TaskCounts
    reasons: dict[str, dict[str, int]]
    problems: list[str]
    accepted: list[str]
    """Missing rows that were accepted by an explicit command."""
    missing_fields: list[MissingField]
    """Required fields that pages lack, most often missing first."""
    invalid: int
    """Records that are invalid."""
    invalid_reasons: dict[str, int]
    """How many records have each reason, the most frequent first."""
    unchanged: int
    """Completed tasks whose page is the same as when it was last fetched."""
    checksum: str
    """sha256 over URL, parcel, state, page hash and record of every task, in import order."""
    crawl: CrawlReport | None = None
