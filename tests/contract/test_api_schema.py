"""The API does what its own description says, whatever it is sent."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from crawler.api.limits import MAX_URLS
from crawler.urls import MAX_LENGTH
from tests.support.api_server import ApiServer
from tests.support.site import Site

TOKEN = "open-sesame-9"
SETTINGS = """
continue-on-failure = true
headers = { Authorization = "Bearer ${CRAWLER_API_TOKEN}" }

[auth.openapi.HTTPBearer]
bearer = "${CRAWLER_API_TOKEN}"

# That a text is a URL which may be fetched, or a rate, is more than a schema can say.
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "400", "401", "403", "404", "409", "429", "503"]

[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", "503"]
"""


def without_large_limits(node: Any) -> Any:
    """A description without limits at which bodies take a minute to generate."""
    if isinstance(node, list):
        return [without_large_limits(each) for each in node]
    if not isinstance(node, dict):
        return node
    return {
        name: without_large_limits(value)
        for name, value in node.items()
        if name not in ("maxItems", "maxLength") or value not in (MAX_URLS, MAX_LENGTH)
    }


def within_reach(described: dict[str, Any], site: Site) -> dict[str, Any]:
    """The description, so that requests made from it leave this machine alone and take no time.

    What it still allows is a part of what the server allows.
    """
    from crawler.api import bodies  # takes a second, and each process that runs tests is here

    text = json.dumps(described).replace(bodies.EXAMPLE_URL, site.page(1))
    schema: dict[str, Any] = without_large_limits(json.loads(text))
    # Each of these begins a process, and hundreds of them would keep others from their turn.
    for path in ("/v2/batch/scrape", "/v2/crawl", "/v2/map", "/v2/scrape"):
        del schema["paths"][path]
    # Its end is that of a session, which may take as long as a retry.
    del schema["paths"]["/api/crawl/{session_id}/events"]
    return schema


def test_schemathesis_finds_nothing(tmp_path: Path, site: Site) -> None:
    """Every answer to generated requests, valid and not, is one that /openapi.json announces."""
    (tmp_path / "schemathesis.toml").write_text(SETTINGS)
    program = str(Path(sys.executable).with_name("st"))
    nowhere = "http://127.0.0.1:9"
    with ApiServer(
        tmp_path, token=TOKEN, CRAWLER_API_TOKEN=TOKEN, HTTP_PROXY=nowhere, HTTPS_PROXY=nowhere
    ) as api:
        api.batch([site.page(1)], session_id="research-1")
        described = within_reach(api.ask("GET", "/openapi.json").body, site)
        (tmp_path / "openapi.json").write_text(json.dumps(described))
        env = os.environ | {"CRAWLER_API_TOKEN": TOKEN}  # not its proxies
        done = subprocess.run(
            [
                program, "run", "openapi.json", "--url", api.url, "--checks", "all",
                "--seed", "7", "-n", "5", "--phases", "examples,coverage,fuzzing",
            ],
            cwd=tmp_path, env=env, capture_output=True, text=True,
            check=False,
        )  # fmt: skip

        assert done.returncode == 0, done.stdout[-4000:]
        assert "Traceback" not in api.log()
        assert TOKEN not in api.log()


def test_the_description_is_complete(tmp_path: Path) -> None:
    """Each route is described, with examples of what to send and the shape of refusals."""
    with ApiServer(tmp_path) as api:
        described = api.ask("GET", "/openapi.json").body

    assert set(described["paths"]) == {
        "/api/crawl/batch",
        "/api/crawl/distributed/status",
        "/api/crawl/{session_id}",
        "/api/crawl/{session_id}/events",
        "/api/crawl/{session_id}/results.ndjson",
        "/api/domains",
        "/api/jobs",
        "/api/results/{task_id}",
        "/api/results/{task_id}/files/{name}",
        "/api/results/{task_id}/page",
        "/api/scrape",
        "/api/why",
        "/health",
        "/ready",
        "/v2/batch/scrape",
        "/v2/batch/scrape/{id}",
        "/v2/batch/scrape/{id}/errors",
        "/v2/crawl",
        "/v2/crawl/active",
        "/v2/crawl/{id}",
        "/v2/crawl/{id}/errors",
        "/v2/map",
        "/v2/scrape",
    }
    schemas = described["components"]["schemas"]
    for name in (
        "BatchRequest", "ScrapeRequest", "BatchBody", "CrawlBody", "MapBody", "ScrapeBody",
    ):  # fmt: skip
        assert schemas[name]["example"]
    for path, methods in described["paths"].items():
        for method in methods.values():
            assert method["summary"]
            refusals = {
                code: answer for code, answer in method["responses"].items() if code >= "400"
            }
            assert refusals or path == "/health"
            for answer in refusals.values():
                kind = answer["content"]["application/json"]["schema"]["$ref"]
                name = "FirecrawlProblem" if path.startswith("/v2/") else "Problem"
                assert kind == f"#/components/schemas/{name}", (path, answer)
