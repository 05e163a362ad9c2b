"""Formats of stored pages: what they hold, and what hostile pages and killed processes cost."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from crawler.errors import ServiceError, UsageError
from crawler.page_formats import ConversionLimits, PageFormats, PageToConvert
from crawler.sites.links import MAX_LINKS
from crawler.sites.parser import MAX_RUN
from tests.support.stack import wait_for

ALL = ("text", "html", "links", "markdown")
HTML = "text/html"
PAGE = """<html><head><base href='/deep/'><title>Mill Lane</title></head><body>
    <nav><a href='/menu'>Menu</a></nav>
    <article><h1>Mill Lane</h1>
    <p>The <b>mi</b>ll, behind a
    <a href='house#door'>house</a>, was <a rel=nofollow href='https://b.example/'>sold</a>.</p>
    <p>First line<br>second line, <a href='house'>again</a> <a href='mailto:a@b.it'>write</a></p>
    <p hidden>unseen</p><script>let x = 1;</script>
    <table><tr><th>Year<th>Price<tr><td>1999<td> 100,000</table></article>
    <footer>Imprint</footer></body></html>"""
SLOW = "<html><body><p>x</p><table>" + "<tr><td colspan=1000 rowspan=1000>x" * 1000 + "</table>"
"""Takes trafilatura minutes."""
HUNGRY = "<html><body><article>" + "<blockquote><p>x</p>" * 3000
"""Takes html-to-markdown 1.5 GB."""


def page(
    body: str | bytes,
    *formats: str,
    kind: str = HTML,
    only_main_content: bool = True,
) -> PageToConvert:
    """A stored page of a media type."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}" if kind else "HTTP/1.1 200 OK"
    raw = body.encode() if isinstance(body, str) else body
    url = "https://a.example/one/two?three"
    return PageToConvert(head, raw, url, formats or ALL, only_main_content)


def converters() -> list[psutil.Process]:
    """The processes that convert pages for this one, and live."""
    children = psutil.Process().children()
    return [
        child
        for child in children
        if child.status() != psutil.STATUS_ZOMBIE and "crawler.page_converter" in child.cmdline()
    ]


@pytest.fixture
def formats() -> Iterator[PageFormats]:
    """Converts with two processes."""
    formats = PageFormats(2)
    yield formats
    formats.close()


# What formats hold


def test_a_page_has_the_formats_that_were_asked_for(formats: PageFormats) -> None:
    """Text is what a visitor sees, links are absolute and unique, Markdown is the main content."""
    [made] = formats.convert([page(PAGE)])
    [some] = formats.convert([page(PAGE, "links")])

    assert made == {
        "html": PAGE,
        "content": "Menu\nMill Lane\nThe mill, behind a house, was sold.\nFirst line\n"
        "second line, again write\nYear\tPrice\n1999\t100,000\nImprint",
        "links": [
            "https://a.example/menu",
            "https://a.example/deep/house",
            "https://b.example/",
        ],
        "markdown": made["markdown"],
    }
    assert "# Mill Lane" in made["markdown"]
    assert "[house](https://a.example/deep/house#door)" in made["markdown"]
    assert "Menu" not in made["markdown"]
    assert "Imprint" not in made["markdown"]
    assert some == {"links": made["links"]}


def test_markdown_of_the_whole_page(formats: PageFormats) -> None:
    """With `only_main_content=False`, Markdown has menus and footers, too."""
    [made] = formats.convert([page(PAGE, "markdown", only_main_content=False)])

    for text in ("[Menu](https://a.example/menu)", "# Mill Lane", "| 1999 | 100,000 |", "Imprint"):
        assert text in made["markdown"]
    assert "unseen" not in made["markdown"]


def test_a_page_without_main_content_has_markdown(formats: PageFormats) -> None:
    """A picture alone is given as it is; a page without text has empty formats and no error."""
    picture, empty = formats.convert(
        [page("<body><img src=/a.png alt=Mill>", "markdown"), page("")]
    )

    assert picture == {"markdown": "![Mill](https://a.example/a.png)"}
    assert empty == {"html": "", "content": "", "links": [], "markdown": ""}


def test_any_charset_is_read(formats: PageFormats) -> None:
    """The charset is found as for records; broken characters and NULs break nothing."""
    cases = [
        ("text/html; charset=windows-1251", "<p>Мелница".encode("cp1251"), "Мелница"),
        (HTML, "<p>Mühle".encode("utf-16"), "Mühle"),
        (HTML, "<meta charset=shift_jis><p>水車小屋".encode("cp932"), "水車小屋"),
        ("text/html; charset=utf-8", b"<p>M\xff\xfehle \xc3", "M��hle �"),
        ("text/html; charset=unheard-of", "<p>Mühle".encode(), "Mühle"),
        ("text/html; charset=utf-8", b"<p>a\0b\0</p>", "ab"),
    ]

    answers = formats.convert([page(body, kind=kind) for kind, body, _ in cases])

    for made, (_, _, text) in zip(answers, cases, strict=True):
        assert (made["content"], made["markdown"]) == (text, text)
        assert text in made["html"].replace("\0", "")
        assert "format_errors" not in made


