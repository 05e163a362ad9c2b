"""Pages behind a captcha hold neither the others of their domain nor the end of a job."""

import contextlib
import json

from tests.support.site import Site
from tests.support.stack import Folder


def test_captchas_at_the_head_of_a_list_do_not_hold_its_other_pages(folder: Folder, site: Site) -> None:
    """The domain is probed with a page that was not refused; what was refused is tried again behind all others."""
    folder.env["CRAWLER_RATE"] = "20/s"
    walls = [f"{site.url}/captcha/{n}" for n in range(8)]
    pages = [site.page(n) for n in range(30)]
    run = folder.start("crawler", "run", str(folder.write("pages.txt", [*walls, *pages])), "--workers", "1")

    assert run.wait(600) == 1
    with contextlib.closing(folder.lpm()) as lpm:
        rows = lpm.ledger.db.all(
            "SELECT url, detail FROM events JOIN tasks ON tasks.id = task WHERE detail LIKE '%attempt%'"
        )
        books = lpm.ledger.books()

    attempts = [(url, json.loads(detail)) for url, detail in rows]
    good = [detail["claimed_at"] for url, detail in attempts if url in pages]
    again = [detail["claimed_at"] for url, detail in attempts if url in walls and detail["attempt"] > 1]
    assert (books.completed, books.failed) == (30, 8)
    assert len(again) == 16
    assert max(good) <= min(again)
