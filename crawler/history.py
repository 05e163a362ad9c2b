"""What happened: the timeline of a task (`why`), and the requests to a domain (`audit`).

Both come from the events that the ledger keeps.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, tzinfo
from itertools import groupby
from typing import Any

import msgspec

from crawler.db.record_versions import REPLAYED
from crawler.db.store import HELD, THEIRS
from crawler.logs import counted, shortened
from crawler.lpm import LocalPersistenceManager
from crawler.models import BROWSER, GET, NO_DEADLINE, Job, RateRule, SentRequest, Wait
from crawler.waits import WaitFinder

_RESULT_STATES = {"ready": "to be synced", "synced": "synced", "rejected": "rejected"}
_REPORT_STATES = {"ready": "to be reported", "synced": "reported", "rejected": "rejected"}
_RESULT_FIELDS = ("status", "verdict", "bytes", "parser", "site", "sha256")
_LOST_EVENTS = ("worker died", "taken back", "poison")
"""Ends of attempts whose requests were not recorded."""
_TIMES = ("not_before", "until", "deadline")
"""Details of a step that are times."""


MAX_RECORD_CHARS = 300
"""Characters of an earlier record that are shown."""
MAX_PATH = 100
"""Pages on the way from a start to a task that are shown."""


class Step(msgspec.Struct, frozen=True):
    """One event of a task; `at` is None if its time is not known."""

    at: float | None
    what: str
    detail: dict[str, Any] = {}


class TaskHistory(msgspec.Struct, frozen=True):
    """A task and all its events, in order."""

    task_id: str
    their_id: str | None
    """The Gateway's id of the task."""
    url: str
    status: str
    reason: str | None
    message: str | None
    steps: list[Step]
    waits: list[Wait] = []
    """What the task waits for."""
    versions: list[dict[str, Any]] = []
    """The records that a replay has replaced, the oldest first."""


def timeline(
    lpm: LocalPersistenceManager, task: int, finder: WaitFinder | None = None
) -> TaskHistory:
    """Return all events of a task, from its import to its delivery; with `finder` also its
    waits."""
    facts = lpm.timeline.task(task)
    what = "imported" if facts["parent"] is None else "found"
    steps = [
        Step(at, "came by", {"role": role, "url": url, "task": task_id})
        for at, role, url, task_id in lpm.timeline.path(task, MAX_PATH)
    ]
    steps.append(Step(facts["imported_at"], what, _without_none(_origin(facts))))
    steps += [
        Step(None, "also wanted", {"job": job, **_file(file), "line": line} | _item(item))
        for job, file, line, item in lpm.timeline.links(task)
    ]
    steps += _with_earlier_exports(_events(lpm, task, facts), lpm, task)
    versions = lpm.versions.versions(task)
    steps += _earlier_records(versions)
    steps += _delivery(lpm, task) or _report(lpm, task)
    their_id = None
    if facts["source"] in THEIRS:
        their_id = facts["external_id"]
    return TaskHistory(
        task_id=facts["task_id"],
        their_id=their_id,
        url=facts["url"],
        status=facts["status"],
        reason=facts["error_type"],
        message=facts["error_message"],
        steps=steps,
        waits=_waits(lpm, finder, task, facts),
        versions=versions,
    )


def step_text(step: Step, tz: tzinfo | None, day: date | None) -> str:
    """Return the details of a step as text."""
    return ", ".join(_detail_text(name, value, tz, day) for name, value in step.detail.items())


def _detail_text(name: str, value: Any, tz: tzinfo | None, day: date | None) -> str:
    """Return a detail of a step as text; a time has its date only if that is not `day`."""
    if name in _TIMES and value:
        at = datetime.fromtimestamp(value, tz).astimezone(tz)
        shown = f"{at:%H:%M:%S}"
        if at.date() != day:
            shown = f"{at:%a %d %b %Y} {shown}"
        return f"{name.replace('_', ' ')} {shown}"
    if name == "evidence" and isinstance(value, list):
        return "because " + "; ".join(value)
    if name == "evidence":
        return "\n" + "\n".join(f"      {line}" for line in str(value).splitlines())
    if isinstance(value, dict):
        return f"{name} " + ":".join(str(item) for item in value.values())
    for ending, unit in (("_ms", " ms"), ("_s", " s")):
        if name.endswith(ending):
            return f"{name.removesuffix(ending)} {value}{unit}"
    return f"{name} {value}"


