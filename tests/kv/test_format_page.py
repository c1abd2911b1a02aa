"""docs/formats.md, codebooks.inc and types.h say the same, and the page's test vectors hold."""

from __future__ import annotations

import hashlib
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import reference
from codec_library import CodecLibrary

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "formats.md").read_text()
NAMES = reference.type_names()
VECTOR = re.compile(r"^(\w+)\n  block   ([0-9a-f\s]+?)\n  values  ([0-9a-f ]+)\n  sha256  ([0-9a-f]{64})", re.MULTILINE)
VECTORS = {name: (block, values, digest) for name, block, values, digest in VECTOR.findall(PAGE)}


def vector_input(n: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    i = np.arange(n)
    return (((7 * i * i + 3 * i) % 31 - 15) / 8).astype(np.float32)


def test_the_page_has_a_vector_for_every_type() -> None:
    assert set(VECTORS) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_vectors_decode_as_printed(codecs: CodecLibrary, name: str) -> None:
    block_hex, values_hex, digest = VECTORS[name]
    block = np.frombuffer(bytes.fromhex("".join(block_hex.split())), dtype=np.uint8)[None]
    for decoded in (reference.decode(block, name)[0], codecs.decode(name, block)[0]):
        assert " ".join(f"{word:08x}" for word in decoded[:8].view(np.uint32)) == values_hex
        assert hashlib.sha256(decoded.astype("<f4").tobytes()).hexdigest() == digest


@pytest.mark.parametrize("name", NAMES)
def test_vectors_are_what_the_encoder_writes(codecs: CodecLibrary, name: str) -> None:
    block = codecs.encode(name, vector_input(reference.format_of(name).n)[None])[0]
    assert block.tobytes().hex() == "".join(VECTORS[name][0].split())


@pytest.mark.parametrize("family", [name for name in NAMES if not name.endswith("_64")])
def test_constants_on_the_page(family: str) -> None:
    small, large = reference.format_of(family + "_64"), reference.format_of(family)
    words = [struct.pack(">f", value).hex() for value in (large.unit, large.constant, small.constant)]
    digest = hashlib.sha256(large.table.astype(np.int8).tobytes()).hexdigest()[:16]
    row = " | ".join(f"`{word}`" for word in (*words, digest))
    assert re.search(rf"^\| {family} \| [0-9.]+ \| {re.escape(row)} \|$", PAGE, re.MULTILINE)
    for form, n in ((large, 128), (small, 64)):
        assert form.constant == np.float32(float(form.unit) / np.sqrt(n))
    if not large.window:
        assert f"| {family} | {', '.join(str(entry) for entry in large.table)} |" in PAGE
        assert np.array_equal(large.table, -large.table[::-1])


@pytest.mark.parametrize("n", [64, 128])
def test_signs_on_the_page(n: int) -> None:
    packed = np.packbits(reference.signs(n) < 0, bitorder="little").tobytes()
    assert f"n = {n}: `{packed.hex()}`" in PAGE or f"n = {n}: `{packed.hex()}` (" in PAGE


def test_codebook_hash() -> None:
    digest = hashlib.sha256()
    for n in (128, 64):
        digest.update(np.packbits(reference.signs(n) < 0, bitorder="little").tobytes())
    for family in (name for name in NAMES if not name.endswith("_64")):
        form = reference.format_of(family)
        digest.update(family.encode() + form.table.astype(np.int8).tobytes() + struct.pack("<f", form.unit))
    text = f"0x{digest.digest()[:8].hex()}ull"
    assert f"#define TURBO_CODEBOOK_HASH {text}" in reference.CODEBOOKS.read_text()
    assert f"`TURBO_CODEBOOK_HASH` = `{text}`" in PAGE


def test_sizes_of_the_library_are_those_of_the_page(codecs: CodecLibrary) -> None:
    for name in reference.type_names(trial=True):
        form = reference.format_of(name)
        kv = codecs.types[name]
        assert (kv.bits, kv.window, kv.step, kv.block, kv.bytes) == (
            form.bits, form.window, form.step, form.n, form.bytes,
        )  # fmt: skip
    assert set(codecs.types) == set(reference.type_names(trial=True))
