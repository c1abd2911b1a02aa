"""All instruction sets write the same blocks; the environment and the compiler's flags change nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import reference
from codec_library import NATIVE, CodecLibrary, FloatArray, build

Sphere = Callable[..., FloatArray]


def awkward_rows(sphere: Sphere, n: int) -> FloatArray:
    """Gaussian blocks, and blocks with outliers, constants, steps, large and small values."""
    x = sphere(48, n, seed=11)
    x[8:16] *= np.float32(10.0) ** np.arange(-6, 2, dtype=np.float32)[:, None]
    x[16:20, :] = np.arange(n, dtype=np.float32) / 7
    x[20:24, 5] = 1e4
    x[24:26] = 1.0
    x[26:28, ::2] = -1.0
    x[28:30] = np.random.default_rng(3).standard_cauchy((2, n)).astype(np.float32)
    return x


@pytest.mark.parametrize("name", reference.type_names())
def test_every_path_writes_the_same_blocks(codecs: CodecLibrary, sphere: Sphere, name: str) -> None:
    x = awkward_rows(sphere, reference.format_of(name).n)
    assert codecs.select("portable")
    expected = codecs.encode(name, x)
    for path in codecs.paths():
        assert codecs.select(path)
        assert np.array_equal(codecs.encode(name, x), expected), path


def test_compiler_flags_change_no_block(codecs: CodecLibrary, sphere: Sphere, tmp_path: Path) -> None:
    # -O3 with contraction allowed on this very machine: what a careless build would use
    other = CodecLibrary(build(tmp_path / "libnative.so", ("-O3", "-march=native", "-ffp-contract=fast")))
    assert other.select("portable")
    for name in ("turbo3", "turbo4_64", "turbo3_tcq"):
        x = awkward_rows(sphere, reference.format_of(name).n)
        assert np.array_equal(other.encode(name, x), codecs.encode(name, x)), name


def run_with_simd(library: Path, asked: str) -> tuple[str, str]:
    """Path in use and stderr of a process with TURBO_SIMD set."""
    code = "import sys; from pathlib import Path; from codec_library import CodecLibrary; "
    code += f"print(CodecLibrary(Path({str(library)!r})).path)"
    environment = {**os.environ, "TURBO_SIMD": asked, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip(), done.stderr


def test_the_environment_names_the_path(codecs: CodecLibrary, library_path: Path) -> None:
    for path in codecs.paths():
        assert run_with_simd(library_path, path) == (path, "")


def test_an_unknown_path_is_said_not_hidden(codecs: CodecLibrary, library_path: Path) -> None:
    used, message = run_with_simd(library_path, "avx1024")
    assert used == codecs.path
    assert "avx1024" in message and used in message
    assert not codecs.select("avx1024")


def test_headers_compile_as_cpp(tmp_path: Path) -> None:
    source = tmp_path / "headers.cpp"
    source.write_text(
        '#include "turbo/cpu/codec.h"\n'
        'namespace here {\n#define TURBO_TABLE static constexpr\n#include "turbo/codebooks.inc"\n}\n'
        '#include "turbo/codebooks.inc"\n'
        'static_assert(turbo_bytes_turbo3_64 == 26 && sizeof(turbo_block_t_turbo4_tcq) == 66, "");\n'
        'static_assert(here::turbo_book_turbo2[0] < 0 && sizeof here::turbo_book_turbo3_tcq == 512, "");\n'
        'int main() { return turbo_desc_by_name("turbo3")->window; }\n'
    )
    compiler = os.environ.get("CXX", "c++")
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-Wno-unused-const-variable", "-fsyntax-only"]
    subprocess.run([compiler, *flags, "-I", str(NATIVE), str(source)], check=True)