def test_texts_that_are_no_html(formats: PageFormats) -> None:
    """JSON, XML and plain text are given as text; for other formats there is a reason."""
    kinds = ["application/json", "text/plain", "application/rss+xml", ""]

    answers = formats.convert([page('{"a": "ü"}', kind=kind) for kind in kinds])

    for made, kind in zip(answers, kinds, strict=True):
        assert (made["content"], made["markdown"]) == ('{"a": "ü"}', '{"a": "ü"}')
        reason = f"the page is {kind or 'of no media type'}, not HTML"
        assert made["format_errors"] == {"html": reason, "links": reason}


def test_what_is_no_text_has_a_reason(formats: PageFormats) -> None:
    """PDFs, images and unknown bytes have no format, and the reason names what they are."""
    bodies = {"application/pdf": b"%PDF-1.7", "image/png": b"\x89PNG", "": b"\0\1"}

    answers = formats.convert([page(body, kind=kind) for kind, body in bodies.items()])

    for made, kind in zip(answers, bodies, strict=True):
        assert set(made) == {"format_errors"}
        assert set(made["format_errors"]) == set(ALL)
        assert (kind or "no media type") in made["format_errors"]["text"]


def test_a_body_that_cannot_be_decoded_has_a_reason(formats: PageFormats) -> None:
    """A cut gzip body costs its own formats only."""
    cut = PageToConvert("HTTP/1.1 200 OK\r\nContent-Encoding: gzip", b"\x1f\x8b\x08", "", ("text",))

    broken, fine = formats.convert([cut, page("<p>fine", "text")])

    assert broken == {"format_errors": {"text": "the compressed body ends before its end"}}
    assert fine == {"content": "fine"}


def test_what_is_left_out_is_said(formats: PageFormats) -> None:
    """Too many links and too long a text are cut, and `format_errors` says so."""
    many = "".join(f"<a href=/{n}>x</a>" for n in range(MAX_LINKS + 5))

    links, text = formats.convert([page(many, "links"), page(f"<p>{'я' * MAX_RUN}", "text")])

    assert len(links["links"]) == MAX_LINKS
    assert links["format_errors"] == {"links": "5 further links were left out"}
    assert text["content"].startswith("яяя")
    assert "was cut" in text["format_errors"]["text"]


def test_an_unknown_format_is_refused(formats: PageFormats) -> None:
    """A name that is no format is an error of the caller, and starts no process."""
    with pytest.raises(UsageError, match="formats: picture is none of html, text, links"):
        formats.convert([page(PAGE, "picture")])
    assert not converters()