def _earlier_records(versions: list[dict[str, Any]]) -> Iterator[Step]:
    """Yield the records that a replay has replaced; the current one is that of the result."""
    for each in versions:
        record = shortened(msgspec.json.encode(each["data"]).decode(), MAX_RECORD_CHARS)
        made = {"record": each["version"], "parser": each["parser"], "site": each["site"]}
        yield Step(None, "replaced", made | {"data": record})


def _waits(
    lpm: LocalPersistenceManager, finder: WaitFinder | None, task: int, facts: dict[str, Any]
) -> list[Wait]:
    """Return what an open task waits for: its permit or server, its domain, or its whole job.

    Its own next attempt is a step already.
    """
    if finder is None or facts["status"] not in ("pending", "processing"):
        return []
    job = None
    if facts["job"]:
        job = lpm.jobs.named(facts["job"])
    if facts["status"] == "processing":
        return finder.find_for_page(job, task)
    return [
        wait
        for wait in finder.find(job, lpm.counts.progress(job))
        if wait.domain in ("", facts["domain"])
        and wait.kind not in ("retry", "page")
        and (wait.kind != BROWSER or facts["needs"] == BROWSER)
    ]


def _origin(facts: dict[str, Any]) -> dict[str, Any]:
    id_name, deadline, depth, method = "call", None, None, None
    if facts["role"]:
        depth = facts["depth"]
    if facts["method"] != GET:
        method = facts["method"]
    if facts["source"] in THEIRS:
        id_name = "their task"
    if facts["deadline"] < NO_DEADLINE:
        deadline = facts["deadline"]
    return {
        "door": facts["source"],
        "file": facts["noted_file"] or facts["source_file"] or None,
        "line": facts["source_line"],
        **_item(facts["source_item"]),
        "job": facts["job"],
        id_name: facts["external_id"],
        "queue": facts["queue"],
        "priority": facts["priority"],
        "parcel": facts["parcel_id"] or None,
        "deadline": deadline,
        "role": facts["role"],
        "depth": depth,
        "method": method,
    }


def _file(path: str | None) -> dict[str, str]:
    """Return the file that a row came from; a call of a program has none."""
    return {"file": path} if path else {}


def _item(number: int) -> dict[str, int]:
    """Return the number of a row within its line, if the line has several rows."""
    if number <= 1:
        return {}
    return {"item": number}


def _events(lpm: LocalPersistenceManager, task: int, facts: dict[str, Any]) -> list[Step]:
    """Return the recorded events, each with its claim, then the present state."""
    steps, ready = [], facts["imported_at"]
    for at, kind, text in lpm.timeline.events(task):
        detail = msgspec.json.decode(text)
        claimed = detail.pop("claimed_at", None)
        detail.pop("record_crc32", None)
        detail.pop("target", None)  # the key of a URL that the message names
        if kind == REPLAYED:
            detail.pop("raw", None)  # where it was before, which the result says
        if claimed is not None:
            waited_s = round(max(0.0, claimed - ready), 3)
            steps.append(Step(claimed, "claimed", {"waited_s": waited_s}))
        if len(sent := detail.pop("sent", [])) > 1:
            detail["requests"] = len(sent)
        if rendered := detail.get("rendered"):
            requests = counted(rendered["requests"], "request")
            detail["rendered"] = f"with {requests} more, {rendered['received']:,} bytes"
        if not 0 < detail.get("not_before", 0.0) < HELD:
            detail.pop("not_before", None)  # at once, or held for the process that has it
        if "limit" in detail:
            detail["limit"] = str(msgspec.convert(detail["limit"], RateRule))
        steps.append(Step(at, kind, detail))
        ready = detail.get("not_before") or at
    if facts["status"] == "pending":
        steps += _pending(lpm, task, facts)
    elif facts["status"] == "processing":
        steps.append(Step(facts["leased_at"], "claimed", {"owner": facts["owner"]}))
    return steps


def _with_earlier_exports(steps: list[Step], lpm: LocalPersistenceManager, task: int) -> list[Step]:
    """Return the steps with the exports of records that were replaced since, each before that."""
    result = lpm.timeline.result(task)
    for at, file, form, count, is_replaced in lpm.timeline.exports(task, result) if result else []:
        if is_replaced:
            detail = {"file": file, "format": form, "with": count, "record": "an earlier one"}
            later = (
                place
                for place, step in enumerate(steps)
                if step.what == REPLAYED and step.at and step.at >= at
            )
            steps.insert(next(later, len(steps)), Step(at, "exported", detail))
    return steps


