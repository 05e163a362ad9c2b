"""What a job sends along, as options of the commands that fetch."""

import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from crawler.errors import InputError, UsageError

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
