"""The nouns, as frozen values."""

from enum import StrEnum
from typing import Any

import msgspec

from crawler.urls import Address, without_secrets

NO_DEADLINE = 9e15
"""Stored for a task without one, so that ordering by deadline needs no special case."""

UNCHANGED = "unchanged"
"""The verdict on a page that the server says is the one that came last time."""

QUEUES = ("urgent", "default")
"""The queues, the more urgent one first."""


class TaskStatus(StrEnum):
    """Where a task stands; the first two are open, the others final."""

    PENDING = "pending"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"
    EXPIRED = "expired"


class JobStatus(StrEnum):
    """Where a job stands; it is `importing` while its file is being read, so that it cannot end too
    early."""

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


HEADROOM = 0.97
"""The share of a rate that is given out, so that late packets do not add up to more than the rate
in any window."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """The limits on a domain: seconds between requests, and requests at a time; 0 means no
    limit."""

    interval_s: float = 0.0
    at_a_time: int = 0

    @property
    def limited(self) -> bool:
        """Whether there is any limit, and so any need to ask for a permit."""
        return bool(self.interval_s or self.at_a_time)

    @property
    def window_s(self) -> float:
        """The window in which the rate is counted: a second, or for slow ones a minute or an
        hour."""
        return next((each for each in (1.0, 60.0) if self.interval_s <= each), 3600.0)

    def __str__(self) -> str:
        unit = {1.0: "s", 60.0: "m", 3600.0: "h"}[self.window_s]
        said = [f"{self.window_s / self.interval_s:g}/{unit}"] if self.interval_s else []
        said += [f"{self.at_a_time} at a time"] if self.at_a_time else []
        return ", ".join(said) or "no limit"


class NewTask(msgspec.Struct, frozen=True, kw_only=True):
    """What a door hands in: one URL and all that came with it."""

    address: Address
    priority: int = 5
    parcel_id: str = ""
    line: int | None = None
    item: int = 1
    """The how-many-eth row of its line it is: a JSON array may have all of them on one."""
    input: dict[str, Any] = {}
    external_id: str | None = None


def encoded_input(given: dict[str, Any]) -> str | None:
    """What came with a URL as the ledger keeps it: no user name or password of any URL in it."""
    encoded = msgspec.json.encode(given)
    if b"@" in encoded:
        encoded = msgspec.json.encode(without_secrets(given))
    return encoded.decode() if given else None


class Known(msgspec.Struct, frozen=True):
    """What the last page of a URL said about itself, and what its record was made with."""

    etag: str | None
    last_modified: str | None
    site_version: str
    parser_version: str
    task: int
    final_url: str


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a job's pages are asked for, beside its secrets."""

    rate: str | None = None
    ignore_robots: bool = False
    url_column: str | None = None
    """The column of its files that has the URLs, where that is not `url`."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A task as its worker holds it: `fence` is the number of this claim."""

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
    """Given on this machine's command line: its URL may name loopback."""
    job_id: int | None
    job_size: int | None
    platform: str | None = None
    """The site that a Gateway's task names."""
    error_type: str | None = None
    """How its last attempt ended."""
    known: "Known | None" = None


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """What came back: `body` is decoded (no content coding), `raw` is as received, without transfer
    coding."""

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
        """The first header of that name, which is given in lower case, or an empty string."""
        for key, value in self.headers:
            if key.lower() == name:
                return value
        return ""


class Sent(msgspec.Struct, frozen=True, array_like=True):
    """One request that was made: where to, when it began, how long it took."""

    domain: str
    began: float
    seconds: float


