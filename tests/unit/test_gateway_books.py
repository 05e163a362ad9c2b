"""The reference Gateway's books: who gets which task, what is stored, and what is answered
twice."""

import hashlib
import io
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from crawler.config import Settings
from crawler.errors import ConfigError, GatewayRefused, StoreError, UsageError
from crawler.gateway import token
from crawler.gateway.reference import incoming
from crawler.gateway.reference.array import elements
from crawler.gateway.reference.bodies import MAX_NUMBER, MAX_RESULTS, Failure
from crawler.gateway.reference.books import (
    KEYS_KEPT_S,
    NEXT,
    NEXT_OF_PLATFORM,
    RESULTS,
    Answer,
    Books,
    Known,
    NewResult,
)
from crawler.gateway.reference.commit import Committer
from crawler.gateway.reference.contents import Contents
from crawler.gateway.reference.faults import KINDS, Dice, left_out
from crawler.gateway.reference.intake import task
from crawler.gateway.reference.schema import APPLICATION_ID
from tests.support.clock import Clock

NOW = 1_900_000_000.0


@pytest.fixture
def clock() -> Clock:
    """The time of a test."""
    return Clock(NOW)


@pytest.fixture
def books(tmp_path: Path, clock: Clock) -> Iterator[Books]:
    """Empty books whose leases last 300 s."""
    with closing(Books(tmp_path / "gateway", lease_s=300, clock=clock, ticks=clock)) as books:
        yield books


def fill(books: Books, *rows: dict[str, Any]) -> None:
    """Take rows in as tasks."""
    with books.writing():
        books.add(task(row, None, NOW) for row in rows)


def ask(
    books: Books, worker: str, capacity: int = 100, *platforms: str, key: str | None = None
) -> list[str]:
    """The ids of the tasks that a worker gets."""
    with books.writing():
        given = books.give(worker, capacity, platforms, key)
    return [msgspec.json.decode(body)["task_id"] for body in given.tasks]


def retry_after(books: Books, worker: str, capacity: int, *platforms: str) -> float:
    """When a worker is told to ask again."""
    with books.writing():
        return books.give(worker, capacity, platforms, None).retry_after


def deliver(books: Books, worker: str, *results: Any, **how: Any) -> dict[str, Any]:
    """What a worker is answered to these results."""
    answer = delivered(books, worker, *results, **how)
    facts: dict[str, Any] = json.loads(answer.body)
    return facts


def delivered(books: Books, worker: str, *results: Any, **how: Any) -> Answer:
    """The answer itself."""
    body = json.dumps(results).encode()
    with books.writing():
        return books.deliver(
            worker, incoming.results(body), sha256=hashlib.sha256(body).hexdigest(), **how
        )


def pass_time(books: Books, clock: Clock, seconds: float) -> None:
    """Let time go by while somebody is heard: the Gateway is not deaf."""
    end = clock.now + seconds
    while clock.now < end:
        clock.now = min(end, clock.now + 100)
        books.note("somebody")


def row(task_id: str, **fields: str) -> dict[str, str]:
    """A row of input."""
    return {"task_id": task_id, "platform": "beacon", "parcel_id": task_id} | fields


def test_a_row_becomes_a_task_as_the_contract_has_it() -> None:
    """Known columns have their places, all others are passed on."""
    made = task(row("t-1", priority="2", deadline="2027-01-01T00:00:00Z", colour="red"), None, NOW)

    assert json.loads(made.body) == {
        "task_id": "t-1",
        "type": "parcel",
        "platform": "beacon",
        "target": {"parcel_id": "t-1"},
        "priority": 2,
        "created_at": "2030-03-17T17:46:40Z",
        "deadline": "2027-01-01T00:00:00Z",
        "colour": "red",
    }


def test_tasks_are_handed_out_by_priority_and_import(books: Books) -> None:
    """Priority 1 comes first; among equals, what was imported first."""
    fill(
        books,
        row("a", priority="3"),
        row("b", priority="1"),
        row("c", priority="3"),
        row("d", priority="2"),
    )

    assert ask(books, "w", 2) == ["b", "d"]
    assert ask(books, "w", 9) == ["a", "c"]
    assert ask(books, "w", 9) == []


