"""The facts that `analyze` finds; the names here are the keys of `analyze --json`, and stay."""

import msgspec

from crawler.models import Books


class Bin(msgspec.Struct, frozen=True):
    """How many numbers lie between two."""

    low: float
    high: float
    count: int


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """How numbers are spread; beyond 50,000 of them (`exact` is false) the percentiles are those of
    a sample."""

    count: int
    min: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float
    exact: bool
    histogram: list[Bin]
    """Bins of equal width, or of equal ratio where the numbers span more than a factor of 20."""


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """The ends of some numbers, and their middle."""

    min: float
    median: float
    max: float


class Example(msgspec.Struct, frozen=True):
    """A result, by its names."""

    task_id: str
    url: str


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One field of the records; of objects in lists all are one: `items[].price`."""

    path: str
    records: int
    """How many records have it, empty or not."""
    share: float
    """… of all records, 0 to 1."""
    empty: int
    """In how many of them there is nothing in it: null, blank text, an empty list or object."""
    types: dict[str, int]
    """How many values are null, boolean, number, text, date (ISO 8601), list (empty) or object
    (empty, or too deep)."""
    distinct: int
    distinct_capped: bool
    """Whether there are more than those 1,000 distinct values that were told apart."""
    examples: list[str]
    """The most frequent values, cut to 80 characters."""
    numbers: Range | None
    lengths: Range | None
    """Of text, in characters."""
    dates: tuple[str, str] | None
    """The first and the last one."""
    lacking: list[Example]
    """The first records that do not have it, or have nothing in it."""


class ErrorClass(msgspec.Struct, frozen=True, kw_only=True):
    """One reason why tasks ended without a result, with the first of them."""

    status: str
    reason: str
    count: int
    url: str
    message: str


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """What has a name in common."""

    name: str
    results: int
    failed: int | None
    """Tasks that ended without a result; null where no ledger tells."""


class Groups(msgspec.Struct, frozen=True, kw_only=True):
    """The 20 largest groups, and the sum of the others."""

    top: list[Group]
    other_names: int
    """How many others there are; at most some 10,000 are told apart where no ledger tells."""
    other_results: int
    other_failed: int | None


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What results hold and lack; these names are the keys of `analyze --json`. null: cannot be
    known from files."""

    source: str
    kind: str
    """folder, file or store"""
    job: str | None
    notes: list[str]
    unreadable: int
    """Files, lines or elements that are no results."""
    unreadable_examples: list[str]
    tasks: Books | None
    """The ledger's books."""
    results: int
    success_rate: float | None
    """Completed of all accepted tasks, 0 to 1; without a ledger: results with the verdict ok, of
    all."""
    verdicts: dict[str, int]
    errors: list[ErrorClass] | None
    attempts: dict[int, int]
    """How many results took so many attempts."""
    fields: list[Field]
    """The most common first."""
    fields_capped: bool
    """Whether there are more fields than the 2,000 that were looked at."""
    page_bytes: Distribution | None
    fetch_ms: Distribution | None
    parse_ms: Distribution | None
    domains: Groups
    sites: Groups
    """By the `platform` of the input."""
    parsers: Groups
    first: str | None
    last: str | None
    seconds: float | None
    pages_per_s: float | None
    over_time: list[Bin]
    """Pages by the second they were fetched at (Unix time)."""


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """A field's value in one record of both runs, cut to 80 characters."""

    url: str
    old: str
    new: str


class FieldChange(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a field; the counts are of records in both runs."""

    path: str
    share_a: float
    share_b: float
    """In which share of all records of a run there is something in it, 0 to 1."""
    changed: int
    appeared: int
    vanished: int
    types_a: list[str]
    types_b: list[str]
    """The types that the run's values have, without null and empty lists."""
    examples: list[Value]


class VerdictChange(msgspec.Struct, frozen=True, kw_only=True):
    """Pages that got one verdict in A and another one in B; that of a task without a result is its
    reason."""

    a: str
    b: str
    count: int
    url: str


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What changed from run A to run B; these names are the keys of `analyze A B --json`."""

    a: Profile
    b: Profile
    both: int
    """Pages (by URL and parcel) that both have a result of; of several the newest counts."""
    same: int
    """… whose records are the same."""
    only_a: int
    only_a_examples: list[str]
    only_b: int
    only_b_examples: list[str]
    verdicts: list[VerdictChange]
    """The most frequent first."""
    fields: list[FieldChange]
    """What changed most first; what did not change at all is left out."""
    fields_same: int
