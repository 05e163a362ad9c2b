"""The doctor checks the data folder and the stack, reports problems, and repairs what it can."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import apsw
import msgspec
import psutil

from crawler import config
from crawler.config import Settings, program
from crawler.db import guard, owners
from crawler.db.connection import Database, open_to_read
from crawler.errors import ConfigError, CrawlerError, StoreError
from crawler.files import set_aside
from crawler.locks import open_lock, try_lock
from crawler.lpm import LocalPersistenceManager
from crawler.stack import read_stack

State = Literal["ok", "note", "wrong", "mended"]


class Finding(msgspec.Struct, frozen=True):
    """The result of a check, with a command that helps if there is one."""

    check: str
    state: State
    detail: str
    fix: str | None = None


class Observation(NamedTuple):
    """A finding without the name of its check."""

    state: State
    detail: str
    fix: str | None = None


class ReparsedPage(NamedTuple):
    """A stored page, parsed with the current configuration."""

    record: bytes
    content_type: str
    parser: tuple[str, str]
    site: tuple[str, str]
    body: bytes
    invalid: tuple[str, ...] = ()


Reparse = Callable[[str, str, str, bytes, str], ReparsedPage | None]
"""Parses a stored page again, given the task's URL, the final URL, the header block and the body
as received; for a file that a record names, also the name of the site that names it. Returns None
if the page has no record."""


class Context:
    """What the checks share: the data folder, the options, and the ledger."""

    def __init__(
        self,
        settings: Settings,
        repair: bool,
        progress: Callable[[str], None],
        reparse: Reparse | None = None,
    ) -> None:
        self.settings, self.repair = settings, repair
        self.progress, self.reparse = progress, reparse
        self.folder = settings.data_dir.absolute()
        self.path = self.folder / "lpm.db"
        self.stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        self.ledger_is_sound = False
        """Whether the ledger can be read and has the tables of this version."""
        self.lock = -1
        """Descriptor of the store's lock, which a repair holds."""

    @cached_property
    def db(self) -> Database:
        """The ledger, read-only: a check changes nothing, not even when it closes the file."""
        db = open_to_read(self.path, raw=True)
        # The integrity check reads each table again for every index, in another order.
        db.execute("PRAGMA cache_size=-128000")
        return db

    def close(self) -> None:
        """Close the ledger; the next use of `db` opens it again."""
        if "db" in self.__dict__:
            self.__dict__.pop("db").close(True)

    @contextmanager
    def lpm(self) -> Iterator[LocalPersistenceManager]:
        """Open the store for a repair."""
        lpm = LocalPersistenceManager(self.folder)
        lpm.store.hold(os.dup(self.lock))  # a lock of its own would wait for ours
        try:
            yield lpm
        finally:
            lpm.close()

    @property
    def in_use(self) -> bool:
        """Whether a stack or a worker runs in this folder."""
        return read_stack(self.folder).up or bool(owners.living(self.folder / "run" / "owners"))

    def set_aside(self, path: Path) -> Path:
        """Rename a damaged file within its folder."""
        return set_aside(path, f"damaged-{self.stamp}")


Check = Callable[[Context], Iterator[Observation]]


def examine(
    repair: bool,
    progress: Callable[[str], None],
    environ: Mapping[str, str] = os.environ,
    reparse: Reparse | None = None,
) -> Iterator[Finding]:
    """Run all checks; later ones build on earlier ones."""
    from crawler.doctor import ledger, machine, pages

    settings, finding = load_settings(environ)
    yield finding
    context = Context(settings, repair, progress, reparse)
    installed: dict[str, Check] = {
        "versions": machine.check_versions,
        "sites": machine.check_sites,
        "browser": machine.check_browser,
    }
    if not context.folder.exists():
        what = f"there is no store in {context.folder} yet"
        yield Finding("store", "note", what, f"{program()} run FILE")
        yield from _run(installed | {"redis": machine.check_redis_server}, context)
        return
    guard.check_kernel(context.folder)
    with exclusive(context) as refusal:
        if refusal:
            yield Finding("repair", "wrong", f"nothing is repaired: {refusal[0]}", refusal[1])
            context.repair = False
        basics: dict[str, Check] = {
            "folder": machine.check_folder,
            "inbox": machine.check_inbox,
            "stack": machine.check_processes,
            "ledger": ledger.check_database,
        }
        yield from _run(installed | basics, context)
        if context.ledger_is_sound:
            contents: dict[str, Check] = {
                "removals": ledger.check_removals,
                "books": ledger.check_balance,
                # Before leases: freeing those truncates segments to the end that the ledger knows.
                "segments": pages.check_segments,
                "captures": pages.check_captures,
                "leases": ledger.check_leases,
                "results": pages.rebuild_results,
                "projections": pages.check_pending,
                "jobs": ledger.check_jobs,
                "gateway": ledger.check_gateway,
                "clock": ledger.check_clock,
            }
            yield from _run(contents, context)
        yield from _run({"redis": machine.check_redis_server}, context)
        context.close()