def test_a_worker_gets_only_its_platforms(books: Books) -> None:
    """A worker that names platforms gets no others; one that names none gets any, also those
    without."""
    fill(
        books,
        row("a", platform="qpublic", priority="1"),
        row("b", priority="2"),
        row("c", platform="other"),
        {"task_id": "d", "url": "http://a.example/"},
    )

    assert ask(books, "w", 9, "beacon", "qpublic", "beacon") == ["a", "b"]
    assert ask(books, "w", 9, "nowhere") == []
    assert ask(books, "w", 9) == ["c", "d"]


def test_retry_after_says_whether_more_waits(books: Books) -> None:
    """0 where more tasks wait, 5 with the last ones, 30 without any; of these platforms."""
    fill(books, row("a"), row("b"), row("c", platform="other"))

    assert retry_after(books, "w", 1, "beacon") == 0
    assert retry_after(books, "w", 1, "beacon") == 5
    assert retry_after(books, "w", 1, "beacon") == 30
    assert retry_after(books, "w", 1) == 5


def test_a_silent_worker_loses_its_tasks(books: Books, clock: Clock) -> None:
    """Any call of a worker keeps its tasks; after the lease without one, whoever asks next gets
    them."""
    fill(books, row("a"), row("b"))
    assert ask(books, "quiet", 1) == ["a"]
    assert ask(books, "lively", 1) == ["b"]

    pass_time(books, clock, 299)
    with books.writing():
        books.beat("lively", "{}", None)
    clock.now += 2

    assert ask(books, "third") == ["a"]
    pass_time(books, clock, 200)
    assert ask(books, "third") == []
    with pytest.raises(GatewayRefused, match="another worker has it") as refused, books.writing():
        books.fail("quiet", "a", Failure("late"))
    assert refused.value.status == 409


def test_a_restart_of_the_server_costs_nobody_a_task(books: Books, clock: Clock) -> None:
    """While the server was away nobody could be heard: leases begin anew."""
    fill(books, row("a"))
    ask(books, "w")
    clock.now += 5000

    with closing(Books(books.folder, lease_s=300, clock=clock, ticks=clock)) as again:
        assert ask(again, "other") == []
        pass_time(again, clock, 301)
        assert ask(again, "other") == ["a"]


def test_a_gateway_that_was_deaf_costs_nobody_a_task(books: Books, clock: Clock) -> None:
    """Where nobody at all was heard for half a lease, leases begin anew: once, until each is heard
    again."""
    fill(books, row("a"))
    ask(books, "dead")

    clock.now += 5000
    assert ask(books, "other") == []
    pass_time(books, clock, 299)
    assert ask(books, "other") == []
    pass_time(books, clock, 2)
    assert ask(books, "other") == ["a"]

    ask(books, "rare")
    for _ in range(3):  # nobody calls more often than this
        clock.now += 200
        got = ask(books, "rare")
    assert got == ["a"]


def test_the_same_key_gets_the_same_tasks(books: Books, clock: Clock) -> None:
    """A lost answer loses no task: its key gives what is still open of it, also after a restart."""
    fill(books, *(row(name) for name in "abcd"))
    assert ask(books, "w", 2, key="k") == ["a", "b"]

    assert ask(books, "w", 2, key="k") == ["a", "b"]
    with closing(Books(books.folder, clock=clock, ticks=clock)) as again:
        assert ask(again, "w", 2, key="k") == ["a", "b"]
    assert ask(books, "other", 1, key="k") == ["c"]
    deliver(books, "w", {"task_id": "a", "data": {}})
    assert ask(books, "w", 2, key="k") == ["b"]


def test_a_handout_is_known_as_long_as_one_of_its_tasks_is_held(books: Books, clock: Clock) -> None:
    """However old its key is, also over a restart; afterwards the key is forgotten after a day."""
    fill(books, *(row(name) for name in "abcd"))
    assert ask(books, "w", 2, key="k") == ["a", "b"]
    deliver(books, "w", {"task_id": "a", "data": {}})

    clock.now += 3 * KEYS_KEPT_S
    assert ask(books, "w", 2, key="k") == ["b"]
    with closing(Books(books.folder, clock=clock, ticks=clock)) as again:
        clock.now += 601
        assert ask(again, "w", 2, key="k") == ["b"]

    deliver(books, "w", {"task_id": "b", "data": {}})
    assert ask(books, "w", 1, key="k") == ["c"]
    deliver(books, "w", {"task_id": "c", "data": {}})
    assert ask(books, "w", 1, key="k") == []
    clock.now += KEYS_KEPT_S + 1
    with books.writing():
        books.hear("w")
    assert books.db.all("SELECT * FROM handouts") == []
    assert ask(books, "w", 1, key="k") == ["d"]


