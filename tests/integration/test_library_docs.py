"""docs/LIBRARY.md does what it says."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stack import Folder

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "LIBRARY.md").read_text()
EXAMPLES = re.compile(r"```python\n(.*?)^```\n\n```\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.fixture
def port() -> Iterator[str]:
    """The example sites on a port of their own."""
    server = subprocess.Popen(
        [sys.executable, "-m", "crawler.examples", "--port", "0", "--size", "60"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdout
    yield server.stdout.readline().strip()
    server.kill()
    server.wait()
    server.stdout.close()


def test_the_examples_print_what_is_shown(folder: Folder, port: str) -> None:
    """Each is a whole program, and they are run one after the other in one folder."""
    folder.env |= {"CRAWLER_ALLOW_NETS": "127.0.0.0/8"}
    examples = EXAMPLES.findall(TEXT.replace("8090", port))
    assert len(examples) >= 7

    for code, shown in examples:
        if "distributed=True" in code:
            assert folder.crawler("up", "--workers", "2").returncode == 0
        ran = subprocess.run(
            [sys.executable, "-c", code], cwd=folder.path, env=folder.env,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ran.stdout == shown, (code, ran.stdout, ran.stderr)
