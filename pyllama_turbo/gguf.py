"""Reads the header of a GGUF file in pure Python, before any native code sees the file.

Every length is checked against the file's size and against a limit before anything is allocated, so a damaged or
hostile file ends in a `GGUFError` that says what is wrong and where. Tensor data is never read. Large arrays (a
vocabulary) are skipped and kept as a `GGUFArray` that knows its type and length.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from .errors import GGUFError, MemoryLimitError
from .gguf_types import TENSOR_TYPES

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_KEYS = 65_536
MAX_TENSORS = 1 << 20
MAX_KEY_BYTES = 65_535
MAX_STRING_BYTES = 1 << 26
MAX_TENSOR_NAME_BYTES = 63
MAX_DIMS = 4
MAX_INLINE_ITEMS = 4096  # longer arrays stay in the file

# Value types of the format in their order: name and layout. Strings and arrays have a length of their own.
_STRING, _ARRAY = 8, 9
_TYPE_NAMES = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "array", "u64", "i64", "f64")
_SCALARS: Mapping[int, struct.Struct] = {
    number: struct.Struct(f"<{code}") for number, code in enumerate("BbHhIif?..Qqd") if code != "."
}
_U32, _U64 = _SCALARS[4], _SCALARS[10]

Scalar = bool | int | float | str


@dataclass(frozen=True)
class GGUFArray:
    """An array too long to keep: its element type and length, and where it starts in the file."""

    type: str
    length: int
    offset: int


Value = Scalar | tuple[Scalar, ...] | GGUFArray


@dataclass(frozen=True)
class TensorInfo:
    """One tensor: `shape` in ggml order (the contiguous dimension first), `offset` in bytes from the file's start."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    n_bytes: int


@dataclass(frozen=True)
class GGUFFile:
    """The header of one GGUF file: what `read_gguf` returns."""

    path: Path
    size: int
    version: int
    alignment: int
    data_offset: int
    metadata: Mapping[str, Value] = field(repr=False)
    tensors: Mapping[str, TensorInfo] = field(repr=False)

    @property
    def arch(self) -> str:
        """The architecture's name, "" if the file does not say (later parts of a split model do not)."""
        return self.string("general.architecture") or ""

    @property
    def n_weights(self) -> int:
        """Number of values in all tensors."""
        return sum(_product(t.shape) for t in self.tensors.values())

    @property
    def weights_bytes(self) -> int:
        """Bytes of all tensors of this file, without padding."""
        return sum(t.n_bytes for t in self.tensors.values())

    def get(self, key: str) -> Value | None:
        """The value of `key`, or None. A key that starts with a dot belongs to the architecture."""
        return self.metadata.get(self.arch + key if key.startswith(".") else key)

    def string(self, key: str) -> str | None:
        """The text under `key`, or None."""
        value = self.get(key)
        return value if isinstance(value, str) else None

    def integer(self, key: str, default: int = 0) -> int:
        """The integer under `key`, or `default` if there is none."""
        value = self.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def require(self, key: str, limit: int = (1 << 31) - 1) -> int:
        """The integer under `key`, 1 to `limit`.

        Raises:
            GGUFError: there is none, or it makes no sense.
        """
        value = self.integer(key, -1)
        if not 0 < value <= limit:
            _fail(self.path, f"has no usable {self.arch}{key}: it is no language model that this program can run")
        return value

    def per_layer(self, key: str, n_layer: int, default: int = 0) -> tuple[int, ...]:
        """An integer per layer: an array as it is, a single value repeated, `default` if there is none."""
        value = self.get(key)
        if isinstance(value, tuple):
            numbers = tuple(v for v in value if isinstance(v, int))
            if len(numbers) < n_layer:
                _fail(self.path, f"{self.arch}{key} has {len(numbers)} entries for {n_layer} layers")
            return numbers[:n_layer]
        return (self.integer(key, default),) * n_layer


def _fail(path: Path, reason: str, hint: str = "") -> NoReturn:
    raise GGUFError(f"{path}: {reason}", asked=path, hint=hint)


def _product(shape: tuple[int, ...]) -> int:
    n = 1
    for dim in shape:
        n *= dim
    return n


