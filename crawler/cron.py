"""Cron rules: five fields, and the moments at which they fall due in a time zone."""

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from datetime import date, datetime, timedelta, tzinfo
from functools import lru_cache

import msgspec

MAX_DAYS = 41 * 366
"""Days between two dates of a rule: a 29 February that is a Sunday may take 40 years."""
MAX_GAP = timedelta(days=2)
"""More than any change of clocks leaves out; at the date line that was a whole day."""
MAX_KNOWN_DAYS = 8_192
"""Days of rules whose moments are kept: all that 1,000 schedules need today, and more."""
MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_PART = re.compile(r"(?:\*|(\w+)(?:-(\w+))?)(?:/(\d{1,4}))?", re.ASCII)


class _Field(msgspec.Struct, frozen=True):
    """One of the five fields: its name, its range, and names for its numbers."""

    name: str
    first: int
    last: int
    names: tuple[str, ...] = ()

    def parse(self, text: str) -> frozenset[int]:
        """Return the numbers that a text stands for; raises `ValueError`."""
        found: set[int] = set()
        for part in text.lower().split(","):
            found.update(self._part(part))
        return frozenset(found)

    def _part(self, text: str) -> range:
        match = _PART.fullmatch(text)
        if match is None:
            raise ValueError(f"the {self.name} {text[:60]!r} is not *, a number, a list or a range")
        low, high, step = match.groups()
        if step is not None and low is not None and high is None:
            raise ValueError(f"the {self.name} {text[:60]!r} has a step, but no range before it")
        if step is not None and not int(step):
            raise ValueError(f"the {self.name} {text[:60]!r} has the step 0")
        first, last = self.first, self.last
        if low is not None:
            first = last = self._number(low)
        if high is not None:
            last = self._number(high)
            if high == "sun":
                last = 7  # sat-sun
        if last < first:
            raise ValueError(f"the {self.name} {text[:60]!r} ends before it begins")
        return range(first, last + 1, int(step or 1))

    def _number(self, word: str) -> int:
        if word in self.names:
            return self.names.index(word) + self.first
        if word.isdecimal() and len(word) < 4 and self.first <= int(word) <= self.last:
            return int(word)
        expected = f"{self.first} to {self.last}"
        if self.names:
            expected += f", or {self.names[0]} to {self.names[-1]}"
        raise ValueError(f"the {self.name} must be {expected}, not {word[:60]!r}")


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, tuple(MONTHS)),
    _Field("day of the week", 0, 7, tuple(WEEKDAYS)),
)


class Cron(msgspec.Struct, frozen=True):
    """A rule of five fields.

    A time that a change of clocks leaves out counts at the next moment that exists. One that it
    repeats counts once, unless the rule is for every hour.
    """

    text: str
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """From 0, Sunday, to 6."""
    either_day: bool
    """Both day fields are restricted: either may match, as cron has it."""

    @classmethod
    def parse(cls, text: str) -> "Cron":
        """Read a rule; raises `ValueError`."""
        words = text.split()
        if len(words) != len(_FIELDS):
            names = ", ".join(field.name for field in _FIELDS)
            raise ValueError(f"must be five fields ({names}), not {text[:60]!r}")
        minutes, hours, days, months, weekdays = (
            field.parse(word) for field, word in zip(_FIELDS, words, strict=True)
        )
        # As in cron, */2 does not count as restricted.
        either_day = not words[2].startswith("*") and not words[4].startswith("*")
        exists = any(day <= _MONTH_DAYS[month - 1] for month in months for day in days)
        if not exists and not either_day:
            raise ValueError(f"no month has such a day: {text[:60]!r}")
        return cls(
            " ".join(words),
            minutes,
            hours,
            days,
            months,
            frozenset(day % 7 for day in weekdays),
            either_day,
        )

    def latest(self, now: float, tz: tzinfo | None) -> float:
        """Return the last moment of this rule until now."""
        return self._find(now, tz, -1)

    def next(self, now: float, tz: tzinfo | None) -> float:
        """Return the first moment of this rule after now."""
        return self._find(now, tz, 1)

    def _find(self, now: float, tz: tzinfo | None, step: int) -> float:
        # A change of clocks can put a moment into a neighbouring day, so three days are examined
        # before the nearest moment is chosen.
        day = datetime.fromtimestamp(now, tz).date() - timedelta(days=step)
        found: list[float] = []
        for count in range(MAX_DAYS):
            if self._is_day(day):
                moments = _moments(self, day, tz)
                place = bisect_right(moments, now)
                found += (
                    moments[place : place + 1] if step > 0 else moments[max(place - 1, 0) : place]
                )
            if found and count >= 2:
                break
            day += timedelta(days=step)
        return min(found, key=lambda at: abs(at - now))

    def _is_day(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_month, by_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        if self.either_day:
            return by_month or by_week
        return by_month and by_week


@lru_cache(maxsize=MAX_KNOWN_DAYS)
def _moments(rule: Cron, day: date, tz: tzinfo | None) -> "array[float]":
    """Return the moments of a rule on a day, in order."""
    return array("d", sorted(_unsorted_moments(rule, day, tz)))


def _unsorted_moments(rule: Cron, day: date, tz: tzinfo | None) -> Iterator[float]:
    every_hour = len(rule.hours) == 24
    for hour in rule.hours:
        for minute in rule.minutes:
            at = datetime(day.year, day.month, day.day, hour, minute)  # noqa: DTZ001 - below
            first = _stamp(at, tz)
            if _wall(first, tz) != at:
                yield _after_gap(at, tz)
                continue
            yield first
            if every_hour:
                yield _stamp(at.replace(fold=1), tz)


def _stamp(at: datetime, tz: tzinfo | None) -> float:
    if tz is None:
        return at.timestamp()
    return at.replace(tzinfo=tz).timestamp()


def _wall(moment: float, tz: tzinfo | None) -> datetime:
    """Return what a clock on the wall shows."""
    return datetime.fromtimestamp(moment, tz).replace(tzinfo=None, fold=0)


def _after_gap(at: datetime, tz: tzinfo | None) -> float:
    """Return the first moment after a time that a change of clocks leaves out."""
    end = at + MAX_GAP
    while at < end:
        at += timedelta(minutes=1)
        moment = _stamp(at, tz)
        if _wall(moment, tz) == at:
            return moment
    raise ValueError(f"no time exists for two days before {end}")
