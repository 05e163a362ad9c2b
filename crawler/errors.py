"""Every error of the package, as one tree.

CrawlerError
├── UsageError              what was typed, configured or given cannot be used
│   ├── ConfigError         an environment variable
│   ├── InputError          an input file, by name, line and reason
│   └── StackIsUp           somebody else has a stack in this data folder
├── ServiceError            Redis does not answer, or is not fit for use
│   └── GatewayError        the Gateway does not answer as it should; what was to be said is said again later
│       └── GatewayDenied   … because it does not accept our token
├── GatewayRefused          what the Gateway will not take, however often it is sent
├── StoreError              the data folder cannot be used
│   └── StoreFull           … because there is no room, or no permission to write
├── UrlError                not a URL that may be fetched
├── FetchError              one fetch of one page ended without a page
├── NotNow                  a domain may be asked again only later; no failure
└── OwnShortage             this process or machine lacks memory, descriptors or the like; no page's fault
    └── GaveWay             … namely memory for this page, which others need more
"""

import errno


def place(line: int, item: int = 1) -> str:
    """Where a row stands in its file: `item` is the how-many-eth it is on its line."""
    return f"line {line}" if item == 1 else f"line {line}, item {item}"


class CrawlerError(Exception):
    """The root; `exit_code` is what a command ends with."""

    exit_code = 1


class UsageError(CrawlerError):
    """What was typed, configured or given cannot be used."""

    exit_code = 2


class ConfigError(UsageError):
    """An environment variable has a wrong name or value."""


class InputError(UsageError):
    """An input file cannot be used at all (a single bad row is only rejected)."""

    def __init__(self, path: str, reason: str, line: int | None = None, item: int = 1) -> None:
        super().__init__(path, reason, line, item)
        self.path, self.reason, self.line, self.item = path, reason, line, item

    def __str__(self) -> str:
        where = self.path if self.line is None else f"{self.path}, {place(self.line, self.item)}"
        return f"{where}: {self.reason}"


class StackIsUp(UsageError):
    """Somebody else has a stack in this data folder, or is just starting or stopping it."""


class ServiceError(CrawlerError):
    """Redis does not answer, or is set up so that it could lose messages."""

    exit_code = 3


class GatewayError(ServiceError):
    """The Gateway did not answer as it should; `retry_after_s` is how long it asked to be left
    alone."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message, retry_after_s)
        self.message, self.retry_after_s = message, retry_after_s

    def __str__(self) -> str:
        return self.message


class GatewayDenied(GatewayError):
    """The Gateway does not accept our token; nothing is wrong with what was sent."""


class GatewayRefused(CrawlerError):
    """The Gateway will not take this, however often it is sent; `status` is that of its answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status, self.message = status, message

    def __str__(self) -> str:
        return self.message


class StoreError(CrawlerError):
    """The data folder is damaged, foreign, newer than the program, or in use by another machine."""

    exit_code = 4


class StoreFull(StoreError):
    """There is no room in the data folder, or it cannot be written."""


class UrlError(UsageError):
    """Not a URL that may be fetched."""


class FetchError(CrawlerError):
    """One fetch ended without a page; `reason` is a short code, and `judge.decided` says what to do
    about it."""

    def __init__(self, reason: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason, message, retry_after_s)
        self.reason, self.message, self.retry_after_s = reason, message, retry_after_s

    def __str__(self) -> str:
        return self.message


class NotNow(CrawlerError):
    """A domain may be asked again in `wait_s` seconds; what waited for it has not failed."""

    def __init__(self, domain: str, why: str, wait_s: float) -> None:
        super().__init__(domain, why, wait_s)
        self.domain, self.why, self.wait_s = domain, why, wait_s

    def __str__(self) -> str:
        return f"{self.domain} may be asked again in {self.wait_s:.1f} s ({self.why})"


class OwnShortage(CrawlerError):
    """This process or machine lacks something; what it was needed for is tried again, and nothing
    else is to blame.

    `unsent` says that it was a request, and that nothing of it has gone out.
    """

    def __init__(self, message: str, unsent: bool = False) -> None:
        super().__init__(message, unsent)
        self.message, self.unsent = message, unsent

    def __str__(self) -> str:
        return self.message


class GaveWay(OwnShortage):
    """A page had to give way to others in the memory of its process; it is fetched again when it is
    their turn."""


_LACKS = {
    errno.EMFILE: "this process has no file descriptor left (ulimit -n)",
    errno.ENFILE: "this machine has no file descriptor left",
    errno.ENOMEM: "there is no memory left",
    errno.ENOBUFS: "there is no memory left for the network",
    errno.ENOSPC: "there is no room on the disk",
    errno.EDQUOT: "there is no room on the disk within the quota",
}


_PARSER_LACKS = ("Can't initialize", "Can't parse CSS selector", "Can't create a new node")


def shortage_of(error: BaseException | None) -> str:
    """What this process or machine lacked when an error occurred; empty where it lacked nothing.

    Libraries wrap errors in others, so causes are looked at too.
    """
    for _ in range(10):
        if error is None:
            break
        if isinstance(error, OwnShortage):
            return str(error)
        if (
            isinstance(error, MemoryError) or type(error).__name__ == "NoMemError"
        ):  # SQLite's, through apsw
            return _LACKS[errno.ENOMEM]
        if isinstance(error, OSError) and error.errno in _LACKS:
            return _LACKS[error.errno]
        # The parser says so, for want of memory, of any selector: all were tried when the process
        # started.
        if type(error).__name__ == "SelectolaxError" and str(error).startswith(_PARSER_LACKS):
            return _LACKS[errno.ENOMEM]
        if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
            return "no thread can be started (ulimit -u, or memory)"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return ""
