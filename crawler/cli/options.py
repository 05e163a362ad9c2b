"""Options and value types that several commands share."""

import math
import os
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from crawler import config, times
from crawler.errors import InputError, UsageError
from crawler.models import Fetcher, Role

if TYPE_CHECKING:
    from crawler.fetch.session import Session

T = TypeVar("T")

MAX_WORKERS = 256
_MAX_DURATION_S = 100 * 365 * 86400.0
"""A longer duration is taken for a typing error."""


class Duration(click.ParamType[float]):
    """A duration such as 90s, 45m, 12h or 7d, in seconds."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return seconds."""
        text = str(value)
        seconds = times.span(text)
        if seconds is None or seconds > _MAX_DURATION_S:
            self.fail(f"{text!r} is not a duration; write 90s, 45m, 12h or 7d", param, ctx)
        return seconds


class Deadline(click.ParamType[float]):
    """A future time: 17:00 (the next one), 45m from now, or a date with a time."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return seconds since the epoch."""
        text, now = str(value), time.time()
        if seconds := times.span(text):
            at: float | None = now + seconds
        else:
            at = times.moment(text, now, times.zone(config.load().timezone))
        if at is None or at - now > _MAX_DURATION_S:
            self.fail(f"{text!r} is not a time; write {times.FORMS}", param, ctx)
        if at <= now:
            self.fail(f"{text!r} has passed already", param, ctx)
        return at


class Number(click.FloatRange):
    """A number within limits: `nan` is within none, though no comparison says so."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number."""
        found: float = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a number", param, ctx)
        return found


class ProcessBounds(click.ParamType[tuple[int, int]]):
    """A minimum and a maximum of worker processes, such as 2,16."""

    name = "min,max"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Return the minimum and the maximum."""
        text = str(value)
        parts = text.split(",")
        if len(parts) != 2 or not all(part.isdecimal() for part in parts):
            self.fail(f"{text!r} is not a minimum and a maximum; write 2,16", param, ctx)
        least, most = map(int, parts)
        if not (least >= 1 and most <= MAX_WORKERS):
            self.fail(f"{text!r} is not within 1 and {MAX_WORKERS} processes", param, ctx)
        if least > most:
            self.fail(f"in {text!r} the minimum is above the maximum", param, ctx)
        return least, most


class PastTime(click.ParamType[float]):
    """A past time: 2h or 7d before now, 14:00 (the last one), or a date with or without a time."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return seconds since the epoch."""
        text, now = str(value), time.time()
        at = times.past(text, now, times.zone(config.load().timezone))
        if at is None or at < 0:
            self.fail(f"{text!r} is not a time; write {times.FORMS}", param, ctx)
        if at > now:
            self.fail(f"{text!r} is in the future", param, ctx)
        return at


