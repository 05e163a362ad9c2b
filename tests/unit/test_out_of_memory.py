"""A process that runs out of memory while it reads a page does not blame the page."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

READER = """
import json, os, resource, sys
from crawler.errors import FetchError, shortage_of
from crawler.scraping.examine import examine
from crawler.sites import css, selectors
from crawler.sites import Site
from crawler.sites.fieldfile import Field
from tests.support.tasks import page
from tests.unit.test_out_of_memory import FIELDS, PAGES

fields = {name: Field(**field) for name, field in FIELDS.items()}
site = Site(name="county", version="1", fields=fields)
for field in site.fields.values():  # as a worker does when it starts
    css.compile(field.css)
    if field.regex:
        selectors.pattern(field.regex)

LIMITS = {"address space": (resource.RLIMIT_AS, 0), "data": (resource.RLIMIT_DATA, 5)}

def limited(limit, field, room):
    with open("/proc/self/statm") as pages:
        taken = int(pages.read().split()[field]) * resource.getpagesize()
    resource.setrlimit(limit, (taken + room, resource.RLIM_INFINITY))

def outcome(body, limit, field, room):
    it = page("https://county.example/", body)
    try:
        limited(limit, field, room)
        read = examine(it, site)
        return f"{read.verdict.name} {hash(read.encoded)}"
    except Exception as error:
        if shortage_of(error):
            return "shortage"
        return f"{type(error).__name__}: {error}"
    finally:
        resource.setrlimit(limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

def in_child(body, limit, field, room):
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.write(theirs, outcome(body, limit, field, room).encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as answer:
        said = answer.read().decode()
    ended = os.waitpid(child, 0)[1]
    return said or f"ended by signal {ended}"

for line in sys.stdin:
    name, kind = json.loads(line)
    body, (limit, field) = PAGES[name], LIMITS[kind]
    well = in_child(body, limit, field, 1 << 33)
    most = 20_000_000 + 20 * len(body)
    rooms = (*range(0, 1_000_000, 50_000), *range(1_000_000, most, most // 20))
    said = {in_child(body, limit, field, room) for room in rooms}
    print(json.dumps([well, "shortage" in said, sorted(said - {well, "shortage"})]), flush=True)
"""
LD = '<script type="application/ld+json">'
FIELDS = {
    "matched": {"css": "p:has(b)", "regex": r"(\d+)\s+(a|b)*c", "all": True},
    "number": {"css": "td", "type": "number", "all": True},
    "html": {"css": "div", "type": "html"},
}
PAGES = {
    "short": b"<title>Not found</title><p>word",
    "paragraphs": b"<p>some words</p>" * 500,
    "login": b"<title>Log in</title><form><input type=password name=a></form>",
    "table": b"<table>" + b"<tr><td>1<td>2</tr>" * 3_000 + b"</table>",
    "JSON": (LD + '[{"a":["' + "x" * 1_000 + '"]}]</script>').encode() * 100,
    "JSON with flaws": (LD + '[{"a":["' + "x" * 1_000 + '",]},]</script>').encode() * 100,
    "items": b"<div itemscope itemref=a><p id=a itemprop=b>x" * 300,
    "links": b"".join(b"<a href='../x%d?y=\xc3\xa4'>y</a>" % number for number in range(1_000)),
    "hosts": "".join(
        f"<a href='http://bücher{number}.example/'>y</a>" for number in range(300)
    ).encode(),
    "Cyrillic": b"<meta charset=koi8-r>" + "привет ".encode("koi8-r") * 10_000,
    "Japanese": b"<meta charset=shift_jis>" + "日本語 ".encode("shift_jis") * 10_000,
    "a charset to be found": "привет мир как дела ".encode("cp1251") * 3_000,
    "UTF-16": ("<p>hello " * 5_000).encode("utf-16"),
    "text": b"word " * 100_000,
    "nested": b"<div>" * 3_000 + b"x",
    "fields": b"<div><p><b>12 c</b> word 5</p></div>" * 2_000,
}


@pytest.fixture(scope="module")
def reader() -> Iterator[subprocess.Popen[str]]:
    """A process that reads pages, each in forks with less and less memory."""
    with subprocess.Popen(
        [sys.executable, "-c", READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        yield reader
    assert reader.returncode == 0


@pytest.mark.parametrize("limit", ["address space", "data"])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_not_blamed_for_want_of_memory(
    reader: subprocess.Popen[str], name: str, limit: str
) -> None:
    """However little memory is left: the page is read as ever, or what is lacking is known to be
    ours."""
    assert reader.stdin
    assert reader.stdout
    print(json.dumps([name, limit]), file=reader.stdin, flush=True)
    well, was_short, others = json.loads(reader.stdout.readline())

    assert well.split()[0] in ("ok", "thin", "soft_404", "login_wall")
    assert was_short
    assert others == []
