"""`sites`: list, check, show and draft the files of sites; `sites crawl` has its own module."""

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from crawler import config, times, urls
from crawler.cli.options import data_dir_option, json_option, session_options
from crawler.cli.output import existing_store, print_json, say
from crawler.config import Settings, argument, program
from crawler.errors import InputError, UsageError
from crawler.logs import counted, printable
from crawler.models import TaskStatus

if TYPE_CHECKING:
    from crawler.cli.schedules import ScheduleFacts
    from crawler.fetch.session import Session
    from crawler.sites import Site, Sites
    from crawler.sites.draft import Draft

_HIDDEN = "***"


class _SitesGroup(click.Group):
    """Imports `sites crawl` only when it is needed, which keeps the other commands fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), "crawl"])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name != "crawl":
            return super().get_command(ctx, cmd_name)
        from crawler.cli.commands.sites_crawl import crawl

        return crawl


@click.group(cls=_SitesGroup)
def sites() -> None:
    """Crawl sites by name; list, check, show and draft their files.

    \b
    Example:
      python -m crawler sites new https://county.example/parcels --output config/sites/county.yaml
      python -m crawler sites check
      python -m crawler sites crawl county imoti --parallel
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
@click.argument("names", nargs=-1, metavar="[FILE|SITE]...")
@json_option
def check(names: tuple[str, ...], as_json: bool) -> int:
    """Check all files in config/, or only each FILE and the files of each SITE, and print every
    fault with its line.

    Exits with 2 if there is one. The secrets files that logins name are checked, too.

    \b
    Example:
      python -m crawler sites check
      python -m crawler sites check county draft.yaml
    """
    from crawler.sites import check_secrets, faults, file_faults

    settings = config.load()
    folder, rate = settings.config_dir, settings.rate
    files, found = _files_to_check(settings, names)
    for path in files:
        found += file_faults(path, folder, rate)
    if not names:
        found = faults(folder, rate, run=True)
    exposed: list[Path] = []
    if files or not names:  # without files it checks those of all sites
        secrets = check_secrets(folder, rate, files)
        found, exposed = found + secrets.faults, secrets.exposed
    for file in exposed:
        name = printable(str(file))
        say(f"warning: others than its owner may use {name}: chmod 600 {argument(str(file))}")
    if not found and not names:
        _tell_of_files(_load(settings))
    if as_json:
        print_json(
            [{"file": each.path, "line": each.line, "reason": each.reason} for each in found]
        )
    else:
        for each in found:
            print(printable(str(each)))
        if not found:
            good = counted(len(files), "file")
            if not names:
                good = counted(len(_load(settings).names), "site")
            print(f"no faults ({good})")
    return UsageError.exit_code if found else 0


def _files_to_check(
    settings: Settings, names: Sequence[str]
) -> tuple[list[Path], list[InputError]]:
    """Return the files that are named, by their paths or by their sites, and what is neither."""
    files: list[Path] = []
    unknown: list[InputError] = []
    for name in names:
        path = Path(name)
        if path.is_file():
            files.append(path)
        elif of_site := _files_of_site(settings, name):
            files += of_site
        elif path.is_dir():
            reason = "this is a folder; name files or sites, or nothing to check all of config/"
            unknown.append(InputError(name, reason))
        else:
            unknown.append(InputError(name, "there is no such file, and no site of this name"))
    return list(dict.fromkeys(files)), unknown


def _files_of_site(settings: Settings, name: str) -> list[Path]:
    """Return the files of a site, also of one that cannot be loaded."""
    from crawler.sites import START_URLS, bad_name, scrapers

    name, folder = name.strip().lower(), settings.config_dir
    if bad_name(name):
        return []
    own = (f"sites/{name}.yaml", f"sites/{name}.yml", f"{scrapers.FOLDER}/{name}.py")
    if found := [folder / each for each in own if (folder / each).is_file()]:
        return found
    with suppress(InputError):
        site = _load(settings).named(name)
        if site:
            return [Path(site.scraper.path) if site.scraper else folder / START_URLS]
    return []


