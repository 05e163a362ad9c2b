"""No command writes over what the operator gave, or over the store itself."""

import os
from pathlib import Path

import pytest

from crawler.bulk import import_file
from tests.support.stack import Folder
from tests.support.tasks import done

WRITERS = {
    "export": ("results", "export", "--all-rows", "--format", "csv", "--output"),
    "xlsx": ("results", "export", "--format", "xlsx", "--output"),
    "warc": ("results", "export", "--format", "warc", "--output"),
    "bundle": ("results", "bundle", "--output"),
    "archive": ("results", "archive", "--output"),
    "raw": ("raw", "http://a.example/1", "--output"),
    "analyze": ("analyze", "data", "--html"),
    "gateway": ("gateway", "results", "export", "--format", "jsonl", "--output"),
}


@pytest.fixture
def collected(folder: Folder) -> Folder:
    """A job with one result, its file, and names that lead to that; a Gateway beside it."""
    file = folder.write("parcels.csv", ["url", "http://a.example/1"])
    import_file(folder.settings, file)
    lpm = folder.lpm()
    [task] = lpm.get_next_pending("owner")
    lpm.save_result(done(task))
    lpm.close()
    (folder.path / "symbolic.csv").symlink_to("parcels.csv")
    os.link(file, folder.path / "hard.csv")
    segment = next((folder.data / "raw").iterdir())
    os.link(segment, folder.path / "segment.warc.gz")
    (folder.path / "linked").symlink_to(folder.data)
    assert folder.crawler("gateway", "import", "parcels.csv").returncode == 0
    return folder


def content(folder: Path) -> dict[str, bytes]:
    """What all files hold that a command could destroy."""
    files = [*folder.glob("*.csv"), *folder.glob("*.gz"), *(folder / "data" / "raw").iterdir()]
    return {
        str(path): path.read_bytes() for path in [*files, *(folder / "data" / "pending").iterdir()]
    }


@pytest.mark.parametrize("command", WRITERS)
def test_nothing_that_is_needed_is_written_over(collected: Folder, command: str) -> None:
    """An input, whatever name leads to it, lpm.db, segments and results: code 2, one line, and all
    is as it was."""
    before = content(collected.path)
    result = next((collected.data / "pending").iterdir())
    segment = next((collected.data / "raw").iterdir())
    names = [
        "parcels.csv",
        "symbolic.csv",
        "hard.csv",
        "segment.warc.gz",
        "data/lpm.db",
        "linked/lpm.db",
    ]
    names += [
        "data/lpm.db-wal",
        "data/raw/new.csv",
        "linked/pending/new.json",
        str(result),
        str(segment),
    ]

    for name in names:
        refused = collected.crawler(*WRITERS[command], name)

        assert refused.returncode == 2, (name, refused.stdout, refused.stderr)
        assert refused.stderr.startswith("Error: "), refused.stderr
        assert refused.stderr.count("\n") == 1
    assert content(collected.path) == before
    assert collected.books().results == 1

    # And another name is taken
    written = collected.crawler(*WRITERS[command], "done.out")
    assert written.returncode == 0, written.stderr
    assert (collected.path / "done.out").exists()


def test_pages_do_not_go_into_the_store(collected: Folder) -> None:
    """A page of JSON has the name of its result in pending/."""
    before = content(collected.path)

    for name in ("data/pending", "linked/raw"):
        refused = collected.crawler("results", "export", "--output", "a.jsonl", "--raw", name)
        assert refused.returncode == 2, refused.stderr

    assert content(collected.path) == before


def test_a_report_does_not_replace_what_it_is_about(collected: Folder) -> None:
    """The export that is analyzed may be all that somebody has."""
    assert collected.crawler("results", "export", "--output", "a.jsonl").returncode == 0
    before = (collected.path / "a.jsonl").read_bytes()

    refused = collected.crawler("analyze", "a.jsonl", "--html", "a.jsonl")

    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert (collected.path / "a.jsonl").read_bytes() == before


def test_rejected_rows_do_not_replace_an_input(collected: Folder) -> None:
    """Who corrects rejected rows and imports their file keeps it, also when the first file is
    imported again."""
    # Given the rejects of a file, corrected and imported
    bad = collected.write("bad.csv", ["url", "nonsense"])
    assert collected.crawler("bulk", "import", str(bad)).returncode == 1
    rejects = collected.write("bad.csv.rejects.jsonl", ['{"url": "http://a.example/2"}'])
    assert collected.crawler("bulk", "import", str(rejects)).returncode == 0
    before = rejects.read_bytes()

    # When the first file is imported again, with rejected rows or without any
    for text in ("nonsense", "http://a.example/3"):
        collected.write("bad.csv", ["url", text])
        refused = collected.crawler("bulk", "import", str(bad))

        # Then the corrected ones are left alone
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused.stderr
        assert rejects.read_bytes() == before
