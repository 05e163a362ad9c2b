"""The permit for the whole fleet, in Redis; while Redis is away, each process keeps to its share on
its own."""

import logging
import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

import msgspec
import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError
from redis.retry import Retry

from crawler.config import DEFAULT_RATE, interval, load
from crawler.errors import ServiceError
from crawler.models import Rule
from crawler.redis_client import RedisAddress
from crawler.resilience import permit
from crawler.resilience.book import Known, capped, describe, sane
from crawler.resilience.memory import MemoryPermit, end
from crawler.resilience.permit import AHEAD_S, HEADROOM, LATE_S, OPEN_S, Answer, Ask, Domain, Report
from crawler.stack import redis_address

log = logging.getLogger(__name__)

TIMEOUT_S = 1.0
"""Of connecting and of each answer: a worker must not hang because Redis does."""
RETRY_S = 1.0
"""While Redis is away, it is tried so often."""
QUIET_S = 2.0
"""After Redis has gone, a process asks nothing for so long: others may still reach it, if only we
do not."""
RETURN_S = RETRY_S + TIMEOUT_S + AHEAD_S
"""After its return, a process books nothing for so long: by then all others have noticed, and what
they booked on their own is over."""
OFFSET_KEPT_S = 30.0
STEP_S = 1.0
"""A clock that is ahead by more than this all at once was set."""
EPOCH = "permit-epoch"
KEY = "circuit:"
"""A domain's hash is called so, followed by the domain."""
_CONSTANTS = (
    *(
        "AHEAD_S",
        "BASELINE_SHARE",
        "BATCH_S",
        "BUSY_S",
        "BUSY_STEPS",
        "HEADROOM",
        "KEEP_S",
        "LEASE_S",
        "OPEN_MOST_S",
    ),
    *(
        "OPEN_S",
        "PROBE_WAIT_S",
        "RECOVERY",
        "SLOW_S",
        "SLOW_TIMES",
        "SLOWED_BY_BLOCK",
        "SLOWED_BY_LATENCY",
    ),
    *("SLOWED_MOST", "SPREAD_S"),
)


def script() -> str:
    """The Lua text, with the constants of `permit` before it."""
    values = ", ".join(repr(getattr(permit, name)) for name in _CONSTANTS)
    text = resources.files(__package__).joinpath("permit.lua").read_text()
    return f"local {', '.join(_CONSTANTS)} = {values} {text}"


class Offset:
    """How far Redis's clock is from ours, from the quickest answer of late: an answer that was long
    on its way must not make its requests late."""

    def __init__(self) -> None:
        self._offset = self._measured = 0.0
        self._error = math.inf
        self.stepped = False
        """Whether their clock was set forward since this was last made false."""

    def behind(self, theirs: float, sent: float, received: float) -> float:
        """How many seconds ago, at `received`, their clock showed `theirs`."""
        error = (received - sent) / 2
        offset = theirs - (sent + received) / 2
        moved = abs(offset - self._offset) > error + self._error + 0.001
        self.stepped |= offset - self._offset > error + self._error + STEP_S
        if error <= self._error or moved or received - self._measured > OFFSET_KEPT_S:
            self._offset, self._error, self._measured = offset, error, received
        return min(max(0.0, received + self._offset - theirs), received - sent)


