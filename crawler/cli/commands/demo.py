"""`demo`: a small site on loopback, crawled through the whole stack."""

import csv
import os
import shutil
import sys
from pathlib import Path

import click
import msgspec

from crawler import config, demo_site
from crawler.bulk import import_file
from crawler.cli.commands.run import crawl, report
from crawler.cli.commands.stack import workers_option
from crawler.cli.output import data_dir_option, say
from crawler.lpm import LocalPersistenceManager
from crawler.models import JobOptions


@click.command()
@workers_option
@data_dir_option
def demo(workers: int | None) -> int:
    """Crawl a small site on this machine through the whole stack: Redis, workers, store.

    Some of its pages are slow, some fail once, a few are broken for good. The store is the folder
    `demo` in the data folder, made anew each time.

    \b
    Example:
      python -m crawler demo
    """
    settings = config.load()
    folder = settings.data_dir.absolute() / "demo"
    settings = msgspec.structs.replace(settings, data_dir=folder, redis_url=None)
    os.environ["CRAWLER_DATA_DIR"] = os.path.relpath(folder)  # commands that are proposed name it
    with demo_site.running_site() as base:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)
        file = folder / "parcels.csv"
        rows = demo_site.urls(base)
        with file.open("w", newline="") as out:
            writer = csv.DictWriter(out, rows[0])
            writer.writeheader()
            writer.writerows(rows)
        say(f"a site with {len(rows)} parcels runs at {base}; its list is {file}")
        _, job = import_file(settings, file, how=JobOptions(rate="none"))
        books = crawl(settings, workers, job)
    report(settings, job, as_json=False)
    _show_examples(settings.data_dir)
    good = {"completed": books.completed, "failed": books.failed} == demo_site.EXPECTED
    print(
        "This is the outcome the site was built to have."
        if good
        else f"Expected were {demo_site.EXPECTED}."
    )
    return 0 if good else 1


def _show_examples(data_dir: Path) -> None:
    lpm = LocalPersistenceManager(data_dir)
    print("Three of the records:")
    for result in lpm.results.read(limit=3):
        fields = result["data"].get("fields", {})
        text = ", ".join(f"{name}: {value}" for name, value in list(fields.items())[:4])
        print(f"  {result['parcel_id']}  {result['data'].get('title', '')}  {text}")
    lpm.close()
    python, data = os.path.relpath(sys.executable), os.path.relpath(data_dir)
    print("See more:")
    print(f"  {python} -m crawler --data-dir {data} status")
    print(f"  {python} -m crawler --data-dir {data} results export --output results.jsonl")
