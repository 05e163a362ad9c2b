"""Times as people type and read them, in the zone of CRAWLER_TIMEZONE. Clocks that never step."""

import re
import time as clocks
from datetime import datetime, time, timedelta, tzinfo
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
FORMS = (
    "a span such as 90s, 45m, 1h30m or 7d, a time such as 17:00, a date such as 2026-11-15, "
    "or both as 2026-11-15T17:00"
)
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id(path: Path = BOOT_ID) -> str:
    """Return the id of this boot, the same in all containers; empty if the system has none.

    Raises `OSError` if it cannot be read now, for example without free descriptors. An empty id
    would look like another boot.
    """
    try:
        return _boot_id(path)
    except FileNotFoundError:
        return ""


@cache
def _boot_id(path: Path) -> str:
    return path.read_text().strip()


def uptime() -> float:
    """Return seconds of a clock that never steps. On Linux it also counts during sleep."""
    return clocks.clock_gettime(getattr(clocks, "CLOCK_BOOTTIME", clocks.CLOCK_MONOTONIC))


def zone(name: str | None) -> tzinfo | None:
    """Return the zone of that name; None stands for the system's zone with its summer time."""
    if not name:
        return None
    return ZoneInfo(name)


def span(text: str) -> float | None:
    """Return the seconds of a span such as 90s, 45m, 1h30m or 7d; None for any other text."""
    text = text.strip().lower()
    if not re.fullmatch(r"(\d+(\.\d+)?[smhd])+", text):
        return None
    parts = re.findall(r"([\d.]+)([smhd])", text)
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def moment(text: str, now: float, tz: tzinfo | None) -> float | None:
    """Return the next such time of day, or a date with or without a time; None for other text."""
    text = text.strip()
    try:
        if not re.fullmatch(r"\d{1,2}:\d{2}(:\d{2})?", text):
            return _stamp(datetime.fromisoformat(text), tz)
        hour, _, rest = text.partition(":")
        today = datetime.fromtimestamp(now, tz).date()
        at = datetime.combine(today, time.fromisoformat(f"{hour.zfill(2)}:{rest}"))
        if _stamp(at, tz) <= now:
            at += timedelta(days=1)
        return _stamp(at, tz)
    except (ValueError, OverflowError):
        return None


def past(text: str, now: float, tz: tzinfo | None) -> float | None:
    """Return a past time: a span ago, the last such time of day, or a date; None for other text."""
    seconds = span(text)
    if seconds is None:
        return moment(text, now - 86400, tz)
    return now - seconds


def _stamp(at: datetime, tz: tzinfo | None) -> float:
    if at.tzinfo is None:
        at = at.replace(tzinfo=tz)
    return at.timestamp()


def show(at: float, now: float, tz: tzinfo | None) -> str:
    """Return a time with its zone, with its day unless that is today; seconds if it is near."""
    shown = datetime.fromtimestamp(at, tz).astimezone(tz)
    today = datetime.fromtimestamp(now, tz).astimezone(tz).date()
    text = f"{shown:%H:%M %Z}"
    if abs(at - now) < 600:
        text = f"{shown:%H:%M:%S %Z}"
    if shown.date() != today:
        return f"{shown:%a %d %b} {text}"
    return text


def day(at: float, tz: tzinfo | None) -> str:
    """Return the date of a time, such as 2026-11-17."""
    return datetime.fromtimestamp(at, tz).date().isoformat()


def clock(at: float, tz: tzinfo | None) -> str:
    """Return the time of day."""
    return f"{datetime.fromtimestamp(at, tz):%H:%M:%S}"


def until(at: float, now: float, tz: tzinfo | None) -> str:
    """Return a time with its zone, and how far away it is."""
    distance = f"{duration(now - at)} ago"
    if at > now:
        distance = f"in {duration(at - now)}"
    return f"{show(at, now, tz)}, {distance}"


def duration(seconds: float) -> str:
    """Return a duration in the unit that fits."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if minutes < 2880:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes / 1440:.1f} days"