def test_an_answer_has_no_more_tasks_than_fit(books: Books) -> None:
    """An answer ends at 4 MiB; what did not fit is given next, and a task is given whatever its
    size."""
    fill(books, *(row(f"t-{n}", note="é" * 60_000) for n in range(60)))

    first = ask(books, "w", 60, key="k")

    assert len(first) == (4 << 20) // (120_000 + 150)
    assert ask(books, "w", 60, key="k") == first
    assert retry_after(books, "w", 1) == 0
    with books.writing():
        books.db.execute(
            "UPDATE tasks "
            "SET body = json_object('task_id', task_id, 'x', printf('%.5000000c', 'x'))"
        )
    assert len(ask(books, "w", 60)) == 1


def test_no_question_sorts_what_an_index_has_in_order(books: Books) -> None:
    """Handing out and exporting take the same time however much there is."""
    for query, values in ((NEXT, (1,)), (NEXT_OF_PLATFORM, ("beacon", 1)), (RESULTS, ())):
        plan = [step[-1] for step in books.db.all(f"EXPLAIN QUERY PLAN {query}", values)]

        assert plan
        assert not [step for step in plan if "TEMP B-TREE" in step or step.startswith("SCAN f")], (
            plan
        )


def test_a_key_gives_nothing_that_went_to_another(books: Books, clock: Clock) -> None:
    """What a worker lost by its silence, and another has, is not given to both; what nobody took,
    it gets again."""
    fill(books, row("a"), row("b"))
    ask(books, "w", key="k")
    pass_time(books, clock, 301)

    assert ask(books, "other", 1) == ["a"]
    assert ask(books, "w", key="k") == ["b"]
    assert ask(books, "other", 9) == []


def test_a_result_is_applied_once(books: Books, clock: Clock) -> None:
    """The same content again, in whatever order its keys are, is counted as updated and changes
    nothing."""
    first = deliver(books, "w", {"task_id": "a", "data": {"x": 1, "y": 2}})
    clock.now += 10
    second = deliver(books, "w2", {"data": {"y": 2, "x": 1}, "task_id": "a"}, late=True)

    assert (first["inserted"], first["updated"]) == (1, 0)
    assert (second["inserted"], second["updated"]) == (0, 1)
    [result] = books.results()
    assert (result["applied"], result["worker"], result["seq"], result["late"]) == (
        1,
        "w",
        1,
        False,
    )

    deliver(books, "w2", {"task_id": "a", "data": {"x": 3}})
    [result] = books.results()
    assert (result["applied"], result["worker"], result["data"]) == (2, "w2", {"x": 3})


@pytest.mark.parametrize(
    ("first", "second", "stays"),
    [
        ("2026-01-30T12:00:00Z", "2026-01-30T11:59:59Z", "first"),
        ("2026-01-30T12:00:00Z", "2026-01-30T12:00:00Z", "second"),
        ("2026-01-30T12:00:00Z", "2026-01-30T12:00:01Z", "second"),
        ("2026-01-30T12:00:00+02:00", "2026-01-30T11:00:00Z", "second"),
        ("2026-01-30T12:00:00", "2026-01-30T11:00:00Z", "first"),
        ("2026-01-30T12:00:00Z", "yesterday", "second"),
        ("9999-12-31T23:59:59Z", "0001-01-01T00:00:00+23:59", "first"),
        ("some day", "2026-01-30T11:00:00Z", "second"),
        (None, "2026-01-30T11:00:00Z", "second"),
    ],
)
def test_an_older_result_replaces_no_newer_one(
    books: Books, first: str | None, second: str, stays: str
) -> None:
    """What was scraped before what is there is counted as updated and not applied, where both
    moments are known."""
    deliver(books, "w", {"task_id": "a", "data": {"n": "first"}, "scraped_at": first})

    answer = deliver(books, "w", {"task_id": "a", "data": {"n": "second"}, "scraped_at": second})

    assert (answer["inserted"], answer["updated"]) == (0, 1)
    [result] = books.results()
    assert (result["data"], result["applied"]) == ({"n": stays}, 1 if stays == "first" else 2)


