"""Phases, sums, traces, CUPTI records and levers."""

from __future__ import annotations

import ctypes
import json
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyllama_turbo.errors import UnsupportedError
from pyllama_turbo.profile import cupti
from pyllama_turbo.profile.events import Event, Profile, busy_ns, summarise
from pyllama_turbo.profile.levers import evidence, merged, ranked
from pyllama_turbo.profile.phases import PHASES, kernel_phase, operation_phase, short_name
from pyllama_turbo.profile.roofline import cache_bytes, host_copy_rate, weight_bytes
from pyllama_turbo.profile.table import compare_rows, kernel_rows, phase_rows
from pyllama_turbo.profile.trace import trace_events, write_trace


@pytest.mark.parametrize(
    ("kernel", "phase"),
    [
        ("void mul_mat_vec_q<(ggml_type)2, 1, false, false>(void const*, void const*)", "experts"),
        ("void mul_mat_vec_q_moe<(ggml_type)12>(void const*)", "experts"),
        ("void mul_mat_vec_f<float, float, 1, 256>(float const*)", "matmul"),
        ("void quantize_q8_1(float const*, void*)", "matmul"),
        ("nvjet_sm90_hss_128x64", "matmul"),
        ("void flash_attn_ext_vec<128, 1, (ggml_type)8, (ggml_type)8, false>(char const*)", "kv_read"),
        ("void turbo::attend_kernel<128, 8>(turbo::attend_params)", "kv_read"),
        ("void flash_attn_combine_results<128>(float const*)", "combine"),
        ("void flash_attn_stream_k_fixup_uniform<128, 1, 8>(float*)", "combine"),
        ("void turbo::combine_kernel<128>(turbo::combine_params)", "combine"),
        ("void turbo::write_trellis_kernel<3>(turbo::write_params)", "kv_write"),
        ("void k_set_rows_quant<long, block_q8_0, 32>(float const*)", "kv_write"),
        ("void cpy_scalar_contiguous<float, __half>(char const*)", "copy"),
        ("memcpy DtoD", "copy"),
        ("void rms_norm_f32<1024, true, false>(float const*)", "elementwise"),
        ("void rms_norm_mul_rope_f32<256>(float const*)", "elementwise"),
        ("void k_bin_bcast<&(op_add(float, float))>(float const*)", "elementwise"),
        ("void unary_gated_op_kernel<&(op_silu(float)), float>(float const*)", "elementwise"),
        ("memset", "elementwise"),
        ("void rope_neox<true, false, float>(float const*)", "rope"),
        ("void k_get_rows_float<float, float>(float const*)", "rows"),
        ("void topk_moe_cuda<128>(float const*)", "rows"),
        ("void fwht_cuda<128>(float const*)", "rotate"),
        ("void ssm_scan_f32<16>(float const*)", "recurrent"),
        ("void turbo::vector_products_kernel<(ggml_type)2, 3, true, true>(turbo::products_params)", "experts"),
        ("void turbo::expert_mix_kernel<(ggml_type)2, 8, true>(turbo::mix_params)", "experts"),
        ("turbo::float_products_kernel(turbo::products_params)", "matmul"),
        ("void turbo::rope_together_kernel<2>(turbo::rope_params)", "rope"),
        ("something_new(int)", "other"),
    ],
)
def test_kernels_by_name(kernel: str, phase: str) -> None:
    assert kernel_phase(kernel) == phase


