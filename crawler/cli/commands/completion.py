"""`completion`: have a shell complete commands and options."""

import click
from click.shell_completion import get_completion_class

from crawler.cli.main import COMPLETE, cli
from crawler.errors import UsageError


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that has SHELL complete what is typed behind `crawler`.

    It works for the program `crawler`, not for `python -m crawler`. A line in the shell's own file
    makes it last: ~/.bashrc, ~/.zshrc or ~/.config/fish/config.fish.

    \b
    Example:
      source <(python -m crawler completion bash)
      source <(python -m crawler completion zsh)
      python -m crawler completion fish | source
    """
    kind = get_completion_class(shell)
    assert kind is not None, shell
    try:
        script = kind(cli, {}, "crawler", COMPLETE).source()
    except RuntimeError as error:  # a bash that is too old, or none
        raise UsageError(str(error)) from None
    print(script)
