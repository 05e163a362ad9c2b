"""Pages that show what they have after clicks and scrolling: through a site's file, and the API."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crawler import crawls, sites
from crawler.config import Settings
from crawler.fetch.browser import Browser
from crawler.lpm import LocalPersistenceManager
from crawler.models import MESSAGE_QUEUES, Job
from crawler.worker import Worker
from tests.support.api_server import ApiServer
from tests.support.pages import HTML, Answer, Pages, parcel
from tests.support.script_site import MORE
from tests.support.stack import wait_for

HOMES, SHOWN = 60, 10
LIST = """<!DOCTYPE html><title>Homes</title><h1>All homes of the county, ten at a time</h1>
<ul id=list></ul><button class=more>More</button>
<script>
const more = async () => {
  const known = document.querySelectorAll('li').length;
  const homes = await (await fetch('/homes/' + known)).json();
  for (const n of homes) document.getElementById('list').insertAdjacentHTML('beforeend',
    `<li class=home style="height: 200px"><a href=/home/${n}>Home ${n}</a></li>`);
  if (known + homes.length == %d) document.querySelector('.more').remove();
};
more();
const button = document.querySelector('.more');
%s
</script>"""
CLICKED = LIST % (HOMES, "button.onclick = more;")
SCROLLED = LIST % (
    HOMES,
    "new IntersectionObserver(seen => seen[0].isIntersecting && more()).observe(button);",
)
SEARCH = """<h1>Find a home in the county</h1>
<form action=/found><input id=q name=q></form>"""
FOUND = parcel(1) + "<p class=home><a href=/home/found>A home</a>"
FILE = """
start: [{url}/list, {url}/feed, {url}/find, {url}/broken, {url}/walled]
rate: none
retry: {{attempts: 1}}
follow:
  - css: .home a
    role: listing
pages:
  - regex: /list
    role: index
    browser:
      steps:
        - click: .more
          times: 20
  - regex: /feed
    role: index
    browser:
      steps:
        - scroll: 20
  - regex: /find
    role: index
    browser:
      steps:
        - {{fill: "#q", value: mill}}
        - press: Enter
  - regex: /(broken|walled)
    role: index
    browser:
      steps:
        - click: .gone
          seconds: 0.1
  - regex: /home/
    fields: {{title: h1}}
"""


@pytest.fixture
def homes() -> Iterator[Pages]:
    """A site with two lists of the same homes, and two pages without the button."""
    with Pages() as web:
        script = {"Content-Type": "application/json"}
        web.answers = {
            "/list": Answer(CLICKED),
            "/feed": Answer(SCROLLED),
            "/broken": Answer(parcel(1)),
            "/find": Answer(SEARCH),
            "/found?q=mill": Answer(FOUND),
            "/home/found": Answer(parcel(HOMES)),
            "/walled": Answer("<h1>Forbidden</h1>", 403),
            "/search": Answer(MORE),
            "/more/1": Answer("2"),
            **{f"/home/{n}": Answer(parcel(n), headers=HTML) for n in range(HOMES)},
            **{
                f"/homes/{n}": Answer(json.dumps([*range(n, n + SHOWN)]), headers=script)
                for n in range(0, HOMES, SHOWN)
            },
        }
        yield web


def test_a_crawl_follows_what_steps_have_brought(tmp_path: Path, homes: Pages) -> None:
    """All homes of a list behind a button, and of one that grows while it is scrolled, come once,
    without a browser. What a form leads to is a page of its own. A step that cannot be taken fails
    a good page; a refusal is a refusal."""
    # Given a site's file with steps for its lists
    (tmp_path / "config" / "sites").mkdir(parents=True)
    file = tmp_path / "config" / "sites" / "homes.yaml"
    file.write_text(FILE.format(url=homes.url))
    settings = Settings(
        data_dir=tmp_path / "data", config_dir=tmp_path / "config", min_free=0, slice_s=30
    )
    job = crawls.begin(settings, crawls.plan_site(sites.load(settings.config_dir), "homes")).job

    # When it is crawled
    worker = Worker(settings, queues=MESSAGE_QUEUES, browser=Browser.of(settings))
    try:
        wait_for(lambda: _is_done(worker, settings.data_dir, job), 300, "the end of the crawl")
    finally:
        worker.stop()

    # Then each home was fetched once, by HTTP
    asked = Counter(path for path in homes.paths() if path.startswith("/home/"))
    assert asked == {f"/home/{n}": 1 for n in [*range(HOMES), "found"]}
    with LocalPersistenceManager(settings.data_dir) as lpm:
        results = list(lpm.results.read(job))
        listed = [each["data"]["title"] for each in results if each["role"] == "listing"]
        assert sorted(listed) == sorted(f"Parcel {n}" for n in range(HOMES + 1))
        ended = lpm.store.db.all(
            "SELECT url, error_type, error_message FROM tasks WHERE status = 'failed' ORDER BY url"
        )
        assert lpm.counts.in_browsers(job) == 4  # not what has led elsewhere
    # Then the other pages say what they lack
    (broken, reason, message), (walled, refusal, _) = ended
    assert (broken, reason) == (f"{homes.url}/broken", "step_failed")
    assert message.startswith("step 1 (click .gone): there is no such element")
    assert (walled, refusal) == (f"{homes.url}/walled", "http_403")


def _is_done(worker: Worker, data: Path, job: Job) -> bool:
    """Work for a while; say whether nothing is left."""
    worker.run_slice("", MESSAGE_QUEUES)
    worker.finish_pages(60)
    with LocalPersistenceManager(data) as lpm:
        return not lpm.counts.progress(job).open


def test_a_client_has_a_page_clicked_and_filled_in(tmp_path: Path, homes: Pages) -> None:
    """Without a stack, by the Chromium of this machine; what cannot be done is refused by both
    dialects of the API, before anything is fetched."""
    url = {"url": f"{homes.url}/search"}
    steps = {"steps": [{"click": ".more"}]}
    refused: list[tuple[str, dict[str, Any], int, str]] = [
        ("/api/scrape", {"browser": steps, "fetcher": "http"}, 400, "fetcher is http"),
        ("/api/scrape", {"browser": {"step": []}}, 422, "options.browser.step"),
        ("/api/scrape", {"browser": {"steps": [{"click": "a["}]}}, 400, "browser: step 1: 'a['"),
        ("/v2/scrape", {"actions": [{"type": "write", "text": "x"}]}, 400, "actions.0: write"),
        ("/v2/scrape", {"actions": [{"type": "jump"}]}, 400, "actions.0"),
    ]
    actions = [
        {"type": "click", "selector": ".more"},
        {"type": "click", "selector": "#name"},
        {"type": "write", "text": "mill"},
        {"type": "press", "key": "Enter"},
    ]
    with ApiServer(tmp_path) as api:
        for path, body, status, says in refused:
            given = {"options": body} if path == "/api/scrape" else body
            answer = api.ask("POST", path, url | given)
            assert (answer.status, says in answer.body["error"]) == (status, True), answer
        assert not homes.asked

        found = api.ask("POST", "/v2/scrape", url | {"actions": actions, "formats": ["html"]})

    assert "<li>1</li><li>2</li><li>mill</li>" in found.body["data"]["html"], found
