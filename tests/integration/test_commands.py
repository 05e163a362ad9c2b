"""Single URLs, stored pages, help, speed of starting, and silence towards the Gateway."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from crawler.cli.main import cli
from tests.support.pages import Answer, Pages
from tests.support.site import Site
from tests.support.stack import Folder, opened_by


def test_scrape_shows_the_record_and_raw_gives_the_page(folder: Folder, site: Site) -> None:
    """With no stack a URL is fetched in this process; record and page are in the store."""
    url = site.page(7)
    shown = folder.crawler("scrape", url)
    facts = json.loads(folder.crawler("scrape", url, "--json", "--local").stdout)
    page = folder.crawler("raw", url)
    written = folder.crawler("raw", url, "-o", str(folder.path / "page.html"))

    assert shown.returncode == 0, shown.stderr
    assert "Parcel 7" in shown.stdout
    assert f"python -m crawler raw {url} --open" in shown.stdout
    assert facts["data"]["title"].startswith("Parcel 7")
    assert page.stdout.startswith("<!doctype html>")
    assert written.returncode == 0
    assert (folder.path / "page.html").read_text() == page.stdout
    assert site.hits() == {url.removeprefix(site.url): 2}


@pytest.mark.parametrize(
    ("path", "reason", "attempts"),
    [
        ("/status/404", "http_404", 1),
        ("/close", "connection", 3),
        ("/empty", "empty", 1),
        ("/gzip-bomb", "too_large", 1),
        ("/latin-reason", "http_503", 3),
    ],
)
def test_scrape_says_why_there_is_no_page(
    folder: Folder, site: Site, path: str, reason: str, attempts: int
) -> None:
    """A page that cannot be had gives its reason, after as many attempts as help, and exit code
    1."""
    done = folder.crawler("scrape", site.url + path, "--json")

    facts = json.loads(done.stdout)
    assert done.returncode == 1
    assert (facts["status"], facts["error_type"], facts["attempts"]) == ("failed", reason, attempts)


def test_a_servers_reason_phrase_is_cut(folder: Folder, site: Site) -> None:
    """However much a server has to say, a message has a hundred printable characters of it."""
    done = folder.crawler("scrape", f"{site.url}/odd/reason-20000", "--json")

    message = json.loads(done.stdout)["error_message"]
    assert message.startswith("the server answered 404 \\x1b[31mgone gone")
    assert message.isprintable()
    assert len(message) <= len("the server answered 404 ") + 100


@pytest.mark.parametrize(
    "path", ["/gzip", "/deflate", "/deflate-raw", "/br", "/zstd", "/gzip-gzip", "/chunked"]
)
def test_every_coding_is_read_and_stored_as_received(folder: Folder, site: Site, path: str) -> None:
    """The record comes from the decoded page, and `raw` gives the page back."""
    facts = json.loads(folder.crawler("scrape", site.url + path, "--json").stdout)
    page = folder.crawler("raw", site.url + path).stdout

    assert facts["data"]["title"].startswith("Parcel")
    assert page.startswith("<!doctype html>")


def test_what_is_not_html_is_kept_raw_only(folder: Folder, site: Site) -> None:
    """An image is completed, with an empty record and its bytes."""
    facts = json.loads(folder.crawler("scrape", f"{site.url}/image", "--json").stdout)
    folder.crawler("raw", f"{site.url}/image", "-o", str(folder.path / "image.png"))

    assert (facts["status"], facts["data"]) == ("completed", {})
    assert (folder.path / "image.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("scrape", "ftp://a.example/"), 2),
        (("scrape", "http://user:geheim@a.example:0/"), 2),
        (("raw", "http://a.example/never"), 2),
        (("results", "export", "--output", "x.json"), 2),
        (("bulk", "import"), 2),
        (("bulk", "import", "x.csv", "--queue", "fast"), 2),
        (("nonsense",), 2),
        (("stats",), 2),
    ],
)
def test_bad_commands_are_one_clear_error(folder: Folder, args: tuple[str, ...], code: int) -> None:
    """No traceback, no secret, exit code 2."""
    done = folder.crawler(*args)
    assert done.returncode == code
    assert done.stderr
    assert "Traceback" not in done.stderr
    assert "geheim" not in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("audit", "--since"),
        ("replay", "--since"),
        ("results", "export", "-o", "x.csv", "--since"),
        ("results", "bundle", "-o", "x", "--since"),
        ("listings", "list", "--since"),
        ("listings", "list", "--changed-since"),
        ("listings", "changes", "--since"),
    ],
)
def test_nothing_can_be_since_a_time_in_the_future(
    folder: Folder, command: tuple[str, ...]
) -> None:
    """It is a typing error, and finding nothing would hide it."""
    done = folder.crawler(*command, "2999-01-01")

    assert done.returncode == 2
    assert f"'{command[-1]}': '2999-01-01' is in the future" in done.stderr


def test_an_unknown_setting_is_code_2(folder: Folder) -> None:
    """A misspelt variable is named with the nearest right one."""
    done = folder.crawler("status", CRAWLER_WINDO="5")
    assert done.returncode == 2
    assert "did you mean CRAWLER_WINDOW?" in done.stderr


def test_an_unreachable_redis_is_code_3(folder: Folder) -> None:
    """A stack on a Redis that does not answer ends with 3, and says so."""
    done = folder.crawler("up", REDIS_URL="redis://127.0.0.1:1/0")
    assert done.returncode == 3
    assert "does not answer" in done.stderr


def test_status_of_an_empty_store_is_all_zeros(folder: Folder) -> None:
    """`status --json` has its whole shape with no job there."""
    folder.make_store()
    facts = folder.status()
    shape = {
        "books",
        "jobs",
        "queues",
        "pids",
        "disk",
        "redis",
        "job_facts",
        "domains",
        "rate",
        "gateway",
        "trouble",
    }
    shape |= {"waits", "store", "unaccounted", "config_faults", "schedules", "autoscale"}
    assert set(facts) == shape
    assert set(facts["books"].values()) == {0}
    assert facts["queues"] == {"urgent": 0, "default": 0, "browser": 0}
    assert facts["pids"]["workers"] == []


@pytest.mark.parametrize(
    ("form", "ending"), [("json", "json"), ("jsonl", "jsonl"), ("jsonl", "out")]
)
def test_export_writes_all_results(folder: Folder, site: Site, form: str, ending: str) -> None:
    """Every result is in the file, in the documented shape; a file that cannot be written is a
    clear error."""
    for n in range(3):
        folder.crawler("scrape", site.page(n))
    target = folder.path / f"results.{ending}"

    done = folder.crawler("results", "export", "--format", form, "--output", str(target))
    refused = folder.crawler(
        "results", "export", "--output", str(folder.path / "no" / "such" / "folder.json")
    )

    text = target.read_text()
    results = (
        json.loads(text) if form == "json" else [json.loads(line) for line in text.splitlines()]
    )
    assert done.stdout.strip() == f"Exported 3 results to {target}"
    assert [result["url"] for result in results] == [site.page(n) for n in range(3)]
    assert refused.returncode == 2
    assert [path.name for path in folder.path.iterdir() if path.name.startswith(".")] == []


def test_export_writes_where_it_is_told_and_nowhere_else(folder: Folder, site: Site) -> None:
    """`-` is stdout, a link is followed, a device or folder is refused, and so is an ending that
    names no format."""
    folder.crawler("scrape", site.page(1))
    real, link = folder.path / "real.jsonl", folder.path / "link.jsonl"
    link.symlink_to(real)

    shown = folder.crawler("results", "export", "--format", "jsonl", "--output", "-")
    linked = folder.crawler("results", "export", "--output", str(link))
    refused = [
        folder.crawler("results", "export", "--output", name).returncode
        for name in ("x.doc", "x", "/dev/null")
    ]

    assert json.loads(shown.stdout)["url"] == site.page(1)
    assert linked.returncode == 0
    assert link.is_symlink()
    assert json.loads(real.read_text())["url"] == site.page(1)
    assert refused == [2, 2, 2]
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("name", ["", " ", "x" * 101, "a\nb", "\x1b[31m"])
def test_a_job_has_a_decent_name(folder: Folder, name: str) -> None:
    """Names that are empty, endless or could drive a terminal are refused."""
    done = folder.crawler("bulk", "import", "x.csv", "--job", name)
    assert done.returncode == 2
    assert "1 to 100 characters" in done.stderr


def commands(group: click.Group, words: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command that one can type, with its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if not command.hidden:
            yield f"{words}{name}", command
            if isinstance(command, click.Group):
                yield from commands(command, f"{words}{name} ")


@pytest.mark.parametrize(("words", "command"), [("", cli), *commands(cli)])
def test_every_command_has_help_with_an_example(words: str, command: click.Command) -> None:
    """--help explains and shows how it is typed; whatever prints facts can print them as JSON."""
    text = command.get_help(click.Context(command, info_name=words))
    assert f"python -m crawler {words}".strip() in text.split("Example:")[1]
    silent = {"up", "down", "worker", "demo", "raw", "job pause", "job resume", "job cancel"}
    silent |= {"gateway serve", "gateway tell", "completion", "shell", "serve token remove", "mcp"}
    silent.add("results follow")  # what it writes is JSON anyway
    assert isinstance(command, click.Group) or words in silent or "--json" in text


NUMBERS = [
    pytest.param(option, id=f"{words} {option.opts[0]}")
    for words, command in commands(cli)
    for option in command.params
    if isinstance(option.type, click.types.FloatParamType)
]


@pytest.mark.parametrize("option", NUMBERS)
@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999"])
def test_what_is_no_number_is_refused(option: click.Parameter, text: str) -> None:
    """Also where no comparison with a limit would refuse it."""
    with pytest.raises(click.BadParameter):
        option.type_cast_value(click.Context(cli), text)


def test_light_commands_do_not_load_the_heavy_libraries(folder: Folder) -> None:
    """`--help` and `results list` start without Celery and redis."""
    folder.make_store()
    program = (
        "import sys\nfrom crawler.cli.main import cli\n"
        "for args in (['--help'], ['results', 'list'], ['bulk', '--help']):\n"
        "    cli.main(args, standalone_mode=False)\n"
        "heavy = {'celery', 'kombu', 'redis', 'fastapi', 'rich', 'psutil'}\n"
        "print('LOADED', sorted(heavy & set(sys.modules)))"
    )
    argv = [sys.executable, "-c", program]
    done = subprocess.run(
        argv,
        cwd=folder.path,
        env=folder.env,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "LOADED []" in done.stdout


@pytest.mark.parametrize("switch", [{"STANDALONE": "true"}, {"GATEWAY_SYNC": "disabled"}])
def test_standalone_never_speaks_to_a_gateway(
    folder: Folder, site: Site, switch: dict[str, str]
) -> None:
    """With a Gateway configured and standalone mode on, a whole run makes no connection to it."""
    # Given a Gateway that notes every connection
    canary = socket.create_server(("127.0.0.1", 0))
    seen: list[str] = []

    def listen() -> None:
        while True:
            try:
                connection, address = canary.accept()
            except OSError:
                return
            seen.append(str(address))
            connection.close()

    threading.Thread(target=listen, daemon=True).start()
    folder.env |= switch | {
        "GATEWAY_URL": f"http://127.0.0.1:{canary.getsockname()[1]}",
        "GATEWAY_TOKEN": "t",
    }

    # When a job is run
    done = folder.crawler(
        "run", str(folder.write("p.txt", [site.page(n) for n in range(10)])), "--workers", "1"
    )
    canary.close()

    # Then nothing came, and the results are held
    assert done.returncode == 0, done.stderr
    assert seen == []
    lpm = folder.lpm()
    assert lpm.store.db.all("SELECT DISTINCT state FROM outbox") == [("held",)]
    assert lpm.get_unsynced_results() == []
    lpm.close()


def test_a_project_folder_with_spaces_works(tmp_path: Path, site: Site) -> None:
    """The data folder may have spaces and signs in its path."""
    path = tmp_path / "my data; (новая) folder"
    path.mkdir()
    folder = Folder(path)
    try:
        done = folder.crawler("run", str(folder.write("p.txt", [site.page(1)])), "--workers", "1")
        assert done.returncode == 0, done.stderr
    finally:
        folder.stop()


def test_a_reader_that_leaves_is_no_failure(folder: Folder) -> None:
    """`… | head -1` ends quietly with 0, whatever the command."""
    folder.crawler(
        "bulk",
        "import",
        str(folder.write("a.txt", [f"http://127.0.0.1:9/{n}" for n in range(3000)])),
    )
    for words in ("tasks list --limit 3000", "tasks list --json", "job list"):
        shell = f"{sys.executable} -m crawler {words} | true; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(
            ["bash", "-c", shell], cwd=folder.path, env=folder.env, capture_output=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, b""), words


def test_names_from_outside_are_inert(folder: Folder) -> None:
    """Escapes in a name reach no terminal, bytes that are no text are one clear line, and secrets
    are left out."""
    escape = folder.crawler("job", "show", "ev\x1b]0;pwned\x07")
    strange = folder.crawler("bulk", "import", "q\udcff.txt")
    secret = folder.crawler("scrape", "http://usr:S3cret@127.0.0.1:xx/nope")

    for done in (escape, strange, secret):
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "\x1b" not in done.stderr
    assert "S3cret" not in secret.stderr


def test_a_file_whose_name_is_no_text_is_imported(folder: Folder) -> None:
    """Its name is kept as far as it can be."""
    (folder.path / "q\udcff.txt").write_text("http://127.0.0.1:9/\n")
    done = folder.crawler("bulk", "import", "q\udcff.txt")
    assert done.returncode == 0, done.stderr
    assert folder.books().accepted == 1


def test_an_opened_page_is_sealed(folder: Folder, pages: Pages) -> None:
    """`raw --open` shows a page in a frame without rights, whatever stands in it; the page itself
    stays as it came."""
    body = (
        '"></iframe><script>fetch("http://127.0.0.1:1/")</script><LINK rel=preconnect '
        "href=http://127.0.0.1:1>\xe9"
    )
    words = "A parcel behind the mill, surveyed and drawn. " * 20
    pages.answers["/page"] = Answer(
        (body + words).encode("latin-1"), 200, {"Content-Type": "text/html; charset=latin-1"}
    )
    folder.crawler("scrape", f"{pages.url}/page")

    shown = opened_by(folder, f"{pages.url}/page").read_text()

    outside, frame, inside = shown.partition('<iframe sandbox="" srcdoc="')
    assert frame
    assert "default-src 'none'" in outside
    assert inside.startswith(
        "&quot;&gt;&lt;/iframe&gt;&lt;script&gt;fetch(&quot;http://127.0.0.1:1/&quot;)"
    )
    assert inside.count('"') == 1
    assert "link rel" not in inside.lower().replace("no-link rel", "")
    assert "é" in inside
    folder.crawler("raw", f"{pages.url}/page", "-o", str(folder.path / "page"))
    assert (folder.path / "page").read_bytes() == (body + words).encode("latin-1")
