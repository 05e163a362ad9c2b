"""The requests of one page, each with its permit, and a process's own permits."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from crawler.errors import NotNow
from crawler.fetch.budget import Budget
from crawler.fetch.http import Request, RequestHook
from crawler.fetch.robots import Robots
from crawler.lpm import LocalPersistenceManager
from crawler.models import Outcome, Page, PreviousPage, RateRule, Task, TaskStatus
from crawler.resilience.memory import MemoryPermit
from crawler.resilience.permit import PermitClient, PermitRequest, RequestReport, Reservation
from crawler.scraping.attempt import Attempt, FetchOptions
from crawler.scraping.request_gate import RequestGate
from crawler.sites import Site
from tests.support.tasks import new, open_job
from tests.support.tasks import page as answer

SITE = Site(name="default", version="1")
TEN_A_SECOND = RateRule(interval_s=0.1, at_a_time=9)


class Clock:
    """A time that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still."""
    return Clock()


def permit_client(clock: Callable[[], float]) -> tuple[PermitClient, MemoryPermit]:
    """A process's client, and the permit behind it."""
    permit = MemoryPermit("me", 5, clock=clock, fresh=False)
    return PermitClient(permit, clock=clock), permit


def test_a_domain_that_refused_is_not_asked_before_its_time(clock: Clock) -> None:
    """Until then it is closed, and the soonest of all closed ones is known."""
    client, _ = permit_client(clock)
    asks = [
        PermitRequest(domain="a.example", rule=RateRule(interval_s=1), wish=5),
        PermitRequest(domain="b.example", rule=RateRule(interval_s=5), wish=2),
    ]

    first, second = client.reserve(asks)

    assert (len(first), len(second)) == (1, 1)
    assert 0 < client.closed_s("a.example") < client.closed_s("b.example")
    assert client.opens_s() == pytest.approx(client.closed_s("a.example"))
    assert (
        client.refusal("b.example").wait_s > 4 > client.closed_s("b.example")
    )  # it is looked at now and then
    clock.now += 60
    assert (client.closed_s("a.example"), client.opens_s()) == (0.0, None)


def test_a_place_that_falls_free_opens_its_domain(clock: Clock) -> None:
    """Where requests at a time are what limits, the end of one is the time to ask again."""
    client, permit = permit_client(clock)
    rule = RateRule(at_a_time=2)
    [booked] = client.reserve([PermitRequest(domain="a.example", rule=rule, wish=5)])
    assert len(booked) == 2
    assert client.closed_s("a.example") > 0

    client.report(RequestReport(domain="a.example", rule=rule, good=True))
    client.flush()

    assert client.closed_s("a.example") == 0
    assert permit.domains()[0].in_flight == 1


class Heard(MemoryPermit):
    """A permit that remembers what was reported to it."""

    def report(self, reports: Sequence[RequestReport]) -> None:
        """Note them, too."""
        self.heard = list(reports)
        super().report(reports)


def test_ordinary_answers_of_a_domain_are_reported_as_one(clock: Clock) -> None:
    """All places are given back; a block, a slow answer and another domain keep words of their own,
    in order."""
    permit = Heard("me", 5, clock=clock, fresh=False)
    client, rule = PermitClient(permit, clock=clock), RateRule(at_a_time=20)
    client.reserve(
        [
            PermitRequest(domain="a.example", rule=rule, wish=8),
            PermitRequest(domain="b.example", rule=rule, wish=1),
        ]
    )
    good = RequestReport(domain="a.example", rule=rule, good=True, latency_s=0.2)

    client.report(good)
    client.report(RequestReport(domain="b.example", rule=rule, good=True))
    client.report(replace(good, latency_s=0.4))
    client.report(replace(good, block="captcha", good=False))
    client.report(good)
    client.report(replace(good, latency_s=9.0))
    client.report(good)
    client.report(good)
    client.flush()

    told = [
        (each.domain, each.slots, each.block, round(each.latency_s, 3)) for each in permit.heard
    ]
    assert told == [
        ("a.example", 2, "", 0.3),
        ("b.example", 1, "", 0.0),
        ("a.example", 1, "captcha", 0.2),
        ("a.example", 1, "", 0.2),
        ("a.example", 1, "", 9.0),
        ("a.example", 2, "", 0.2),
    ]
    assert {domain.domain: domain.in_flight for domain in permit.domains()} == {
        "a.example": 1,
        "b.example": 0,
    }


def test_limits_by_address_have_a_name_of_their_own(clock: Clock) -> None:
    """Two addresses of a fleet do not count for each other."""
    permit = MemoryPermit("me", 5, clock=clock, fresh=False)
    client = PermitClient(permit, key=lambda domain: f"{domain}@10.0.0.1", clock=clock)

    [[reservation]] = client.reserve([PermitRequest(domain="a.example", rule=TEN_A_SECOND)])
    client.report(RequestReport(domain="a.example", rule=TEN_A_SECOND))
    client.flush()

    assert reservation.domain == "a.example"
    assert [domain.domain for domain in permit.domains()] == ["a.example@10.0.0.1"]


