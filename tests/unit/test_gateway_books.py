"""The reference Gateway's books: who gets which task, what is stored, and what is answered twice."""

import hashlib
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
from crawler.gateway.reference.bodies import Failure
from crawler.gateway.reference.books import KEYS_KEPT_S, Answer, Books, NewResult
from crawler.gateway.reference.commit import Committer
from crawler.gateway.reference.faults import KINDS, Dice, left_out
from crawler.gateway.reference.intake import task

NOW = 1_900_000_000.0


class Clock:
    """A clock that goes only when it is told to."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """The time of a test."""
    return Clock()


@pytest.fixture
def books(tmp_path: Path, clock: Clock) -> Iterator[Books]:
    """Empty books whose leases last 300 s."""
    with closing(Books(tmp_path / "gateway", lease_s=300, clock=clock, ticks=clock)) as books:
        yield books


def fill(books: Books, *rows: dict[str, Any]) -> None:
    """Take rows in as tasks."""
    with books.writing():
        books.add(task(row, None, NOW) for row in rows)


def ask(books: Books, worker: str, capacity: int = 100, *platforms: str, key: str | None = None) -> list[str]:
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
        return books.deliver(worker, incoming.results(body), sha256=hashlib.sha256(body).hexdigest(), **how)


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
    fill(books, row("a", priority="3"), row("b", priority="1"), row("c", priority="3"), row("d", priority="2"))

    assert ask(books, "w", 2) == ["b", "d"]
    assert ask(books, "w", 9) == ["a", "c"]
    assert ask(books, "w", 9) == []


def test_a_worker_gets_only_its_platforms(books: Books) -> None:
    """A worker that names platforms gets no others; one that names none gets any, also those without."""
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
    """Any call of a worker keeps its tasks; after the lease without one, whoever asks next gets them."""
    fill(books, row("a"), row("b"))
    assert ask(books, "quiet", 1) == ["a"]
    assert ask(books, "lively", 1) == ["b"]

    clock.now += 299
    with books.writing():
        books.beat("lively", "{}", None)
    clock.now += 2

    assert ask(books, "third") == ["a"]
    clock.now += 200
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
        clock.now += 301
        assert ask(again, "other") == ["a"]


def test_the_same_key_gets_the_same_tasks(books: Books, clock: Clock) -> None:
    """A lost answer loses no task: its key gives what is still open of it, also after a restart, for a day."""
    fill(books, *(row(name) for name in "abcd"))
    assert ask(books, "w", 2, key="k") == ["a", "b"]

    assert ask(books, "w", 2, key="k") == ["a", "b"]
    with closing(Books(books.folder, clock=clock, ticks=clock)) as again:
        assert ask(again, "w", 2, key="k") == ["a", "b"]
    assert ask(books, "other", 1, key="k") == ["c"]
    deliver(books, "w", {"task_id": "a", "data": {}})
    assert ask(books, "w", 2, key="k") == ["b"]

    clock.now += KEYS_KEPT_S + 1
    with books.writing():
        books.hear("w")
        books.hear("other")
    assert ask(books, "w", 2, key="k") == ["d"]


def test_a_key_gives_nothing_that_went_to_another(books: Books, clock: Clock) -> None:
    """What a worker lost by its silence, and another has, is not given to both; what nobody took, it gets again."""
    fill(books, row("a"), row("b"))
    ask(books, "w", key="k")
    clock.now += 301

    assert ask(books, "other", 1) == ["a"]
    assert ask(books, "w", key="k") == ["b"]
    assert ask(books, "other", 9) == []


def test_a_result_is_applied_once(books: Books, clock: Clock) -> None:
    """The same content again, in whatever order its keys are, is counted as updated and changes nothing."""
    first = deliver(books, "w", {"task_id": "a", "data": {"x": 1, "y": 2}})
    clock.now += 10
    second = deliver(books, "w2", {"data": {"y": 2, "x": 1}, "task_id": "a"}, late=True)

    assert (first["inserted"], first["updated"]) == (1, 0)
    assert (second["inserted"], second["updated"]) == (0, 1)
    [result] = books.results()
    assert (result["applied"], result["worker"], result["seq"], result["late"]) == (1, "w", 1, False)

    deliver(books, "w2", {"task_id": "a", "data": {"x": 3}})
    [result] = books.results()
    assert (result["applied"], result["worker"], result["data"]) == (2, "w2", {"x": 3})


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
    """A result that was pushed before its task was imported is kept, and the task is never handed out."""
    deliver(books, "w", {"task_id": "a", "data": {}})
    fill(books, row("a"))

    assert ask(books, "w") == []
    assert books.counts().completed == 1


def test_bad_results_cost_no_good_ones(books: Books) -> None:
    """What is no result is counted as failed, with at most ten reasons; the others are stored."""
    bad: list[Any] = [7, None, {}, {"task_id": "", "data": {}}, {"task_id": "x\x07", "data": {}}, {"task_id": "x"}]
    bad += [{"task_id": "x", "data": []}, {"task_id": "x" * 201, "data": {}}, {"task_id": 1, "data": {}}] * 2
    deep: Any = {}
    for _ in range(150):
        deep = {"a": deep}

    answer = deliver(books, "w", {"task_id": "a", "data": {}}, *bad, {"task_id": "d", "data": deep})

    assert (answer["inserted"], answer["failed"], len(answer["errors"])) == (1, 13, 10)
    assert [result["task_id"] for result in books.results()] == ["a"]


def test_twins_in_one_batch_end_as_the_last(books: Books) -> None:
    """Of two results with one task_id in a batch the later one stays."""
    answer = deliver(books, "w", {"task_id": "a", "data": {"n": 1}}, {"task_id": "a", "data": {"n": 2}})

    assert (answer["inserted"], answer["updated"]) == (1, 1)
    assert [result["data"] for result in books.results()] == [{"n": 2}]


def test_numbers_and_texts_come_back_as_they_were(books: Books) -> None:
    """Numbers of any length, NUL and signs beyond the basic plane are stored and exported unchanged."""
    data = {"big": 10**40, "nul": "a\0b", "sign": "𝄞", "float": 0.1, "": None}

    deliver(books, "w", {"task_id": "a", "data": data, "applied": "mine", "note": "kept"})

    [result] = books.results()
    assert result["data"] == data
    assert (result["applied"], result["applied~"], result["note"]) == (1, "mine", "kept")


def test_late_is_what_the_header_or_the_deadline_says(books: Books, clock: Clock) -> None:
    """A result is late where its sender says so, or where its task's deadline has passed."""
    fill(books, row("a", deadline="2030-03-17T18:00:00Z"), row("b", deadline="2030-03-17T17:00:00Z"))

    deliver(books, "w", {"task_id": "a", "data": {}}, {"task_id": "b", "data": {}})
    deliver(books, "w", {"task_id": "c", "data": {}}, late=True)

    assert {result["task_id"]: result["late"] for result in books.results()} == {"a": False, "b": True, "c": True}


