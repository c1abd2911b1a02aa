"""The library stays small: a bound for the CPU part and one for each CUDA architecture it was built for."""

from __future__ import annotations

from pathlib import Path

import pyllama_turbo
from pyllama_turbo import _native
from pyllama_turbo.buildinfo import build_info

MB = 1_000_000
CPU_MB, ARCHITECTURE_MB, PYTHON_MB = 20, 75, 3  # a wheel holds the library, compressed, and the Python files


def test_the_library_is_within_its_bounds() -> None:
    path = _native.binding().path
    assert path is not None
    architectures = build_info()["cuda_architectures"]
    assert bool(architectures) == (_native.binding().backend == "cuda")
    size = path.stat().st_size / MB
    limit = CPU_MB + ARCHITECTURE_MB * len(architectures)
    assert 5 < size < limit, f"{path} has {size:.1f} MB, the limit is {limit}"


def test_the_python_files_are_few() -> None:
    folder = Path(pyllama_turbo.__file__).parent
    size = sum(path.stat().st_size for path in folder.rglob("*.py")) / MB
    assert 0.2 < size < PYTHON_MB, size
