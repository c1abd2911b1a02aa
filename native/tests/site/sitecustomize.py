"""Lets a Python process use an instrumented build: this folder on PYTHONPATH, TURBO_TEST_LIBRARY naming the build.

Python imports a module of this name at its start, so the processes that tests start are redirected too. Only the
extension module is taken from that build (and, through it, the library beside it); all Python code stays where it is.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

MODULE = "pyllama_turbo._ffi"
FILE = "_ffi.abi3.so"


class InstrumentedBuild(importlib.abc.MetaPathFinder):
    """Answers for the extension module alone."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / FILE

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Where the module is, or None for every other one."""
        return importlib.util.spec_from_file_location(fullname, self.file) if fullname == MODULE else None


if folder := os.environ.get("TURBO_TEST_LIBRARY"):
    sys.meta_path.insert(0, InstrumentedBuild(Path(folder)))
