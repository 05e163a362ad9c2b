"""Settings: wrong names and values are told with the nearest right one."""

import pytest

from crawler.config import VARIABLES, Settings, load
from crawler.errors import ConfigError


def test_the_defaults_need_no_environment() -> None:
    """An empty environment gives the documented defaults."""
    assert load({"PATH": "/bin"}) == Settings()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("CRAWLER_WINDO", "5", "did you mean CRAWLER_WINDOW?"),
        ("CRAWLER_XYZ", "5", "did you mean CRAWLER_"),
        ("CRAWLER_WINDOW", "many", "must be a whole number"),
        ("CRAWLER_WINDOW", "0", "must be at least 1"),
        ("CRAWLER_WINDOW", "-5", "must be at least 1"),
        ("CRAWLER_STALL_S", "soon", "must be a number"),
        ("CRAWLER_STALL_S", "nan", "must be at least"),
        ("CRAWLER_STALL_S", "inf", "must be at least"),
        ("CRAWLER_RAW", "al", "did you mean all?"),
        ("CRAWLER_RATE", "fast", "must be none, or a rate such as 50/s"),
        ("CRAWLER_RATE", "0/s", "must be none, or a rate such as 50/s"),
        ("CRAWLER_TIMEZONE", "Europe/Sofi", "no such time zone"),
        ("CRAWLER_ALLOW_NETS", "10.0.0.0/99", "10.0.0.0/99"),
        ("CRAWLER_FAILPOINT", "committed", "must be name:n"),
        ("STANDALONE", "maybe", "must be true or false"),
        ("GATEWAY_SYNC", "disable", "did you mean disabled?"),
        ("REDIS_URL", "http://:secret@x", "must begin with redis://"),
    ],
)
def test_bad_settings_are_named(name: str, value: str, message: str) -> None:
    """The error names the variable and what would be right, and never shows a secret."""
    with pytest.raises(ConfigError) as caught:
        load({name: value})

    assert message in str(caught.value)
    assert str(caught.value).startswith(name)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999"])
@pytest.mark.parametrize("name", [name for name, field in VARIABLES.items() if field.type is float])
def test_what_is_no_number_is_refused(name: str, text: str) -> None:
    """Also where no comparison with a limit would refuse it."""
    with pytest.raises(ConfigError, match=f"^{name}={text}: must be"):
        load({name: text})


def test_settings_of_features_that_are_missing_are_refused() -> None:
    """Nobody believes that a setting is in force which is not; an empty one says nothing."""
    with pytest.raises(ConfigError) as caught:
        load({"MIN_PROXIES": "50"})

    assert str(caught.value) == (
        "MIN_PROXIES is not in force yet: this version has no pool of proxies; unset it"
    )
    assert load({"MIN_PROXIES": " "}) == Settings()


def test_settings_of_site_jobs_by_the_names_of_the_requirements() -> None:
    """They have the values that the requirements give them, and both names of the switch count."""
    given = load(
        {"SCRAPING_CHUNK_SIZE": "20", "SCRAPING_SOFT_TIME_LIMIT": "60",
         "SCRAPING_HARD_TIME_LIMIT": "90", "PARALLEL_SCRAPING_ENABLED": "true"}
    )  # fmt: skip

    usual = Settings()
    assert (usual.chunk_size, usual.soft_time_limit, usual.hard_time_limit) == (50, 600, 720)
    assert not usual.parallel_scraping
    assert (given.chunk_size, given.soft_time_limit, given.hard_time_limit) == (20, 60, 90)
    assert given.parallel_scraping
    assert load({"PARALLEL_SCRAPING": "1", "PARALLEL_SCRAPING_ENABLED": "0"}).parallel_scraping
    assert load({"PARALLEL_SCRAPING": "", "PARALLEL_SCRAPING_ENABLED": "1"}).parallel_scraping
    with pytest.raises(ConfigError, match="SCRAPING_SOFT_TIME_LIMIT=800: must be less than"):
        load({"SCRAPING_SOFT_TIME_LIMIT": "800"})


def test_good_settings_are_read() -> None:
    """Every kind of value has its type."""
    settings = load(
        {"STANDALONE": "true", "CRAWLER_WINDOW": "10", "CRAWLER_STALL_S": "2.5",
         "CRAWLER_RATE": "50/s", "CRAWLER_ALLOW_NETS": "10.0.0.1/8, fd00::/8",
         "CRAWLER_DATA_DIR": "/somewhere"}
    )  # fmt: skip

    assert (settings.window, settings.stall_s, settings.rate) == (10, 2.5, "50/s")
    assert settings.allow_nets == ("10.0.0.0/8", "fd00::/8")
    assert not settings.gateway_enabled


def test_gateway_sync_disabled_says_the_same_as_standalone() -> None:
    """Either of the two switches silences the Gateway side."""
    assert load({}).gateway_enabled
    assert not load({"GATEWAY_SYNC": "disabled"}).gateway_enabled


def test_settings_do_not_show_secrets() -> None:
    """However they get into a log or a traceback."""
    settings = load(
        {"GATEWAY_TOKEN": "hush", "REDIS_URL": "redis://:hush@127.0.0.1/0", "CRAWLER_WINDOW": "5"}
    )

    assert "hush" not in repr(settings)
    assert "window=5" in repr(settings)