def exit_code(findings: list[Finding]) -> int:
    """Return 0 if nothing is wrong any more, 1 if something is, 4 if the store is unusable."""
    wrong = {finding.check for finding in findings if finding.state == "wrong"}
    if "ledger" in wrong:
        return StoreError.exit_code
    return int(bool(wrong))


def _run(checks: Mapping[str, Check], context: Context) -> Iterator[Finding]:
    """Run checks. A check that fails is a finding, and the next one follows."""
    for name, check in checks.items():
        try:
            for seen in check(context):
                yield Finding(name, *seen)
        except CrawlerError as error:
            yield Finding(name, "wrong", str(error))
        except (apsw.Error, OSError, UnicodeDecodeError, psutil.Error) as error:
            yield Finding(name, "wrong", f"the check failed: {error}")


def load_settings(environ: Mapping[str, str]) -> tuple[Settings, Finding]:
    """Load the settings. If one is invalid, load as many as the checks need."""
    try:
        settings = config.load(environ)
        return settings, Finding("settings", "ok", "every variable is known and has a good value")
    except ConfigError as error:
        fix = "unset the variable, or give it a good value"
        finding = Finding("settings", "wrong", str(error), fix)
    for names in (("CRAWLER_DATA_DIR", "REDIS_URL"), ("CRAWLER_DATA_DIR",)):
        try:
            return config.load({name: environ[name] for name in names if name in environ}), finding
        except ConfigError:
            continue
    return Settings(), finding


def repair_command(context: Context) -> str:
    """Return the command that repairs; the stack has to be stopped first."""
    command = f"{program()} doctor --repair"
    if context.in_use:
        return f"{down_command()}, then {command}"
    return command


def down_command() -> str:
    """Return the command that stops the stack."""
    return f"{program()} down"


def resume_command(pid: int) -> str:
    """Return the command that resumes or ends a process that does not move."""
    return f"kill -CONT {pid}; where that does not help, kill -9 {pid}"


def listed(shown: list[str], total: int) -> str:
    """Join the names that are shown, and add how many more there are."""
    text = ", ".join(shown)
    if total > len(shown):
        text += f" and {total - len(shown):,} more"
    return text


@contextmanager
def exclusive(context: Context) -> Iterator[tuple[str, str | None] | None]:
    """Keep stacks and other processes out of the store during a repair. Yields why that is
    impossible, and the command that helps, or None."""
    if not context.repair:
        yield None
        return
    run = context.folder / "run"
    with ExitStack() as descriptors:
        try:
            run.mkdir(mode=0o700, exist_ok=True)
            supervisor = _open_lock(descriptors, run / "supervisor.lock")
            context.lock = _open_lock(descriptors, run / guard.LOCK)
        except OSError as error:
            yield f"{run} cannot be written ({error.strerror})", None
            return
        if not try_lock(supervisor) or context.in_use:
            what = f"a stack or a worker is at work in {context.folder}; stop it first"
            yield f"{what}: {down_command()}", down_command()
            return
        locked, user = try_lock(context.lock), _other_user(context.path)
        if user:
            yield f"another process uses the store: process {user}; wait for its end", None
        elif not locked:
            yield "another process uses the store; wait for its end", None
        else:
            yield None


def _open_lock(descriptors: ExitStack, path: Path) -> int:
    descriptor = open_lock(path)
    descriptors.callback(os.close, descriptor)
    return descriptor


def _other_user(path: Path) -> str | None:
    """Find another process, such as an import, that has the ledger open."""
    ledger = str(path.resolve())
    for process in psutil.process_iter():
        try:
            opened = process.pid != os.getpid() and process.open_files()
            if opened and any(file.path == ledger for file in opened):
                return f"{process.pid} ({process.name()})"
        except (psutil.Error, OSError):
            continue
    return None
