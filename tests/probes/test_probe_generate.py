"""Reports about generating in other bindings: text, reuse, cancelling, memory. Each runs in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

Probe = Callable[..., str]
TYPES = ("f16", "q8_0", "q4_0", "turbo2", "turbo3", "turbo4", "turbo2_tcq", "turbo3_tcq", "turbo4_tcq")


def test_twenty_greedy_runs_give_one_text(probe: Probe) -> None:
    assert probe("""
        import hashlib
        with Model.open(path) as model:
            texts = set()
            for i in range(20):
                with model.context(512, kv="turbo3") as ctx:
                    texts.add(ctx.complete("the quick brown fox", temperature=0, max_tokens=40, ignore_eos=True))
        print(len(texts))
    """) == "1"  # fmt: skip


def test_a_second_prompt_with_the_same_start(probe: Probe) -> None:
    assert probe(f"""
        with Model.open(path) as model:
            start = model.tokenizer.encode("a long enough beginning that both prompts share " * 3)
            for kv in {TYPES}:
                with model.context(512, kv=kv) as ctx:
                    ctx.complete([*start, 300], temperature=0, max_tokens=20, ignore_eos=True)
                    run = ctx.generate([*start, 301], temperature=0, max_tokens=20, ignore_eos=True)
                    warm = [e for e in run][-1]
                    assert warm.n_reused == len(start), (kv, warm)
                    ctx.seqs.clear()
                    cold = ctx.generate([*start, 301], temperature=0, max_tokens=20, ignore_eos=True)
                    list(cold)
                    assert cold.tokens == run.tokens, kv  # no detail is lost on a hit
        print("lives")
    """) == "lives"  # fmt: skip


def test_the_same_seed_also_after_a_cache_hit(probe: Probe) -> None:
    assert probe("""
        with Model.open(path) as model, model.context(512, kv="turbo4_tcq") as ctx:
            texts = [ctx.complete("some words", seed=5, max_tokens=30, ignore_eos=True) for _ in range(3)]
            unseeded = {ctx.generate("x").seed for _ in range(5) if ctx.user is None}
        print(len(set(texts)), len(unseeded))
    """) == "1 5"  # fmt: skip


def test_finish_reasons(probe: Probe) -> None:
    assert probe("""
        with Model.open(path) as model, model.context(256) as ctx:
            eos = model.tokenizer.facts.eos
            def reason(**keywords):
                return [*ctx.generate("hello", seed=1, **keywords)][-1].finish_reason
            assert reason(max_tokens=5, ignore_eos=True) == "length"
            assert reason(max_tokens=-1, ignore_eos=True) == "length"  # the context is full
            assert reason(max_tokens=0) == "length"
            assert reason(max_tokens=5, logit_bias={eos: 1000}) == "stop"
            assert reason(max_tokens=-1, logit_bias={eos: 1000}) == "stop"
            text = ctx.complete("hello", seed=1, max_tokens=9, ignore_eos=True)
            assert reason(max_tokens=9, ignore_eos=True, stop=text[3:5]) == "stop"
            assert reason(max_tokens=9, grammar='root ::= "yes"') == "grammar_end"
            run = ctx.generate("hello", max_tokens=50, ignore_eos=True)
            next(run); run.cancel()
            assert [*run][-1].finish_reason == "abort"
            error = expect(errors.ContextFullError, ctx.complete, [5] * 300)
            assert (error.asked, error.limit) == (300, 256) and "n_ctx" in error.hint
        print("lives")
    """) == "lives"  # fmt: skip


def test_streams_of_characters_and_stop_texts(probe: Probe) -> None:
    assert probe("""
        word = "a🦙漢é"
        with Model.open(path) as model, model.context(512) as ctx:
            gbnf = 'root ::= "' + word * 3 + ' STOP here"'
            blocking = ctx.complete("x", grammar=gbnf, max_tokens=200, seed=1)
            parts = [e.text for e in ctx.generate("x", grammar=gbnf, max_tokens=200, seed=1)]
            assert "".join(parts) == blocking == word * 3 + " STOP here"
            assert not any("\\ufffd" in part for part in parts)
            shown = ""
            for event in ctx.generate("x", grammar=gbnf, max_tokens=200, seed=1, stop=["STOP"]):
                shown += event.text
                assert not any(shown.endswith("STOP"[:n]) for n in range(1, 5)), shown
            assert shown == word * 3 + " " and event.stop_text == "STOP"
        print("lives")
    """) == "lives"  # fmt: skip


def test_a_grammar_takes_its_time_and_no_more(probe: Probe) -> None:
    assert probe("""
        schema = {"type": "object", "properties": {f"k{i}": {"type": "array", "items": {"type": "string"}}
                  for i in range(30)}, "required": [f"k{i}" for i in range(30)]}
        nested = "root ::= item*\\nitem ::= (([a-z] | [0-9])* | (\\"x\\"* \\"y\\"*))+"
        with Model.open(path) as model, model.context(512) as ctx:
            start = time.time()
            ctx.complete("x", json_schema=schema, max_tokens=60, seed=1)
            assert time.time() - start < 60
            try:
                ctx.complete("x", grammar=nested, max_tokens=10, seed=1)
            except errors.TurboError:
                pass  # refused is as good as run
            ctx.complete("x", max_tokens=5)
        print("lives")
    """) == "lives"  # fmt: skip


def test_no_token_fits_the_grammar(probe: Probe) -> None:
    assert probe("""
        with Model.open(path) as model, model.context(256) as ctx:
            for keywords in ({}, {"ignore_eos": True}, {"temperature": 0}):
                try:
                    ctx.complete("x", grammar='root ::= "a" [\\U0010FFFF]', max_tokens=9, seed=1,
                                 logit_bias={t: -float("inf") for t in range(3, 259)}, **keywords)
                except errors.TurboError:
                    pass
                ctx.complete("x", max_tokens=3)
            sampler = Sampler(model, grammar='root ::= "yes"')
            expect(errors.OptionError, sampler.accept, model.tokenizer.facts.eos, generated=True)
        print("lives")
    """) == "lives"  # fmt: skip


def test_memory_does_not_grow_with_the_context_times_the_vocabulary(probe: Probe) -> None:
    code = """
        import resource
        with Model.open(path) as model, model.context({n_ctx}, kv="turbo2", n_ubatch=64) as ctx:
            ctx.complete("hello", max_tokens=30, ignore_eos=True, logprobs=5)
            list(ctx.generate([5] * 1500, echo=True, logprobs=2, max_tokens=2, ignore_eos=True))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
    """
    shape = {"n_vocab": 32000, "n_ctx_train": 65536}
    small, large = (int(probe(code.format(n_ctx=n), **shape)) for n in (2048, 32768))
    assert large - small < 120  # MiB; 32768 x 32000 floats would be 4000


def test_cancel_in_load_prefill_and_decode(probe: Probe) -> None:
    assert probe("""
        expect(errors.AbortedError, Model.open, path, progress=lambda p: False)
        with Model.open(path) as model, model.context(8192, n_threads=1, n_ubatch=64) as ctx:
            def when(n_prompt, keep):
                run = ctx.generate([5] * n_prompt, max_tokens=100_000, ignore_eos=True, context_shift=True)
                killer = threading.Timer(0.2, run.cancel)
                killer.start()
                start = time.time()
                events = [e for e in run]
                assert events[-1].finish_reason == "abort", events[-1]
                assert (len(events) > 1) == keep
                assert time.time() - start < 5
            when(10, True)
            when(8000, False)
            ctx.complete("usable", max_tokens=3)
        print("lives")
    """, n_layer=6, n_embd=256, n_ff=1024) == "lives"  # fmt: skip


def test_an_iterator_dropped_midway_and_a_context_closed_midway(probe: Probe) -> None:
    assert probe("""
        with Model.open(path) as model:
            with model.context(512) as ctx:
                for _ in range(3):
                    for event in ctx.generate("hello", max_tokens=50, ignore_eos=True):
                        if event.n_generated == 3:
                            break
                batch = ctx.generate_many(["a"], max_tokens=50)
                next(batch); del batch
                ctx.complete("again", max_tokens=3)
            ctx = model.context(512)
            run = ctx.generate("hello", max_tokens=200, ignore_eos=True)
            closer = threading.Timer(0.05, ctx.close)
            closer.start()
            try:
                for _ in run:
                    time.sleep(0.002)
            except errors.TurboError as error:
                assert isinstance(error, (errors.ClosedError, errors.AbortedError)), error
            closer.join()
            expect(errors.ClosedError, ctx.complete, "x")
        print("lives")
    """) == "lives"  # fmt: skip


def test_async_iteration_and_a_cancelled_task(probe: Probe) -> None:
    assert probe("""
        import asyncio
        from pyllama_turbo import agenerate
        async def main(ctx):
            ticks = 0
            async def tick():
                nonlocal ticks
                while True:
                    ticks += 1
                    await asyncio.sleep(0)
            ticker = asyncio.ensure_future(tick())
            text = "".join([e.text async for e in agenerate(ctx, "hello", seed=1, max_tokens=40, ignore_eos=True)])
            assert ticks > 40
            async def endless():
                async for _ in ctx.generate_many(["a", "b"], max_tokens=-1, ignore_eos=True, context_shift=True):
                    pass
            task = asyncio.ensure_future(endless())
            await asyncio.sleep(0.2)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                pass
            ticker.cancel()
            return text
        with Model.open(path) as model, model.context(1024, n_seq_max=2) as ctx:
            text = asyncio.run(main(ctx))
            assert ctx.user is None
            assert ctx.complete("hello", seed=1, max_tokens=40, ignore_eos=True) == text
        print("lives")
    """) == "lives"  # fmt: skip


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads /proc")
def test_a_context_beyond_memory_is_refused_before_anything_is_allocated(probe: Probe) -> None:
    assert probe("""
        import pyllama_turbo, resource
        def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with Model.open(path) as model:
            before = peak()
            for n_ctx in (2_000_000_000, 500_000_000):
                for kv in ("f16", "turbo2"):
                    error = expect(errors.MemoryLimitError, model.context, n_ctx, kv=kv)
                    assert error.asked > error.limit and "tokens would fit" in error.hint, error.hint
                    assert "KV cache takes" in str(error) and "free are" in str(error)
            expect(errors.MemoryLimitError, pyllama_turbo.fit, path, 2_000_000_000)
            assert peak() - before < 150 << 10
            with model.context(256) as ctx:
                ctx.complete("x", max_tokens=2)
        print("lives")
    """, n_layer=8, head_dim=128, n_head=8, n_head_kv=8) == "lives"  # fmt: skip
