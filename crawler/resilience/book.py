"""What one may do at a domain, as pure functions: the same steps as in `permit.lua`."""

import math

import msgspec

from crawler.models import Rule
from crawler.resilience.permit import (
    AHEAD_S,
    BASELINE_SHARE,
    BATCH_S,
    BUSY_S,
    BUSY_STEPS,
    CRAWL_DELAY_MOST_S,
    HEADROOM,
    LEASE_S,
    NOTICE_S,
    OPEN_MOST_S,
    OPEN_S,
    PROBE_WAIT_S,
    RECOVERY,
    RETRY_AFTER_MOST_S,
    SLOW_S,
    SLOW_TIMES,
    SLOWED_BY_BLOCK,
    SLOWED_BY_LATENCY,
    SLOWED_MOST,
    SPREAD_S,
    Answer,
    Ask,
    Domain,
    Report,
)


class Known(msgspec.Struct, kw_only=True):
    """All that is shared about a domain; the fields are those of the hash in `permit.lua`."""

    seen: float
    tat: float | None = None
    cursor: float = 0.0
    busy: int = 0
    last: str = ""
    last_n: int = 0
    step: float = 0.0
    job: str = ""
    job_interval: float = 0.0
    job_tat: float = 0.0
    rule: Rule = Rule()
    leases: dict[str, tuple[int, float]] = {}
    state: str = "CLOSED"
    failures: int = 0
    last_block: str = ""
    opened_at: float | None = None
    open_until: float | None = None
    open_for: float = OPEN_S
    probe: str = ""
    probe_until: float = 0.0
    slowed: float = 1.0
    baseline: float = 0.0
    crawl_delay: float = 0.0
    not_before: float | None = None
    because: str = ""


def sane(ask: Ask) -> Ask:
    """An ask without negative or endless numbers."""
    rule = Rule(interval_s=_within(ask.rule.interval_s, 1e9), at_a_time=max(0, ask.rule.at_a_time))
    return msgspec.structs.replace(
        ask, rule=rule, wish=max(0, ask.wish), ahead_s=_within(ask.ahead_s, 1e9)
    )


def capped(report: Report) -> tuple[float, float, float]:
    """Latency, `Retry-After` and `Crawl-delay` of a report, within reason."""
    delay = -1.0 if report.crawl_delay_s < 0 else _within(report.crawl_delay_s, CRAWL_DELAY_MOST_S)
    return _within(report.latency_s, 1e9), _within(report.retry_after_s, RETRY_AFTER_MOST_S), delay


def _within(number: float, most: float) -> float:
    return min(max(0.0, number), most)  # in this order: a NaN becomes 0


def describe(domain: str, known: Known, now: float) -> Domain:
    """The live state of a domain as of now."""
    waiting = known.not_before is not None and known.not_before > now
    over = (
        known.state == "OPEN" and (known.open_until or 0.0) <= now
    )  # the next to ask gets the probe
    return Domain(
        domain=domain,
        state="HALF_OPEN" if over else known.state,
        failures=known.failures,
        opened_at=known.opened_at,
        open_until=known.open_until,
        last_block=known.last_block,
        in_flight=sum(count for count, expiry in known.leases.values() if expiry > now),
        slowed=known.slowed,
        crawl_delay_s=known.crawl_delay,
        not_before=known.not_before if waiting else None,
        because=known.because if waiting else "",
        next_at=known.tat if known.tat is not None and known.tat > now else None,
        interval_s=known.rule.interval_s,
        at_a_time=known.rule.at_a_time,
    )


