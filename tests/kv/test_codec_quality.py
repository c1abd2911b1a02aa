"""Distortion of the encoders: against the bars of the project, and against exhaustive search in double precision."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import reference
from codec_library import CodecLibrary, FloatArray

Sphere = Callable[..., FloatArray]

# Largest relative squared error on Gaussian blocks of 128 of rms 1, stored scale included.
BARS = {
    "turbo2": 0.1160,
    "turbo3": 0.0340,
    "turbo4": 0.0094,
    "turbo2_tcq": 0.0705,
    "turbo3_tcq": 0.0180,
    "turbo4_tcq": 0.0046,
}
BLOCKS = 65536


def relative_error(codecs: CodecLibrary, name: str, x: FloatArray) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Relative squared error of each block of one type."""
    decoded = codecs.decode(name, codecs.encode(name, x)).astype(np.float64)
    error: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = np.mean(np.square(decoded - x), axis=1)
    return error


@pytest.mark.parametrize("name", list(BARS))
def test_distortion_bar(codecs: CodecLibrary, sphere: Sphere, name: str) -> None:
    count = BLOCKS if codecs.path != "portable" else BLOCKS // 4
    error = relative_error(codecs, name, sphere(count, 128, seed=20))
    small = relative_error(codecs, name + "_64", sphere(count // 4, 64, seed=21))
    spread = error.std() / np.sqrt(count)
    print(f"\n{name:12} {error.mean():.6f} +- {spread:.6f} (bar {BARS[name]}); blocks of 64: {small.mean():.6f}")
    assert error.mean() <= BARS[name]
    assert small.mean() <= BARS[name]


@pytest.mark.parametrize("name", ["turbo2_tcq", "turbo3_tcq", "turbo4_tcq", "turbo3_tcq_64"])
def test_trellis_search_loses_nothing_against_float_viterbi(codecs: CodecLibrary, sphere: Sphere, name: str) -> None:
    n = reference.format_of(name).n
    x = sphere(192, n, seed=5)
    exhaustive = reference.best_error(x, name).mean() / n
    fast = relative_error(codecs, name, x).mean()
    print(f"\n{name:14} float Viterbi {exhaustive:.6f}, codec {fast:.6f} ({100 * (fast / exhaustive - 1):+.3f} %)")
    assert fast <= 1.003 * exhaustive


@pytest.mark.parametrize("name", ["turbo2", "turbo3", "turbo4", "turbo4_64"])
def test_scalar_search_is_near_the_best_gain(codecs: CodecLibrary, sphere: Sphere, name: str) -> None:
    n = reference.format_of(name).n
    x = sphere(2048, n, seed=6)
    best = reference.best_scalar_error(x, name).mean() / n
    fast = relative_error(codecs, name, x).mean()
    print(f"\n{name:14} best of 65 gains {best:.6f}, codec {fast:.6f} ({100 * (fast / best - 1):+.3f} %)")
    assert fast <= 1.02 * best


@pytest.mark.parametrize("name", reference.type_names())
def test_one_huge_channel_is_as_good_as_gaussian(codecs: CodecLibrary, sphere: Sphere, name: str) -> None:
    x = sphere(256, reference.format_of(name).n, seed=8)
    x[:, 17] = 30
    error = relative_error(codecs, name, x) / np.mean(np.square(x), axis=1)
    assert error.mean() <= 1.25 * BARS[name.removesuffix("_64")]


@pytest.mark.parametrize("name", reference.type_names())
def test_distortion_does_not_depend_on_magnitude(codecs: CodecLibrary, sphere: Sphere, name: str) -> None:
    x = sphere(512, reference.format_of(name).n, seed=9)
    bar = BARS[name.removesuffix("_64")]
    for magnitude in (1e-2, 0.7, 3.3, 2.0e4):
        error = relative_error(codecs, name, x * np.float32(magnitude)).mean() / magnitude**2
        assert error <= 1.01 * bar, magnitude