def test_a_result_completes_its_task(books: Books) -> None:
    """Whoever holds it, and also where it had failed; then it is given to nobody."""
    fill(books, row("a"), row("b"))
    ask(books, "w")
    with books.writing():
        books.fail("w", "b", Failure("gone"))

    deliver(books, "stranger", {"task_id": "a", "data": {}}, {"task_id": "b", "data": {}})

    assert (books.counts().completed, books.counts().failed) == (2, 0)
    with pytest.raises(GatewayRefused, match="it has its result"), books.writing():
        books.fail("w", "a", Failure("too late"))
    with books.writing():
        books.complete("w", "a")


def test_a_result_that_came_first_answers_its_task(books: Books) -> None:
    """A result that was pushed before its task was imported is kept, and the task is never handed
    out."""
    deliver(books, "w", {"task_id": "a", "data": {}})
    fill(books, row("a"))

    assert ask(books, "w") == []
    assert books.counts().completed == 1


def test_bad_results_cost_no_good_ones(books: Books) -> None:
    """What is no result is counted as failed, with at most ten reasons; the others are stored."""
    bad: list[Any] = [
        7,
        None,
        {},
        {"task_id": "", "data": {}},
        {"task_id": "x\x07", "data": {}},
        {"task_id": "x"},
    ]
    bad += [
        {"task_id": "x", "data": []},
        {"task_id": "x" * 201, "data": {}},
        {"task_id": 1, "data": {}},
    ] * 2
    deep: Any = {}
    for _ in range(150):
        deep = {"a": deep}

    answer = deliver(books, "w", {"task_id": "a", "data": {}}, *bad, {"task_id": "d", "data": deep})

    assert (answer["inserted"], answer["failed"], len(answer["errors"])) == (1, 13, 10)
    assert [result["task_id"] for result in books.results()] == ["a"]


@pytest.mark.parametrize(
    "bad",
    [
        b'{"task_id": "\\ud800", "data": {}}',
        b'{"task_id": "x", "data": {"n": NaN}}',
        b'{"task_id": "x", "data": {"n": [Infinity, -Infinity]}}',
        b'{"task_id": "x", "data": {"a": "line\nbreak"}}',
        b'{"task_id": "x", "data": {"\xff": 1}}',
        b'{"task_id": "x", "data": {"a]}": ' + b'["]\\"", ' * 50_000 + b"1" + b"]" * 50_000 + b"}}",
    ],
)
def test_a_result_that_cannot_be_read_costs_no_other(books: Books, bad: bytes) -> None:
    """Whatever is wrong inside an element, as long as one can tell where it ends."""
    good = [b'{"task_id": "a", "data": {"\xc3\xa9": 1}}', b'{"task_id": "b", "data": {"n": 1}}']

    items = incoming.results(b" [" + good[0] + b" , " + bad + b"," + good[1] + b"]\n")

    assert [item if isinstance(item, str) else item.task_id for item in items][::2] == ["a", "b"]
    assert isinstance(items[1], str)
    assert items[1].startswith("result 1: ")


@pytest.mark.parametrize("count", [0, 1, MAX_RESULTS])
def test_an_array_is_cut_into_its_elements(count: int) -> None:
    """The careful way gives the same elements as the quick one."""
    values = [{"n": n, "t": 'a,]["\\'} for n in range(count)]

    assert [
        json.loads(element) for element in elements(json.dumps(values).encode(), MAX_RESULTS)
    ] == values


def test_too_many_results_are_refused() -> None:
    """More than 10,000 elements are 413, before they are made into anything."""
    with pytest.raises(GatewayRefused) as refused:
        incoming.results(b"[" + b"1," * MAX_RESULTS + b"1]")

    assert refused.value.status == 413


def test_errors_are_counted_and_ten_are_told(books: Books) -> None:
    """An answer does not grow with what is wrong."""
    answer = deliver(books, "w", *([7] * 500))

    assert (answer["failed"], len(answer["errors"])) == (500, 10)


def test_twins_in_one_batch_end_as_the_last(books: Books) -> None:
    """Of two results with one task_id in a batch the later one stays."""
    answer = deliver(
        books, "w", {"task_id": "a", "data": {"n": 1}}, {"task_id": "a", "data": {"n": 2}}
    )

    assert (answer["inserted"], answer["updated"]) == (1, 1)
    assert [result["data"] for result in books.results()] == [{"n": 2}]


