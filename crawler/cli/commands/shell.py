"""`shell`: a prompt with a page, to try selectors and scrapers on it."""

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crawler import config, urls
from crawler.cli.options import data_dir_option, session_options
from crawler.cli.output import say
from crawler.config import Settings
from crawler.errors import CrawlerError, FetchError, UsageError
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager

if TYPE_CHECKING:
    from crawler.fetch.session import Session
    from crawler.models import Page
    from crawler.scraping.single import SinglePages
    from crawler.sites import Sites
    from crawler.sites.page_view import PageView

_HELP = """\
  page           the answer: page.url, page.status, page.headers, page.html, page.text
  css("h1")      elements by CSS, as page.css("h1"); page.css_first("h1").text()
  xpath("//h1")  the same by XPath (needs the package parsel)
  json_ld        the page's JSON-LD objects; page.meta has its meta tags
  fields         what the site's file finds; page.site is the site
  record         the record that the page would have, with the site's class if it has one
  links          the URLs to which the page leads, with their roles
  fetch(url)     makes all of the above those of another page"""


@click.command()
@click.argument("url")
@click.option("--stored", is_flag=True, help="Only the stored page: fetch nothing.")
@click.option("--fetch", "fresh", is_flag=True, help="Fetch the page even if it is stored.")
@click.option("--code", "-c", help="Python to run instead of the prompt.")
@session_options
@data_dir_option
def shell(url: str, stored: bool, fresh: bool, code: str | None, session: "Session | None") -> int:
    """Open a Python prompt with the page of URL.

    The page is the stored one. If there is none, it is fetched with the limits and the robots.txt
    of its site, and not stored. With --secrets, it is always fetched, after signing in by the login
    of the site's file. The prompt has the names page, css(), xpath(), json_ld, fields, record,
    links and fetch(). It is IPython if that is installed.

    If stdin is no terminal, it is run as Python. With --code, that is run. What you print goes to
    stdout. Exits with 1 if the page cannot be had, or your code fails.

    \b
    Example:
      python -m crawler shell http://county.example/parcel/123
      python -m crawler shell http://county.example/ -c 'print(css("h1")[0].text())'
      python -m crawler shell http://county.example/members --secrets county-secrets.txt
    """
    if stored and fresh:
        raise click.UsageError("either --stored or --fetch, not both")
    if stored and session:
        raise click.UsageError("--stored fetches nothing, so there is nothing to send")
    with tempfile.TemporaryDirectory(prefix="crawler-shell-") as scratch:
        prompt = Prompt(config.load(), Path(scratch), stored_only=stored, session=session)
        try:
            prompt.require_login(url)
            # A page that was stored without signing in is not the one that is asked for.
            prompt.open(url, fresh=fresh or bool(session and session.secrets))
        except FetchError as error:
            raise click.ClickException(f"{error.message} ({error.reason})") from None
        if code is None and not sys.stdin.isatty():
            code = sys.stdin.read()
        if code is None:
            prompt.interact()
            return 0
        return int(not prompt.run(code))


class Prompt:
    """The names of a prompt, which change with the page."""

    def __init__(
        self,
        settings: Settings,
        scratch: Path,
        stored_only: bool,
        session: "Session | None" = None,
    ) -> None:
        from crawler import sites

        self._settings, self._scratch, self._stored_only = settings, scratch, stored_only
        self._session = session
        self._sites: Sites = sites.load(settings.config_dir, settings.rate)
        self._single: SinglePages | None = None
        self.names = _Names(fetch=self.fetch, __name__="__main__")

    def require_login(self, url: str) -> None:
        """Refuse secrets for a URL whose site has no login."""
        from crawler.cli.commands.scrape import require_login

        require_login(self._sites, urls.parse(url).url, self._session)

    def open(self, url: str, fresh: bool) -> None:
        """Get the page of a URL, and make it the one of the prompt."""
        from crawler.sites.page_view import PageView

        address = urls.parse(url)
        answer = None if fresh else self._stored(address)
        source = "stored"
        if answer is None and self._stored_only:
            raise UsageError(f"no page is stored for {urls.without_credentials(url)}")
        if answer is None:
            answer, source = self._fetched(address.url), "fetched now, not stored"
        site = self._sites.of(answer.url)
        self.names.show(PageView(site, answer))
        say(f"{printable(repr(self.names['page']))}, {source}; site {site.name}")

    def fetch(self, url: str) -> Any:
        """Fetch a page, which becomes that of the prompt."""
        if self._stored_only:
            self.open(url, fresh=False)
        else:
            self.open(self.names["page"].urljoin(url) or url, fresh=True)
        return self.names["page"]

    def _stored(self, address: urls.Address) -> "Page | None":
        from crawler.scraping.stored import find_stored_page

        if not LocalPersistenceManager.exists(self._settings.data_dir):
            return None
        with LocalPersistenceManager(self._settings.data_dir) as lpm:
            try:
                return find_stored_page(lpm, address.url, address.key).page
            except UsageError:
                return None

    def _fetched(self, url: str) -> "Page":
        from crawler.direct import shared_permit
        from crawler.scraping.single import SinglePages

        settings = self._settings
        if self._single is None:
            robots = settings.data_dir / "run" / "robots"
            if not LocalPersistenceManager.exists(settings.data_dir):
                robots = self._scratch  # looking at a page makes no store
            connect = shared_permit(settings)
            permit = connect(f"shell-{os.getpid()}") if connect else None
            self._single = SinglePages(settings, self._sites, robots, permit, self._session)
        return self._single.fetch(url)

    def run(self, code: str) -> bool:
        """Run Python; False if it fails, with its traceback on stderr."""
        import traceback

        try:
            exec(compile(code, "<shell>", "exec"), self.names)  # noqa: S102
        except CrawlerError as error:
            say(printable(f"{type(error).__name__}: {error}"))
            return False
        except Exception:
            traceback.print_exc()
            return False
        return True

    def interact(self) -> None:
        """Open the prompt, and return when it is closed."""
        for line in (*_HELP.splitlines(), "Ctrl-D ends it."):
            say(line)
        try:
            import IPython
        except ImportError:
            _plain_prompt(self.names)
        else:
            IPython.start_ipython(argv=["--no-banner"], user_ns=self.names)


class _Names(dict[str, Any]):
    """The names of a prompt. Those that cost something are found when they are asked for."""

    LATER = ("json_ld", "fields", "record", "links")

    def show(self, page: "PageView") -> None:
        """Make them those of a page."""
        for name in self.LATER:
            self.pop(name, None)
        self |= {"page": page, "css": page.css, "xpath": page.xpath}

    def __missing__(self, name: str) -> Any:
        from crawler.sites.scrapers import Scraper

        page: PageView | None = self.get("page")
        if page is None or name not in self.LATER:
            raise KeyError(name)
        if name == "record":
            self[name] = Scraper(page.site).extract_listing(page)
        elif name == "links":
            self[name] = Scraper(page.site).links(page)
        else:
            self[name] = getattr(page, name)
        return self[name]


def _plain_prompt(names: _Names) -> None:
    """Open Python's own prompt, with completion where readline is there."""
    import code
    from contextlib import suppress

    with suppress(ImportError):
        import readline
        from rlcompleter import Completer

        class NamesCompleter(Completer):
            def global_matches(self, text: str) -> list[str]:
                later = [name for name in names.LATER if name.startswith(text)]
                return [*super().global_matches(text), *later]

        readline.set_completer(NamesCompleter(names).complete)
        readline.parse_and_bind("tab: complete")
    code.interact("", local=names, exitmsg="")
