"""Planned memory against what is then allocated, and what fits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyllama_turbo import Model, errors
from pyllama_turbo.centers import calibrate, save
from pyllama_turbo.context_facts import MemoryRow
from pyllama_turbo.planning import MemoryEstimate, Planner, estimate, fit, search

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from make_encoder import write_encoder
from model_shapes import SHAPES, write_shape

FIXTURES: list[dict[str, Any]] = [
    {}, {"head_dim": 128, "n_head_kv": 1}, {"arch": "qwen2", "k_bias": 200.0}, {"arch": "qwen3"}, {"n_expert": 4},
    {"arch": "qwen3moe", "n_expert": 4}, {"arch": "gemma3", "n_layer": 7}, {"n_vocab": 32000}, {"weight_type": "f32"},
    {"odd": "gemma2"}, {"odd": "gpt-oss"}, {"odd": "stablelm"}, {"odd": "gemma4"}, {"odd": "lfm2"}, {"odd": "mamba"},
]  # fmt: skip


def sums(rows: tuple[MemoryRow, ...]) -> dict[str, int]:
    parts = {"model_bytes": 0, "context_bytes": 0, "compute_bytes": 0}
    return {name: sum(getattr(row, name) for row in rows) for name in parts}


def compare(path: Path, n_ctx: int, load: Mapping[str, Any], options: Mapping[str, Any], run: bool = True) -> None:
    options = {"calibrate": False, **options}
    planned = estimate(path, n_ctx, **load, **options)
    with Model.open(path, **load) as model, model.context(n_ctx, **options) as ctx:
        if run and ctx.facts.has_memory:
            ctx.prefill([5] * min(600, ctx.facts.n_ctx_seq))
        actual = ctx.memory()
        assert planned.n_ctx == ctx.n_ctx
    expected = sums(actual)
    for part, n in sums(planned.rows).items():
        assert n == pytest.approx(expected[part], rel=0.02), part
    assert planned.total == pytest.approx(sum(expected.values()), rel=0.02)
    named = {row.buffer: row.model_bytes for row in actual if row.model_bytes}
    assert {row.buffer for row in planned.rows if row.model_bytes} == set(named)


@pytest.mark.parametrize("shape", FIXTURES, ids=str)
@pytest.mark.parametrize("options", [{}, {"n_seq_max": 3, "n_ubatch": 128}], ids=str)
def test_every_fixture(tiny_model: Callable[..., Path], shape: dict[str, Any], options: dict[str, Any]) -> None:
    for kv in ("f16", "turbo3"):
        if kv == "turbo3" and shape.get("odd") == "mamba":
            continue  # which has no KV cache
        compare(tiny_model(**shape), 3000, {}, {"kv": kv, **options})


@pytest.mark.parametrize("load", [{}, {"load_mode": "none"}, {"use_extra_bufts": False}], ids=str)
def test_repacked_copies_of_quantised_weights(
    tmp_path: Path, load: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(SHAPES["llama3-8b"], n_layer=2, n_embd=512, n_head=4, n_head_kv=2, n_ff=1024, n_vocab=1024)
    monkeypatch.setitem(SHAPES, "small", small)
    path = write_shape(tmp_path / "q4.gguf", "small")
    compare(path, 1024, load, {})
    if not load.get("use_extra_bufts", True):
        assert not [row for row in estimate(path, 256, **load).rows if "REPACK" in row.buffer]


def test_layers_that_keep_q8_keys(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    path, file = tiny_model(n_layer=3), tmp_path / "means.npz"
    with Model.open(path) as model:
        means = calibrate(model)
        bad = replace(means.layers[0], after=1e6)  # a layer that its centre hardly helps
        save(replace(means, layers=(bad, *means.layers[1:])), file, model.files.fingerprint)
        with model.context(256, kv="turbo3", k_center=str(file)) as ctx:
            assert ctx.kv.centering.q8_layers == (0,)
    compare(path, 3000, {}, {"kv": "turbo3", "k_center": str(file)})


def test_the_centres_of_runs_are_counted(tiny_model: Callable[..., Path]) -> None:
    path = tiny_model(n_layer=3)
    # calibrated while the context is made: planned before there is anything to read
    compare(path, 8192, {}, {"kv": "turbo2", "calibrate": True})
    with Model.open(path) as model:
        without, held = (estimate(path, 8192, kv="turbo2", k_center=x).cache for x in ("off", "auto"))
        width = sum(x.n_head_kv * x.head_dim_k for x in model.layers)
        assert 128 * 2 * width <= held - without < 140 * 2 * width  # 128 runs of 64 cells in f16, and the scales
    # longer runs take a constant share
    more = [
        estimate(path, n, kv="turbo2", k_center="auto").cache - estimate(path, n, kv="turbo2", k_center="off").cache
        for n in (16384, 32768, 131072)
    ]
    assert more[0] == pytest.approx(more[1], rel=0.05) and more[2] == pytest.approx(4 * more[1], rel=0.05)


def test_an_encoder_and_a_real_model(tmp_path: Path, smollm: Path) -> None:
    compare(write_encoder(tmp_path / "bert.gguf"), 512, {}, {"embeddings": True})
    compare(smollm, 2048, {}, {"kv": "turbo3"}, run=False)


def test_nothing_is_allocated(tiny_model: Callable[..., Path]) -> None:
    code = (
        "import sys, resource; from pyllama_turbo.planning import estimate\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "assert estimate(sys.argv[1], 2_000_000).total > 2 << 30\n"
        "assert estimate(sys.argv[1], 2_000_000_000).total > 2000 << 30\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tiny_model())], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 200 << 10  # kilobytes


def test_long_contexts_go_on_in_a_straight_line(tiny_model: Callable[..., Path]) -> None:
    with Planner(tiny_model()) as planner:
        exact = planner.estimate(1 << 19)
        double = planner.estimate(1 << 20)
    assert double.n_ctx == 1 << 20 and double.cache == 2 * exact.cache
    assert exact.compute < double.compute < 2.1 * exact.compute


def test_the_largest_context_that_fits(tiny_model: Callable[..., Path]) -> None:
    path = tiny_model(n_ctx_train=32768)
    for kv in ("f16", "turbo3"):
        free = estimate(path, 10_000, kv=kv).total
        found = fit(path, kv=kv, free=free)
        assert (found.n_ctx, found.limited_by, found.n_gpu_layers) == (10_240, "memory", 0)
        assert estimate(path, found.n_ctx + 1, kv=kv).total > free >= found.estimate.total
    assert fit(path, free=1 << 40).limited_by == "training"
    assert fit(path, 4096, free=1 << 40).limited_by == "request"
    assert fit(path).n_ctx == 32768  # what is free now


def test_what_does_not_fit_is_refused_with_the_arithmetic(tiny_model: Callable[..., Path]) -> None:
    path = tiny_model(n_ctx_train=32768)
    free = estimate(path, 8192).total
    with pytest.raises(
        errors.MemoryLimitError, match=r"16,384 tokens do not fit: weights .* cache .* free are"
    ) as caught:
        fit(path, 16384, free=free)
    assert caught.value.limit == free and isinstance(caught.value.asked, int) and caught.value.asked > free
    assert "8,192 tokens" in caught.value.hint
    with pytest.raises(errors.MemoryLimitError):
        fit(path, free=1 << 20)
    for keywords in ({"n_ctx": -1}, {"kv": "nope"}, {"n_cxt": 5}):
        with pytest.raises(errors.OptionError):
            estimate(path, **keywords)  # type: ignore[arg-type]


# -- layers on a GPU, with the measuring replaced ----------------------------------------------------------------------


def measure(n_gpu_layers: int, n_ctx: int) -> MemoryEstimate:
    """Ten layers and an output of 100 bytes, a token of cache costs a byte a layer; the rest is on the host."""
    rows = (
        MemoryRow("GPU", 100 * n_gpu_layers, n_ctx * min(n_gpu_layers, 10), 50),
        MemoryRow("CPU", 100 * (11 - n_gpu_layers), n_ctx * (10 - min(n_gpu_layers, 10)), 50),
    )
    return MemoryEstimate(n_ctx, n_gpu_layers, "f16", "f16", rows)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        MemoryEstimate,
        "by_device",
        lambda self: {r.buffer: r.model_bytes + r.context_bytes + r.compute_bytes for r in self.rows},
    )


def test_all_layers_and_the_largest_context_they_leave(gpu: None) -> None:
    found = search(measure, {"GPU": 1150 + 10 * 5120, "CPU": 1 << 20}, range(12), 131072, False)
    assert (found.n_gpu_layers, found.n_ctx, found.limited_by) == (11, 5120, "memory")


def test_the_fewest_layers_on_the_cpu_for_a_context(gpu: None) -> None:
    found = search(measure, {"GPU": 50 + 7 * (100 + 8192), "CPU": 1 << 20}, range(12), 8192, True)
    assert (found.n_gpu_layers, found.n_ctx) == (7, 8192)
    # not given, a context of 4096 is worth moving layers for
    found = search(measure, {"GPU": 50 + 3 * (100 + 4096), "CPU": 1 << 20}, range(12), 131072, False)
    assert (found.n_gpu_layers, found.n_ctx) == (3, 4096)


def test_layers_that_fit_nowhere(gpu: None) -> None:
    with pytest.raises(errors.MemoryLimitError, match="on CPU"):
        search(measure, {"GPU": 5000, "CPU": 1000}, range(12), 8192, True)
