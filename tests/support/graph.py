"""A link graph of any size: each page links to ten others, and every page can be reached."""

from collections.abc import Iterator
from random import Random

from crawler.examples.server import Request, Response, not_found

LINKS = 10


class Graph:
    """Pages 0 to size - 1; page 0 is the start. The same for the same seed."""

    def __init__(self, size: int = 1000, seed: int = 1, host: str = "graph.localhost") -> None:
        self.host, self.size, self.seed = host, size, seed

    def path(self, n: int) -> str:
        """The path of page n."""
        return f"/node/{n}"

    def links(self, n: int) -> list[int]:
        """Where page n links to: up to two pages of its own below it, and any others.

        The first two make a binary tree, so that every page is reachable and none is deeper than
        the logarithm of the size.
        """
        chance = Random(self.seed * 1_000_003 + n)
        below = [child for child in (2 * n + 1, 2 * n + 2) if child < self.size]
        others = [chance.randrange(self.size) for _ in range(LINKS - len(below))]
        return below + others

    def urls(self, base: str) -> Iterator[str]:
        """Every page's URL."""
        return (base + self.path(n) for n in range(self.size))

    def body(self, n: int) -> bytes:
        """Page n: a record, its links, and some text."""
        anchors = "\n".join(
            f"<li><a href='{self.path(to)}'>Node {to}</a></li>" for to in self.links(n)
        )
        text = f"This is node {n} of a graph of {self.size}, and it says so at some length. " * 4
        return f"""<!doctype html>
<html lang="en"><head><title>Node {n}</title></head><body><h1 id="parcel">Node {n}</h1>
<p>{text}</p>
<ul>{anchors}</ul></body></html>
""".encode()

    def answer(self, request: Request) -> Response:
        """Answer one request."""
        if request.path == "/robots.txt":
            return Response(b"User-agent: *\nDisallow: /private/\n", kind="text/plain")
        number = request.path.removeprefix("/node/") if request.path != "/" else "0"
        if number.isascii() and number.isdigit() and int(number) < self.size:
            return Response(self.body(int(number)))
        return not_found()
