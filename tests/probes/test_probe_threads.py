"""Threads: contexts side by side and shared, the GIL, closing and cancelling at the wrong moment, many cycles."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Probe = Callable[..., str]
BIG = {"n_layer": 6, "head_dim": 128, "n_head": 8, "n_head_kv": 8, "n_embd": 512, "n_ff": 2048}


def test_lcp471_many_threads_many_contexts_on_one_model(probe: Probe) -> None:
    assert probe("""
        types = ["f16", "q8_0", "turbo3", "turbo4_tcq"] * 2
        with Model.open(path) as model:
            def text(kv, n):
                with model.context(512, kv=kv, n_threads=1) as ctx:
                    return [ctx.complete(f"thread {n} of {i}", max_tokens=12, temperature=0, ignore_eos=True)
                            for i in range(4)]
            alone = [text(kv, n) for n, kv in enumerate(types)]
            together = [None] * len(types)
            def work(n): together[n] = text(types[n], n)
            threads = [threading.Thread(target=work, args=(n,)) for n in range(len(types))]
            for t in threads: t.start()
            for t in threads: t.join()
            assert together == alone
        print("the same")
    """) == "the same"  # fmt: skip


def test_many_threads_open_and_close_models(probe: Probe) -> None:
    assert probe("""
        failures = []
        def work():
            try:
                for _ in range(5):
                    with Model.open(path) as model, model.context(256, kv="turbo3", n_threads=1) as ctx:
                        ctx.complete("hello", max_tokens=2)
            except BaseException as error:
                failures.append(error)
        threads = [threading.Thread(target=work) for _ in range(6)]
        for t in threads: t.start()
        for t in threads: t.join()
        assert not failures, failures
        print("lives")
    """) == "lives"  # fmt: skip


def test_lcp1836_the_gil_is_released_in_decode(probe: Probe) -> None:
    share = float(probe("""
        count, stop = [0], [False]
        def counter():
            while not stop[0]:
                count[0] += 1
        def rate(seconds=0.4):
            before, start = count[0], time.perf_counter()
            time.sleep(seconds)
            return (count[0] - before) / (time.perf_counter() - start)
        thread = threading.Thread(target=counter)
        with Model.open(path) as model, model.context(4096, n_threads=1) as ctx:
            ctx.prefill([5] * 64)
            thread.start()
            free = rate()
            before, start = count[0], time.perf_counter()
            ctx.prefill([6] * 1500, reuse=False)
            busy = (count[0] - before) / (time.perf_counter() - start)
            stop[0] = True
            thread.join()
        print(busy / free)
    """, **BIG))  # fmt: skip
    assert share > 0.2  # with the GIL held it would be 0


@pytest.mark.parametrize("stage", ["prefill", "decode", "sampling"])
def test_nlc631_a_context_closed_while_it_works(probe: Probe, stage: str) -> None:
    assert probe(f"""
        stage = {stage!r}
        for delay in (0.0, 0.02, 0.1, 0.3):
            model = Model.open(path)
            ctx = model.context(4096, n_threads=1, kv="turbo3", k_center="off")
            outcome = []
            def work():
                try:
                    if stage == "prefill": ctx.prefill([5] * 4000)
                    elif stage == "decode":
                        while True: ctx.decode([5])
                    else: ctx.complete("hello", max_tokens=3900, ignore_eos=True)
                    outcome.append("ended")
                except errors.TurboError as error:
                    outcome.append(type(error).__name__)
            thread = threading.Thread(target=work)
            thread.start()
            time.sleep(delay)
            start = time.perf_counter()
            ctx.close() if delay != 0.1 else model.close()
            assert time.perf_counter() - start < 1.0
            thread.join(10)
            assert outcome and outcome[0] in ("AbortedError", "ClosedError"), outcome
            model.close()
        print("closed")
    """, **BIG) == "closed"  # fmt: skip


def test_nlc76_cancel_from_another_thread_and_go_on_at_once(probe: Probe) -> None:
    assert probe("""
        with Model.open(path) as model, model.context(4096, n_threads=1) as ctx:
            for _ in range(5):
                run = ctx.generate([5] * 10, max_tokens=4000, ignore_eos=True)
                threading.Timer(0.1, run.cancel).start()
                last = list(run)[-1]
                assert last.finish_reason == "abort"
                assert ctx.complete([7] * 10, max_tokens=2, ignore_eos=True) is not None
            run = ctx.generate([5] * 3000, max_tokens=5)
            threading.Timer(0.2, run.cancel).start()
            start = time.perf_counter()
            assert [event.finish_reason for event in run] == ["abort"]
            assert time.perf_counter() - start < 1.5
            run = ctx.generate([5] * 10, max_tokens=100, ignore_eos=True)
            next(run); next(run)
            del run  # a dropped iterator gives the context back
            ctx.complete([8] * 10, max_tokens=2)
        print("lives")
    """, **BIG) == "lives"  # fmt: skip


def test_lcp1774_async_cancellation(probe: Probe) -> None:
    assert probe("""
        import asyncio
        from pyllama_turbo.generate import agenerate
        async def main():
            with Model.open(path) as model, model.context(4096, n_threads=1) as ctx:
                ticks = 0
                async def tick():
                    nonlocal ticks
                    while True:
                        await asyncio.sleep(0.005)
                        ticks += 1
                async def talk(n):
                    return [event async for event in agenerate(ctx, [5] * 1500, max_tokens=n, ignore_eos=True)]
                ticker = asyncio.create_task(tick())
                assert len(await talk(5)) == 6
                assert ticks > 5  # the loop stayed free while the prompt was computed
                for delay in (0.0, 0.05, 0.2, 0.5):
                    ctx.seqs.clear()
                    task = asyncio.create_task(talk(4000))
                    await asyncio.sleep(delay)
                    task.cancel()
                    try:
                        await task
                    except asyncio.CancelledError:
                        pass
                    assert ctx.user is None
                async for event in agenerate(ctx, [6] * 10, max_tokens=50, ignore_eos=True):
                    break
                await asyncio.sleep(0)
                ticker.cancel()
            print("lives")
        asyncio.run(main())
    """, **BIG) == "lives"  # fmt: skip


def test_500_cycles_with_flat_memory(probe: Probe) -> None:
    grown, files = map(int, probe("""
        def resident():
            gc.collect()
            return int(open("/proc/self/statm").read().split()[1]) * 4096
        def cycle(i):
            with Model.open(path) as model, model.context(256, kv=("f16", "turbo3")[i % 2], n_threads=1) as ctx:
                ctx.complete("hello", max_tokens=2)
                state.set_bytes(ctx, state.get_bytes(ctx))
        for i in range(60): cycle(i)
        before, files = resident(), len(os.listdir("/proc/self/fd"))
        for i in range(500): cycle(i)
        print(resident() - before, len(os.listdir("/proc/self/fd")) - files)
    """, n_layer=1).split())  # fmt: skip
    assert grown < 6 << 20 and files == 0


def test_the_same_tokens_cold_warm_and_after_other_work(probe: Probe) -> None:
    assert probe("""
        keywords = {"max_tokens": 32, "ignore_eos": True}
        for kv in ("f16", "q8_0", "turbo3", "turbo4_tcq", "turbo2"):
            for sampling in ({"temperature": 0}, {"temperature": 0.9, "seed": 42}):
                with Model.open(path) as model, model.context(1024, kv=kv, n_threads=1) as ctx:
                    cold = ctx.complete("the same question", **sampling, **keywords)
                    warm = ctx.complete("the same question", **sampling, **keywords)
                    ctx.complete("something else altogether, and longer", temperature=1.5, **keywords)
                    ctx.seqs.clear()
                    after = ctx.complete("the same question", **sampling, **keywords)
                    with model.context(1024, kv=kv, n_threads=2) as other:
                        elsewhere = other.complete("the same question", **sampling, **keywords)
                assert cold == warm == after == elsewhere, (kv, sampling, cold, warm, after, elsewhere)
        print("the same")
    """) == "the same"  # fmt: skip


def test_one_and_four_sequences_where_f16_does(probe: Probe) -> None:
    assert probe("""
        def pick(row):
            second, first = np.sort(row)[-2:]
            return int(row.argmax()), first - second < 0.3  # a code that other roundings flip may decide

        def texts(model, kv, n_seq):
            prompts = [[5 + 7 * s + i * (s + 3) % 400 for i in range(20 + 5 * s)] for s in range(4)]
            out = []
            if n_seq == 1:
                for prompt in prompts:
                    with model.context(256, kv=kv, n_threads=1) as ctx:
                        ctx.prefill(prompt)
                        tokens = [pick(ctx.logits[0])]
                        for _ in range(15):
                            ctx.decode([tokens[-1][0]])
                            tokens.append(pick(ctx.logits[0]))
                        out.append(tokens)
                return out
            with model.context(1024, kv=kv, n_threads=1, n_seq_max=4) as ctx:
                last = []
                for s, prompt in enumerate(prompts):
                    ctx.prefill(prompt, seq=s)
                    last.append([pick(ctx.logits[0])])
                for _ in range(15):
                    ctx.decode_batch([t[-1][0] for t in last], [ctx.seqs.next_position(s) for s in range(4)],
                                     range(4), [True] * 4)
                    for s, row in enumerate(ctx.logits): last[s].append(pick(row))
                return last

        def compared(model, kv):
            n = 0
            for one, four in zip(texts(model, kv, 1), texts(model, kv, 4)):
                for (a, close), (b, _) in zip(one, four):
                    if a != b:
                        assert close, kv
                        break
                    n += 1
            return n

        with Model.open(path) as model:
            for kv in ("f16", "q8_0", "turbo2", "turbo3", "turbo4", "turbo3_tcq", "turbo4_tcq"):
                assert compared(model, kv) >= 48, kv  # of 64
        print("the same")
    """) == "the same"  # fmt: skip


def test_tt311_twenty_runs_one_text(probe: Probe) -> None:
    assert probe("""
        for kv in ("turbo3", "turbo4", "turbo3_tcq"):
            texts = set()
            with Model.open(path) as model:
                for i in range(20):
                    with model.context(512, kv=kv, n_threads=1 + i % 2) as ctx:
                        texts.add(ctx.complete("twenty runs", temperature=0, max_tokens=24, ignore_eos=True))
            assert len(texts) == 1, (kv, texts)
        print("one")
    """) == "one"  # fmt: skip
