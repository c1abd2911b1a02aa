"""The package as a whole: import cost, public names, versions, and the cdef against the shim's header."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from fake_native import declared_text

import pyllama_turbo

ROOT = Path(__file__).resolve().parents[2]
_NAME = re.compile(r"\b(turbo_\w+)\(")


def functions_of(text: str) -> set[str]:
    return {m for m in _NAME.findall(text) if not m.endswith("_fn") and not m.startswith("turbo_py_")}


def test_import_is_quick_and_loads_nothing_native() -> None:
    code = (
        "import time; t = time.perf_counter(); import pyllama_turbo; t = time.perf_counter() - t; import sys;"
        "print(t, 'numpy' in sys.modules, 'pyllama_turbo._ffi' in sys.modules)"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
        ).stdout.split()
        for _ in range(3)
    ]
    assert min(float(run[0]) for run in runs) < 0.150
    assert all(run[1:] == ["False", "False"] for run in runs)


def test_every_public_name_exists() -> None:
    homes = {*pyllama_turbo._HOME, *pyllama_turbo._MODULES, "__version__"}
    assert pyllama_turbo.__all__ == sorted(homes)
    for name in pyllama_turbo.__all__:
        assert getattr(pyllama_turbo, name) is not None, name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pyllama_turbo.nothing  # type: ignore[attr-defined]


def test_one_version() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r'^version = "(.+)"$', text, re.MULTILINE)[1] == pyllama_turbo.__version__  # type: ignore[index]


def test_the_cdef_declares_exactly_what_the_shim_exports() -> None:
    headers = "".join(p.read_text(encoding="utf-8") for p in sorted((ROOT / "native" / "shim").glob("turbo_*.h")))
    exported = set(re.findall(r"TURBO_API [\w ]+?\*? ?(turbo_\w+)\(", headers))
    assert functions_of(declared_text()) == exported


def test_python_uses_declared_functions_only() -> None:
    sources = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "pyllama_turbo").rglob("*.py"))
    used = set(re.findall(r"\blib\.(turbo_\w+)", sources)) | set(re.findall(r'_call\("(turbo_\w+)"', sources))
    declared = functions_of(declared_text()) | {"turbo_py_progress", "turbo_py_poll"}
    assert used <= declared


def test_only_one_module_imports_the_extension() -> None:
    for path in (ROOT / "pyllama_turbo").rglob("*.py"):
        if path.name != "_native.py":
            assert "_ffi" not in path.read_text(encoding="utf-8").replace("_ffi.abi3", ""), path
