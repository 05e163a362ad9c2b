"""`sites`: list, check, show and draft the files of sites."""

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from crawler import config, urls
from crawler.cli.options import data_dir_option, json_option
from crawler.cli.output import existing_store, print_json, say
from crawler.config import Settings, argument, program
from crawler.errors import InputError, UsageError
from crawler.logs import counted, printable
from crawler.models import TaskStatus

if TYPE_CHECKING:
    from crawler.sites import Site, Sites
    from crawler.sites.draft import Draft

_HIDDEN = "***"


@click.group()
def sites() -> None:
    """List, check, show and draft the files of sites.

    \b
    Example:
      python -m crawler sites new https://county.example/parcels --output config/sites/county.yaml
      python -m crawler sites check
    """


def _load(settings: Settings) -> "Sites":
    from crawler.sites import load

    return load(settings.config_dir, settings.rate)


@sites.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List all sites: hosts, kinds of pages, starts and version.

    \b
    Example:
      python -m crawler sites list --json
    """
    settings = config.load()
    known = _load(settings)
    found = [_facts(site) for name in known.names if (site := known.named(name))]
    if as_json:
        print_json(found)
        return
    for each in found:
        kinds = ", ".join(each["kinds"]) or "any page"
        starts = counted(each["starts"], "start")
        print(f"{each['name']}  {each['version']}  {starts}, {kinds}")
        print(f"  {', '.join(map(printable, each['hosts']))}")
    if not found:
        print(f"no site has a file in {printable(str(settings.config_dir / 'sites'))}")


def _facts(site: "Site") -> dict[str, Any]:
    return {
        "name": site.name,
        "hosts": list(site.hosts),
        "kinds": [kind.role for kind in site.pages],
        "starts": len(site.start) + len(site.sitemaps),
        "fields": len(site.fields) + sum(len(kind.fields) for kind in site.pages),
        "version": site.version,
    }


@sites.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@json_option
def check(files: tuple[Path, ...], as_json: bool) -> int:
    """Check all files in config/, or only FILES, and print every fault with its line.

    Exits with 2 if there is one.

    \b
    Example:
      python -m crawler sites check
      python -m crawler sites check draft.yaml
    """
    from crawler.sites import faults, file_faults

    settings = config.load()
    folder, rate = settings.config_dir, settings.rate
    found: list[InputError] = []
    if files:
        for path in files:
            found += file_faults(path, folder, rate)
    else:
        found = faults(folder, rate, run=True)
    if as_json:
        print_json(
            [{"file": each.path, "line": each.line, "reason": each.reason} for each in found]
        )
    else:
        for each in found:
            print(printable(str(each)))
        if not found:
            good = counted(len(files), "file")
            if not files:
                good = counted(len(_load(settings).names), "site")
            print(f"no faults ({good})")
    return UsageError.exit_code if found else 0


@sites.command()
@click.argument("site")
@json_option
def show(site: str, as_json: bool) -> None:
    """Show all settings of SITE that are in effect, and where each comes from.

    SITE is the name of a site, or a URL of its pages; `default` is that of all other hosts. Values
    of headers are hidden.

    \b
    Example:
      python -m crawler sites show county
    """
    from crawler.sites import DEFAULTS

    settings = config.load()
    known = _load(settings)
    found = _named(known, site)
    places = known.places(found.name)
    values = msgspec.to_builtins(msgspec.structs.replace(found, scraper=None))
    values["headers"] = {name: _HIDDEN for name, _ in found.headers}
    values["concurrency"] = found.concurrency or "none"
    facts: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        if key in ("name", "version", "rule", "scraper"):
            continue
        where = "built in"
        if key in places:
            path, line = places[key]
            where = f"{path}, line {line}"
        facts[key] = {"value": value, "from": where}
    if settings.rate and places.get("rate", (Path(DEFAULTS), 0))[0].name == DEFAULTS:
        facts["rate"] = {"value": settings.rate, "from": "CRAWLER_RATE"}
    if as_json:
        print_json({"name": found.name, "version": found.version, "settings": facts})
        return
    print(f"{found.name}, version {found.version}")
    if found.scraper:
        print(f"  class {found.scraper.class_name} in {printable(found.scraper.path)}")
    for key, each in facts.items():
        text = printable(msgspec.json.encode(each["value"]).decode())
        print(f"  {key:18} {text}  ({printable(each['from'])})")


def _named(known: "Sites", name: str) -> "Site":
    if "://" in name:
        return known.of(urls.parse(name).url)
    if name == known.default.name:
        return known.default
    if site := known.named(name):
        return site
    near = difflib.get_close_matches(name.lower(), known.names, n=1)
    hint = f"known are {', '.join(known.names) or 'none'}"
    if near:
        hint = f"did you mean {near[0]}?"
    raise UsageError(f"there is no site {name[:60]!r}; {hint}")


@sites.command()
@click.argument("url")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the draft to this file, such as config/sites/county.yaml.",
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@json_option
@data_dir_option
def new(url: str, output: Path | None, force: bool, as_json: bool) -> int:
    """Fetch URL, and draft the file of its site from that page.

    A list gives the links to its items and to its next page; an item gives the fields of its
    JSON-LD and of its labels. The draft is loaded and tried on the page before it is shown. The
    page is fetched as by `scrape`, and stored.

    \b
    Example:
      python -m crawler sites new https://county.example/parcels
      python -m crawler sites new https://county.example/parcel/1 --output config/sites/county.yaml
    """
    from crawler.cli.commands.scrape import fetch_now
    from crawler.scraping import find_stored_page
    from crawler.sites.draft import draft

    if output:
        _check_output(output, force)
    settings = config.load()
    report = fetch_now(settings, url)
    if report["status"] != TaskStatus.COMPLETED:
        reason = printable(report["error_message"] or "not done yet")
        say(f"the page cannot be had: {reason} ({report['error_type']})")
        return 1
    address = urls.parse(url)
    with existing_store() as lpm:
        page = find_stored_page(lpm, address.url, address.key).page
    made = draft(page)
    if output:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(made.text, encoding="utf-8")
        _say_written(made, output)
    if as_json:
        print_json(made._asdict())
        return 0
    if not output:
        print(made.text, end="")
    _say_found(made)
    return 0


def _say_found(made: "Draft") -> None:
    links, fields = counted(made.items, "link"), counted(len(made.fields), "field")
    say(f"on this page: {links} to items, {fields}")
    for name, value in made.fields.items():
        text = msgspec.json.encode(value).decode()
        say(f"  {printable(name)}: {printable(text[:100])}")


def _check_output(output: Path, force: bool) -> None:
    """Refuse a file that would be no site, before the page is fetched."""
    from crawler.sites import bad_name

    if output.suffix != ".yaml":
        raise UsageError(f"{output}: the name of a site's file must end in .yaml")
    if reason := bad_name(output.stem):
        raise UsageError(f"{output}: {reason}")
    of_sites = config.load().config_dir / "sites"
    if not output.parent.is_dir() and output.parent.absolute() != of_sites.absolute():
        raise UsageError(f"{output}: there is no folder {output.parent}")
    if output.exists() and not force:
        raise UsageError(f"{output} exists; --force replaces it")


def _say_written(made: "Draft", output: Path) -> None:
    say(f"written to {printable(str(output))}")
    if output.stem != made.name:
        say(f"the name of the site is that of its file: {printable(output.stem)}")
    say(f"next: {program()} sites check {argument(str(output))}")
