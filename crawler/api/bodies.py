"""The bodies of requests and answers, as pydantic models: what is read is checked by them."""

from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from crawler import render_options, urls
from crawler.api.intake import SESSION_ID, NewWebhook
from crawler.api.limits import MAX_URLS
from crawler.batches import BatchOptions, Format
from crawler.fetch.session import MAX_HEADERS
from crawler.models import Fetcher
from crawler.render_options import ResourceType

MAX_TIMEOUT_S = 3600.0
DEFAULT_FORMATS: tuple[Format, ...] = ("record", "text", "html")
EXAMPLE_URL = "https://example.com/"

Url = Annotated[str, Field(max_length=urls.MAX_LENGTH)]
Timeout = Annotated[
    float,
    Field(
        ge=0,
        le=MAX_TIMEOUT_S,
        allow_inf_nan=False,
        description="Seconds to wait; what is not done then is `pending`, and goes on.",
    ),
]


def _whole(value: object) -> object:
    """JSON knows no difference between 3 and 3.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


_Selector = Annotated[str, Field(max_length=render_options.MAX_SELECTOR)]
_Times = Annotated[int, Field(ge=1, le=render_options.MAX_TIMES), BeforeValidator(_whole)]
_Seconds = Annotated[float, Field(ge=0.1, le=render_options.MAX_STEP_S, allow_inf_nan=False)]


class Step(_Body):
    """One thing to do on a page: one of `wait_for`, `click`, `fill`, `press`, `scroll` and `wait`,
    and what goes with it."""

    model_config = ConfigDict(json_schema_extra={"example": {"click": ".more", "times": 20}})

    wait_for: _Selector | None = None
    click: _Selector | None = None
    fill: _Selector | None = None
    press: Annotated[
        Annotated[str, Field(max_length=render_options.MAX_KEY)] | None,
        Field(description="A key, such as `Enter`."),
    ] = None
    scroll: Annotated[
        _Times | _Selector | None, Field(description="How often, or an element that is scrolled.")
    ] = None
    wait: Annotated[_Seconds | None, Field(description="Seconds.")] = None
    value: Annotated[
        Annotated[str, Field(max_length=render_options.MAX_VALUE)] | None,
        Field(description="What is filled in. No password: it is stored."),
    ] = None
    selector: Annotated[_Selector | None, Field(description="What gets the key.")] = None
    times: Annotated[
        _Times | None, Field(description="How often at most to click or to scroll.")
    ] = None
    seconds: Annotated[
        _Seconds | None, Field(description="How long to wait for the element, by default 10.")
    ] = None


class Browser(_Body):
    """What a browser does with pages. What is left out is as in the files of the sites."""

    wait_for: Annotated[
        _Selector | None, Field(description="CSS of an element that says that a page is ready.")
    ] = None
    block: Annotated[
        Annotated[list[ResourceType], Field(max_length=10)] | None,
        Field(description="What is not loaded."),
    ] = None
    steps: Annotated[list[Step], Field(max_length=render_options.MAX_STEPS)] | None = None
    screenshot: Annotated[bool | None, Field(description="Keep a picture of the page.")] = None
    pdf: Annotated[bool | None, Field(description="Keep a PDF of the page.")] = None


class Options(_Body):
    """How pages are fetched, and what results have of them. The first call of a session decides."""

    formats: Annotated[
        list[Format],
        Field(
            max_length=10,
            description="`record`: the fields as `data`. `text`: the text as `content`. "
            "`screenshot`: a picture of the whole page as `data:` URI, made by a browser.",
        ),
    ] = list(DEFAULT_FORMATS)
    only_main_content: Annotated[
        bool, Field(description="Of Markdown: without menus, headers and footers.")
    ] = True
    headers: Annotated[
        dict[Annotated[str, Field(max_length=200)], Annotated[str, Field(max_length=8000)]],
        Field(max_length=MAX_HEADERS, description="Sent with every request. Kept secret."),
    ] = {}
    rate: Annotated[
        Annotated[str, Field(max_length=20)] | None,
        Field(description="Requests to each domain, such as `50/s`. Only for the operator."),
    ] = None
    ignore_robots: Annotated[bool, Field(description="Only for the operator.")] = False
    fetcher: Annotated[
        Fetcher | None,
        Field(description="What fetches pages; `auto`: a browser where a page needs one."),
    ] = None
    browser: Browser | None = None
    queue: Literal["urgent", "default"] = "default"
    priority: Annotated[
        int, Field(ge=1, le=9, description="1 first, 9 last."), BeforeValidator(_whole)
    ] = 5

    def as_batch_options(self) -> BatchOptions:
        """The same as the package has it."""
        return msgspec.convert(self.model_dump(exclude_none=True), BatchOptions)


class Webhook(_Body):
    """Who is told of results, by POST."""

    url: Annotated[str, Field(min_length=1, max_length=2000)]
    secret: Annotated[
        str, Field(max_length=200, description="Signs each body; kept in no answer and no log.")
    ] = ""
    events: Annotated[list[Literal["results", "done"]], Field(max_length=2)] = ["results", "done"]

    def as_new(self) -> NewWebhook:
        """The same as the intake has it."""
        return NewWebhook(self.url, self.secret, tuple(self.events))


class BatchRequest(_Body):
    """URLs to crawl."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"urls": [EXAMPLE_URL], "session_id": "research-1", "wait": True}
        }
    )

    urls: Annotated[list[Url], Field(max_length=MAX_URLS)]
    session_id: Annotated[
        Annotated[str, Field(pattern=SESSION_ID)] | None,
        Field(description="The same id again is the same crawl; more URLs are added to it."),
    ] = None
    distributed: Annotated[
        bool,
        Field(description="`true`: the workers of a stack. `false`: a process of its own."),
    ] = False
    options: Options = Options()
    timeout: Timeout = 300.0
    wait: Annotated[bool, Field(description="`false`: answer 202 at once.")] = True
    webhook: Webhook | None = None


