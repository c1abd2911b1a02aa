#!/usr/bin/env python3
"""Train the codebooks of the turbo KV-cache types and write native/turbo/codebooks.inc.

    python scripts/train_codebooks.py                 train from scratch and write the file (about four minutes)
    python scripts/train_codebooks.py --check         train again and compare with the file: exit 1 if it differs
    python scripts/train_codebooks.py --evaluate      print the distortion of the tables in the file
    python scripts/train_codebooks.py --from FILE     start from (and take untrainable tables from) a codebooks.json

Which tables there are comes from native/turbo/types.h. Scalar tables are the Lloyd-Max levels of a unit normal.
Trellis tables are generalised Lloyd iterations: encode Gaussian blocks with the Viterbi algorithm, move every entry to
the mean of the values it coded, repeat. Training cannot repair a poor start, so each begins with quantiles of the
normal spread over the windows by a linear map under which the successors of every state, and its predecessors, cover
the whole range; the maps below are winners of a search among random ones. Tables with two values a step have no such
start here: they are kept as they stand in the file.

Everything is stored as int8 entries and one float32 unit. With one version of numpy the result is reproducible.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

NATIVE = Path(__file__).resolve().parent.parent / "native" / "turbo"
BLOCK = 128
STATES = 64
TRAIN_BLOCKS = 512
ITERATIONS = 240
SIGN_CANDIDATES = 65536

# Rank of a window = exclusive or of the columns of its set bits (bit 0 = oldest).
LINEAR_STARTS: dict[str, list[int]] = {
    "turbo2_tcq": [215, 77, 177, 34, 169, 200, 211, 156],
    "turbo3_tcq": [462, 267, 132, 500, 328, 27, 465, 398, 258],
}
# Rank of a window = multiplier * its bit reversal, modulo the number of windows.
MULTIPLIER_STARTS: dict[str, int] = {"turbo4_tcq": 627}
# Names of the tables in a codebooks.json (indexed with the mirrored window).
JSON_NAMES: dict[str, str] = {
    "turbo2_tcq": "turbo2_tcq_L8",
    "turbo3_tcq": "turbo3_tcq_L9",
    "turbo4_tcq": "turbo4_tcq_L10",
    "turbo2_tcq_v2": "k2_V2_L10",
    "turbo3_tcq_v2": "k3_V2_L12",
    "turbo3_tcq_v2_l10": "k3_V2_L10",
}

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Family:
    """A row of the table in types.h: k code bits a value, windows of L bits (0 = scalar), V values a step.

    A trial family is one of TURBO_TRIAL_FAMILIES: for measuring, not part of the format.
    """

    name: str
    bits: int
    window: int
    step: int
    trial: bool


@dataclass(frozen=True)
class Table:
    """int8 entries (V a window) and the float32 unit: rotated value = scale * unit * entry."""

    entries: IntArray
    unit: np.float32


def read_families() -> list[Family]:
    """The rows of TURBO_FAMILIES and TURBO_TRIAL_FAMILIES in types.h, in their order."""
    families = []
    trial = False
    for line in (NATIVE / "types.h").read_text().splitlines():
        if line.startswith("#define"):
            trial = line.startswith("#define TURBO_TRIAL_FAMILIES")
        row = re.search(r"F\(X, *\w+, *(\w+), *(\d+), *(\d+), *(\d+)\)", line)
        if row is not None:
            name, bits, window, step = row.groups()
            families.append(Family(name, int(bits), int(window), int(step), trial))
    return families


def gaussian_blocks(rng: np.random.Generator, count: int) -> FloatArray:
    """`count` Gaussian blocks of 128 values, each normalised to an rms of 1: what rotated blocks look like."""
    y = rng.standard_normal((count, BLOCK), dtype=np.float32)
    rms = np.sqrt(np.mean(np.square(y, dtype=np.float64), axis=1, keepdims=True))
    blocks: FloatArray = (y / rms).astype(np.float32)
    return blocks


# ---- trellis ---------------------------------------------------------------------------------------------------------


def viterbi(y: FloatArray, table: FloatArray, family: Family) -> IntArray:
    """Windows [blocks, steps] of the path of least squared error of each block [blocks, 128], free start state."""
    symbols = 1 << family.bits * family.step
    states = len(table) // family.step // symbols
    rest = max(states // symbols, 1)
    books = table.reshape(states, symbols, family.step)
    steps = y.reshape(len(y), -1, family.step)
    history = np.zeros((steps.shape[1] + 1, len(y), states), dtype=np.float32)
    predecessors = (np.arange(states)[:, None] * symbols + np.arange(symbols)) % states
    for i in range(steps.shape[1]):
        best = history[i + 1]
        best.fill(np.inf)
        for p in range(symbols):
            old = history[i][:, predecessors[:rest, p]]
            metric = np.tile(old, states // rest)
            for v in range(family.step):
                metric += np.square(steps[:, i, v, None] - books[None, :, p, v])
            np.minimum(best, metric, out=best)
    windows = np.empty((len(y), steps.shape[1]), dtype=np.int64)
    blocks = np.arange(len(y))[:, None]
    state = history[-1].argmin(axis=1)
    for i in range(steps.shape[1] - 1, -1, -1):
        metric = history[i][blocks, predecessors[state]]
        for v in range(family.step):
            metric = metric + np.square(steps[:, i, v, None] - books[state, :, v])
        windows[:, i] = state * symbols + metric.argmin(axis=1)
        state = windows[:, i] % states
    return windows


def fitted_mse(y: FloatArray, decoded: FloatArray) -> float:
    """Mean squared error of blocks of rms 1 after the best scale for each."""
    cross = np.sum(y * decoded, axis=1, dtype=np.float64)
    energy = np.sum(np.square(decoded), axis=1, dtype=np.float64)
    return float(np.mean(1 - cross**2 / energy / BLOCK))


def trellis_mse(table: FloatArray, family: Family, count: int = 2048) -> float:
    """Relative MSE of a trellis table on fresh blocks, one Viterbi pass at scale 1."""
    rng = np.random.default_rng(20261)
    total = 0.0
    for _ in range(count // 256):
        y = gaussian_blocks(rng, 256)
        decoded = table.reshape(-1, family.step)[viterbi(y, table, family)].reshape(y.shape)
        total += fitted_mse(y, decoded) * 256
    return total / count


def bit_reversal(bits: int) -> IntArray:
    """For every number of `bits` bits, the number with its bits in the opposite order."""
    w = np.arange(1 << bits)
    reversed_w: IntArray = np.sum([(w >> b & 1) << (bits - 1 - b) for b in range(bits)], axis=0)
    return reversed_w


def structured_start(family: Family) -> FloatArray:
    """Quantiles of the unit normal, dealt to the windows by the family's linear map."""
    w = np.arange(1 << family.window)
    if family.name in LINEAR_STARTS:
        rank = np.zeros_like(w)
        for bit, column in enumerate(LINEAR_STARTS[family.name]):
            rank ^= np.where(w >> bit & 1, column, 0)
    else:
        rank = MULTIPLIER_STARTS[family.name] * bit_reversal(family.window) % len(w)
    normal = NormalDist()
    quantiles = np.array([normal.inv_cdf((i + 0.5) / len(w)) for i in range(len(w))], dtype=np.float32)
    return quantiles[rank]


