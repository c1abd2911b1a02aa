"""The figures computed from a header against what the library then allocates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_result import Run

from pyllama_turbo.kv_fit import plan
from pyllama_turbo.memory import estimate
from pyllama_turbo.model import Model
from pyllama_turbo.shape import model_shape


@pytest.mark.parametrize("name", ["hd128", "hd64", "hd80", "swa", "moe"])
@pytest.mark.parametrize(
    ("n_ctx", "kv_type", "layout"),
    [
        (4096, "turbo3", {}),
        (8192, "f16", {}),
        (2048, "q8_0/turbo4_tcq", {"n_ubatch": 128}),
        (3000, "turbo2", {"n_seq_max": 3}),
        (4096, "turbo3", {"swa_full": True}),
    ],
)
def test_estimate_is_what_is_allocated(
    models: dict[str, Path], name: str, n_ctx: int, kv_type: str, layout: dict[str, int]
) -> None:
    k, _, v = kv_type.partition("/")
    if name == "hd80":
        k = v = "f16"
    shape = model_shape(models[name])
    rename = {"n_seq_max": "n_seq"}
    kv_plan = plan(shape, k, v or k, **{rename.get(key, key): value for key, value in layout.items()})
    need = estimate(shape, kv_plan, n_ctx)
    with Model.open(models[name]) as model, model.context(n_ctx=n_ctx, kv=(k, v or k), k_center="off", **layout) as ctx:
        rows = ctx.memory()
        assert need.kv.total == ctx.kv.bytes == sum(row.context_bytes for row in rows)
        assert need.weights == pytest.approx(sum(row.model_bytes for row in rows), rel=0.001)
        compute = sum(row.compute_bytes for row in rows)
        assert need.compute == pytest.approx(compute, rel=0.2)
        assert need.total == pytest.approx(need.weights + need.kv.total + compute, rel=0.08)
        wanted = {(x.index, "window" if x.window else "full") for x in shape.layers}
        assert {(x.layer, x.part) for x in ctx.kv.effective} == wanted


@pytest.mark.parametrize("name", ["hd128", "hd64", "hd80", "swa", "moe"])
def test_shape_agrees_with_the_loaded_model(models: dict[str, Path], name: str) -> None:
    shape = model_shape(models[name])
    with Model.open(models[name]) as model:
        facts = model.facts
        assert (facts.n_layer, facts.n_embd, facts.n_vocab) == (shape.n_layer, shape.n_embd, shape.n_vocab)
        assert facts.n_ctx_train == shape.n_ctx_train
        for layer in shape.layers:
            native = model.layer(layer.index)
            assert native.has_kv
            assert native.is_swa is (layer.window > 0)
            assert (native.n_head_kv, native.head_dim_k) == (layer.n_head_kv, layer.head_dim_k)
            assert native.head_dim_v == layer.head_dim_v


@pytest.mark.parametrize("name", ["hd128", "hd64", "hd80", "swa", "moe"])
@pytest.mark.parametrize("flags", [(), ("-ub", "128", "-np", "2"), ("--swa-full", "-c", "3000")])
def test_the_command_tells_what_is_allocated(
    run: Run, models: dict[str, Path], name: str, flags: tuple[str, ...]
) -> None:
    pair = "f16" if name == "hd80" else "turbo3"
    data = json.loads(run("estimate", "-m", models[name], "--kv", pair, "--json", *flags).out)
    (row,) = data["estimates"]
    options = {"n_ubatch": 128, "n_seq_max": 2} if "-ub" in flags else {}
    if "--swa-full" in flags:
        options = {"swa_full": True, "n_ctx": 3000}
    with Model.open(models[name]) as model, model.context(kv=pair, **options) as ctx:
        memory = ctx.memory()
        assert row["kv_bytes"] == sum(m.context_bytes for m in memory)
        assert row["compute_bytes"] == pytest.approx(sum(m.compute_bytes for m in memory), rel=0.02)
        assert row["weights_bytes"] == pytest.approx(sum(m.model_bytes for m in memory), rel=0.02)
        assert row["n_ctx"] == ctx.n_ctx


def test_the_largest_context_fits_and_more_does_not(run: Run, models: dict[str, Path]) -> None:
    limit = 64 << 20
    args = ("estimate", "-m", models["hd128"], "--kv", "turbo3", "--json", "--memory", "64M")
    largest = json.loads(run(*args).out)["estimates"][0]["largest_n_ctx"]
    for n_ctx, fits in ((largest, True), (largest + largest // 16, False)):
        total = json.loads(run(*args, "-c", n_ctx).out)["estimates"][0]["total_bytes"]
        assert (total <= limit) is fits
