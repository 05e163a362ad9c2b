"""The process that converts stored pages: `python -m crawler.page_converter CPU_S MEMORY_BYTES`.

Its standard input is a socket, on which pages come and formats go. It ends when the socket closes.
"""

import contextlib
import logging
import math
import os
import re
import resource
import select
import signal
import sys
import threading
from functools import cached_property
from multiprocessing.connection import Connection
from typing import Any

import msgspec
from selectolax.lexbor import LexborHTMLParser, LexborNode

from crawler.errors import FetchError
from crawler.fetch import charset
from crawler.fetch.body import decode_stored
from crawler.fetch.budget import Budget
from crawler.fetch.wire import media_type, stored_values
from crawler.judge.sight import HIDDEN, UNSEEN
from crawler.page_formats import NO_MEMORY, ConvertedFormat, PageToConvert
from crawler.scraping.examine import is_html
from crawler.sites import links
from crawler.sites.parser import MAX_RUN, parse

MIN_MAIN_CHARS = 250
"""Of a page with less main content, the whole page is given: trafilatura keeps neither headings nor
tables of so little."""
MAX_BODY = 1 << 27
"""Bytes of a stored body, decompressed."""
MAX_CHARACTERS = 20_000_000
"""Characters of one format."""
_BLOCK_TAGS = """
    address article aside blockquote body button caption center dd details dialog dir div dl dt
    fieldset figcaption figure footer form frameset h1 h2 h3 h4 h5 h6 header hgroup hr legend li
    main menu nav ol optgroup option p pre search section select summary table tbody textarea tfoot
    thead tr ul"""
_BLOCKS = frozenset(_BLOCK_TAGS.split())
"""Elements that begin a line of their own."""
_CELLS = frozenset({"td", "th"})
_TEXT_TYPES = re.compile(
    r"text/.+|.+[/+](?:json|xml|yaml)|application/(?:x-)?(?:ndjson|javascript|ecmascript|sql|toml)"
)
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
"""Bytes that no text has; looked for where a page does not say what it is."""


class _NotMade(Exception):
    """A format that a page does not have, with the reason."""


class StoredPageFormats:
    """The formats of one page, each a method's answer: its value, and what is wrong with it."""

    def __init__(self, page: PageToConvert, cpu_s: float = math.inf) -> None:
        self._page, self._cpu_s = page, cpu_s

    def make(self, name: str) -> ConvertedFormat:
        """Return a format; whatever goes wrong is part of the answer."""
        try:
            value, problem = getattr(self, f"_{name}")()
        except MemoryError:
            raise
        except (_NotMade, FetchError) as error:
            return ConvertedFormat(None, str(error))
        except Exception as error:
            what = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
            return ConvertedFormat(None, f"the converter failed ({what})")
        if len(value) > MAX_CHARACTERS:
            size = f"{len(value):,} characters, more than {MAX_CHARACTERS:,}"
            return ConvertedFormat(None, f"it would have {size}")
        return ConvertedFormat(value, problem)

    # The page

    @cached_property
    def _body(self) -> bytes:
        return decode_stored(self._page.head, self._page.raw, MAX_BODY)

    @cached_property
    def _declared(self) -> str:
        return next(iter(stored_values(self._page.head, "content-type")), "")

    @cached_property
    def _utf8(self) -> bytes:
        return charset.utf8(self._body, self._declared, self._budget)

    @cached_property
    def _source(self) -> str:
        return self._utf8.decode("utf-8", "replace")

    @cached_property
    def _tree(self) -> LexborHTMLParser:
        return parse(self._utf8, self._budget)

    @property
    def _budget(self) -> Budget:
        return Budget(self._cpu_s)

    @property
    def _is_html(self) -> bool:
        return is_html(self._declared, self._body)

    @property
    def _plain(self) -> str:
        """The text of a page that is not HTML."""
        kind = media_type(self._declared)
        if not kind and _BINARY.search(self._body, 0, 1024):
            raise _NotMade("the page says no media type, and is not text")
        if kind and not _TEXT_TYPES.fullmatch(kind):
            raise _NotMade(f"the page is {kind[:100]}, which is not text")
        return self._source.replace("\0", "")

    def _require_html(self) -> None:
        if not self._is_html:
            kind = media_type(self._declared)[:100] or "of no media type"
            raise _NotMade(f"the page is {kind}, not HTML")

    # Its formats

    def _html(self) -> tuple[str, str]:
        self._require_html()
        return self._source, ""

    def _text(self) -> tuple[str, str]:
        if not self._is_html:
            return self._plain, ""
        text, is_cut = visible_text(self._tree, self._budget)
        return text, f"a text of more than {MAX_RUN:,} characters was cut" * is_cut

    def _links(self) -> tuple[list[str], str]:
        self._require_html()
        found, more = links.of_page(self._tree, self._utf8, self._page.url, self._budget)
        return found, f"{more:,} further links were left out" * bool(more)

    def _markdown(self) -> tuple[str, str]:
        if not self._is_html:
            return self._plain, ""
        problem = ""
        markdown = ""
        if self._page.only_main_content:
            markdown = main_markdown(self._utf8, self._page.url)
        if len(markdown) < MIN_MAIN_CHARS:  # also if the main part was not found
            markdown, problem = whole_markdown(self._source, self._page.url)
        if not markdown and visible_text(self._tree, self._budget)[0]:
            raise _NotMade(problem or "no converter found the text of the page")
        return markdown, problem


