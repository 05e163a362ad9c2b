"""`audit`: what was really asked of each domain."""

import click

from crawler import config, times
from crawler.cli.output import data_dir_option, job_of, json_option, print_json, stored
from crawler.cli.types import only_job_option, since_option
from crawler.logs import printable


@click.command()
@click.argument("domain", required=False)
@only_job_option
@since_option
@json_option
@data_dir_option
def audit(domain: str | None, job_name: str | None, since: float | None, as_json: bool) -> int:
    """Show the true request rate of each domain, or of DOMAIN minute by minute, and any breach of
    its limit.

    It rests on what workers noted of every request they made: pages, redirects, robots.txt. Exits
    with 1 where a limit was broken.

    \b
    Example:
      python -m crawler audit county.example --since 2h
    """
    from crawler.history import audit as audits

    tz = times.zone(config.load().timezone)
    with stored() as lpm:
        found = audits(lpm, domain, job_of(lpm, job_name) if job_name else None, since)
        now = lpm.now()
    broken = any(each.breaches for each in found)
    if as_json:
        print_json(found)
        return int(broken)
    if not found:
        print(
            f"No request to {printable(domain)} was noted" if domain else "No request was noted yet"
        )
        return 0
    for each in found:
        unit = {1.0: "second", 60.0: "minute", 3600.0: "hour"}[each.window_s]
        print(
            f"{printable(each.domain)}: {each.requests:,} requests, {each.rate:.2f}/s on average; at most "
            f"{each.most_in_window:,} within a {unit} and {each.most_at_a_time:,} at a time "
            f"(limit: {'; '.join(each.limits)})"
        )
        if each.unrecorded:
            print(f"  and up to {each.unrecorded:,} of killed workers, which nobody noted")
        if domain:
            for minute in each.minutes:
                print(
                    f"  {times.show(minute.at, now, tz):>20}  {minute.requests:>6,} requests, at most "
                    f"{minute.most_in_window:,} within a {unit}, {minute.most_at_a_time:,} at a time"
                )
        for breach in each.breaches:
            print(
                f"  BREACH {times.show(breach.at, now, tz)}: {breach.what} ({breach.times:,} times)"
            )
    if not broken:
        print("No limit was broken.")
    return int(broken)
