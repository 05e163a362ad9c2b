"""Whole sites under kill -9: forms, logins, pagination and sitemaps lose nothing and double
nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("site", ["county", "imoti", "graph"])
def test_every_listing_of_a_killed_crawl_is_there_once_and_right(site: str, tmp_path: Path) -> None:
    """The command is killed with all that it started, one child and Redis are killed, and Redis is
    emptied: each listing equals the site's own truth."""
    done = subprocess.run(
        [sys.executable, "scripts/sites.py", "--size", "100", "--kills", "9", "--only", site],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{site}: 100 listings, 0 missing, 0 twice, 0 values differ" in done.stdout
    assert f"; {4 if site == 'imoti' else 3} strikes (" in done.stdout