@pytest.mark.parametrize(
    ("operation", "tensor", "phase"),
    [
        ("MUL_MAT", "ffn_up-3", "experts"),
        ("MUL_MAT_ID", "ffn_moe_gate_up-3", "experts"),
        ("MUL_MAT", "Qcur-0", "matmul"),
        ("MUL_MAT", "result_output", "matmul"),
        ("MUL_MAT", "kq-1", "kv_read"),
        ("MUL_MAT", "kqv_out-1", "matmul"),
        ("FLASH_ATTN_EXT", "node_31", "kv_read"),
        ("SET_ROWS", "cache_k_l0 (view)", "kv_write"),
        ("ROPE", "Kcur-0", "rope"),
        ("GET_ROWS", "inp_embd", "rows"),
        ("RMS_NORM", "norm-0", "elementwise"),
        ("GLU", "ffn_swiglu-0", "elementwise"),
        ("SWIGLU", "ffn_swiglu-0", "elementwise"),
        ("SILU", "ffn_silu-0", "elementwise"),
        ("GELU_QUICK", "ffn_gelu-0", "elementwise"),
        ("CONT", "v_cont-0", "copy"),
        ("VIEW", "x", ""),
        ("CUSTOM", "x", "other"),
    ],
)
def test_operations(operation: str, tensor: str, phase: str) -> None:
    assert operation_phase(operation, tensor) == phase


def test_every_phase_has_a_colour_and_every_rule_a_phase() -> None:
    from pyllama_turbo.report.page import STYLE

    assert all(f".p-{phase.key} " in STYLE for phase in PHASES)


def test_short_names() -> None:
    assert short_name("void a::b<c<1>, (d)2>(int, float)") == "a::b"
    assert short_name("memcpy DtoD") == "memcpy DtoD"


def event(name: str, phase: str, start: int, end: int, stream: int = 0, n_bytes: int = 0) -> Event:
    return Event(name, phase, start, end, 0, stream, n_bytes)


EVENTS = [
    event("void mm<1>(x)", "experts", 0, 4000, n_bytes=8000),
    event("attend", "kv_read", 4000, 6000),
    event("attend", "kv_read", 5000, 7000, stream=1),
    event("void mm<1>(x)", "experts", 10_000, 12_000, n_bytes=4000),
]


def test_busy_time_counts_overlaps_once() -> None:
    assert busy_ns(EVENTS) == 9000 and busy_ns([]) == 0
    assert busy_ns([event("a", "x", 0, 10), event("b", "x", 2, 5), event("c", "x", 10, 12)]) == 12


def test_profile_by_hand() -> None:
    profile = summarise(EVENTS, n_steps=2, wall_ns=15_000, peak_gb_s=4.0)
    assert (profile.step_us, profile.busy_us) == (7.5, 4.5)
    assert [row.phase for row in profile.phases] == ["experts", "kv_read", "gap"]
    experts = profile.phases[0]
    assert (experts.us_step, experts.calls_step, experts.us_call) == (3.0, 1.0, 3.0)
    assert experts.share == pytest.approx(6000 / 15_000) and experts.gb_s == 2.0
    assert profile.share("gap") == pytest.approx(0.4) and profile.share("rope") == 0.0
    assert profile.kernels[0].name == "void mm<1>(x)" and profile.kernels[1].calls_step == 1.0
    with pytest.raises(ValueError, match="one step"):
        summarise(EVENTS, 0, 1)


def test_a_wall_time_that_is_too_short_is_not_believed() -> None:
    profile = summarise(EVENTS, 1, 10)
    assert profile.step_us == 9.0 and "gap" not in [row.phase for row in profile.phases]


def test_tables() -> None:
    profile = summarise(EVENTS, 2, 15_000, 4.0)
    headers, lines = phase_rows(profile)
    assert len(headers) == len(lines[0]) and {line[0] for line in lines} >= {
        "attention: K/V read",
        "gaps (nothing runs)",
    }
    assert next(line for line in lines if line[0] == "FFN and experts (weights)")[-1] == "50 %"
    assert kernel_rows(profile, 1)[1][0][:2] == ["mm", "experts"]
    faster = summarise([e for e in EVENTS if e.phase != "kv_read"], 2, 11_000)
    lines = compare_rows(profile, faster)[1]
    assert lines[0] == ["attention: K/V read", 2.0, 0.0, -2.0, "-26.7 %"] and lines[-1][0] == "step"