def train_trellis(family: Family, start: FloatArray, iterations: int, report: Callable[[str], None]) -> FloatArray:
    """Generalised Lloyd from `start`: over-relaxed at first, then averaging over more and more blocks."""
    rng = np.random.default_rng(17 + family.bits)
    table = start.astype(np.float64)
    sums = np.zeros(len(table))
    visits = np.zeros(len(table))
    for i in range(iterations):
        progress = i / iterations
        memory = 0.3 if progress < 0.4 else 0.8 if progress < 0.75 else 0.95
        y = gaussian_blocks(rng, TRAIN_BLOCKS)
        windows = viterbi(y, table.astype(np.float32), family).ravel()
        sums = memory * sums + np.bincount(windows, weights=y.ravel(), minlength=len(table))
        visits = memory * visits + np.bincount(windows, minlength=len(table))
        mean = np.divide(sums, visits, out=table.copy(), where=visits > 0)
        table += (1.3 if progress < 0.5 else 1.0) * (mean - table)
        if i % 40 == 39:
            report(f"  {family.name}: {i + 1} of {iterations} iterations")
    return table.astype(np.float32)


def to_int8(values: FloatArray) -> Table:
    """Entries with the largest magnitude at 127, and the unit that undoes it."""
    largest = float(np.abs(values).max())
    return Table(np.rint(values / largest * 127).astype(np.int64), np.float32(largest / 127))


