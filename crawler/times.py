"""Times as people type and read them, in the zone of CRAWLER_TIMEZONE; and clocks that no step
changes."""

import re
import time as clocks
from datetime import datetime, time, timedelta, tzinfo
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
FORMS = "a span such as 90s, 45m, 1h30m or 7d, a time such as 17:00, or 2026-11-15T17:00"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id(path: Path = BOOT_ID) -> str:
    """The id of this boot of the kernel, the same in all its containers; empty where there is none.

    Raises `OSError` where it cannot be read now, as without free descriptors: an empty one would
    look like another boot.
    """
    try:
        return _boot_id(path)
    except FileNotFoundError:
        return ""


@cache
def _boot_id(path: Path) -> str:
    return path.read_text().strip()


def uptime() -> float:
    """Seconds of a clock that never steps; on Linux it also counts while the machine sleeps."""
    return clocks.clock_gettime(getattr(clocks, "CLOCK_BOOTTIME", clocks.CLOCK_MONOTONIC))


def zone(name: str | None) -> tzinfo | None:
    """The zone of that name; None stands for the system's, with its summer time."""
    return ZoneInfo(name) if name else None


def span(text: str) -> float | None:
    """The seconds of a span such as 90s, 45m, 1h30m or 7d; None where it is none."""
    text = text.strip().lower()
    if not re.fullmatch(r"(\d+(\.\d+)?[smhd])+", text):
        return None
    parts = re.findall(r"([\d.]+)([smhd])", text)
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def moment(text: str, now: float, tz: tzinfo | None) -> float | None:
    """A time of day (the next one), or a date with or without a time; None where it is neither."""
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
    """A span back from now, the last such time of day, or a date with or without a time; None where
    it is none."""
    seconds = span(text)
    if seconds is None:
        return moment(text, now - 86400, tz)
    return now - seconds


def _stamp(at: datetime, tz: tzinfo | None) -> float:
    return (at if at.tzinfo else at.replace(tzinfo=tz)).timestamp()


def show(at: float, now: float, tz: tzinfo | None) -> str:
    """A moment with its zone, and with its day where that is not today."""
    there = datetime.fromtimestamp(at, tz).astimezone(tz)
    here = datetime.fromtimestamp(now, tz).astimezone(tz)
    day = "" if there.date() == here.date() else f"{there:%a %d %b} "
    if abs(at - now) < 600:
        return f"{day}{there:%H:%M:%S %Z}"
    return f"{day}{there:%H:%M %Z}"


def clock(at: float, tz: tzinfo | None) -> str:
    """The time of day."""
    return f"{datetime.fromtimestamp(at, tz):%H:%M:%S}"


def until(at: float, now: float, tz: tzinfo | None) -> str:
    """A moment with its zone and the time that is left."""
    left = f"in {duration(at - now)}" if at > now else f"{duration(now - at)} ago"
    return f"{show(at, now, tz)}, {left}"


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if minutes < 2880:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes / 1440:.1f} days"