class Raw(msgspec.Struct, frozen=True, kw_only=True):
    """Where a page's raw record lies."""

    segment: str
    offset: int
    length: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one attempt at one task ended; the store applies it only to the claim it belongs to."""

    task: Task
    status: TaskStatus
    """`pending` means: try again, not before `not_before`."""
    worker: str
    page: Page | None = None
    record: bytes = b"{}"
    """The record as JSON: it is made where the page is worked on, within the page's budget."""
    parse_ms: float = 0.0
    parser: tuple[str, str] = ("none", "1")
    """Name and version of what made the record."""
    site: tuple[str, str] = ("default", "")
    """Name and version of the configuration it was made with."""
    verdict: str | None = None
    evidence: tuple[str, ...] = ()
    """What the verdict rests on."""
    quarantine: bool = False
    """Whether the page is set apart from the good ones."""
    error_type: str | None = None
    error_message: str | None = None
    retry: RetryClass | None = None
    """What was decided about a failure."""
    not_before: float = 0.0
    block: str = ""
    """The kind of block that the domain's circuit breaker counts, if any."""
    retry_after_s: float = 0.0
    """How long the server asks to be left alone."""
    charge: bool = True
    """False where no failure is to be counted: a stop broke it off, or the domain must wait."""
    shortage: bool = False
    """Whether this process or machine lacked something: then not even an attempt is counted."""
    sent: tuple[Sent, ...] = ()
    """The requests that it took; none where it never began, which costs no attempt."""
    rule: Rule = Rule()
    """The limits that these requests kept."""


class Imported(msgspec.Struct, frozen=True):
    """What became of a batch of new tasks."""

    accepted: int
    known: int


class Books(msgspec.Struct, frozen=True):
    """The counts of a job or of the whole ledger; `accepted` is the sum of the six states."""

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
        """How many tasks are not in a final state yet."""
        return self.pending + self.processing


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
    """`paused` or `cancelled`: nothing more of it is claimed; `resuming`: it is being let go on."""
    source: str = "file"
    """The door that its tasks came through."""
    options: JobOptions = JobOptions()

    @property
    def of_gateway(self) -> bool:
        """Whether it holds a Gateway's tasks: then it has no end of its own, and is open while an
        agent runs."""
        return self.source == "gateway"

    @property
    def cancelled(self) -> bool:
        """Whether it was given up: its file, imported again, is another job."""
        return self.hold == "cancelled"

    @property
    def incomplete(self) -> bool:
        """Whether its input is not all in: it is being read, or that was broken off."""
        return self.status is JobStatus.IMPORTING and not self.of_gateway

    @property
    def state(self) -> str:
        """Its status, or what holds it up."""
        if self.cancelled or (self.hold and self.status is not JobStatus.DONE):
            return str(self.hold)
        endless = self.of_gateway and self.status is JobStatus.IMPORTING
        return JobStatus.OPEN if endless else self.status


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that keeps tasks from going on."""

    kind: str
    """disk, trouble, worker, stopped, redis, clock, damage, paused, circuit, retry_after, robots,
    rate, retry, page."""
    what: str
    until: float | None = None
    """When it ends, where one can tell."""
    command: str = ""
    """What is typed to change it; empty where there is nothing to do."""
    effect: str = ""
    """What the command does, or what happens by itself."""
    tasks: int = 0
    domain: str = ""
    stops: bool = True
    """Whether nothing of what was asked about goes on; else only a part waits."""


class MissingField(msgspec.Struct, frozen=True):
    """A required field that pages lack: how many of how many that were read for it."""

    name: str
    pages: int
    of: int


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What became of every row of a job; `problems` says what does not add up, and is empty."""

    job: str
    status: str
    rows: int
    """Of the input: those that made a task, those that meant one that was known already, and the
    rejected."""
    known: int
    rejected: int
    books: Books
    reasons: dict[str, dict[str, int]]
    problems: list[str]
    accepted: list[str]
    """What is missing, and was accepted by an explicit command."""
    missing_fields: list[MissingField]
    """The required fields that pages lack, the one that most of them lack first."""
    checksum: str
    """sha256 over URL, parcel, state, page's hash and record of every task, in the order of
    import."""
