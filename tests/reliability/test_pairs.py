"""Every pair of K and V types loads, generates, shifts, copies and removes, or is refused with its reason."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from runs import KV, go_on, prompt, same

from pyllama_turbo import Model, errors, kv

Open = Callable[..., Model]


def test_the_list_is_complete() -> None:
    assert {kind.name for kind in kv.types()} == set(KV)


@pytest.mark.parametrize("type_k", KV)
@pytest.mark.parametrize("shape", [{}, {"head_dim": 128, "n_head_kv": 1}], ids=["64", "128"])
def test_every_pair_generates(open_model: Open, type_k: str, shape: dict[str, int]) -> None:
    model = open_model(**shape)
    for type_v in KV:
        with model.context(256, type_k=type_k, type_v=type_v, n_threads=1) as ctx:
            stored = {(kv.find(x.type_k).family, kv.find(x.type_v).family) for x in ctx.kv.effective}
            assert stored == {(type_k, type_v)} == {ctx.kv.requested}
            ctx.prefill(prompt(model, 40))
            tokens, logits = go_on(ctx, 9, 4)
            assert np.isfinite(logits).all() and logits.std() > 0.5
            ctx.seqs.remove(0, 42)
            assert ctx.seqs.range() == (0, 41)
            if ctx.facts.can_shift:
                ctx.seqs.discard_oldest(0, 4)
                ctx.decode([tokens[0]])
                assert np.isfinite(ctx.logits).all()
            else:
                assert type_k == "bf16"


@pytest.mark.parametrize("type_k", KV)
@pytest.mark.parametrize("flash", ["off", "auto"])
def test_every_pair_without_flash_attention(open_model: Open, type_k: str, flash: str) -> None:
    model = open_model()
    for type_v in KV:
        floats = type_v in ("f32", "f16", "bf16")
        if flash == "auto" or (floats and not type_k.startswith("turbo")):
            with model.context(256, type_k=type_k, type_v=type_v, flash_attn=flash, n_threads=1) as ctx:
                ctx.decode(prompt(model, 10))
                assert np.isfinite(ctx.logits).all()
        else:
            with pytest.raises(errors.UnsupportedError, match="need flash attention"):
                model.context(256, type_k=type_k, type_v=type_v, flash_attn=flash)


@pytest.mark.parametrize("name", KV)
@pytest.mark.parametrize("head_dim", [48, 80, 96, 112, 192, 256])
def test_head_dims(open_model: Open, name: str, head_dim: int) -> None:
    model = open_model(head_dim=head_dim)
    if head_dim % kv.find(name).block_values and not (name.startswith("turbo") and head_dim % 64 == 0):
        with pytest.raises(errors.UnsupportedError, match=str(head_dim)):
            model.context(256, kv=name)
        return
    with model.context(256, kv=name, n_threads=1) as ctx:
        ctx.prefill(prompt(model, 20))
        assert np.isfinite(go_on(ctx, 9, 2)[1]).all()


@pytest.mark.parametrize("name", KV)
@pytest.mark.parametrize("unified", [False, True])
def test_copies_keep_and_remove_in_the_middle(open_model: Open, name: str, unified: bool) -> None:
    model = open_model()
    with model.context(1024, kv=name, n_seq_max=3, kv_unified=unified, n_threads=1) as ctx:
        ctx.prefill(prompt(model, 60), seq=0)
        ctx.prefill(prompt(model, 30, 1), seq=2)
        ctx.seqs.copy(0, 1)
        assert ctx.seqs.range(1) == (0, 59) and ctx.seqs.tokens(1) == ctx.seqs.tokens(0)
        original, copied = go_on(ctx, 9, 6, 0), go_on(ctx, 9, 6, 1)
        assert same(original, copied, 2e-2 if unified else 0)  # one cache: other cells, so another order of sums
        if unified:
            ctx.seqs.copy(0, 1, 0, 20)
            assert ctx.seqs.range(1) == (0, 19) and len(ctx.seqs.tokens(1)) == 20
        else:
            with pytest.raises(errors.UnsupportedError, match="kv_unified"):
                ctx.seqs.copy(0, 1, 0, 20)
        ctx.seqs.remove(0, 20, 40)  # a hole: the positions around it stay
        assert ctx.seqs.range(0) == (0, 65) and ctx.seqs.tokens(0) is None
        ctx.decode([9], seq=0)
        assert np.isfinite(ctx.logits).all()
        ctx.seqs.keep(2)
        assert [ctx.seqs.range(seq) for seq in range(3)] == [(-1, -1), (-1, -1), (0, 29)]
        assert ctx.prefill([*prompt(model, 30, 1), 5], seq=2).n_reused == 30


@pytest.mark.parametrize("name", KV)
def test_a_reused_prefix_gives_the_text_of_a_cold_run(open_model: Open, name: str) -> None:
    model = open_model(head_dim=128)
    keywords = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
    with model.context(512, kv=name, n_threads=1) as ctx:
        ctx.complete(prompt(model, 90), **keywords)
        ctx.complete([*prompt(model, 60), 11, 12, 13], **keywords)
        second = ctx.generate([*prompt(model, 60), 21, 22, 23], **keywords)
        warm = "".join(event.text for event in second)
        assert second.last.n_reused == 60
    with model.context(512, kv=name, n_threads=1) as ctx:
        assert ctx.complete([*prompt(model, 60), 21, 22, 23], **keywords) == warm