def test_trace_is_chrome_json(tmp_path: Path) -> None:
    write_trace(tmp_path / "t.json", EVENTS)
    data = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    complete = [e for e in data if e["ph"] == "X"]
    assert len(complete) == 4 and complete[1]["ts"] == 4.0 and complete[1]["dur"] == 2.0
    assert {e["tid"] for e in data if e["ph"] == "M"} == {0, 1} and trace_events([]) == []


NAME = ctypes.create_string_buffer(b"_Z13mul_mat_vec_qi")


def kernel_record(start: int, end: int, stream: int = 7, launch: int = 0, graph: int = 0) -> bytes:
    record = bytearray(216)
    struct.pack_into("<IIII", record, 52, 3, 8, 1, 32)  # grid, and the first of the block
    struct.pack_into("<I", record, 92, launch)
    struct.pack_into("<I", record, 156, graph)
    struct.pack_into("<I", record, 0, 10)
    struct.pack_into("<QQ", record, 16, start, end)
    struct.pack_into("<III", record, 40, 1, 0, stream)
    struct.pack_into("<Q", record, 104, ctypes.addressof(NAME))
    return bytes(record)


def copy_record(n_bytes: int) -> bytes:
    record = bytearray(136)
    struct.pack_into("<IB", record, 0, 1, 8)
    struct.pack_into("<QQQ", record, 8, n_bytes, 100, 200)
    struct.pack_into("<III", record, 32, 0, 0, 3)
    return bytes(record)


def test_cupti_records() -> None:
    raw = kernel_record(5, 9, launch=11, graph=4) + copy_record(64) + struct.pack("<I", 99) + bytes(28)
    events = list(cupti.parse_records(raw, iter([0, 216, 352])))
    assert events[0] == Event("mul_mat_vec_q(int)", "experts", 5, 9, 1, 7, 0, (3, 8, 1), launch=11, graph=4)
    assert events[1] == Event("memcpy DtoD", "copy", 100, 200, 0, 3, 128)
    assert len(events) == 2  # the third is of a kind nobody asked for


class FakeCupti:
    """Gives one buffer of two records when flushed."""

    def __init__(self, status: int = 0) -> None:
        self.enabled: list[int] = []
        self.status = status

    def cuptiActivityRegisterCallbacks(self, requested: Any, completed: Any) -> int:  # noqa: N802
        self.requested, self.completed = requested, completed
        return self.status

    def cuptiActivityEnable(self, kind: int) -> int:  # noqa: N802
        self.enabled.append(kind)
        return 0

    def cuptiActivityDisable(self, kind: int) -> int:  # noqa: N802
        self.enabled.remove(kind)
        return 0

    def cuptiActivityFlushAll(self, flag: int) -> int:  # noqa: N802
        buffer, size, count = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
        self.requested(ctypes.byref(buffer), ctypes.byref(size), ctypes.byref(count))
        records = kernel_record(50, 60) + kernel_record(10, 20)
        assert buffer.value is not None and buffer.value % 8 == 0 and size.value >= len(records)
        ctypes.memmove(buffer.value, records, len(records))
        self.completed(None, 0, buffer.value, size.value, len(records))
        return 0

    def cuptiActivityGetNextRecord(self, memory: Any, size: Any, record: Any) -> int:  # noqa: N802
        base = ctypes.addressof(memory)
        pointer = ctypes.cast(record, ctypes.POINTER(ctypes.c_void_p))
        after = base if pointer[0] is None else pointer[0] + 216
        if after >= base + size.value:
            return 12
        pointer[0] = after
        return 0

    def cuptiGetResultString(self, status: int, text: Any) -> int:  # noqa: N802
        ctypes.cast(text, ctypes.POINTER(ctypes.c_char_p))[0] = b"CUPTI_ERROR_MULTIPLE_SUBSCRIBERS"
        return 0


def test_recorder_collects_from_buffers() -> None:
    fake = FakeCupti()
    recorder = cupti.Recorder(fake)
    recorder.start()
    assert sorted(fake.enabled) == [1, 2, 10]
    recorder.discard()
    events = recorder.stop()
    assert [(e.start_ns, e.end_ns) for e in events] == [(10, 20), (50, 60)] and fake.enabled == []


