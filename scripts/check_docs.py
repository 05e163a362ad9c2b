"""Fails where docs and code disagree: features without their tests, dead links, a lock that is not
what pyproject.toml asks for, SQL outside the packages that own a database."""

import ast
import re
import sys
import tomllib
from pathlib import Path

FEATURES = 112


def tests() -> set[str]:
    """Every test function, as `path::name`."""
    names = set()
    for path in Path("tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
                "test_"
            ):
                names.add(f"{path.relative_to('tests')}::{node.name}")
    return names


def features() -> list[str]:
    """What is wrong with docs/features.toml; prints how many features have a test."""
    rows = tomllib.loads(Path("docs/features.toml").read_text())["feature"]
    known, problems, done = tests(), [], 0
    if [row["row"] for row in rows] != list(range(1, FEATURES + 1)):
        problems.append(f"docs/features.toml must have the rows 1 to {FEATURES}, in order")
    for row in rows:
        missing = [name for name in row["tests"] if name not in known]
        problems += [
            f"docs/features.toml: row {row['row']} names a test that does not exist: {name}"
            for name in missing
        ]
        done += bool(row["tests"]) and not missing
    print(f"features with a test: {done} of {FEATURES}")
    return problems


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings make."""
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text())
    headings = (line.lower().strip() for line in re.findall(r"(?m)^#+ (.*)$", text))
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


def links() -> list[str]:
    """Links between our pages that lead nowhere."""
    problems = []
    for page in (
        *Path().glob("*.md"),
        *Path("docs").rglob("*.md"),
        *Path("benchmarks").glob("*.md"),
    ):
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            file, _, anchor = link.partition("#")
            target = page
            if file:
                target = page.parent / file
            if "://" in link:
                continue
            if not target.exists():
                problems.append(f"{page}: {link} does not exist")
            elif anchor and anchor not in anchors(target):
                problems.append(f"{page}: {link} has no such heading")
    return problems


def lock() -> list[str]:
    """What is wrong with requirements.lock."""
    text = Path("requirements.lock").read_text()
    problems = ["requirements.lock holds an address"] if "://" in text else []
    pinned = {
        name.lower().replace("_", "-") for name in re.findall(r"^([A-Za-z0-9._-]+)==", text, re.M)
    }
    pinned = {re.sub(r"[._]", "-", name) for name in pinned}
    project = tomllib.loads(Path("pyproject.toml").read_text())
    wanted = list(project["project"]["dependencies"])
    for group in (
        *project["project"]["optional-dependencies"].values(),
        *project["dependency-groups"].values(),
    ):
        wanted += group
    for line in wanted:
        name = re.sub(r"[._]", "-", re.split(r"[<>=;\[ ]", line)[0].lower())
        if name not in pinned:
            problems.append(f"requirements.lock does not pin {name}; see CONTRIBUTING.md")
    if text.count("==") and "--hash=sha256:" not in text:
        problems.append("requirements.lock has no hashes")
    return problems


def statements() -> list[str]:
    """SQL that stands outside the packages that own a database."""
    owners = ("db", "doctor", "gateway/reference")
    sql = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|DROP|PRAGMA|WITH)\s+[\w(]")
    problems = []
    for path in Path("crawler").rglob("*.py"):
        if str(path.relative_to("crawler")).startswith(owners):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and sql.match(text):
                problems.append(f"{path}:{node.lineno}: SQL belongs into crawler/db")
    return problems


if __name__ == "__main__":
    found = features() + links() + lock() + statements()
    for problem in found:
        print(problem, file=sys.stderr)
    sys.exit(1 if found else 0)