class _Cursor:
    """Reads values from a buffer and refuses to step over its end."""

    def __init__(self, buffer: mmap.mmap | bytes, path: Path) -> None:
        self.buffer = buffer
        self.path = path
        self.size = len(buffer)
        self.at = 0

    def need(self, n_bytes: int, what: str) -> None:
        if n_bytes > self.size - self.at:
            _fail(
                self.path,
                f"ends inside {what}: {n_bytes:,} bytes wanted at {self.at:,}, the file has {self.size:,}",
                "the download is incomplete or the file is damaged",
            )

    def unpack(self, layout: struct.Struct, what: str) -> Scalar:
        self.need(layout.size, what)
        value: Scalar = layout.unpack_from(self.buffer, self.at)[0]
        self.at += layout.size
        return value

    def u32(self, what: str) -> int:
        return int(self.unpack(_U32, what))

    def u64(self, what: str) -> int:
        return int(self.unpack(_U64, what))

    def skip(self, n_bytes: int, what: str) -> None:
        self.need(n_bytes, what)
        self.at += n_bytes

    def string(self, limit: int, what: str) -> str:
        length = self.u64(what)
        if length > limit:
            _fail(self.path, f"{what} claims {length:,} bytes; at most {limit:,} make sense")
        self.need(length, what)
        raw = self.buffer[self.at : self.at + length]
        self.at += length
        return raw.decode("utf-8", errors="replace")


def _read_value(cursor: _Cursor, type_id: int, what: str) -> Value:
    if type_id == _STRING:
        return cursor.string(MAX_STRING_BYTES, what)
    if type_id == _ARRAY:
        return _read_array(cursor, what)
    if type_id not in _SCALARS:
        _fail(cursor.path, f"{what} has the unknown value type {type_id}")
    return cursor.unpack(_SCALARS[type_id], what)


def _read_array(cursor: _Cursor, what: str) -> Value:
    type_id, length = cursor.u32(what), cursor.u64(what)
    start = cursor.at
    if type_id != _STRING and type_id not in _SCALARS:
        kind = "arrays" if type_id == _ARRAY else f"values of the unknown type {type_id}"
        _fail(cursor.path, f"{what} is an array of {kind}")
    # A string takes 8 bytes at least, so this bounds the loops below by the file's size.
    cursor.need(length * (8 if type_id == _STRING else _SCALARS[type_id].size), what)
    if length <= MAX_INLINE_ITEMS:
        if type_id == _STRING:
            return tuple(cursor.string(MAX_STRING_BYTES, what) for _ in range(length))
        return tuple(cursor.unpack(_SCALARS[type_id], what) for _ in range(length))
    if type_id == _STRING:
        for _ in range(length):
            cursor.skip(cursor.u64(what), what)
    else:
        cursor.skip(length * _SCALARS[type_id].size, what)
    return GGUFArray(_TYPE_NAMES[type_id], length, start)


def _read_metadata(cursor: _Cursor, n_keys: int) -> dict[str, Value]:
    metadata: dict[str, Value] = {}
    for index in range(n_keys):
        key = cursor.string(MAX_KEY_BYTES, f"metadata key {index + 1} of {n_keys}")
        if not key or key in metadata:
            _fail(cursor.path, f"metadata key {index + 1} of {n_keys} is {'empty' if not key else f'a second {key!r}'}")
        metadata[key] = _read_value(cursor, cursor.u32(key), key)
    return metadata


