"""What a replay found: counted page by page, told field by field."""

from collections import Counter
from typing import Any

import msgspec

from crawler.analyze import MAX_EXAMPLES
from crawler.analyze.compare import FieldCounts, Value, VerdictChange
from crawler.db.record_versions import Replaced, StoredResult
from crawler.models import UNCHANGED
from crawler.replay.parser import ParseAnswer

MAX_SITES = 1_000
"""Sites that are counted apart."""

# The structs' names are the keys of `replay --json`.


class SiteCount(msgspec.Struct, frozen=True, kw_only=True):
    """The pages of a site, and the version of its configuration."""

    name: str
    version: str
    pages: int


class ReplayedField(msgspec.Struct, frozen=True, kw_only=True):
    """How a field fared."""

    path: str
    had: int
    """Pages that had a value before."""
    kept: int
    """Pages that still have the same value."""
    share: float | None
    """Kept of had, 0 to 1; null for a new field."""
    changed: int
    lost: int
    new: int
    """Pages that have a value now and had none."""
    examples: list[Value]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A page without a record now, and why."""

    url: str
    reason: str
    message: str


class Problems(msgspec.Struct, kw_only=True):
    """Pages of one kind of problem."""

    count: int = 0
    examples: list[Problem]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole replay."""

    against: str
    sites: list[SiteCount]
    pages: int
    """Stored pages that were read, each once."""
    compared: int
    """… those that there was an earlier record of."""
    same: int
    """… those with the same values in all fields."""
    share: float | None
    """The same of compared, 0 to 1."""
    kept: int
    """Of the compared ones, those that kept every value: they differ by new ones at most."""
    fields: list[ReplayedField]
    """Those with the lowest share first."""
    verdicts: list[VerdictChange]
    newly_invalid: int
    newly_valid: int
    failed: Problems
    """Pages that cannot be parsed any more."""
    unreadable: Problems
    """Pages that are damaged."""
    gone: Problems
    """Results whose pages were removed by `prune`, or never kept."""
    unmatched: int
    """Pages that the other side has no record of."""
    seconds: float
    pages_per_s: float
    fail_under: float | None = None
    below: list[str] = []
    """The fields whose share is below `fail_under`, the lowest first."""
    applied: Replaced | None = None
    listings_made: int = 0
    """Listings that results had and the store had not."""
    frozen: int | None = None
    """Pages of the golden set that were written anew."""

    @property
    def is_nothing_compared(self) -> bool:
        """Whether `fail_under` was asked for and there was no page to judge by."""
        return self.fail_under is not None and not self.compared

    @property
    def is_below(self) -> bool:
        """Whether `fail_under` is not met: a field lost too much, or nothing was compared."""
        return bool(self.below) or self.is_nothing_compared

    @property
    def has_failed(self) -> bool:
        """Whether `fail_under` is not met, or a page could not be read or parsed."""
        return self.is_below or bool(self.failed.count or self.unreadable.count)


class Tally:
    """Counts what becomes of pages."""

    def __init__(self, against: str) -> None:
        self._against = against
        self._fields = FieldCounts()
        self._verdicts: dict[tuple[str, str], list[Any]] = {}
        self._sites: Counter[tuple[str, str]] = Counter()
        self.pages = 0
        self._compared = self._same = self._kept = self._unmatched = 0
        self._newly_invalid = self._newly_valid = 0
        self._failed, self._unreadable, self._gone = (Problems(examples=[]) for _ in range(3))

    def add(
        self, result: StoredResult, answer: ParseAnswer, verdict: str | None, compared: bool
    ) -> None:
        """Count one page; `verdict` is the earlier one, if it is known."""
        if answer.end == "unreadable":
            _note(self._unreadable, result.url, "unreadable", answer.message)
            return
        self.pages += 1
        if len(self._sites) < MAX_SITES:
            self._sites[answer.site] += answer.site[0] != ""
        self._compared += compared
        self._unmatched += not compared
        self._fields.add(result.url, answer.changes)
        now = answer.verdict
        if answer.end != "parsed":
            _note(self._failed, result.url, answer.reason, answer.message)
            now = answer.reason
        elif compared:
            changes = answer.changes.changes
            self._same += not changes
            self._kept += all(change.kind == "appeared" for change in changes)
            self._newly_invalid += bool(answer.invalid) and not result.invalid
            self._newly_valid += bool(result.invalid) and not answer.invalid
        if verdict not in (None, UNCHANGED, now):
            self._verdicts.setdefault((verdict, now), [0, result.url])[0] += 1

    def add_gone(self, result: StoredResult, why: str) -> None:
        """Count a result without a page."""
        _note(self._gone, result.url, "gone", why)

    @property
    def wants_gone_examples(self) -> bool:
        """Whether it is still of interest why a page is gone."""
        return len(self._gone.examples) < MAX_EXAMPLES

    def report(self, seconds: float, fail_under: float | None) -> Report:
        """Everything that was counted."""
        fields = sorted(map(self._field, self._fields.paths), key=_worst_first)
        below = []
        if fail_under is not None:
            below = [f.path for f in fields if f.share is not None and f.share < fail_under]
        verdicts = [
            VerdictChange(a=old, b=new, count=count, url=url)
            for (old, new), (count, url) in self._verdicts.items()
        ]
        return Report(
            against=self._against,
            sites=[
                SiteCount(name=name, version=version, pages=pages)
                for (name, version), pages in self._sites.most_common()
                if name
            ],
            pages=self.pages,
            compared=self._compared,
            same=self._same,
            share=self._same / self._compared if self._compared else None,
            kept=self._kept,
            fields=fields,
            verdicts=sorted(verdicts, key=lambda each: -each.count),
            newly_invalid=self._newly_invalid,
            newly_valid=self._newly_valid,
            failed=self._failed,
            unreadable=self._unreadable,
            gone=self._gone,
            unmatched=self._unmatched,
            seconds=round(seconds, 3),
            pages_per_s=round(self.pages / seconds, 1) if seconds else 0.0,
            fail_under=fail_under,
            below=below,
        )

    def _field(self, path: str) -> ReplayedField:
        counts = self._fields
        had = counts.had(path)
        return ReplayedField(
            path=path,
            had=had,
            kept=counts.kept(path),
            share=counts.kept(path) / had if had else None,
            changed=counts.of(path, "changed"),
            lost=counts.of(path, "vanished"),
            new=counts.of(path, "appeared"),
            examples=counts.examples(path),
        )


def _note(problems: Problems, url: str, reason: str, message: str) -> None:
    problems.count += 1
    if len(problems.examples) < MAX_EXAMPLES:
        problems.examples.append(Problem(url=url, reason=reason, message=message))


def _worst_first(field: ReplayedField) -> tuple[float, int, str]:
    share = 2.0 if field.share is None else field.share  # new fields come last
    return share, -field.had - field.new, field.path
