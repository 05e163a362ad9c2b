"""Permits for the whole fleet, in Redis. While Redis is away, each process keeps to its share."""

import contextlib
import hashlib
import logging
import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from typing import Any

import msgspec
import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError
from redis.retry import Retry

from crawler.config import DEFAULT_RATE, interval, load
from crawler.errors import ServiceError
from crawler.models import RateRule
from crawler.redis_client import RedisAddress, driver_info
from crawler.resilience import permit
from crawler.resilience.memory import DomainState, MemoryPermit, bounded, end, sane
from crawler.resilience.permit import (
    AHEAD_S,
    HEADROOM,
    LATE_S,
    DomainStatus,
    PermitAnswer,
    PermitRequest,
    RequestReport,
)
from crawler.stack import redis_address

log = logging.getLogger(__name__)

TIMEOUT_S = 1.0
"""Limit on connecting and on each answer: a worker must not hang because Redis does."""
RETRY_S = 1.0
"""How often Redis is tried while it is away."""
QUIET_S = 2.0
"""How long a process asks nothing after it lost Redis: others may still reach it."""
RETURN_S = RETRY_S + TIMEOUT_S + AHEAD_S
"""How long a process reserves nothing after Redis is back: by then all others have noticed, and
their own reservations are over."""
OFFSET_KEPT_S = 30.0
CLOCK_STEP_S = 1.0
"""A clock that is ahead by more than this all at once was set."""
EPOCH = "permit-epoch"
KEY = "circuit:"
"""Prefix of the name of a domain's hash."""

_Clock = Callable[[], float]
_UNREACHABLE = (RedisError, OSError)


class ClockOffset:
    """How far Redis's clock is from ours, by the quickest answer of late: a slow answer must not
    make its requests late."""

    def __init__(self) -> None:
        self._offset = self._measured = 0.0
        self._error = math.inf
        self.stepped = False
        """Whether their clock was set forward since this was last made false."""

    def behind(self, theirs: float, sent: float, received: float) -> float:
        """Return how many seconds before `received` their clock showed `theirs`."""
        error = (received - sent) / 2
        offset = theirs - (sent + received) / 2
        moved = abs(offset - self._offset) > error + self._error + 0.001
        self.stepped |= offset - self._offset > error + self._error + CLOCK_STEP_S
        if error <= self._error or moved or received - self._measured > OFFSET_KEPT_S:
            self._offset, self._error, self._measured = offset, error, received
        return min(max(0.0, received + self._offset - theirs), received - sent)


class _Script:
    """`permit.lua` in one Redis; all calls of a batch take one round trip.

    A Redis that does not know the script gets it, in one more round trip.
    """

    def __init__(self, client: redis.Redis, monotonic: _Clock) -> None:
        self._client, self._monotonic = client, monotonic
        constants = {name: value for name, value in vars(permit).items() if name.isupper()}
        values = ", ".join(map(repr, constants.values()))
        text = resources.files(__package__).joinpath("permit.lua").read_text()
        self._text = f"local {', '.join(constants)} = {values} {text}"
        self._sha = hashlib.sha1(self._text.encode(), usedforsecurity=False).hexdigest()
        self.sent = self.received = 0.0
        """When the last batch was sent and answered."""

    def run(self, calls: Sequence[tuple[str, ...]]) -> list[Any]:
        """Run the script for each call, and return its replies."""
        if not calls:
            return []
        replies = self._send(calls)
        unknown = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            again = self._send([calls[i] for i in unknown], load=True)
            for i, reply in zip(unknown, again, strict=True):
                replies[i] = reply
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def _send(self, calls: Sequence[tuple[str, ...]], load: bool = False) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        if load:
            pipeline.script_load(self._text)
        for call in calls:
            pipeline.evalsha(self._sha, 2, *call)
        self.sent = self._monotonic()
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        self.received = self._monotonic()
        return replies[int(load) :]


