"""Every error of the package, as one tree.

CrawlerError
├── UsageError              an argument, a setting or a file cannot be used
│   ├── ConfigError         an environment variable
│   ├── InputError          an input file, by name, line and reason
│   ├── SessionCancelled    a session that takes no more URLs
│   └── StackIsUp           another stack runs in this data folder
├── ServiceError            Redis does not answer, or is not fit for use
│   └── GatewayError        the Gateway does not answer as it should; the call is repeated later
│       └── GatewayDenied   … because it does not accept our token
├── GatewayRefused          the Gateway refused a call for good
├── StoreError              the data folder cannot be used
│   └── StoreFull           … because there is no room, or no permission to write
├── UrlError                not a URL that may be fetched
├── FetchError              one fetch of one page ended without a page
├── NotNow                  a domain grants no request now; not a failure
│   └── SigningIn           … because the job has to sign in first, and that is being done or waits
└── OwnShortage             this process or machine lacks memory, descriptors or the like
    └── GaveWay             … because other pages need the memory more
"""

import errno


def place(line: int, item: int = 1) -> str:
    """Name the position of a row in its file. `item` counts the rows on its line."""
    if item == 1:
        return f"line {line}"
    return f"line {line}, item {item}"


class CrawlerError(Exception):
    """The base class. `exit_code` is the exit code of a command that ends with it."""

    exit_code = 1


class UsageError(CrawlerError):
    """An argument, a setting or a file cannot be used."""

    exit_code = 2


class ConfigError(UsageError):
    """An environment variable has a wrong name or value."""


class InputError(UsageError):
    """An input file cannot be used at all. (A single bad row is only rejected.)

    `others` are further faults of the same file, for a command that shows all of them.
    """

    def __init__(
        self,
        path: str,
        reason: str,
        line: int | None = None,
        item: int = 1,
        others: tuple["InputError", ...] = (),
    ) -> None:
        super().__init__(path, reason, line, item, others)
        self.path, self.reason, self.line, self.item = path, reason, line, item
        self.others = others

    def __str__(self) -> str:
        if self.line is None:
            return f"{self.path}: {self.reason}"
        return f"{self.path}, {place(self.line, self.item)}: {self.reason}"


class SessionCancelled(UsageError):
    """A session takes no more URLs, because it was cancelled."""


class StackIsUp(UsageError):
    """Another stack runs in this data folder, or is just starting or stopping."""


class ServiceError(CrawlerError):
    """Redis does not answer, or is set up so that it could lose messages."""

    exit_code = 3


class GatewayError(ServiceError):
    """The Gateway did not answer as it should. `retry_after_s` is the wait that it asked for."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message, retry_after_s)
        self.message, self.retry_after_s = message, retry_after_s

    def __str__(self) -> str:
        return self.message


class GatewayDenied(GatewayError):
    """The Gateway does not accept our token. The data that was sent is fine."""


class GatewayRefused(CrawlerError):
    """The Gateway refused a call for good. `status` is the HTTP status of its answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status, self.message = status, message

    def __str__(self) -> str:
        return self.message


class StoreError(CrawlerError):
    """The data folder is damaged, foreign, newer than the program, or in use by another machine."""

    exit_code = 4


class StoreFull(StoreError):
    """The disk of the data folder is full, or the folder cannot be written."""


class UrlError(UsageError):
    """Not a URL that may be fetched."""


class FetchError(CrawlerError):
    """One fetch ended without a page. `judge.decided` says what its `reason`, a short code, means
    for the task."""

    def __init__(self, reason: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason, message, retry_after_s)
        self.reason, self.message, self.retry_after_s = reason, message, retry_after_s

    def __str__(self) -> str:
        return self.message


class NotNow(CrawlerError):
    """A domain grants no request for `wait_s` seconds. The page that asked has not failed."""

    def __init__(self, domain: str, why: str, wait_s: float) -> None:
        super().__init__(domain, why, wait_s)
        self.domain, self.why, self.wait_s = domain, why, wait_s

    def __str__(self) -> str:
        return f"{self.domain} may be asked again in {self.wait_s:.1f} s ({self.why})"


class SigningIn(NotNow):
    """A page waits until its job has signed in. It is not charged for that."""


class OwnShortage(CrawlerError):
    """This process or machine lacks a resource. No page is to blame; the work is tried again.

    `unsent`: it was a request, and no byte of it was sent.
    """

    def __init__(self, message: str, unsent: bool = False) -> None:
        super().__init__(message, unsent)
        self.message, self.unsent = message, unsent

    def __str__(self) -> str:
        return self.message


class GaveWay(OwnShortage):
    """A page freed its memory for others in its process. It is fetched again later."""


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
    """Name the resource whose lack caused an error, or return an empty text.

    Libraries wrap errors in others, so the causes are examined too.
    """
    for _ in range(10):
        if error is None:
            break
        if isinstance(error, OwnShortage):
            return str(error)
        kind = type(error).__name__
        if isinstance(error, MemoryError) or kind == "NoMemError":  # SQLite's, through apsw
            return _LACKS[errno.ENOMEM]
        if isinstance(error, OSError) and error.errno in _LACKS:
            return _LACKS[error.errno]
        # Every selector was tried at start, so the parser fails for lack of memory only.
        if kind == "SelectolaxError" and str(error).startswith(_PARSER_LACKS):
            return _LACKS[errno.ENOMEM]
        if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
            return "no thread can be started (ulimit -u, or memory)"
        if error.__cause__ or error.__suppress_context__:
            error = error.__cause__
        else:
            error = error.__context__
    return ""
