"""Batches of the API under kill -9: streams that are cut and resumed bring every URL once."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("mode", "kills"), [("distributed", 3), ("direct", 2)])
def test_every_url_of_a_killed_batch_comes_once(mode: str, kills: int, tmp_path: Path) -> None:
    """Two workers, or the process that fetches, and the server are killed: every URL of one call is
    once in each stream, in the session and in the ledger."""
    done = subprocess.run(
        [sys.executable, "scripts/api.py", "--size", "150", "--latency-ms", "50", "--cuts", "5",
         "--only", mode],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{mode}: 150 URLs, 0 wrong;" in done.stdout
    assert f"; {kills} kills (" in done.stdout
    for stream in ("WebSocket", "SSE", "NDJSON"):
        ends = re.search(rf"{stream} 150 results, (\d+) cuts, (\d+) lost", done.stdout)
        assert ends, done.stdout
        # The server dies while a stream is read, or just when its client cuts it.
        assert int(ends[1]) + int(ends[2]) in (5, 6, 7), done.stdout
