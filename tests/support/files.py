"""A small site with photos, and a store in which its crawls are run page by page."""

from pathlib import Path
from typing import Any

from crawler import crawls
from crawler.config import Settings
from crawler.examples import pictures
from crawler.fetch.session import Session
from crawler.lpm import LocalPersistenceManager
from crawler.models import MAX_CRAWL_PAGES, JobOptions
from crawler.sites import load
from crawler.worker import Worker
from tests.support.pages import Answer, Pages, parcel

JPEG = {"Content-Type": "image/jpeg"}


def photo(number: int) -> bytes:
    """A photo; another one for each number."""
    return pictures.jpeg([[number % 256, 40, number // 256 % 256]])


def home(n: int, *photos: str) -> Answer:
    """A page of a listing with these photos."""
    images = "".join(f"<img class=photo src='{each}'>" for each in photos)
    return Answer(parcel(n) + images)


class PhotoStore:
    """A store, and crawls of the site in it."""

    def __init__(self, folder: Path, site: Pages, rules: str = "fields: [photos]") -> None:
        self.config, self.site = folder / "config", site
        (self.config / "sites").mkdir(parents=True, exist_ok=True)
        self.rules(rules)
        self.settings = Settings(
            data_dir=folder / "data", config_dir=self.config, min_free=0, rate="none"
        )

    def rules(
        self, files: str, photos: str = "{css: .photo, attr: src, type: url, all: true}"
    ) -> None:
        """Write the file of the site, with these keys of `files`."""
        lines = [
            f"start: [{self.site.url}/]", "sitemaps: []", "rate: none", "concurrency: none",
            "fields:", "  owner: .owner", f"  photos: {photos}", f"files: {{{files}}}",
        ]  # fmt: skip
        (self.config / "sites" / "homes.yaml").write_text("\n".join([*lines, ""]))

    def lpm(self, **about: Any) -> LocalPersistenceManager:
        return LocalPersistenceManager(self.settings.data_dir, **about)

    def crawl_with(self, session: Session) -> None:
        """Crawl the site with headers or cookies of the job."""
        self.begin("one", session=session)
        self.work()

    def crawl(
        self, name: str = "one", limit: int = MAX_CRAWL_PAGES, depth: int | None = None
    ) -> None:
        """Crawl the site to the end."""
        self.begin(name, limit, depth)
        self.work()
        with self.lpm() as lpm:
            lpm.jobs.finalise(lpm.now())

    def begin(
        self,
        name: str,
        limit: int = MAX_CRAWL_PAGES,
        depth: int | None = None,
        session: Session | None = None,
    ) -> None:
        """Begin a crawl of the site."""
        given = {"include": (), "exclude": (), "sitemap": "skip"}
        plan = crawls.plan(
            load(self.config), ["homes"], JobOptions(), subdomains=False, limit=limit, depth=depth,
            **given,
        )  # fmt: skip
        crawls.begin(self.settings, plan, job_name=name, session=session)

    def work(self) -> None:
        """Take all open tasks through their attempts, one after the other."""
        worker = Worker(self.settings)
        sql = "SELECT id FROM tasks WHERE status = 'pending' ORDER BY id LIMIT 1"
        try:
            with self.lpm() as lpm:
                while (id_ := lpm.store.db.value(sql)) is not None:
                    worker.scrape(id_, 60)
        finally:
            worker.stop()

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self.lpm() as lpm:
            return lpm.store.db.all(sql)

    def result(self, path: str, job: str = "one") -> dict[str, Any]:
        """The result of a page in a crawl."""
        with self.lpm() as lpm:
            found = [each for each in lpm.results.read(lpm.jobs.named(job))
                     if each["url"] == self.site.url + path]  # fmt: skip
        [result] = found
        return result

    def ends(self) -> dict[str, tuple[str, str | None, str | None]]:
        """State, reason and message of each file, by its path."""
        found = self.rows(
            "SELECT url, status, error_type, error_message FROM tasks WHERE method = 'FILE'"
        )
        return {url.removeprefix(self.site.url): tuple(rest) for url, *rest in found}
