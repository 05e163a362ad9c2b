"""What was really asked of each domain, from the requests that workers noted, against the limits
they were to keep."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import msgspec

from crawler.lpm import LocalPersistenceManager
from crawler.models import Job, Rule, Sent


class Request(msgspec.Struct, frozen=True):
    """One request as it was noted, with the limits that it was to keep."""

    began: float
    ended: float
    rule: Rule


class Minute(msgspec.Struct, frozen=True, kw_only=True):
    """What a domain was asked for within one minute."""

    at: float
    requests: int
    most_in_window: int
    most_at_a_time: int


class Breach(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that was not kept, and when that was first seen."""

    at: float
    what: str
    times: int


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """A domain's requests: how many, how fast, how many at a time, and what was broken."""

    domain: str
    requests: int
    unrecorded: int
    """Of killed workers: begun, perhaps, and noted nowhere."""
    began: float
    ended: float
    rate: float
    """Requests a second, over the whole time."""
    limits: list[str]
    window_s: float
    most_in_window: int
    """The most requests that began in any window of that length."""
    most_at_a_time: int
    minutes: list[Minute]
    breaches: list[Breach]


def audit(
    lpm: LocalPersistenceManager,
    domain: str | None = None,
    job: Job | None = None,
    since: float | None = None,
) -> list[Audit]:
    """The audits of all domains, the one with the most requests first."""
    requests: defaultdict[str, list[Request]] = defaultdict(list)
    unrecorded: Counter[str] = Counter()
    rules: dict[Rule, Rule] = {}
    for home, kind, detail in lpm.timeline.by_domain(job, since):
        noted = msgspec.json.decode(detail, type=_Detail)
        rule = rules.setdefault(noted.limit, noted.limit)
        for sent in noted.sent:
            if domain in (None, sent.domain):
                requests[sent.domain].append(Request(sent.began, sent.began + sent.seconds, rule))
        if (
            kind in ("worker died", "taken back", "poison")
            and noted.began
            and domain in (None, home)
        ):
            unrecorded[home] += 1
    audits = [examine(name, found, unrecorded[name]) for name, found in requests.items()]
    return sorted(audits, key=lambda each: -each.requests)


class _Detail(msgspec.Struct):
    sent: list[Sent] = []
    limit: Rule = Rule()
    began: bool = False


def examine(domain: str, requests: Iterable[Request], unrecorded: int = 0) -> Audit:
    """Count a domain's requests in every window, and how many were in flight at each moment."""
    asked = sorted(requests, key=lambda request: request.began)
    window_s = max(request.rule.window_s for request in asked)
    in_window = _in_window(asked, window_s)
    at_a_time = _at_a_time(asked)
    began, ended = asked[0].began, max(request.ended for request in asked)
    return Audit(
        domain=domain,
        requests=len(asked),
        unrecorded=unrecorded,
        began=began,
        ended=ended,
        rate=len(asked) / max(asked[-1].began - began, 1.0),
        limits=sorted({str(request.rule) for request in asked}),
        window_s=window_s,
        most_in_window=max(in_window),
        most_at_a_time=max(at_a_time),
        minutes=[
            Minute(
                at=minute * 60.0,
                requests=len(places),
                most_in_window=max(in_window[place] for place in places),
                most_at_a_time=max(at_a_time[place] for place in places),
            )
            for minute, group in groupby(
                range(len(asked)), key=lambda place: int(asked[place].began // 60)
            )
            if (places := list(group))
        ],
        breaches=list(_breaches(asked, at_a_time)),
    )


def _in_window(asked: Sequence[Request], window_s: float) -> Sequence[int]:
    """For each request, how many began within the window that ends with it."""
    counts, first = array("l"), 0
    for place, request in enumerate(asked):
        while asked[first].began <= request.began - window_s:
            first += 1
        counts.append(place - first + 1)
    return counts


def _at_a_time(asked: Sequence[Request]) -> Sequence[int]:
    """For each request, how many were in flight when it began, itself included."""
    counts, ends, ended = array("l"), sorted(request.ended for request in asked), 0
    for place, request in enumerate(asked):
        while ends[ended] <= request.began and ended < place:
            ended += 1
        counts.append(place + 1 - ended)
    return counts


def _breaches(asked: Sequence[Request], at_a_time: Sequence[int]) -> Iterator[Breach]:
    for rule in sorted({request.rule for request in asked}, key=str):
        mine = [place for place, request in enumerate(asked) if request.rule == rule]
        if rule.interval_s:
            window_s = rule.window_s
            in_window = _in_window(asked, window_s)
            allowed = int(window_s / rule.interval_s + 1e-9)
            over = [place for place in mine if in_window[place] > allowed]
            if over:
                most = max(in_window[place] for place in over)
                what = f"{most} requests within {window_s:g} s, where {allowed} were allowed"
                yield Breach(at=asked[over[0]].began, what=what, times=len(over))
        if rule.at_a_time:
            over = [place for place in mine if at_a_time[place] > rule.at_a_time]
            if over:
                most = max(at_a_time[place] for place in over)
                what = f"{most} requests at a time, where {rule.at_a_time} were allowed"
                yield Breach(at=asked[over[0]].began, what=what, times=len(over))
