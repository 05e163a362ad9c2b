"""`domains`: the live state of each domain, as all workers share it, and how to forget it."""

import difflib
import time
from datetime import tzinfo
from typing import TYPE_CHECKING

import click

from crawler import config, times
from crawler.cli.output import data_dir_option, json_option, print_json
from crawler.config import program
from crawler.errors import UsageError
from crawler.logs import counted, printable
from crawler.waits import describe_limits, open_rate_limiter

if TYPE_CHECKING:
    from crawler.resilience.permit import Domain


@click.group(invoke_without_command=True)
@json_option
@data_dir_option
@click.pass_context
def domains(context: click.Context, as_json: bool) -> None:
    """What is known of each domain: limits, requests in flight, circuit, and what its server asked
    for.

    \b
    Example:
      python -m crawler domains
      python -m crawler domains reset county.example
    """
    if context.invoked_subcommand is None:
        _list(as_json)


@domains.command("list")
@json_option
@data_dir_option
def list_(as_json: bool) -> None:
    """List all domains, those in trouble first; an idle one is forgotten after some hours.

    \b
    Example:
      python -m crawler domains list --json
    """
    _list(as_json)


@domains.command()
@click.argument("domain")
@json_option
@data_dir_option
def reset(domain: str, as_json: bool) -> None:
    """Close the circuit of DOMAIN and forget its Retry-After, Crawl-delay and slowing; its limits
    go on to hold.

    \b
    Example:
      python -m crawler domains reset county.example
    """
    with open_rate_limiter(config.load()) as shared:
        if not shared.reset(domain):
            names = [known.domain for known in shared.domains()]
            near = difflib.get_close_matches(domain, names, n=1, cutoff=0.3)
            hint = f"; did you mean {near[0]}?" if near else "" if names else "; there are none yet"
            raise UsageError(f"nothing is known of a domain {domain}{hint}")
    if as_json:
        print_json({"reset": domain})
    else:
        print(f"Reset {printable(domain)}: it may be asked again, within its limits")


def _list(as_json: bool) -> None:
    with open_rate_limiter(config.load()) as shared:
        found = shared.domains(time.time())
    if as_json:
        print_json(found)
        return
    if not found:
        print(
            "Nothing is known of any domain yet, or all was forgotten; workers note here what they meet"
        )
        return
    now, tz = time.time(), times.zone(config.load().timezone)
    found.sort(key=lambda each: (each.state == "CLOSED", each.not_before is None, each.domain))
    rows = [
        (
            printable(e.domain),
            describe_limits(e),
            str(e.in_flight),
            "; ".join(state_in_words(e, now, tz)),
        )
        for e in found
    ]
    heads = ("domain", "limits", "in flight", "state")
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(3)]
    for name, limit, in_flight, state in [heads, *rows]:
        print(f"{name:{widths[0]}}  {limit:{widths[1]}}  {in_flight:>{widths[2]}}  {state}")
    if any(each.state != "CLOSED" for each in found):
        print(
            f"A circuit closes by itself when a probe succeeds; sooner with: {program()} domains reset DOMAIN"
        )


def state_in_words(known: "Domain", now: float, tz: tzinfo | None) -> list[str]:
    """What the matter is, if anything is."""
    because = f" because {printable(known.last_block)}" if known.last_block else ""
    parts = []
    if known.state == "OPEN" and known.open_until is not None:
        parts.append(
            f"circuit open until {times.until(known.open_until, now, tz)},{because}".rstrip(",")
        )
    elif known.state == "HALF_OPEN":
        parts.append(f"circuit half open: one probe at a time,{because}".rstrip(","))
    elif known.failures:
        blocks = counted(known.failures, "block")
        parts.append(f"{blocks} in a row, the last {printable(known.last_block)}")
    if known.not_before is not None:
        why = printable(known.because) or "its server said Retry-After"
        parts.append(f"{why}: until {times.until(known.not_before, now, tz)}")
    if known.slowed > 1.005:
        parts.append(f"slowed down to 1/{known.slowed:.2g} of its rate")
    return parts or ["well"]