def _pending(lpm: LocalPersistenceManager, task: int, facts: dict[str, Any]) -> Iterator[Step]:
    """Yield where a pending task is, and what it waits for."""
    if facts["published_at"] and facts["message_id"]:
        yield Step(facts["published_at"], "in Redis", {"message": facts["message_id"]})
    if facts["not_before"] >= HELD:
        yield Step(None, "on hold", {"because": "its job is paused"})
    elif facts["not_before"]:
        yield Step(None, "waits", {"until": facts["not_before"]})
    else:
        ahead = lpm.timeline.tasks_ahead(task)
        yield Step(None, "due", {"queue": facts["queue"], "ahead": ahead})


def _delivery(lpm: LocalPersistenceManager, task: int) -> list[Step]:
    """Return the result, its exports, and its delivery to a Gateway."""
    result = lpm.timeline.result(task)
    if result is None:
        return []
    facts = {name: result[name] for name in _RESULT_FIELDS}
    if result["invalid"]:
        facts["invalid"] = "; ".join(msgspec.json.decode(result["invalid"]))
    if result["same_as"]:
        facts["same content as task"] = result["same_as"]
    steps = [Step(None, "result", facts | {"raw": result["segment"] or "not kept"})]
    steps += [
        Step(at, "exported", {"file": file, "format": form, "with": count})
        for at, file, form, count, is_replaced in lpm.timeline.exports(task, result)
        if not is_replaced
    ]
    if result["archived_at"]:
        steps.append(Step(result["archived_at"], "archived"))
    if result["state"] == "held":
        why = "standalone results go to a Gateway only by an explicit command"
        if result["synced_at"]:
            why = "its record was replaced since it was delivered; sync push sends it again"
        return [*steps, Step(None, "held", {"because": why})]
    late = at = None
    if result["late"]:
        late = "its deadline had passed"
    if result["state"] == "synced":
        at = result["synced_at"]
    told = {"late": late, "code": result["code"] or None, "because": result["problem"]}
    return [*steps, Step(at, _RESULT_STATES[result["state"]], _without_none(told))]


def _report(lpm: LocalPersistenceManager, task: int) -> list[Step]:
    """Return the report to a Gateway of an end without a result."""
    report = lpm.timeline.report(task)
    if report is None:
        return []
    state, synced_at, code, problem = report
    told = _without_none({"code": code, "because": problem})
    return [Step(synced_at, _REPORT_STATES[state], told)]


def _without_none(detail: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in detail.items() if value is not None}


class RecordedRequest(msgspec.Struct, frozen=True):
    """One recorded request, and the limits that applied to it."""

    began: float
    ended: float
    rule: RateRule


class Minute(msgspec.Struct, frozen=True, kw_only=True):
    """The requests to a domain within one minute."""

    at: float
    requests: int
    most_in_window: int
    most_at_a_time: int