def test_numbers_and_texts_come_back_as_they_were(books: Books) -> None:
    """Numbers of any length, NUL and signs beyond the basic plane are stored and exported
    unchanged."""
    data = {"big": 10**40, "nul": "a\0b", "sign": "𝄞", "float": 0.1, "": None}

    deliver(books, "w", {"task_id": "a", "data": data, "applied": "mine", "note": "kept"})

    [result] = books.results()
    assert result["data"] == data
    assert (result["applied"], result["applied~"], result["note"]) == (1, "mine", "kept")


def test_late_is_what_the_header_or_the_deadline_says(books: Books, clock: Clock) -> None:
    """A result is late where its sender says so, or where its task's deadline has passed."""
    fill(
        books, row("a", deadline="2030-03-17T18:00:00Z"), row("b", deadline="2030-03-17T17:00:00Z")
    )

    deliver(books, "w", {"task_id": "a", "data": {}}, {"task_id": "b", "data": {}})
    deliver(books, "w", {"task_id": "c", "data": {}}, late=True)

    assert {result["task_id"]: result["late"] for result in books.results()} == {
        "a": False,
        "b": True,
        "c": True,
    }


def test_a_request_is_answered_once(books: Books, clock: Clock) -> None:
    """The same key with the same body gets the stored answer, and applies nothing; with another
    body it is refused."""
    first = delivered(books, "w", {"task_id": "a", "data": {}}, key="k")
    again = delivered(books, "w", {"task_id": "a", "data": {}}, key="k")

    assert (first.again, again.again, again.body) == (False, True, first.body)
    with pytest.raises(GatewayRefused) as refused:
        delivered(books, "w", {"task_id": "b", "data": {}}, key="k")
    assert refused.value.status == 409
    assert not delivered(books, "other", {"task_id": "b", "data": {}}, key="k").again
    clock.now += KEYS_KEPT_S + 1
    assert not delivered(books, "w", {"task_id": "c", "data": {}}, key="k").again


def test_what_a_fault_left_out_can_be_sent_again_under_its_key(books: Books) -> None:
    """A played partial failure stores some and says so vaguely; the same request later stores the
    rest."""
    items = [{"task_id": name, "data": {}} for name in "abc"]

    broken = deliver(books, "w", *items, key="k", left_out=frozenset({0, 2}))
    whole = deliver(books, "w", *items, key="k")

    assert (broken["inserted"], broken["failed"]) == (1, 2)
    assert (whole["inserted"], whole["updated"], whole["failed"]) == (2, 1, 0)
    assert [result["applied"] for result in books.results()] == [1, 1, 1]


def test_a_failure_is_the_holders_to_report(books: Books) -> None:
    """Its words are kept; the same again is fine, others, or another worker's, are not; a retry
    gives it out again."""
    fill(books, row("a"))
    ask(books, "w")
    why = Failure("gone", "http_404", 3)

    with books.writing():
        books.fail("w", "a", why)
        books.fail("w", "a", why)

    for worker, words in (("w", Failure("other")), ("stranger", why)):
        with pytest.raises(GatewayRefused, match="it has failed"), books.writing():
            books.fail(worker, "a", words)
    with pytest.raises(GatewayRefused) as unknown, books.writing():
        books.fail("w", "never", why)
    assert unknown.value.status == 404
    [noted] = books.db.all("SELECT reason, error_type, attempts FROM tasks")
    assert noted == ("gone", "http_404", 3)
    with books.writing():
        assert books.retry([]) == 1
    assert ask(books, "stranger") == ["a"]


@pytest.mark.parametrize(
    ("attempts", "noted"),
    [(-1, 0), (2.0, 2), (1e300, MAX_NUMBER), (10**30, MAX_NUMBER), (MAX_NUMBER, MAX_NUMBER)],
)
def test_a_failures_words_are_cut_rather_than_refused(
    books: Books, attempts: float, noted: int
) -> None:
    """A task whose failure was refused would be held for ever; the same words again change
    nothing."""
    fill(books, row("a"))
    ask(books, "w")
    body = json.dumps(
        {"reason": "x" * 20_000, "error_type": "y" * 20_000, "attempts": attempts}
    ).encode()
    why = incoming.read(body, Failure)

    with books.writing():
        books.fail("w", "a", why)
        books.fail("w", "a", why)

    assert list(books.tasks()) == [Known("a", "failed", "w", "x" * 10_000, "y" * 10_000, noted)]