class RedisRateLimiter:
    """Implements `Permit`; every call has a deadline and none raises because Redis is away, except
    the facts."""

    def __init__(
        self,
        url: str | None = None,
        db: int | None = None,
        holder: str | None = None,
        fail_max: int | None = None,
        *,
        share: Callable[[], int] = lambda: 1,
        place: Callable[[], int] | None = None,
        clock: Callable[[], float] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """What is not given comes from the settings, and the holder's name is then a new one.

        While Redis is away, `share` says how many processes there are and `place` which of them,
        from 0, this one is; `clock` replaces Redis's own in tests.
        """
        if url is None or db is None or fail_max is None:
            settings = load()
            url = redis_address(settings) if url is None else url
            db = settings.redis_rate_limiter_db if db is None else db
            fail_max = settings.circuit_breaker_fail_max if fail_max is None else fail_max
        self._holder, self._fail_max = holder or secrets.token_hex(8), fail_max
        self._share, self._place, self._clock, self._monotonic = share, place, clock, monotonic
        self._client: redis.Redis = redis.Redis.from_url(
            RedisAddress.parse(url).for_redis(db),
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            retry=Retry(
                NoBackoff(), 0
            ),  # a connection that breaks may mean a Redis that has forgotten
        )
        self._script = script()
        self._sha = ""
        self._guard = threading.Lock()
        self._held: Counter[str] = Counter()
        self._offset = Offset()
        self._sent = self._received = 0.0
        self._intervals: dict[str, float] = {}
        self._closed_until: dict[str, tuple[float, str]] = {}
        self._closed_before: dict[str, tuple[float, str]] = {}
        self._twin: MemoryPermit | None = None
        self._tried = self._quiet_until = -math.inf

    def ask(self, asks: Sequence[Ask]) -> list[Answer]:
        """Book requests, some domains at a time; what is granted counts as in flight until it is
        reported."""
        asks = [sane(each) for each in asks]
        with self._guard:
            if self._there() and self._monotonic() >= self._quiet_until:
                try:
                    return self._shared(asks)
                except (RedisError, OSError) as error:
                    self._gone(error)
            return [self._alone(each) for each in asks]

    def report(self, reports: Sequence[Report]) -> None:
        """Say what became of requests."""
        with self._guard:
            for each in reports:
                end(self._held, each)
            if self._there():
                try:
                    self._run([self._reporting(each) for each in reports])
                except (RedisError, OSError) as error:
                    self._gone(error)
            if self._twin:
                self._twin.learn(reports)

    def renew(self, domains: Sequence[str]) -> None:
        """This holder's requests at these domains are still in flight."""
        with self._guard:
            if self._there():
                try:
                    self._run([self._call("renew", domain) for domain in domains])
                except (RedisError, OSError) as error:
                    self._gone(error)
            if self._twin:
                self._twin.renew(domains)

    def forget(self, domain: str, holder: str) -> None:
        """A holder has died: what it had in flight at a domain has ended; where Redis is away, its
        lease runs out."""
        with self._guard:
            if self._there():
                try:
                    self._run([self._call("forget", domain, holder=holder)])
                except (RedisError, OSError) as error:
                    self._gone(error)

    def domains(self, here: float | None = None) -> list[Domain]:
        """What is known of every domain; raises `ServiceError` where Redis does not answer.

        Times are those of Redis's clock; of the caller's, where that says what it shows `here`.
        """
        with self._guard, _answering():
            now = self._now()
            keys = sorted(self._client.scan_iter(f"{KEY}*", count=1000))
            pipeline = self._client.pipeline(transaction=False)
            for key in keys:
                pipeline.hgetall(key)
            found = zip(keys, pipeline.execute(), strict=True)
            known = [
                describe(_text(key).removeprefix(KEY), _known(fields), now)
                for key, fields in found
                if fields
            ]
            return known if here is None else [_moved(each, here - now) for each in known]

    def reset(self, domain: str) -> bool:
        """Forget what is known of a domain, but neither what is in flight nor what is booked;
        raises likewise."""
        with self._guard, _answering():
            return bool(self._run([self._call("reset", domain)])[0])

    def nothing_booked(self) -> None:
        """Only for who knows that no request can be on its way, because Redis is new: the first
        ones need not wait."""
        with self._guard, _answering():
            self._client.set(EPOCH, "0", nx=True)

    def can_request(self, domain: str, rule: Rule | None = None) -> bool:
        """Book one request for now, if there may be one; it is not counted as in flight.

        Without a rule, the rate is that of CRAWLER_RATE, else the usual one.
        """
        rule = rule or _usual_rule()
        return bool(self.ask([Ask(domain=domain, rule=rule, ahead_s=0.0, slots=False)])[0].starts_s)

    def record_success(self, domain: str, rule: Rule | None = None) -> None:
        """A request that `can_request` allowed went well."""
        self.report([Report(domain=domain, rule=rule or _usual_rule(), slots=0, good=True)])

    def record_failure(self, domain: str, block_type: str, rule: Rule | None = None) -> None:
        """A request that `can_request` allowed was blocked."""
        rule = rule or _usual_rule()
        self.report([Report(domain=domain, rule=rule, slots=0, good=False, block=block_type)])

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    # With Redis

    def _shared(self, asks: Sequence[Ask]) -> list[Answer]:
        # What is in flight is said with each call, so a domain that is asked about twice must hear
        # of the first answer.
        first = {each.domain: number for number, each in reversed(list(enumerate(asks)))}
        chosen = sorted(first.values())
        replies = self._run([self._asking(asks[number]) for number in chosen])
        answers = {
            number: self._answer(asks[number], reply)
            for number, reply in zip(chosen, replies, strict=True)
        }
        if others := [number for number in range(len(asks)) if number not in answers]:
            answers |= zip(others, self._shared([asks[number] for number in others]), strict=True)
        return [answers[number] for number in range(len(asks))]

    def _asking(self, ask: Ask) -> tuple[str, ...]:
        numbers = (
            repr(ask.rule.interval_s),
            str(ask.rule.at_a_time),
            str(ask.wish),
            repr(ask.ahead_s),
        )
        return self._call("ask", ask.domain, *numbers, str(int(ask.slots)))

    def _reporting(self, report: Report) -> tuple[str, ...]:
        good = "" if report.good is None else str(int(report.good))
        numbers = [repr(number) for number in capped(report)]
        ended = str(int(report.slots > 0 or report.unused > 0))
        interval_s = max(0.0, report.rule.interval_s)
        return self._call(
            "report", report.domain, repr(interval_s), str(self._fail_max), good, report.block, *numbers, ended,
            str(max(0, report.unused)), str(int(report.again)),
        )  # fmt: skip

    def _call(
        self, verb: str, domain: str, *arguments: str, holder: str | None = None
    ) -> tuple[str, ...]:
        now = repr(self._clock()) if self._clock else ""
        held = self._held.get(domain, 0)
        return (f"{KEY}{domain}", EPOCH, verb, holder or self._holder, str(held), now, *arguments)

    def _run(self, calls: list[tuple[str, ...]]) -> list[Any]:
        """Run the script for each call in one round trip; one more where Redis does not know the
        script yet."""
        if not calls:
            return []
        if not self._sha:
            self._sha = _text(self._client.script_load(self._script))
        replies = self._send(calls)
        unknown = [
            number for number, reply in enumerate(replies) if isinstance(reply, NoScriptError)
        ]
        if unknown:
            again = self._send([calls[number] for number in unknown], load=True)
            for number, reply in zip(unknown, again, strict=True):
                replies[number] = reply
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def _send(self, calls: list[tuple[str, ...]], load: bool = False) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        if load:
            pipeline.script_load(self._script)
        for call in calls:
            pipeline.evalsha(self._sha, 2, *call)
        self._sent = self._monotonic()
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        self._received = self._monotonic()
        return replies[1:] if load else replies

    def _answer(self, ask: Ask, reply: list[bytes]) -> Answer:
        now, why, wait_s, step_s, *starts = (_text(part) for part in reply)
        behind_s = (
            0.0 if self._clock else self._offset.behind(float(now), self._sent, self._received)
        )
        if kept := self._kept(ask.domain):
            return kept
        in_time = tuple(
            max(0.0, float(start) - behind_s)
            for start in starts
            if float(start) >= behind_s - LATE_S
        )
        self._remember(ask, why, float(wait_s), float(step_s) * HEADROOM)
        if ask.slots and in_time:
            self._held[ask.domain] += len(in_time)
        if len(in_time) < len(starts):
            why = why or "rate"
        return Answer(starts_s=in_time, wait_s=max(0.0, float(wait_s) - behind_s), why=why)

    def _kept(self, domain: str) -> Answer | None:
        """What a domain said before Redis's clock was set forward: it is still closed for as long
        as it said then."""
        if self._offset.stepped:
            self._offset.stepped = False
            self._closed_before |= self._closed_until
        until, why = self._closed_before.get(domain, (-math.inf, ""))
        if (wait_s := until - self._monotonic()) > 0:
            return Answer(wait_s=wait_s, why=why)
        self._closed_before.pop(domain, None)
        return None

    def _remember(self, ask: Ask, why: str, wait_s: float, interval_s: float) -> None:
        """What is to be kept to also while Redis is away."""
        self._closed_until.pop(ask.domain, None)
        self._intervals.pop(ask.domain, None)
        if why in ("open", "retry after"):
            self._closed_until[ask.domain] = (self._monotonic() + wait_s, why)
        if interval_s > ask.rule.interval_s:
            self._intervals[ask.domain] = interval_s

    def _now(self) -> float:
        if self._clock:
            return self._clock()
        seconds, micros = self._client.time()
        return float(seconds) + float(micros) / 1e6

    # Without Redis

    def _there(self) -> bool:
        """Whether Redis answers, as far as is known; tries it again now and then."""
        if not self._twin:
            return True
        if self._monotonic() < self._tried + RETRY_S:
            return False
        try:
            # A server that answers but takes no writes is no better than none.
            self._client.set(EPOCH, repr(self._now()), nx=True)
        except (RedisError, OSError):
            self._tried = self._monotonic()
            return False
        self._twin = None
        self._quiet_until = self._monotonic() + RETURN_S
        log.warning(
            "Redis is back: in %.1f s the limits of each domain are shared by all processes again",
            RETURN_S,
        )
        return True

    def _gone(self, error: Exception) -> None:
        self._tried = self._monotonic()
        self._quiet_until = self._tried + QUIET_S
        self._twin = MemoryPermit(
            self._holder, self._fail_max, clock=self._clock or time.monotonic, held=self._held
        )
        log.warning(
            "Redis does not answer (%s): until it does, this process keeps to a share of 1/%d of each domain's "
            "limits on its own, beginning in %.0f s; what other machines do is not known to it",
            error, max(1, self._share()), QUIET_S,
        )  # fmt: skip

    def _alone(self, ask: Ask) -> Answer:
        """What this process may do on its own: its share of the limits, and nothing at first."""
        quiet_s = self._quiet_until - self._monotonic()
        if not self._twin or quiet_s > 0:
            return Answer(wait_s=max(quiet_s, 0.0), why="just begun")
        until, why = self._closed_until.get(ask.domain, (-math.inf, ""))
        if (wait_s := until - self._monotonic()) > 0:
            return Answer(wait_s=wait_s, why=why)
        share = max(1, self._share())
        interval_s = max(ask.rule.interval_s, self._intervals.get(ask.domain, 0.0))
        rule = Rule(
            interval_s=interval_s * share,
            at_a_time=ask.rule.at_a_time and max(1, ask.rule.at_a_time // share),
        )
        mine = msgspec.structs.replace(ask, rule=rule)
        if not interval_s or self._place is None:
            return self._twin.ask([mine])[0]
        return self._in_turn(mine, interval_s / HEADROOM, share, self._place() % share)

    def _in_turn(self, ask: Ask, step_s: float, share: int, place: int) -> Answer:
        """On a grid of the machine's monotonic clock, whose points belong to the processes in turn:
        shares that begin at any time would keep to the rate on average only."""
        assert self._twin is not None
        now = self._clock() if self._clock else time.monotonic()

        def point(at: float) -> float:
            return (math.ceil(at / step_s / share - place / share) * share + place) * step_s

        first_s = point(now) - now
        if first_s > ask.ahead_s:
            return Answer(wait_s=first_s - ask.ahead_s, why="rate")
        answer = self._twin.ask([msgspec.structs.replace(ask, wish=min(ask.wish, 1))])[0]
        return msgspec.structs.replace(
            answer, starts_s=tuple(point(now + each) - now for each in answer.starts_s)
        )


class _answering:
    """Errors of Redis as one clear line."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RedisError | OSError):
            raise ServiceError(f"Redis does not answer ({error})") from None


def _moved(about: Domain, seconds: float) -> Domain:
    """A domain by a clock that shows so much more."""
    names = ("opened_at", "open_until", "not_before", "next_at")
    times = {name: at + seconds for name in names if (at := getattr(about, name)) is not None}
    return msgspec.structs.replace(about, **times)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _usual_rule() -> Rule:
    return Rule(interval_s=interval(load().rate or DEFAULT_RATE))


def _known(fields: dict[bytes, bytes]) -> Known:
    """A hash as the value that the twin keeps."""
    texts = {_text(name): _text(value) for name, value in fields.items()}
    leases = {
        name[5:]: value.split(" ") for name, value in texts.items() if name.startswith("held:")
    }

    def number(name: str, default: float = 0.0) -> float:
        return float(texts.get(name, default))

    def moment(name: str) -> float | None:
        return float(texts[name]) if name in texts else None

    return Known(
        seen=number("seen"),
        tat=moment("tat"),
        rule=Rule(interval_s=number("interval"), at_a_time=int(number("at_a_time"))),
        leases={who: (int(count), float(expiry)) for who, (count, expiry) in leases.items()},
        state=texts.get("state", "CLOSED"),
        failures=int(number("failures")),
        last_block=texts.get("last_block", ""),
        opened_at=moment("opened_at"),
        open_until=moment("open_until"),
        open_for=number("open_for", OPEN_S),
        probe=texts.get("probe", ""),
        probe_until=number("probe_until"),
        slowed=number("slowed", 1.0),
        baseline=number("baseline"),
        crawl_delay=number("crawl_delay"),
        not_before=moment("not_before"),
    )
