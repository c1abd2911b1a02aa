"""Tables without plots: graphs x fused up+gate, launches, greedy tokens under the switches, batches, llama-bench."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from .figure import Figure, Record, good, grouped
from .kinds import pair_name, sort_key

__all__ = ["lever_tables", "median_and_spread"]


def median_and_spread(record: Record) -> str:
    """Median rate and half the distance from the slowest to the fastest repeat."""
    samples = record["samples_ts"]
    return f"{statistics.median(samples):.2f} ± {(max(samples) - min(samples)) / 2:.2f}"


def _gain(off: Record, on: Record) -> str:
    """Gain of the medians, and whether it is more than the spread of the repeats explains."""
    a, b = off["samples_ts"], on["samples_ts"]
    gain = 100 * (statistics.median(b) / statistics.median(a) - 1)
    apart = min(b) > max(a) or max(b) < min(a)
    return f"{gain:+.1f} %" + ("" if apart else " (within the spread)")


def _switch_tables(records: Sequence[Record]) -> list[Figure]:
    """The 2x2 of the lever map for every type, where all four cells were measured."""
    rows = [r for r in good(records, "bench") if r.get("graphs") is not None and r.get("fused") and r["n_gen"]]
    rows = [r for r in rows if not r["n_depth"] and not r["n_prompt"]]
    found = []
    for (model, device), group in grouped(rows, "model_type", "gpu_info").items():
        lines = []
        for pair in grouped(group, "type_k", "type_v").values():
            cell = {(r["graphs"], r.get("moe_fused")): r for r in pair}
            if len(cell) < 4:
                continue
            for graphs in (True, False):
                off, on = cell[graphs, False], cell[graphs, True]
                graph_gain = _gain(cell[False, True], on) if graphs else ""
                name = pair_name(on) if graphs else ""
                state = "on" if graphs else "off"
                lines.append((name, state, median_and_spread(off), median_and_spread(on), _gain(off, on), graph_gain))
        if lines:
            found.append(
                Figure(
                    f"CUDA graphs x fused up+gate: {model} on {device}",
                    "Tokens/s with an empty cache, each of the four cells a process of its own; medians, ± half the "
                    "distance from the slowest to the fastest repeat. Whether the fused kernel ran at all is in the "
                    "next table.",
                    "",
                    ("K/V", "graphs", "up+gate apart", "up+gate fused", "gain of fusing", "gain of graphs"),
                    tuple(lines),
                )
            )
    return found


def _fusions(record: Record) -> str:
    if record.get("fused") is None:
        return "-"
    if not record["fused"]:
        return "off"
    return "on" if record.get("moe_fused") else "up+gate apart"


def _launch_cells(record: Record) -> tuple[str, ...]:
    launches, experts, calls = record["launches"], record.get("experts"), record["calls"]
    cells = [
        _fusions(record),
        "-" if record.get("graphs") is None else "on" if record["graphs"] else "off",
        f"{launches['kernels']:,.0f}",
        f"{launches['graph_launches']:,.2f}",
        f"{launches['graph_kernels']:,.0f}",
        f"{launches['alone']:,.0f}",
        f"{calls.get('elementwise', 0):,.0f}",
    ]
    if not experts:
        return (*cells, "-", "-", "-", "-")
    layers = experts["separate"] or experts["merged"]
    fired = f"{experts['fired']:g} of {layers}" if experts["separate"] else f"{layers} merged"
    share = f"{experts['gb_s']:,.0f} = {100 * experts['of_peak']:.0f} %" if experts["of_peak"] else "-"
    return (*cells, f"{experts['calls_step']:g}", f"{experts['us_call']:.1f}", fired, share)


def _launch_tables(records: Sequence[Record]) -> list[Figure]:
    found = []
    for (model, depth), group in grouped(good(records, "launches"), "model_type", "depth").items():
        latest = {(r["type_k"], r["type_v"], _fusions(r), r.get("graphs")): r for r in group}.values()
        ordered = sorted(latest, key=lambda r: (r["type_k"], r["type_v"]))
        found.append(
            Figure(
                f"Launches of a decode step: {model}, depth {depth:,}",
                "Counted from the kernels that ran: kernels, graphs launched, kernels in graphs and alone, norm and "
                "elementwise kernels, expert matmuls with their microseconds, layers in which up and gate ran as one "
                "kernel. GB/s: expert weights of a token over the time of the expert matmuls, and its share of the "
                "measured copy rate.",
                "",
                ("K/V", "fusions", "graphs", "kernels", "launched", "in graphs", "alone", "norms", "experts", "µs",
                 "up+gate", "GB/s"),
                tuple((pair_name(r), *_launch_cells(r)) for r in ordered),
            )
        )  # fmt: skip
    return found


def _greedy_tables(records: Sequence[Record]) -> list[Figure]:
    found = []
    for (model,), group in grouped(good(records, "greedy"), "model_type").items():
        lines = []
        for pair in grouped(group, "type_k", "type_v").values():
            base = pair[0]
            for r in pair[1:]:
                same = r["tokens"] == base["tokens"]
                n = sum(len(tokens) for tokens in r["tokens"])
                off = [name for name, key in (("graphs", "graphs"), ("fusions", "fused")) if r.get(key) is False]
                if r.get("fused") and r.get("moe_fused") is False:
                    off.append("fused up+gate")
                outcome = f"identical: {n} tokens" if same else "different"
                lines.append((pair_name(r), f"without {' and '.join(off)}" if off else "again", outcome))
        if lines:
            found.append(
                Figure(
                    f"Greedy tokens under the switches: {model}",
                    "Against the shipping setting (everything on), token by token.",
                    "",
                    ("K/V", "setting", "outcome"),
                    tuple(lines),
                )
            )
    return found


def _batch_tables(records: Sequence[Record]) -> list[Figure]:
    """Prompts and short batches: rows that feed several tokens at once."""
    rows = [r for r in good(records, "bench") if r["n_prompt"] and not r["n_gen"]]
    found = []
    for (model, device), group in grouped(rows, "model_type", "gpu_info").items():
        tests = sorted({(r["n_prompt"], r["n_depth"]) for r in group})
        lines = []
        for pair in sorted(grouped(group, "type_k", "type_v").values(), key=lambda rs: sort_key(rs[0])):
            by_test = {(r["n_prompt"], r["n_depth"]): r for r in pair}
            cells = [_with_ratio(by_test[test]) if test in by_test else "-" for test in tests]
            lines.append((pair_name(pair[0]), *cells))
        found.append(
            Figure(
                f"Prompts and short batches: {model} on {device or group[0]['cpu_info']}",
                "Tokens/s; medians, ± half the distance from the slowest to the fastest repeat; ratios are medians of "
                f"repeats paired with the first type, with the lowest and highest. Repeats: {_repeats(group, tests)}.",
                "",
                ("K/V", *map(_test_name, tests)),
                tuple(lines),
            )
        )
    return found


def _repeats(group: Sequence[Record], tests: Sequence[tuple[int, int]]) -> str:
    counts = {t: max(len(r["samples_ts"]) for r in group if (r["n_prompt"], r["n_depth"]) == t) for t in tests}
    return ", ".join(f"{n} of {_test_name(test)}" for test, n in counts.items())


def _test_name(test: tuple[int, int]) -> str:
    return f"{test[0]} tokens at {test[1]:,}"


def _with_ratio(record: Record) -> str:
    if record.get("ratio") is None or not record.get("baseline"):
        return median_and_spread(record)
    spread = f"{record['ratio_low']:.2f} to {record['ratio_high']:.2f}"
    return f"{median_and_spread(record)} = {record['ratio']:.2f}x ({spread})"


def _agreement_tables(records: Sequence[Record]) -> list[Figure]:
    rows = good(records, "agreement")
    if not rows:
        return []
    lines = tuple(
        (
            "/".join(dict.fromkeys(r["kv"])),
            r["test"],
            f"{r['ours_ts']:.2f}",
            f"{r['theirs_ts']:.2f}",
            f"{r['ratio']:.3f} ({r['ratio_low']:.3f} to {r['ratio_high']:.3f})",
            str(len(r["ours_ns"])),
            "yes" if r["agrees"] else "no",
        )
        for r in rows
    )
    note = (
        "Tokens/s of `bench` and of llama.cpp's llama-bench on the same library, round by round; medians, and the "
        "ratio of the rounds with the lowest and highest. They agree where their rounds overlap."
    )
    headers = ("K/V", "test", "bench", "llama-bench", "ratio", "rounds", "agree")
    return [Figure("Against llama-bench", note, "", headers, lines)]


def lever_tables(records: Sequence[Record]) -> list[Figure]:
    """Every table that the records have the numbers for."""
    return [
        *_batch_tables(records),
        *_switch_tables(records),
        *_launch_tables(records),
        *_greedy_tables(records),
        *_agreement_tables(records),
    ]