def test_recorder_says_why_it_cannot() -> None:
    with pytest.raises(UnsupportedError, match="MULTIPLE_SUBSCRIBERS"):
        cupti.Recorder(FakeCupti(status=39)).start()


def tensor(n_bytes: int, *shape: int) -> SimpleNamespace:
    return SimpleNamespace(n_bytes=n_bytes, shape=shape)


def test_weight_bytes() -> None:
    tensors = {
        "token_embd.weight": tensor(1000, 64, 100),
        "blk.0.attn_q.weight": tensor(100, 64, 64),
        "blk.0.attn_norm.weight": tensor(7, 64),
        "blk.0.ffn_gate_exps.weight": tensor(800, 64, 64, 8),
    }
    file: Any = SimpleNamespace(tensors=tensors)
    assert weight_bytes([file], 8, 2) == 1000 + 100 + 200  # the embedding is the output matrix too
    tensors["output.weight"] = tensor(500, 64, 100)
    assert weight_bytes([file], 8, 2) == 500 + 100 + 200


def test_cache_bytes() -> None:
    layer = {"k_bytes": 1024, "v_bytes": 1024, "cells": 256}
    context: Any = SimpleNamespace(
        kv=SimpleNamespace(effective=(SimpleNamespace(part="full", **layer), SimpleNamespace(part="window", **layer))),
        model=SimpleNamespace(facts=SimpleNamespace(n_swa=64)),
    )
    assert cache_bytes(context, 127) == 1024 + 512
    assert cache_bytes(context, 9999) == 2048 + 512


def test_host_copy_rate_is_a_rate() -> None:
    assert 0.05 < host_copy_rate(1 << 20) < 10_000


def profile_of(**shares: float) -> Profile:
    events, at = [], 0
    for phase, share in shares.items():
        length = int(1e6 * share)
        if phase != "gap":
            events.append(event(phase, phase, at, at + length))
        at += length
    return summarise(events, 1, 10**6)


def bench_row(rate: float, **more: Any) -> dict[str, Any]:
    row = {"kind": "bench", "status": "ok", "n_gen": 8, "n_prompt": 0, "n_depth": 0, "type_k": "f16", "type_v": "f16"}
    return {**row, "baseline": "", "ratio": None, "graphs": None, "samples_ts": [rate], **more}


def test_levers_are_ranked_with_ceiling_and_evidence() -> None:
    turbo = {"type_k": "turbo3", "type_v": "turbo3", "baseline": "f16/f16"}
    records = [bench_row(1, **turbo, n_depth=0, ratio=1.0), bench_row(1, **turbo, n_depth=4096, ratio=1.5)]
    for graphs, fused, rate in ((True, True, 150), (True, False, 148.5), (False, True, 100), (False, False, 100)):
        records.append(bench_row(rate, graphs=graphs, moe_fused=fused, fused=True))
    records.append(bench_row(10, graphs=True, moe_fused=False, fused=False))  # says nothing about one switch
    known = evidence(records)
    assert known["kv_read"] == "d 4096: turbo3/turbo3 1.50x f16/f16"
    assert known["gap"] == "graphs +50.0 % (f16, d 0); +48.5 % (f16, d 0, moe_fused off)"
    assert known["experts"] == "fused up+gate +1.0 % (f16, d 0); +0.0 % (f16, d 0, graphs off)"
    lines = ranked(profile_of(experts=0.25, kv_read=0.5, gap=0.25), merged({"rotate": "absent"}, known))
    assert [x.phase for x in lines][0] == "kv_read" and lines[0].ceiling == pytest.approx(2.0)
    assert lines[0].measured.startswith("d 4096") and {x.ids for x in lines} == {"L5", "L6", "L1 L2", "L7"}
    assert lines[-1].phase == "rotate" and lines[-1].share == 0.0 and lines[-1].measured == "absent"
    assert merged({"a": "x"}, {"a": "y", "b": "z"}) == {"a": "x; y", "b": "z"}
