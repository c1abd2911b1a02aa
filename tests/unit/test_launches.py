"""Counting launches and the expert matmul, and the tables made of them: small cases worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pyllama_turbo.bench.flags import is_on, switched
from pyllama_turbo.profile.capture import Capture
from pyllama_turbo.profile.events import Event, summarise
from pyllama_turbo.profile.launches import ExpertShape, count_launches, expert_matmul, expert_shape
from pyllama_turbo.profile.roofline import with_rates
from pyllama_turbo.profile.table import expert_line, launch_line, summary_lines
from pyllama_turbo.report.levers import lever_tables
from pyllama_turbo.report.page import html_page


def kernel(name: str, ns: int, *, grid: int = 1, launch: int = 0, graph: int = 0, phase: str = "experts") -> Event:
    return Event(name, phase, 0, ns, grid=(64, grid, 1), launch=launch, graph=graph)


def test_launches_are_counted_by_graph_and_alone() -> None:
    events = [kernel("a", 1, launch=7, graph=3)] * 3 + [kernel("b", 1, launch=8, graph=3)] * 3
    events += [kernel("topk_moe_cuda<128>", 1, launch=9), kernel("memcpy HtoD", 1), kernel("memset", 1)]
    counted = count_launches(events, n_steps=2)
    assert (counted.kernels, counted.graph_kernels, counted.alone) == (3.5, 3.0, 0.5)
    assert counted.graph_launches == 1.0 and counted.fused_top_k == 0.5
    with pytest.raises(ValueError, match="one step"):
        count_launches(events, 0)


def tensors(**sizes: int) -> Any:
    names = {name.replace("__", "."): SimpleNamespace(n_bytes=n) for name, n in sizes.items()}
    return [SimpleNamespace(tensors=names)]


def test_expert_shape_tells_separate_from_merged() -> None:
    separate = tensors(
        blk__0__ffn_gate_exps__weight=800, blk__0__ffn_up_exps__weight=800, blk__0__ffn_down_exps__weight=1600,
        blk__0__attn_q__weight=999,
    )  # fmt: skip
    assert expert_shape(separate, 8, 2) == ExpertShape(2, separate=1, merged=0, n_bytes=800)
    merged = tensors(blk__0__ffn_gate_up_exps__weight=1600, blk__0__ffn_down_exps__weight=800)
    assert expert_shape(merged, 8, 4) == ExpertShape(4, separate=0, merged=1, n_bytes=1200)
    assert expert_shape(separate, 0, 0) is None and expert_shape(tensors(output__weight=5), 8, 2) is None


@pytest.mark.parametrize(("calls", "fired"), [(3, 0.0), (2, 1.0)])
def test_fired_is_what_is_missing_from_three_calls(calls: int, fired: float) -> None:
    shape = ExpertShape(n_used=8, separate=1, merged=0, n_bytes=6000)
    events = [kernel("void mul_mat_vec_q<(ggml_type)2, 1, true>(x)", 1000, grid=8)] * calls
    events += [kernel("void mul_mat_vec_q<(ggml_type)2, 1, false>(x)", 5000, grid=1)]  # attention's
    found = expert_matmul(events, 1, shape, peak_gb_s=10.0)
    assert found is not None and found.calls_step == calls and found.us_call == 1.0 and found.batched == 8
    assert found.fired == fired and found.gb_s == pytest.approx(6.0 / calls)
    assert found.of_peak == pytest.approx(0.6 / calls)


def test_merged_experts_have_nothing_to_fuse() -> None:
    shape = ExpertShape(n_used=8, separate=0, merged=2, n_bytes=1000)
    found = expert_matmul([kernel("mul_mat_vec_q", 10, grid=8)] * 4, 1, shape)
    assert found is not None and found.fired == 0.0 and found.of_peak == 0.0


def test_joined_products_are_counted_like_their_parts() -> None:
    shape = ExpertShape(n_used=8, separate=1, merged=0, n_bytes=1000)
    events = [
        kernel("turbo::vector_products_kernel<2, 3, true, true>", 10, grid=8),  # up, gate and activation
        kernel("turbo::vector_products_kernel<2, 1, false, true>", 10, grid=1),  # of one matrix, not of experts
        kernel("turbo::expert_mix_kernel<2, 8, true>", 10, grid=1),  # a block does all experts
    ]
    found = expert_matmul(events, 1, shape)
    assert found is not None and found.calls_step == 2 and found.fired == 1 and found.batched == 8


def test_operations_of_the_cpu_and_dense_models() -> None:
    shape = ExpertShape(n_used=2, separate=1, merged=0, n_bytes=100)
    cpu = [Event("MUL_MAT_ID ffn_moe_up", "experts", 0, 10)] * 3 + [Event("MUL_MAT ffn_moe_logits", "experts", 0, 99)]
    found = expert_matmul(cpu, 1, shape)
    assert found is not None and found.calls_step == 3 and found.fired == 0 and found.batched == 0
    assert expert_matmul(cpu, 1, None) is None and expert_matmul([], 1, shape) is None


def test_rate_of_the_weights_leaves_out_what_reads_none() -> None:
    events = [
        Event("mul_mat_vec_q", "experts", 0, 3000),
        Event("mul_mat_f", "matmul", 3000, 4000),
        Event("quantize_q8_1", "matmul", 4000, 9000),
        Event("attend", "kv_read", 9000, 11000),
    ]
    profile = with_rates(summarise(events, 1, 11_000), weights=8000, cache=1000)
    rates = {row.phase: row.gb_s for row in profile.phases}
    # The heaviest weight phase carries the rate: 8,000 bytes in the 4 us of the two products.
    assert rates == {"experts": 0.0, "matmul": 2.0, "kv_read": 0.5}


def capture_of(method: str, events: list[Event], shape: ExpertShape | None) -> Capture:
    profile = summarise(events, 1, sum(e.ns for e in events))
    found = expert_matmul(events, 1, shape, 100.0)
    return Capture(profile, tuple(events), method, "", "f16/f16", 1.0, count_launches(events, 1), found)


def test_lines_under_the_tables() -> None:
    events = [kernel("mul_mat_vec_q", 1000, grid=8, launch=1, graph=1)] * 2 + [kernel("norm", 500, phase="elementwise")]
    capture = capture_of("cupti", events, ExpertShape(8, 1, 0, 4000))
    assert launch_line(capture) == "3 kernels a step: 2 in 1.0 launches of CUDA graphs, 1 launched alone"
    assert "2 calls a step of 1.0 us, 8 experts a call, 2.0 GB/s = 2 % of the copy rate" in expert_line(capture)
    assert expert_line(capture).endswith("ran as one in 1 of 1 layers")
    assert summary_lines(capture)[1] == "norm and elementwise: 1 launches a step of 0.50 us"
    merged = capture_of("cupti", events, ExpertShape(8, 0, 1, 4000))
    assert "there is nothing to fuse" in expert_line(merged)
    dense = capture_of("operations", events, None)
    assert launch_line(dense) == "3 operations a step" and expert_line(dense) == ""
    assert capture.record(label="x")["launches"]["graph_launches"] == 1.0 and dense.record()["experts"] is None


def test_switches_as_the_library_reads_them() -> None:
    assert all(is_on(name, {}) for name in ("graphs", "fused", "up_gate", "products"))
    assert not is_on("graphs", {"GGML_CUDA_DISABLE_GRAPHS": "0"})  # any value turns them off
    assert is_on("fused", {"GGML_CUDA_DISABLE_FUSION": "0"}) and not is_on("fused", {"GGML_CUDA_DISABLE_FUSION": "1"})
    assert not is_on("up_gate", {"TURBO_FUSED_UP_GATE": "0"}) and is_on("up_gate", {"TURBO_FUSED_UP_GATE": "1"})
    assert not is_on("products", {"TURBO_FUSED_PRODUCTS": "0"}) and is_on("products", {"TURBO_FUSED_PRODUCTS": "2"})
    before = {"GGML_CUDA_DISABLE_GRAPHS": "1", "HOME": "x"}
    state = {"graphs": True, "fused": False, "up_gate": False}
    assert switched(state, before) == {"HOME": "x", "GGML_CUDA_DISABLE_FUSION": "1", "TURBO_FUSED_UP_GATE": "0"}


def row(graphs: bool, fused: bool, rate: float, **more: object) -> dict[str, object]:
    samples = [rate - 1, rate, rate + 1]
    common = {"kind": "bench", "status": "ok", "type_k": "f16", "type_v": "f16", "n_prompt": 0, "n_gen": 8}
    common |= {"n_depth": 0, "model_type": "M", "gpu_info": "G", "cpu_info": "C", "kv_bits": 16.0}
    return {**common, "graphs": graphs, "fused": True, "moe_fused": fused, "samples_ts": samples, **more}


def test_the_two_by_two_table() -> None:
    cells = [row(g, f, rate) for g, f, rate in ((True, True, 110), (True, False, 100), (False, True, 50.5))]
    assert lever_tables(cells) == []  # three cells are no table
    (table,) = lever_tables([*cells, row(False, False, 50)])
    assert table.title == "CUDA graphs x fused up+gate: M on G"
    assert table.rows[0] == ("f16", "on", "100.00 ± 1.00", "110.00 ± 1.00", "+10.0 %", "+117.8 %")
    assert table.rows[1][3:] == ("50.50 ± 1.00", "+1.0 % (within the spread)", "")


def launches(graphs: bool, moe_fused: bool, fused: bool = True) -> dict[str, object]:
    experts = {
        "calls_step": 96.0,
        "us_call": 5.0,
        "gb_s": 800.0,
        "of_peak": 0.2,
        "separate": 48,
        "merged": 0,
        "fired": 48.0,
    }
    counts = {"kernels": 900.0, "graph_launches": 1.0, "graph_kernels": 890.0, "alone": 10.0}
    setting = {"kind": "launches", "model_type": "M", "depth": 0, "type_k": "f16", "type_v": "f16"}
    switches = {"graphs": graphs, "moe_fused": moe_fused, "fused": fused}
    return {**setting, **switches, "launches": counts, "experts": experts, "calls": {"elementwise": 242.0}}


def test_launches_greedy_tokens_and_batches_have_tables() -> None:
    records = [launches(True, True), launches(False, False), launches(True, False, fused=False)]
    (table,) = lever_tables(records)
    assert [r[1] for r in table.rows] == ["on", "up+gate apart", "off"]
    assert table.rows[0][3:] == ("900", "1.00", "890", "10", "242", "96", "5.0", "48 of 48", "800 = 20 %")
    setting = {"kind": "greedy", "model_type": "M", "type_k": "f16", "type_v": "f16", "fused": True}
    tokens = [
        {**setting, "graphs": True, "moe_fused": True, "tokens": [[1, 2], [3]]},
        {**setting, "graphs": False, "moe_fused": True, "tokens": [[1, 2], [3]]},
        {**setting, "graphs": False, "moe_fused": False, "tokens": [[1, 2], [4]]},
    ]
    (table,) = lever_tables(tokens)
    assert table.rows[0] == ("f16", "without graphs", "identical: 3 tokens")
    assert table.rows[1] == ("f16", "without graphs and fused up+gate", "different")
    batch = row(True, True, 100, n_prompt=4, n_gen=0, n_depth=64)
    other = {**batch, "type_k": "turbo3", "type_v": "turbo3", "ratio": 1.5, "ratio_low": 1.4, "ratio_high": 1.6,
             "baseline": "f16/f16", "kv_bits": 3.1}  # fmt: skip
    (table,) = lever_tables([batch, other])
    assert table.headers == ("K/V", "4 tokens at 64") and "3 of 4 tokens at 64" in table.note
    assert table.rows[1] == ("turbo3", "100.00 ± 1.00 = 1.50x (1.40 to 1.60)")
    assert "48 of 48" in html_page([*records, *tokens, batch, other])


def test_agreement_with_llama_bench_has_a_table() -> None:
    record = {"kind": "agreement", "test": "tg16", "kv": ["f16", "f16"], "ours_ts": 9.5, "theirs_ts": 10.0}
    record |= {"ratio": 0.95, "ratio_low": 0.9, "ratio_high": 1.05, "ours_ns": [1, 2, 3], "agrees": True}
    (table,) = lever_tables([record])
    assert table.rows == (("f16", "tg16", "9.50", "10.00", "0.950 (0.900 to 1.050)", "3", "yes"),)
