"""Sites as Python classes: how they are found, what they get, and what their errors cost."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from msgspec.structs import replace

from crawler.db import owners
from crawler.errors import FetchError, InputError, UsageError
from crawler.fetch.budget import Budget, Turns
from crawler.scraping.examine import MAX_RECORD_BYTES, examine
from crawler.sites import Site, faults, get_scraper, load, scrapers
from crawler.sites.live import LiveSites
from crawler.sites.scrapers import MAX_RECORDS, Scraper
from tests.support.tasks import page

ROOT = Path(__file__).parents[2]
BODY = b"""<title>Parcel 7</title><base href=/base/><h1>Parcel 12-3</h1>
<meta property=og:title content=Seven>
<script type="application/ld+json">{"@type": "House", "price": 5}</script>
<table><tr><th>Owner</th><td>Jane Roe</td></tr></table>
<a href=one>1</a> <a href=/two#top>2</a> <a href=mailto:a@b.example>mail</a>"""
CLASS = """
class County:
    hosts = ["a.example"]

    def extract_listing(self, page):
        return {"title": page.css_first("h1").text()}

    def extract_listing_urls(self, page):
        for link in page.css("a"):
            yield link.attributes["href"]
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Puts files into a config folder, by their paths in it."""

    def files(contents: dict[str, str]) -> Path:
        for name, text in contents.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(dedent(text))
        return tmp_path

    return files


def the_site(folder: Path, name: str = "county") -> Site:
    site = load(folder).named(name)
    assert site is not None
    return site


