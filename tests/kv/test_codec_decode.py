"""The C decoder against the reference written from docs/formats.md, bit for bit, on every path."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import reference
from codec_library import CodecLibrary, FloatArray

NAMES = reference.type_names(trial=True)
Sphere = Callable[..., FloatArray]


def random_blocks(name: str, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Blocks of random bytes with finite scales: far more code patterns than an encoder writes."""
    form = reference.format_of(name)
    blocks = np.random.default_rng(7).integers(0, 256, (count, form.bytes), dtype=np.uint8)
    if form.window:
        blocks[:, 1] &= 0xFD  # clears one exponent bit: never 31
    else:
        blocks[:, 1] &= 0x7B  # no sign, and the same
    return blocks


@pytest.mark.parametrize("name", NAMES)
def test_decode_is_bit_equal_to_the_reference(codecs: CodecLibrary, name: str) -> None:
    blocks = random_blocks(name, 257)
    expected = reference.decode(blocks, name)
    assert np.isfinite(expected).all()
    for path in codecs.paths():
        assert codecs.select(path)
        decoded = codecs.decode(name, blocks)
        assert np.array_equal(decoded.view(np.uint32), expected.view(np.uint32)), path


@pytest.mark.parametrize("name", NAMES)
def test_unpack_gives_entries_and_scales(codecs: CodecLibrary, name: str) -> None:
    form = reference.format_of(name)
    blocks = random_blocks(name, 33)
    padded = np.full((33, form.bytes + 6), 0xFF, dtype=np.uint8)  # a stride that is not the block
    padded[:, : form.bytes] = blocks
    for path in codecs.paths():
        assert codecs.select(path)
        entries, scales = codecs.unpack(name, padded)
        assert np.array_equal(entries, reference.entries_of(blocks, form)), path
        assert np.array_equal(scales, reference.scales(blocks, form) * form.unit), path


@pytest.mark.parametrize("name", NAMES)
def test_blocks_of_a_row_are_independent(codecs: CodecLibrary, sphere: Sphere, name: str) -> None:
    n = reference.format_of(name).n
    x = sphere(3, n * 9)
    rows = codecs.encode(name, x)
    single = codecs.encode(name, x.reshape(-1, n))
    assert np.array_equal(rows.reshape(single.shape), single)
    assert np.array_equal(codecs.decode(name, rows).reshape(-1, n), codecs.decode(name, single))


@pytest.mark.parametrize("n", [64, 128])
def test_rotation_is_orthonormal_and_as_described(codecs: CodecLibrary, sphere: Sphere, n: int) -> None:
    x = sphere(40, n)
    for path in codecs.paths():
        assert codecs.select(path)
        rotated = codecs.rotate(x.ravel(), n).reshape(x.shape)
        assert np.abs(rotated - reference.rotate(x, n)).max() < 2e-6, path
        assert np.abs(codecs.rotate(rotated.ravel(), n, back=True).reshape(x.shape) - x).max() < 2e-6, path


@pytest.mark.parametrize("name", reference.type_names())
def test_vec_dot_equals_the_dot_product_of_the_decoded_row(codecs: CodecLibrary, sphere: Sphere, name: str) -> None:
    n = reference.format_of(name).n
    key, query = sphere(2, 3 * n)
    blocks = codecs.encode(name, key[None])
    expected = float(codecs.decode(name, blocks)[0].astype(np.float64) @ query)
    for path in codecs.paths():
        assert codecs.select(path)
        found = codecs.vec_dot(name, blocks, codecs.rotate(query, n))
        assert found == pytest.approx(expected, abs=2e-4), path
