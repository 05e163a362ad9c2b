"""Gives the processes of a test the small renderer as their browser, by PYTHONPATH."""

import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

_RENDERER = Path(__file__).parents[1] / "renderer.py"


class Finder(importlib.abc.MetaPathFinder):
    """Finds the renderer under the name of the engine."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find this one module."""
        if fullname != "crawler.fetch.browser":
            return None
        return importlib.util.spec_from_file_location(fullname, _RENDERER)


sys.meta_path.insert(0, Finder())
