"""The arguments and answers of the MCP server's tools, from which their JSON schemas are made."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from crawler import urls

MAX_PIECE = 50_000
"""Characters of one piece of a page."""
MAX_URLS = 10_000
_END = r"$(?!\n)"
"""The end of a text, for Python, whose `$` also stands before a newline, and for JSON schemas,
which have no other sign."""

PageFormat = Literal["markdown", "text", "html", "record", "links"]

Url = Annotated[
    str, Meta(min_length=1, max_length=urls.MAX_LENGTH, description="An http or https URL.")
]
SessionId = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=100,
        pattern=rf"^[^\x00-\x20\x7f](?:[^\x00-\x1f\x7f]*[^\x00-\x20\x7f])?{_END}",
        description="The name of a session, as `batch` and `scrape` return it.",
    ),
]
Formats = Annotated[
    tuple[PageFormat, ...],
    Meta(
        min_length=1,
        max_length=5,
        description="What to show of a page: `markdown` and `text` are its main content, `html` is "
        "the whole page, `links` are its links. The record is always shown if it fits.",
    ),
]


# Arguments


class Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the arguments of tools: a name that is not known is an error."""


class ScrapeArguments(Arguments, frozen=True):
    """Arguments of `scrape`."""

    url: Url
    formats: Formats = ("markdown",)
    timeout_s: Annotated[
        float, Meta(ge=1, le=300, description="How long to wait for the page, in seconds.")
    ] = 60.0


class BatchArguments(Arguments, frozen=True):
    """Arguments of `batch`."""

    urls: Annotated[
        list[str],
        Meta(min_length=1, max_length=MAX_URLS, description="The URLs, at most 10,000 of them."),
    ]
    session_id: (
        Annotated[
            str,
            Meta(
                pattern=rf"^[A-Za-z0-9][A-Za-z0-9._~:@-]{{0,99}}{_END}",
                description="A name for these URLs, of letters, digits and ._~:@- only. The same "
                "name with the same URLs is the same crawl; without one, a new name is made.",
            ),
        ]
        | None
    ) = None
    formats: Formats = ("markdown",)


class StatusArguments(Arguments, frozen=True):
    """Arguments of `job_status`."""

    session_id: SessionId


class SearchArguments(Arguments, frozen=True):
    """Arguments of `search_results`."""

    query: Annotated[
        str,
        Meta(
            max_length=500,
            description="Words that the record or the URL must contain, all of them, in any order "
            "and case. Empty: list the newest results.",
        ),
    ]
    job: Annotated[
        SessionId | None, Meta(description="Search only this session, or job by its name.")
    ] = None
    limit: Annotated[int, Meta(ge=1, le=50, description="The most matches to return.")] = 10
    before: (
        Annotated[
            int,
            Meta(ge=1, le=2**62, description="Go on behind an earlier answer: its `next_before`."),
        ]
        | None
    ) = None


class ReadArguments(Arguments, frozen=True):
    """Arguments of `read_page`."""

    url: Annotated[Url | None, Meta(description="The URL of the page; or give its task_id.")] = None
    task_id: (
        Annotated[
            str,
            Meta(
                pattern=rf"^[0-9a-f]{{6,32}}{_END}", description="A task, as other tools name it."
            ),
        ]
        | None
    ) = None
    format: Annotated[
        PageFormat,
        Meta(
            description="`markdown` or `text`: the main content. `html`: the whole page. `record`: "
            "the extracted fields, as JSON. `links`: one URL a line."
        ),
    ] = "markdown"
    offset: Annotated[int, Meta(ge=0, description="The first character to return.")] = 0
    max_chars: Annotated[
        int, Meta(ge=100, le=MAX_PIECE, description="The most characters to return.")
    ] = 10_000


class WhyArguments(Arguments, frozen=True):
    """Arguments of `why`."""

    url: Annotated[
        Url, Meta(description="A URL that was fetched or is to be fetched, or a task's id.")
    ]


# Answers


class Page(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came from the web site, in the formats that were asked for."""

    title: str | None = None
    record: dict[str, Any] | UnsetType = UNSET
    markdown: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    html: str | UnsetType = UNSET
    links: list[str] | UnsetType = UNSET


class Scraped(msgspec.Struct, frozen=True, kw_only=True):
    """How the fetch of a URL ended."""

    status: Literal["success", "failed", "pending"]
    url: str
    session_id: str
    task_id: str | None
    reason: str | None
    """A short code for a failure, such as `timeout` or `http_404`."""
    error: str | None
    metadata: dict[str, Any]
    page: Page | None
    notice: str
    note: str
    """What was left out, and how to get it."""


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that is in the ledger."""

    session_id: str
    status: str
    total: int
    done: int
    rejected: int
    """Rows that are no URL."""
    note: str


class Failure(msgspec.Struct, frozen=True):
    """A URL without a result."""

    url: str
    task_id: str
    status: str
    reason: str | None
    error: str | None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How far a session is."""

    session_id: str
    job: str
    status: str
    """`running`, `paused`, `done` or `cancelled`."""
    total: int
    done: int
    books: dict[str, int]
    """URLs by state."""
    rejected: int
    created_at: str
    completed_at: str | None
    waits: list[str]
    """What keeps it from going on."""
    reasons: dict[str, dict[str, int]]
    """How many ended without a result, by state and reason."""
    failures: list[Failure]
    note: str


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """A result that has the words."""

    task_id: str
    url: str
    job: str | None
    scraped_at: str
    page_title: str | None
    page_excerpt: str


class SearchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Results that have the words, the newest first."""

    matches: list[Match]
    searched: int
    """Results that were looked at."""
    next_before: int | None
    """Older results were not searched: give this as `before` to go on. Null: all were searched."""
    notice: str
    note: str


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a stored page."""

    task_id: str
    url: str
    format: str
    offset: int
    next_offset: int | None
    """Where the next piece begins; null at the end."""
    total_chars: int
    notice: str
    page_text: str


class TaskTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to one task, the oldest first."""

    task_id: str
    url: str
    status: str
    reason: str | None
    error: str | None
    steps: list[str]
    waits: list[str]


class WhyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The timelines of a URL, the newest task first."""

    tasks: list[TaskTimeline]
    notice: str
    note: str
