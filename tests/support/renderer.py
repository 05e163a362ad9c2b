"""A small renderer on a real browser: a process of Chromium for each page, which prints its DOM."""

import asyncio
import shutil
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

from crawler.config import Settings
from crawler.errors import FetchError
from crawler.fetch.http import Request, RequestHook
from crawler.fetch.rendering import Rendered, RenderOptions
from crawler.models import Page
from tests.support.browser import LACKING, chromium


class Browser:
    """Renders pages; nothing is kept between two of them."""

    @classmethod
    def of(cls, _: Settings) -> Self:
        """A browser; it needs no settings."""
        return cls()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """There is nothing to close."""

    async def render(self, request: Request, hook: RequestHook, _: RenderOptions) -> Rendered:
        """Fetch a page for its headers, then print what a browser makes of it."""
        async with hook(request.url):
            response = await asyncio.to_thread(fetched, request.url)
            dom = response.body
            if "html" in response.header("content-type"):
                dom = await dumped(request.url)
        page = Page(
            url=request.url, final_url=request.url, status=response.status, reason=response.reason,
            headers=response.headers, body=dom, raw=dom, fetched_at=time.time(), fetch_s=0.1,
        )  # fmt: skip
        received = len(response.raw) + 1000
        return Rendered(page=page, response=response, requests=2, received=received)


def fetched(url: str) -> Page:
    """The answer of a server, whatever its status."""
    try:
        answer = urllib.request.urlopen(url, timeout=30)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        body = answer.read()
        headers = tuple(answer.headers.items())
        return Page(
            url=url, final_url=url, status=answer.status, reason=answer.reason, headers=headers,
            body=body, raw=body, fetched_at=time.time(), fetch_s=0.1,
        )  # fmt: skip


async def dumped(url: str) -> bytes:
    """The DOM of a page, after its scripts have run."""
    program = chromium()
    assert program, LACKING
    profile = Path(tempfile.mkdtemp(prefix="renderer-"))
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            *("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"),
            *("--virtual-time-budget=2000", "--dump-dom", url),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            dom, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        if process.returncode:
            raise FetchError("browser_crashed", f"the browser ended with {process.returncode}")
        return dom
    finally:
        shutil.rmtree(profile, ignore_errors=True)
