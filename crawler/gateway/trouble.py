"""A Gateway that does not answer: said once, waited for longer and longer, and said once more when
it is back."""

import contextlib
import logging
import random
from collections.abc import Callable

from crawler.errors import CrawlerError, GatewayError, StoreError

log = logging.getLogger(__name__)

FIRST_S, LONGEST_S = 0.5, 30.0


class Trouble:
    """What one service knows of the Gateway's failures in a row."""

    def __init__(
        self,
        service: str,
        longest_s: float = LONGEST_S,
        jitter: Callable[[], float] = random.random,
        note: Callable[[str | None], None] = lambda text: None,
    ) -> None:
        """`note` is told what is wrong when that begins, and None when it is over."""
        self._service, self._longest_s, self._jitter, self._note = service, longest_s, jitter, note
        self._failures = 0
        self.now: str | None = None
        """What is wrong at the moment."""

    def met(self, error: CrawlerError) -> float:
        """Note a failure; returns how long to wait: as long as the Gateway asks for, or twice as
        long each time."""
        if self.now is None:
            log.warning("%s waits: %s", self._service, error)
            self._tell(str(error))
        self.now = str(error)
        wait_s: float = min(self._longest_s, FIRST_S * 2 ** min(self._failures, 10)) * (
            0.5 + 0.5 * self._jitter()
        )
        self._failures += 1
        asked_s = error.retry_after_s if isinstance(error, GatewayError) else None
        return max(wait_s, asked_s or 0.0)

    def over(self) -> None:
        """Note a good answer."""
        if self.now is not None:
            log.warning("%s goes on: the Gateway answers again", self._service)
            self._tell(None)
        self.now, self._failures = None, 0

    def _tell(self, text: str | None) -> None:
        with contextlib.suppress(StoreError):  # that may be the trouble
            self._note(text)
