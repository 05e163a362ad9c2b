"""`audit`."""

import click


@click.command()
def audit() -> None:
    """To be written.

    \b
    Example:
      python -m crawler audit
    """
