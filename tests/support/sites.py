"""Site files for the example sites, as they are served on loopback."""

from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
PORT = ":8090/"
"""The port in the example files."""


def configure(folder: Path, port: int, *names: str) -> Path:
    """Write the files of example sites for the port that they have here; returns the folder."""
    (folder / "sites").mkdir(parents=True, exist_ok=True)
    for name in names:
        text = (EXAMPLES / "sites" / f"{name}.yaml").read_text()
        (folder / "sites" / f"{name}.yaml").write_text(text.replace(PORT, f":{port}/"))
    return folder


def plain_site(folder: Path, name: str, *starts: str, **settings: str) -> None:
    """Write the file of a site whose links are all followed."""
    lines = [f"start: [{', '.join(starts)}]", "rate: none", "concurrency: none"]
    lines += [f"{key}: {value}" for key, value in settings.items()]
    (folder / "sites").mkdir(parents=True, exist_ok=True)
    (folder / "sites" / f"{name}.yaml").write_text("\n".join([*lines, ""]))
