"""The bodies of the reference Gateway's exchanges as values: what is read is checked by them, and
so described."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

MAX_BODY = 32 << 20
"""Bytes of a request; a raw file has a little more room, for what surrounds it."""
MAX_ERRORS = 10
"""How many texts an answer to results holds."""
MAX_NUMBER = 2**53
"""Beyond this a whole number is not the same number everywhere."""

MAX_WORDS = 10_000
"""Characters that are kept of a failure's reason."""
MAX_RESULTS = 10_000
"""How many results a body may have."""

# JSON knows no difference between 3 and 3.0.
Count = (
    Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
    | Annotated[float, Meta(ge=0, le=MAX_NUMBER, multiple_of=1)]
)
Text = Annotated[str, Meta(max_length=MAX_WORDS)]
TaskId = Annotated[str, Meta(min_length=1, max_length=200)]
Command = Literal["pause", "resume", "drain"]


class Target(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task is about; without a `url` the platform's site configuration makes one of the
    rest."""

    parcel_id: str | None = None
    state: str | None = None
    county: str | None = None
    url: str | None = None


class Task(msgspec.Struct, frozen=True):
    """A task as it is handed out; fields beyond these are those of the imported row."""

    task_id: str
    type: str
    platform: str | None
    target: Target
    priority: Annotated[int, Meta(ge=1, le=4)]
    created_at: str
    deadline: str | None = None


class Work(msgspec.Struct, frozen=True):
    """Tasks, and in how many seconds to ask again."""

    tasks: list[Task]
    retry_after: float


class Result(msgspec.Struct, frozen=True):
    """A result as a worker delivers it; fields beyond these are kept."""

    task_id: TaskId
    data: dict[str, Any]
    parcel_id: str | None = None
    platform: str | None = None
    state: str | None = None
    county: str | None = None
    scraped_at: str | None = None
    parse_duration_ms: float | None = None
    raw_html_hash: str | None = None


class Stored(msgspec.Struct, frozen=True):
    """What became of results: those that were new, those that were there, and those that were not
    stored."""

    inserted: int
    updated: int
    failed: int
    errors: list[str]


class Page(msgspec.Struct, frozen=True):
    """What is known of a raw file; fields beyond these are kept."""

    task_id: str | None = None
    url: str | None = None
    sha256: str | None = None
    content_type: str | None = None
    fetched_at: str | None = None


class Kept(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether a raw file was kept: where it lies, or why not."""

    status: Literal["ok", "error"]
    path: str | None = None
    message: str | None = None


class Failure(msgspec.Struct, frozen=True):
    """Why a task ended without a result; what is longer than 10,000 characters is cut."""

    reason: str
    error_type: str | None = None
    attempts: int | float = 0


class Success(msgspec.Struct, frozen=True):
    """A task is completed."""

    success: bool = True


class Reported(msgspec.Struct, frozen=True):
    """A failure was noted."""

    task_id: str
    status: Literal["reported"] = "reported"
    success: bool | msgspec.UnsetType = msgspec.UNSET


class Queue(msgspec.Struct, frozen=True):
    """How many tasks a worker has in each state."""

    pending: Count = 0
    processing: Count = 0
    completed: Count = 0
    failed: Count = 0
    unsynced: Count = 0


class Heartbeat(msgspec.Struct, frozen=True):
    """How a worker is."""

    active_tasks: Count = 0
    completed_last_minute: Count = 0
    failed_last_minute: Count = 0
    platforms: list[Text] | None = None
    cpu_percent: float | None = None
    memory_percent: float | None = None
    queue: Queue = Queue()


class Orders(msgspec.Struct, frozen=True):
    """What the operator wants a worker to do."""

    acknowledged: bool
    commands: list[Command]


class Worker(msgspec.Struct, frozen=True):
    """A worker as the Gateway knows it."""

    worker: str
    heard_at: str
    silent_s: float
    held: int
    results: int
    heartbeat: Heartbeat | None
    waiting_commands: list[Command]


class Counts(msgspec.Struct, frozen=True):
    """What the Gateway has."""

    available: int
    held: int
    completed: int
    failed: int
    results: int
    late: int
    raw_files: int
    workers: int


class Health(msgspec.Struct, frozen=True, omit_defaults=True):
    """That the Gateway is there; with the token, also what it has and what faults it has played."""

    status: Literal["ok"]
    counts: Counts | None = None
    faults: dict[str, int] | None = None


class Failing(msgspec.Struct, frozen=True):
    """That the Gateway is there, but cannot write."""

    status: Literal["failing"]
    message: str


class Problem(msgspec.Struct, frozen=True):
    """What is wrong with a request."""

    code: str
    message: str


class Refusal(msgspec.Struct, frozen=True):
    """Every answer that is no success."""

    error: Problem
    request_id: str
