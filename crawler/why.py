"""The whole timeline of a task, put together from what the ledger noted about it."""

from typing import Any

import msgspec

from crawler.db.store import HELD, THEIRS
from crawler.lpm import LocalPersistenceManager
from crawler.models import NO_DEADLINE, Rule, Wait
from crawler.standstill import Waits


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


def timeline(lpm: LocalPersistenceManager, task: int, look: Waits | None = None) -> Timeline:
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
    lpm: LocalPersistenceManager, look: Waits, task: int, facts: dict[str, Any]
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