def run_script(script: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program that uses the sites of a config folder."""
    return subprocess.run(
        [sys.executable, "-c", dedent(script)],
        env=os.environ | {"CRAWLER_CONFIG_DIR": str(folder)} | env,
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip


def failure(write: Write, method: str) -> FetchError:
    """What the page of a class with such a method ends with."""
    text = f"class County:\n    hosts = 'a.example'\n{method}"
    with pytest.raises(FetchError) as caught:
        examine(page(body=BODY), the_site(write({"scrapers/county.py": text})))
    return caught.value


# Finding.


def test_a_class_is_a_site(write: Write) -> None:
    """A file with a class and its hosts is all that a site needs."""
    site = the_site(write({"scrapers/county.py": CLASS}))

    read = examine(page(body=BODY), site)

    assert site.hosts == ("a.example",)
    assert (read.record, read.encoded) == ({"title": "Parcel 12-3"}, b'{"title":"Parcel 12-3"}')


def test_what_the_class_does_not_say_comes_from_the_file_of_the_site(write: Write) -> None:
    """A class and a file of the same name are one site; the class goes first."""
    folder = write({
        "sites/imot.bg.yaml": """
            hosts: b.example
            rate: 2/s
            timeout_s: 7
            fields: {owner: th + td}
        """,
        "scrapers/imot.bg.py": """
            class Imot:
                timeout_s: float = 5
                retry = {"attempts": 7}

                def extract_listing(self, page):
                    return {**page.fields, "url": page.url}
        """,
    })  # fmt: skip

    site = the_site(folder, "imot.bg")
    read = examine(page("http://b.example/", BODY), site)

    assert (site.hosts, site.rule.interval_s, site.timeout_s) == (("b.example",), 0.5, 5.0)
    assert site.retry.attempts == 7
    assert read.record == {"owner": "Jane Roe", "url": "http://b.example/"}


def test_a_class_with_links_only_leaves_the_record_to_the_file(write: Write) -> None:
    """Each method stands for itself."""
    folder = write({
        "sites/county.yaml": "hosts: a.example\nfields: {owner: th + td}",
        "scrapers/county.py": """
            class County:
                def extract_listing_urls(self, page):
                    return ["/x"]
        """,
    })  # fmt: skip
    site = the_site(folder)

    assert examine(page(body=BODY), site).record == {"owner": "Jane Roe"}
    assert Scraper(site).extract_listing_urls(BODY, "http://a.example/") == ["http://a.example/x"]


def test_files_are_read_without_running_them(write: Write) -> None:
    """To know the sites, no code of theirs runs: it may be slow, or fail."""
    site = the_site(write({"scrapers/county.py": f"raise SystemExit(3)\n{CLASS}"}))

    with pytest.raises(InputError) as caught:
        Scraper(site)

    assert (caught.value.line, caught.value.path) == (1, site.scraper and site.scraper.path)
    assert "SystemExit: 3" in caught.value.reason


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("class County:\n    def extract_listing(self, page)\n        pass", 2, "expected ':'"),
        ("x = 1", None, "and has none"),
        (f"{CLASS}\n{CLASS.replace('County', 'Other')}", None, "has 2 such classes"),
        (CLASS.replace('["a.example"]', "HOSTS"), 3, "hosts must be written out"),
        (CLASS.replace("a.example", "http://a.example"), 3, "is not a host name"),
        (CLASS.replace("hosts", "delay_s = 99999\n    hosts"), 3, "a number from 0 to 86400"),
        (CLASS.replace("hosts", "host"), None, "hosts is missing"),
        (f"x = '\\{'x00'}'\n\0", None, "not Python"),
        ("(" * 1000, None, "not Python"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    write: Write, text: str, line: int | None, reason: str
) -> None:
    """With file and line, as in a site's file, and before any page is fetched."""
    folder = write({"scrapers/county.py": text})

    [fault] = faults(folder)

    assert reason in fault.reason
    assert line is None or fault.line == line
    assert fault.path.endswith("scrapers/county.py")
    with pytest.raises(InputError):
        load(folder)


def test_a_file_that_cannot_be_run_is_a_fault(write: Write) -> None:
    """`sites check` finds it; what only reads the files does not run them."""
    folder = write({"scrapers/county.py": f"import no_such_package\n{CLASS}"})

    assert faults(folder) == []
    [fault] = faults(folder, run=True)

    assert fault.line == 1
    assert "no_such_package" in fault.reason


def test_a_base_class_may_be_in_a_shared_file(write: Write) -> None:
    """Files whose names begin with _ are no sites; all others can import them."""
    folder = write({
        "scrapers/_portal.py": """
            class Portal:
                def extract_listing(self, page):
                    return {"kind": self.kind}
        """,
        "scrapers/county.py": """
            from _portal import Portal

            class County(Portal):
                hosts = ["a.example"]
                kind = "county"
        """,
    })  # fmt: skip
    site = the_site(folder)

    assert load(folder).names == ["county"]
    assert examine(page(body=BODY), site).record == {"kind": "county"}
    write({"scrapers/_portal.py": "class Portal:\n    extract_listing = dict"})
    changed = the_site(folder)
    assert site.scraper
    assert changed.scraper
    assert site.scraper.version != changed.scraper.version


def test_the_version_is_the_hash_of_the_source(write: Write) -> None:
    """Any edit makes a new version of the parser, and the new code is the one that runs."""
    folder = write({"scrapers/county.py": CLASS})
    before = the_site(folder)
    read = examine(page(body=BODY), before)
    write({"scrapers/county.py": CLASS.replace('{"title"', '{"named"')})

    after = examine(page(body=BODY), the_site(folder))

    assert before.scraper
    assert read.parser == ("county", f"{before.version}+{before.scraper.version}")
    assert after.record == {"named": "Parcel 12-3"}
    assert after.parser != read.parser
    assert examine(page(body=BODY), before).record == read.record


def test_an_installed_package_brings_sites(tmp_path: Path, write: Write) -> None:
    """Behind the entry-point group; finding it imports nothing of the package."""
    folder = write({"sites/county.yaml": "hosts: a.example"})
    package, info = tmp_path / "portals", tmp_path / "portals-1.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").write_text("")
    (package / "imot.py").write_text(CLASS.replace("a.example", "b.example"))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: portals\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[crawler.sites]\nimot.bg = portals.imot:County\n")

    script = """
        import sys
        from crawler.sites import AVAILABLE_SITES, get_scraper, load
        from crawler import config
        names = load(config.load().config_dir).names
        assert "portals" not in sys.modules
        page = "<h1>Flat</h1>"
        print(list(AVAILABLE_SITES), names, get_scraper("imot.bg").extract_listing(page, ""))
    """
    ran = run_script(script, folder, PYTHONPATH=str(tmp_path))

    assert ran.stdout == ("['county', 'imot.bg'] ['county', 'imot.bg'] {'title': 'Flat'}\n"), (
        ran.stderr
    )