def test_only_failed_tasks_are_retried(books: Books) -> None:
    """A task that is not there or has not failed is named, and nothing is changed."""
    fill(books, row("a"), row("b"))
    ask(books, "w")
    with books.writing():
        books.fail("w", "a", Failure("gone"))

    for bad in ("b", "never"):
        with pytest.raises(UsageError, match=bad), books.writing():
            books.retry(["a", bad])
    assert books.counts().failed == 1


def test_completing_is_the_holders_too(books: Books) -> None:
    """A task may be completed without a result by whoever holds it, and again; by nobody else."""
    fill(books, row("a"))
    ask(books, "w")

    with books.writing():
        books.complete("w", "a")
        books.complete("w", "a")

    with pytest.raises(GatewayRefused, match="it is completed"), books.writing():
        books.complete("stranger", "a")


def test_commands_are_delivered_once(books: Books) -> None:
    """A heartbeat gets what waits, in its order; a lost answer's key gets the same again."""
    with books.writing():
        books.hear("w")
        books.tell("w", "pause")
        books.tell("w", "drain")

        assert books.beat("w", "{}", "k") == ["pause", "drain"]
        books.tell("w", "drain")
        assert books.beat("w", "{}", "k") == ["pause", "drain"]
        assert books.beat("w", "{}", None) == ["drain"]
        assert books.beat("w", "{}", None) == []
        books.hear("worker-1")
    with pytest.raises(UsageError, match="did you mean worker-1"), books.writing():
        books.tell("worker-l", "pause")


@pytest.mark.parametrize(
    ("told", "waits"),
    [
        (["pause", "pause"], ["pause"]),
        (["pause", "resume"], ["resume"]),
        (["resume", "pause"], ["pause"]),
        (["drain", "resume"], ["resume"]),
        (["pause", "drain", "resume", "drain"], ["drain"]),
        (["pause", "drain", "pause"], ["drain", "pause"]),
    ],
)
def test_a_later_command_replaces_what_it_undoes(
    books: Books, told: list[str], waits: list[str]
) -> None:
    """A command waits once, as long as no later one makes it pointless; those of other workers
    stay."""
    with books.writing():
        for name in ("w", "other"):
            books.hear(name)
        books.tell("other", "pause")
        for command in told:
            books.tell("w", command)

    waiting = {worker.worker: worker.waiting_commands for worker in books.workers()}
    assert waiting == {"w": waits, "other": ["pause"]}


def test_another_content_takes_no_name(books: Books) -> None:
    """A raw file stays what it is under its name; the same again is fine."""
    with books.writing():
        books.keep("w", "a.html", "ab" * 32, 5, {})
        books.keep("v", "a.html", "ab" * 32, 5, {})
    with pytest.raises(ValueError, match="another content"), books.writing():
        books.keep("w", "a.html", "cd" * 32, 5, {})

    assert books.db.all("SELECT sha256, worker FROM raw_files") == [("ab" * 32, "w")]


def test_a_damaged_content_is_written_again(tmp_path: Path) -> None:
    """A content that is shorter or longer than it should be is replaced by the next upload of
    it."""
    contents, content = Contents(tmp_path), b"<p>all of it"
    sha256 = hashlib.sha256(content).hexdigest()

    for damage in (b"", b"<p>all", content + b"more"):
        contents.store(io.BytesIO(content), sha256, len(content)).write_bytes(damage)
        assert contents.store(io.BytesIO(content), sha256, len(content)).read_bytes() == content


def test_a_row_changes_its_task_unless_it_is_worked_on(books: Books) -> None:
    """A known task_id with another content: available and failed tasks change, held and completed
    ones do not."""
    names = ("available", "failed", "held", "completed")
    fill(books, *(row(name) for name in reversed(names)))
    ask(books, "w", 3)
    with books.writing():
        books.fail("w", "failed", Failure("gone"))
    deliver(books, "w", {"task_id": "completed", "data": {}})

    with books.writing():
        same = books.add(task(row(name, created_at=""), None, NOW + 999) for name in names)
        others = books.add(
            task(row(name, colour="red", priority="1"), None, NOW + 999) for name in names
        )
        again = books.add(
            task(row(name, colour="red", priority="1"), None, NOW + 999) for name in names
        )

    assert same == ["known"] * 4
    assert others == ["changed", "changed", "refused", "refused"]
    assert again == ["known", "known", "refused", "refused"]
    assert {known.task_id: known.state for known in books.tasks()} == {name: name for name in names}
    with books.writing():
        [given] = books.give("w", 1, [], None).tasks
    assert [msgspec.json.decode(given)[name] for name in ("task_id", "colour", "priority")] == [
        "available",
        "red",
        1,
    ]


