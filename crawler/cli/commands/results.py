"""`results`: what was collected."""

from pathlib import Path

import click

from crawler import config
from crawler import results as store
from crawler.cli.output import data_dir_option, json_option, print_json
from crawler.errors import UsageError
from crawler.lpm import LocalPersistenceManager


@click.group()
def results() -> None:
    """List and export results.

    \b
    Example:
      python -m crawler results list
      python -m crawler results export --format jsonl --output results.jsonl
    """


@results.command("list")
@json_option
@data_dir_option
def list_(as_json: bool) -> None:
    """Say how many results there are, and where.

    \b
    Example:
      python -m crawler results list
    """
    lpm = LocalPersistenceManager(config.load().data_dir)
    count = store.count_pending(lpm)
    if as_json:
        print_json({"results": count, "folder": str(lpm.pending)})
    else:
        print(f"{count} results in {lpm.pending}/")


@results.command()
@click.option("--output", "-o", type=click.Path(path_type=Path), required=True, help="The file, or - for stdout.")
@click.option("--format", "form", type=click.Choice(sorted(store.FORMATS)), help="The format (default: by the ending).")
@json_option
@data_dir_option
def export(output: Path, form: str | None, as_json: bool) -> None:
    """Write all results to one file, whole or not at all.

    \b
    Example:
      python -m crawler results export --format jsonl --output results.jsonl
    """
    settings = config.load()
    if not LocalPersistenceManager.exists(settings.data_dir):
        raise UsageError(f"there is no store in {settings.data_dir.absolute()}")
    lpm = LocalPersistenceManager(settings.data_dir)
    form = form or output.suffix[1:]
    if form not in store.FORMATS:
        raise click.UsageError(f"the ending of {output} names no format; add --format {' or '.join(store.FORMATS)}")
    count = store.export(lpm.results(), output, form)
    lpm.close()
    if as_json and str(output) != "-":
        print_json({"results": count, "file": str(output), "format": form})
    elif str(output) != "-":
        print(f"Exported {count} results to {output}")


from crawler.cli.commands import keep  # noqa: E402 # what it attaches to stands above

for command in (keep.archive, keep.bundle, keep.unbundle):
    results.add_command(command)