def catch_up(known: Known, now: float) -> None:
    """Forget leases that have run out; a clock that was set back takes all times with it."""
    back = known.seen - now
    if back > 0:
        known.tat = known.tat - back if known.tat is not None else None
        known.cursor = known.cursor - back if known.cursor else 0.0
        known.job_tat -= back
        known.opened_at = known.opened_at - back if known.opened_at is not None else None
        known.open_until = known.open_until - back if known.open_until is not None else None
        known.probe_until = known.probe_until - back if known.probe else 0.0
        known.not_before = known.not_before - back if known.not_before is not None else None
        known.leases = {
            who: (count, expiry - back) for who, (count, expiry) in known.leases.items()
        }
    known.leases = {who: lease for who, lease in known.leases.items() if lease[1] > now}
    known.seen = now


def hold(known: Known, holder: str, count: int, now: float) -> None:
    if count > 0:
        known.leases[holder] = (count, now + LEASE_S)
    else:
        known.leases.pop(holder, None)


def _spacing(known: Known, interval_s: float) -> float:
    seconds = max(interval_s, known.crawl_delay) / HEADROOM
    return seconds * known.slowed if interval_s > 0 else seconds


def book(known: Known, ask: Ask, holder: str, held: int, epoch: float | None, now: float) -> Answer:
    """Grant what may be granted now; `held` is what the holder has in flight already."""
    probing = False
    if known.state == "OPEN":
        if now < (known.open_until or 0.0):
            return Answer(why="open", wait_s=(known.open_until or 0.0) - now)
        probing = True
    elif known.state == "HALF_OPEN":
        alive = known.probe and known.probe_until > now
        # A request that takes the place of the probe belongs to it: a redirect.
        if alive and (ask.slots or known.probe != holder):
            return Answer(why="open", wait_s=PROBE_WAIT_S)
        probing = True
    if now < (known.not_before or 0.0):
        return Answer(why="retry after", wait_s=(known.not_before or 0.0) - now)

    most, why = ask.wish, ""
    if probing and most > 1:
        most, why = 1, "open"
    if ask.rule.at_a_time > 0 and ask.slots:
        others = sum(count for who, (count, _) in known.leases.items() if who != holder)
        free_places = ask.rule.at_a_time - held - others
        if free_places < most:
            most, why = max(free_places, 0), "at a time"

    step = _spacing(known, ask.rule.interval_s)
    _raise_limit(known, ask, step, now)
    starts, tat, why = _rate(known, ask, step, most, why, epoch, now)
    if starts and step > 0:
        same = known.last == holder and known.step == step
        known.last_n = (known.last_n if same else 0) + len(starts)
        known.last, known.step, known.tat = holder, step, tat
        if (known.job, known.job_interval) != (ask.job, ask.rule.interval_s):
            known.job, known.job_interval = ask.job, ask.rule.interval_s
            known.job_tat = now + starts[0]
    if probing and starts:
        known.state, known.probe, known.probe_until = "HALF_OPEN", holder, now + LEASE_S
        return Answer(starts_s=starts, why="probe", wait_s=PROBE_WAIT_S if ask.wish > 1 else 0.0)
    if len(starts) == ask.wish:
        return Answer(starts_s=starts)
    return Answer(
        starts_s=starts, why=why, wait_s=_wait(known, ask, step, len(starts), why, tat, now)
    )


def _raise_limit(known: Known, ask: Ask, step: float, now: float) -> None:
    """Where a job has raised its own limit, drop what it has booked last under the lower one."""
    mine = ask.job and known.job == ask.job
    if mine and ask.rule.interval_s < known.job_interval:
        known.tat = min(known.tat or 0.0, max(known.job_tat, now + NOTICE_S + step))
        known.job_interval, known.last_n = ask.rule.interval_s, 0


def _rate(
    known: Known, ask: Ask, step: float, most: int, why: str, epoch: float | None, now: float
) -> tuple[tuple[float, ...], float, str]:
    """The starts that the rate allows, when the next one may be, and what limits."""
    if step <= 0:
        return (0.0,) * most, now, why
    tat, just_begun = known.tat, False
    if tat is None:
        # What was booked before all was forgotten ends by then.
        tat = now if epoch is None else epoch + AHEAD_S + step
        just_begun = tat > now
    batch = max(1, math.floor(BATCH_S / step))
    if most > batch:
        most, why = batch, "rate"
    starts: list[float] = []
    for _ in range(most):
        start = max(now, tat)
        if start - now > ask.ahead_s:
            why = "just begun" if just_begun else "rate"
            break
        starts.append(start - now)
        tat = start + step
    return tuple(starts), tat, why


