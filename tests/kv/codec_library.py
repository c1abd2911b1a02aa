"""The C codecs as a shared library of their own, for tests that need no build of llama.cpp."""

from __future__ import annotations

import ctypes
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

NATIVE = Path(__file__).resolve().parents[2] / "native"
SOURCES = [
    "codec.c",
    "dispatch.c",
    "encode.c",
    "portable.c",
    "search.c",
    "search_avx2.c",
    "search_avx512.c",
    "tables.c",
    "transform_avx2.c",
    "transform_avx512.c",
    "unpack_avx2.c",
    "unpack_avx512.c",
]
FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]

FloatArray = NDArray[np.float32]
ByteArray = NDArray[np.uint8]


class Description(ctypes.Structure):
    """turbo_type_desc of types.h."""

    _fields_ = [
        ("index", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("family", ctypes.c_char_p),
        ("bits", ctypes.c_int),
        ("block", ctypes.c_int),
        ("bytes", ctypes.c_int),
        ("window", ctypes.c_int),
        ("step", ctypes.c_int),
    ]


@dataclass(frozen=True)
class KvType:
    """A type as the library describes it."""

    index: int
    name: str
    family: str
    bits: int
    block: int
    bytes: int
    window: int
    step: int


def build(target: Path, extra_flags: tuple[str, ...] = (), with_descriptions: bool = True) -> Path:
    """Compile the codecs into the shared library `target`, warnings being errors; returns it."""
    sources = [str(NATIVE / "turbo" / "cpu" / name) for name in SOURCES]
    if with_descriptions:  # the descriptors are inline functions: export them
        shim = target.with_suffix(".c")
        shim.write_text(
            '#include "turbo/types.h"\n'
            "const turbo_type_desc *test_desc(int i);\n"
            "const turbo_type_desc *test_desc(int i) { return turbo_desc(i); }\n"
        )
        sources.append(str(shim))
    compiler = os.environ.get("CC", "cc")
    extra_flags += tuple(os.environ.get("TURBO_TEST_CFLAGS", "").split())  # sanitizers, by scripts/sanitize.py
    command = [compiler, *FLAGS, *extra_flags, "-I", str(NATIVE), *sources, "-o", str(target), "-lm"]
    subprocess.run(command, check=True)
    return target


class CodecLibrary:
    """Encode, decode, unpack, rotate and dot products of the C code, on numpy arrays."""

    def __init__(self, path: Path) -> None:
        self._lib = ctypes.CDLL(str(path))
        self._lib.test_desc.restype = ctypes.POINTER(Description)
        self._lib.turbo_simd_name.restype = ctypes.c_char_p
        self._descriptions = {}
        self.types: dict[str, KvType] = {}
        index = 0
        while pointer := self._lib.test_desc(index):
            d = pointer.contents
            name = d.name.decode()
            self._descriptions[name] = pointer
            self.types[name] = KvType(d.index, name, d.family.decode(), d.bits, d.block, d.bytes, d.window, d.step)
            index += 1

    @property
    def path(self) -> str:
        """The instruction set in use."""
        return str(self._lib.turbo_simd_name().decode())

    def select(self, path: str) -> bool:
        """Use an instruction set; False if this CPU lacks it."""
        return int(self._lib.turbo_simd_select(path.encode())) == 0

    def paths(self) -> list[str]:
        """The instruction sets this CPU has."""
        before = self.path
        found = [path for path in ("portable", "avx2", "avx512") if self.select(path)]
        self.select(before)
        return found

    def encode(self, name: str, x: FloatArray) -> ByteArray:
        """float32 [n, k * block] -> uint8 [n, k * bytes]."""
        kv = self.types[name]
        x = np.ascontiguousarray(x, dtype=np.float32)
        out = np.full((x.shape[0], x.shape[1] // kv.block * kv.bytes), 0xAA, dtype=np.uint8)
        self._lib.turbo_encode(self._descriptions[name], _pointer(x), _pointer(out), ctypes.c_int64(x.size))
        return out

    def decode(self, name: str, blocks: ByteArray) -> FloatArray:
        """uint8 [n, k * bytes] -> float32 [n, k * block]."""
        kv = self.types[name]
        blocks = np.ascontiguousarray(blocks, dtype=np.uint8)
        out = np.empty((blocks.shape[0], blocks.shape[1] // kv.bytes * kv.block), dtype=np.float32)
        self._lib.turbo_decode(self._descriptions[name], _pointer(blocks), _pointer(out), ctypes.c_int64(out.size))
        return out

    def unpack(self, name: str, blocks: ByteArray) -> tuple[NDArray[np.int8], FloatArray]:
        """uint8 [n, bytes] (rows may be padded) -> entries int8 [n, block], scales float32 [n]."""
        kv = self.types[name]
        count, stride = blocks.shape
        codes = np.empty((count, kv.block), dtype=np.int8)
        scales = np.empty(count, dtype=np.float32)
        self._lib.turbo_unpack(
            self._descriptions[name], _pointer(blocks), ctypes.c_size_t(stride), ctypes.c_int64(count),
            _pointer(codes), _pointer(scales),
        )  # fmt: skip
        return codes, scales

    def rotate(self, x: FloatArray, block: int, back: bool = False) -> FloatArray:
        """float32 [n] -> rotated (or un-rotated) [n]."""
        x = np.ascontiguousarray(x, dtype=np.float32)
        out = np.empty_like(x)
        call = self._lib.turbo_unrotate_row if back else self._lib.turbo_rotate_row
        call(_pointer(x), _pointer(out), ctypes.c_int64(x.size), ctypes.c_int(block))
        return out

    def vec_dot(self, name: str, blocks: ByteArray, rotated: FloatArray) -> float:
        """Dot product of one row of blocks with a rotated row."""
        result = ctypes.c_float()
        call = getattr(self._lib, f"turbo_vec_dot_{name}")
        zero = ctypes.c_size_t(0)
        call(ctypes.c_int(rotated.size), ctypes.byref(result), zero, _pointer(blocks), zero, _pointer(rotated), zero,
             ctypes.c_int(1))  # fmt: skip
        return float(result.value)


def _pointer(array: NDArray[np.generic]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
