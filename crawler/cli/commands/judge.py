"""`judge`."""

import click


@click.command()
def judge() -> None:
    """To be written.

    \b
    Example:
      python -m crawler judge
    """