def gate(client: PermitClient, reservation: Reservation | None, begun: list[str]) -> RequestGate:
    """A page of a.example, whose hops are booked as they come."""

    async def more(ask: PermitRequest) -> Reservation:
        [booked] = client.reserve([ask])
        if not booked:
            raise client.refusal(ask.domain)
        return booked[0]

    return RequestGate(
        "a.example",
        "https://a.example/",
        reservation,
        TEN_A_SECOND,
        lambda domain: TEN_A_SECOND,
        more,
        client,
        lambda: begun.append("begun"),
    )


def outcome(status: int | None = None, block: str = "") -> Outcome:
    """How a page of a.example ended: with an answer of that status, or with none."""
    url = "https://a.example/"
    task = Task(
        id=1, task_id="t", url=url, domain="a.example", queue="default", priority=5, fence=1,
        attempts=0, failures=0, loopback=False, job_id=None, job_size=None,
    )  # fmt: skip
    page = None
    if status:
        page = Page(
            url=url, final_url=url, status=status, reason="", headers=(), body=b"", raw=b"",
            fetched_at=0.0, fetch_s=0.0,
        )  # fmt: skip
    return Outcome(task=task, status=TaskStatus.FAILED, worker="me", page=page, block=block)


def test_every_request_is_booked_and_noted() -> None:
    """The first uses what was booked for the page; a redirect takes its own, at another domain a
    place, too."""
    client, permit = permit_client(time.monotonic)
    [[reservation]] = client.reserve([PermitRequest(domain="a.example", rule=TEN_A_SECOND)])
    begun: list[str] = []
    page = gate(client, reservation, begun)

    async def go() -> None:
        for url in ("http://a.example/", "http://a.example/2", "http://b.example/"):
            async with page.request(url):
                assert permit.domains()[-1].in_flight == 1

    began = time.monotonic()
    asyncio.run(go())
    page.close(outcome(200))
    client.flush()

    assert [sent.domain for sent in page.sent] == ["a.example", "a.example", "b.example"]
    assert page.sent[1].began - page.sent[0].began >= 0.09
    assert time.monotonic() - began >= 0.1
    assert begun == ["begun"]
    assert [domain.in_flight for domain in permit.domains()] == [0, 0]


def test_a_page_that_was_never_asked_for_gives_its_booking_back() -> None:
    """Refused by robots.txt from memory, it costs the rate nothing; but only what was booked last
    can be given back."""
    ask = PermitRequest(domain="a.example", rule=TEN_A_SECOND, ahead_s=10)
    for latest in (True, False):
        client, permit = permit_client(Clock())
        client.reserve([ask])
        [[reservation]] = client.reserve([ask])
        if not latest:
            client.reserve([ask])
        gate(client, reservation, []).close(outcome())
        client.flush()
        [[again]] = client.reserve([ask])

        assert (again.at == pytest.approx(reservation.at)) is latest
        assert permit.domains()[0].in_flight == 2 + (not latest)


def test_a_request_that_is_late_is_booked_anew() -> None:
    """What was booked for a moment that has passed does not go out together with those behind
    it."""
    client, _ = permit_client(time.monotonic)
    [[reservation]] = client.reserve([PermitRequest(domain="a.example", rule=TEN_A_SECOND)])
    page = gate(client, reservation, [])

    async def go() -> None:
        time.sleep(0.05)  # noqa: ASYNC251 - the loop is to stand still
        async with page.request("http://a.example/"):
            pass

    asyncio.run(go())
    assert page.sent[0].began > 0
    [[following]] = client.reserve(
        [PermitRequest(domain="a.example", rule=TEN_A_SECOND, ahead_s=5)]
    )
    assert following.at - reservation.at > 0.2


def test_a_late_request_goes_where_few_can_be_late_together() -> None:
    """At a rate that gives more in the time of grace than may be under way at all, nothing is
    booked anew."""
    fast = RateRule(interval_s=0.0001, at_a_time=10)
    client, _ = permit_client(time.monotonic)
    [[reservation]] = client.reserve([PermitRequest(domain="a.example", rule=fast)])
    late = replace(reservation, at=reservation.at - 1)

    async def more(ask: PermitRequest) -> Reservation:
        raise AssertionError("it was booked anew")

    page = RequestGate(
        "a.example",
        "https://a.example/",
        late,
        fast,
        lambda domain: fast,
        more,
        client,
        lambda: None,
    )

    async def ask() -> None:
        async with page.request("https://a.example/"):
            pass

    asyncio.run(ask())
    assert len(page.sent) == 1