def test_the_names_of_the_requirements(write: Write) -> None:
    """`get_scraper` and `AVAILABLE_SITES` look at the config folder, and load nothing early."""
    folder = write({"scrapers/imot.bg.py": CLASS, "sites/county.yaml": "hosts: b.example"})
    script = """
        import sys
        from crawler.sites import AVAILABLE_SITES, get_scraper
        assert not {"selectolax", "yaml", "importlib.metadata"} & {*sys.modules}
        assert "imot.bg" in AVAILABLE_SITES and len(AVAILABLE_SITES) == 2
        html, url = "<title>Flat</title><h1>Flat</h1><a href=x>", "http://a.example/1"
        for kind in (str, str.encode):
            print(get_scraper("imot.bg").extract_listing(kind(html), url))
        print(get_scraper("county").extract_listing(html, url)["title"])
        print(get_scraper("imot.bg").extract_listing_urls(html, url))
        print(get_scraper("county").extract_listing_urls(html, "http://b.example/"))
        get_scraper("imot")
    """
    ran = run_script(script, folder)

    flat, links = "{'title': 'Flat'}\n", "['http://a.example/x']\n['http://b.example/x']\n"
    assert ran.stdout == f"{flat}{flat}Flat\n{links}", ran.stderr
    assert "there is no site 'imot'" in ran.stderr
    assert "did you mean imot.bg?" in ran.stderr


def test_a_class_of_the_requirements_own_form(write: Write) -> None:
    """`extract_listing(html, url)` is called with these two."""
    text = """
        class County:
            hosts = "a.example"
            def extract_listing(self, html, url):
                return {"size": len(html), "url": url, "kind": type(html).__name__}
    """
    site = the_site(write({"scrapers/county.py": text}))

    record = examine(page(body=BODY), site).record

    assert record == {"size": len(BODY), "url": "http://a.example/", "kind": "str"}
    assert Scraper(site).extract_listing(BODY, "http://a.example/") == record


# What a class gets.


def test_what_a_page_offers(write: Write) -> None:
    """Everything that the documentation names."""
    text = """
        class County:
            hosts = "a.example"
            fields = {"owner": "th + td"}
            def extract_listing(self, page):
                return {
                    "answer": [page.url, page.status, page.headers["x-name"], page.body[:7]],
                    "html": page.html[:7],
                    "text": page.text,
                    "css": [node.text() for node in page.css("a:nth-of-type(2), h1")],
                    "none": page.css_first("h6"),
                    "json_ld": page.json_ld,
                    "meta": page.meta,
                    "fields": page.fields,
                    "joined": page.urljoin("x"),
                    "bad": page.urljoin("mailto:x"),
                }
    """
    site = the_site(write({"scrapers/county.py": text}))

    record = examine(page(body=BODY), site).record

    assert record == {
        "answer": ["http://a.example/", 200, "é", "PHRpdGxlPg=="],
        "html": "<title>",
        "text": "Parcel 12-3 Owner Jane Roe 1 2 mail",
        "css": ["Parcel 12-3", "2"],
        "none": None,
        "json_ld": [{"@type": "House", "price": 5}],
        "meta": {"og:title": "Seven"},
        "fields": {"owner": "Jane Roe"},
        "joined": "http://a.example/base/x",
        "bad": "",
    }


def test_json_and_xpath(write: Write) -> None:
    """A JSON answer has its value; XPath needs a package, and says which."""
    text = """
        class County:
            hosts = "a.example"
            fields = {"first": {"json": "b.c"}}
            def extract_listing(self, page):
                if "json" in page.headers["content-type"]:
                    return page.json() | page.fields
                return {"h1": page.xpath("//h1/text()").get()}
    """
    folder = write({"scrapers/county.py": text})
    site = the_site(folder)
    answer = replace(
        page(body=b'{"a": [1], "b": {"c": "x"}}'), headers=(("Content-Type", "application/json"),)
    )

    assert examine(answer, site).record == {"a": [1], "b": {"c": "x"}, "first": "x"}
    assert examine(page(body=BODY), site).record == {"h1": "Parcel 12-3"}
    script = """
        import sys
        sys.modules["parsel"] = None  # as if it were not installed
        from crawler.sites import get_scraper
        get_scraper("county").page("<h1>x</h1>", "http://a.example/").xpath("//h1")
    """
    ran = run_script(script, folder)
    assert "UsageError: xpath() needs the package parsel; install it with" in ran.stderr


