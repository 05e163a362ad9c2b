"""The commands of docs/API.md work as they are shown."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api_server import ApiServer
from tests.support.site import Site

PAGE = (Path(__file__).parents[2] / "docs" / "API.md").read_text()
BLOCKS = re.findall(r"^```(sh|python)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    """A server for the page's commands."""
    with ApiServer(tmp_path) as server:
        yield server


def test_every_example_runs(api: ApiServer, site: Site) -> None:
    """In the order of the page, each block succeeds; the sessions have what was asked for."""
    task = ""
    printed: list[str] = []
    for kind, block in BLOCKS:
        here = block.replace("127.0.0.1:8000", api.url.removeprefix("http://"))
        here = here.replace("https://example.com", site.url).replace("TASK", task)
        here = re.sub("^curl ", "curl -sS --fail-with-body ", here, flags=re.MULTILINE)
        argv = ["sh", "-ec", here] if kind == "sh" else [sys.executable, "-c", here]
        ran = subprocess.run(
            argv, cwd=api.folder.path, capture_output=True, text=True, timeout=120, check=False
        )
        assert ran.returncode == 0, (block, ran.stdout, ran.stderr)
        printed.append(ran.stdout)
        task = task or "".join(re.findall(r'"task_id":"(\w+)"', ran.stdout)[:1])

    assert len(BLOCKS) >= 12
    assert '"statistics":{"total":2,"success":2' in printed[0]
    assert "Parcel 1" in (api.folder.path / "page.html").read_text()
    followed = [text for text in printed if text.startswith("success http")]
    assert [len(text.splitlines()) for text in followed] == [2]