# ---- scalar ----------------------------------------------------------------------------------------------------------


def lloyd_max(count: int) -> NDArray[np.float64]:
    """The `count` levels of the quantiser of least squared error for a unit normal."""
    normal = NormalDist()
    levels = np.array([normal.inv_cdf((i + 0.5) / count) for i in range(count)])
    for _ in range(20000):
        edges = [-np.inf, *((levels[1:] + levels[:-1]) / 2), np.inf]
        mass = np.diff([normal.cdf(e) for e in edges])
        density = np.array([normal.pdf(e) for e in edges])
        moved = (density[:-1] - density[1:]) / mass
        if np.abs(moved - levels).max() < 1e-12:
            break
        levels = moved
    symmetric: NDArray[np.float64] = (levels - levels[::-1]) / 2
    return symmetric


def scalar_mse(levels: NDArray[np.float64]) -> float:
    """Exact MSE of a unit normal quantised to the nearest of `levels`."""
    normal = NormalDist()
    edges = np.array([-np.inf, *((levels[1:] + levels[:-1]) / 2), np.inf])
    mass = np.diff([normal.cdf(e) for e in edges])
    density = np.array([normal.pdf(e) for e in edges])
    first = density[:-1] - density[1:]
    return float(1 - 2 * np.sum(levels * first) + np.sum(levels**2 * mass))


def scalar_table(family: Family) -> Table:
    """Lloyd-Max levels as int8: of all units, the one whose rounded levels lose least."""
    levels = lloyd_max(1 << family.bits)
    best = min(
        (float(levels[-1]) / top for top in np.arange(100, 127.01, 0.05)),
        key=lambda unit: scalar_mse(np.rint(levels / unit) * unit),
    )
    return Table(np.rint(levels / best).astype(np.int64), np.float32(best))


# ---- signs -----------------------------------------------------------------------------------------------------------


