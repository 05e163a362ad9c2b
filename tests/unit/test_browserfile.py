"""What a browser is asked to do: a site's file, a job and the API say it the same way."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crawler.api.bodies import Options
from crawler.api.firecrawl_actions import NO_SCROLLING_UP
from crawler.api.firecrawl_options import ScrapeOptions, understand
from crawler.arguments import checked
from crawler.batches import BatchOptions, submit
from crawler.config import Settings
from crawler.errors import UsageError
from crawler.models import BROWSER, HTTP, Fetcher, JobOptions
from crawler.render_options import DEFAULT_BLOCK, MAX_STEPS, RenderOptions, Step
from crawler.sites import Site, faults, load

Write = Callable[[str], Path]
LIST, HOME = "https://a.example/list", "https://a.example/home/1"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes the file of the site `homes`, and returns the config folder."""

    def folder(text: str) -> Path:
        (tmp_path / "sites").mkdir(exist_ok=True)
        (tmp_path / "sites" / "homes.yaml").write_text(f"hosts: a.example\n{text}")
        return tmp_path

    return folder


def site_of(folder: Path) -> Site:
    site = load(folder).named("homes")
    assert site is not None
    return site


def test_steps_are_written_by_their_action(write: Write) -> None:
    """Each step has one action, and what goes with it; keys of the keyboard in any case."""
    site = site_of(
        write("""
browser:
  wait_for: .list
  block: [image, stylesheet]
  screenshot: yes
  steps:
    - click: ".more:contains('More')"
      times: 20
    - fill: "#q"
      value: "  0123 "
    - press: enter
      selector: "#q"
    - press: Control+a
    - scroll: 5
    - {scroll: .list, times: 3, seconds: 1.5}
    - {wait_for: .card, seconds: 10}
    - wait: 2
""")
    )

    assert site.browser == RenderOptions(
        wait_for=".list",
        block=("image", "stylesheet"),
        screenshot=True,
        steps=(
            Step(click=".more:contains('More')", times=20),
            Step(fill="#q", value="  0123 "),
            Step(press="Enter", selector="#q"),
            Step(press="Control+a"),
            Step(scroll=5),
            Step(scroll=".list", times=3, seconds=1.5),
            Step(wait_for=".card", seconds=10),
            Step(wait=2),
        ),
    )
    assert [step.action for step in site.browser.steps or ()] == [
        "click", "fill", "press", "press", "scroll", "scroll", "wait_for", "wait"
    ]  # fmt: skip


def test_what_is_said_closer_to_the_page_goes_before(write: Write) -> None:
    """A job before an entry of `pages`, that before the site, that before the defaults: key by
    key."""
    folder = write("""
browser:
  wait_for: .ready
  steps: [{click: .agree}]
pages:
  - regex: /list
    role: index
    browser:
      steps: [{scroll: 5}]
  - regex: /home/
    browser:
      wait_for: ""
      steps: []
""")
    (folder / "scraping_defaults.yaml").write_text("browser: {block: [font]}")
    site, none = site_of(folder), JobOptions()

    assert site.rendering_of(LIST, none) == RenderOptions(
        wait_for=".ready", block=("font",), steps=(Step(scroll=5),)
    )
    assert not site.rendering_of(HOME, none).needs_browser
    assert site.rendering_of("https://a.example/", none).steps == (Step(click=".agree"),)
    asked = JobOptions(browser=RenderOptions(steps=(Step(wait=1),), block=()))
    assert site.rendering_of(LIST, asked) == RenderOptions(
        wait_for=".ready", block=(), steps=(Step(wait=1),)
    )