def test_markdown_without_its_packages() -> None:
    """Without the extra, the error names it; other formats work."""
    script = """
        import sys
        sys.modules["trafilatura"] = None  # as if it were not installed
        from crawler.page_formats import PageFormats, PageToConvert
        formats = PageFormats(1)
        head = "HTTP/1.1 200 OK\\r\\nContent-Type: text/html"
        print(formats.convert([PageToConvert(head, b"<p>x", "http://a.example/", ("text",))]))
        formats.convert([PageToConvert(head, b"<p>x", "http://a.example/", ("markdown",))])
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False
    )

    assert ran.stdout == "[{'content': 'x'}]\n"
    assert "UsageError: the format markdown needs the packages html-to-markdown" in ran.stderr
    assert "pip install '.[markdown]' in the project's folder" in ran.stderr


def test_no_converter_is_imported_at_start() -> None:
    """What reads batches loads neither the converters nor a parser for them."""
    script = "import sys, crawler.coordinator; print({'trafilatura', 'lxml'} & {*sys.modules})"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert ran.stdout == "set()\n"


# Processes


def test_processes_start_when_needed_and_stay(formats: PageFormats) -> None:
    """Without pages none is started; one page starts one, and the next call has the same."""
    assert formats.convert([]) == []
    nothing = PageToConvert("", b"", "", ())
    assert formats.convert([nothing]) == [{}]
    assert not converters()

    formats.convert([page(PAGE, "text")])
    [first] = converters()
    formats.convert([page(PAGE, "text")])

    assert converters() == [first]


def test_threads_get_their_own_answers(formats: PageFormats) -> None:
    """Calls from several threads share the processes, and each gets its pages in their order."""

    def call(n: int) -> list[str]:
        pages = [page(f"<p>page {n} {m}", "text", "links") for m in range(30)]
        return [made["content"] for made in formats.convert(pages)]

    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(call, range(6)))

    assert found == [[f"page {n} {m}" for m in range(30)] for n in range(6)]
    assert len(converters()) == 2


def test_hostile_pages_cost_themselves_only() -> None:
    """Deep, large, slow and hungry pages have a reason and what can be made of them; their
    neighbours get all."""
    formats = PageFormats(2, ConversionLimits(cpu_s=3))
    fine = page("<article><p>fine", "text", "markdown")
    deep = "<html><body>" + "<div>" * 100_000 + "hello"
    hostile = {
        "deep": page(deep),
        "large": page(f"<html><body><p>{'word ' * 2_000_000}", "html", "text", "markdown"),
        "slow": page(SLOW),
        "hungry": page(HUNGRY, only_main_content=False),
    }

    asked = [each for bad in hostile.values() for each in (fine, bad)]
    answers = formats.convert([*asked, fine])
    formats.close()

    assert answers[::2] == [{"content": "fine", "markdown": "fine"}] * 5
    made = dict(zip(hostile, answers[1::2], strict=True))
    assert made["deep"]["html"] == deep
    assert set(made["deep"]["format_errors"]) == {"text", "links", "markdown"}
    assert "nested" in made["deep"]["format_errors"]["text"]
    assert len(made["large"]["markdown"]) == 9_999_999
    assert set(made["large"]["format_errors"]) == {"text"}
    assert made["slow"]["content"].startswith("x\nx\n")
    assert made["slow"]["format_errors"] == {
        "markdown": "its conversion took more than 3 s of CPU time"
    }
    assert made["hungry"]["content"].startswith("x\nx\n")
    assert made["hungry"]["format_errors"] == {
        "markdown": "its conversion needed more than 1,073 MB of memory"
    }


def test_killed_processes_cost_a_retry(formats: PageFormats) -> None:
    """If all idle processes are killed, the next pages are converted all the same."""
    before = formats.convert([page(PAGE)] * 8)
    killed = converters()
    for process in killed:
        os.kill(process.pid, signal.SIGKILL)

    after = formats.convert([page(PAGE)] * 8)

    assert after == before
    assert not {process.pid for process in converters()} & {process.pid for process in killed}


def test_a_process_killed_at_work_costs_a_retry() -> None:
    """A page whose process is killed from outside is tried again, and not blamed for it."""
    formats = PageFormats(1, ConversionLimits(cpu_s=2))
    formats.convert([page(PAGE)])
    [first] = converters()
    used_s = first.cpu_times().user
    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(formats.convert, [page(SLOW, "html", "markdown")])
        wait_for(lambda: first.cpu_times().user > used_s + 0.3, 60, "the conversion at work")
        os.kill(first.pid, signal.SIGKILL)
        [made] = call.result()
    formats.close()

    assert made["html"] == SLOW
    assert "CPU time" in made["format_errors"]["markdown"]


def test_a_stopped_process_is_replaced() -> None:
    """A process that does not go on is killed after the limit, also while a large page is sent."""
    formats = PageFormats(1, ConversionLimits(wall_s=2))
    formats.convert([page(PAGE, "text")])
    [stopped] = converters()
    os.kill(stopped.pid, signal.SIGSTOP)

    [made] = formats.convert([page(f"<p>word<!--{' ' * 2_000_000}-->", "text")])
    formats.close()

    assert made == {"content": "word"}
    assert not stopped.is_running()


def test_close_ends_busy_processes() -> None:
    """Closing ends a call that is at work with an error, and leaves no process."""
    formats = PageFormats(2)
    formats.convert([page(PAGE, "text")] * 4)
    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(formats.convert, [page(SLOW, "markdown")] * 3)
        busy = lambda: any(each.cpu_times().user > 1 for each in converters())  # noqa: E731
        wait_for(busy, 60, "the conversion at work")
        formats.close()
        with pytest.raises(ServiceError, match="the program is ending"):
            call.result()

    wait_for(lambda: not converters(), 60, "the end of the converters")
    with pytest.raises(ServiceError, match="the program is ending"):
        formats.convert([page(PAGE)])


def test_processes_end_with_their_program() -> None:
    """If the program is killed, its converters end, also in the middle of a page."""
    script = f"""
        import psutil
        from crawler.page_formats import PageFormats, PageToConvert
        slow = "<html><body><p>x</p><table>" + "<tr><td colspan=1000 rowspan=1000>x" * 1000
        head = "HTTP/1.1 200 OK\\r\\nContent-Type: {HTML}"
        formats = PageFormats(2)
        text = PageToConvert(head, slow.encode(), "http://a.example/", ("text",))
        formats.convert([text] * 8)
        print(*[child.pid for child in psutil.Process().children()], flush=True)
        formats.convert([PageToConvert(head, slow.encode(), "http://a.example/", ("markdown",))])
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout
        pids = [int(pid) for pid in program.stdout.readline().split()]
        busy = lambda: any(psutil.Process(pid).cpu_times().user > 1 for pid in pids)  # noqa: E731
        wait_for(busy, 60, "the conversion at work")
        program.kill()

    def has_ended(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    assert len(pids) == 2
    wait_for(lambda: all(map(has_ended, pids)), 60, "the end of the converters")
