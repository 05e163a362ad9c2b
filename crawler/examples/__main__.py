"""Serves the example sites: `python -m crawler.examples [--port 8090] [--size 500]`."""

import argparse
import os
import signal

from crawler.examples.county import SESSION_PAGES, County
from crawler.examples.domove import Domove
from crawler.examples.imoti import Imoti
from crawler.examples.library import Library
from crawler.examples.server import Site, serve

MAX_PORT = 65535


def main() -> None:
    """Serve all sites until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m crawler.examples", description=__doc__)
    parser.add_argument("--port", type=_port, default=8090, help="0: any free port (default: 8090)")
    parser.add_argument("--size", type=int, default=500, help="listings of the first three sites")
    parser.add_argument("--shared", type=int, help="listings that two sites have (a fifteenth)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--session-pages", type=int, default=SESSION_PAGES, help="pages per login")
    parser.add_argument("--latency-ms", type=int, default=0, help="wait before each answer")
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it at once, without a traceback
    sites: list[Site] = [
        County(given.size, given.seed, given.session_pages),
        Imoti(given.size, given.seed),
        Domove(given.size, given.seed, given.shared),
        Library(),
    ]
    try:
        serve(sites, given.port, given.latency_ms / 1000)
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        hint = "--port N takes another one, --port 0 any that is free"
        parser.exit(2, f"{parser.prog}: port {given.port} cannot be used ({reason}); {hint}\n")


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is no port: a number up to {MAX_PORT}")
    return int(text)


if __name__ == "__main__":
    main()
