"""Which nodes of a graph the CUDA backend joins, checked without a GPU (native/tests/test_product_groups.cpp)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

NATIVE = Path(__file__).resolve().parents[2] / "native"


def test_groups_are_found_private_and_in_order(tmp_path: Path) -> None:
    # the newest build of the library has llama.cpp's patched source and the part of it that knows graphs
    built = NATIVE.glob("build/*/upstream/ggml/src/libggml-base.a")
    found = sorted((p for p in built if "sanitize" not in p.parts), key=lambda path: path.stat().st_mtime)
    assert found, "build the library first: make build"
    ggml = found[-1].parents[3] / "llama.cpp" / "ggml"
    program = tmp_path / "test_product_groups"
    command = [os.environ.get("CXX", "c++"), "-std=c++17", "-O1", f"-I{NATIVE}", f"-I{ggml}/include", f"-I{ggml}/src"]
    command += [str(NATIVE / "tests" / "test_product_groups.cpp"), str(found[-1]), "-o", str(program)]
    subprocess.run([*command, "-fopenmp", "-pthread", "-ldl", "-lm"], check=True)
    done = subprocess.run([program, "3000"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "known layers right" in done.stdout
