"""The plots of the report, each with the table it shows."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from ..profile.phases import PHASES
from .bars import stacked_bars
from .figure import Figure, Record, good, grouped
from .kinds import css_class, default_keys, kld_text, pair_name, shape, sort_key
from .levers import lever_tables
from .needle import needle_figures
from .svg import Axis, Chart

__all__ = ["figures"]

_PATHS = {"decode": "one token at a time", "prefill": "prefill"}
_MOST_LABELS = 12  # of one chart, before they run into each other
_PHASE_NAMES = {phase.key: phase.name for phase in PHASES}


def _spread(values: Iterable[float], factor: float) -> tuple[float, float]:
    found = [v for v in values if v > 0]
    return min(found) / factor, max(found) * factor


def _pareto(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other beats in both: fewer x, less y."""
    best: list[tuple[float, float]] = []
    for x, y in sorted(points):
        if not best or y < best[-1][1]:
            best.append((x, y))
    return best


def _kld_against_bits(records: Sequence[Record]) -> list[Figure]:
    found = []
    keys = ("model", "path", "n_ctx", "first", "backend", "tokens")
    for (model, path, n_ctx, _, backend, _), all_of_it in grouped(good(records, "kld"), *keys).items():
        for what, group in _readable(all_of_it):
            title = f"{model}, {_PATHS[path]}, context {n_ctx:,}, {str(backend).upper()}{what}"
            found += _kld_figure(group, model, title)
    return found


def _readable(group: Sequence[Record]) -> list[tuple[str, Sequence[Record]]]:
    """What goes into one chart. Where all are too many, pairs with several kinds of keys are compared in another."""
    others = {(r["type_k"], r["type_v"]) for r in group if not default_keys(r)}
    if not others or len(group) <= _MOST_LABELS:
        return [("", group)]
    compared = [r for r in group if r.get("floor") or (r["type_k"], r["type_v"]) in others]
    return [("", [r for r in group if default_keys(r)]), (", kinds of keys", compared)]


def _kld_figure(group: Sequence[Record], model: str, title: str) -> list[Figure]:
    """The chart of a group, none if there is nothing to compare."""
    measured = [r for r in group if r["kld_mean"] > 0 and r["kv_bits"] < 16]
    floor = next((r["kld_mean"] for r in group if r.get("floor")), 0.0)
    if len(measured) < 2:
        return []
    x_low, x_high = min(r["kv_bits"] for r in measured), max(r["kv_bits"] for r in measured)
    low, high = _spread([*(r["kld_mean"] for r in measured), floor], 1.6)
    chart = Chart(
        Axis("bits a cached value", x_low - 0.5, x_high + 0.5),
        Axis("mean KL divergence, nats", low, high, log=True),
        model,
    )
    offered = [(r["kv_bits"], r["kld_mean"]) for r in measured if default_keys(r)]
    chart.line(_pareto(offered), "pareto", dashed=True)
    if floor:
        chart.level(floor, "floor: f16 with other roundings")
    for r in measured:
        tip = f"{pair_name(r)}: {r['kld_mean']:.4f} ± {r['kld_se']:.4f} at {r['kv_bits']:.3f} bits"
        chart.error(r["kv_bits"], max(r["kld_mean"] - r["kld_se"], low), r["kld_mean"] + r["kld_se"], css_class(r))
        chart.point(r["kv_bits"], r["kld_mean"], css_class(r), tip, shape=shape(r))
    for r in measured:
        chart.near_label(r["kv_bits"], r["kld_mean"], pair_name(r), css_class(r))
    return [
        Figure(
            f"Divergence against bits: {title}",
            f"Lower left is better; the dashed line joins pairs that no other beats in both. {_scored(group[0])}",
            chart.render(),
            ("K/V", "bits", "mean KLD", "99.9 %", "same top", "perplexity"),
            tuple(
                (
                    pair_name(r),
                    f"{r['kv_bits']:.3f}",
                    kld_text(r),
                    f"{r['kld_percentiles']['0.999']:.4f}",
                    f"{100 * r['same_top']:.2f} ± {100 * r['same_top_err']:.2f} %",
                    f"{r['ppl']:.3f} (f16 {r['ppl_base']:.3f})",
                )
                for r in sorted(group, key=sort_key)
            ),
        )
    ]


def _scored(record: Record) -> str:
    return (
        f"{record['n_tokens']:,} tokens at positions {record['first']:,} to {record['last'] - 1:,} "
        f"(text: {record['text']}), against f16 of the same library; bars are the standard error of 16-token blocks."
    )


