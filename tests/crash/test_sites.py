"""Whole sites under kill -9: forms, logins, pagination and sitemaps lose nothing and double
nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _crawl(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Crawl sites of 100 pages."""
    return subprocess.run(
        [sys.executable, "scripts/sites.py", "--size", "100", *options],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )


@pytest.mark.parametrize("site", ["county", "imoti", "graph"])
def test_every_listing_of_a_killed_crawl_is_there_once_and_right(site: str, tmp_path: Path) -> None:
    """The command is killed with all that it started, one child and Redis are killed, and Redis is
    emptied: each listing equals the site's own truth."""
    done = _crawl(tmp_path, "--kills", "9", "--only", site)

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{site}: 100 listings, 0 missing, 0 twice, 0 values differ" in done.stdout
    assert f"; {4 if site == 'imoti' else 3} strikes (" in done.stdout


def test_every_listing_of_sites_that_are_killed_together_is_there_once_and_right(
    tmp_path: Path,
) -> None:
    """One `sites crawl --parallel` is killed with all that it started, and so on: no progress is
    above 100 % or goes back, and each job ends once."""
    done = _crawl(tmp_path, "--kills", "5", "--parallel")

    assert done.returncode == 0, done.stdout + done.stderr
    for site, listings in (("county", 80), ("imoti", 100), ("graph", 100)):
        assert f"{site}: {listings} listings, 0 missing, 0 twice, 0 values differ" in done.stdout
    assert "together: 6 strikes (" in done.stdout
    assert "0 times above 100 % or less than before; 3 jobs, 0 not finalised once" in done.stdout