def test_records_of_a_class_are_validated(write: Write) -> None:
    """`required` and `validate` hold for what a class returns, and for each of several records."""
    text = """
        class County:
            hosts = "a.example"
            required = ["title", "price"]
            validate = {"properties": {"price": {"type": "number"}}}
            def extract_listing(self, page):
                return RETURNED
    """

    def invalid(returned: str) -> tuple[str, ...]:
        folder = write({"scrapers/county.py": text.replace("RETURNED", returned)})
        return examine(page(body=BODY), the_site(folder)).invalid

    assert invalid("{'title': 'x', 'price': 1}") == ()
    assert invalid("{'title': 'x', 'price': ''}")[0] == "price is missing"
    assert len(invalid("{'title': 'x', 'price': 'much'}")) == 1
    assert invalid("None") == ("title is missing", "price is missing")
    assert invalid("[{'title': 'x', 'price': 1}, {'price': 2}]") == ("title is missing",)
    assert invalid("[]") == ()


def test_links_are_absolute_and_come_once(write: Write) -> None:
    """References become URLs, pairs have a role, and what is no page is left out."""
    text = """
        class County:
            hosts = "a.example"
            def extract_listing_urls(self, page):
                yield from ("one", "/two#x", "/two", "mailto:x", ("/list", "index"), "one")
    """
    site = the_site(write({"scrapers/county.py": text}))

    assert Scraper(site).links(BODY, "http://a.example/d/") == [
        ("http://a.example/base/one", "listing"),
        ("http://a.example/two", "listing"),
        ("http://a.example/list", "index"),
    ]


@pytest.mark.parametrize(
    ("returned", "record"),
    [
        ("None", {}),
        ("[{'a': 1}, {'a': 2}]", {"records": [{"a": 1}, {"a": 2}]}),
        ("({'a': n} for n in range(2))", {"records": [{"a": 0}, {"a": 1}]}),
        ("{'day': datetime.date(2024, 1, 2), 'set': {1}, 3: 4}",
         {"day": "2024-01-02", "set": [1], "3": 4}),
        ("Flat('x')", {"name": "x"}),
        ("{'n': float('nan')}", {"n": None}),
    ],
)  # fmt: skip
def test_what_a_class_may_return(write: Write, returned: str, record: dict[str, Any]) -> None:
    """A dict, a list of dicts or None; values become JSON."""
    text = f"""
        import datetime
        from dataclasses import dataclass

        @dataclass
        class _Flat:
            name: str
        Flat = _Flat

        class County:
            hosts = "a.example"
            def extract_listing(self, page):
                return {returned}
    """
    assert examine(page(body=BODY), the_site(write({"scrapers/county.py": text}))).record == record


# What goes wrong.


