"""Results that are followed while everything is killed."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_result_of_a_killed_crawl_is_handed_on_once(tmp_path: Path) -> None:
    """A crawl is struck, and `results follow --output` and a program behind a pipe, which stores
    its cursor, are killed ten times each: both have every result once, in order."""
    done = subprocess.run(
        [sys.executable, "scripts/follow.py", "--pages", "300", "--strikes", "2"],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "crawl: 300 results, 2 strikes, Nothing lost, nothing twice." in done.stdout
    outcome = "10 kills, 0 missing, 0 twice, in order"
    assert f"results follow --output: {outcome}" in done.stdout
    assert f"a program behind a pipe: {outcome}" in done.stdout
