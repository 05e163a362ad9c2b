"""Listings under kill -9: changes, prices, what is gone and what is back are exactly the truth."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_what_happened_to_each_listing_is_the_truth(tmp_path: Path) -> None:
    """Three crawls of two sites whose listings change in between; the command is killed with all
    that it started, and so is a child. What both sites have is found."""
    done = subprocess.run(
        [sys.executable, "scripts/listings.py", "--size", "100", "--edits", "20", "--gone", "10",
         "--back", "4", "--shared", "20", "--kills", "3"],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("3 kill -9 (")
    for name in ("imoti", "domove"):
        assert f"{name}: 100 listings, " in done.stdout
    assert done.stdout.count("6 gone; 0 differ from the truth") == 2
