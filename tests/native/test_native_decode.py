"""Running tokens: batches, sequences, logits, reuse, shift, cancel, threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from native_helpers import PROMPT

from pyllama_turbo import Context, Model, errors
from pyllama_turbo.generate import complete

KV = ["f16", "q8_0", "turbo3", "turbo3_tcq"]


def tokens_of(model: Model, text: str = PROMPT) -> list[int]:
    return model.tokenizer.encode(text)


def greedy(ctx: Context, prompt: list[int], n: int = 12, **keywords: object) -> list[int]:
    run = ctx.generate(prompt, temperature=0, max_tokens=n, ignore_eos=True, **keywords)
    for _ in run:
        pass
    return run.tokens


@pytest.mark.parametrize("name", KV)
def test_batches_of_any_length_give_the_same_logits(tiny: Model, name: str) -> None:
    ids = tokens_of(tiny) * 4
    results = []
    for n_batch in (len(ids), 32, 7):
        with tiny.context(512, kv=name, n_batch=n_batch, n_ubatch=n_batch) as ctx:
            ctx.prefill(ids)
            results.append(ctx.logits.copy())
    assert np.abs(results[0] - results[1]).max() < 0.2
    assert np.abs(results[0] - results[2]).max() < 0.2


def test_all_logits_agree_with_the_last_ones(tiny: Model) -> None:
    ids = tokens_of(tiny)
    with tiny.context(256, logits_all=True) as ctx:
        ctx.decode(ids, outputs="all")
        every = ctx.logits.copy()
        assert every.shape == (len(ids), tiny.facts.n_vocab)
        ctx.seqs.clear()
        parts = np.concatenate([view.copy() for view in ctx.iter_logits(ids)])
        assert np.array_equal(every, parts)
        ctx.seqs.clear()
        ctx.decode(ids)
        assert np.abs(ctx.logits[0] - every[-1]).max() < 1e-2


@pytest.mark.parametrize("name", KV)
def test_a_warm_cache_gives_the_logits_of_a_cold_one(tiny: Model, name: str) -> None:
    ids = tokens_of(tiny)
    with tiny.context(512, kv=name) as ctx:
        ctx.prefill(ids)
        cold = ctx.logits.copy()
        greedy(ctx, [*ids, 5, 6, 7])  # leaves something else behind the prompt
        assert ctx.prefill(ids).n_reused == len(ids) - 1
        # quantisation alone moves these logits by 0.1 (q8_0) to 2; rounding may choose another of two equal codes
        assert np.abs(ctx.logits - cold).max() < 0.05
        assert ctx.prefill(ids, reuse=False).n_reused == 0
        assert np.array_equal(ctx.logits, cold)


@pytest.mark.parametrize("name", ["f16", "turbo3"])
def test_greedy_text_does_not_depend_on_the_cache_s_past(tiny: Model, name: str) -> None:
    ids = tokens_of(tiny)
    with tiny.context(512, kv=name) as ctx:
        first = greedy(ctx, ids)
        greedy(ctx, [*ids, *first[:3], 5])
        assert greedy(ctx, ids) == first


@pytest.mark.parametrize("name", ["f16", "turbo3", "turbo4_tcq"])
@pytest.mark.parametrize("unified", [False, True])
def test_two_sequences_equal_two_runs(tiny: Model, name: str, unified: bool) -> None:
    a, b = tokens_of(tiny), tokens_of(tiny, "a different prompt with other words in it")
    alone = []
    for ids in (a, b):
        # key centres depend on a sequence's length, and on whether it has a stream of its own
        with tiny.context(1024 if unified else 512, kv=name, n_seq_max=2 if unified else 1, kv_unified=unified) as ctx:
            ctx.prefill(ids)
            alone.append(ctx.logits[0].copy())
    with tiny.context(1024, kv=name, n_seq_max=2, kv_unified=unified) as ctx:
        flags = [i == len(ids) - 1 for ids in (a, b) for i in range(len(ids))]
        ctx.decode_batch([*a, *b], [*range(len(a)), *range(len(b))], [0] * len(a) + [1] * len(b), flags)
        together = ctx.logits.copy()
    assert together.shape[0] == 2
    for row, expected in zip(together, alone):
        assert np.abs(row - expected).max() < 0.2
        assert row.argmax() == expected.argmax()


@pytest.mark.parametrize("shape", [{"weight_type": "f32"}, {"arch": "gemma3", "n_layer": 7}], ids=str)
def test_a_mask_of_one_sequence_is_upstream_s(open_model: Callable[..., Model], shape: dict[str, object]) -> None:
    """A lone sequence has its mask made another way; a second one beside it brings upstream's back.

    The sequence is longer than a window, its batches too, and part of it is taken back and replaced.
    """
    model = open_model(**shape)
    ids = tokens_of(model, PROMPT * 12)[:240]
    logits = []
    for beside in (False, True):
        with model.context(1024, n_seq_max=2, kv_unified=True) as ctx:
            if beside:
                ctx.decode_batch(ids[:3], [0, 1, 2], [1] * 3, [False] * 3)
            ctx.decode_batch(ids[:200], [*range(200)], [0] * 200, [False] * 200)
            ctx.seqs.remove(0, 120)
            ctx.decode_batch(ids[120:], [*range(120, 240)], [0] * 120, [i % 7 == 0 for i in range(120)])
            logits.append(ctx.logits.copy())
    assert logits[0].shape[0] == 18
    assert np.abs(logits[0] - logits[1]).max() < 0.02


def test_the_context_is_rounded_up_and_its_end_is_respected(tiny: Model) -> None:
    with tiny.context(64) as ctx:
        assert ctx.n_ctx == 256
        with pytest.raises(errors.ContextFullError) as caught:
            ctx.prefill([5] * 257)
        assert (caught.value.asked, caught.value.limit) == (257, 256)
        _, last = complete(ctx, [5] * 250, temperature=0, ignore_eos=True)
        assert (last.finish_reason, last.n_generated) == ("length", 7)


@pytest.mark.parametrize("name", KV)
def test_running_past_the_end_with_a_context_shift(tiny: Model, name: str) -> None:
    with tiny.context(256, kv=name) as ctx:
        if not ctx.facts.can_shift:
            pytest.fail("this cache should be able to shift")
        _, last = complete(ctx, [5] * 200, temperature=0, ignore_eos=True, max_tokens=150, context_shift=True, n_keep=4)
        assert last.n_generated == 150
        assert ctx.seqs.range()[1] < 256


def test_positions_must_continue(tiny: Model) -> None:
    with tiny.context(256) as ctx:
        ctx.decode([5, 6])
        with pytest.raises(errors.OptionError):
            ctx.decode([7], pos=9)
        assert ctx.seqs.range() == (0, 1)
        ctx.decode([7])
        assert ctx.seqs.tokens() == (5, 6, 7)


def test_copying_a_part_needs_one_cache(tiny: Model) -> None:
    with tiny.context(512, n_seq_max=2) as ctx:
        ctx.decode([5, 6, 7, 8])
        with pytest.raises(errors.UnsupportedError, match="kv_unified"):
            ctx.seqs.copy(0, 1, 0, 2)
        ctx.seqs.copy(0, 1)
        assert ctx.seqs.next_position(1) == 4
        ctx.decode([9], seq=1)
    with tiny.context(512, n_seq_max=2, kv_unified=True) as ctx:
        ctx.decode([5, 6, 7, 8])
        ctx.seqs.copy(0, 1, 0, 2)
        assert ctx.seqs.range(1) == (0, 1)


def test_cancel_reaches_a_running_prefill(open_model: Callable[..., Model]) -> None:
    model = open_model(n_layer=8, head_dim=128, n_head=8, n_head_kv=8, n_embd=512, n_ff=2048)
    with model.context(4096, n_threads=1) as ctx:
        ids = [5] * 4000
        start = time.perf_counter()
        killer = threading.Timer(0.3, ctx.cancel)
        killer.start()
        with pytest.raises(errors.AbortedError):
            ctx.prefill(ids)
        assert time.perf_counter() - start < 2.0
        held = ctx.seqs.next_position()
        assert ctx.seqs.tokens() == tuple(ids[:held])
        ctx.seqs.clear()
        ctx.decode([5, 6])  # usable afterwards


def test_python_runs_during_decode(open_model: Callable[..., Model]) -> None:
    model = open_model(n_layer=8, head_dim=128, n_head=8, n_head_kv=8, n_embd=512, n_ff=2048)
    count = 0
    stop = threading.Event()

    def tick() -> None:
        nonlocal count
        while not stop.is_set():
            count += 1

    with model.context(1024, n_threads=1) as ctx:
        ticker = threading.Thread(target=tick)
        ticker.start()
        ctx.prefill([5] * 512)
        stop.set()
        ticker.join()
    assert count > 10_000


def test_four_threads_on_one_context_are_serialised(tiny: Model) -> None:
    with tiny.context(2048, n_seq_max=4) as ctx:
        failures: list[errors.TurboError] = []

        def work(seq: int) -> None:
            try:
                for _ in range(20):
                    ctx.decode([5, 6, 7], seq=seq)
            except errors.TurboError as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seq,)) for seq in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert [ctx.seqs.next_position(seq) for seq in range(4)] == [60] * 4


def test_timings_and_memory_are_reported(tiny: Model) -> None:
    with tiny.context(256) as ctx:
        for part in ([5, 6, 7], [8]):
            ctx.decode(part)
            assert ctx.logits.shape[0] == 1  # reading waits for the computation, which ends its measurement
        perf = ctx.perf()
        assert (perf.n_prompt, perf.n_decode) == (3, 1) and perf.decode_ms > 0
        assert any(row.buffer.startswith("CPU") and row.context_bytes > 0 for row in ctx.memory())
        ctx.reset_perf()
        assert ctx.perf().n_decode <= 1


def test_memory_does_not_grow_with_the_vocabulary_and_the_context(open_model: Callable[..., Model]) -> None:
    model = open_model(n_vocab=32000, n_ctx_train=32768)
    with model.context(256) as small, model.context(16384) as large:
        outputs = [sum(row.compute_bytes for row in ctx.memory()) for ctx in (small, large)]
    assert outputs[1] - outputs[0] < 64 << 20  # far below 16384 x 32000 floats
