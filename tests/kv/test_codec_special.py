"""Zeros, huge and tiny values, denormals, infinities and NaN, as the table in docs/formats.md says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import reference
from codec_library import CodecLibrary, FloatArray

NAMES = reference.type_names()
Sphere = Callable[..., FloatArray]


@pytest.fixture(params=["portable", "avx2", "avx512"])
def on_path(request: pytest.FixtureRequest, codecs: CodecLibrary) -> CodecLibrary:
    """The codecs on one path; visibly skipped where the CPU lacks it."""
    if not codecs.select(request.param):
        pytest.skip(f"this CPU has no {request.param}")
    return codecs


def largest_scale(name: str) -> float:
    return 64512.0 if reference.format_of(name).window else 65504.0


@pytest.mark.parametrize("name", NAMES)
def test_zeros_are_zero_bytes_and_decode_to_zero(on_path: CodecLibrary, name: str) -> None:
    x = np.zeros((2, reference.format_of(name).n), dtype=np.float32)
    x[1] = -0.0
    blocks = on_path.encode(name, x)
    assert not blocks.any()
    assert not on_path.decode(name, blocks).any()


@pytest.mark.parametrize("name", NAMES)
def test_a_single_channel_survives(on_path: CodecLibrary, name: str) -> None:
    n = reference.format_of(name).n
    x = np.zeros((n, n), dtype=np.float32)
    np.fill_diagonal(x, 1e4)
    decoded = on_path.decode(name, on_path.encode(name, x))
    assert np.isfinite(decoded).all()
    # its rotation is n values of one magnitude; least squares shrinks what it cannot tell from noise
    tolerance = {"turbo2_tcq": 0.12, "turbo3_tcq": 0.04}.get(name.removesuffix("_64"), 0.02)
    assert np.abs(np.diagonal(decoded) - 1e4).max() < tolerance * 1e4


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("magnitude", [1e-45, 1e-40, 1e-30, 1e-12, 1e-8])
def test_tiny_values_become_zeros(on_path: CodecLibrary, sphere: Sphere, name: str, magnitude: float) -> None:
    x = (sphere(4, reference.format_of(name).n) * magnitude).astype(np.float32)
    decoded = on_path.decode(name, on_path.encode(name, x))
    assert np.isfinite(decoded).all()
    assert np.abs(decoded).max() < 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_small_values_round_to_the_smallest_scales(on_path: CodecLibrary, sphere: Sphere, name: str) -> None:
    x = sphere(64, reference.format_of(name).n) * np.float32(2e-5)
    decoded = on_path.decode(name, on_path.encode(name, x))
    assert np.sum(np.square(decoded - x)) < 0.2 * np.sum(np.square(x))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("magnitude", [1e5, 1e6, 1e9, 1e20, 1e38])
def test_huge_values_keep_their_direction(on_path: CodecLibrary, sphere: Sphere, name: str, magnitude: float) -> None:
    x = np.clip(sphere(16, reference.format_of(name).n) * np.float64(magnitude), -3.4e38, 3.4e38).astype(np.float32)
    blocks = on_path.encode(name, x)
    decoded = on_path.decode(name, blocks).astype(np.float64)
    assert np.isfinite(decoded).all()
    assert (reference.scales(blocks, reference.format_of(name)) == largest_scale(name)).all()
    wide = x.astype(np.float64)
    cosine = np.sum(decoded * wide, axis=1) / np.linalg.norm(decoded, axis=1) / np.linalg.norm(wide, axis=1)
    assert cosine.min() > (0.92 if "turbo2" in name else 0.97)


@pytest.mark.parametrize("name", NAMES)
def test_extreme_patterns_stay_finite(on_path: CodecLibrary, name: str) -> None:
    n = reference.format_of(name).n
    largest = np.finfo(np.float32).max
    x = np.zeros((5, n), dtype=np.float32)
    x[0] = largest
    x[1] = largest * reference.signs(n)  # all of it in one rotated value
    x[2, 0] = largest
    x[3] = 65504 * reference.signs(n)
    x[4] = np.finfo(np.float32).tiny
    assert np.isfinite(on_path.decode(name, on_path.encode(name, x))).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_non_finite_blocks_decode_to_nan_alone(on_path: CodecLibrary, sphere: Sphere, name: str, bad: float) -> None:
    form = reference.format_of(name)
    x = sphere(3, form.n)
    x[1, form.n - 1] = bad
    blocks = on_path.encode(name, x)
    decoded = on_path.decode(name, blocks)
    assert np.isnan(decoded[1]).all()
    assert np.isfinite(decoded[[0, 2]]).all()
    assert blocks[1, :2].tobytes() == (b"\xf0\x03" if form.window else b"\x00\x7e")
    assert not blocks[1, 2:].any()