class _OwnShare:
    """What a process may do while Redis is away: its share of the limits, and nothing at first."""

    def __init__(
        self,
        make_twin: Callable[[], MemoryPermit],
        share: Callable[[], int],
        place: Callable[[], int] | None,
        clock: _Clock,
        monotonic: _Clock,
    ) -> None:
        self._make_twin, self._share, self._place = make_twin, share, place
        self._clock, self._monotonic = clock, monotonic
        self.twin: MemoryPermit | None = None
        """Answers while Redis is away."""
        self.closed_until: dict[str, tuple[float, str]] = {}
        """Until when Redis closed a domain, and why."""
        self._intervals: dict[str, float] = {}
        self._tried = self._quiet_until = -math.inf

    @property
    def is_quiet(self) -> bool:
        """Whether Redis has just gone or come back, so that nothing may be reserved."""
        return self._monotonic() < self._quiet_until

    def begin(self, error: Exception) -> None:
        """Take over, because Redis does not answer."""
        self._tried = self._monotonic()
        self._quiet_until = self._tried + QUIET_S
        self.twin = self._make_twin()
        log.warning(
            "Redis does not answer (%s): until it does, this process keeps to a share of 1/%d of "
            "each domain's limits on its own, beginning in %.0f s; what other machines do is not "
            "known to it",
            error,
            max(1, self._share()),
            QUIET_S,
        )

    def may_end(self, try_redis: Callable[[], object]) -> bool:
        """Whether Redis answers, as far as is known; tries it now and then while it is away."""
        if not self.twin:
            return True
        if self._monotonic() < self._tried + RETRY_S:
            return False
        try:
            try_redis()
        except _UNREACHABLE:
            self._tried = self._monotonic()
            return False
        self.twin = None
        self._quiet_until = self._monotonic() + RETURN_S
        log.warning(
            "Redis is back: in %.1f s the limits of each domain are shared by all processes again",
            RETURN_S,
        )
        return True

    def remember(self, ask: PermitRequest, why: str, wait_s: float, interval_s: float) -> None:
        """Note what Redis said, to keep to it also while Redis is away."""
        self.closed_until.pop(ask.domain, None)
        self._intervals.pop(ask.domain, None)
        if why in ("open", "retry after"):
            self.closed_until[ask.domain] = (self._monotonic() + wait_s, why)
        if interval_s > ask.rule.interval_s:
            self._intervals[ask.domain] = interval_s

    def ask(self, ask: PermitRequest) -> PermitAnswer:
        """Answer for Redis."""
        if not self.twin or self.is_quiet:
            wait_s = max(self._quiet_until - self._monotonic(), 0.0)
            return PermitAnswer(wait_s=wait_s, why="just begun")
        if closed := _closed(self.closed_until, ask.domain, self._monotonic()):
            return closed
        share = max(1, self._share())
        interval_s = max(ask.rule.interval_s, self._intervals.get(ask.domain, 0.0))
        at_a_time = ask.rule.at_a_time and max(1, ask.rule.at_a_time // share)
        rule = RateRule(interval_s=interval_s * share, at_a_time=at_a_time)
        mine = msgspec.structs.replace(ask, rule=rule)
        if not interval_s or self._place is None:
            return self.twin.ask([mine])[0]
        return self._in_turn(self.twin, mine, interval_s / HEADROOM, share, self._place() % share)

    def _in_turn(
        self, twin: MemoryPermit, ask: PermitRequest, step_s: float, share: int, place: int
    ) -> PermitAnswer:
        """Answer on a grid of the machine's monotonic clock, whose points belong to the processes
        in turn: shares that begin at any time would keep to the rate on average only."""
        now = self._clock()

        def point(at: float) -> float:
            return (math.ceil(at / step_s / share - place / share) * share + place) * step_s

        first_s = point(now) - now
        if first_s > ask.ahead_s:
            return PermitAnswer(wait_s=first_s - ask.ahead_s, why="rate")
        answer = twin.ask([msgspec.structs.replace(ask, wish=min(ask.wish, 1))])[0]
        starts_s = tuple(point(now + each) - now for each in answer.starts_s)
        return msgspec.structs.replace(answer, starts_s=starts_s)


class RedisRateLimiter:
    """Implements `Permit`. Every call has a deadline. Only `domains`, `reset` and
    `nothing_booked` raise because Redis is away."""

    def __init__(
        self,
        url: str | None = None,
        db: int | None = None,
        holder: str | None = None,
        fail_max: int | None = None,
        *,
        share: Callable[[], int] = lambda: 1,
        place: Callable[[], int] | None = None,
        clock: _Clock | None = None,
        monotonic: _Clock = time.monotonic,
    ) -> None:
        """What is not given comes from the settings; the holder's name is then a new one.

        While Redis is away, `share` is the number of processes and `place` the number of this one,
        from 0. `clock` replaces Redis's own in tests.
        """
        if url is None or db is None or fail_max is None:
            settings = load()
            if url is None:
                url = redis_address(settings)
            if db is None:
                db = settings.redis_rate_limiter_db
            if fail_max is None:
                fail_max = settings.circuit_breaker_fail_max
        self._holder, self._fail_max = holder or secrets.token_hex(8), fail_max
        self._clock, self._monotonic = clock, monotonic
        self._client: redis.Redis = redis.Redis.from_url(
            RedisAddress.parse(url).for_redis(db),
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            # No retries: a connection that breaks may mean a Redis that has forgotten.
            retry=Retry(NoBackoff(), 0),
            driver_info=driver_info(),
        )
        self._script = _Script(self._client, monotonic)
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()
        self._offset = ClockOffset()
        self._closed_before: dict[str, tuple[float, str]] = {}
        """Domains that were closed when Redis's clock was set forward."""
        self._own_share = _OwnShare(
            self._make_twin, share, place, clock or time.monotonic, monotonic
        )

    def _make_twin(self) -> MemoryPermit:
        clock = self._clock or time.monotonic
        return MemoryPermit(self._holder, self._fail_max, clock=clock, held=self._held)

    def ask(self, asks: Sequence[PermitRequest]) -> list[PermitAnswer]:
        """Reserve requests. Granted ones count as in flight until they are reported."""
        asks = [sane(each) for each in asks]
        with self._lock:
            if self._answers() and not self._own_share.is_quiet:
                try:
                    return self._ask_redis(asks)
                except _UNREACHABLE as error:
                    self._own_share.begin(error)
            return [self._own_share.ask(each) for each in asks]

    def report(self, reports: Sequence[RequestReport]) -> None:
        """Say how requests ended."""
        with self._lock:
            for each in reports:
                end(self._held, each)
            self._tell([self._report_call(each) for each in reports])
            if self._own_share.twin:
                self._own_share.twin.learn(reports)

    def renew(self, domains: Sequence[str]) -> None:
        """Say that this holder's requests to these domains are still in flight."""
        with self._lock:
            self._tell([self._call("renew", domain) for domain in domains])
            if self._own_share.twin:
                self._own_share.twin.renew(domains)

    def forget(self, domain: str, holder: str) -> None:
        """Drop the requests in flight of a holder that has died. Without Redis its lease ends."""
        with self._lock:
            self._tell([self._call("forget", domain, holder=holder)])

    def domains(self, here: float | None = None) -> list[DomainStatus]:
        """Return the state of every known domain, by Redis's clock.

        With `here`, what the caller's clock shows now, times are by that clock.
        """
        with self._lock, _service_errors():
            now = self._now()
            keys = sorted(self._client.scan_iter(f"{KEY}*", count=1000))
            pipeline = self._client.pipeline(transaction=False)
            for key in keys:
                pipeline.hgetall(key)
            found = [
                _state(fields).shown(_text(key).removeprefix(KEY), now)
                for key, fields in zip(keys, pipeline.execute(), strict=True)
                if fields
            ]
        if here is None:
            return found
        return [_moved(each, here - now) for each in found]

    def reset(self, domain: str) -> bool:
        """Forget what was learned of a domain, but neither requests in flight nor reservations."""
        with self._lock, _service_errors():
            return bool(self._script.run([self._call("reset", domain)])[0])

    def nothing_booked(self) -> None:
        """Say that Redis is new, so that no request can be in flight: the first need not wait."""
        with self._lock, _service_errors():
            self._client.set(EPOCH, "0", nx=True)

    def can_request(self, domain: str, rule: RateRule | None = None) -> bool:
        """Reserve one request for now, if there may be one; it is not counted as in flight.

        Without a rule, the rate is CRAWLER_RATE, or the default one.
        """
        ask = PermitRequest(domain=domain, rule=rule or _default_rule(), ahead_s=0.0, slots=False)
        return bool(self.ask([ask])[0].starts_s)

    def record_success(self, domain: str, rule: RateRule | None = None) -> None:
        """Say that a request that `can_request` allowed went well."""
        self.report(
            [RequestReport(domain=domain, rule=rule or _default_rule(), slots=0, good=True)]
        )

    def record_failure(self, domain: str, block_type: str, rule: RateRule | None = None) -> None:
        """Say that a request that `can_request` allowed was blocked."""
        rule = rule or _default_rule()
        self.report(
            [RequestReport(domain=domain, rule=rule, slots=0, good=False, block=block_type)]
        )

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _answers(self) -> bool:
        # A server that answers but takes no writes is no better than none.
        return self._own_share.may_end(lambda: self._client.set(EPOCH, repr(self._now()), nx=True))

    def _now(self) -> float:
        if self._clock:
            return self._clock()
        seconds, micros = self._client.time()
        return float(seconds) + float(micros) / 1e6

    def _tell(self, calls: Sequence[tuple[str, ...]]) -> None:
        """Run calls that nobody waits for."""
        if self._answers():
            try:
                self._script.run(calls)
            except _UNREACHABLE as error:
                self._own_share.begin(error)

    def _ask_redis(self, asks: Sequence[PermitRequest]) -> list[PermitAnswer]:
        answers = [PermitAnswer()] * len(asks)
        left = list(range(len(asks)))
        while left:
            # Each call says what is in flight, so a second ask about a domain must wait for the
            # first answer.
            batch = set({asks[number].domain: number for number in reversed(left)}.values())
            numbers = [number for number in left if number in batch]
            replies = self._script.run([self._ask_call(asks[number]) for number in numbers])
            for number, reply in zip(numbers, replies, strict=True):
                answers[number] = self._answer(asks[number], reply)
            left = [number for number in left if number not in batch]
        return answers

    def _ask_call(self, ask: PermitRequest) -> tuple[str, ...]:
        limits = (repr(ask.rule.interval_s), str(ask.rule.at_a_time))
        wishes = (str(ask.wish), repr(ask.ahead_s), str(int(ask.slots)))
        return self._call("ask", ask.domain, *limits, *wishes, ask.job)

    def _report_call(self, report: RequestReport) -> tuple[str, ...]:
        good = ""
        if report.good is not None:
            good = str(int(report.good))
        settings = (repr(max(0.0, report.rule.interval_s)), str(self._fail_max))
        numbers = [repr(number) for number in bounded(report)]
        ended = str(int(report.slots > 0 or report.unused > 0))
        rest = (ended, str(max(0, report.unused)), str(int(report.again)), report.because)
        return self._call("report", report.domain, *settings, good, report.block, *numbers, *rest)

    def _call(
        self, verb: str, domain: str, *arguments: str, holder: str | None = None
    ) -> tuple[str, ...]:
        now = ""
        if self._clock:
            now = repr(self._clock())
        held = str(self._held.get(domain, 0))
        return (f"{KEY}{domain}", EPOCH, verb, holder or self._holder, held, now, *arguments)

    def _answer(self, ask: PermitRequest, reply: list[bytes]) -> PermitAnswer:
        now, why, wait_s, step_s, *starts = (_text(part) for part in reply)
        behind_s = 0.0
        if not self._clock:
            behind_s = self._offset.behind(float(now), self._script.sent, self._script.received)
        if closed := self._closed_before_step(ask.domain):
            return closed
        ahead = [float(start) - behind_s for start in starts]
        in_time = tuple(max(0.0, start_s) for start_s in ahead if start_s >= -LATE_S)
        self._own_share.remember(ask, why, float(wait_s), float(step_s) * HEADROOM)
        if ask.slots and in_time:
            self._held[ask.domain] += len(in_time)
        if len(in_time) < len(starts):
            why = why or "rate"
        return PermitAnswer(starts_s=in_time, wait_s=max(0.0, float(wait_s) - behind_s), why=why)

    def _closed_before_step(self, domain: str) -> PermitAnswer | None:
        """What a domain said before Redis's clock was set forward: it stays closed for as long."""
        if self._offset.stepped:
            self._offset.stepped = False
            self._closed_before |= self._own_share.closed_until
        closed = _closed(self._closed_before, domain, self._monotonic())
        if closed is None:
            self._closed_before.pop(domain, None)
        return closed


def _closed(until: dict[str, tuple[float, str]], domain: str, now: float) -> PermitAnswer | None:
    at, why = until.get(domain, (-math.inf, ""))
    if at <= now:
        return None
    return PermitAnswer(wait_s=at - now, why=why)


@contextlib.contextmanager
def _service_errors() -> Iterator[None]:
    """Turn errors of Redis into one clear line."""
    try:
        yield
    except _UNREACHABLE as error:
        raise ServiceError(f"Redis does not answer ({error})") from None


def _moved(about: DomainStatus, seconds: float) -> DomainStatus:
    """Return a domain by a clock that is ahead by so many seconds."""
    names = ("opened_at", "open_until", "not_before", "next_at")
    times = {name: at + seconds for name in names if (at := getattr(about, name)) is not None}
    return msgspec.structs.replace(about, **times)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    return str(value)


def _default_rule() -> RateRule:
    return RateRule(interval_s=interval(load().rate or DEFAULT_RATE))


def _state(fields: dict[bytes, bytes]) -> DomainState:
    """Read a hash of Redis."""
    texts = {_text(name): _text(value) for name, value in fields.items()}
    state = msgspec.convert(texts, DomainState, strict=False)
    for name, value in texts.items():
        if name.startswith("held:"):
            count, expiry = value.split(" ")
            state.leases[name.removeprefix("held:")] = (int(count), float(expiry))
    return state
