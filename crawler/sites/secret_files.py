"""Checks the files that the logins of sites take their secrets from.

Loading the sites reads none of them: only a job that signs in needs secrets.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from crawler.errors import InputError
from crawler.sites.crawlfile import Login

_OTHERS = 0o077


class NamedLogin(NamedTuple):
    """The login of a site, and where it is set."""

    login: Login
    path: Path
    line: int | None


class Checked(NamedTuple):
    """What is wrong with secrets files, and which of them others than their owner may use."""

    faults: list[InputError]
    exposed: list[Path]


def check(logins: Iterable[NamedLogin], folder: Path) -> Checked:
    """Check the secrets file of each login that names one; they lie in the config folder."""
    found = Checked([], [])
    for each in logins:
        if not each.login.secrets:
            continue
        file = folder / each.login.secrets
        if reason := _problem(file, each.login):
            found.faults.append(InputError(str(each.path), f"login.secrets: {reason}", each.line))
        elif file.stat().st_mode & _OTHERS and file not in found.exposed:
            found.exposed.append(file)
    return found


def _problem(file: Path, login: Login) -> str:
    from crawler.fetch.session import read_secrets  # few commands need it

    if file.exists() and not file.is_file():
        return f"{file} is not a regular file"
    try:
        given = read_secrets(file)
    except InputError as error:
        return str(error)
    missing = ", ".join(f"${name}" for name in login.form.secrets if name not in given)
    return f"{file} lacks {missing}, which the form of login needs" if missing else ""
