"""The GGUF reader on good files (written by our generator and by the `gguf` package) and on damaged ones."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import gguf as reference
import numpy as np
import pytest

from pyllama_turbo.errors import GGUFError
from pyllama_turbo.gguf import GGUFArray, read_gguf, read_model

KEY_U32, KEY_STR, KEY_ARRAY = 4, 8, 9


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def header(n_tensors: int = 0, n_keys: int = 0, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, n_tensors, n_keys)


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    def _write(data: bytes) -> Path:
        path = tmp_path / "x.gguf"
        path.write_bytes(data)
        return path

    return _write


@pytest.fixture
def other_writer(tmp_path: Path) -> Path:
    """A file by the `gguf` package with every kind of value."""
    path = tmp_path / "other.gguf"
    w = reference.GGUFWriter(path, "llama")
    w.add_block_count(2)
    w.add_uint8("a.u8", 200)
    w.add_int8("a.i8", -5)
    w.add_uint64("a.u64", 1 << 40)
    w.add_float64("a.f64", 0.25)
    w.add_bool("a.bool", True)
    w.add_string("a.string", "grüße")
    w.add_array("a.short", [1, -2, 3])
    w.add_array("a.names", ["x", "yz"])
    w.add_array("a.long", list(range(5000)))
    w.add_array("a.tokens", [f"t{i}" for i in range(5000)])
    w.add_tensor("one.weight", np.arange(12, dtype=np.float32).reshape(3, 4))
    w.add_tensor("two.weight", np.zeros((2, 64 // 32 * 34), np.uint8), raw_dtype=reference.GGMLQuantizationType.Q8_0)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def test_values_of_every_kind(other_writer: Path) -> None:
    file = read_gguf(other_writer)
    assert file.arch == "llama"
    assert file.integer(".block_count") == 2
    wanted = {"u8": 200, "i8": -5, "u64": 1 << 40, "f64": 0.25, "bool": True, "string": "grüße"}
    assert {key: file.get(f"a.{key}") for key in wanted} == wanted
    assert file.get("a.short") == (1, -2, 3)
    assert file.get("a.names") == ("x", "yz")
    long, tokens = file.get("a.long"), file.get("a.tokens")
    assert isinstance(long, GGUFArray) and (long.type, long.length) == ("i32", 5000)
    assert isinstance(tokens, GGUFArray) and (tokens.type, tokens.length) == ("str", 5000)
    assert file.get("missing") is None


def test_tensors_agree_with_the_reference_reader(other_writer: Path) -> None:
    file = read_gguf(other_writer)
    for theirs in reference.GGUFReader(other_writer).tensors:
        ours = file.tensors[theirs.name]
        assert (ours.shape, ours.offset, ours.n_bytes) == (tuple(theirs.shape), theirs.data_offset, theirs.n_bytes)
        assert ours.type == theirs.tensor_type.name.lower()
    assert file.n_weights == 12 + 128
    assert file.weights_bytes == 48 + 4 * 34


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"GG", "starts with b'GG'"),
        (header(magic=b"GGML"), "starts with b'GGML'"),
        (b"PK\3\4" + bytes(40), "no GGUF file"),
        (header(version=1), "GGUF version 1"),
        (header(version=99), "GGUF version 99"),
        (header(version=3 << 24), "big-endian"),
        (b"GGUF", "ends inside the header"),
        (header()[:20], "ends inside the header"),
        (header(n_keys=1 << 40), "header is damaged"),
        (header(n_tensors=1 << 40), "header is damaged"),
        (header(n_keys=1), "ends inside metadata key 1 of 1"),
        (header(n_keys=1) + struct.pack("<Q", 1 << 62), "claims 4,611,686,018,427,387,904 bytes"),
        (header(n_keys=1) + text("k"), "ends inside k"),
        (header(n_keys=1) + text("k") + struct.pack("<I", 77), "unknown value type 77"),
        (header(n_keys=1) + text("k") + struct.pack("<IQ", KEY_STR, 1 << 60), "at most"),
        (header(n_keys=1) + text("k") + struct.pack("<IQ", KEY_STR, 1000), "ends inside k"),
        (header(n_keys=1) + text("k") + struct.pack("<IIQ", KEY_ARRAY, KEY_U32, 1 << 62), "ends inside k"),
        (header(n_keys=1) + text("k") + struct.pack("<IIQ", KEY_ARRAY, KEY_STR, 1 << 61), "ends inside k"),
        (header(n_keys=1) + text("k") + struct.pack("<IIQ", KEY_ARRAY, KEY_ARRAY, 1), "array of arrays"),
        (header(n_keys=1) + text("k") + struct.pack("<IIQ", KEY_ARRAY, 50, 1), "unknown type 50"),
        (header(n_keys=1) + text("") + struct.pack("<II", KEY_U32, 1), "empty"),
        (header(n_keys=2) + 2 * (text("k") + struct.pack("<II", KEY_U32, 1)), "a second 'k'"),
        (header(n_keys=1) + text("general.alignment") + struct.pack("<II", KEY_U32, 0), "not a power of two"),
        (header(n_keys=1) + text("general.alignment") + struct.pack("<II", KEY_U32, 24), "not a power of two"),
        (header(n_keys=1) + text("general.alignment") + struct.pack("<I", KEY_STR) + text("x"), "not a power of two"),
        (header(n_tensors=1) + text("n" * 64), "claims 64 bytes"),
        (header(n_tensors=1) + text("t") + struct.pack("<I", 9), "has 9 dimensions"),
        (header(n_tensors=1) + text("t") + struct.pack("<I", 0), "has 0 dimensions"),
        (header(n_tensors=1) + tensor("t", (4, 0)), "impossible shape"),
        (header(n_tensors=1) + tensor("t", (1 << 40, 1 << 40)), "impossible shape"),
        (header(n_tensors=1) + tensor("t", (4,), kind=99), "unknown type 99"),
        (header(n_tensors=1) + tensor("t", (33,), kind=8), "no multiple of a q8_0 block"),
        (header(n_tensors=1) + tensor("t", (4,), offset=5) + bytes(99), "no multiple of 32"),
        (header(n_tensors=1) + tensor("t", (400,)), "ends at byte"),
        (header(n_tensors=1) + tensor("t", (4,), offset=1 << 62), "ends at byte"),
        (header(n_tensors=2) + 2 * tensor("t", (1,)) + bytes(99), "same name"),
    ],
)
def test_damaged_files(write: Callable[[bytes], Path], data: bytes, message: str) -> None:
    path = write(data)
    with pytest.raises(GGUFError, match=message) as caught:
        read_gguf(path)
    assert str(path) in str(caught.value)


def test_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match="is a folder"):
        read_gguf(tmp_path)
    with pytest.raises(GGUFError, match="does not exist") as caught:
        read_gguf(tmp_path / "none.gguf")
    assert caught.value.hint


def test_every_truncation_is_a_typed_error(other_writer: Path, write: Callable[[bytes], Path]) -> None:
    data = other_writer.read_bytes()
    last = max(t.offset + t.n_bytes for t in read_gguf(other_writer).tensors.values())  # only padding follows
    cuts = [*range(0, 600), *range(600, last, 997), last - 1]
    for cut in cuts:
        with pytest.raises(GGUFError):
            read_gguf(write(data[:cut]))


def test_random_damage_never_escapes_as_another_error(other_writer: Path, write: Callable[[bytes], Path]) -> None:
    data, rng = bytearray(other_writer.read_bytes()), random.Random(7)
    refused = 0
    for _ in range(300):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 8)):
            damaged[rng.randrange(1000)] = rng.randrange(256)
        try:
            read_gguf(write(bytes(damaged)))
        except GGUFError:
            refused += 1
    assert refused > 100


def shard(folder: Path, number: int, count: int, *, name: str | None = None, arch: bool = True) -> Path:
    path = folder / (name or f"m-{number + 1:05d}-of-{count:05d}.gguf")
    keys = [text("split.no") + struct.pack("<II", KEY_U32, number), text("split.count") + struct.pack("<II", 4, count)]
    if arch and number == 0:
        keys.append(text("general.architecture") + struct.pack("<I", KEY_STR) + text("llama"))
    info = tensor(f"t{number}", (8,))
    body = header(n_tensors=1, n_keys=len(keys)) + b"".join(keys) + info
    path.write_bytes(body + bytes(-len(body) % 32) + bytes(32))
    return path


def test_split_model(tmp_path: Path) -> None:
    first = shard(tmp_path, 0, 2)
    second = shard(tmp_path, 1, 2)
    assert [list(file.tensors) for file in read_model(first)] == [["t0"], ["t1"]]
    with pytest.raises(GGUFError, match="is part 2 of 2 of a split model") as caught:
        read_model(second)
    assert str(first) in caught.value.hint
    second.unlink()
    with pytest.raises(GGUFError, match="m-00002-of-00002.gguf: does not exist"):
        read_model(first)


def test_renamed_part(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match="its name does not say so"):
        read_model(shard(tmp_path, 0, 2, name="renamed.gguf"))


def test_file_without_architecture(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match="names no architecture"):
        read_model(shard(tmp_path, 0, 1, arch=False))
