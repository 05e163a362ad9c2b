"""Killed while it signs in, or right after: the next process goes on, and every page comes once."""

from collections import Counter

import pytest

from tests.integration.test_forms import LOGIN, describe, write_secrets
from tests.support.portal import Portal
from tests.support.stack import Folder, wait_for


@pytest.mark.parametrize("failpoint", ["signed-in:1", "login-kept:1", "signed-in:2"])
def test_killed_around_a_login(folder: Folder, redis_url: str, failpoint: str) -> None:
    """Before its cookies are kept and after: no page is lost, doubled or blamed."""
    folder.env["REDIS_URL"] = redis_url
    folder.redis().flushall()
    with Portal(lasts=10) as portal:
        describe(folder, portal, LOGIN)
        pages = [f"{portal.url}/members/{n}" for n in range(40)]
        file = folder.write("pages.txt", pages)
        secrets = write_secrets(folder)
        imported = folder.crawler("bulk", "import", str(file), "--secrets", secrets)
        assert imported.returncode == 0, imported.stderr
        dying = folder.worker(concurrency=2, CRAWLER_FAILPOINT=failpoint)
        wait_for(lambda: "SIGKILL" in folder.log(dying), 60, "a child to die at its failpoint")

        dying.terminate()  # in order: a page that the other child works on has no part in this
        dying.wait(120)
        folder.worker(concurrency=2)
        folder.wait_until_done(40, 60)

        assert Counter(result["url"] for result in folder.results()) == Counter(pages)
        assert portal.refused == 0
        failures = folder.lpm().store.db.all("SELECT DISTINCT failures, strikes FROM tasks")
        assert failures == [(0, 0)]
