"""Reports about several sequences, embeddings and adapters in other bindings, each in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

Probe = Callable[..., str]
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
SCRIPTS = repr(sys.path[0])


def test_two_sequences_equal_two_runs_for_every_type(probe: Probe) -> None:
    # A compressed cache adds up in another order where cells lie elsewhere, and a trellis encoder may then take quite
    # another path: two answers may part where two tokens are as good as equal, and only there.
    assert probe("""
        prompts = ["the quick brown fox", "jumps over the lazy dog and away"]
        greedy = dict(temperature=0, max_tokens=24, ignore_eos=True, logprobs=2)

        def step(event):
            first, second = event.logprobs.top[:2]
            return event.token, first.logprob - second.logprob

        with Model.open(path) as model:
            for name in ("f16", "q8_0", "turbo2", "turbo3", "turbo4", "turbo3_tcq", "turbo4_tcq"):
                with model.context(1024, kv=name, n_seq_max=2) as ctx:
                    alone = []
                    for prompt in prompts:
                        ctx.seqs.clear()
                        alone.append([step(event) for event in ctx.generate(prompt, **greedy) if event.logprobs])
                    ctx.seqs.clear()
                    together = [[], []]
                    for event in ctx.generate_many(prompts, **greedy):
                        if event.logprobs:
                            together[event.job].append(step(event))
                    for one, two in zip(alone, together, strict=True):
                        assert len(one) == len(two) == 24, (name, len(one), len(two))
                        parts = [gap for (x, gap), (y, _) in zip(one, two, strict=True) if x != y]
                        assert not parts or (name.endswith("_tcq") and parts[0] < 0.05), (name, parts[0])
        print("lives")
    """, weight_type="f32") == "lives"  # fmt: skip


def test_threads_that_add_to_and_read_one_batch(probe: Probe) -> None:
    assert probe("""
        with Model.open(path) as model, model.context(2048, n_seq_max=4) as ctx:
            batch = ctx.batch()
            finished = []
            def add():
                for i in range(5):
                    batch.add(f"prompt {i}", max_tokens=6, ignore_eos=True, seed=i)
            adders = [threading.Thread(target=add) for _ in range(3)]
            for t in adders: t.start()
            for t in adders: t.join()
            def read():
                for event in batch:
                    if event.finish_reason:
                        finished.append(event.job)
            readers = [threading.Thread(target=read) for _ in range(3)]
            for t in readers: t.start()
            for t in readers: t.join()
            assert sorted(finished) == list(range(15)), finished
        print("lives")
    """) == "lives"  # fmt: skip


def test_a_batch_closed_and_a_model_closed_under_it(probe: Probe) -> None:
    assert probe("""
        model = Model.open(path)
        ctx = model.context(4096, n_seq_max=2)
        batch = ctx.generate_many(["a", "b", "c"], max_tokens=1000, ignore_eos=True)
        reader = threading.Thread(target=lambda: [None for _ in batch])
        reader.start()
        time.sleep(0.1)
        batch.close(); batch.close()
        reader.join(10)
        assert not reader.is_alive()
        batch = ctx.generate_many(["a", "b"], max_tokens=1000, ignore_eos=True)
        next(batch)
        model.close()
        expect(errors.ClosedError, lambda: [None for _ in batch])
        batch.close()
        expect(errors.ClosedError, ctx.generate_many, ["x"])
        print("lives")
    """) == "lives"  # fmt: skip


def test_a_processor_that_raises_ends_its_job_only(probe: Probe) -> None:
    assert probe("""
        def bad(history, logits):
            raise KeyError("mine")
        with Model.open(path) as model, model.context(512, n_seq_max=2) as ctx:
            batch = ctx.batch()
            batch.add("a", max_tokens=5, ignore_eos=True)
            batch.add("b", max_tokens=5, ignore_eos=True, processors=bad)
            done = []
            while True:
                try:
                    event = next(batch)
                except KeyError:
                    continue
                except StopIteration:
                    break
                if event.finish_reason:
                    done.append((event.job, event.n_generated))
            assert done == [(0, 5)], done
            assert ctx.user is None
        print("lives")
    """) == "lives"  # fmt: skip


def test_embeddings_of_large_batches_and_many_inputs(probe: Probe) -> None:
    assert probe("""
        with Model.open(path) as model:
            for pooling in ("mean", "none", "last", "cls"):
                with model.context(2048, embeddings=True, pooling_type=pooling, n_batch=1024, n_ubatch=1024) as ctx:
                    assert ctx.embed(["word " * 300]).n_tokens[0] > 512
                    assert len(ctx.embed([f"text {i}" for i in range(100)]).vectors) == 100
                    error = expect(errors.ContextFullError, ctx.embed, [[5] * 1025])
                    assert (error.asked, error.limit) == (1025, 1024)
            expect(errors.UnsupportedError, model.context, 256, embeddings=True, pooling_type="rank")
        print("lives")
    """) == "lives"  # fmt: skip


def test_adapters_that_are_none(probe: Probe) -> None:
    assert probe(f"""
        import tempfile
        from pathlib import Path
        sys.path.insert(0, {SCRIPTS})
        from gguf_writer import GGUFWriter
        from make_lora import write_lora
        folder = Path(tempfile.mkdtemp())
        good = write_lora(folder / "good.gguf", {{"output.weight": (128, 512)}})
        def file(name, **values):
            writer = GGUFWriter(folder / name, "llama")
            for key, value in values.items():
                writer.set(key.replace("__", "."), value)
            writer.add("output.weight.lora_a", np.zeros((2, 128), np.float32))
            writer.add("output.weight.lora_b", np.zeros((512, 2), np.float32))
            return writer.write()
        whole = good.read_bytes()
        for size in (0, 3, 24, len(whole) // 10, len(whole) // 2, len(whole) - 40):
            (folder / "cut.gguf").write_bytes(whole[:size])
            expect(errors.ModelLoadError, Model.open, path, lora=folder / "cut.gguf")
        for values in ({{}}, {{"general__type": 5, "adapter__type": "lora"}}, {{"general__type": "adapter"}},
                       {{"general__type": "adapter", "adapter__type": "lora", "adapter__lora__alpha": 4}},
                       {{"general__type": "adapter", "adapter__type": "lora", "adapter__lora__alpha": "x"}}):
            expect(errors.ModelLoadError, Model.open, path, lora=file("bad.gguf", **values))
        expect(errors.ModelLoadError, Model.open, path, lora=folder)
        with Model.open(path, lora=[good, good]) as model, model.context(256) as ctx:
            ctx.complete("x", max_tokens=3)
        print("lives")
    """) == "lives"  # fmt: skip
