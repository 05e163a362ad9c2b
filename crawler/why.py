"""The whole timeline of a task, put together from what the ledger noted about it."""

from typing import Any

import msgspec

from crawler.db.acts import HELD
from crawler.db.books import NOTED_FILE, THEIRS
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


_COLUMNS = (
    "task_id", "url", "status", "error_type", "error_message", "imported_at", "source", "source_file", "source_line",
    "source_item", "queue", "priority", "deadline", "not_before", "leased_at", "owner", "message_id", "published_at",
    "external_id", "parcel_id", "domain",
)  # fmt: skip


def timeline(lpm: LocalPersistenceManager, task: int, look: Waits | None = None) -> Timeline:
    """What happened to a task, from the line of its file to its delivery; and by `look` what it
    waits for."""
    db = lpm.ledger.db
    [row] = db.all(
        f"""SELECT {", ".join(_COLUMNS)}, (SELECT name FROM jobs WHERE id = job_id), {NOTED_FILE.format("t")}
            FROM tasks t WHERE id = ?""",
        (task,),
    )
    facts = dict(zip((*_COLUMNS, "job", "noted_file"), row, strict=True))
    steps = [Step(facts["imported_at"], "imported", _without_none(_origin(facts)))]
    steps += [
        Step(None, "also wanted", {"job": job, "file": file, "line": line} | _item(item))
        for job, file, line, item in db.execute(
            f"""SELECT name, ifnull({NOTED_FILE.format("l")}, source_file), source_line, source_item
                FROM job_links l JOIN jobs ON jobs.id = l.job_id
                WHERE task = ? ORDER BY 1, file_number, source_line, source_item""",
            (task,),
        )
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
    job = lpm.ledger.job(facts["job"]) if facts["job"] else None
    if facts["status"] == "processing":
        return look.of_page(job, task)
    found = look.of(job, lpm.ledger.progress(job))
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
    rows = lpm.ledger.db.all(
        "SELECT at, kind, detail FROM events WHERE task = ? ORDER BY id", (task,)
    )
    for at, kind, text in rows:
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
        steps.append(Step(None, "due", {"queue": facts["queue"], "ahead": _ahead(lpm, task)}))
    return steps


def _ahead(lpm: LocalPersistenceManager, task: int) -> int:
    """How many due tasks go first."""
    [(count,)] = lpm.ledger.db.all(
        """SELECT count(*) FROM tasks o JOIN tasks t ON t.id = ?
           WHERE o.status = 'pending' AND o.not_before = 0 AND (o.queue = 'urgent' OR t.queue = 'default')
           AND (o.queue <> t.queue OR (o.priority, o.deadline, o.id + o.failures * 1000)
                                      < (t.priority, t.deadline, t.id + t.failures * 1000))""",
        (task,),
    )
    return int(count)


def _handed_over(lpm: LocalPersistenceManager, task: int) -> list[Step]:
    """The result, and the ways it left."""
    db = lpm.ledger.db
    row = db.one(
        """SELECT r.scraped_at, r.status_code, r.verdict, r.bytes, r.parser || ' ' || r.parser_version, r.body_sha256,
               r.raw_segment, o.state, o.synced_at, o.archived_at, t.job_id,
               (SELECT max(id) FROM events WHERE task = t.id AND kind = 'completed'), r.site || ' ' || r.site_version,
               (SELECT task_id FROM tasks s WHERE s.id = r.same_as), o.late, o.code, o.problem
           FROM results r JOIN outbox o ON o.task = r.task JOIN tasks t ON t.id = r.task WHERE r.task = ?""",
        (task,),
    )
    if row is None:
        return []
    (
        scraped_at,
        status,
        verdict,
        size,
        parser,
        digest,
        segment,
        state,
        synced_at,
        archived_at,
        job_id,
        event,
        site,
        same_as,
        late,
        code,
        problem,
    ) = row
    facts = {
        "status": status,
        "verdict": verdict,
        "bytes": size,
        "parser": parser,
        "site": site,
        "sha256": digest,
    }
    if same_as:
        facts["same content as task"] = same_as
    steps = [Step(None, "result", facts | {"raw": segment or "not kept"})]
    exports = db.execute(
        """SELECT at, file, format, results FROM exports WHERE horizon >= ? AND (since IS NULL OR since <= ?)
           AND (job_id IS NULL OR job_id = ? OR EXISTS (
               SELECT 1 FROM job_links l WHERE l.task = ? AND l.job_id = exports.job_id)) ORDER BY at""",
        (event or 0, scraped_at, job_id, task),
    )
    steps += [
        Step(at, "exported", {"file": file, "format": form, "with": count})
        for at, file, form, count in exports
    ]
    if archived_at:
        steps.append(Step(archived_at, "archived"))
    told = _without_none(
        {
            "late": "its deadline had passed" if late else None,
            "code": code or None,
            "because": problem,
        }
    )
    if state == "held":
        steps.append(
            Step(
                None,
                "held",
                {"because": "standalone results go to a Gateway only by an explicit command"},
            )
        )
    else:
        steps.append(Step(synced_at if state == "synced" else None, _DELIVERY[state], told))
    return steps


_DELIVERY = {"ready": "to be synced", "synced": "synced", "rejected": "rejected"}


def _reported(lpm: LocalPersistenceManager, task: int) -> list[Step]:
    """What a Gateway has heard of an end without a result."""
    row = lpm.ledger.db.one(
        "SELECT state, synced_at, code, problem FROM reports WHERE task = ?", (task,)
    )
    if row is None:
        return []
    state, synced_at, code, problem = row
    what = {"ready": "to be reported", "synced": "reported", "rejected": "rejected"}[state]
    return [Step(synced_at, what, _without_none({"code": code, "because": problem}))]


def _without_none(detail: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in detail.items() if value is not None}