class Breach(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that was exceeded, how often, and when first."""

    at: float
    what: str
    times: int


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """The requests to a domain: how many, how fast, how many at a time, and which limits broke."""

    domain: str
    requests: int
    unrecorded: int
    """Attempts of killed workers. They may have sent a request that was not recorded."""
    subrequests: int
    """Requests of rendered pages for other things than themselves, to whatever domains."""
    received: int
    """Bytes that rendered pages took, with these."""
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


class Subrequests(msgspec.Struct, frozen=True):
    """What rendered pages asked for besides themselves."""

    requests: int = 0
    received: int = 0


NO_SUBREQUESTS = Subrequests()


class _Detail(msgspec.Struct):
    """What an event says about requests."""

    sent: list[SentRequest] = []
    limit: RateRule = RateRule()
    began: bool = False
    rendered: Subrequests = Subrequests()


def audit(
    lpm: LocalPersistenceManager,
    domain: str | None = None,
    job: Job | None = None,
    since: float | None = None,
) -> list[Audit]:
    """Return the audit of each domain, the one with the most requests first."""
    requests: defaultdict[str, list[RecordedRequest]] = defaultdict(list)
    unrecorded: Counter[str] = Counter()
    more: defaultdict[str, Counter[str]] = defaultdict(Counter)
    rules: dict[
        RateRule, RateRule
    ] = {}  # equal rules are kept once: there may be a million requests
    for home, kind, detail in lpm.timeline.by_domain(job, since):
        noted = msgspec.json.decode(detail, type=_Detail)
        rule = rules.setdefault(noted.limit, noted.limit)
        for sent in noted.sent:
            if domain in (None, sent.domain):
                requests[sent.domain].append(
                    RecordedRequest(sent.began, sent.began + sent.seconds, rule)
                )
        if noted.rendered.received:
            more[home] += Counter(msgspec.structs.asdict(noted.rendered))
        if kind in _LOST_EVENTS and noted.began and domain in (None, home):
            unrecorded[home] += 1
    audits = [
        examine(
            name,
            found,
            unrecorded[name],
            Subrequests(more[name]["requests"], more[name]["received"]),
        )
        for name, found in requests.items()
    ]
    return sorted(audits, key=lambda each: -each.requests)


def examine(
    domain: str,
    requests: Iterable[RecordedRequest],
    unrecorded: int = 0,
    more: Subrequests = NO_SUBREQUESTS,
) -> Audit:
    """Count a domain's requests in every window, and those in flight at each moment."""
    asked = sorted(requests, key=lambda request: request.began)
    window_s = max(request.rule.window_s for request in asked)
    in_window = _in_window(asked, window_s)
    at_a_time = _at_a_time(asked)
    began, ended = asked[0].began, max(request.ended for request in asked)
    return Audit(
        domain=domain,
        requests=len(asked),
        unrecorded=unrecorded,
        subrequests=more.requests,
        received=more.received,
        began=began,
        ended=ended,
        rate=len(asked) / max(asked[-1].began - began, 1.0),
        limits=sorted({str(request.rule) for request in asked}),
        window_s=window_s,
        most_in_window=max(in_window),
        most_at_a_time=max(at_a_time),
        minutes=list(_minutes(asked, in_window, at_a_time)),
        breaches=list(_breaches(asked, at_a_time)),
    )


def _minutes(
    asked: Sequence[RecordedRequest], in_window: Sequence[int], at_a_time: Sequence[int]
) -> Iterator[Minute]:
    def minute_of(place: int) -> int:
        return int(asked[place].began // 60)

    for minute, group in groupby(range(len(asked)), key=minute_of):
        places = list(group)
        yield Minute(
            at=minute * 60.0,
            requests=len(places),
            most_in_window=max(in_window[place] for place in places),
            most_at_a_time=max(at_a_time[place] for place in places),
        )


def _in_window(asked: Sequence[RecordedRequest], window_s: float) -> Sequence[int]:
    """Return for each request how many began within the window that ends with it."""
    counts, first = array("l"), 0
    for place, request in enumerate(asked):
        while asked[first].began <= request.began - window_s:
            first += 1
        counts.append(place - first + 1)
    return counts


def _at_a_time(asked: Sequence[RecordedRequest]) -> Sequence[int]:
    """Return for each request how many were in flight when it began, with itself."""
    counts, ends, ended = array("l"), sorted(request.ended for request in asked), 0
    for place, request in enumerate(asked):
        while ends[ended] <= request.began and ended < place:
            ended += 1
        counts.append(place + 1 - ended)
    return counts


def _breaches(asked: Sequence[RecordedRequest], at_a_time: Sequence[int]) -> Iterator[Breach]:
    for rule in sorted({request.rule for request in asked}, key=str):
        places = [place for place, request in enumerate(asked) if request.rule == rule]
        if rule.interval_s:
            within = f"within {rule.window_s:g} s"
            allowed = int(rule.window_s / rule.interval_s + 1e-9)
            yield from _over(asked, places, _in_window(asked, rule.window_s), allowed, within)
        if rule.at_a_time:
            yield from _over(asked, places, at_a_time, rule.at_a_time, "at a time")


def _over(
    asked: Sequence[RecordedRequest],
    places: Sequence[int],
    counts: Sequence[int],
    allowed: int,
    how: str,
) -> Iterator[Breach]:
    """Yield a breach if more requests than allowed are counted at any of these places."""
    over = [place for place in places if counts[place] > allowed]
    if over:
        most = max(counts[place] for place in over)
        what = f"{most} requests {how}, where {allowed} were allowed"
        yield Breach(at=asked[over[0]].began, what=what, times=len(over))
