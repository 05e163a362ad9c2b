"""What a command proposes can be typed as it stands, and what does not exist is named with what
does."""

import ast
import re
import shlex
from pathlib import Path

import pytest

import crawler
from crawler.config import program
from tests.support.site import Site
from tests.support.stack import Folder

PACKAGE = Path(crawler.__file__).parent
STORE = "the store's"
"""A name that a shell would take apart."""
HINT = re.compile(
    r"python -m crawler --data-dir .*?(?=;|\)|, or|$| goes on| does| starts| tells| makes| has)",
    re.M,
)


def test_no_proposed_command_leaves_the_store_out() -> None:
    """Every text that proposes a command gets its beginning from `program`, which names the
    store."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        found += [
            f"{path.relative_to(PACKAGE)}: {node.value}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            if "python -m crawler " in f"{node.value} " and id(node) not in docs
        ]
    # `program` itself, the name of the program in its usage, and a command for a container, which
    # has its own store.
    assert [text.partition(":")[0] for text in found] == [
        "cli/main.py",
        "config.py",
        "config.py",
        "db/guard.py",
    ]
    assert program(Path("/my store")) == "python -m crawler --data-dir '/my store'"
    assert program(environ={}) == "python -m crawler"


def test_a_job_whose_name_begins_with_a_dash_is_no_option(folder: Folder, site: Site) -> None:
    """The command that continues a paused job works as printed, whatever the job is called."""
    (folder.path / "list.txt").write_text(f"{site.page(1)}\n")
    folder.crawler("bulk", "import", "list.txt", "--job", "-x y")

    paused = folder.crawler("job", "pause", "--", "-x y")
    shown = folder.crawler("job", "show", "--", "-x y")
    hint = paused.stdout.partition("continue with: ")[2].strip()
    resumed = folder.crawler(*shlex.split(hint.removeprefix("python -m crawler ")))

    assert hint.endswith("job resume -- '-x y'")
    assert hint in shown.stdout
    assert resumed.returncode == 0, resumed.stderr


def test_proposed_commands_work_as_typed(folder: Folder, site: Site) -> None:
    """With a store and a job whose names need quotes, what is printed leads to the same store and
    the same job."""
    file = folder.path / "it's a list.txt"
    file.write_text(f"{site.page(1)}\n{site.page(2)}\n")
    at = ("--data-dir", STORE)

    texts = [
        folder.crawler(*at, *command)
        for command in (
            ("bulk", "import", file.name),
            ("status",),
            ("domains",),
            ("job", "pause", file.name),
            ("job", "resume", file.name),
            ("job", "cancel", file.name),
            ("retry", "--skipped"),
        )
    ]
    hints = {hint for done in texts for hint in HINT.findall(done.stdout + done.stderr)}

    assert {shlex.split(hint)[5] for hint in hints} == {"up", "resume", "job", "retry"}
    for hint in sorted(hints):
        words = shlex.split(hint)
        assert words[:5] == ["python", "-m", "crawler", "--data-dir", STORE]
        if words[5] == "job":
            assert words[6:] == ["resume", file.name]
        if words[5] == "retry":
            assert words[6:] == ["--skipped", "--reason", "cancelled", "--job", file.name]


@pytest.mark.parametrize(
    "command", ["status", "status --watch", "status --json", "resume", "results list", "job list"]
)
def test_a_folder_without_a_store_is_an_error(folder: Folder, command: str) -> None:
    """No command takes a wrong folder for an empty store, and none makes a store there."""
    done = folder.crawler(*command.split())

    assert (done.returncode, done.stdout) == (2, "")
    assert f"there is no store in {folder.data}" in done.stderr
    assert not folder.data.exists()


def test_an_unknown_reason_names_those_there_are(folder: Folder, site: Site) -> None:
    """`tasks list` and `retry` tell a slip of the finger from a job without such failures."""
    (folder.path / "few.txt").write_text(
        f"{site.page(1)}\n{site.url}/status/404\n{site.url}/status/410\n"
    )
    (folder.path / "good.txt").write_text(f"{site.page(3)}\n")
    assert folder.crawler("run", "few.txt").returncode == 1
    assert folder.crawler("run", "good.txt").returncode == 0

    listed = folder.crawler("tasks", "list", "--reason", "http404")
    retried = folder.crawler("retry", "--failed", "--reason", "http404")
    none_here = folder.crawler("tasks", "list", "--reason", "http_404", "--job", "good.txt")

    for done in (listed, retried):
        assert done.returncode == 2
        assert (
            "no task has the reason 'http404'; known reasons: http_404 (1), http_410 (1)"
            in done.stderr
        )
    assert (none_here.returncode, none_here.stdout) == (0, "")
