"""How real Gateways of this family behave, played for tests: one in Go, and one in Python."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from crawler.gateway.reference.bodies import MAX_ERRORS, Failure
from crawler.gateway.reference.books import SOON_S, Answer, Books, Given, NewResult

KINDS = ("parcel", "party")
"""The types of tasks that the one in Python has paths for."""
LIMITS = {"parcel_id": 255, "platform": 64, "state": 8, "county": 255}
"""The columns that a result is stored under, and how many characters fit into each."""


class GoBooks(Books):
    """One task per platform and priority, no Idempotency-Key, and results under their natural
    key."""

    like = "go"
    aborts = False
    """Whether one bad result undoes those before it, although they were counted."""

    def give(
        self,
        worker: str,
        capacity: int,
        platforms: Sequence[str],
        key: str | None,
        kind: str | None = None,
    ) -> Given:
        """Hand out one task of each priority every time a platform is named."""
        self.hear(worker)
        named = platforms or [
            name for (name,) in self.db.all("SELECT DISTINCT platform FROM tasks ORDER BY 1")
        ]
        bodies: list[msgspec.Raw] = []
        for platform in named:
            for priority in range(1, 5):
                row = self.db.one(
                    "UPDATE tasks SET state = 'held', holder = ?1, held_at = ?2 WHERE id = ("
                    "SELECT id FROM tasks WHERE state = 'available' AND platform = ?3 AND priority = ?4 "
                    "AND (?5 IS NULL OR body ->> '$.type' = ?5) ORDER BY id LIMIT 1) AND ?6 RETURNING body",
                    (worker, self._clock(), platform, priority, kind, len(bodies) < capacity),
                )
                bodies += [msgspec.Raw(row[0].encode())] if row else []
        return Given(bodies, SOON_S if bodies else self._idle_s)

    def fail(self, worker: str, task_id: str, why: Failure) -> bool:
        """Note a failure; one of a task that is not this worker's is heard, and changes nothing."""
        self.hear(worker)
        if not self.db.one(
            "SELECT 1 FROM tasks WHERE (task_id, state, holder) = (?, 'held', ?)", (task_id, worker)
        ):
            return False
        return super().fail(worker, task_id, why)

    def deliver(
        self,
        worker: str,
        items: Sequence[NewResult | str],
        *,
        late: bool = False,
        key: str | None = None,
        sha256: str = "",
        left_out: frozenset[int] = frozenset(),
        kind: str | None = None,
    ) -> Answer:
        """Store results under their natural key: two without one are the same row."""
        self.hear(worker)
        inserted = updated = 0
        errors: list[str] = []
        self.db.execute("SAVEPOINT batch")
        for place, item in enumerate(items):
            problem = "try again later" if place in left_out else self._problem(item)
            if self.aborts and errors:
                problem = "current transaction is aborted"
            if problem or isinstance(item, str):
                errors.append(problem or "")
            elif self._store(worker, item, late, _natural_key(item, kind)):
                inserted += 1
            else:
                updated += 1
        if self.aborts and errors:
            self.db.execute("ROLLBACK TO batch")
        self.db.execute("RELEASE batch")
        counts = {"inserted": inserted, "updated": updated, "failed": len(errors)}
        return Answer(
            msgspec.json.encode(counts | {"errors": errors[:MAX_ERRORS] or None}), again=False
        )

    def _problem(self, item: NewResult | str) -> str | None:
        """Why the database does not take a result."""
        if isinstance(item, str):
            return item
        fields = msgspec.json.decode(item.body)
        for name, most in LIMITS.items():
            if len(fields.get(name) or "") > most:
                return f"value too long for type character varying({most})"
        return None


class PythonBooks(GoBooks):
    """One bad result aborts its whole batch, and a time must not name a zone."""

    like = "python"
    aborts = True

    def _problem(self, item: NewResult | str) -> str | None:
        problem = super()._problem(item)
        if problem or isinstance(item, str):
            return problem
        at = datetime.fromisoformat(msgspec.json.decode(item.body)["scraped_at"])
        return "can't subtract offset-naive and offset-aware datetimes" if at.tzinfo else None


def _natural_key(item: NewResult, kind: str | None) -> str:
    fields: dict[str, Any] = msgspec.json.decode(item.body)
    return msgspec.json.encode([kind, *(fields.get(name) or "" for name in LIMITS)]).decode()


BOOKS: dict[str | None, type[Books]] = {kind.like: kind for kind in (Books, GoBooks, PythonBooks)}
