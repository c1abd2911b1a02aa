"""Centres of runs of cells: exact wherever a key lies, bit by bit after a restore, used only where they can be."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from runs import difference, go_on, prompt, same
from test_centred_keys import CENTRED, large_means

from pyllama_turbo import Context, Model, centers, errors, state
from pyllama_turbo.context_facts import read_kv_layers

Open = Callable[..., Model]
# What rounding alone makes of logits, with means three times the keys. A centre that is forgotten, or the next run's,
# makes several times that.
ROUNDING = {"f16": 1e-2, "q8_0": 0.12}


def kinds(ctx: Context) -> list[str]:
    """How the keys of each layer are centred, as the library has it now."""
    return [x.k_center for x in read_kv_layers(ctx._binding, ctx.pointer())]


def plain(model: Model, n_ctx: int = 512, **keywords: object) -> Context:
    return model.context(n_ctx, kv="f16", k_center="off", n_threads=1, flash_attn="on", **keywords)


def by_runs(model: Model, kv: str, n_ctx: int = 512, **keywords: object) -> Context:
    """A context whose keys lack centres of runs that are larger than the keys."""
    ctx = model.context(n_ctx, kv=kv, k_center="off", n_threads=1, flash_attn="on", **keywords)
    assert set(kinds(ctx)) == {"none"}
    centers.install(ctx._binding, ctx.pointer(), large_means(model))
    assert "runs of 64" in kinds(ctx)
    return ctx


def row(ctx: Context) -> np.ndarray:
    return ctx.logits[0].copy()


# -- exact wherever keys lie -------------------------------------------------------------------------------------------


def straight(ctx: Context) -> list[np.ndarray]:
    """A prompt over several runs, in batches that do not end where runs do, and single tokens across an edge."""
    ids = prompt(ctx.model, 330)
    found = []
    for first in range(0, 310, 47):
        ctx.decode(ids[first : min(first + 47, 310)])
        found.append(row(ctx))
    for token in ids[310:]:
        ctx.decode([token])
        found.append(row(ctx))
    return found


def refilled(ctx: Context) -> list[np.ndarray]:
    """Cells that are freed and filled again hold positions of other runs."""
    ids = prompt(ctx.model, 400)
    ctx.decode(ids[:200], outputs="none")
    ctx.seqs.remove(0, 20, 150)
    found = []
    for first in range(200, 400, 40):  # into the gap, then behind the rest
        ctx.decode(ids[first : first + 40])
        found.append(row(ctx))
    ctx.seqs.remove(0, 380)
    ctx.decode(ids[380:])
    return [*found, row(ctx)]


# Recurrent state drops no part of a sequence.
WAYS = [(run, name) for run in (straight, refilled) for name in CENTRED if run is straight or "recurrent" not in name]


@pytest.mark.parametrize(("run", "name"), WAYS)
@pytest.mark.parametrize("kv", ["f16", "q8_0"])
def test_the_logits_are_the_same(
    open_model: Open, name: str, kv: str, run: Callable[[Context], list[np.ndarray]]
) -> None:
    model = open_model(**CENTRED[name])
    with plain(model, swa_full=True, n_ubatch=64) as ctx:
        expected = run(ctx)
    with by_runs(model, kv, swa_full=True, n_ubatch=64) as ctx:
        for found, wanted in zip(run(ctx), expected, strict=True):
            assert difference(found, wanted) < ROUNDING[kv]


@pytest.mark.parametrize("kv", ["f16", "q8_0"])
def test_sequences_side_by_side_and_copied(open_model: Open, kv: str) -> None:
    model = open_model()

    def run(ctx: Context) -> list[np.ndarray]:
        found = []
        for seq, n in ((0, 200), (1, 90), (2, 150)):
            ctx.decode(prompt(model, n, seq), seq=seq, outputs="none")
        ctx.seqs.copy(0, 1)
        for seq in (2, 0, 1):
            ctx.decode(prompt(model, 30, 5 + seq), seq=seq)
            found.append(row(ctx))
        ctx.seqs.remove(2)
        ctx.decode(prompt(model, 170, 3), seq=2)
        return [*found, row(ctx)]

    with plain(model, 1536, n_seq_max=3) as ctx:
        expected = run(ctx)
    with by_runs(model, kv, 1536, n_seq_max=3) as ctx:
        for found, wanted in zip(run(ctx), expected, strict=True):
            assert difference(found, wanted) < ROUNDING[kv]


@pytest.mark.parametrize("n_seq", [1, 2])
def test_shifted_as_without_centres(open_model: Open, n_seq: int) -> None:
    model = open_model()

    def run(ctx: Context) -> list[np.ndarray]:
        found = []
        for seq in range(n_seq):
            ctx.decode(prompt(model, 200, seq), seq=seq, outputs="none")
        for drop in (70, 40):  # the second from keys that lack the one centre already
            ctx.seqs.remove(0, 10, 10 + drop)
            ctx.seqs.shift(0, 10 + drop, -1, -drop)
            for seq in range(n_seq):  # the other sequence is not shifted, but its keys lack another centre now
                ctx.decode(prompt(model, 50, 7 + seq), seq=seq)
                found.append(row(ctx))
        return found

    with plain(model, 512 * n_seq, n_seq_max=n_seq) as ctx:
        expected = run(ctx)
    with by_runs(model, "q8_0", 512 * n_seq, n_seq_max=n_seq) as ctx:
        for found, wanted in zip(run(ctx), expected, strict=True):
            assert difference(found, wanted) < ROUNDING["q8_0"]


# -- saved state -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv", ["f16", "q8_0", "turbo3_tcq"])
def test_restored_bit_by_bit(open_model: Open, kv: str) -> None:
    model = open_model()
    with by_runs(model, kv) as ctx:
        refilled(ctx)  # cells in no order
        data = state.get_bytes(ctx)
        expected = go_on(ctx, 9, 70)
    with by_runs(model, kv) as ctx:
        ctx.decode(prompt(model, 300, 4), outputs="none")
        state.set_bytes(ctx, data)
        assert same(go_on(ctx, 9, 70), expected)


def shifted(ctx: Context, seq: int = 0) -> None:
    ctx.decode(prompt(ctx.model, 150, 8), seq=seq, outputs="none")
    ctx.seqs.remove(seq, 0, 50)
    ctx.seqs.shift(seq, 50, -1, -50)


@pytest.mark.parametrize("kv", ["q8_0", "turbo3_tcq"])
def test_after_a_shift_restored_bit_by_bit(open_model: Open, kv: str) -> None:
    model = open_model()
    with by_runs(model, kv) as ctx:
        shifted(ctx)
        data = state.get_bytes(ctx)
        expected = go_on(ctx, 9, 70)
    with by_runs(model, kv) as ctx:  # which has runs until then
        ctx.decode(prompt(model, 300, 4), outputs="none")
        state.set_bytes(ctx, data)
        assert same(go_on(ctx, 9, 70), expected)


@pytest.mark.parametrize("shift_first", [True, False])
def test_restored_beside_a_sequence_with_other_centres(open_model: Open, shift_first: bool) -> None:
    """Keys that lacked the centres of runs go where all lack one, and the other way round: coded anew."""
    model = open_model()
    keywords = {"n_seq_max": 2}
    with by_runs(model, "q8_0", 1024, **keywords) as ctx:
        if not shift_first:
            shifted(ctx)
            ctx.decode(prompt(model, 100), seq=0, outputs="none")
        else:
            ctx.decode(prompt(model, 200), seq=0, outputs="none")
        data = state.get_bytes(ctx, 0)
        expected = go_on(ctx, 9, 8)
    with by_runs(model, "q8_0", 1024, **keywords) as ctx:
        if shift_first:
            shifted(ctx, seq=1)
        else:
            ctx.decode(prompt(model, 120, 3), seq=1, outputs="none")
        other = state.get_bytes(ctx, 1)
        state.set_bytes(ctx, data, 0)
        assert state.get_bytes(ctx, 1) == other
        ctx.decode_one(9, ctx.seqs.next_position(0), 0)
        assert difference(row(ctx), expected[1][0]) < 0.03


def test_an_emptied_cache_begins_with_runs_again(open_model: Open) -> None:
    model = open_model()
    ids = prompt(model, 200)
    with by_runs(model, "turbo3_tcq") as ctx:
        ctx.prefill(ids)
        expected = go_on(ctx, 9, 8)
    with by_runs(model, "turbo3_tcq") as ctx:
        shifted(ctx)
        before = go_on(ctx, 9, 8)
        ctx.seqs.remove(0)
        ctx.prefill(ids)
        assert same(go_on(ctx, 9, 8), expected)
        ctx.seqs.clear()
        shifted(ctx)
        assert same(go_on(ctx, 9, 8), before)


# -- where they are used -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_ctx", "keywords", "expected"),
    [
        (256, {"kv": "turbo3"}, "runs of 64"),
        (8192, {"kv": "q4_0"}, "runs of 64"),
        (8448, {"kv": "q8_0/turbo3"}, "runs of 128"),
        (40960, {"kv": "turbo3"}, "runs of 256"),
        (512, {"kv": "q8_0", "n_seq_max": 2}, "runs of 64"),
        (512, {"kv": "q8_0", "n_seq_max": 2, "kv_unified": True}, "one centre"),  # cells say nothing of positions
        (512, {"kv": "q8_0/f16", "flash_attn": "off"}, "one centre"),
        (512, {"kv": "q5_1"}, "one centre"),  # which llama.cpp reads
        (512, {"kv": "q8_0/q5_1"}, "one centre"),
        (512, {"kv": "turbo3", "k_center": "off"}, "none"),
        (512, {"kv": "f16"}, "none"),
    ],
    ids=str,
)
def test_where_runs_are_used(open_model: Open, n_ctx: int, keywords: dict[str, object], expected: str) -> None:
    model = open_model()
    with model.context(n_ctx, n_threads=1, **keywords) as ctx:
        assert {x.k_center for x in ctx.kv.effective} == {expected}
        assert ("runs" in state.fingerprint(ctx)["key_runs"]) == expected.startswith("runs")


def test_a_sliding_window_keeps_one_centre(open_model: Open) -> None:
    model = open_model(arch="gemma3", n_layer=6, head_dim=64)
    with model.context(4096, kv="turbo3", n_ubatch=64, n_threads=1) as ctx:
        assert {(x.part, x.k_center) for x in ctx.kv.effective} == {("full", "runs of 64"), ("window", "one centre")}
    with model.context(4096, kv="turbo3", n_ubatch=64, n_threads=1, swa_full=True) as ctx:
        assert {x.k_center for x in ctx.kv.effective} == {"runs of 64"}


def test_state_of_runs_is_no_state_of_one_centre(open_model: Open) -> None:
    model = open_model()
    with model.context(512, kv="q8_0/f16", n_threads=1, flash_attn="on") as ctx:
        ctx.prefill(prompt(model, 100))
        assert state.fingerprint(ctx)["key_runs"] == "0-1 runs of 64"
    with model.context(512, kv="q8_0/f16", n_threads=1, flash_attn="off") as ctx:
        assert state.fingerprint(ctx)["key_runs"] == "0-1 one centre"


def test_runs_can_be_refused(open_model: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_model()
    monkeypatch.setenv("TURBO_CENTER_RUNS", "0")
    with model.context(512, kv="turbo3", n_threads=1) as ctx:
        assert {x.k_center for x in ctx.kv.effective} == {"one centre"}
        ctx.prefill(prompt(model, 100))
        data = state.get_bytes(ctx)
        ctx.decode([9])
        expected = row(ctx)
    with model.context(512, kv="turbo3", n_threads=1) as ctx:
        assert state.set_bytes(ctx, data) == 100
        ctx.decode([9])
        assert (row(ctx) == expected).all()
    monkeypatch.delenv("TURBO_CENTER_RUNS")
    refusal = pytest.raises(errors.StateError, match="key_runs is .0-1 one centre. there")
    with model.context(512, kv="turbo3", n_threads=1) as ctx, refusal:
        state.set_bytes(ctx, data)