def _wait(
    known: Known, ask: Ask, step: float, granted: int, why: str, tat: float, now: float
) -> float:
    """When an asker who did not get all should come back."""
    if why == "open":
        return PROBE_WAIT_S
    if why == "at a time":
        busy, known.busy = known.busy, (known.busy + 1) % BUSY_STEPS
        return BUSY_S * (busy + 1)
    # Each refused asker gets a turn of its own, so that they do not all come for the one request
    # that gets free.
    free = max(now, tat - ask.ahead_s)
    wanted = min(ask.wish - granted, max(1, math.floor(BATCH_S / step)))
    last = free + SPREAD_S
    told = known.cursor if known.cursor <= last else 0.0  # else told before the rate was raised
    turn = max(told, free) + min((wanted - 1) * step, ask.ahead_s / 2)
    if turn > last:
        return last - now
    known.cursor = min(turn + step, last)
    return turn - now


def learn(known: Known, report: Report, holder: str, fail_max: int, now: float) -> None:
    """Take in what became of a request."""
    latency_s, retry_after_s, crawl_delay_s = capped(report)
    if (
        report.unused > 0
        and known.last == holder
        and report.unused <= known.last_n
        and known.tat is not None
    ):
        tat = known.tat - report.unused * known.step
        if tat >= now:
            known.tat = tat
            known.last_n -= report.unused
    if _judge(known, report, holder, fail_max, now) and report.rule.interval_s > 0:
        _adapt(known, report, latency_s)
    if retry_after_s > 0 and now + retry_after_s > (known.not_before or 0.0):
        known.not_before, known.because = now + retry_after_s, report.because
    if crawl_delay_s:
        known.crawl_delay = max(0.0, crawl_delay_s)


def _judge(known: Known, report: Report, holder: str, fail_max: int, now: float) -> bool:
    """Whether the report counts: one of a request that ended after the circuit opened says nothing
    new."""
    if known.state == "CLOSED":
        if report.block and report.again:
            return False
        if report.block:
            known.failures += 1
            known.last_block = report.block
            if known.failures >= fail_max:
                _open(known, OPEN_S, now)
        elif report.good:
            known.failures = 0
        return True
    if known.state != "HALF_OPEN" or known.probe != holder:
        return False
    if report.block or report.good is False:
        known.failures += 1
        known.last_block = report.block or known.last_block
        _open(known, known.open_for if report.again else min(known.open_for * 2, OPEN_MOST_S), now)
    elif report.good:
        known.state, known.failures, known.last_block, known.probe = "CLOSED", 0, "", ""
        known.opened_at = known.open_until = None
        known.open_for = OPEN_S
    elif report.slots > 0 or report.unused > 0:
        known.probe = ""
    return True


def _open(known: Known, seconds: float, now: float) -> None:
    known.state, known.opened_at, known.open_until, known.open_for = (
        "OPEN",
        now,
        now + seconds,
        seconds,
    )
    known.probe = ""


def _adapt(known: Known, report: Report, latency_s: float) -> None:
    if report.block or report.good is False:
        known.slowed = min(SLOWED_MOST, known.slowed * SLOWED_BY_BLOCK)
    elif report.good:
        if known.baseline > 0 and latency_s > max(SLOW_S, SLOW_TIMES * known.baseline):
            known.slowed = min(SLOWED_MOST, known.slowed * SLOWED_BY_LATENCY)
        else:
            known.slowed = max(1.0, known.slowed * RECOVERY)
        if latency_s > 0:
            before = known.baseline or latency_s
            known.baseline = before + BASELINE_SHARE * (latency_s - before)