def test_a_time_of_day_is_the_same_row_tomorrow(books: Books) -> None:
    """The same file again changes nothing, whenever that is."""
    with books.writing():
        assert books.add([task(row("a", deadline="17:00"), None, NOW)]) == ["new"]
        assert books.add([task(row("a", deadline="17:00"), None, NOW + 90_000)]) == ["known"]


def test_the_raw_file_of_a_result_is_known_by_its_content(books: Books) -> None:
    """An export shows the raw file with the hash that a result names, and which of the two came
    first."""
    with books.writing():
        books.keep("w", "other.html", "ab" * 32, 5, {"task_id": "z"})
        books.keep("w", "a.html", "ab" * 32, 5, {"task_id": "a"})
        books.keep("w", "a.html", "ab" * 32, 5, {"task_id": "a"})
    deliver(
        books,
        "w",
        {"task_id": "a", "data": {}, "raw_html_hash": "ab" * 32},
        {"task_id": "b", "data": {}},
    )

    with_raw, without = books.results()

    assert (with_raw["raw_name"], with_raw["raw_seq"], with_raw["seq"]) == ("a.html", 2, 3)
    assert with_raw["raw_received_at"] <= with_raw["received_at"]
    assert (without["raw_name"], without["raw_seq"]) == (None, None)
    assert books.counts().raw_files == 2


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "no url"),
        ({"platform": "beacon"}, "no url"),
        ({"parcel_id": "1"}, "no url"),
        ({"url": "ftp://a.example/"}, "only http"),
        ({"url": "http://user:geheim@a.example/"}, "user name or a password"),
        ({"url": "http://a.example/", "priority": "5"}, "priority '5'"),
        ({"url": "http://a.example/", "priority": "1.5"}, "priority '1.5'"),
        ({"url": "http://a.example/", "deadline": "soon"}, "deadline 'soon'"),
        ({"url": "http://a.example/", "task_id": "x" * 201}, "201 characters"),
        ({"url": "http://a.example/", "task_id": "a\x1bb"}, "control characters"),
        ({"url": "http://a.example/", "platform": ["a"]}, "platform is not text"),
        ({"url": "http://a.example/", "note": "x" * 64_000}, "64,170 characters, more than 64,000"),
        ({"target": "x"}, "target is not an object"),
        ({"target": {"url": 7}}, "url is not text"),
    ],
)
def test_a_row_that_is_no_task_says_why(fields: dict[str, Any], reason: str) -> None:
    """Every reason names the field; no secret of a URL is in it."""
    with pytest.raises(UsageError, match=reason) as refused:
        task(fields, None, NOW)

    assert "geheim" not in str(refused.value)


def test_a_password_in_another_column_is_left_out() -> None:
    """The row becomes a task without it: no worker is told."""
    hidden = "https://ada:geheim@files.example/1"
    fields = {
        "url": "http://a.example/",
        "note": hidden,
        "parcel_id": hidden,
        "target": {"more": [hidden]},
    }

    made = task(fields, None, NOW)

    assert "geheim" not in str(made)
    assert made.body.count("https://files.example/1") == 3


def test_a_row_without_an_id_gets_one_from_its_content() -> None:
    """The same row is the same task, another is another."""
    one, same = ({"platform": "beacon", "parcel_id": "1"}, {"parcel_id": "1", "platform": "beacon"})

    assert task(one, None, NOW).task_id == task(same, None, NOW + 9).task_id
    assert task(one | {"parcel_id": "2"}, None, NOW).task_id != task(one, None, NOW).task_id


def test_a_foreign_or_newer_database_is_left_alone(tmp_path: Path) -> None:
    """Books of another program, of a newer version or no books at all are an error that names the
    file."""
    for name, make in (("foreign", "CREATE TABLE x (y)"), ("newer", "PRAGMA user_version=99")):
        folder = tmp_path / name
        with closing(Books(folder)) as books:
            if name == "foreign":
                books.db.execute("PRAGMA application_id=5")
            books.db.execute(make)
        with pytest.raises(StoreError, match=r"gateway\.db"):
            Books(folder)
    (tmp_path / "gateway.db").write_bytes(b"no database" * 500)
    with pytest.raises(StoreError, match="left as it is"):
        Books(tmp_path)


