"""Values as people type them: spans, deadlines, beginnings."""

import time

import click

from crawler import config, times

_MOST_S = 100 * 365 * 86400.0
"""A century: what is more is a slip of the finger."""


class Span(click.ParamType[float]):
    """A span of time such as 90s, 45m, 12h or 7d."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Seconds."""
        seconds = times.span(str(value))
        if seconds is None or seconds > _MOST_S:
            self.fail(
                f"{str(value)!r} is not a span of time; write 90s, 45m, 12h or 7d", param, ctx
            )
        return seconds


class Deadline(click.ParamType[float]):
    """A moment to come: 17:00 (the next one), 45m from now, or a date with a time."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Seconds since the epoch."""
        text, now = str(value), time.time()
        seconds = times.span(text)
        at = (
            now + seconds
            if seconds
            else times.moment(text, now, times.zone(config.load().timezone))
        )
        if at is None or at - now > _MOST_S:
            self.fail(f"{text!r} is not a time; write {times.FORMS}", param, ctx)
        if at <= now:
            self.fail(f"{text!r} has passed already", param, ctx)
        return at


class Since(click.ParamType[float]):
    """A moment that was: 2h or 7d ago, 14:00 (the last one), or a date with or without a time."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Seconds since the epoch."""
        at = times.past(str(value), time.time(), times.zone(config.load().timezone))
        if at is None or at < 0:
            self.fail(f"{str(value)!r} is not a time; write {times.FORMS}", param, ctx)
        return at


since_option = click.option(
    "--since",
    type=Since(),
    help="Only what was scraped since: 2h or 7d ago, 14:00, or 2026-11-15T14:00.",
)
only_job_option = click.option("--job", "job_name", help="Only of this job.")


class Rate(click.ParamType[str]):
    """A rate such as `50/s`, or `none`."""

    name = "rate"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """The text itself, once it is known to be one."""
        try:
            config.interval(str(value))
        except ValueError as error:
            self.fail(f"{str(value)!r} {error}", param, ctx)
        return str(value)
