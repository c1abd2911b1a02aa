"""A measured row: llama-bench's field names, and what it does not say (bits, stored types, graphs, digest, ratio)."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Row", "csv_lines", "from_samples", "json_line", "markdown", "row_of", "table_cells", "without_constants"]


@dataclass(frozen=True)
class Row:
    """One case with its samples.

    Times are nanoseconds, rates tokens per second. The fields down to `samples_ts` are llama-bench's.

    Attributes:
        kv_bits: mean bits of a cached value, read back from the tensors.
        kv_bytes: bytes of the cache as made.
        effective_k, effective_v: types of the tensors, with the number of layers where they differ: "q8_0:1 turbo3:23".
        graphs, fused: whether CUDA graphs and fused operations are on; None on the CPU.
        moe_fused: whether up and gate of experts may run as one kernel; whether they did, `profile` counts.
        depth_fill: how the cache was filled to the depth: "prefill", "synthetic" or "".
        digest: build of the library.
        baseline: name of the pair the ratio refers to, "" for the baseline itself.
        ratio: median over repeats of this row's rate over the baseline's, both of one repeat.
        ratio_low, ratio_high: smallest and largest of them.
        status: "ok" or "failed".
        reason: why it failed.
    """

    build_commit: str = ""
    cpu_info: str = ""
    gpu_info: str = ""
    backends: str = ""
    model_filename: str = ""
    model_type: str = ""
    model_size: int = 0
    model_n_params: int = 0
    n_batch: int = 0
    n_ubatch: int = 0
    n_threads: int = 0
    type_k: str = ""
    type_v: str = ""
    n_gpu_layers: int = 0
    no_kv_offload: bool = False
    flash_attn: bool = False
    load_mode: str = ""
    n_prompt: int = 0
    n_gen: int = 0
    n_depth: int = 0
    test_time: str = ""
    avg_ns: float = 0.0
    stddev_ns: float = 0.0
    avg_ts: float = 0.0
    stddev_ts: float = 0.0
    samples_ns: tuple[int, ...] = ()
    samples_ts: tuple[float, ...] = ()
    kv_bits: float = 0.0
    kv_bytes: int = 0
    effective_k: str = ""
    effective_v: str = ""
    graphs: bool | None = None
    fused: bool | None = None
    moe_fused: bool | None = None
    depth_fill: str = ""
    digest: str = ""
    driver: str = ""
    baseline: str = ""
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    status: str = "ok"
    reason: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def test(self) -> str:
        """llama-bench's name of the test, with its depth."""
        parts = [f"{tag}{n}" for tag, n in (("pp", self.n_prompt), ("tg", self.n_gen)) if n]
        return "+".join(parts) + (f" @ d{self.n_depth}" if self.n_depth else "")

    def record(self) -> dict[str, Any]:
        """As a record of a result file."""
        return {"kind": "bench", **asdict(self)}

    @property
    def median_ts(self) -> float:
        """Median rate, 0 for a failed row."""
        return statistics.median(self.samples_ts) if self.samples_ts else 0.0


def from_samples(n_tokens: int, samples_ns: Sequence[int]) -> dict[str, Any]:
    """The fields that follow from the samples: means and standard deviations of times and rates.

    Raises:
        ValueError: no samples, or one that took no time.
    """
    if not samples_ns or min(samples_ns) <= 0:
        raise ValueError("a sample must take time")
    rates = tuple(1e9 * n_tokens / ns for ns in samples_ns)
    many = len(rates) > 1
    return {
        "avg_ns": statistics.fmean(samples_ns),
        "stddev_ns": statistics.stdev(samples_ns) if many else 0.0,
        "avg_ts": statistics.fmean(rates),
        "stddev_ts": statistics.stdev(rates) if many else 0.0,
        "samples_ns": tuple(samples_ns),
        "samples_ts": rates,
    }


def json_line(row: Row) -> str:
    """The row as one line of JSON, marked as a bench record."""
    return json.dumps(row.record(), ensure_ascii=False)


def row_of(record: Mapping[str, Any]) -> Row:
    """The row of a bench record; fields of other versions are left out."""
    known = Row.__dataclass_fields__
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in record.items() if k in known}
    return Row(**values)


def csv_lines(rows: Iterable[Row]) -> str:
    """A CSV table with every field; lists are JSON."""
    out = io.StringIO()
    names = list(Row.__dataclass_fields__)
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        cells = [getattr(row, name) for name in names]
        writer.writerow([json.dumps(c) if isinstance(c, (tuple, dict)) else "" if c is None else c for c in cells])
    return out.getvalue()


def _size(row: Row) -> str:
    return f"{row.model_size / 2**30:.2f} GiB"


def _rate(row: Row) -> str:
    return f"{row.avg_ts:.2f} ± {row.stddev_ts:.2f}" if row.status == "ok" else f"failed: {row.reason}"


def _ratio(row: Row) -> str:
    if row.ratio is None:
        return ""
    return f"{row.ratio:.3f} ({row.ratio_low:.3f} to {row.ratio_high:.3f})" if row.baseline else "1"


def table_cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Headers and cells of the table: llama-bench's columns, those that vary, bits and ratio."""
    good = [row for row in rows if row.status == "ok"]
    varying = [n for n in ("n_threads", "n_batch", "n_ubatch", "flash_attn") if len({getattr(r, n) for r in good}) > 1]
    headers = ["model", "size", "params", "backend", *varying, "type_k", "type_v", "bits", "test", "t/s", "ratio"]
    cells = [
        [
            row.model_type,
            _size(row),
            f"{row.model_n_params / 1e9:.2f} B",
            row.backends,
            *(str(getattr(row, name)) for name in varying),
            row.type_k,
            row.type_v,
            f"{row.kv_bits:.3f}" if row.kv_bits else "",
            row.test,
            _rate(row),
            _ratio(row),
        ]
        for row in rows
    ]
    if not any(line[-1] for line in cells):
        return headers[:-1], [line[:-1] for line in cells]
    return headers, cells


def without_constants(headers: Sequence[str], cells: Sequence[Sequence[str]]) -> tuple[str, list[str], list[list[str]]]:
    """A table for a terminal: what all rows have in common of model and backend goes into a line above it.

    Returns:
        The line, and headers and cells without those columns.
    """
    common = [
        i
        for i, h in enumerate(headers)
        if h in ("model", "size", "params", "backend") and len({c[i] for c in cells}) == 1
    ]
    caption = ", ".join(cells[0][i] for i in common) if cells else ""
    kept = [i for i in range(len(headers)) if i not in common]
    return caption, [headers[i] for i in kept], [[line[i] for i in kept] for line in cells]


def markdown(rows: Sequence[Row]) -> str:
    """A Markdown table in the manner of llama-bench."""
    headers, cells = table_cells(rows)
    right = {"size", "params", "bits", "test", "t/s", "ratio"}
    widths = [max(len(h), *(len(line[i]) for line in cells), 3) for i, h in enumerate(headers)]
    lines = ["| " + " | ".join(h.ljust(w) for h, w in zip(headers, widths, strict=True)) + " |"]
    lines.append(
        "| "
        + " | ".join("-" * (w - 1) + (":" if h in right else "-") for h, w in zip(headers, widths, strict=True))
        + " |"
    )
    for line in cells:
        padded = (c.rjust(w) if h in right else c.ljust(w) for c, w, h in zip(line, widths, headers, strict=True))
        lines.append("| " + " | ".join(padded) + " |")
    return "\n".join(lines) + "\n"