@pytest.mark.parametrize(
    ("method", "line", "said"),
    [
        ("    def extract_listing(self, page):\n        return 1 / 0", 4, "ZeroDivisionError"),
        ("    def extract_listing(self, page):\n        raise SystemExit(0)", 4, "SystemExit: 0"),
        ("    def extract_listing(self, page):\n        raise MemoryError", 4, "MemoryError"),
        ("    def extract_listing(self, page):\n        exit()", 4, "SystemExit"),
        ("    def extract_listing(self, page):\n        raise OSError(24, 'x')", 4, "OSError"),
        ("    def extract_listing(self, page):\n        raise GeneratorExit", 4, "GeneratorExit"),
        ("    def extract_listing(self, page):\n"
         "        return self.extract_listing(page)", 4, "RecursionError"),
        ("    def extract_listing(self, page):\n        yield 1 / 0", 4, "ZeroDivisionError"),
        ("    def extract_listing(self, page):\n        return page.css('a[')", 4, "ValueError"),
        ("    def extract_listing(self, page):\n        return page.json()", 4, "DecodeError"),
        ("    def extract_listing(self, page):\n        return 'text'", None, "returned str"),
        ("    def extract_listing(self, page):\n        return [1]", None, "returned int"),
        ("    def extract_listing(self, page):\n        return {'a': self}", None, "TypeError"),
        ("    def extract_listing(self, page):\n        return {'a': '\\ud800'}", None, "Unicode"),
        ("    def extract_listing(self, page):\n        a = {}\n        a['a'] = a\n"
         "        return a", None, "RecursionError"),
        ("    def extract_listing(self, page):\n"
         "        while True: yield {}", None, f"more than {MAX_RECORDS:,} records"),
        ("    def extract_listing(self, page):\n        return {'missing': 1}", None, "'missing'"),
        ("    async def extract_listing(self, page):\n        return {}", None, "it is async"),
        ("    async def extract_listing(self, page):\n        yield {}", None, "it is async"),
        ("    def extract_listing(self):\n        return {}", None, "TypeError"),
    ],
)  # fmt: skip
def test_an_error_costs_its_page_and_shows_its_line(
    write: Write, method: str, line: int | None, said: str
) -> None:
    """Whatever a class raises or returns, its page fails for `scraper_error`, with file and
    line."""
    error = failure(write, method)

    assert error.reason == "scraper_error"
    assert said in error.message
    assert error.message.startswith("County.extract_listing failed: ")
    where = f"scrapers/county.py, line {line})" if line else "scrapers/county.py)"
    assert error.message.endswith(where), error.message


def test_a_record_that_is_too_large(write: Write) -> None:
    """A class has the limit that fields have."""
    method = (
        f"    def extract_listing(self, page):\n        return {{'a': 'x' * {MAX_RECORD_BYTES}}}"
    )

    assert failure(write, method).reason == "too_large"


def test_a_limit_of_the_page_passes_through_a_class(write: Write) -> None:
    """What the class asks of the page is within the page's CPU time."""
    text = """
        class County:
            hosts = "a.example"
            def extract_listing(self, page):
                while True:
                    page.css("h1")
    """
    site = the_site(write({"scrapers/county.py": text}))

    with pytest.raises(FetchError) as caught:
        examine(page(body=BODY), site, Budget(0.2))

    assert caught.value.reason == "too_costly"


async def _worked(site: Site, budget: Budget) -> dict[str, Any]:
    return (await budget.work(examine, page(body=BODY), site, budget)).record


def test_a_class_is_not_interrupted_by_other_pages(write: Write) -> None:
    """It may keep state between its lines: another page's call never comes between."""
    text = """
        import time

        class County:
            hosts = "a.example"
            calls = 0
            def extract_listing(self, page):
                self.calls += 1
                mine = self.calls
                end = time.thread_time() + 0.12
                while time.thread_time() < end:
                    page.css("h1")
                return {"mine": mine, "calls": self.calls}
    """
    site, turns = the_site(write({"scrapers/county.py": text})), Turns()

    async def both() -> list[dict[str, Any]]:
        return await asyncio.gather(*(_worked(site, Budget(9, turns=turns)) for _ in range(3)))

    assert asyncio.run(both()) == [{"mine": n, "calls": n} for n in (1, 2, 3)]


def test_print_does_not_reach_stdout(write: Write, capfd: pytest.CaptureFixture[str]) -> None:
    """Commands write data there; a class prints to stderr, a worker's log."""
    text = """
        class County:
            hosts = "a.example"
            def extract_listing(self, page):
                print("looking at", page.url)
                return {}
    """
    examine(page(body=BODY), the_site(write({"scrapers/county.py": text})))

    assert capfd.readouterr() == ("", "looking at http://a.example/\n")


def test_two_classes_of_one_site_are_refused(write: Write) -> None:
    """A host belongs to one site, whoever describes it."""
    folder = write({"scrapers/county.py": CLASS, "sites/other.yaml": "hosts: a.example"})

    with pytest.raises(InputError, match=r"the host a\.example belongs to"):
        load(folder)


