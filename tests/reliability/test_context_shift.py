"""K-shift, and running past the end: right for every type and architecture, or refused before it starts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from runs import FEW, KV, ODD, difference, prompt

from pyllama_turbo import Model, errors

Open = Callable[..., Model]
N, N_DROPPED = 96, 32
SHAPES = {
    "llama": {},
    "stablelm": {"odd": "stablelm"},
    "gemma3": {"arch": "gemma3", "n_layer": 6, "head_dim": 128},
    "lfm2": {"odd": "lfm2"},
}
LONG_RUNS = [("llama", kv) for kv in KV] + [(name, kv) for name in SHAPES for kv in FEW if name != "llama"]


def shifted_logits(model: Model, kv: str, **keywords: object) -> tuple[np.ndarray, np.ndarray]:
    """Logits of a token after N others, before and after the first N_DROPPED were dropped and the gap closed."""
    with model.context(256, kv=kv, n_threads=1, swa_full=True, **keywords) as ctx:
        ctx.decode(prompt(model, N))
        plain = ctx.logits[0].copy()
        ctx.seqs.remove(0, N - 1)
        ctx.seqs.remove(0, 0, N_DROPPED)
        ctx.seqs.shift(0, N_DROPPED, -1, -N_DROPPED)
        ctx.decode(prompt(model, N)[-1:])
        return plain, ctx.logits[0].copy()


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("kv", [name for name in KV if name != "bf16"])
def test_a_shift_in_every_architecture(open_model: Open, odd: str, kv: str) -> None:
    model = open_model(odd=odd)
    reference, moved_reference = shifted_logits(model, "f32")
    plain, moved = shifted_logits(model, kv)
    # A shift decodes, turns and encodes once more: about the error of two quantisations instead of one.
    assert difference(moved, moved_reference) < 3.2 * difference(plain, reference) + 0.01
    assert difference(moved_reference, reference) > 0.1  # the dropped tokens mattered


def test_partial_rope_turns_only_its_part(open_model: Open) -> None:
    model = open_model(odd="stablelm")
    assert {layer.n_rot for layer in model.layers} == {32}
    with model.context(256, kv="f32", n_threads=1) as ctx:
        ctx.decode(prompt(model, 64))
        together = ctx.logits[0].copy()
        ctx.seqs.clear()
        ctx.decode(prompt(model, 64)[:-1], outputs="none")
        ctx.seqs.shift(0, 0, -1, 100)  # all of them: distances stay as they were
        ctx.decode(prompt(model, 64)[-1:], pos=163)
        assert difference(ctx.logits[0], together) < 1e-3
        ctx.seqs.clear()
        ctx.decode(prompt(model, 64)[:-1], outputs="none")
        ctx.seqs.shift(0, 32, -1, 100)
        ctx.decode(prompt(model, 64)[-1:], pos=163)
        assert difference(ctx.logits[0], together) > 0.05


@pytest.mark.parametrize("kv", [name for name in KV if name != "bf16"])
@pytest.mark.parametrize("k_center", ["auto", "off"])
def test_moving_everything_changes_nothing(open_model: Open, kv: str, k_center: str) -> None:
    # Distances decide, not places: the centre must be taken off and put back at the right side of the rotation.
    model = open_model(arch="qwen2", k_bias=20.0)
    with model.context(512, kv=kv, k_center=k_center, n_threads=1) as ctx:
        ctx.decode(prompt(model, 64))
        together = ctx.logits[0].copy()
        ctx.seqs.remove(0, 63)
        ctx.seqs.shift(0, 0, -1, 300)
        ctx.decode(prompt(model, 64)[-1:], pos=363)
        moved = ctx.logits[0].copy()
    with model.context(512, kv="f32", n_threads=1) as ctx:
        ctx.decode(prompt(model, 64))
        exact = ctx.logits[0].copy()
    assert difference(moved, exact) < 3.2 * difference(together, exact) + 0.01


@pytest.mark.parametrize(("shape", "kv"), LONG_RUNS)
def test_four_times_past_the_end(open_model: Open, shape: str, kv: str) -> None:
    model = open_model(**SHAPES[shape])
    with model.context(256, kv=kv, n_threads=1) as ctx:
        generate = {"max_tokens": 4 * 256, "ignore_eos": True, "temperature": 1.0, "seed": 3}
        ids = prompt(model, 40)
        if kv == "bf16":  # upstream cannot turn such keys: everything that fits, then a refusal
            run = ctx.generate(ids, context_shift=True, n_keep=8, **generate)
            with pytest.raises(errors.UnsupportedError, match="bf16"):
                list(run)
            assert len(run.tokens) == 256 - 40 + 1
            return
        with ctx.generate(ids, context_shift=True, n_keep=8, **generate) as run:
            event = list(run)[-1]
        assert event.finish_reason == "length" and event.n_generated == 4 * 256
        assert np.isfinite(ctx.logits).all()
        assert ctx.seqs.tokens()[:8] == tuple(ids[:8])  # n_keep
        assert ctx.seqs.range()[1] + 1 == len(ctx.seqs.tokens()) <= 256
        kept = ctx.seqs.tokens()[8:]
        assert kept == tuple(run.tokens[:-1])[-len(kept) :]  # the newest ones, in order


def test_without_the_switch_the_end_is_the_end(open_model: Open) -> None:
    with open_model().context(256, kv="turbo3") as ctx:
        with ctx.generate(prompt(ctx.model, 40), max_tokens=500, ignore_eos=True, context_shift=False) as run:
            event = list(run)[-1]
        assert (event.finish_reason, event.n_generated) == ("length", 256 - 40 + 1)


@pytest.mark.parametrize("odd", ["lfm2", "mamba"])
def test_recurrent_state_is_not_rolled_back_in_part(open_model: Open, odd: str) -> None:
    model = open_model(odd=odd)
    kinds = FEW if odd == "lfm2" else ("f16",)
    for kv in kinds:
        with model.context(256, kv=kv, n_threads=1) as ctx:
            ctx.prefill(prompt(model, 60))
            for p0, p1 in ((30, -1), (0, 30), (10, 20), (0, 59)):
                with pytest.raises(errors.UnsupportedError):
                    ctx.seqs.remove(0, p0, p1)
            if not ctx.facts.can_shift:
                with pytest.raises(errors.UnsupportedError):
                    ctx.seqs.discard_oldest(0, 4)
            assert ctx.seqs.tokens() == tuple(prompt(model, 60)) and ctx.seqs.range()[1] == 59
            longer = [*prompt(model, 60), 9, 8, 7]
            assert ctx.prefill(longer).n_reused == 60  # going on needs no roll-back
            warm = ctx.logits[0].copy()
            assert ctx.prefill([*prompt(model, 30), 5, 6]).n_reused == 0  # a roll-back does: computed anew
            cold_again = ctx.logits[0].copy()
        with model.context(256, kv=kv, n_threads=1) as ctx:
            ctx.prefill([*prompt(model, 30), 5, 6])
            assert np.array_equal(ctx.logits[0], cold_again)
            ctx.seqs.clear()
            ctx.prefill(longer)
            assert ctx.logits[0].argmax() == warm.argmax()


@pytest.mark.parametrize("kv", FEW)
def test_a_cancel_does_not_leave_keys_half_turned(open_model: Open, kv: str) -> None:
    model = open_model()
    rows = []
    for cancelled in (False, True):
        with model.context(256, kv=kv, n_threads=1) as ctx:
            ctx.prefill(prompt(model, 64))
            if cancelled:
                ctx.cancel()
            ctx.seqs.discard_oldest(0, 4)
            if cancelled:
                with pytest.raises(errors.AbortedError):
                    ctx.decode([9])
            ctx.decode([9])
            rows.append(ctx.logits[0].copy())
    assert np.array_equal(*rows)