def signs(n: int) -> bytes:
    """n sign bits: of the hashes of a counted name, the first whose Walsh spectrum has the lowest peak.

    A flat spectrum keeps constant and alternating vectors from landing in a few rotated values.
    """
    hashes = [
        hashlib.sha256(f"pyllama_turbo signs {n} {c}".encode()).digest()[: n // 8] for c in range(SIGN_CANDIDATES)
    ]
    bits = np.unpackbits(np.frombuffer(b"".join(hashes), dtype=np.uint8).reshape(-1, n // 8), axis=1, bitorder="little")
    spectrum = 1 - 2 * bits.astype(np.int16)
    width = 1
    while width < n:
        pairs = spectrum.reshape(len(spectrum), -1, 2, width)
        spectrum = np.concatenate([pairs[:, :, :1] + pairs[:, :, 1:], pairs[:, :, :1] - pairs[:, :, 1:]], axis=2)
        width *= 2
    peaks = np.abs(spectrum.reshape(len(hashes), n)).max(axis=1)
    return hashes[int(peaks.argmin())]


# ---- the file --------------------------------------------------------------------------------------------------------

HEADER = """\
// Generated by scripts/train_codebooks.py: signs and codebooks of the turbo KV-cache types. Do not edit.
//
// turbo_signs_N: bit i % 32 of word i / 32 is 1 where value i of an N-value block changes sign before the transform.
// turbo_book_<family>: rotated value = scale * TURBO_UNIT_<family> * entry; scalar types are indexed by code, trellis
// types by window (with two values a step, entries 2w and 2w + 1). TURBO_UNIT_N_<family> = float32(unit / sqrt(N)).
// No include guard: define TURBO_TABLE (storage of the arrays, `static const` if absent) and include where needed.

#ifndef TURBO_TABLE
#define TURBO_TABLE static const
#endif
"""


def lines_of(families: list[Family], tables: dict[str, Table]) -> Iterator[str]:
    """codebooks.inc, line by line."""
    digest = hashlib.sha256()
    yield from HEADER.splitlines()
    yield ""
    for n in (128, 64):
        packed = signs(n)
        digest.update(packed)
        words = ", ".join(f"0x{word:08x}u" for word in struct.unpack(f"<{n // 32}I", packed))
        yield f"TURBO_TABLE uint32_t turbo_signs_{n}[{n // 32}] = {{{words}}};"
    for family in families:
        name, table = family.name, tables[family.name]
        if not family.trial:
            digest.update(name.encode() + table.entries.astype(np.int8).tobytes() + struct.pack("<f", table.unit))
        yield ""
        yield f"#define TURBO_UNIT_{name} {float(table.unit).hex()}f // {float(table.unit):.9g}"
        for n in (128, 64):
            yield f"#define TURBO_UNIT_{n}_{name} {float(np.float32(float(table.unit) / np.sqrt(n))).hex()}f"
        yield f"TURBO_TABLE int8_t turbo_book_{name}[{len(table.entries)}] = {{"
        for i in range(0, len(table.entries), 20):
            yield "    " + " ".join(f"{entry}," for entry in table.entries[i : i + 20])
        yield "};"
    yield ""
    yield "// First 8 bytes of SHA-256 over the signs, then name, entries and unit of each family that is no trial."
    yield f"#define TURBO_CODEBOOK_HASH 0x{digest.digest()[:8].hex()}ull"
    yield ""
    yield "#undef TURBO_TABLE"


def read_tables(path: Path) -> dict[str, Table]:
    """The tables that a codebooks.inc holds."""
    text = path.read_text()
    tables = {}
    for name, body in re.findall(r"turbo_book_(\w+)\[\d+\] = \{([^}]*)\}", text):
        unit = re.search(rf"#define TURBO_UNIT_{name} (\S+)f ", text)
        assert unit is not None, f"{path}: no unit for {name}"
        entries = np.array([int(entry) for entry in body.replace(",", " ").split()], dtype=np.int64)
        tables[name] = Table(entries, np.float32(float.fromhex(unit.group(1))))
    return tables


def read_json(path: Path, family: Family) -> FloatArray:
    """A family's table of a codebooks.json, re-indexed to our window order."""
    values = np.array(json.loads(path.read_text())[JSON_NAMES[family.name]]["values"], dtype=np.float32)
    return values.reshape(-1, family.step)[bit_reversal(family.window)].ravel()


def make_tables(families: list[Family], source: Path | None, report: Callable[[str], None]) -> dict[str, Table]:
    """Every table: computed, trained, or kept."""
    kept = read_tables(NATIVE / "codebooks.inc") if (NATIVE / "codebooks.inc").exists() else {}
    tables = {}
    for family in families:
        if family.window == 0:
            tables[family.name] = scalar_table(family)
        elif family.step == 1:
            start = structured_start(family) if source is None else read_json(source, family)
            tables[family.name] = to_int8(train_trellis(family, start, ITERATIONS, report))
        else:
            tables[family.name] = kept[family.name] if source is None else to_int8(read_json(source, family))
    return tables


def evaluate(families: list[Family], tables: dict[str, Table]) -> None:
    """Print the distortion of each table: unit normal, scale fitted but not rounded, no search over scales."""
    for family in families:
        table = tables[family.name]
        values = (table.entries * float(table.unit)).astype(np.float32)
        mse = scalar_mse(values.astype(np.float64)) if family.window == 0 else trellis_mse(values, family)
        print(f"{family.name:20} k={family.bits} L={family.window:2} V={family.step}  relative MSE {mse:.6f}")


def main() -> int:
    """Command line: see the module's docstring; 1 if `--check` finds other tables than the file's."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="train again and compare with the file")
    parser.add_argument("--evaluate", action="store_true", help="only print the distortion of the file's tables")
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE", help="a codebooks.json to start from")
    args = parser.parse_args()
    target = NATIVE / "codebooks.inc"
    families = read_families()
    if args.evaluate:
        evaluate(families, read_tables(target))
        return 0
    tables = make_tables(families, args.source, lambda line: print(line, file=sys.stderr))
    text = "\n".join(lines_of(families, tables)) + "\n"
    evaluate(families, tables)
    if args.check:
        same = text == target.read_text()
        print(f"{target.name}: {'identical' if same else 'DIFFERS'}")
        return 0 if same else 1
    target.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