def test_a_hop_that_cannot_be_had_is_not_a_failure() -> None:
    """The domain's own word is passed on."""
    client, permit = permit_client(time.monotonic)
    permit.report(
        [RequestReport(domain="b.example", rule=TEN_A_SECOND, slots=0, retry_after_s=600)]
    )
    page = gate(client, None, [])

    async def go() -> None:
        async with page.request("http://b.example/"):
            pass

    with pytest.raises(NotNow) as caught:
        asyncio.run(go())
    assert caught.value.wait_s > 500
    assert page.sent == []


@pytest.mark.parametrize("refused", [False, True])
def test_a_late_request_elsewhere_keeps_one_place_and_gives_it_back(refused: bool) -> None:
    """However often it must be booked anew, and also where that is refused in the end, no place is
    left behind."""
    client, permit = permit_client(time.monotonic)
    asks: list[PermitRequest] = []

    async def more(ask: PermitRequest) -> Reservation:
        asks.append(ask)
        if refused and len(asks) == 2:
            raise NotNow(ask.domain, "open", 30.0)
        [booked] = client.reserve([ask])
        if len(asks) == 1:
            time.sleep(0.05)  # noqa: ASYNC251 - the loop is to stand still
        return booked[0]

    page = RequestGate(
        "a.example",
        "https://a.example/",
        None,
        TEN_A_SECOND,
        lambda domain: TEN_A_SECOND,
        more,
        client,
        lambda: None,
    )

    async def go() -> None:
        async with page.request("http://b.example/"):
            assert permit.domains()[0].in_flight == 1

    if refused:
        with pytest.raises(NotNow):
            asyncio.run(go())
    else:
        asyncio.run(go())
    client.flush()

    assert len(asks) == 2
    assert permit.domains()[0].in_flight == 0


def test_each_domain_hears_of_its_own_delay_and_answer() -> None:
    """A Crawl-delay is its host's, and a domain that answered with a redirect has answered."""
    client, permit = permit_client(time.monotonic)
    permit.report(
        [RequestReport(domain="a.example", rule=TEN_A_SECOND, slots=0, block="http_503")] * 2
    )
    [[reservation]] = client.reserve([PermitRequest(domain="a.example", rule=TEN_A_SECOND)])
    page = gate(client, reservation, [])

    async def go() -> None:
        page.obey("http://a.example/", 0.0)
        async with page.request("http://a.example/"):
            pass
        page.obey("http://b.example/", 7.0)
        async with page.request("http://b.example/"):
            pass

    asyncio.run(go())
    page.close(outcome(503, block="captcha"))
    client.flush()

    known = {domain.domain: domain for domain in permit.domains()}
    assert (known["a.example"].failures, known["a.example"].crawl_delay_s) == (0, 0.0)
    assert (known["b.example"].failures, known["b.example"].crawl_delay_s) == (1, 7.0)


def test_a_domain_is_not_told_that_this_process_kept_the_page_waiting(clock: Clock) -> None:
    """What a request took is noted without the wait of its page for a turn: that slows no domain
    down."""
    waited = [0.0]
    client, _ = permit_client(clock)
    rule = RateRule()
    about = ("a.example", "https://a.example/", None, rule, lambda domain: rule)
    page = RequestGate(*about, _no_booking, client, lambda: None, lambda: waited[0])

    async def work() -> None:
        async with page.request("https://a.example/"):
            waited[0] += 100.0

    asyncio.run(work())
    assert page.sent[0].seconds < 0


async def _no_booking(ask: PermitRequest) -> Reservation:
    raise AssertionError(f"nothing is to be booked, and {ask} was")


ONE_A_MINUTE = RateRule(interval_s=60.0, at_a_time=1)


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("raised", [TEN_A_SECOND, RateRule()])
def test_a_page_that_waits_for_its_permit_hears_of_a_raised_limit(
    raised: RateRule, elsewhere: bool
) -> None:
    """What was booked for a minute later is dropped, the page goes on under the new limit, and no
    place is left behind."""
    client, permit = permit_client(time.monotonic)
    domain = "b.example" if elsewhere else "a.example"
    for _ in range(2):
        client.reserve(
            [PermitRequest(domain=domain, rule=ONE_A_MINUTE, ahead_s=180, slots=False, job="mine")]
        )
    until: list[float | None] = []

    async def more(ask: PermitRequest) -> Reservation:
        [booked] = client.reserve([replace(ask, job="mine")])
        if not booked:
            raise client.refusal(ask.domain)
        return booked[0]

    async def now(domain: str) -> RateRule:
        return raised

    page = RequestGate(
        "a.example",
        "https://a.example/",
        None,
        ONE_A_MINUTE,
        lambda domain: ONE_A_MINUTE,
        more,
        client,
        lambda: None,
        rule_now=now,
        waits=until.append,
    )

    async def go() -> None:
        async with page.request(f"http://{domain}/"):
            pass

    began = time.monotonic()
    asyncio.run(asyncio.wait_for(go(), 60))
    page.close(outcome())
    client.flush()

    assert until[0] is not None
    assert until[0] - began > 100, "it was booked behind the others"
    assert len(page.sent) == 1
    assert {known.in_flight for known in permit.domains()} == {0}


