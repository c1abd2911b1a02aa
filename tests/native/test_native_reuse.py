"""Prefix reuse between calls: what may be kept is kept, and the text is that of a cold context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from native_helpers import PROMPT

from pyllama_turbo import Context, Model, errors

PLAIN = [{"weight_type": "f32"}, {"odd": "stablelm"}]
WINDOW = [{"arch": "gemma3", "n_layer": 7}, {"odd": "gemma2"}, {"odd": "gpt-oss"}, {"odd": "gemma4"}]
RECURRENT = [{"odd": "lfm2"}, {"odd": "mamba"}]
GREEDY = {"temperature": 0, "max_tokens": 16, "ignore_eos": True}
WINDOW_TOKENS = 64  # of the fixtures


def run(ctx: Context, ids: list[int], **keywords: Any) -> tuple[list[int], int]:
    """Generated tokens, and how many of the prompt were reused."""
    generation = ctx.generate(ids, **{**GREEDY, **keywords})
    last = list(generation)[-1]
    return generation.tokens, last.n_reused


def cold(model: Model, ids: list[int], **options: Any) -> list[int]:
    with model.context(1024, **options) as ctx:
        return run(ctx, ids)[0]


def prompts(model: Model) -> tuple[list[int], list[int]]:
    """A prompt longer than a window, and other words."""
    return model.tokenizer.encode(PROMPT * 3), model.tokenizer.encode(" some other words", add_special=False)


@pytest.mark.parametrize("shape", PLAIN + WINDOW + RECURRENT, ids=str)
def test_a_prompt_that_goes_on(open_model: Callable[..., Model], shape: dict[str, Any]) -> None:
    """A chat's next turn holds all that was said: everything is reused, in every kind of cache."""
    model = open_model(**shape)
    first, more = prompts(model)
    with model.context(1024) as ctx:
        answer, reused = run(ctx, first)
        assert reused == 0
        turn = [*first, *answer, *more]
        warm, reused = run(ctx, turn)
    assert reused == len(first) + len(answer) - 1  # the newest token was chosen, but never run
    assert warm == cold(model, turn)


@pytest.mark.parametrize("shape", PLAIN + WINDOW + RECURRENT, ids=str)
def test_a_prompt_that_leaves_the_path(open_model: Callable[..., Model], shape: dict[str, Any]) -> None:
    model = open_model(**shape)
    first, more = prompts(model)
    changed = [*first[: len(first) // 2], *more]
    with model.context(1024) as ctx:
        run(ctx, first)
        warm, reused = run(ctx, changed)
        again, _ = run(ctx, first)
    assert warm == cold(model, changed)
    assert again == cold(model, first)
    if shape in RECURRENT:
        assert reused == 0  # a state cannot go back
    elif shape in PLAIN:
        assert reused == len(first) // 2


@pytest.mark.parametrize("shape", WINDOW, ids=str)
def test_a_window_that_moved_on_is_not_reused(open_model: Callable[..., Model], shape: dict[str, Any]) -> None:
    """Behind a long text the window layers have lost what a much earlier token looks at; just before, they have not."""
    model = open_model(**shape)
    ids = model.tokenizer.encode(PROMPT * 40)[:1400]
    options = {"n_batch": 64, "n_ubatch": 64}  # the window's cache holds the window and one batch
    early, late = ids[:600], [*ids[:-5], *ids[:3]]
    with model.context(2048, **options) as ctx:
        run(ctx, ids)
        warm, reused = run(ctx, early)
        assert (warm, reused) == (run_cold(model, early, options), 0)
        run(ctx, ids)
        warm, reused = run(ctx, late, max_tokens=4)
        assert warm == run_cold(model, late, options)[:4]
        if reused:
            assert reused == len(ids) - 5
    with model.context(2048, swa_full=True) as ctx:  # which keeps everything
        run(ctx, ids)
        assert run(ctx, early)[1] == len(early) - 1


def run_cold(model: Model, ids: list[int], options: dict[str, Any]) -> list[int]:
    with model.context(2048, **options) as ctx:
        return run(ctx, ids)[0]


@pytest.mark.parametrize("shape", [*PLAIN[:1], *WINDOW[:1], *RECURRENT], ids=str)
@pytest.mark.parametrize("kv", ["f16", "turbo3"])
def test_the_same_prompt_again(open_model: Callable[..., Model], shape: dict[str, Any], kv: str) -> None:
    if shape == {"odd": "mamba"} and kv != "f16":
        with pytest.raises(errors.UnsupportedError):
            open_model(**shape).context(1024, kv=kv)
        return
    model = open_model(**shape)
    ids, _ = prompts(model)
    with model.context(1024, kv=kv) as ctx:
        texts = [run(ctx, ids) for _ in range(4)]
    assert {tuple(tokens) for tokens, _ in texts} == {tuple(cold(model, ids, kv=kv))}
    assert [reused for _, reused in texts] == [0] + 3 * [0 if shape in RECURRENT else len(ids) - 1]


def test_reuse_is_per_sequence_and_can_be_switched_off(open_model: Callable[..., Model]) -> None:
    model = open_model(weight_type="f32")
    ids, _ = prompts(model)
    with model.context(2048, n_seq_max=2) as ctx:
        assert run(ctx, ids)[1] == 0
        assert run(ctx, ids, seq=1)[1] == 0
        assert run(ctx, ids, seq=1)[1] == run(ctx, ids)[1] == len(ids) - 1
        assert run(ctx, ids, reuse=False)[1] == 0
        ctx.seqs.clear()
        assert run(ctx, ids)[1] == 0