def _read_tensor(cursor: _Cursor, what: str) -> TensorInfo:
    """Tensor with its offset still relative to the data section."""
    name = cursor.string(MAX_TENSOR_NAME_BYTES, f"the name of {what}")
    n_dims = cursor.u32(name)
    if not 1 <= n_dims <= MAX_DIMS:
        _fail(cursor.path, f"tensor {name!r} has {n_dims} dimensions; 1 to {MAX_DIMS} are possible")
    shape = tuple(cursor.u64(name) for _ in range(n_dims))
    type_id, offset = cursor.u32(name), cursor.u64(name)
    kind = TENSOR_TYPES.get(type_id)
    if kind is None:
        _fail(
            cursor.path,
            f"tensor {name!r} has the unknown type {type_id}",
            "the file was made for a newer or a modified llama.cpp; convert it to a standard type",
        )
    if min(shape) < 1 or _product(shape) >= 1 << 63:
        _fail(cursor.path, f"tensor {name!r} has the impossible shape {shape}")
    if shape[0] % kind.block_values:
        _fail(cursor.path, f"tensor {name!r}: rows of {shape[0]} values are no multiple of a {kind.name} block")
    return TensorInfo(name, kind.name, shape, offset, _product(shape) // kind.block_values * kind.block_bytes)


def _read_tensors(cursor: _Cursor, n_tensors: int) -> list[TensorInfo]:
    tensors = [_read_tensor(cursor, f"tensor {i + 1} of {n_tensors}") for i in range(n_tensors)]
    if len({t.name for t in tensors}) != len(tensors):
        _fail(cursor.path, "two tensors have the same name")
    return tensors


def _place(cursor: _Cursor, tensors: list[TensorInfo], alignment: int) -> tuple[int, dict[str, TensorInfo]]:
    """Turn relative offsets into absolute ones and check that every tensor lies inside the file."""
    start = -(-cursor.at // alignment) * alignment
    placed = {}
    for t in tensors:
        offset = start + t.offset
        if t.offset % alignment:
            _fail(cursor.path, f"tensor {t.name!r} starts at an offset that is no multiple of {alignment}")
        if offset + t.n_bytes > cursor.size:
            _fail(
                cursor.path,
                f"tensor {t.name!r} ends at byte {offset + t.n_bytes:,}, the file has {cursor.size:,}",
                "the download is incomplete; fetch the file again",
            )
        placed[t.name] = TensorInfo(t.name, t.type, t.shape, offset, t.n_bytes)
    return start, placed


def _read_header(cursor: _Cursor) -> tuple[int, int, int]:
    """Version, number of tensors, number of metadata keys."""
    path = cursor.path
    magic = bytes(cursor.buffer[:4])
    if magic != MAGIC:
        shown = "is empty" if not magic else f"starts with {magic!r}, not with {MAGIC!r}"
        _fail(path, f"is no GGUF file: it {shown}", "llama.cpp's convert scripts make GGUF files from other formats")
    cursor.skip(4, "the header")
    version = cursor.u32("the header")
    if version not in VERSIONS:
        if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
            _fail(path, "is a big-endian GGUF file", "convert it to little endian")
        _fail(path, f"is GGUF version {version}; versions {VERSIONS[0]} and {VERSIONS[1]} are readable")
    n_tensors, n_keys = cursor.u64("the header"), cursor.u64("the header")
    if n_tensors > MAX_TENSORS or n_keys > MAX_KEYS:
        _fail(path, f"claims {n_tensors:,} tensors and {n_keys:,} metadata keys: the header is damaged")
    return version, n_tensors, n_keys


def _map(path: Path) -> mmap.mmap | bytes:
    try:
        if path.is_dir():
            _fail(path, "is a folder, not a GGUF file")
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return b""
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        _fail(path, "does not exist", "`pyllama-turbo models` lists models that can be fetched")
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise MemoryLimitError(f"{path}: no memory to map the file", asked=path.stat().st_size) from None
        _fail(path, f"cannot be read: {error.strerror}")


def read_gguf(path: str | os.PathLike[str]) -> GGUFFile:
    """Read and check the header of a GGUF file.

    Raises:
        GGUFError: the file is missing, unreadable, truncated, damaged, or of an unknown version or tensor type.
        MemoryLimitError: there is no room in the address space to map it.
    """
    file = Path(path)
    cursor = _Cursor(_map(file), file)
    version, n_tensors, n_keys = _read_header(cursor)
    metadata = _read_metadata(cursor, n_keys)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        _fail(file, f"general.alignment is {alignment!r}, not a power of two")
    tensors = _read_tensors(cursor, n_tensors)
    data_offset, placed = _place(cursor, tensors, alignment)
    return GGUFFile(file, cursor.size, version, alignment, data_offset, metadata, placed)


_SHARD = re.compile(r"^(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")


def read_model(path: str | os.PathLike[str]) -> tuple[GGUFFile, ...]:
    """Read the headers of a model: one file, or the parts of a split model given its first part.

    Raises:
        GGUFError: as `read_gguf`; also when `path` is a later part, or a part is missing, or the file has no
            architecture.
    """
    first = read_gguf(path)
    number, count = first.integer("split.no"), first.integer("split.count", 1)
    name = _SHARD.match(first.path.name)
    if count > 1 and name is None:
        _fail(first.path, f"is part {number + 1} of {count}, but its name does not say so", "restore the parts' names")
    shards = [first]
    if count > 1 and name is not None:
        names = [first.path.with_name(f"{name['stem']}-{i + 1:05d}-of-{count:05d}.gguf") for i in range(count)]
        if number != 0:
            _fail(first.path, f"is part {number + 1} of {count} of a split model", f"open the first part: {names[0]}")
        shards += [read_gguf(shard) for shard in names[1:]]
    if not first.arch:
        _fail(first.path, "names no architecture (general.architecture): it is no language model")
    return tuple(shards)
