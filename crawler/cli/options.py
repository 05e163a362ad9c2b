"""Options and value types that several commands share."""

import os
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from crawler import config, times
from crawler.errors import InputError, UsageError


def _set_data_dir(_context: click.Context, _option: click.Parameter, value: str | None) -> None:
    if value:
        os.environ["CRAWLER_DATA_DIR"] = value


data_dir_option = click.option(
    "--data-dir",
    type=click.Path(file_okay=False),
    expose_value=False,
    is_eager=True,
    callback=_set_data_dir,
    help="The store (default: CRAWLER_DATA_DIR, else ./data).",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print facts as JSON.")
workers_option = click.option(
    "--workers", type=click.IntRange(1, 256), help="Worker processes (default: one for each core)."
)

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


if TYPE_CHECKING:
    from crawler.fetch.session import Session

T = TypeVar("T")

_OPTIONS = (
    click.option(
        "--header",
        "headers",
        multiple=True,
        metavar="'NAME: VALUE'",
        help="Send a header; @FILE reads headers from a file, one a line, so that no secret is typed. Repeatable.",
    ),
    click.option("--user-agent", metavar="TEXT", help="Send this User-Agent."),
    click.option(
        "--cookie-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Send the cookies of a file in Netscape's format, as browsers' extensions and curl write it.",
    ),
    click.option("--proxy", metavar="URL", help="Fetch through http://[user:password@]host:port."),
)


robots_option = click.option(
    "--ignore-robots", is_flag=True, help="Fetch what robots.txt forbids, too."
)


def session_options(command: Callable[..., T]) -> Callable[..., T]:
    """Give a command --header, --user-agent, --cookie-file and --proxy; it gets them as
    `session`."""

    @wraps(command)
    def with_session(
        headers: tuple[str, ...],
        user_agent: str | None,
        cookie_file: Path | None,
        proxy: str | None,
        **others: Any,
    ) -> T:
        return command(session=session_from(headers, user_agent, cookie_file, proxy), **others)

    for option in reversed(_OPTIONS):
        with_session = option(with_session)
    return with_session


def session_from(
    headers: tuple[str, ...], user_agent: str | None, cookie_file: Path | None, proxy: str | None
) -> "Session | None":
    """The session that the options describe, or None where none was given; raises `UsageError` or
    `InputError`."""
    from crawler.fetch import session as sessions
    from crawler.fetch.cookies import read_file
    from crawler.fetch.egress import parse_proxy

    if not headers and user_agent is None and cookie_file is None and proxy is None:
        return None
    sent: list[tuple[str, str]] = []
    for text in headers:
        sent += _from_file(Path(text[1:])) if text.startswith("@") else [_header(text)]
    made = sessions.Session(
        headers=tuple(sent),
        user_agent=user_agent,
        cookies=read_file(cookie_file, time.time()) if cookie_file else (),
        proxy=parse_proxy(proxy) if proxy is not None else None,
    )
    sessions.check(made)
    return made


def _header(text: str) -> tuple[str, str]:
    from crawler.fetch.session import header_problem

    name, colon, value = text.partition(":")
    name, value = name.strip(" \t"), value.strip(" \t")
    if not colon:
        raise UsageError(
            "--header: a colon is missing; write 'Name: value'"
        )  # the text may be a secret
    if problem := header_problem(name, value):
        raise UsageError(f"--header: {problem}")
    return name, value


def _from_file(path: Path) -> list[tuple[str, str]]:
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(str(path), "is not text in UTF-8") from None
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            found.append(_header(line.removesuffix("\r")))
        except UsageError as error:
            raise InputError(str(path), str(error).removeprefix("--header: "), number) from None
    return found