def test_a_request_is_answered_once(books: Books, clock: Clock) -> None:
    """The same key with the same body gets the stored answer, and applies nothing; with another body it is refused."""
    first = delivered(books, "w", {"task_id": "a", "data": {}}, key="k")
    again = delivered(books, "w", {"task_id": "a", "data": {}}, key="k")

    assert (first.again, again.again, again.body) == (False, True, first.body)
    with pytest.raises(GatewayRefused) as refused:
        delivered(books, "w", {"task_id": "b", "data": {}}, key="k")
    assert refused.value.status == 422
    assert not delivered(books, "other", {"task_id": "b", "data": {}}, key="k").again
    clock.now += KEYS_KEPT_S + 1
    assert not delivered(books, "w", {"task_id": "c", "data": {}}, key="k").again


def test_what_a_fault_left_out_can_be_sent_again_under_its_key(books: Books) -> None:
    """A played partial failure stores some and says so vaguely; the same request later stores the rest."""
    items = [{"task_id": name, "data": {}} for name in "abc"]

    broken = deliver(books, "w", *items, key="k", left_out=frozenset({0, 2}))
    whole = deliver(books, "w", *items, key="k")

    assert (broken["inserted"], broken["failed"]) == (1, 2)
    assert (whole["inserted"], whole["updated"], whole["failed"]) == (2, 1, 0)
    assert [result["applied"] for result in books.results()] == [1, 1, 1]


def test_a_failure_is_the_holders_to_report(books: Books) -> None:
    """Its words are kept; the same again is fine, others, or another worker's, are not; a retry gives it out again."""
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
        books.tell("w", "resume")

        assert books.beat("w", "{}", "k") == ["pause", "resume"]
        books.tell("w", "drain")
        assert books.beat("w", "{}", "k") == ["pause", "resume"]
        assert books.beat("w", "{}", None) == ["drain"]
        assert books.beat("w", "{}", None) == []
        books.hear("worker-1")
    with pytest.raises(UsageError, match="did you mean worker-1"), books.writing():
        books.tell("worker-l", "pause")


def test_the_raw_file_of_a_result_is_known_by_its_content(books: Books) -> None:
    """An export shows the raw file with the hash that a result names, and which of the two came first."""
    with books.writing():
        books.keep("w", "other.html", "ab" * 32, 5, {"task_id": "z"})
        books.keep("w", "a.html", "ab" * 32, 5, {"task_id": "a"})
        books.keep("w", "a.html", "ab" * 32, 5, {"task_id": "a"})
    deliver(books, "w", {"task_id": "a", "data": {}, "raw_html_hash": "ab" * 32}, {"task_id": "b", "data": {}})

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
        ({"target": "x"}, "target is not an object"),
        ({"target": {"url": 7}}, "url is not text"),
    ],
)
def test_a_row_that_is_no_task_says_why(fields: dict[str, Any], reason: str) -> None:
    """Every reason names the field; no secret of a URL is in it."""
    with pytest.raises(UsageError, match=reason) as refused:
        task(fields, None, NOW)

    assert "geheim" not in str(refused.value)


def test_a_row_without_an_id_gets_one_from_its_content() -> None:
    """The same row is the same task, another is another."""
    one, same = ({"platform": "beacon", "parcel_id": "1"}, {"parcel_id": "1", "platform": "beacon"})

    assert task(one, None, NOW).task_id == task(same, None, NOW + 9).task_id
    assert task(one | {"parcel_id": "2"}, None, NOW).task_id != task(one, None, NOW).task_id


def test_a_foreign_or_newer_database_is_left_alone(tmp_path: Path) -> None:
    """Books of another program, of a newer version or no books at all are an error that names the file."""
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
    good, books.db = books.db, type(books.db)(path, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    good.close()

    with pytest.raises(StoreError):
        committer.submit(lambda acting: acting.hear("w")).result(10)
    committer.submit(lambda acting: acting.hear("w")).result(10)

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