def visible_text(tree: LexborHTMLParser, budget: Budget) -> tuple[str, bool]:
    """Return what a visitor reads, each block on a line of its own and the cells of a row apart by
    tabs; and whether a text was cut, as the parser does with long ones."""
    if tree.body is None:
        return "", False
    hidden = frozenset(node.mem_id for node in tree.css(HIDDEN))
    blocks = _Blocks(hidden)
    parts: list[str] = []
    last: int | None = None
    is_cut = False
    for node in tree.body.traverse(include_text=True):
        budget.check()
        if node.is_text_node:
            block = blocks.around(node)
            if block is None:
                continue
            if block != last:
                parts.append("\n")
                last = block
            text = node.text_content or ""
            is_cut |= 4 * len(text) >= MAX_RUN and len(text.encode()) >= MAX_RUN
            parts.append(_folded(text))
        elif node.tag in _CELLS:
            parts.append("\t")
        elif node.tag == "br":
            parts.append("\n")
    budget.look()
    lines = ("\t".join(_cells(line)) for line in "".join(parts).split("\n"))
    return "\n".join(line for line in lines if line), is_cut


def _folded(text: str) -> str:
    """Fold white space, also that at the ends: it may separate the words of two elements."""
    folded = " ".join(text.split())
    if not folded:
        return " " * bool(text)
    return f"{' ' * text[0].isspace()}{folded}{' ' * text[-1].isspace()}"


def _cells(line: str) -> list[str]:
    cells = (" ".join(cell.split()) for cell in line.split("\t"))
    return [cell for cell in cells if cell]


class _Blocks:
    """Finds the block that a node is in; none for what a visitor does not see."""

    def __init__(self, hidden: frozenset[int]) -> None:
        self._hidden = hidden
        self._known: dict[int, int | None] = {}

    def around(self, node: LexborNode) -> int | None:
        """Return the number of the innermost block around a node."""
        path: list[LexborNode] = []
        outer = node.parent
        while outer is not None and outer.mem_id not in self._known:
            path.append(outer)
            outer = outer.parent
        block = self._known[outer.mem_id] if outer is not None else 0
        for each in reversed(path):
            if each.tag in UNSEEN or each.mem_id in self._hidden:
                block = None
            elif block is not None and each.tag in _BLOCKS:
                block = each.mem_id
            self._known[each.mem_id] = block
        return block


def main_markdown(html: bytes, url: str) -> str:
    """Return the main content of a page, by trafilatura; empty where it finds none."""
    import trafilatura
    from lxml.etree import ParserError
    from lxml.html import HTMLParser, document_fromstring

    # Its own parser would drop texts of 10 MB and all behind them.
    parser = HTMLParser(encoding="utf-8", huge_tree=True, remove_comments=True, remove_pis=True)
    try:
        tree = document_fromstring(html.replace(b"\0", b""), parser=parser)
    except ParserError:  # there is nothing in it
        return ""
    # Its own links would be relative to the host, without folder and <base>.
    tree.make_links_absolute(url, handle_failures="ignore")
    options: dict[str, Any] = {"include_links": True, "include_images": True}
    return trafilatura.extract(tree, url, fast=True, output_format="markdown", **options) or ""


def whole_markdown(html: str, url: str) -> tuple[str, str]:
    """Return a whole page, by html-to-markdown, and what it warns of."""
    from html_to_markdown import ConversionOptions, PreprocessingOptions, convert

    options = ConversionOptions(
        base_url=url,
        extract_metadata=False,
        inline_data_media="alt_text_only",
        preprocessing=PreprocessingOptions(enabled=False),
    )
    converted = convert(html, options)
    problem = "; ".join(warning.message for warning in converted.warnings[:3])
    return (converted.content or "").strip(), problem


# The process


def serve(connection: Connection, cpu_s: int) -> None:
    """Convert pages until the connection closes."""
    decode = msgspec.msgpack.Decoder(PageToConvert).decode
    encode = msgspec.msgpack.encode
    connection.send_bytes(b"ready")
    while True:
        page = decode(connection.recv_bytes())
        formats = StoredPageFormats(page, cpu_s)
        for name in page.formats:
            _limit_cpu(cpu_s)
            connection.send_bytes(encode(formats.make(name)))


def _limit_cpu(cpu_s: int) -> None:
    """Have the kernel end this process if it uses that much more, whatever code runs then."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    end = math.ceil(used.ru_utime + used.ru_stime) + cpu_s
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if hard == resource.RLIM_INFINITY or end < hard:
        resource.setrlimit(resource.RLIMIT_CPU, (end, hard))


def _end_with(fd: int) -> None:
    """End this process as soon as the program on the other side of the socket is gone."""
    hang_up = select.poll()
    hang_up.register(fd, 0)
    hang_up.poll()
    os._exit(0)


def main() -> None:
    """Run as the process of `PageFormats`."""
    cpu_s, memory = int(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable()  # what is wrong with a page is in its answer
    threading.Thread(target=_end_with, args=(0,), daemon=True).start()
    try:
        serve(Connection(0), cpu_s)
    except MemoryError:
        os._exit(NO_MEMORY)
    except (EOFError, ConnectionError):
        os._exit(0)


if __name__ == "__main__":
    main()
