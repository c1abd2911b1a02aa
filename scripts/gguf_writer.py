"""A minimal GGUF version 3 writer that streams tensors, for generated test models.

Only what the generators need: scalars, strings and flat arrays as metadata; tensors whose bytes come from an array or
from an iterable of chunks, so that a file of many gigabytes never has to fit in memory. The file appears under its
final name only when it is complete.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

ALIGNMENT = 32
VERSION = 3

# GGUF metadata value types (the numbers are part of the file format).
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9

# Tensor types the generators write: name -> (ggml id, values a block, bytes a block).
TENSOR_TYPES = {"f32": (0, 1, 4), "f16": (1, 1, 2), "q4_0": (2, 32, 18), "q8_0": (8, 32, 34)}

Scalar = bool | int | float | str
Value = Scalar | Sequence[Scalar]
Chunks = Callable[[], Iterable[bytes]]


@dataclass(frozen=True)
class _Tensor:
    name: str
    shape: tuple[int, ...]
    type_id: int
    n_bytes: int
    chunks: Chunks


def tensor_bytes(shape: Sequence[int], type_name: str) -> int:
    """Bytes of a tensor of `shape` (ggml order: the contiguous dimension first)."""
    _, block_values, block_bytes = TENSOR_TYPES[type_name]
    if shape[0] % block_values:
        raise ValueError(f"row of {shape[0]} values is no multiple of a {type_name} block of {block_values}")
    return int(np.prod(shape, dtype=np.int64)) // block_values * block_bytes


def _string(text: str) -> bytes:
    raw = text.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def _scalar(value: Scalar) -> tuple[int, bytes]:
    """GGUF type number and bytes of one value; bool is tested before int because it is one."""
    if isinstance(value, bool):
        return BOOL, struct.pack("<?", value)
    if isinstance(value, int):
        return (UINT32, struct.pack("<I", value)) if value >= 0 else (INT32, struct.pack("<i", value))
    if isinstance(value, float):
        return FLOAT32, struct.pack("<f", value)
    return STRING, _string(value)


def _value(value: Value) -> bytes:
    if isinstance(value, (bool, int, float, str)):
        kind, raw = _scalar(value)
        return struct.pack("<I", kind) + raw
    kinds = {_scalar(v)[0] for v in value}
    if kinds <= {UINT32, INT32}:  # arrays of integers are signed: llama.cpp insists on it for token classes
        kinds = {INT32}
    if len(kinds) != 1 or not value:
        raise ValueError("a metadata array needs at least one value, all of one type")
    kind = kinds.pop()
    items = [struct.pack("<i", v) if kind == INT32 else _scalar(v)[1] for v in value]
    return struct.pack("<IIQ", ARRAY, kind, len(items)) + b"".join(items)


class GGUFWriter:
    """Collects metadata and tensors, then writes them in one pass on a clean exit of the `with` block."""

    def __init__(self, path: str | os.PathLike[str], arch: str) -> None:
        self.path = Path(path)
        self.arch = arch
        self._metadata: dict[str, Value] = {"general.architecture": arch, "general.alignment": ALIGNMENT}
        self._tensors: list[_Tensor] = []

    def set(self, key: str, value: Value) -> None:
        """Set a metadata value; a key that starts with a dot belongs to the architecture."""
        self._metadata[self.arch + key if key.startswith(".") else key] = value

    def add(self, name: str, values: npt.NDArray[np.float32] | npt.NDArray[np.float16]) -> None:
        """Add a float tensor from a numpy array (numpy order: the contiguous dimension last)."""
        type_name = {"float32": "f32", "float16": "f16"}[values.dtype.name]
        data = np.ascontiguousarray(values)
        self.add_chunks(name, data.shape[::-1], type_name, lambda: [data.tobytes()])

    def add_chunks(self, name: str, shape: Sequence[int], type_name: str, chunks: Chunks) -> None:
        """Add a tensor of ggml-order `shape` whose bytes are produced by `chunks` when the file is written."""
        type_id = TENSOR_TYPES[type_name][0]
        self._tensors.append(_Tensor(name, tuple(shape), type_id, tensor_bytes(shape, type_name), chunks))

    def write(self) -> Path:
        """Write the file; returns its path."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(f"{self.path.name}.{os.getpid()}.part")
        try:
            with partial.open("wb") as file:
                file.write(self._header())
                for tensor in self._tensors:
                    _pad(file)
                    _write_tensor(file, tensor)
                _pad(file)
            partial.replace(self.path)
        finally:
            partial.unlink(missing_ok=True)
        return self.path

    def _header(self) -> bytes:
        parts = [b"GGUF", struct.pack("<IQQ", VERSION, len(self._tensors), len(self._metadata))]
        parts += [_string(key) + _value(value) for key, value in self._metadata.items()]
        offset = 0
        for t in self._tensors:
            dims = struct.pack(f"<I{len(t.shape)}Q", len(t.shape), *t.shape)
            parts.append(_string(t.name) + dims + struct.pack("<IQ", t.type_id, offset))
            offset += -(-t.n_bytes // ALIGNMENT) * ALIGNMENT
        return b"".join(parts)

    def __enter__(self) -> GGUFWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None:
            self.write()


def _pad(file: BinaryIO) -> None:
    file.write(b"\0" * (-file.tell() % ALIGNMENT))


def _write_tensor(file: BinaryIO, tensor: _Tensor) -> None:
    written = 0
    for chunk in tensor.chunks():
        written += file.write(chunk)
    if written != tensor.n_bytes:
        raise ValueError(f"{tensor.name}: {written} bytes written, {tensor.n_bytes} expected")
