"""A Gateway's tasks as they come, and what is made of them."""

import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from crawler import sites
from crawler.bulk import Secrets
from crawler.db.gateway import Assignment
from crawler.fetch import session
from crawler.gateway.collector import (
    MAX_PLATFORMS_LENGTH,
    TaskWithoutId,
    parse_task,
    repeat_platforms,
)
from crawler.models import NO_DEADLINE
from crawler.sites import Sites

TASK: dict[str, Any] = {
    "task_id": "t-1",
    "type": "parcel",
    "platform": "beacon",
    "target": {
        "parcel_id": "123",
        "state": "FL",
        "county": "Bay",
        "url": "https://beacon.example/p/123",
    },
    "priority": 1,
    "created_at": "2026-01-30T12:00:00Z",
    "hint": {"unknown": [1, 2]},
}
NOW = 1_769_774_400.0


@pytest.fixture
def described(tmp_path: Path) -> Sites:
    """A folder of site files with one that can make URLs."""
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "beacon.yaml").write_text(
        "hosts: [beacon.example]\nurl_template: https://beacon.example/{county}/{parcel_id}\n"
        "headers: {X-Key: secret}\n"
    )
    return sites.load(tmp_path)


@pytest.fixture
def secrets(tmp_path: Path) -> Secrets:
    """The secrets of the Gateway's job."""
    return Secrets(tmp_path / "sessions", "gateway")


def good(item: Any, described: Sites, secrets: Secrets) -> Assignment:
    """The assignment that a good task makes."""
    found = parse_task(item, described, secrets, NOW)
    assert isinstance(found, Assignment)
    assert found.refusal is None, found.refusal
    return found


def test_a_task_is_kept_as_it_came(described: Sites, secrets: Secrets) -> None:
    """With the fields of the contract where results have them, and with fields that nobody
    knows."""
    found = good(TASK, described, secrets)

    assert (found.external_id, found.address.url, found.priority) == (
        "t-1",
        "https://beacon.example/p/123",
        1,
    )
    assert (found.parcel_id, found.platform, found.deadline) == ("123", "beacon", NO_DEADLINE)
    assert found.input == {"platform": "beacon", "state": "FL", "county": "Bay", "task": TASK}


@pytest.mark.parametrize("url", [None, "", "  "])
def test_a_target_without_a_url_gets_it_from_its_platform(
    url: str | None, described: Sites, secrets: Secrets
) -> None:
    """By the url_template of the site of that name, each value in its place."""
    target = {"parcel_id": 12, "county": "St. John's/North", "url": url}

    found = good(TASK | {"target": target, "platform": " Beacon "}, described, secrets)

    assert found.address.url == "https://beacon.example/St.%20John%27s%2FNorth/12"
    assert found.parcel_id == "12"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"target": None}, "the target is not an object"),
        ({"target": ["x"]}, "the target is not an object"),
        ({"target": {"url": 5}}, "the url is not text"),
        ({"target": {"url": "ftp://a.example/"}}, "only http and https are fetched, not ftp:"),
        ({"target": {"url": "nonsense"}}, "not a URL: 'nonsense'"),
        (
            {"target": {"parcel_id": "1"}, "platform": "other"},
            "the platform 'other' has no url_template here",
        ),
        ({"target": {}, "platform": None}, "the target has no url, and no platform is named"),
        ({"target": {"parcel_id": "1"}}, "the column 'county' is missing"),
        ({"target": {"parcel_id": "..", "county": "x"}}, "is a place and no value"),
        ({"target": {"parcel_id": {"a": 1}, "county": "x"}}, "the parcel_id is not text"),
        ({"platform": 7}, "the platform is not text"),
        ({"priority": "high"}, "the priority is not a whole number"),
        ({"priority": True}, "the priority is not a whole number"),
        ({"priority": 1.5}, "the priority is not a whole number"),
        ({"more": "x" * 70_000}, "more than 64,000"),
    ],
)
def test_a_malformed_task_is_refused_with_its_reason(
    change: dict[str, Any], reason: str, described: Sites, secrets: Secrets
) -> None:
    """So that the Gateway can be told; all that fits of it is kept."""
    found = parse_task(TASK | change, described, secrets, NOW)

    assert isinstance(found, Assignment)
    assert found.refusal is not None
    assert reason in found.refusal
    assert found.external_id == "t-1"


@pytest.mark.parametrize(
    "item",
    [5, None, [], "x", {}, {"task_id": None}, {"task_id": ""}, {"task_id": "x" * 501},
     {"task_id": True}, {"task_id": ["a"]}, {"task_id": "a\0b"}],
)  # fmt: skip
def test_what_has_no_usable_id_is_kept_apart(item: Any, described: Sites, secrets: Secrets) -> None:
    """Nobody can be told of its end."""
    assert isinstance(parse_task(item, described, secrets, NOW), TaskWithoutId)


