"""Sequences: what the cache is known to hold, and when a prefix may be used again."""

from __future__ import annotations

import pytest
from fake_native import FakeLib

from pyllama_turbo import errors
from pyllama_turbo.context import Context
from pyllama_turbo.model import Model


def decoded(lib: FakeLib) -> list[list[int]]:
    return [call[1] for call in lib.calls if call[0] == "decode"]


def test_a_long_prompt_runs_in_batches_with_logits_of_the_last_token_only(lib: FakeLib, ctx: Context) -> None:
    ctx.prefill(list(range(40)))
    calls = [c for c in lib.calls if c[0] == "decode"]
    assert [len(c[1]) for c in calls] == [16, 16, 8]
    assert [c[2] for c in calls] == [0, 16, 32]
    assert [c[4] for c in calls] == [0, 0, 1]
    assert ctx.logits.shape == (1, 257)


def test_the_common_start_is_kept(lib: FakeLib, ctx: Context) -> None:
    ctx.prefill([1, 2, 3, 4, 5])
    lib.calls.clear()
    done = ctx.prefill([1, 2, 3, 9, 9])
    assert (done.n_reused, done.n_computed) == (3, 2)
    assert decoded(lib) == [[9, 9]]
    assert ctx.seqs.tokens() == (1, 2, 3, 9, 9)


def test_the_last_token_is_always_computed(lib: FakeLib, ctx: Context) -> None:
    ctx.prefill([1, 2, 3])
    assert ctx.prefill([1, 2, 3]).n_reused == 2
    assert lib.cells[0] == [0, 1, 2]


def test_memory_that_cannot_be_cut_back_is_filled_anew(lib: FakeLib, ctx: Context) -> None:
    lib.can_cut = False
    ctx.prefill([1, 2, 3, 4])
    assert ctx.prefill([1, 2, 9]).n_reused == 0
    assert lib.cells[0] == [0, 1, 2]
    assert ctx.prefill([1, 2, 9, 10]).n_reused == 3  # going on needs no cut


def test_a_window_that_moved_on_is_filled_anew(lib: FakeLib, ctx: Context) -> None:
    ctx.prefill(list(range(30)))
    lib.cells[0] = list(range(20, 30))  # a sliding window dropped the rest
    object.__setattr__(ctx.model.facts, "n_swa", 10)
    assert ctx.prefill([*range(25), 99]).n_reused == 0
    lib.cells[0] = list(range(5, 26))
    ctx.seqs.set_tokens(0, [*range(25), 99])
    assert ctx.prefill([*range(20), 98]).n_reused == 20


def test_unknown_content_is_never_reused(lib: FakeLib, ctx: Context) -> None:
    ctx.prefill([1, 2, 3])
    ctx.seqs.forget(0)
    assert ctx.seqs.tokens() is None
    assert ctx.prefill([1, 2, 3, 4]).n_reused == 0


def test_the_book_keeping_is_checked_against_the_cache(lib: FakeLib, ctx: Context) -> None:
    ctx.prefill([1, 2, 3, 4])
    lib.cells[0] = [0, 1]  # someone else cut the cache
    assert ctx.prefill([1, 2, 3, 9]).n_reused == 0


def test_after_a_failure_only_what_arrived_is_known(lib: FakeLib, ctx: Context) -> None:
    ctx.prefill([1, 2])
    lib.fail_decode = lambda n: -5 if n < 16 else 0
    with pytest.raises(errors.AbortedError):
        ctx.prefill([1, 2, *range(100, 120)])
    assert ctx.seqs.tokens() == (1, 2, *range(100, 116))


def test_remove_copy_keep_and_clear(lib: FakeLib, ctx: Context) -> None:
    ctx.prefill([1, 2, 3, 4])
    ctx.seqs.copy(0, 1)
    assert ctx.seqs.tokens(1) == (1, 2, 3, 4)
    ctx.seqs.remove(0, 2)
    assert ctx.seqs.tokens(0) == (1, 2)
    ctx.seqs.remove(1, 0, 2)
    assert ctx.seqs.tokens(1) is None
    ctx.seqs.keep(0)
    assert ctx.seqs.range(1) == (-1, -1)
    ctx.seqs.clear()
    assert ctx.seqs.range(0) == (-1, -1) and ctx.seqs.tokens(0) == ()


def test_copies_are_independent(lib: FakeLib, ctx: Context) -> None:
    ctx.prefill([1, 2])
    ctx.seqs.copy(0, 1)
    ctx.decode([3], seq=0)
    assert ctx.seqs.tokens(1) == (1, 2)


def test_a_context_shift_closes_the_gap(lib: FakeLib, ctx: Context) -> None:
    ctx.prefill(list(range(20)))
    assert ctx.seqs.discard_oldest(0, 4) == 8
    assert lib.cells[0] == list(range(12))
    assert ctx.seqs.tokens() == (0, 1, 2, 3, *range(12, 20))


def test_after_a_shift_only_what_a_cold_run_would_hold_is_reused(lib: FakeLib, ctx: Context) -> None:
    ctx.prefill(list(range(20)))
    ctx.seqs.discard_oldest(0, 4)
    held = list(ctx.seqs.tokens() or ())
    ctx.seqs.copy(0, 1)
    assert ctx.prefill([*held, 99], seq=1).n_reused == 4
    assert ctx.prefill([*held, 99]).n_reused == 4
    assert ctx.prefill([*held, 99, 98]).n_reused == len(held) + 1  # computed anew, it is exact again


def test_a_shift_that_frees_nothing_is_refused(lib: FakeLib, ctx: Context) -> None:
    ctx.prefill([1, 2])
    with pytest.raises(errors.ContextFullError):
        ctx.seqs.discard_oldest(0, 2)


@pytest.mark.parametrize("seq", [-1, 4])
def test_a_sequence_that_does_not_exist(lib: FakeLib, ctx: Context, seq: int) -> None:
    with pytest.raises(errors.OptionError, match="sequence"):
        ctx.decode([1], seq=seq)


@pytest.mark.parametrize("tokens", [[], ["a"], [1.5], [2**40], [-1], [257]])
def test_bad_tokens_are_refused(lib: FakeLib, ctx: Context, tokens: list[int]) -> None:
    with pytest.raises(errors.OptionError):
        ctx.decode(tokens)


def test_all_logits_need_room(lib: FakeLib, model: Model) -> None:
    small = model.context(64, n_batch=16, n_outputs_max=4)
    with pytest.raises(errors.OptionError) as caught:
        small.decode([1, 2, 3, 4, 5], outputs="all")
    assert (caught.value.asked, caught.value.limit) == (5, 4)
    shapes = [view.shape for view in small.iter_logits([1, 2, 3, 4, 5])]
    assert shapes == [(4, 257), (1, 257)]


def test_logits_are_a_read_only_view_that_keeps_the_context(lib: FakeLib, ctx: Context) -> None:
    ctx.decode([1])
    view = ctx.logits
    lib._logits[3] = 2.5
    assert view[0, 3] == 2.5
    with pytest.raises(ValueError):
        view[0, 3] = 1.0
    base: object = view
    while getattr(base, "base", None) is not None:
        base = base.base  # type: ignore[attr-defined]
    assert base.owner is ctx  # type: ignore[attr-defined]


def test_no_logits_before_a_decode(lib: FakeLib, ctx: Context) -> None:
    lib.error = lib.ffi.new("char[]", b"the last decode had no outputs")
    with pytest.raises(errors.OptionError, match="decode with outputs"):
        _ = ctx.logits
