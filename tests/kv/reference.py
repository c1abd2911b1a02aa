"""Reference of every KV type in numpy, written from docs/formats.md: an exact decoder and slow encoders.

Decoding follows the page step by step. The encoders use double precision and no shortcut, to judge the fast ones by.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CODEBOOKS = Path(__file__).resolve().parents[2] / "native" / "turbo" / "codebooks.inc"
FAMILIES = {
    # name: bits a value, window bits (0 = scalar), values a step
    "turbo2": (2, 0, 1),
    "turbo3": (3, 0, 1),
    "turbo4": (4, 0, 1),
    "turbo2_tcq": (2, 8, 1),
    "turbo3_tcq": (3, 9, 1),
    "turbo4_tcq": (4, 10, 1),
    "turbo2_tcq_v2": (2, 10, 2),
    "turbo3_tcq_v2": (3, 12, 2),
    "turbo3_tcq_v2_l10": (3, 10, 2),
}
HEADER_BITS = 16
SCALE_BITS = 10

ByteArray = NDArray[np.uint8]
FloatArray = NDArray[np.float32]
DoubleArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Format:
    """A type: bits a value, window bits, values a step, values a block, table, U and C."""

    bits: int
    window: int
    step: int
    n: int
    table: IntArray
    unit: np.float32
    constant: np.float32

    @property
    def bytes(self) -> int:
        return 2 + self.bits * self.n // 8


def _define(name: str) -> np.float32:
    match = re.search(rf"#define {name} (\S+)f\b", CODEBOOKS.read_text())
    assert match is not None, f"{name} is not in {CODEBOOKS}"
    return np.float32(float.fromhex(match.group(1)))


def _array(name: str) -> list[int]:
    match = re.search(rf"\b{name}\[\d+\] = \{{([^}}]*)\}}", CODEBOOKS.read_text())
    assert match is not None, f"{name} is not in {CODEBOOKS}"
    return [int(word.rstrip("u"), 0) for word in match.group(1).replace(",", " ").split()]


def type_names(trial: bool = False) -> list[str]:
    """Names of all types, both block sizes; with `trial`, those with two values a step as well."""
    return [family + end for family in FAMILIES if trial or "_v2" not in family for end in ("", "_64")]


def format_of(name: str) -> Format:
    """The format of a type, "turbo3" or "turbo3_64"."""
    family, n = (name[:-3], 64) if name.endswith("_64") else (name, 128)
    bits, window, step = FAMILIES[family]
    table = np.array(_array(f"turbo_book_{family}"), dtype=np.int64)
    return Format(bits, window, step, n, table, _define(f"TURBO_UNIT_{family}"), _define(f"TURBO_UNIT_{n}_{family}"))


def signs(n: int) -> IntArray:
    """The n signs, +1 or -1."""
    words = np.array(_array(f"turbo_signs_{n}"), dtype="<u4")
    bits: IntArray = 1 - 2 * np.unpackbits(words.view(np.uint8), bitorder="little").astype(np.int64)
    return bits


def hadamard_matrix(n: int) -> IntArray:
    """H[i][j] = (-1)^popcount(i & j)."""
    ones = np.array([[(i & j).bit_count() for j in range(n)] for i in range(n)])
    matrix: IntArray = 1 - 2 * (ones % 2)
    return matrix


# ---- decoding --------------------------------------------------------------------------------------------------------


def _stream(blocks: ByteArray) -> IntArray:
    return np.unpackbits(blocks, axis=1, bitorder="little").astype(np.int64)


def _number(bits: IntArray) -> IntArray:
    value: IntArray = np.sum(bits << np.arange(bits.shape[-1]), axis=-1)
    return value


def scales(blocks: ByteArray, form: Format) -> FloatArray:
    """Stored scales [blocks] as float32."""
    header = blocks[:, 0].astype(np.uint16) | blocks[:, 1].astype(np.uint16) << 8
    if form.window:
        header = (header & ((1 << SCALE_BITS) - 1)) << 5
    return header.astype(np.uint16).view(np.float16).astype(np.float32)


def _scalar_codes(blocks: ByteArray, form: Format) -> IntArray:
    groups = np.ascontiguousarray(blocks[:, 2:]).view("<u4").reshape(len(blocks), form.n // 32, form.bits)
    codes = np.zeros((len(blocks), form.n // 32, 32), dtype=np.int64)
    for m in range(8):
        nibbles = (groups >> np.uint32(4 * m) & np.uint32(15)).astype(np.int64)
        for p in range(form.bits):
            if form.bits == 2:
                codes[:, :, 8 * p + m] = nibbles[:, :, p] & 3
                codes[:, :, 16 + 8 * p + m] = nibbles[:, :, p] >> 2
            elif form.bits == 3:
                codes[:, :, 8 * p + m] = nibbles[:, :, p] & 7
                codes[:, :, 24 + m] |= (nibbles[:, :, p] >> 3) << p
            else:
                codes[:, :, 8 * p + m] = nibbles[:, :, p]
    return codes.reshape(len(blocks), form.n)


def codes_of(blocks: ByteArray, form: Format) -> IntArray:
    """Codes (scalar) or windows (trellis) of blocks [count, bytes], one a step."""
    if not form.window:
        return _scalar_codes(blocks, form)
    bits = _stream(blocks)
    symbol = form.bits * form.step
    ends = [HEADER_BITS + symbol * (j + 1) for j in range(form.n // form.step)]
    return np.stack([_number(bits[:, end - form.window : end]) for end in ends], axis=1)


def entries_of(blocks: ByteArray, form: Format) -> IntArray:
    """The integers T [count, n] of the rotated values."""
    entries: IntArray = form.table.reshape(-1, form.step)[codes_of(blocks, form)].reshape(len(blocks), form.n)
    return entries


def decode(blocks: ByteArray, name: str) -> FloatArray:
    """Values [count, n] of blocks [count, bytes], bit for bit."""
    form = format_of(name)
    z = entries_of(blocks, form) @ hadamard_matrix(form.n)
    with np.errstate(invalid="ignore"):  # blocks marked as not a number
        factor = scales(blocks, form) * form.constant
        values: FloatArray = (signs(form.n) * z).astype(np.float32) * factor[:, None]
    return values


# ---- encoding, slowly ------------------------------------------------------------------------------------------------


def rotate(x: FloatArray, n: int) -> DoubleArray:
    """Rotated blocks [count, n] in double precision."""
    y: DoubleArray = (x.astype(np.float64) * signs(n)) @ hadamard_matrix(n) / np.sqrt(n)
    return y


def _viterbi(y: DoubleArray, form: Format, scale: DoubleArray) -> IntArray:
    """Windows [count, steps] of least squared error at given scales [count], by exhaustive dynamic programming."""
    symbol_count = 1 << form.bits * form.step
    state_count = (1 << form.window) // symbol_count
    windows = np.arange(1 << form.window)
    table = form.table.reshape(-1, form.step)
    target = (y / (scale * float(form.unit))[:, None]).reshape(len(y), -1, form.step)
    metric = np.zeros((len(y), state_count))
    survivors = []
    for j in range(target.shape[1]):
        error = metric[:, windows % state_count]
        for v in range(form.step):
            error = error + np.square(target[:, j, v, None] - table[None, :, v])
        by_state = error.reshape(len(y), state_count, symbol_count)
        survivors.append(by_state.argmin(axis=2))
        metric = by_state.min(axis=2)
    rows = np.arange(len(y))
    state = metric.argmin(axis=1)
    path = np.empty((len(y), target.shape[1]), dtype=np.int64)
    for j in range(target.shape[1] - 1, -1, -1):
        path[:, j] = state * symbol_count + survivors[j][rows, state]
        state = path[:, j] % state_count
    return path


def _half(value: DoubleArray, trellis: bool) -> NDArray[np.uint16]:
    """Bit patterns of the nearest storable scales."""
    bits = value.astype(np.float16).view(np.uint16)
    if not trellis:
        return bits
    low = bits & np.uint16(0xFFE0)
    high = np.minimum(low + np.uint16(32), np.uint16(0x7BE0)).astype(np.uint16)
    distance = [np.abs(candidate.view(np.float16).astype(np.float64) - value) for candidate in (low, high)]
    return np.where(distance[0] <= distance[1], low, high)


def best_error(x: FloatArray, name: str, offsets: tuple[int, ...] = (-3, 0, 3)) -> DoubleArray:
    """Squared error [count] of the best of several encodings of trellis blocks, as the page describes the search.

    Scales tried: the block's rms rounded, and `offsets` units of the stored field away.
    """
    form = format_of(name)
    y = rotate(x, form.n)
    centre = _half(np.sqrt(np.mean(np.square(y), axis=1)), True)
    table = form.table.reshape(-1, form.step)
    best = np.full(len(y), np.inf)
    for offset in offsets:
        scale = (centre.astype(np.int64) + 32 * offset).astype(np.uint16).view(np.float16).astype(np.float64)
        entries = table[_viterbi(y, form, scale)].reshape(y.shape) * float(form.unit)
        fitted = np.sum(y * entries, axis=1) / np.sum(np.square(entries), axis=1)
        stored = _half(fitted, True).view(np.float16).astype(np.float64)
        best = np.minimum(best, np.sum(np.square(y - stored[:, None] * entries), axis=1))
    return best


def best_scalar_error(x: FloatArray, name: str) -> DoubleArray:
    """Squared error [count] of scalar blocks: nearest levels at the best of 65 gains, scale unrounded."""
    form = format_of(name)
    y = rotate(x, form.n)
    levels = form.table * float(form.unit)
    middles = (levels[1:] + levels[:-1]) / 2
    rms = np.sqrt(np.mean(np.square(y), axis=1, keepdims=True))
    best = np.full(len(y), np.inf)
    for gain in np.linspace(0.5, 2.5, 65):
        entries = levels[np.searchsorted(middles, y / (rms * gain))]
        fitted = np.sum(y * entries, axis=1, keepdims=True) / np.sum(np.square(entries), axis=1, keepdims=True)
        best = np.minimum(best, np.sum(np.square(y - fitted * entries), axis=1))
    return best
