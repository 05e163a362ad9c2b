"""A shell completes what is typed behind `crawler`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.stack import Folder

PROGRAM = Path(sys.executable).with_name("crawler")


def completed(folder: Folder, words: str, shell: str = "bash") -> list[str]:
    """What a shell is told for a line; its last word is the one to complete."""
    count = len(words.split(" ")) - 1
    asks = {"_CRAWLER_COMPLETE": f"{shell}_complete", "COMP_WORDS": words, "COMP_CWORD": str(count)}
    if shell == "fish":
        asks["COMP_CWORD"] = words.rsplit(" ", maxsplit=1)[-1]
    done = subprocess.run(
        [str(PROGRAM)],
        cwd=folder.path,
        env=folder.env | asks,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


def test_bash_completes_commands_and_options(folder: Folder) -> None:
    """The script, as bash reads it, completes a command, one of a group, an option and a choice."""
    script = folder.crawler("completion", "bash").stdout
    lines = [
        ["crawler", "resu"],
        ["crawler", "job", "ver"],
        ["crawler", "tasks", "list", "--rea"],
        ["crawler", "bulk", "import", "x.csv", "--queue", "u"],
    ]
    asked = "\n".join(
        f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; COMPREPLY=(); "
        '_crawler_completion crawler; echo "${COMPREPLY[*]}"'
        for words in lines
    )
    path = f"{PROGRAM.parent}:{folder.env['PATH']}"

    done = subprocess.run(
        ["bash", "-c", f"{script}\n{asked}"],
        cwd=folder.path, env=folder.env | {"PATH": path}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip

    assert done.stdout.splitlines() == ["resume results", "verify", "--reason", "urgent"], (
        done.stderr
    )
    assert not folder.data.exists()


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_names_with_their_help(folder: Folder, shell: str) -> None:
    """zsh and fish show a line on each command beside its name."""
    told = "\n".join(
        completed(folder, "crawler ver", shell) + completed(folder, "crawler job ver", shell)
    )
    script = folder.crawler("completion", shell)

    assert "verify" in told
    assert "Print a job's receipt" in told
    assert "_CRAWLER_COMPLETE" in script.stdout


def test_completing_a_command_imports_none(folder: Folder) -> None:
    """Asked for the names of commands, the program loads no more than for --help."""
    program = (
        "import json, os, sys\n"
        "from crawler.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(json.dumps([name for name in sys.modules if "
        "name.startswith('crawler.cli.commands.')]))"
    )
    asks = {"_CRAWLER_COMPLETE": "bash_complete", "COMP_WORDS": "crawler ", "COMP_CWORD": "1"}

    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder.path, env=folder.env | asks, capture_output=True, text=True, check=True,
    )  # fmt: skip

    *names, modules = done.stdout.splitlines()
    assert "plain,bulk" in names
    assert "plain,agent" not in names
    assert json.loads(modules) == []
