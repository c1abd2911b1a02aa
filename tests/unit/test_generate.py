"""The token loop, with a sampler that follows a script."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from typing import Any

import pytest
from fake_native import EOG, FakeLib

from pyllama_turbo import errors
from pyllama_turbo.context import Context
from pyllama_turbo.generate import Event, agenerate, complete
from pyllama_turbo.model import Model
from pyllama_turbo.sampling import Sampler


def script(text: str, end: bool = True) -> list[int]:
    return [*text.encode(), *([EOG] if end else [])]


def run(ctx: Context, prompt: str = "hello", **keywords: Any) -> tuple[str, Event]:
    return complete(ctx, prompt, **keywords)


def test_events_carry_text_counters_and_the_reason(lib: FakeLib, ctx: Context) -> None:
    lib.script = script("Hi!")
    events = list(ctx.generate("hello", seed=7))
    assert [e.text for e in events] == ["H", "i", "!", ""]
    assert [e.token for e in events] == [*b"Hi!", None]
    assert [e.finish_reason for e in events] == [None, None, None, "stop"]
    last = events[-1]
    assert (last.n_prompt, last.n_reused, last.n_generated, last.seed) == (5, 0, 3, 7)
    assert last.prompt_tok_s > 0 and last.decode_tok_s > 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        last.text = "x"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("keywords", "text", "reason"),
    [
        ({}, "Hi there", "stop"),
        ({"max_tokens": 2}, "Hi", "length"),
        ({"max_tokens": 8}, "Hi there", "length"),
        ({"max_tokens": 0}, "", "length"),
        ({"max_tokens": -1}, "Hi there", "stop"),
        ({"stop": "th"}, "Hi ", "stop"),
        ({"stop": ["there", "zzz"]}, "Hi ", "stop"),
    ],
)
def test_how_a_generation_ends(lib: FakeLib, ctx: Context, keywords: dict[str, Any], text: str, reason: str) -> None:
    lib.script = script("Hi there")
    got, last = run(ctx, **keywords)
    assert (got, last.finish_reason) == (text, reason)


def test_a_full_context_ends_with_length(lib: FakeLib, ctx: Context) -> None:
    lib.script = script("x" * 100)
    text, last = run(ctx, "p" * 60)
    assert last.finish_reason == "length"
    assert len(text) == 5  # 60 + 4 in the cache, and the token that found no room


def test_context_shift_goes_on_where_the_cache_can(lib: FakeLib, ctx: Context) -> None:
    lib.script = script("x" * 100)
    text, last = run(ctx, "p" * 60, context_shift=True, n_keep=4)
    assert (len(text), last.finish_reason) == (100, "stop")
    assert max(lib.cells[0]) < 64


def test_context_shift_is_refused_where_it_cannot(lib: FakeLib, model: Model) -> None:
    lib.can_shift = False
    lib.script = script("x" * 100)
    with pytest.raises(errors.UnsupportedError, match="cannot be shifted"):
        run(model.context(64, n_batch=16), "p" * 60, context_shift=True)


def test_a_prompt_beyond_the_context_is_refused_with_numbers(lib: FakeLib, ctx: Context) -> None:
    with pytest.raises(errors.ContextFullError) as caught:
        run(ctx, "p" * 65)
    assert (caught.value.asked, caught.value.limit) == (65, 64)


def test_the_second_turn_computes_only_what_is_new(lib: FakeLib, ctx: Context) -> None:
    lib.script = script("abc")
    run(ctx, "hello")
    lib.calls.clear()
    _, last = run(ctx, "helloabc, and on")
    decoded = [call[1] for call in lib.calls if call[0] == "decode"]
    assert last.n_reused == 8  # the prompt, a and b and c
    assert bytes(decoded[0]) == b", and on"


def test_reuse_can_be_switched_off(lib: FakeLib, ctx: Context) -> None:
    lib.script = script("abc")
    run(ctx, "hello")
    assert run(ctx, "hello", reuse=False)[1].n_reused == 0


def test_echo_gives_the_prompt_first(lib: FakeLib, ctx: Context) -> None:
    lib.script = script("!")
    assert run(ctx, "hello", echo=True)[0] == "hello!"


def test_a_character_split_over_tokens_comes_whole(lib: FakeLib, ctx: Context) -> None:
    lib.script = script("🦙x")
    events = list(ctx.generate("hello"))
    assert [e.text for e in events] == ["", "", "", "🦙", "x", ""]


def test_one_context_serves_one_generation(lib: FakeLib, ctx: Context) -> None:
    lib.script = script("abc")
    first = ctx.generate("hello")
    next(first)
    with pytest.raises(errors.BusyError):
        ctx.generate("other")
    first.close()
    assert run(ctx, "hello")[0] == "abc"


def test_a_dropped_iterator_gives_the_context_back(lib: FakeLib, ctx: Context) -> None:
    lib.script = script("abc")
    for _ in ctx.generate("hello"):
        break
    assert run(ctx, "hello")[0] == "abc"


def test_cancel_between_tokens(lib: FakeLib, ctx: Context) -> None:
    lib.script = script("abcdef")
    with ctx.generate("hello") as generation:
        events = []
        for event in generation:
            events.append(event)
            if event.n_generated == 2:
                generation.cancel()
    assert events[-1].finish_reason == "abort"
    assert events[-1].n_generated == 2
    assert run(ctx, "hello")[0] == "abcdef"  # the cancel does not reach the next generation


def test_cancel_reaches_a_running_prefill(lib: FakeLib, ctx: Context) -> None:
    started = threading.Event()

    def wait_for_abort(n: int) -> int:
        started.set()
        while not lib.abort:
            time.sleep(0.001)
        return -5

    lib.fail_decode = wait_for_abort
    generation = ctx.generate("hello")
    killer = threading.Thread(target=lambda: (started.wait(5), generation.cancel()))
    killer.start()
    events = list(generation)
    killer.join()
    assert [e.finish_reason for e in events] == ["abort"]
    assert lib.abort == 0


def test_an_abort_nobody_asked_for_is_an_error(lib: FakeLib, ctx: Context) -> None:
    lib.fail_decode = lambda n: -5
    with pytest.raises(errors.AbortedError):
        run(ctx, "hello")
    lib.fail_decode = lambda n: 0
    lib.script = script("ok")
    assert run(ctx, "hello")[0] == "ok"  # the context was given back


def test_logits_processors_see_history_and_change_logits(lib: FakeLib, ctx: Context) -> None:
    lib.script = script("ab")
    seen: list[int] = []

    def processor(history: Any, logits: Any) -> None:
        seen.append(len(history))
        assert logits.shape == (257,) and logits.flags.writeable
        logits[:] = 1.5

    run(ctx, "hello", processors=processor)
    assert seen == [5, 6, 7]
    assert lib._logits[0] == 1.5


def test_an_exception_in_a_processor_comes_out_and_frees_the_context(lib: FakeLib, ctx: Context) -> None:
    lib.script = script("ab")

    def bad(history: Any, logits: Any) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(ctx, "hello", processors=[bad])
    assert run(ctx, "hello")[0] == "ab"


def test_a_drawn_seed_is_reported_and_differs(lib: FakeLib, ctx: Context, model: Model) -> None:
    seeds = {Sampler(model).seed for _ in range(5)} | {Sampler(model, seed=-1).seed for _ in range(5)}
    assert len(seeds) == 10
    assert Sampler(model, seed=11).seed == 11


@pytest.mark.parametrize("prompt", ["", []])
def test_an_empty_prompt_is_refused(lib: FakeLib, ctx: Context, prompt: Any) -> None:
    with pytest.raises(errors.OptionError):
        ctx.generate(prompt)


def test_unknown_keywords_are_refused_before_anything_runs(lib: FakeLib, ctx: Context) -> None:
    with pytest.raises(errors.UnknownOptionError, match="temperature"):
        ctx.generate("hello", temprature=0)
    assert not [c for c in lib.calls if c[0] == "decode"]


def test_async_iteration_leaves_the_loop_free(lib: FakeLib, ctx: Context) -> None:
    lib.script = script("abcdef")
    ticks = 0

    async def ticker() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async def main() -> str:
        task = asyncio.ensure_future(ticker())
        text = "".join([e.text async for e in agenerate(ctx, "hello")])
        task.cancel()
        return text

    assert asyncio.run(main()) == "abcdef"
    assert ticks > 6


def test_a_cancelled_task_stops_the_step_and_frees_the_context(lib: FakeLib, ctx: Context) -> None:
    def slow(n: int) -> int:
        end = time.time() + 5
        while not lib.abort and time.time() < end:
            time.sleep(0.001)
        return -5 if lib.abort else 0

    lib.fail_decode = slow

    async def main() -> None:
        async def consume() -> None:
            async for _ in agenerate(ctx, "hello"):
                pass

        task = asyncio.ensure_future(consume())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    start = time.time()
    asyncio.run(main())
    assert time.time() - start < 2
    assert ctx.user is None


def test_the_loop_costs_at_most_30_microseconds_a_token(lib: FakeLib, model: Model) -> None:
    lib.n_ctx = 4096
    ctx = model.context(4096, n_batch=512)
    n = 2000
    best = 1.0
    for _ in range(5):
        lib.script = [120] * n
        per_call = _fake_cost(lib, ctx, n)
        start = time.perf_counter()
        complete(ctx, "hello", max_tokens=n, reuse=False)
        best = min(best, (time.perf_counter() - start - per_call) / n)
    assert best < 30e-6, f"{best * 1e6:.1f} microseconds"


def _fake_cost(lib: FakeLib, ctx: Context, n: int) -> float:
    """Time of the fake library's own functions in such a loop."""
    token = lib.ffi.new("int32_t *")
    one = lib.ffi.new("int32_t[1]", [120])
    lib._script = iter([120] * n)
    lib._rows = 1
    start = time.perf_counter()
    for i in range(n):
        lib.turbo_sampler_next(None, None, -1, token)
        lib.turbo_context_decode(None, one, 1, i, 3, 1)
    elapsed = time.perf_counter() - start
    lib.cells.clear()
    lib.calls.clear()
    return elapsed