def test_no_password_of_a_task_is_kept(described: Sites, secrets: Secrets) -> None:
    """In whatever field a URL has one, and also where the task is refused or has no id."""
    hidden = "https://ada:geheim@files.example/1"
    held = TASK | {
        "hint": [{"at": hidden}],
        "target": TASK["target"] | {"parcel_id": hidden, "county": hidden},
    }
    held |= {"platform": hidden}

    found = good(held, described, secrets)
    refused = parse_task(held | {"target": {"parcel_id": hidden}}, described, secrets, NOW)
    unnamed = parse_task(held | {"task_id": None}, described, secrets, NOW)

    assert (found.parcel_id, found.platform) == ("https://files.example/1",) * 2
    assert found.input["task"]["hint"] == [{"at": "https://files.example/1"}]
    assert isinstance(refused, Assignment)
    assert refused.refusal
    assert isinstance(unnamed, TaskWithoutId)
    assert "geheim" not in f"{found}{refused}{unnamed}"


def test_a_number_is_taken_for_an_id(described: Sites, secrets: Secrets) -> None:
    """As the text that its answer names."""
    assert good(TASK | {"task_id": 17}, described, secrets).external_id == "17"


@pytest.mark.parametrize(
    ("given", "meant"), [(None, 3), (1, 1), (4, 4), (0, 1), (-7, 1), (9, 4), (10**30, 4), (2.0, 2)]
)
def test_priorities_beyond_the_contract_are_the_nearest(
    given: Any, meant: int, described: Sites, secrets: Secrets
) -> None:
    """And no priority is a normal one."""
    assert good(TASK | {"priority": given}, described, secrets).priority == meant


@pytest.mark.parametrize(
    ("fields", "deadline"),
    [
        ({"deadline": "2026-01-30T12:30:00Z"}, NOW + 1800),
        ({"deadline": "2026-01-30T12:30:00"}, NOW + 1800),
        ({"expires_at": "2026-01-30T13:30:00+01:00"}, NOW + 1800),
        ({"lease_until": NOW + 5}, NOW + 5),
        ({"lease_s": 600}, NOW + 600),
        ({"lease_s": 600, "deadline": "2026-01-30T12:01:00Z"}, NOW + 60),
        ({"deadline": "soon", "expires_at": -5, "lease_s": "x"}, NO_DEADLINE),
        ({"deadline": None, "lease_s": float("1e300"), "expires_at": True}, NO_DEADLINE),
        ({"deadline": "9999-99-99"}, NO_DEADLINE),
    ],
)
def test_the_first_of_deadline_and_lease_counts(
    fields: dict[str, Any], deadline: float, described: Sites, secrets: Secrets
) -> None:
    """In each of the forms that a time has; what is no time is kept and not obeyed."""
    assert good(TASK | fields, described, secrets).deadline == deadline


def test_a_password_in_a_url_is_kept_apart(
    tmp_path: Path, described: Sites, secrets: Secrets
) -> None:
    """It goes into the job's session, and neither into the task nor into what is kept of it; one
    for each server."""
    item = TASK | {"target": TASK["target"] | {"url": "https://me:pass@beacon.example/p"}}

    found = good(item, described, secrets)
    assert secrets.unsaved
    secrets.save()

    assert "pass" not in repr(found)
    kept = session.load(tmp_path / "sessions", "gateway")
    assert kept is not None
    assert kept.credentials == {"https://beacon.example": "me:pass"}
    other = parse_task(
        TASK | {"target": {"url": "https://you:word@beacon.example/q"}},
        described,
        secrets,
        time.time(),
    )
    assert isinstance(other, Assignment)
    assert other.refusal == "another task names another user or password for the same server"
    assert "word" not in repr(other.input)


def test_a_platform_gives_its_site_to_other_hosts_without_its_headers(described: Sites) -> None:
    """A host that no file names is read by the platform's fields, but gets none of its secrets."""
    assert described.of("https://beacon.example/p", "other").headers == (("X-Key", "secret"),)
    elsewhere = described.of("https://elsewhere.example/p", "Beacon")
    assert (elsewhere.name, elsewhere.headers) == ("beacon", ())
    assert described.of("https://elsewhere.example/p", "unknown").name == "default"


@pytest.mark.parametrize(
    ("platforms", "count", "expected"),
    [
        ([], 5, []),
        (["a"], 3, ["a", "a", "a"]),
        (["a", "b"], 5, ["a", "b", "a", "b", "a"]),
        (["a", "b", "c"], 1, ["a", "b", "c"]),
    ],
)
def test_platforms_are_named_until_there_is_no_room(
    platforms: list[str], count: int, expected: list[str]
) -> None:
    """Each as often as the others, and none left out: a Gateway may hand out one task for each
    name."""
    assert repeat_platforms(platforms, count) == expected


@pytest.mark.parametrize("platform", ["x" * 64, "ü" * 64])
def test_a_question_stays_short(platform: str) -> None:
    """Long names are repeated less often, so that no proxy refuses the request."""
    found = repeat_platforms([platform], 100)

    assert 1 <= len(found) < 100
    assert len(quote(platform)) * len(found) <= MAX_PLATFORMS_LENGTH
