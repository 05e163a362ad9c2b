"""Crawls and maps of whole sites for clients of the API."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from crawler import crawls, site_map, sites, urls
from crawler.batches import keep_secrets
from crawler.config import Settings
from crawler.db.batches import NewBatch
from crawler.db.dispatch import MAX_TASKS_PER_MESSAGE
from crawler.errors import ServiceError
from crawler.fetch.session import Session, check
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job, JobOptions
from crawler.site_map import MapAnswer, MapRequest

STOP_S = 2.0
"""How long the process of a map may take to end: less than requests have when the server ends."""


def begin(
    settings: Settings,
    client: str,
    session_id: str,
    url: str,
    options: JobOptions,
    scope: Mapping[str, Any],
    *,
    delay_s: float,
    headers: Mapping[str, str],
    notes: Mapping[str, Any],
    direct: bool,
) -> Job:
    """Begin the crawl of a site as a session of a client. The same call again changes nothing.

    `scope` has what `crawls.plan` takes. `delay_s` lies between requests to a domain, unless that
    has a longer one. What comes over the network may not reach loopback.
    """
    session = Session(headers=tuple(headers.items()))
    check(session)
    known = sites.load(settings.config_dir, settings.rate)
    if delay_s > known.rule(urls.parse(url).domain).interval_s:
        options = msgspec.structs.replace(options, rate=f"{3600 / delay_s:.4f}/h")
    plan = crawls.without_loopback(crawls.plan(known, [url], options, **scope))
    new = NewBatch(
        client=client,
        session_id=session_id,
        checksum="",
        direct=direct,
        queue="default",
        options=plan.options,
        shown=dict(notes),
    )
    with LocalPersistenceManager(settings.data_dir) as lpm:

        def prepare(job: Job, is_new: bool) -> None:
            keep_secrets(lpm.folder / "sessions", job, is_new, session, plan.credentials)

        size = min(settings.chunk_size, MAX_TASKS_PER_MESSAGE)
        return lpm.batches.begin_crawl(new, plan.starts, size, lpm.now(), prepare)


async def list_urls(settings: Settings, asked: MapRequest) -> MapAnswer:
    """List the URLs of a site, in a process of its own, which ends with this call."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "crawler.site_map",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=os.environ | {"CRAWLER_DATA_DIR": str(settings.data_dir)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        # Its end of the pipe stays open: the process ends with this one.
        process.stdin.write(msgspec.json.encode(asked) + b"\n")
        await process.stdin.drain()
        answer = await process.stdout.read()
        return msgspec.json.decode(answer, type=MapAnswer)
    except (msgspec.DecodeError, ConnectionError):
        raise ServiceError(f"the process that lists the URLs of {asked.url} has died") from None
    finally:
        await asyncio.shield(_end(process))


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a process in order, so that it leaves no files; after a while, at once."""
    assert process.stdin is not None
    process.stdin.close()  # it ends with it
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STOP_S):
            await process.wait()
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
    await asyncio.to_thread(site_map.remove_folders, process.pid)