def _rates(line: Sequence[Record], depths: Sequence[int]) -> tuple[str, ...]:
    """One line of the table: name, bits, and for each depth the median rate with half its spread and the ratio."""
    by_depth = {r["n_depth"]: r for r in line}
    cells = [pair_name(line[0]), f"{line[0]['kv_bits']:.3f}"]
    for depth in depths:
        r = by_depth.get(depth)
        if r is None:
            cells.append("-")
            continue
        half = (max(r["samples_ts"]) - min(r["samples_ts"])) / 2
        ratio = f" = {r['ratio']:.2f}x" if r.get("ratio") is not None and r.get("baseline") else ""
        cells.append(f"{statistics.median(r['samples_ts']):.2f} ± {half:.2f}{ratio}")
    return tuple(cells)


def _without(record: Record) -> bool:
    """Whether fused kernels were switched off: such rows belong to the tables of the levers."""
    return record.get("fused") is False or record.get("moe_fused") is False


def _latest_library(rows: Sequence[Record]) -> str:
    """Digest of the library that was measured last."""
    return str(max(rows, key=lambda r: str(r.get("test_time", ""))).get("digest", ""))


def _one_per_depth(line: Sequence[Record], digest: str) -> list[Record]:
    """One row for each depth: of this library if there is one, the longest generation, and of equal ones the latest."""
    found: dict[int, tuple[tuple[bool, int], Record]] = {}
    for r in line:
        rank = (r.get("digest", "") == digest, r["n_gen"])
        if r["n_depth"] not in found or rank >= found[r["n_depth"]][0]:
            found[r["n_depth"]] = rank, r
    return [found[depth][1] for depth in sorted(found)]


def _speed_against_depth(records: Sequence[Record]) -> list[Figure]:
    found = []
    rows = [r for r in good(records, "bench") if r["n_gen"] and not r["n_prompt"] and not _without(r)]
    for (model, device, graphs), group in grouped(rows, "model_type", "gpu_info", "graphs").items():
        digest = _latest_library(group)
        lines = {pair: _one_per_depth(line, digest) for pair, line in grouped(group, "type_k", "type_v").items()}
        depths = sorted({r["n_depth"] for r in group})
        if len(depths) < 2:
            continue
        top = max(max(r["samples_ts"]) for r in group) * 1.08
        chart = Chart(
            Axis("tokens in the cache", 0, max(depths), unit="tokens"), Axis("tokens/s, one sequence", 0, top), model
        )
        for ordered in lines.values():
            css = css_class(ordered[0])
            chart.band([(r["n_depth"], min(r["samples_ts"]), max(r["samples_ts"])) for r in ordered], css)
            chart.line([(r["n_depth"], statistics.median(r["samples_ts"])) for r in ordered], css)
            for r in ordered:
                rate = statistics.median(r["samples_ts"])
                chart.point(
                    r["n_depth"], rate, css, f"{pair_name(r)} at {r['n_depth']:,}: {rate:.1f} tokens/s", radius=3
                )
            last = ordered[-1]
            chart.end_label(statistics.median(last["samples_ts"]), pair_name(last), css, x=last["n_depth"])
        state = "" if graphs is None else f", CUDA graphs {'on' if graphs else 'off'}"
        found.append(
            Figure(
                f"Decode speed against depth: {model} on {device or group[0]['cpu_info']}{state}",
                "Lines are medians, bands reach from the slowest to the fastest repeat (± is half of that); ratios are "
                "medians of repeats paired with the first type.",
                chart.render(),
                ("K/V", "bits", *(f"d {depth:,}" for depth in depths)),
                tuple(_rates(line, depths) for line in sorted(lines.values(), key=lambda line: sort_key(line[0]))),
            )
        )
    return found


def _bytes_against_context(records: Sequence[Record]) -> list[Figure]:
    found = []
    for record in good(records, "memory"):
        lines = record["types"]
        low = min(n for line in lines for n, _ in line["points"])
        high = max(n for line in lines for n, _ in line["points"])
        free = record.get("free_bytes") or 0
        budget = free - record.get("weights_bytes", 0) if free else 0
        y_low, y_high = _spread([b for line in lines for _, b in line["points"]] + [budget or 1], 1.5)
        y_low = max(y_low, 2.0**20)
        chart = Chart(
            Axis("context, tokens", low, high, log=True, unit="tokens"),
            Axis("KV cache", y_low, y_high, log=True, unit="bytes"),
            record["model"],
        )
        for same in grouped(({**line, "key": str(line["points"])} for line in lines), "key").values():
            chart.line(same[0]["points"], css_class(same[0]))
            chart.end_label(same[0]["points"][-1][1], ", ".join(pair_name(line) for line in same), css_class(same[0]))
        if budget > 0:
            chart.level(budget, "free memory less the weights")
        shown = lines[0]["points"]
        found.append(
            Figure(
                f"Bytes of the KV cache against context: {record['model']}",
                "From the file's header, as the library allocates it. Memory ends where a line crosses the level.",
                chart.render(),
                ("K/V", "bits", *(f"{n:,}" for n, _ in shown)),
                tuple(
                    (pair_name(line), f"{line['kv_bits']:.3f}", *(f"{b / 2**20:,.0f} MiB" for _, b in line["points"]))
                    for line in lines
                ),
            )
        )
    return found


