"""Secrets files that the logins of sites name: what is wrong with them is told before a crawl."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from crawler import crawls
from crawler.config import Settings
from crawler.doctor import exit_code
from crawler.errors import InputError
from crawler.sites import check_secrets, faults, file_faults, load
from tests.support.patient import look, of

LOGIN = """hosts: a.example
start: http://a.example/
login:
  url: http://a.example/in
  secrets: county.txt
  form: {values: {user: $user, password: $password}}
"""
GOOD = "user=ada\npassword=secret words\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config folder with a site that signs in, and its secrets."""
    folder = tmp_path / "config"
    (folder / "sites").mkdir(parents=True)
    (folder / "sites" / "county.yaml").write_text(LOGIN)
    write(folder, GOOD)
    return folder


def write(config: Path, text: str, mode: int = 0o600) -> None:
    (config / "county.txt").write_text(text)
    (config / "county.txt").chmod(mode)


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, "cannot be read (No such file or directory)"),
    "a folder": (make_folder, "is not a regular file"),
    "a pipe": (make_pipe, "is not a regular file"),
    "no line of secrets": (lambda path: path.write_text("words\n"), "line 1: must be name=value"),
    "without a name": (lambda path: path.write_text("user=ada\n"), "lacks $password, which"),
    "empty": (lambda path: path.write_text(""), "lacks $user, $password, which"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_secrets_file_is_a_fault_of_its_site(config: Path, case: str) -> None:
    """With the file of the site and the line of its login; loading the sites reads no secrets."""
    spoil, reason = BROKEN[case]
    spoil(config / "county.txt")
    site = config / "sites" / "county.yaml"

    [fault] = check_secrets(config).faults

    assert (fault.path, fault.line) == (str(site), 3)
    assert fault.reason.startswith(f"login.secrets: {config / 'county.txt'}")
    assert reason in fault.reason
    assert "secret words" not in str(fault)
    assert [*map(str, check_secrets(config, only=[site]).faults)] == [str(fault)]
    assert check_secrets(config, only=[config / "start_urls.yaml"]).faults == []
    assert faults(config) == file_faults(site, config) == []
    assert load(config).find("county").login
    found = look(config.parent / "data", CRAWLER_CONFIG_DIR=str(config))
    assert of(found, "sites", "wrong") == [str(fault)]
    assert exit_code(found) == 1


def test_a_file_elsewhere_is_checked_with_its_secrets(config: Path) -> None:
    """A draft names a file of the config folder, too."""
    draft = config.parent / "draft.yaml"
    draft.write_text(LOGIN.replace("county.txt", "draft.txt"))

    [fault] = check_secrets(config, only=[draft]).faults

    assert fault.path == str(draft)
    assert "draft.txt" in fault.reason


@pytest.mark.parametrize(
    ("mode", "exposed"), [(0o600, False), (0o400, False), (0o640, True), (0o602, True)]
)
def test_secrets_that_others_may_use_are_a_note(config: Path, mode: int, exposed: bool) -> None:
    """They are no fault: the doctor names the command that helps."""
    write(config, GOOD, mode)

    checked = check_secrets(config)
    found = look(config.parent / "data", CRAWLER_CONFIG_DIR=str(config))

    assert checked.faults == []
    assert of(found, "sites", "wrong") == []
    assert checked.exposed == [config / "county.txt"] * exposed
    fixes = [each.fix for each in found if each.check == "sites" and each.state == "note"]
    assert fixes == [f"chmod 600 {config / 'county.txt'}"] * exposed


def test_a_crawl_that_lacks_its_secrets_names_the_site_and_the_key(config: Path) -> None:
    """Nobody has typed the name of that file, so its own name alone says little."""
    (config / "county.txt").unlink()
    settings = Settings(data_dir=config.parent / "data", config_dir=config)
    plan = crawls.plan_site(load(config), "county")

    with pytest.raises(InputError) as told:
        crawls.begin(settings, plan)

    assert str(told.value) == (
        f"{config / 'county.txt'}: cannot be read (No such file or directory); "
        "login.secrets of the site county names this file"
    )
