"""What happened: the timeline of a task, and the requests that went to a domain."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from crawler.db.store import HELD, THEIRS
from crawler.lpm import LocalPersistenceManager
from crawler.models import NO_DEADLINE, Job, Rule, Sent, Wait
from crawler.waits import WaitFinder


class Step(msgspec.Struct, frozen=True):
    """One thing that happened to a task; `at` is missing where only the fact is known."""

    at: float | None
    what: str
    detail: dict[str, Any] = {}


class Timeline(msgspec.Struct, frozen=True):
    """A task and all that happened to it, in order."""

    task_id: str
    their_id: str | None
    """What a Gateway calls it."""
    url: str
    status: str
    reason: str | None
    message: str | None
    steps: list[Step]
    waits: list[Wait] = []
    """What keeps it from going on."""


def timeline(lpm: LocalPersistenceManager, task: int, look: WaitFinder | None = None) -> Timeline:
    """What happened to a task, from the line of its file to its delivery; and by `look` what it
    waits for."""
    facts = lpm.timeline.task(task)
    steps = [Step(facts["imported_at"], "imported", _without_none(_origin(facts)))]
    steps += [
        Step(None, "also wanted", {"job": job, "file": file, "line": line} | _item(item))
        for job, file, line, item in lpm.timeline.links(task)
    ]
    steps += _events(lpm, task, facts)
    steps += _handed_over(lpm, task) or _reported(lpm, task)
    return Timeline(
        task_id=facts["task_id"],
        their_id=facts["external_id"] if facts["source"] in THEIRS else None,
        url=facts["url"],
        status=facts["status"],
        reason=facts["error_type"],
        message=facts["error_message"],
        steps=steps,
        waits=_waits(lpm, look, task, facts) if look else [],
    )


def _waits(
    lpm: LocalPersistenceManager, look: WaitFinder, task: int, facts: dict[str, Any]
) -> list[Wait]:
    """What keeps all of its job from going on, or what is due at its domain; its own next attempt
    is a step. One that is being worked on waits for its permit or its server."""
    if facts["status"] not in ("pending", "processing"):
        return []
    job = lpm.jobs.named(facts["job"]) if facts["job"] else None
    if facts["status"] == "processing":
        return look.of_page(job, task)
    found = look.of(job, lpm.counts.progress(job))
    return [
        wait
        for wait in found
        if wait.domain in ("", facts["domain"]) and wait.kind not in ("retry", "page")
    ]


def _origin(facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "door": facts["source"],
        "file": facts["noted_file"] or facts["source_file"],
        "line": facts["source_line"],
        **_item(facts["source_item"]),
        "job": facts["job"],
        "their task" if facts["source"] in THEIRS else "call": facts["external_id"],
        "queue": facts["queue"],
        "priority": facts["priority"],
        "parcel": facts["parcel_id"] or None,
        "deadline": facts["deadline"] if facts["deadline"] < NO_DEADLINE else None,
    }


def _item(number: int) -> dict[str, int]:
    """The how-many-eth row of its line, where that has several."""
    return {"item": number} if number > 1 else {}


def _events(lpm: LocalPersistenceManager, task: int, facts: dict[str, Any]) -> list[Step]:
    """What the ledger noted, with the waits in between; then where the task stands now."""
    steps, ready = [], facts["imported_at"]
    for at, kind, text in lpm.timeline.events(task):
        detail = msgspec.json.decode(text)
        claimed = detail.pop("claimed_at", None)
        detail.pop("record_crc32", None)
        if claimed is not None:
            steps.append(
                Step(claimed, "claimed", {"waited_s": round(max(0.0, claimed - ready), 3)})
            )
        if len(sent := detail.pop("sent", [])) > 1:
            detail["requests"] = len(sent)
        if "limit" in detail:
            detail["limit"] = str(msgspec.convert(detail["limit"], Rule))
        steps.append(Step(at, kind, detail))
        ready = detail.get("not_before") or at
    if facts["published_at"] and facts["status"] == "pending" and facts["message_id"]:
        steps.append(Step(facts["published_at"], "in Redis", {"message": facts["message_id"]}))
    if facts["status"] == "processing":
        steps.append(Step(facts["leased_at"], "claimed", {"owner": facts["owner"]}))
    elif facts["status"] == "pending" and facts["not_before"] >= HELD:
        steps.append(Step(None, "on hold", {"because": "its job is paused"}))
    elif facts["status"] == "pending" and facts["not_before"]:
        steps.append(Step(None, "waits", {"until": facts["not_before"]}))
    elif facts["status"] == "pending":
        ahead = lpm.timeline.tasks_ahead(task)
        steps.append(Step(None, "due", {"queue": facts["queue"], "ahead": ahead}))
    return steps


def _handed_over(lpm: LocalPersistenceManager, task: int) -> list[Step]:
    """The result, and the ways it left."""
    result = lpm.timeline.result(task)
    if result is None:
        return []
    names = ("status", "verdict", "bytes", "parser", "site", "sha256")
    facts = {name: result[name] for name in names}
    if result["same_as"]:
        facts["same content as task"] = result["same_as"]
    steps = [Step(None, "result", facts | {"raw": result["segment"] or "not kept"})]
    steps += [
        Step(at, "exported", {"file": file, "format": form, "with": count})
        for at, file, form, count in lpm.timeline.exports(task, result)
    ]
    if result["archived_at"]:
        steps.append(Step(result["archived_at"], "archived"))
    state = result["state"]
    if state == "held":
        why = "standalone results go to a Gateway only by an explicit command"
        steps.append(Step(None, "held", {"because": why}))
    else:
        told = {
            "late": "its deadline had passed" if result["late"] else None,
            "code": result["code"] or None,
            "because": result["problem"],
        }
        at = result["synced_at"] if state == "synced" else None
        steps.append(Step(at, _DELIVERY[state], _without_none(told)))
    return steps


_DELIVERY = {"ready": "to be synced", "synced": "synced", "rejected": "rejected"}


def _reported(lpm: LocalPersistenceManager, task: int) -> list[Step]:
    """What a Gateway has heard of an end without a result."""
    report = lpm.timeline.report(task)
    if report is None:
        return []
    state, synced_at, code, problem = report
    what = {"ready": "to be reported", "synced": "reported", "rejected": "rejected"}[state]
    return [Step(synced_at, what, _without_none({"code": code, "because": problem}))]


def _without_none(detail: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in detail.items() if value is not None}


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