def _speed_against_kld(records: Sequence[Record]) -> list[Figure]:
    found = []
    bench = [r for r in good(records, "bench") if r["n_gen"] and not r["n_prompt"] and not _without(r)]
    bench = [r for r in bench if r.get("graphs") is not False]
    kld = [r for r in good(records, "kld") if not r.get("floor") and default_keys(r)]
    deepest = {file: max(r["n_depth"] for r in rows) for (file,), rows in grouped(bench, "model_filename").items()}
    for file, depth in deepest.items():
        rows = [r for r in bench if r["model_filename"] == file and r["n_depth"] == depth]
        scores = {(r["type_k"], r["type_v"]): r for r in kld if r["model"] == file}
        both = [(r, scores[r["type_k"], r["type_v"]]) for r in rows if (r["type_k"], r["type_v"]) in scores]
        both = [(r, s) for r, s in both if s["kld_mean"] > 0]
        if len(both) < 3:
            continue
        low, high = _spread([s["kld_mean"] for _, s in both], 1.8)
        rates = [statistics.median(r["samples_ts"]) for r, _ in both]
        chart = Chart(
            Axis("mean KL divergence, nats", low, high, log=True),
            Axis(f"tokens/s at depth {depth:,}", min(rates) * 0.9, max(rates) * 1.08),
            file,
        )
        biggest = max(r["kv_bits"] for r, _ in both)
        points = list(zip(both, rates, strict=True))
        for (r, s), rate in points:
            radius = 3 + 7 * (r["kv_bits"] / biggest) ** 0.5
            chart.point(
                s["kld_mean"],
                rate,
                css_class(r),
                f"{pair_name(r)}: {rate:.1f} tokens/s, KLD {s['kld_mean']:.4f}",
                radius,
            )
        for (r, s), rate in points:
            chart.near_label(s["kld_mean"], rate, pair_name(r), css_class(r))
        found.append(
            Figure(
                f"Speed against divergence: {file}, depth {depth:,}",
                "Upper left is better; the area of a marker is the bytes of its cache.",
                chart.render(),
                ("K/V", "bits", "tokens/s", "mean KLD"),
                tuple(
                    (pair_name(r), f"{r['kv_bits']:.3f}", f"{rate:.2f}", f"{s['kld_mean']:.5f}")
                    for (r, s), rate in sorted(points, key=lambda p: sort_key(p[0][0]))
                ),
            )
        )
    return found


def _phase_shares(records: Sequence[Record]) -> list[Figure]:
    found = []
    for (model, depth, method), group in grouped(good(records, "profile"), "model", "depth", "method").items():
        latest = list({(r["label"], r.get("digest")): r for r in group}.values())
        labels = [r["label"] for r in latest]
        names = [
            f"{n} {str(r.get('digest'))[:6]}" if labels.count(n) > 1 else n for n, r in zip(labels, latest, strict=True)
        ]
        steps = [{row["phase"]: row for row in r["phases"]} for r in latest]
        bars = [
            (name, {key: row["us_step"] for key, row in step.items()}, r["step_us"])
            for name, r, step in zip(names, latest, steps, strict=True)
        ]
        device = "GPU" if method == "cupti" else "CPU"
        title = f"What a decode step is made of: {model}, depth {depth:,}, {device}"
        keys = [key for key in _PHASE_NAMES if any(key in step for step in steps)]
        rows = [(_PHASE_NAMES[key], *(_phase_cell(step.get(key)) for step in steps)) for key in keys]
        found.append(
            Figure(
                title,
                "Microseconds of a step by phase, with the profiler on, and shares of the step. Kernels that overlap "
                "count in full, so parts can add up to more than the step; gaps are times in which nothing runs.",
                stacked_bars(bars, _PHASE_NAMES, "µs", title),
                ("phase", *names),
                (*rows, ("step", *(f"{r['step_us']:,.1f}" for r in latest)),
                 ("step without the profiler", *(f"{r['plain_us']:,.1f}" for r in latest))),
            )
        )  # fmt: skip
    return found


def _phase_cell(row: Record | None) -> str:
    return "-" if row is None else f"{row['us_step']:,.1f} ({100 * row['share']:.1f} %)"


def figures(records: Sequence[Record]) -> list[Figure]:
    """Every plot that the records have the numbers for."""
    return [
        *_kld_against_bits(records),
        *_speed_against_depth(records),
        *_speed_against_kld(records),
        *_bytes_against_context(records),
        *_phase_shares(records),
        *needle_figures(records),
        *lever_tables(records),
    ]
