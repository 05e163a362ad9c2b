"""A town library's catalogue of 60 books: a small site without a file, for a first try."""

from collections.abc import Iterator
from html import escape
from random import Random
from typing import Any, NamedTuple

from crawler.examples.server import Request, Response, not_found

HOST = "library.localhost"
COUNT, PER_PAGE = 60, 20

_SUBJECTS = ("Rivers", "Bridges", "Orchards", "Lighthouses", "Moths", "Clocks")
_KINDS = ("A Field Guide to {}", "The Keeper of {}", "{} of the North", "Notes on {}")
_AUTHORS = ("Ada Brandt", "Femi Castillo", "Ines Dimitrova", "Jonas Eriksen", "Keiko Ito")


class Book(NamedTuple):
    """A book, and the record that its page must give."""

    url: str
    record: dict[str, Any]


class Library:
    """The catalogue, always the same."""

    host = HOST

    def books(self, base: str) -> Iterator[Book]:
        """Yield all books; `base` is the address of the site."""
        for n in range(1, COUNT + 1):
            yield Book(f"{base}/book/{n}", self.record(n))

    def record(self, n: int) -> dict[str, Any]:
        """Return what the page of book n says."""
        chance = Random(n)
        return {
            "title": _KINDS[n % len(_KINDS)].format(_SUBJECTS[n % len(_SUBJECTS)]),
            "author": chance.choice(_AUTHORS),
            "year": chance.randint(1950, 2025),
            "price": {"amount": chance.randint(400, 3000) / 100, "currency": "GBP"},
            "in_stock": n % 7 != 0,
        }

    def answer(self, request: Request) -> Response:
        """Answer one request."""
        first, _, number = request.path.strip("/").partition("/")
        if request.path == "/":
            return _page("The town library", "<a href='/books'>All books</a>")
        if request.path == "/books":
            return self._list(int(request.query.get("page", "1")))
        if first == "book" and number.isdecimal() and 1 <= int(number) <= COUNT:
            return self._detail(int(number))
        return not_found()

    def _list(self, page: int) -> Response:
        begin = (page - 1) * PER_PAGE + 1
        numbers = range(begin, min(begin + PER_PAGE, COUNT + 1))
        items = "".join(
            f"<li class='book'><a href='/book/{n}'>{escape(self.record(n)['title'])}</a></li>"
            for n in numbers
        )
        more = ""
        if begin + PER_PAGE <= COUNT:
            more = f"<a class='next' rel='next' href='/books?page={page + 1}'>Next page</a>"
        return _page(f"Books, page {page}", f"<ul>{items}</ul>{more}")

    def _detail(self, n: int) -> Response:
        book = self.record(n)
        rows = {
            "Author": book["author"],
            "Published": book["year"],
            "Price": f"£{book['price']['amount']:.2f}",
            "In stock": "yes" if book["in_stock"] else "no",
        }
        cells = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in rows.items())
        return _page(book["title"], f"<table>{cells}</table><a href='/books'>All books</a>")


def _page(title: str, content: str) -> Response:
    words = "The library lends and sells books in the old customs house by the harbour. " * 4
    text = (
        f"<!doctype html><html lang='en'><title>{title}</title><body><h1>{title}</h1>"
        f"{content}<p>{words}</p></body></html>"
    )
    return Response(text.encode())
