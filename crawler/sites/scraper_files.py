"""Reads the Python files of scrapers without running them: which class, and which settings."""

import ast
import sys
from hashlib import sha256
from importlib.metadata import EntryPoint
from pathlib import Path

from crawler.errors import InputError
from crawler.sites.crawlfile import CrawlSettings
from crawler.sites.scrapers import GROUP, METHODS, Source, python_files
from crawler.sites.yamlfile import MAX_DEPTH, MAX_SIZE, Entries, Node


def read(path: Path) -> Source:
    """Find the class of a file; its version covers the files that all in the folder share."""
    code = _bytes_of(path)
    digest = sha256(code)
    for shared in python_files(path.parent):
        if shared.name[0] == "_":
            digest.update(b"\0%b\0%b" % (shared.name.encode(), _bytes_of(shared)))
    return _source(path.stem, str(path), code, digest.hexdigest()[:12])


def read_installed(entry: EntryPoint) -> Source:
    """Find the class behind an entry point."""
    path = _located(entry.module)
    if path is None or not entry.attr:
        reason = f"{entry.name} = {entry.value} names no class in a Python file"
        raise InputError(f"the entry points {GROUP}", reason)
    code = _bytes_of(path)
    version = sha256(code).hexdigest()[:12]
    return _source(entry.name, str(path), code, version, entry.module, entry.attr)


def _located(module: str) -> Path | None:
    """Return the file of a module; unlike `find_spec` of importlib, runs no package."""
    name, places, origin = "", None, None
    for part in module.split("."):
        name = f"{name}.{part}".lstrip(".")
        specs = (finder.find_spec(name, places, None) for finder in sys.meta_path)
        spec = next(filter(None, specs), None)
        if spec is None:
            return None
        places, origin = spec.submodule_search_locations, spec.origin
    return Path(origin) if origin and origin.endswith(".py") else None


def _bytes_of(path: Path) -> bytes:
    try:
        code = path.read_bytes()
    except OSError as error:
        raise InputError(str(path), f"the file cannot be read ({error.strerror})") from None
    if len(code) > MAX_SIZE:
        raise InputError(str(path), f"the file has {len(code):,} bytes, more than {MAX_SIZE:,}")
    return code


def _source(
    site: str, path: str, code: bytes, version: str, module: str = "", class_name: str = ""
) -> Source:
    try:
        tree = ast.parse(code, path)
    except SyntaxError as error:
        raise InputError(path, f"not Python: {error.msg}", error.lineno) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise InputError(path, f"not Python: {error}") from None
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    if class_name:
        classes = [node for node in classes if node.name == class_name]
    else:
        classes = [node for node in classes if not node.name.startswith("_")]
    if len(classes) > 1:
        classes = [node for node in classes if _has_method(node)]
    if len(classes) != 1:
        wanted = f"one class with {' or '.join(METHODS)}"
        found = f"{len(classes)} such classes"
        hint = "give the others names that begin with _"
        if not classes:
            found, hint = "none", "see docs/SCRAPERS.md"
        raise InputError(path, f"the file must have {wanted}, and has {found}; {hint}")
    return Source(
        site=site, path=path, version=version, class_name=classes[0].name, code=code,
        module=module, entries=_entries(path, classes[0]),
    )  # fmt: skip


def _has_method(node: ast.ClassDef) -> bool:
    return any(isinstance(each, ast.FunctionDef) and each.name in METHODS for each in node.body)


def _entries(path: str, node: ast.ClassDef) -> Entries:
    """Return the attributes of a class that are keys of a site's file."""
    entries: Entries = {}
    for each in node.body:
        match each:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                pass
            case _:
                continue
        if name in CrawlSettings.__struct_fields__:
            entries[name] = each.lineno, _value(path, name, value)
    return entries


def _value(path: str, key: str, given: ast.expr, depth: int = 0) -> Node:
    """Make of a literal what the same value in a site's file would be."""
    line, below = given.lineno, depth + 1
    if depth <= MAX_DEPTH:
        match given:
            case ast.Constant(value=None):
                return Node("scalar", line, "", is_null=True)
            case ast.Constant(value=bool() as value):
                return Node("scalar", line, "", str(value).lower())
            case ast.Constant(value=str() | int() | float() as value):
                return Node("scalar", line, "", str(value))
            case ast.List(elts=items) | ast.Tuple(elts=items):
                inner = [_value(path, key, item, below) for item in items]
                return Node("sequence", line, "", items=inner)
            case ast.Dict(keys=keys, values=values) if None not in keys:
                pairs = [each for pair in zip(keys, values, strict=True) for each in pair if each]
                inner = [_value(path, key, item, below) for item in pairs]
                return Node("mapping", line, "", items=inner)
    reason = f"{key} must be written out (texts, numbers, lists, dicts)"
    raise InputError(path, f"{reason}, because it is read without running the file", line)
