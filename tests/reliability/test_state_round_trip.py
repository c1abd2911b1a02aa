"""What was saved goes on as if it had never been away: the same 64 tokens, from bit-equal logits, for every KV type."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from runs import FEW, KV, go_on, prompt, same

from pyllama_turbo import Context, Model, errors, state

Open = Callable[..., Model]
SHAPES = {
    "llama": {},
    "head dim 128": {"head_dim": 128},
    "sliding windows": {"arch": "gemma3", "n_layer": 6, "head_dim": 128},
}
N = 64


def make(model: Model, kv: str, **keywords: object) -> Context:
    return model.context(512, kv=kv, n_threads=1, n_ubatch=64, **keywords)


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_file_goes_on_the_same_way(open_model: Open, tmp_path: Path, kv: str, shape: str) -> None:
    model = open_model(**SHAPES[shape])
    with make(model, kv) as ctx:
        ctx.prefill(prompt(model, 150))
        state.save(ctx, tmp_path / "s")
        expected = go_on(ctx, 9, N)
    with make(model, kv) as ctx:
        assert state.load(ctx, tmp_path / "s") == 150
        assert ctx.seqs.tokens() == tuple(prompt(model, 150))
        assert same(go_on(ctx, 9, N), expected)


@pytest.mark.parametrize("kv", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_that_lie_transposed(open_model: Open, kv: str, shape: str) -> None:
    model = open_model(**SHAPES[shape])
    with make(model, kv, flash_attn="off", n_seq_max=2) as ctx:
        ctx.prefill(prompt(model, 100), seq=1)
        data, whole = state.get_bytes(ctx, 1), state.get_bytes(ctx, None)
        expected = go_on(ctx, 9, 16, 1)
    with make(model, kv, flash_attn="off", n_seq_max=2) as ctx:
        state.set_bytes(ctx, data, 1)
        assert same(go_on(ctx, 9, 16, 1), expected)
        state.set_bytes(ctx, whole, None)
        assert same(go_on(ctx, 9, 16, 1), expected)


@pytest.mark.parametrize("odd", ["gemma2", "gpt-oss", "stablelm", "gemma4", "lfm2", "mamba"])
@pytest.mark.parametrize("kv", FEW)
def test_other_kinds_of_memory(open_model: Open, kv: str, odd: str) -> None:
    model = open_model(odd=odd)
    if odd == "mamba" and kv != "f16":
        with pytest.raises(errors.UnsupportedError, match="no KV cache"):
            make(model, kv)
        return
    with make(model, kv) as ctx:
        ctx.prefill(prompt(model, 100))
        data = state.get_bytes(ctx)
        expected = go_on(ctx, 9, N)
    with make(model, kv) as ctx:
        assert state.set_bytes(ctx, data) == 100
        assert same(go_on(ctx, 9, N), expected)


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("n_after", [0, 3])
def test_after_a_context_shift(open_model: Open, kv: str, n_after: int) -> None:
    model = open_model()
    with make(model, kv) as ctx:
        ctx.prefill(prompt(model, 150))
        if not ctx.facts.can_shift:
            assert kv == "bf16"
            with pytest.raises(errors.UnsupportedError, match="bf16"):
                ctx.seqs.discard_oldest(0, 4)
            return
        ctx.seqs.discard_oldest(0, 4)
        go_on(ctx, 7, n_after)  # with none, the shift itself is still to be carried out when the state is saved
        data = state.get_bytes(ctx)
        known, expected = ctx.seqs.tokens(), go_on(ctx, 9, N)
    with make(model, kv) as ctx:
        state.set_bytes(ctx, data)
        assert ctx.seqs.tokens() == known
        assert same(go_on(ctx, 9, N), expected)


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("unified", [False, True])
def test_several_sequences_at_once_and_one_by_one(open_model: Open, kv: str, unified: bool) -> None:
    model = open_model()
    sequences = {"n_seq_max": 3, "kv_unified": unified}
    with make(model, kv, **sequences) as ctx:
        for seq in range(3):
            ctx.prefill(prompt(model, 40 + 20 * seq, seq), seq=seq)
        whole = state.get_bytes(ctx, seq=None)
        parts = [state.get_bytes(ctx, seq) for seq in range(3)]
        expected = [go_on(ctx, 9, N, seq)[0] for seq in range(3)]
    with make(model, kv, **sequences) as ctx:
        ctx.prefill([5, 6, 7], seq=1)
        assert state.set_bytes(ctx, whole, seq=None) == 40 + 60 + 80
        assert [go_on(ctx, 9, N, seq)[0] for seq in range(3)] == expected
    with make(model, kv, **sequences) as ctx:
        for seq in (2, 0, 1):
            state.set_bytes(ctx, parts[seq], (seq + 1) % 3)  # as other sequences than they were
        assert [go_on(ctx, 9, N, (seq + 1) % 3)[0] for seq in range(3)] == expected


def test_a_copy_that_was_not_carried_out_yet(open_model: Open) -> None:
    model = open_model()
    with make(model, "turbo3", n_seq_max=2) as ctx:
        ctx.prefill(prompt(model, 50), seq=0)
        ctx.seqs.copy(0, 1)  # between separate caches, done with the next decode
        data = state.get_bytes(ctx, 1)
        ctx.seqs.copy(0, 1)
        state.set_bytes(ctx, data, 1)  # must not be overwritten by the copy that waits
        assert same(go_on(ctx, 9, 8, 0), go_on(ctx, 9, 8, 1))


def test_a_sequence_leaves_the_others_alone(open_model: Open) -> None:
    model = open_model()
    with make(model, "turbo3", n_seq_max=2) as ctx:
        ctx.prefill(prompt(model, 50), seq=0)
        data = state.get_bytes(ctx, 0)
        ctx.prefill(prompt(model, 60, 1), seq=1)
        other = state.get_bytes(ctx, 1)
        ctx.seqs.remove(0)
        state.set_bytes(ctx, data, 0)
        assert state.get_bytes(ctx, 1) == other


MISMATCHES = {
    "layers": ({"kv": "turbo3"}, {"kv": "turbo4"}),
    "key_center": ({"kv": "turbo3"}, {"kv": "turbo3", "k_center": "off"}),
    "rope_freq_base": ({}, {"rope_freq_base": 20000.0}),
    "rope_freq_scale": ({}, {"rope_freq_scale": 0.5}),
    "yarn_ext_factor": ({}, {"rope_scaling": "yarn", "yarn_ext_factor": 1.0}),
    "n_stream": ({}, {"n_seq_max": 2}),
    "transposed_v": ({"flash_attn": "on"}, {"flash_attn": "off"}),
    "n_ctx": ({"kv": "turbo3", "n_ctx": 512}, {"kv": "turbo3", "n_ctx": 1024}),
}


@pytest.mark.parametrize("field", MISMATCHES)
def test_a_real_mismatch_is_refused_with_both_values(open_model: Open, field: str) -> None:
    model = open_model()
    there, here = MISMATCHES[field]
    with model.context(**{"n_ctx": 512, **there}) as ctx:
        ctx.prefill(prompt(model, 20))
        data = state.get_bytes(ctx)
    with model.context(**{"n_ctx": 512, **here}) as ctx:
        ctx.prefill(prompt(model, 30))
        before = state.get_bytes(ctx)
        with pytest.raises(errors.StateError, match=f"{field} is .* there and .* here"):
            state.set_bytes(ctx, data)
        assert state.get_bytes(ctx) == before  # nothing was touched


def test_another_model_is_refused(open_model: Open) -> None:
    with open_model().context(256) as ctx:
        ctx.prefill([5, 6])
        data = state.get_bytes(ctx)
    with (
        open_model(seed=1).context(256) as ctx,
        pytest.raises(errors.StateError, match="model is '[0-9a-f]{32}' there and '[0-9a-f]{32}' here"),
    ):
        state.set_bytes(ctx, data)


def test_the_rotation_switch_is_part_of_the_identity(open_model: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_model()
    with model.context(256, kv="q4_0") as ctx:
        ctx.prefill([5, 6])
        data = state.get_bytes(ctx)
    monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", "1")
    with model.context(256, kv="q4_0") as ctx, pytest.raises(errors.StateError, match="rotated_k is True there"):
        state.set_bytes(ctx, data)


def test_a_larger_context_takes_a_state_without_centre(open_model: Open) -> None:
    model = open_model()
    with model.context(512) as ctx:
        ctx.prefill(prompt(model, 300))
        data = state.get_bytes(ctx)
        expected, _ = go_on(ctx, 9, 8)
    with model.context(1024) as ctx:
        state.set_bytes(ctx, data)
        assert go_on(ctx, 9, 8)[0] == expected
    with model.context(256) as ctx, pytest.raises(errors.StateError, match="position 299.*256 tokens a sequence"):
        state.set_bytes(ctx, data)