def _tell_of_files(known: "Sites") -> None:
    """Say which sites have files that nothing fetches for the rows of their `url_template`."""
    for name in known.templates:
        if known.find(name).files:
            say(f"note: files of {name} are fetched by crawls only, not for rows of `bulk import`")


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
    return known.find(name)


@sites.command()
@click.argument("url")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the draft to this file, such as config/sites/county.yaml.",
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@session_options
@json_option
@data_dir_option
def new(
    url: str, output: Path | None, force: bool, session: "Session | None", as_json: bool
) -> int:
    """Fetch URL, and draft the file of its site from that page.

    A list gives the links to its items and to its next page; an item gives the fields of its
    JSON-LD and of its labels. The draft is loaded and tried on the page before it is shown. The
    page is fetched as by `scrape`, and stored. For a page behind a login, write a file with `hosts`
    and `login` first, and give its secrets with --secrets.

    \b
    Example:
      python -m crawler sites new https://county.example/parcels
      python -m crawler sites new https://county.example/parcel/1 --output config/sites/county.yaml
    """
    from crawler.cli.commands.scrape import fetch_now, require_login
    from crawler.scraping.stored import find_stored_page
    from crawler.sites.draft import draft

    if output:
        _check_output(output, force)
    settings = config.load()
    address = urls.parse(url)
    known = _load(settings)
    site = known.of(address.url)
    require_login(known, address.url, session)
    report = fetch_now(settings, url, session=session)
    if report["status"] != TaskStatus.COMPLETED:
        reason = printable(report["error_message"] or "not done yet")
        say(f"the page cannot be had: {reason} ({report['error_type']})")
        return 1
    with existing_store() as lpm:
        page = find_stored_page(lpm, address.url, address.key).page
    made = draft(page)
    if site.login:
        copied = f"no login: copy it from the file of the site {site.name}"
        made = made._replace(lacks=[*made.lacks, copied])
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
    for what in made.lacks:
        say(f"the draft has {printable(what)}")


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


@sites.command()
@json_option
@data_dir_option
def schedules(as_json: bool) -> int:
    """List the schedules of config/schedules.yaml: when each runs, and what came of its last run.

    While that file is broken, only the last runs are known. Exits with 2 if a file is broken.

    \b
    Example:
      python -m crawler sites schedules
    """
    from crawler.cli.schedules import gather_schedules
    from crawler.stack import is_beat_running

    settings = config.load()
    found, faults = gather_schedules(settings)
    beat = is_beat_running(settings.data_dir)
    for fault in faults:
        say(f"Error: {fault}")
    code = UsageError.exit_code if faults else 0
    if as_json:
        print_json({"beat": beat, "schedules": found, "faults": [str(each) for each in faults]})
        return code
    now, tz = time.time(), times.zone(settings.timezone)
    for each in found:
        _print_schedule(each, now, tz)
    if not found and not faults:
        print(f"no schedules in {printable(str(settings.config_dir / 'schedules.yaml'))}")
    elif not beat:
        say(f"no beat runs, so no schedule does; start one with: {program()} up --beat")
    return code


def _print_schedule(each: "ScheduleFacts", now: float, tz: tzinfo | None) -> None:
    from crawler.cli.schedules import problem_lines

    title, last = [printable(each.name)], "not yet"
    if each.rule and each.sites is not None:
        title += [each.rule, ", ".join(each.sites)]
    if each.last_run:
        last = times.until(each.last_run, now, tz)
    if each.next_run:
        last += f"; next: {times.until(each.next_run, now, tz)}"
    print("  ".join(title))
    print(f"  last run: {last}")
    for line in (*each.jobs, *problem_lines(each.problems)):
        print(f"    {line}")