class Rate(click.ParamType[str]):
    """A rate such as `50/s`, or `none`."""

    name = "rate"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Return the checked text."""
        text = str(value)
        try:
            config.interval(text)
        except ValueError as error:
            self.fail(f"{text!r} {error}", param, ctx)
        return text


def _set_data_dir(_context: click.Context, _option: click.Parameter, value: str | None) -> None:
    if value:
        os.environ["CRAWLER_DATA_DIR"] = value


data_dir_option = click.option(
    "--data-dir",
    type=click.Path(file_okay=False),
    expose_value=False,
    is_eager=True,
    callback=_set_data_dir,
    help="Data folder (default: CRAWLER_DATA_DIR, else ./data).",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
workers_option = click.option(
    "--workers",
    type=click.IntRange(1, MAX_WORKERS),
    help="Worker processes (default: one per core).",
)
autoscale_option = click.option(
    "--autoscale",
    type=ProcessBounds(),
    metavar="MIN,MAX",
    help="Minimum and maximum of worker processes; their number follows the load.",
)
browsers_option = click.option(
    "--browsers",
    type=click.IntRange(0, 64),
    default=0,
    help="Processes that render the pages which need a browser (default: none).",
)
job_option = click.option("--job", "job_name", help="Only this job.")
role_option = click.option(
    "--role",
    "roles",
    type=click.Choice([str(role) for role in Role]),
    multiple=True,
    help="Only this role of a crawl's tasks; repeatable.",
)
since_option = click.option(
    "--since",
    type=PastTime(),
    help="Only since this time, such as 2h (before now), 7d, 14:00, 2026-11-15, or "
    "2026-11-15T14:00.",
)
output_option = click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    required=True,
    help="File to write, or - for stdout.",
)
robots_option = click.option(
    "--ignore-robots", is_flag=True, help="Fetch pages that robots.txt forbids, too."
)
fetcher_option = click.option(
    "--fetcher",
    type=click.Choice(get_args(Fetcher)),
    help="What fetches pages (default: what the site's file says).",
)
_SESSION_OPTIONS = (
    click.option(
        "--header",
        "headers",
        multiple=True,
        metavar="'NAME: VALUE'",
        help="Send this header; repeatable. @FILE reads headers from a file, one per line, which "
        "keeps secrets out of the shell's history.",
    ),
    click.option("--user-agent", metavar="TEXT", help="Send this User-Agent."),
    click.option(
        "--cookie-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Send the cookies of this file, in the Netscape format that curl and browsers use.",
    ),
    click.option("--proxy", metavar="URL", help="Fetch through http://[user:password@]host:port."),
    click.option(
        "--secrets",
        "secrets_file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Read what $name stands for in the forms of a site's file: lines such as password=...",
    ),
)


def session_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add --header, --user-agent, --cookie-file, --proxy and --secrets; the command gets them as
    `session`."""

    @wraps(command)
    def with_session(
        headers: tuple[str, ...],
        user_agent: str | None,
        cookie_file: Path | None,
        proxy: str | None,
        secrets_file: Path | None,
        **others: Any,
    ) -> T:
        session = session_from(headers, user_agent, cookie_file, proxy, secrets_file)
        return command(session=session, **others)

    for option in reversed(_SESSION_OPTIONS):
        with_session = option(with_session)
    return with_session


def session_from(
    headers: tuple[str, ...],
    user_agent: str | None,
    cookie_file: Path | None,
    proxy: str | None,
    secrets_file: Path | None,
) -> "Session | None":
    """Return the session that the options describe, or None without any of them.

    Raises `UsageError` or `InputError`.
    """
    from msgspec.structs import replace

    from crawler.fetch import session as sessions
    from crawler.fetch.egress import parse_proxy
    from crawler.fetch.session import read_file, read_secrets

    if not headers and (user_agent, cookie_file, proxy, secrets_file) == (None,) * 4:
        return None
    pairs: list[tuple[str, str]] = []
    for text in headers:
        if text.startswith("@"):
            pairs += _headers_in(Path(text[1:]))
        else:
            pairs.append(_header(text))
    session = sessions.Session(headers=tuple(pairs), user_agent=user_agent)
    if cookie_file:
        session = replace(session, cookies=read_file(cookie_file, time.time()))
    if proxy is not None:
        session = replace(session, proxy=parse_proxy(proxy))
    if secrets_file:
        session = replace(session, secrets=read_secrets(secrets_file))
    sessions.check(session)
    return session


def _header(text: str) -> tuple[str, str]:
    from crawler.fetch.session import header_problem

    name, colon, value = text.partition(":")
    name, value = name.strip(" \t"), value.strip(" \t")
    if not colon:
        # Without the text itself, which may be a secret.
        raise UsageError("--header: a colon is missing; write 'Name: value'")
    if problem := header_problem(name, value):
        raise UsageError(f"--header: {problem}")
    return name, value


def _headers_in(path: Path) -> list[tuple[str, str]]:
    """Read headers from a file, one per line; empty lines and lines that start with # are
    skipped."""
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
