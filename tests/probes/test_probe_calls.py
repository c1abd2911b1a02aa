"""Calls that abort or crash the C API: batches, tokens, sequences, sizes, closing, threads."""

from __future__ import annotations

from collections.abc import Callable

Probe = Callable[..., str]


def test_a_batch_longer_than_n_batch(probe: Probe) -> None:
    assert probe("""
        with Model.open(path) as model, model.context(256, n_batch=32, n_ubatch=32) as ctx:
            error = expect(errors.OptionError, ctx.decode_batch, [5] * 40, range(40), [0] * 40, [False] * 40)
            assert (error.asked, error.limit) == (40, 32)
            assert ctx.decode([5] * 40) == 40
        print("lives")
    """) == "lives"  # fmt: skip


def test_tokens_positions_and_sequences_out_of_range(probe: Probe) -> None:
    assert probe("""
        with Model.open(path) as model, model.context(256) as ctx:
            n = model.facts.n_vocab
            for tokens in ([], [-1], [n], [2**31], [2**70], ["a"], [None]):
                expect(errors.OptionError, ctx.decode, tokens)
            for seq in (-1, 1, 300):
                expect(errors.OptionError, ctx.decode, [5], seq=seq)
                expect(errors.OptionError, ctx.seqs.remove, seq)
                expect(errors.OptionError, ctx.seqs.range, seq)
                expect(errors.OptionError, ctx.seqs.copy, 0, seq)
                expect(errors.OptionError, ctx.seqs.keep, seq)
            ctx.decode([5, 6])
            for pos in (-1, 0, 7, 2**31 - 1):
                expect(errors.ContextFullError if pos > 256 else errors.OptionError, ctx.decode, [5], pos=pos)
            ctx.decode([5])
            for row in (-2, 1, 99):
                expect(errors.OptionError, Sampler(model).next, ctx, row)
            assert ctx.seqs.tokens() == (5, 6, 5)
        print("lives")
    """) == "lives"  # fmt: skip


def test_sizes_nobody_can_mean(probe: Probe) -> None:
    assert probe("""
        with Model.open(path) as model:
            nan = float("nan")
            for name, value in (("n_batch", 0), ("n_ubatch", 0), ("n_seq_max", 0), ("n_seq_max", 257), ("n_ctx", -5),
                                ("n_ctx", 2**31), ("n_threads", 9999), ("rope_freq_base", nan), ("pooling_type", "x")):
                expect(errors.OptionError, model.context, **{name: value})
            error = expect(errors.MemoryLimitError, model.context, 2_000_000_000)
            assert "tokens would fit" in error.hint and error.asked > error.limit
            with model.context(64) as ctx:
                assert ctx.n_ctx == 256
            with model.context(256, n_batch=16, n_ubatch=64) as ctx:
                assert ctx.facts.n_ubatch == 16
        print("lives")
    """) == "lives"  # fmt: skip


def test_closing_twice_in_any_order_and_using_what_is_closed(probe: Probe) -> None:
    assert probe("""
        model = Model.open(path)
        ctx, sampler = model.context(256), Sampler(model)
        run = ctx.generate("hello", max_tokens=5)
        next(run)
        model.close(); model.close(); ctx.close(); sampler.close()
        for call in (lambda: ctx.decode([5]), lambda: ctx.logits, lambda: ctx.seqs.range(), lambda: sampler.next(ctx),
                     lambda: model.context(256), lambda: model.tokenizer.encode("x"), lambda: next(run)):
            expect(errors.ClosedError, call)
        ctx.cancel()
        print("lives")
    """) == "lives"  # fmt: skip


def test_four_threads_on_one_context(probe: Probe) -> None:
    assert probe("""
        with Model.open(path) as model, model.context(2048, n_seq_max=4, kv="turbo3") as ctx:
            def work(seq):
                for _ in range(25):
                    ctx.decode([5, 6, 7], seq=seq)
                    ctx.logits.sum()
            threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
            for t in threads: t.start()
            for t in threads: t.join()
            print([ctx.seqs.next_position(i) for i in range(4)])
    """) == "[75, 75, 75, 75]"  # fmt: skip


def test_two_generations_on_one_context_are_refused(probe: Probe) -> None:
    assert probe("""
        with Model.open(path) as model, model.context(512) as ctx:
            outcomes = []
            def work():
                try:
                    ctx.complete("hello", max_tokens=30, ignore_eos=True)
                    outcomes.append("ran")
                except errors.BusyError:
                    outcomes.append("busy")
            threads = [threading.Thread(target=work) for _ in range(4)]
            for t in threads: t.start()
            for t in threads: t.join()
            assert len(outcomes) == 4 and "ran" in outcomes, outcomes
        print("lives")
    """) == "lives"  # fmt: skip


def test_grammars_and_schemas(probe: Probe) -> None:
    assert probe("""
        with Model.open(path) as model:
            bad = ("", " # only a comment", 'root ::= ("a"', "root ::= nope", 'a ::= "a"', "root ::= root", "$", "[a")
            for text in bad:
                expect(errors.OptionError, Sampler, model, grammar=text)
            for schema in ("{", '{"type": "what"}'):
                expect(errors.OptionError, grammar.from_schema, schema)
        print("lives")
    """) == "lives"  # fmt: skip


def test_a_processor_that_forbids_everything(probe: Probe) -> None:
    assert probe("""
        def nothing(history, logits):
            logits[:] = -np.inf
        with Model.open(path) as model, model.context(256) as ctx:
            try:
                ctx.complete("hello", processors=nothing, max_tokens=3)
            except errors.TurboError:
                pass
            ctx.complete("hello", max_tokens=3)
        print("lives")
    """) == "lives"  # fmt: skip


def test_saved_state_of_every_bad_kind(probe: Probe) -> None:
    assert probe("""
        with Model.open(path) as model:
            with model.context(256) as ctx:
                ctx.decode([5, 6, 7])
                data = state.get_bytes(ctx)
                for bad in (data[: len(data) // 2], bytes(len(data)), b"\\x00" * 7):
                    expect(errors.StateError, state.set_bytes, ctx, bad)
                ctx.seqs.clear()
                ctx.decode([5])
            with model.context(256, kv="turbo3") as ctx:
                expect(errors.StateError, state.set_bytes, ctx, data)
                ctx.decode([5])
        print("lives")
    """) == "lives"  # fmt: skip


def test_repacked_weights_can_be_switched_off(probe: Probe) -> None:
    assert probe("""
        for keywords in ({}, {"use_extra_bufts": False}):
            with Model.open(path, **keywords) as model, model.context(256) as ctx:
                ctx.decode([5, 6, 7])
        print("lives")
    """) == "lives"  # fmt: skip