def test_a_page_that_waits_for_its_permit_goes_at_its_time_where_the_limit_stays() -> None:
    """Looking at the limit costs no booking, and others see that it waits."""
    client, _ = permit_client(time.monotonic)
    rule = RateRule(interval_s=3.0)
    client.reserve([PermitRequest(domain="a.example", rule=rule)])
    until: list[float | None] = []

    async def more(ask: PermitRequest) -> Reservation:
        [[booked]] = client.reserve([ask])
        return booked

    async def now(domain: str) -> RateRule:
        return rule

    about = ("a.example", "https://a.example/", None, rule, lambda domain: rule, more, client)
    page = RequestGate(*about, lambda: None, rule_now=now, waits=until.append)

    async def go() -> None:
        for path in ("robots.txt", "page"):
            async with page.request(f"https://a.example/{path}"):
                pass

    asyncio.run(go())

    assert page.sent[1].began - page.sent[0].began > 2.9
    assert None in until
    assert [at for at in until if at is not None]


async def _no_page(known: PreviousPage) -> None:
    return None


async def _walk(hook: RequestHook, *urls: str) -> Page:
    """Ask for one URL after the other."""
    for url in urls:
        async with hook(url):
            pass
    return answer()


def test_only_the_domain_that_asks_for_a_pause_is_paused(tmp_path: Path) -> None:
    """Where a page leads to a closed domain, or to one whose robots.txt is in trouble, its own
    domain has said nothing, and goes on."""
    for closed in (True, False):
        client, permit = permit_client(time.monotonic)
        if closed:
            pause = RequestReport(domain="b.example", rule=TEN_A_SECOND, slots=0, retry_after_s=600)
            permit.report([pause])
        page = gate(client, None, [])
        lpm = LocalPersistenceManager(tmp_path / str(closed))
        lpm.persist_tasks([new("https://a.example/")], job=open_job(lpm))
        [task] = lpm.get_next_pending("owner", 1)
        lpm.close()

        async def fetch(request: Request, hook: RequestHook) -> Page:
            if request.url.endswith("/robots.txt"):
                status = 503 if "b.example" in request.url else 404
                return replace(await _walk(hook, request.url), status=status)
            return await _walk(hook, "https://a.example/", "https://b.example/")

        ended = asyncio.run(
            Attempt(
                task,
                SITE,
                FetchOptions(),
                fetch=fetch,
                gate=page,
                robots=Robots(tmp_path / f"robots-{closed}"),
                worker="me",
                budget=Budget(),
                stored_page=_no_page,
            ).run()
        )
        page.close(ended)
        client.flush()

        known = {each.domain: each for each in permit.domains()}
        assert ended.error_type == ("refused_on_the_way" if closed else "robots_unreachable")
        assert known["a.example"].not_before is None
        assert known["b.example"].not_before is not None
        told = "" if closed else "https://b.example/robots.txt answered 503"
        assert known["b.example"].because == told


def test_a_page_does_not_pay_for_the_robots_txt_that_another_asked_for(tmp_path: Path) -> None:
    """It is postponed without an attempt, and its domain is told nothing."""
    robots = Robots(tmp_path / "robots")
    lpm = LocalPersistenceManager(tmp_path / "store")
    lpm.persist_tasks([new(f"https://a.example/{n}") for n in range(2)], job=open_job(lpm))
    tasks = lpm.get_next_pending("owner", 2)
    lpm.close()
    asked: list[str] = []

    async def fetch(request: Request, hook: RequestHook) -> Page:
        page = await _walk(hook, request.url)
        asked.append(request.url)
        return replace(page, status=503)

    async def both() -> list[Outcome]:
        client, _ = permit_client(time.monotonic)
        return [
            await Attempt(
                task,
                SITE,
                FetchOptions(),
                fetch=fetch,
                gate=gate(client, None, []),
                robots=robots,
                worker="me",
                budget=Budget(),
                stored_page=_no_page,
            ).run()
            for task in tasks
        ]

    first, second = asyncio.run(both())

    assert asked == ["https://a.example/robots.txt"]
    assert (first.charge, first.error_type) == (True, "robots_unreachable")
    assert (second.charge, second.status) == (False, TaskStatus.PENDING)
    assert "robots.txt answered 503" in (second.error_message or "")