@pytest.mark.parametrize(
    "make",
    [
        "CREATE TABLE x (y)",
        "PRAGMA application_id=5; PRAGMA user_version=1",
        f"CREATE TABLE x (y); PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version=99",
    ],
)
def test_a_database_that_is_not_ours_is_not_touched(tmp_path: Path, make: str) -> None:
    """Not a byte of it changes, and nothing appears beside it."""
    path = tmp_path / "gateway.db"
    with closing(apsw.Connection(str(path))) as db:
        db.execute(make)
    before = path.read_bytes()

    with pytest.raises(StoreError, match="left as it is"):
        Books(tmp_path)

    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_asked_together_is_committed_together_and_fails_alone(books: Books) -> None:
    """An act that fails undoes itself only; what was told to be done can be read by others."""
    fill(books, row("a"))
    committer = Committer(books)

    def half(acting: Books) -> None:
        acting.hear("half")
        raise GatewayRefused(409, "no")

    def heard(name: str) -> Callable[[Books], None]:
        return lambda acting: acting.hear(name)

    futures = [committer.submit(heard(f"w{n}")) for n in range(50)]
    bad = committer.submit(half)
    futures += [committer.submit(heard(f"v{n}")) for n in range(50)]

    for future in futures:
        future.result(10)
    with pytest.raises(GatewayRefused):
        bad.result(10)
    with closing(Books(books.folder)) as others:
        assert others.counts().workers == 100
    committer.close()


def test_a_database_that_cannot_be_written_is_tried_anew(books: Books) -> None:
    """Whoever waits is told; when it can be written again, work goes on."""
    committer = Committer(books)
    path = f"file:{books.path}?mode=ro"
    good, books.db = (
        books.db,
        type(books.db)(path, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI),
    )
    good.close()

    with pytest.raises(StoreError):
        committer.submit(lambda acting: acting.hear("w")).result(10)
    states = [committer.failing]
    for act in (Books.counts, Books.touch):  # reading proves nothing
        committer.submit(act).result(10)
        states.append(committer.failing)
    committer.submit(lambda acting: acting.hear("w")).result(10)
    assert states == [True, True, False]

    committer.close()
    assert books.counts().workers == 1


def test_faults_are_drawn_by_their_seed() -> None:
    """The same seed gives the same faults; partial ones only on results, none outside /internal."""

    def kinds(seed: int, path: str, method: str = "POST") -> list[str | None]:
        dice, scope = Dice(0.5, seed), {"type": "http", "path": path, "method": method}
        return [fault.kind if fault else None for fault in (dice.roll(scope) for _ in range(400))]

    assert kinds(7, "/internal/results") == kinds(7, "/internal/results")
    assert set(kinds(7, "/internal/results")) == {None, *KINDS}
    assert set(kinds(7, "/internal/work", "GET")) == {None, *KINDS} - {"partial"}
    assert set(kinds(7, "/health", "GET")) == {None}
    assert all(0 < len(left_out(seed, 5)) <= 5 for seed in range(50))
    assert left_out(1, 0) == frozenset()


def test_the_token_is_the_variables_or_the_files(tmp_path: Path) -> None:
    """The variable comes first; a file's spaces around it do not count; no error shows it."""
    file = tmp_path / "token.txt"
    file.write_text(" from-file \n")

    assert token(Settings(gateway_token="from-env", gateway_token_file=file)) == "from-env"
    assert token(Settings(gateway_token_file=file)) == "from-file"
    with pytest.raises(ConfigError, match="set GATEWAY_TOKEN"):
        token(Settings())
    for content in (b"", b" \n", b"two geheim", b"geheim\xff", b"g" * 4097, "geheim-é".encode()):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match="GATEWAY_TOKEN_FILE") as refused:
            token(Settings(gateway_token_file=file))
        assert "geheim" not in str(refused.value)
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigError, match="cannot be read"):
            token(Settings(gateway_token_file=path))


def test_every_result_has_a_place_in_the_order(books: Books) -> None:
    """Numbers rise over raw files and results together, whatever the clock does."""
    with books.writing():
        items: list[NewResult | str] = incoming.results(b'[{"task_id": "a", "data": {}}]')
        books.keep("w", "a.html", "0" * 64, 1, {})
        books.deliver("w", items)
        books.keep("w", "b.html", "1" * 64, 1, {})

    assert books.db.all("SELECT seq FROM raw_files ORDER BY name") == [(1,), (3,)]
    assert [result["seq"] for result in books.results()] == [2]
