"""Certificates for tests, good and bad, and a server's side of TLS."""

import asyncio
import ssl
import subprocess
import threading
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

T = TypeVar("T")


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def make(folder: Path) -> Path:
    """Put into a folder an authority, and certificates of it: good, for another host, expired; and
    one that signs itself."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    authority = "basicConstraints=critical,CA:TRUE"
    usage = "keyUsage=critical,keyCertSign,cRLSign"
    _openssl(folder, "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2",
             "-subj", "/CN=Test CA", "-addext", authority, "-addext", usage)  # fmt: skip
    (folder / "index.txt").write_text("")
    (folder / "ca.cnf").write_text(
        "[ca]\ndefault_ca=d\n[d]\ndatabase=index.txt\nnew_certs_dir=.\nrand_serial=yes\n"
        "default_md=sha256\n"
        "policy=p\ncopy_extensions=copy\nunique_subject=no\n[p]\ncommonName=supplied\n"
    )
    spans = {
        "good": ("20200101000000Z", "20991231000000Z"),
        "expired": ("20200101000000Z", "20210101000000Z"),
    }
    for name, names in (
        ("good", "DNS:localhost,DNS:a.localhost,IP:127.0.0.1"),
        ("other", "DNS:other.example"),
        ("expired", "DNS:localhost,IP:127.0.0.1"),
    ):
        begin, end = spans.get(name, spans["good"])
        _openssl(folder, "req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj",
                 f"/CN={name}", "-addext", f"subjectAltName={names}")  # fmt: skip
        _openssl(folder, "ca", "-batch", "-config", "ca.cnf", "-cert", "ca.pem", "-keyfile",
                 "ca.key", "-in", f"{name}.csr", "-out", f"{name}.pem", "-startdate", begin,
                 "-enddate", end, "-notext")  # fmt: skip
    _openssl(folder, "req", "-x509", *key, "-keyout", "self.key", "-out", "self.pem", "-days", "2",
             "-subj", "/CN=self", "-addext",
             "subjectAltName=DNS:localhost,IP:127.0.0.1")  # fmt: skip
    return folder


def identity(folder: Path, name: str) -> ssl.SSLContext:
    """A server's side of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    return context


class Front:
    """A port that speaks TLS in front of one that does not, as long as its `with` lasts."""

    def __init__(self, context: ssl.SSLContext, port: int) -> None:
        self._context, self._target = context, port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._run(
            asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _close(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            await asyncio.gather(_copy(reader, back), _copy(there, writer))
        finally:
            writer.transport.abort()
            back.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()
