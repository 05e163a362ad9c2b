"""Of requirements.lock (stdin) what an image needs (stdout), hashes and all: no test tools, and no
extras but those that the arguments name."""

import re
import sys
import tomllib
from pathlib import Path


def main() -> None:
    """Follow the lock's own `# via` notes from what pyproject.toml asks for."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    asked = list(project["dependencies"])
    for extra in sys.argv[1:]:
        asked += project["optional-dependencies"][extra]
    kept = {re.match(r"[\w.-]+", line)[0].replace(".", "-").lower() for line in asked}
    blocks = re.split(r"^(?=\S+==)", sys.stdin.read(), flags=re.MULTILINE)
    packages = {block.partition("==")[0]: block for block in blocks if "==" in block}
    wanted_by = {
        name: set(re.findall(r"^    #(?: via|  ) ([\w-]+)$", block, re.M))
        for name, block in packages.items()
    }
    while more := {name for name in packages if name not in kept and wanted_by[name] & kept}:
        kept |= more
    if missing := kept - packages.keys():
        sys.exit(f"requirements.lock lacks {', '.join(sorted(missing))}; make it again")
    sys.stdout.write("".join(block for name, block in packages.items() if name in kept))


main()
