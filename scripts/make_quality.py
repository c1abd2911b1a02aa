#!/usr/bin/env python3
"""Write the tables of docs/quality.md from the records in docs/results.

    python scripts/make_quality.py [--check]

`--check` writes nothing and ends with 1 if the page is out of date.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from generated_pages import settle  # noqa: E402

from pyllama_turbo.report.records import read_records  # noqa: E402

PAGE = ROOT / "docs" / "quality.md"
RESULTS = ROOT / "docs" / "results"
UNIT = ("turbo3_tcq", "turbo3_tcq")  # the pair whose cost is 1
TYPES = ("turbo4_tcq", "turbo3_tcq", "q4_0")
BUILT_IN = "built-in"
Record = dict[str, Any]
Pair = tuple[str, str]


@dataclass(frozen=True)
class Subject:
    """A model and where it was measured."""

    name: str
    start: str  # of its file name
    backend: str

    @property
    def column(self) -> str:
        """Heading of its column."""
        return f"{self.name}, {'GPU' if self.backend == 'cuda' else 'CPU'}"


SUBJECTS = (
    Subject("SmolLM2 135M", "SmolLM2", "cpu"),
    Subject("Gemma-3 270M", "gemma-3-270m", "cpu"),
    Subject("Qwen2.5-Coder 0.5B", "qwen2.5-coder-0.5b", "cpu"),
    Subject("Qwen2.5-Coder 1.5B", "qwen2.5-coder-1.5b", "cuda"),
)


def records(folder: Path = RESULTS) -> list[Record]:
    """All divergence records of a folder that were measured, files and lines in order."""
    found = read_records(sorted(folder.glob("*.jsonl")))
    return [r for r in found if r.get("kind") == "kld" and r.get("status") == "ok"]


def _of(rows: Iterable[Record], subject: Subject, **wanted: Any) -> list[Record]:
    fields = {"backend": subject.backend, "path": "prefill", **wanted}
    return [r for r in rows if r["model"].startswith(subject.start) and all(r[k] == v for k, v in fields.items())]


def _keys(record: Record) -> str:
    return str(record["context"].get("k_center", "auto"))


def short(rows: Iterable[Record], subject: Subject, keys: str = "auto") -> dict[Pair, Record]:
    """The built-in text in chunks of 512: the latest record of each pair."""
    found = [r for r in _of(rows, subject, n_ctx=512) if r["text"].startswith(BUILT_IN) and _keys(r) == keys]
    return {(r["type_k"], r["type_v"]): r for r in found if not r["floor"]}


def floor(rows: Iterable[Record], subject: Subject) -> float:
    """KL divergence that other roundings alone make, on the built-in text."""
    found = [r for r in _of(rows, subject, n_ctx=512, floor=True) if r["text"].startswith(BUILT_IN)]
    return float(found[-1]["kld_mean"]) if found else math.nan


def costs(rows: Sequence[Record]) -> dict[Pair, float]:
    """What each pair costs beside `UNIT`: KL divergence above the floor, mean over the models that have it."""
    shares: dict[Pair, list[float]] = {}
    for subject in SUBJECTS:
        table, level = short(rows, subject), floor(rows, subject)
        for pair, r in table.items():
            if "f16" not in pair:
                shares.setdefault(pair, []).append((r["kld_mean"] - level) / (table[UNIT]["kld_mean"] - level))
    return {pair: sum(found) / len(found) for pair, found in shares.items()}


def _cell(record: Record | None) -> str:
    return f"{record['kld_mean']:.4f} ± {record['kld_se']:.4f}" if record else ""


def _name(pair: Pair) -> str:
    return pair[0] if pair[0] == pair[1] else "/".join(pair)


def _markdown(headers: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    head = ["| " + " | ".join(headers) + " |", "|" + "---|" * len(headers)]
    return "\n".join([*head, *("| " + " | ".join(line) + " |" for line in lines)]) + "\n"


def pair_table(rows: Sequence[Record]) -> str:
    """Every measured pair without f16, fewest bits last, by model."""
    tables = [short(rows, subject) for subject in SUBJECTS]
    cost = costs(rows)
    bits = {pair: sorted({table[pair]["kv_bits"] for table in tables if pair in table}) for pair in cost}
    lines = [["floor", "", *(f"{floor(rows, subject):.4f}" for subject in SUBJECTS), ""]]
    for pair in sorted(cost, key=lambda pair: (-bits[pair][0], cost[pair])):
        cells = [_cell(table.get(pair)) for table in tables]
        sizes = " / ".join(f"{b:g}" for b in bits[pair])
        lines.append([_name(pair), sizes, *cells, f"{max(cost[pair], 0.0):.2f}"])
    return _markdown(("K/V", "bits", *(subject.column for subject in SUBJECTS), "cost"), lines)


def apart_table(rows: Sequence[Record]) -> str:
    """What keys alone and values alone cost above the floor, with the other half in f16."""
    lines = []
    for subject in SUBJECTS[:2]:
        table, level = short(rows, subject), floor(rows, subject)
        for name in TYPES:
            both, k, v = (table.get(pair) for pair in ((name, name), (name, "f16"), ("f16", name)))
            if k and v and both:
                above = [r["kld_mean"] - level for r in (k, v, both)]
                lines.append([subject.name, name, _cell(both), f"{level:.4f}", *(f"{x:.4f}" for x in above)])
    return _markdown(("model", "K and V", "mean KLD", "floor", "keys alone", "values alone", "both"), lines)


def _distant(rows: Sequence[Record], subject: Subject, pair: Pair) -> dict[str, Record]:
    """The records near 8k of a pair, on the first text that was measured there, by what was done to the keys."""
    far = [r for r in _of(rows, subject, first=7168) if not r["floor"]]
    return {_keys(r): r for r in far if (r["type_k"], r["type_v"]) == pair and r["text"] == far[0]["text"]}


def keys_table(rows: Sequence[Record], before: Sequence[Record], single: Sequence[Record]) -> str:
    """What is done to keys against what it gives, in short contexts and near 8k.

    Args:
        rows: as it is now.
        before: centred, not balanced.
        single: balanced, with one centre where there are centres of runs now.
    """
    lines = []
    for subject in SUBJECTS:
        modes = {mode: short(rows, subject, mode) for mode in ("off", "bias", "auto")}
        only, one = short(before, subject), short(single, subject)
        for name in TYPES:
            pair = (name, name)
            cells = [_cell(table.get(pair)) for table in (modes["off"], modes["bias"], only, one, modes["auto"])]
            far, far_one = _distant(rows, subject, pair), _distant(single, subject, pair)
            cells += [_cell(x) for x in (far.get("off"), far.get("bias"), far_one.get("auto"), far.get("auto"))]
            if cells[0]:
                lines.append([subject.column, name, *cells])
    headers = ("model", "K and V", "as they are", "bias", "only centred", "one centre", "default")
    return _markdown((*headers, "near 8k: as they are", "bias", "one centre", "default"), lines)


def far_table(rows: Sequence[Record]) -> str:
    """Positions near 8k of a text against contexts of 512 cut from the same text."""
    lines = []
    for subject in SUBJECTS:
        found = [r for r in _of(rows, subject) if _keys(r) == "auto" and r["type_k"] == r["type_v"] and not r["floor"]]
        far = {(r["text"], r["type_k"]): r for r in found if r["first"] == 7168}
        near = {(r["text"], r["type_k"]): r for r in found if r["n_ctx"] == 512}
        for (text, name), a in sorted(far.items(), key=lambda item: (item[0][0], item[0][1])):
            b = near.get((text, name))
            if b is not None:
                ratio = a["kld_mean"] / b["kld_mean"]
                error = ratio * math.hypot(a["kld_se"] / a["kld_mean"], b["kld_se"] / b["kld_mean"])
                novel = text.partition(".")[0].capitalize()
                lines.append([subject.column, novel, name, _cell(b), _cell(a), f"{ratio:.2f} ± {error:.2f}"])
    return _markdown(("model", "text", "K and V", "contexts of 512", "near 8k", "ratio"), lines)


def page() -> str:
    """What docs/quality.md must be."""
    rows, before, single = records(), records(RESULTS / "history"), records(RESULTS / "history" / "one-centre")
    text = PAGE.read_text(encoding="utf-8")
    made = {
        "pairs": pair_table(rows),
        "apart": apart_table(rows),
        "keys": keys_table(rows, before, single),
        "far": far_table(rows),
    }
    for name, table in made.items():
        block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text = block.sub(lambda m, table=table: m[1] + table + m[2], text)  # type: ignore[misc]
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """Command line: see the module's docstring."""
    parser = argparse.ArgumentParser(description="Write the tables of docs/quality.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if the page is out of date")
    return settle({PAGE: page()}, "make_quality.py", parser.parse_args(argv).check)


if __name__ == "__main__":
    raise SystemExit(main())
