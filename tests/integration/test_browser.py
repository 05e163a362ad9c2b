"""Stored pages in a real browser: they are shown, and do nothing."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import browser
from tests.support.pages import Answer, Pages
from tests.support.stack import Folder, opened_by, wait_for

HOSTILE = """<!doctype html><html><head><title>Parcel 7</title>
<link rel=preconnect href={at}><link rel=dns-prefetch href={at}>
<link rel=preconnect href=http://localhost:{port}>
<link rel=prefetch href={at}/prefetch><link rel=preload as=image href={at}/preload>
<link rel=icon href={at}/icon><link rel=modulepreload href={at}/modulepreload>
<link rel=manifest href={at}/manifest><link rel=prerender href={at}/p>
<link rel=stylesheet href={at}/css><base href={at}/base/>
<meta http-equiv=refresh content="0; url={at}/refresh">
<style>@import url({at}/import); body {{ background: url({at}/background) }} p {{ font-family: x }}
@font-face {{ font-family: x; src: url({at}/font) }}</style><script src={at}/script></script>
<script>fetch('{at}/fetch'); new Image().src = '{at}/image'; navigator.sendBeacon('{at}/beacon');
new WebSocket('ws://127.0.0.1:{port}/socket'); window.open('{at}/open');
top.location = '{at}/top';</script><script type=speculationrules>
{{"prefetch": [{{"source": "list", "urls": ["{at}/rules"]}}]}}</script></head>
<body onload="document.forms[0].submit()" background={at}/body><p>Parcel 7</p>
<img src={at}/img srcset="{at}/set 2x">
<img src=x onerror="fetch('{at}/onerror')"><picture><source srcset={at}/source></picture>
<iframe src={at}/frame></iframe>
<iframe srcdoc="<img src={at}/inner><script>fetch('{at}/inner')</script>"></iframe>
<embed src={at}/embed><object data={at}/object></object>
<video src={at}/video poster={at}/poster autoplay></video>
<audio src={at}/audio autoplay></audio><form action={at}/form method=post><input name=a></form>
<svg><image href={at}/svg /><use href="{at}/use#a"/></svg><input type=image src={at}/input>
"></iframe><img src={at}/outside><script>fetch('{at}/outside')</script></body></html>
{words}"""


@contextmanager
def listener() -> Iterator[tuple[int, list[bytes]]]:
    """A server on loopback that counts connections, whether anything is asked on them or not."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        heard: list[bytes] = []

        def attend() -> None:
            while True:
                try:
                    talk, _ = server.accept()
                except OSError:
                    return
                heard.append(b"a connection")
                with talk:
                    talk.settimeout(1)
                    try:
                        heard[-1] = talk.recv(1000).partition(b"\r\n")[0] or heard[-1]
                        talk.sendall(
                            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"
                        )
                    except OSError:
                        pass

        thread = threading.Thread(target=attend, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1], heard
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("only", ["", "refresh"])
def test_an_opened_page_reaches_no_server(
    folder: Folder, pages: Pages, tmp_path: Path, only: str
) -> None:
    """Neither by script, picture, style, frame, form and refresh, nor by a mere connection; and it
    is shown."""
    words = "A parcel behind the mill, surveyed and drawn. " * 20

    def body(port: int) -> str:
        at = f"http://127.0.0.1:{port}"
        if only == "refresh":
            return f"<meta http-equiv=refresh content='0; url={at}/refresh'><p>{words}"
        return HOSTILE.format(at=at, port=port, words=words)

    # Given a stored page that tries everything, or one thing alone, and does so where nothing keeps
    # it from that
    with listener() as (port, heard):
        plain = tmp_path / "plain.html"
        plain.write_text(body(port))
        with browser.opened(plain.as_uri(), tmp_path / "1"):
            wait_for(lambda: heard, 60, "a connection")
    with listener() as (port, heard):
        pages.answers["/page"] = Answer(body(port))
        folder.crawler("scrape", f"{pages.url}/page")

        # When it is opened
        opened = opened_by(folder, f"{pages.url}/page")
        picture = browser.show(opened.as_uri(), tmp_path / "2")

        # Then nothing was asked for, and there is something to see
        assert heard == []
    (tmp_path / "empty.html").write_text("<!doctype html>")
    assert picture != browser.show((tmp_path / "empty.html").as_uri(), tmp_path / "3", 0.5)
