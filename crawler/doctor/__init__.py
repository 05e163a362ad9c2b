"""The doctor: looks at the data folder and the stack, says what is wrong, and mends what can be
mended."""

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
    """What one check saw, what it means, and the command that helps."""

    check: str
    state: State
    detail: str
    fix: str | None = None


class Seen(NamedTuple):
    """A finding before it has the name of its check."""

    state: State
    detail: str
    fix: str | None = None


class Reread(NamedTuple):
    """What the parser makes of a stored page."""

    record: bytes
    content_type: str
    parser: tuple[str, str]
    site: tuple[str, str]
    body: bytes


Reader = Callable[[str, str, str, bytes], Reread | None]
"""Reads a stored page by its task's URL, its own, its header block and its body as received; None
if it is none."""


class Context:
    """What the checks share: the folder, how far they may go, and the ledger once it is known to be
    sound."""

    def __init__(
        self,
        settings: Settings,
        repair: bool,
        tell: Callable[[str], None],
        reread: Reader | None = None,
    ) -> None:
        self.settings, self.repair, self.tell, self.reread = settings, repair, tell, reread
        self.folder = settings.data_dir.absolute()
        self.path = self.folder / "lpm.db"
        self.stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        self.sound = False
        """Whether the ledger can be read and has this program's tables."""
        self.lock = -1
        """The store's lock, while things are mended."""

    @cached_property
    def db(self) -> Database:
        """The ledger for reading only: nothing that is looked at is changed, not even by closing
        it."""
        db = open_to_read(self.path, raw=True)
        db.execute(
            "PRAGMA cache_size=-128000"
        )  # each index is compared with its table, in another order
        return db

    def close(self) -> None:
        """Let go of the ledger; the next look opens it anew."""
        if "db" in self.__dict__:
            self.__dict__.pop("db").close(True)

    @contextmanager
    def lpm(self) -> Iterator[LocalPersistenceManager]:
        """The store for mending."""
        lpm = LocalPersistenceManager(self.folder)
        lpm.store.hold(os.dup(self.lock))  # one of its own would wait for this
        try:
            yield lpm
        finally:
            lpm.close()

    @property
    def alive(self) -> bool:
        """Whether somebody is at work here."""
        return read_stack(self.folder).up or bool(owners.living(self.folder / "run" / "owners"))

    def aside(self, path: Path) -> Path:
        """Give a damaged file another name, in its place."""
        return set_aside(path, f"damaged-{self.stamp}")


Check = Callable[[Context], Iterator[Seen]]


def examine(
    repair: bool,
    tell: Callable[[str], None],
    environ: Mapping[str, str] = os.environ,
    reread: Reader | None = None,
) -> Iterator[Finding]:
    """Every finding, in the order in which one check builds on another."""
    from crawler.doctor import ledger, machine, pages, remake, stack

    settings, trouble = _settings(environ)
    yield from trouble
    context = Context(settings, repair, tell, reread)
    if not context.folder.exists():
        yield Finding(
            "store", "note", f"there is no store in {context.folder} yet", f"{program()} run FILE"
        )
        yield from _look(
            {"versions": machine.versions, "sites": machine.sites, "redis": stack.redis_server},
            context,
        )
        return
    guard.check_kernel(context.folder)
    with _alone(context) as reason:
        if reason:
            yield Finding(
                "repair", "wrong", f"nothing is mended: {reason}", down() if context.alive else None
            )
            context.repair = False
        first = {
            "versions": machine.versions,
            "sites": machine.sites,
            "folder": machine.folder,
            "inbox": machine.inbox,
            "stack": stack.processes,
        }
        yield from _look(first, context)
        yield from _look({"ledger": ledger.database}, context)
        if context.sound:
            # Segments before leases: freeing these cuts away what the ledger does not know.
            yield from _look(
                {"books": ledger.books, "segments": pages.segments, "leases": ledger.leases},
                context,
            )
            yield from _look({"results": remake.results}, context)
            last = {"projections": pages.projections, "jobs": ledger.jobs}
            last |= {"gateway": ledger.gateway, "clock": ledger.clock}
            yield from _look(last, context)
        yield from _look({"redis": stack.redis_server}, context)
        context.close()


def exit_code(findings: list[Finding]) -> int:
    """0: nothing is wrong any more; 1: something is; 4: the store cannot be used."""
    wrong = {finding.check for finding in findings if finding.state == "wrong"}
    return StoreError.exit_code if "ledger" in wrong else int(bool(wrong))


def _look(checks: Mapping[str, Check], context: Context) -> Iterator[Finding]:
    """Run checks; one that fails itself is a finding, and the others go on."""
    for name, check in checks.items():
        try:
            for seen in check(context):
                yield Finding(name, *seen)
        except CrawlerError as error:
            yield Finding(name, "wrong", str(error))
        except (apsw.Error, OSError, UnicodeDecodeError, psutil.Error) as error:
            yield Finding(name, "wrong", f"could not be looked at: {error}")


def _settings(environ: Mapping[str, str]) -> tuple[Settings, list[Finding]]:
    """The settings, or of those that cannot be read as many as are needed to go on."""
    try:
        return config.load(environ), [
            Finding("settings", "ok", "every variable is known and has a good value")
        ]
    except ConfigError as error:
        finding = Finding(
            "settings", "wrong", str(error), "unset the variable, or give it a good value"
        )
    for names in (("CRAWLER_DATA_DIR", "REDIS_URL"), ("CRAWLER_DATA_DIR",)):
        try:
            return config.load({name: environ[name] for name in names if name in environ}), [
                finding
            ]
        except ConfigError:
            continue
    return Settings(), [finding]


def repair(context: Context) -> str:
    """What to type to have things mended; nothing is while somebody is at work here."""
    mend = f"{program()} doctor --repair"
    return f"{down()}, then {mend}" if context.alive else mend


def down() -> str:
    """The command that stops the stack."""
    return f"{program()} down"


def awaken(pid: int) -> str:
    """What helps a process that stands still, or those who wait for it."""
    return f"kill -CONT {pid}; where that does not help, kill -9 {pid}"


@contextmanager
def _alone(context: Context) -> Iterator[str]:
    """Keep stacks from starting, and others from the store, while things are mended; gives the
    reason not to."""
    if not context.repair:
        yield ""
        return
    run = context.folder / "run"
    with ExitStack() as opened:
        try:
            run.mkdir(mode=0o700, exist_ok=True)
            supervisor, context.lock = (
                _open(opened, run / name) for name in ("supervisor.lock", guard.LOCK)
            )
        except OSError as error:
            yield f"{run} cannot be written ({error.strerror})"
            return
        if not try_lock(supervisor) or context.alive:
            yield f"a stack or a worker is at work in {context.folder}; stop it first: {down()}"
            return
        alone, user = try_lock(context.lock), _user(context.path)
        who = f": process {user}" if user else ""
        yield "" if alone and not user else f"another process uses the store{who}; wait for its end"


def _open(opened: ExitStack, path: Path) -> int:
    descriptor = open_lock(path)
    opened.callback(os.close, descriptor)
    return descriptor


def _user(path: Path) -> str | None:
    """Another process that has the ledger open, such as an import."""
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and any(
                file.path == str(path.resolve()) for file in process.open_files()
            ):
                return f"{process.pid} ({process.name()})"
        except (psutil.Error, OSError):
            continue
    return None