class ScrapeRequest(_Body):
    """One URL to fetch now."""

    model_config = ConfigDict(json_schema_extra={"example": {"url": EXAMPLE_URL, "timeout": 60}})

    url: Annotated[str, Field(min_length=1, max_length=urls.MAX_LENGTH)]
    options: Options = Options()
    timeout: Timeout = 60.0


class Problem(BaseModel):
    """Every answer that is no success."""

    error: str
    code: str


class Result(BaseModel):
    """What became of a URL."""

    model_config = ConfigDict(extra="allow")

    status: Literal["success", "failed", "pending"]
    url: str
    session_id: str
    worker_id: str | None = None
    crawled_at: str | None = None
    task_id: str | None = None
    state: str | None = None
    attempts: int | None = None
    title: str | None = None
    content: str | None = None
    html: str | None = None
    data: dict[str, Any] | None = None
    screenshot: str | None = None
    metadata: dict[str, Any] | None = None
    reason: str | None = None
    error: str | None = None


class NumberedResult(Result):
    """A result with its number in the session."""

    seq: int


class Session(BaseModel):
    """How far a session is."""

    session_id: str
    job: str
    status: Literal["running", "paused", "done", "cancelled"]
    total: int
    done: int
    books: dict[str, int]
    rejected: int
    created_at: float
    completed_at: float | None
    links: dict[str, str]


class SessionPage(Session):
    """How far a session is, with results behind a cursor."""

    results: list[NumberedResult]
    cursor: int
    is_last: bool
    is_complete: bool


class Statistics(BaseModel):
    """What became of the URLs of a call."""

    total: int
    success: int
    failed: int
    reasons: dict[str, int]
    workers_used: int
    bytes: int
    seconds: float


class BatchAnswer(BaseModel):
    """The results of a call, in the order of its URLs."""

    session_id: str
    status: Literal["done", "pending"]
    links: dict[str, str]
    results: list[Result]
    statistics: Statistics


class JobState(BaseModel):
    """A job of the ledger."""

    name: str
    status: str
    hold: str | None
    queue: str
    created_at: float
    completed_at: float | None
    books: dict[str, Any]


class Jobs(BaseModel):
    """Jobs, the newest first."""

    jobs: list[JobState]


class Domains(BaseModel):
    """The live state of domains."""

    domains: list[dict[str, Any]]


class Histories(BaseModel):
    """What happened to a URL, for each task that fetches it."""

    tasks: list[dict[str, Any]]


class Health(BaseModel):
    """Whether the server works."""

    status: Literal["ok"]


class DistributedStatus(BaseModel):
    """Whether workers would fetch a distributed batch."""

    available: bool
    redis: bool
    workers: int
    pending: dict[str, int]
