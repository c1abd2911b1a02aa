"""KV cache types that crash, abort or silently mean something else when their number reaches the C API."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Probe = Callable[..., str]


@pytest.mark.parametrize(
    "choice",
    ["4", "42", "43", "99", "'i8'", "'I8'", "'q4_K'", "'q2_0'", "'q4_2'", "'turbo_q'", "''", "'turbo5'", "b'f16'"],
)
def test_only_known_names_reach_the_library(probe: Probe, choice: str) -> None:
    assert probe(f"""
        with Model.open(path) as model:
            for keywords in ({{"kv": {choice}}}, {{"type_k": {choice} or "no"}}, {{"type_v": {choice} or "no"}}):
                error = expect(errors.OptionError, model.context, 256, **keywords)
            model.context(256).decode([5])
        print("lives")
    """) == "lives"  # fmt: skip


@pytest.mark.parametrize("pair", ["f16/q8_0", "f16/turbo3", "turbo3/f16", "turbo3/turbo3"])
def test_types_that_need_flash_attention_say_so(probe: Probe, pair: str) -> None:
    assert "flash attention" in probe(f"""
        with Model.open(path) as model:
            print(expect(errors.UnsupportedError, model.context, 256, kv="{pair}", flash_attn="off"))
    """)


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "turbo3"])
def test_a_head_dim_that_does_not_fill_blocks(probe: Probe, name: str) -> None:
    assert "48" in probe(
        f"""
        with Model.open(path) as model:
            print(expect(errors.UnsupportedError, model.context, 256, kv="{name}"))
            with model.context(256) as ctx:
                ctx.decode([5])
        """,
        head_dim=48,
    )


@pytest.mark.parametrize(
    ("head_dim", "n_head", "n_head_kv"), [(64, 4, 1), (64, 4, 4), (128, 4, 2), (256, 2, 1), (512, 2, 1)]
)
@pytest.mark.parametrize("name", ["turbo3", "turbo2_tcq"])
def test_every_head_layout_runs(probe: Probe, name: str, head_dim: int, n_head: int, n_head_kv: int) -> None:
    assert probe(
        f"""
        with Model.open(path) as model, model.context(256, kv="{name}") as ctx:
            for _ in range(2):  # the second prompt reuses the first
                text = ctx.complete("two prompts sharing a prefix", temperature=0, max_tokens=8, ignore_eos=True)
            assert np.isfinite(ctx.logits).all()
        print("ran")
        """,
        head_dim=head_dim,
        n_head=n_head,
        n_head_kv=n_head_kv,
    ) == "ran"  # fmt: skip


@pytest.mark.parametrize("name", ["f16", "q8_0", "turbo3", "turbo4_tcq"])
def test_running_past_the_end_never_aborts(probe: Probe, name: str) -> None:
    assert probe(f"""
        with Model.open(path) as model, model.context(256, kv="{name}") as ctx:
            ctx.prefill([5] * 250)
            if ctx.facts.can_shift:
                ctx.seqs.discard_oldest(0, 4)
                ctx.decode([5, 6])
            else:
                expect(errors.UnsupportedError, ctx.seqs.shift, 0, 0, -1, 5)
            ctx.seqs.clear()
            ctx.decode([5])
        print("lives")
    """) == "lives"  # fmt: skip
