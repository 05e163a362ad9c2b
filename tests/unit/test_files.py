"""Files that appear as a whole or not at all, and locks that end with their descriptor."""

import os
from pathlib import Path

import pytest

from crawler import files, locks


def test_a_replaced_file_is_the_old_one_until_the_new_one_is_complete(tmp_path: Path) -> None:
    """Readers never see half of it, and nothing else stays in the folder."""
    target = tmp_path / "result.json"
    target.write_text("old")

    with files.replacing(target, mode=0o600) as out:
        out.write(b"new")
        assert target.read_text() == "old"

    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [target]


def test_an_error_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    """What was written so far is removed."""
    target = tmp_path / "result.json"
    target.write_text("old")

    def write() -> None:
        with files.replacing(target) as out:
            out.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()

    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_small_file_is_replaced_for_its_owner_only(tmp_path: Path) -> None:
    """Also where its folder is gone: then the error is told, and nothing is left."""
    files.replace_file(tmp_path / "stack.json", b"{}")
    assert (tmp_path / "stack.json").read_bytes() == b"{}"
    assert (tmp_path / "stack.json").stat().st_mode & 0o777 == 0o600

    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        files.replace_file(tmp_path / "folder", b"{}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "stack.json"]


def test_a_link_under_the_name_of_a_part_is_not_written_through(tmp_path: Path) -> None:
    """The name can be guessed. What lies there is removed, as is what a killed process has left."""
    target, victim = tmp_path / "result.json", tmp_path / "victim"
    part = tmp_path / f".result.json.{os.getpid()}"
    victim.write_text("precious")
    part.symlink_to(victim)

    files.replace_file(target, b"small")
    assert (target.read_text(), target.is_symlink()) == ("small", False)

    part.symlink_to(victim)
    with files.replacing(target) as out:
        out.write(b"large")
    assert (target.read_text(), target.is_symlink()) == ("large", False)

    part.write_text("left by a process with the same number")
    part.chmod(0o644)
    files.replace_file(target, b"own")
    assert (target.read_text(), target.stat().st_mode & 0o777) == ("own", 0o600)
    assert victim.read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["result.json", "victim"]


def test_a_lock_has_one_holder_or_many_that_share_it(tmp_path: Path) -> None:
    """It is free again when its holder closes the file or gives it up."""
    path = tmp_path / "lock"
    assert not locks.is_locked(path)
    first, second = locks.open_lock(path), locks.open_lock(path)

    assert locks.try_lock(first)
    assert not locks.try_lock(second)
    assert not locks.try_lock(second, shared=True)
    assert locks.is_locked(path)

    locks.unlock(first)
    assert locks.try_lock(first, shared=True)
    assert locks.try_lock(second, shared=True)
    assert not locks.try_lock(second)

    os.close(first)
    locks.wait_lock(second)
    assert locks.is_locked(path)
    os.close(second)
    assert not locks.is_locked(path)
