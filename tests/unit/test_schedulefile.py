"""config/schedules.yaml: what it may say, and what is said of a fault."""

from pathlib import Path

import pytest

from crawler import sites
from crawler.errors import InputError
from crawler.sites.schedulefile import Schedule, read_schedules


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config folder with three sites that can be crawled, one without a start, and one whose form
    needs a file."""
    (tmp_path / "sites").mkdir()
    for name in ("imoti", "library", "county"):
        text = f"start: http://{name}.example/\n"
        (tmp_path / "sites" / f"{name}.yaml").write_text(text)
    (tmp_path / "sites" / "bare.yaml").write_text("hosts: bare.example\n")
    form = "start:\n  url: http://form.example/\n  form: {values: {q: '{owner}'}}\n"
    (tmp_path / "sites" / "form.yaml").write_text(form)
    return tmp_path


def read(config: Path, text: str) -> list[Schedule]:
    (config / "schedules.yaml").write_text(text)
    return read_schedules(config, sites.load(config))


def faults(config: Path, text: str) -> list[tuple[int | None, str]]:
    (config / "schedules.yaml").write_text(text)
    found = sites.faults(config)
    assert {Path(fault.path).name for fault in found} <= {"schedules.yaml"}
    return [(fault.line, fault.reason) for fault in found]


def test_what_a_file_may_say(config: Path) -> None:
    """One site, several or all; a cron rule or a span; a limit and a queue."""
    nightly, often, rare = read(
        config,
        "nightly:\n  sites: [imoti, Library]\n  cron: '0 2  * * mon-fri'\n"
        "often:\n  sites: county\n  every: 1h30m\n  limit: 500\n  queue: urgent\n"
        "rare: {sites: all, every: 7d}\n",
    )

    assert (nightly.sites, nightly.shown) == (("imoti", "library"), "0 2 * * mon-fri")
    assert (nightly.limit, nightly.queue) == (None, "default")
    assert (often.every, often.limit, often.queue) == (5400, 500, "urgent")
    assert (often.shown, rare.shown) == ("every 1h30m", "every 7d")
    known = sites.load(config)
    assert sorted(rare.sites_of(known)) == ["county", "imoti", "library"]


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "{}\n"])
def test_an_empty_file_has_no_schedules(config: Path, text: str) -> None:
    """As a missing one has none."""
    assert read(config, text) == []
    (config / "schedules.yaml").unlink()
    assert read_schedules(config, sites.load(config)) == []


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("a:\n  sites: imotti\n  every: 1h\n", 2, "there is no site 'imotti'; did you mean imoti?"),
        ("a:\n  sites:\n  - imoti\n  - nix\n  every: 1h\n", 4, "there is no site 'nix'"),
        ("a: {sites: bare, every: 1h}\n", 1, "the site bare names neither start nor sitemaps"),
        ("a: {sites: form, every: 1h}\n", 1, "the forms of the site form need the rows of a file"),
        ("a:\n  sites: [imoti, imoti]\n  every: 1h\n", 2, "sites has 'imoti' twice"),
        ("a:\n  sites: [imoti, all]\n  every: 1h\n", 2, "sites: all stands alone"),
        ("a:\n  sites: []\n  every: 1h\n", 2, "sites is empty"),
        ("a:\n  every: 1h\n", 2, "a has no sites"),
        ("a:\n  sites: imoti\n", 2, "a has neither cron nor every"),
        ("a:\n  sites: imoti\n  every: 1h\n  cron: '* * * * *'\n", 2, "both cron and every"),
        ("a:\n  sites: imoti\n  every: 59s\n", 3, "every must be whole seconds, from 1m"),
        ("a:\n  sites: imoti\n  every: 367d\n", 3, "every must be whole seconds, from 1m"),
        ("a:\n  sites: imoti\n  every: 90.5s\n", 3, "every must be whole seconds"),
        ("a:\n  sites: imoti\n  every: hourly\n", 3, "every must be a span such as 30m"),
        ("a:\n  sites: imoti\n  every: [1h]\n", 3, "every must be a single value, not a list"),
        ("a:\n  sites: imoti\n  cron: '0 25 * * *'\n", 3, "cron: the hour must be 0 to 23"),
        ("a:\n  sites: imoti\n  cron: 0 2 * *\n", 3, "cron must be five fields"),
        ("a:\n  sites: imoti\n  cron: */5 * * * *\n", 3, "must be in quotes, as in '*/5"),
        ("a:\n  sites: imoti\n  cron: *5 * * * *\n", 3, "must be in quotes, as in '*/5"),
        ("a:\n  sites: imoti\n  cron: '* * * * *\n", 4, "not YAML: found unexpected end of stream"),
        ("a:\n  sites: imoti\n  every: 1h\n  limit: 0\n", 4, "limit must be a whole number"),
        ("a:\n  sites: imoti\n  every: 1h\n  queue: fast\n", 4, "queue must be one of urgent"),
        ("a:\n  sites: imoti\n  crom: '* * * * *'\n", 3, "no key 'crom' in a schedule; did you"),
        ("a:\n  sites: imoti\n  every: 1h\n  name: b\n", 4, "there is no key 'name'"),
        ("a b:\n  sites: imoti\n  every: 1h\n", 1, "the name of a schedule consists of"),
        ("a:b: {sites: imoti, every: 1h}\n", 1, "the name of a schedule consists of"),
        ("a: hourly\n", 1, "a must be a mapping"),
        ("- imoti\n", 1, "the file must consist of lines"),
        ("a: {sites: all, every: 1h}\na: {sites: all, every: 2h}\n", 2, "'a' is here again"),
    ],
)
def test_a_fault_has_its_line_and_reason(config: Path, text: str, line: int, reason: str) -> None:
    """A beat refuses the file, and `sites check` and `doctor` name the fault."""
    [(found_line, found_reason)] = faults(config, text)[:1]

    assert (found_line, reason in found_reason) == (line, True), found_reason
    with pytest.raises(InputError, match=f"schedules.yaml, line {line}: "):
        read_schedules(config, sites.load(config))


def test_all_faults_are_named_at_once(config: Path) -> None:
    """Of all entries, in the order of lines."""
    found = faults(
        config,
        "a:\n  sites: [nix, nax]\n  every: 1s\nb:\n  sites: imoti\n  cron: '*'\n",
    )

    assert [line for line, _ in found] == [2, 2, 3, 6]


def test_a_broken_site_is_not_called_missing(config: Path) -> None:
    """Its own fault is named, and the schedule that names it is good."""
    (config / "sites" / "imoti.yaml").write_text("starts: http://imoti.example/\n")
    (config / "schedules.yaml").write_text("a: {sites: imoti, every: 1h}\n")

    assert {Path(fault.path).name for fault in sites.faults(config)} == {"imoti.yaml"}
    assert sites.file_faults(config / "schedules.yaml", config) == []


def test_one_file_is_checked_alone(config: Path) -> None:
    """`sites check config/schedules.yaml` names its faults."""
    (config / "schedules.yaml").write_text("a: {sites: nix, every: 1h}\n")

    [fault] = sites.file_faults(config / "schedules.yaml", config)
    assert fault.line == 1


def test_spans_begin_at_the_epoch(config: Path) -> None:
    """So that two beats that started at different times agree, whatever their zone is."""
    [schedule] = read(config, "a: {sites: imoti, every: 6h}\n")

    now = 1_794_967_199.5  # 2026-11-18T01:59:59.5Z
    assert schedule.latest(now, None) == 1_794_960_000.0  # midnight
    assert schedule.next(now, None) == 1_794_960_000.0 + 6 * 3600
    assert schedule.latest(1_794_960_000.0, None) == 1_794_960_000.0


def test_another_zone_is_another_rule(config: Path) -> None:
    """For a time of day, but not for a span."""
    daily, often = read(
        config, "a: {sites: imoti, cron: '0 2 * * *'}\nb: {sites: imoti, every: 1h}\n"
    )

    assert daily.rule("UTC") != daily.rule("Europe/Sofia")
    assert often.rule("UTC") == often.rule("Europe/Sofia")
