"""`domains`."""

import click


@click.command()
def domains() -> None:
    """To be written.

    \b
    Example:
      python -m crawler domains
    """