def test_get_scraper_lets_errors_through(write: Write) -> None:
    """Outside of a worker, an error of the class is the caller's, as it was raised."""
    text = CLASS.replace("h1", "h6")
    scraper = Scraper(the_site(write({"scrapers/county.py": text})))

    with pytest.raises(AttributeError):
        scraper.extract_listing(BODY, "http://a.example/")


def test_no_site_of_that_name() -> None:
    """The error names those that there are."""
    with pytest.raises(UsageError, match="there is no site 'nowhere'"):
        get_scraper("nowhere")


# A hang and an edit, without a worker. tests/integration/test_scrapers.py has them with one.

HANG = """
    import asyncio, faulthandler, sys
    from crawler import config
    from crawler.fetch.budget import Budget
    from crawler.sites import load, scrapers
    from crawler.sites.page_view import PageView
    from tests.support.tasks import page

    site = load(config.load().config_dir).named("county")
    view = PageView(site, page())
    faulthandler.dump_traceback_later(1, exit=True, file=sys.stderr)
    asyncio.run(Budget().work(scrapers.METHOD, view))
"""


@pytest.mark.parametrize(
    ("method", "body", "line"),
    [
        ("listing", "    def extract_listing(self, page):\n        while True: pass", 4),
        ("listing", "    def extract_listing(self, page):\n        _deep(page)", 6),
        ("links", "    def extract_listing_urls(self, page):\n        yield 'a'\n"
         "        while True: pass", 5),
        ("listing", "    def __init__(self):\n        while True: pass\n"
         "    def extract_listing(self, page): pass", 4),
        ("listing", "    def extract_listing(self, page): pass\nwhile True: pass", 4),
    ],
)  # fmt: skip
def test_a_hang_names_the_line_where_the_class_stood(
    write: Write, method: str, body: str, line: int
) -> None:
    """Of all frames of all threads, the last one of the user's file is told."""
    tail = "\ndef _deep(page):\n    while True: page.css('a')\n" if "_deep" in body else ""
    text = f"class County:\n    hosts = 'a.example'\n{body}{tail}"
    folder = write({"scrapers/county.py": text})

    ran = run_script(HANG.replace("METHOD", method), folder)

    stack = owners._parsing_thread(ran.stderr)
    path = folder / "scrapers" / "county.py"
    assert owners._scraper_line(stack) == f"{path}, line {line}", ran.stderr


def test_an_edit_asks_for_a_new_process_only_if_the_class_was_run(write: Write) -> None:
    """Other classes, and those of which no page has come, are simply read again."""
    other = CLASS.replace("a.example", "b.example")
    folder = write({"scrapers/county.py": CLASS, "scrapers/other.py": other})
    now = iter(range(1000))
    live = LiveSites(folder, clock=lambda: next(now) * 2.0)
    [county] = [each for each in live.now.classes if each.site == "county"]
    scrapers.instance_of(county)

    write({"scrapers/other.py": other + "\n"})
    live.look()
    live.look()
    assert [each.version for each in live.now.classes].count(county.version) == 1
    assert not live.must_restart

    write({"scrapers/county.py": CLASS + "\n"})
    live.look()
    live.look()
    assert live.must_restart


def test_an_installed_class_is_run_anew_when_its_module_changes(
    tmp_path: Path, write: Write
) -> None:
    """The version of a result is always that of the code that made it."""
    folder = write({})
    (tmp_path / "one_portal.py").write_text(CLASS)
    info = tmp_path / "portal-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: portal\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[crawler.sites]\ncounty = one_portal:County\n")
    script = """
        import os
        from pathlib import Path
        from crawler.sites import get_scraper
        module = Path(os.environ["PYTHONPATH"]) / "one_portal.py"
        first = get_scraper("county")
        print(first.extract_listing("<h1>x</h1>"))
        module.write_text(module.read_text().replace('{"title"', '{"other"'))
        second = get_scraper("county")
        print(second.extract_listing("<h1>x</h1>"))
        assert first.site.scraper.version != second.site.scraper.version
    """

    ran = run_script(script, folder, PYTHONPATH=str(tmp_path))

    assert ran.stdout == "{'title': 'x'}\n{'other': 'x'}\n", ran.stderr