@pytest.mark.parametrize(
    ("own", "job", "asked", "of_list", "of_home"),
    [
        ("", None, False, BROWSER, HTTP),
        ("fetcher: auto", None, False, BROWSER, "auto"),
        ("fetcher: browser", None, False, BROWSER, BROWSER),
        ("fetcher: auto", HTTP, False, HTTP, HTTP),
        ("", "auto", False, BROWSER, "auto"),
        ("", None, True, BROWSER, BROWSER),
        ("fetcher: auto", "auto", True, BROWSER, BROWSER),
    ],
)
def test_steps_need_a_browser(
    write: Write, own: str, job: Fetcher | None, asked: bool, of_list: str, of_home: str
) -> None:
    """Whatever a site says, unless the job says that only HTTP is to be used."""
    site = site_of(
        write(f"{own}\npages: [{{regex: /list, browser: {{steps: [{{scroll: 5}}]}}}}]\n")
    )
    browser = RenderOptions(wait_for=".ready") if asked else None
    options = JobOptions(fetcher=job, browser=browser)

    assert (site.fetcher_of(LIST, options), site.fetcher_of(HOME, options)) == (of_list, of_home)
    assert options.needs == (BROWSER if asked else HTTP)
    assert BROWSER in site.fetchers


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("browser: yes", 2, "browser must be a mapping"),
        ("browser: {wait: 3}", 2, "there is no key 'wait' in browser; did you mean wait_for?"),
        ("browser: {wait_for: 'a['}", 2, "wait_for: 'a[' is not a CSS selector"),
        ("browser: {block: [images]}", 2, "did you mean image?"),
        ("browser: {screenshot: maybe}", 2, "screenshot must be true or false"),
        ("browser: {steps: {click: a}}", 2, "steps must be a list"),
        ("browser:\n  steps:\n    - clik: a", 4, "there is no key 'clik' in a step"),
        ("browser:\n  steps:\n    - times: 2", 4, "a step has one of wait_for, click"),
        ("browser:\n  steps:\n    - {click: a, wait: 2}", 4, "here is click and wait"),
        ("browser:\n  steps:\n    - fill: #q\n      value: x", 4, "fill is empty; a selector"),
        ("browser:\n  steps:\n    - fill: .q", 4, 'fill has no value; an empty one is ""'),
        (
            "browser:\n  steps:\n    - {click: a, value: x}",
            4,
            "value goes with fill, not with click",
        ),
        ("browser:\n  steps:\n    - {scroll: 5, times: 2}", 4, "scroll has a number already"),
        ("browser:\n  steps:\n    - scroll: 101", 4, "must be a whole number from 1 to 100"),
        ("browser:\n  steps:\n    - {click: a, times: 101}", 4, "must be a whole number from 1 to"),
        ("browser:\n  steps:\n    - wait: 61", 4, "wait must be a number from 0.1 to 60 seconds"),
        ("browser:\n  steps:\n    - press: Entr", 4, "'Entr' is not a key; did you mean Enter?"),
        ("browser:\n  steps:\n    - {fill: a, value: [x]}", 4, "value must be a single text"),
        (f"browser: {{steps: [{'{wait: 1},' * 51}]}}", 2, f"51 entries, more than {MAX_STEPS}"),
        ("browser:\n  steps:\n    - {fill: a, value: '%s'}" % ("x" * 10_001), 4, "10,001 char"),
        ("browser:\n  steps:\n    - {fill: '#pass', value: x}", 4, "a password has no place in"),
        ("browser:\n  steps:\n    - {fill: 'input[type=password]', value: x}", 4, "a password"),
        ("pages:\n  - regex: /a\n    browser: {pdf: 3}", 4, "pdf must be true or false"),
        ("browser: {steps: [{wait: 40}, {wait: 20}]}", 2, "wait 60 s, and timeout_s is 60"),
        ("fetcher: http\nbrowser: {pdf: yes}", 2, "only a browser can do, and fetcher is http"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(
    write: Write, text: str, line: int, reason: str
) -> None:
    """As all other faults of a site's file; a value is not shown."""
    [fault] = faults(write(text))

    assert fault.line == line
    assert reason in fault.reason
    assert "xxx" not in str(fault)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"browser": {"clik": 1}}, "options: Object contains unknown field `clik`"),
        ({"browser": {"steps": [{"wait": 61}]}}, "options: Expected `float` <= 60.0"),
        ({"browser": {"steps": [{"wait": 1}] * 51}}, "options: Expected `array` of length <= 50"),
        ({"browser": {"steps": [{}]}}, "options: browser: step 1: a step has one of"),
        ({"browser": {"steps": [{"wait": 1}, {"click": "a["}]}}, "options: browser: step 2: 'a['"),
        ({"browser": {"wait_for": ">"}}, "options: browser: wait_for: '>' is not a CSS selector"),
        (
            {"browser": {"steps": [{"press": "Foo"}]}},
            "options: browser: step 1: 'Foo' is not a key",
        ),
        (
            {"browser": {"steps": [{"fill": "#pwd", "value": "secret"}]}},
            "options: browser: step 1: a password has no place in a step",
        ),
        ({"browser": {"pdf": True}, "fetcher": "http"}, "options: browser: a browser is needed"),
    ],
)
def test_a_program_is_told_what_is_wrong(
    tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    """With the step, before anything is stored."""
    settings = Settings(data_dir=tmp_path / "data")

    def give() -> None:
        given = checked(options, BatchOptions, "options")
        submit(settings, "s", ["https://a.example/"], given, direct=False)

    with pytest.raises(UsageError) as caught:
        give()

    assert str(caught.value).startswith(says)
    assert not (tmp_path / "data").exists()


def test_the_api_has_the_same_shape() -> None:
    """What is left out stays open for the site's file."""
    steps = [{"click": ".more", "times": 2.0}, {"scroll": 5}, {"fill": "#q", "value": ""}]
    body = {"browser": {"wait_for": ".card", "block": [], "steps": steps}}

    assert Options.model_validate(body).as_batch_options().of_job == JobOptions(
        browser=RenderOptions(
            wait_for=".card",
            block=(),
            steps=(Step(click=".more", times=2), Step(scroll=5), Step(fill="#q", value="")),
        )
    )


def understood(**given: Any) -> Any:
    return understand(ScrapeOptions.model_validate(given), kind="scrape", has_browser=lambda: True)


def test_actions_of_firecrawl_become_steps() -> None:
    """`waitFor` goes first; what is written goes where was clicked; scrolling up is left out."""
    actions = [
        {"type": "click", "selector": "#q"},
        {"type": "wait", "milliseconds": 0},
        {"type": "write", "text": "mill"},
        {"type": "press", "key": "ENTER"},
        {"type": "wait", "selector": ".card"},
        {"type": "wait", "milliseconds": 20},
        {"type": "scroll", "direction": "down"},
        {"type": "scroll", "direction": "up"},
        {"type": "scroll", "direction": "down", "selector": ".list"},
    ]
    found = understood(waitFor=1500, actions=actions)

    assert found.options.browser == RenderOptions(
        steps=(
            Step(wait=1.5),
            Step(click="#q"),
            Step(fill="#q", value="mill"),
            Step(press="Enter"),
            Step(wait_for=".card"),
            Step(wait=0.1),
            Step(scroll=1),
            Step(scroll=".list"),
        )
    )
    assert found.options.of_job.needs == BROWSER
    assert found.warnings == (NO_SCROLLING_UP,)
    assert understood(waitFor=0, actions=[]).options.browser is None


@pytest.mark.parametrize(
    ("actions", "says"),
    [
        ([{"type": "write", "text": "x"}], "actions.0: write needs a click on its field before it"),
        ([{"type": "wait"}], "actions.0: wait needs milliseconds or a selector"),
        ([{"type": "click", "selector": "a", "all": True}], "actions.0: click: all"),
        ([{"type": "press", "key": "Foo"}], "actions.0: 'Foo' is not a key"),
        ([{"type": "click", "selector": "a["}], "actions.0: 'a[' is not a CSS selector"),
        (
            [{"type": "click", "selector": "#password"}, {"type": "write", "text": "x"}],
            "actions.1: a password has no place in a step",
        ),
        ([{"type": "executeJavascript", "script": "1"}], "actions.0: executeJavascript is not sup"),
    ],
)
def test_actions_that_cannot_be_taken_are_refused(actions: list[dict[str, Any]], says: str) -> None:
    """With their number."""
    with pytest.raises(UsageError) as caught:
        understood(actions=actions)

    assert str(caught.value).startswith(says)


def test_without_a_browser_only_waiting_is_left_out() -> None:
    """It would change what a page is to leave out other actions."""
    waiting = ScrapeOptions.model_validate({"waitFor": 100})
    clicking = ScrapeOptions.model_validate({"actions": [{"type": "click", "selector": "a"}]})

    found = understand(waiting, kind="scrape")
    assert found.options.browser is None
    assert found.warning.startswith("waitFor has no effect: it needs a browser")
    with pytest.raises(UsageError, match="needs a browser, and this server has none"):
        understand(clicking, kind="scrape")


def test_what_is_not_loaded_has_a_default() -> None:
    """Pictures, media and fonts: hardly any page needs them."""
    assert Site(name="a", version="").browser.block == DEFAULT_BLOCK
