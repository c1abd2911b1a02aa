"""Reports of users of llama-cpp-python and llama.cpp's tools, tried on `Llama`: each in a process of its own.

The numbers in the docstrings are those of the projects' issue trackers.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

Probe = Callable[..., str]
PRELUDE = """
from pyllama_turbo import Llama
def text(response): return response["choices"][0]["text"]
"""


@pytest.fixture
def try_(probe: Probe) -> Probe:
    """A probe with `Llama` at hand."""

    def run(code: str, **more: object) -> str:
        import textwrap

        return probe(PRELUDE + textwrap.dedent(code), **more)

    return run


def test_kv_types(try_: Probe) -> None:
    """llama-cpp-python 1161, 1305; textgen 6168: no visible change, names, ids that crash."""
    assert try_("""
        sizes = []
        for kind in ("f16", "q8_0", "turbo3", 1, 8):
            with Llama(path, n_ctx=512, type_k=kind, type_v=kind) as llm:
                sizes.append(llm.kv.bytes)
                assert {(x.type_k, x.type_v) for x in llm.kv.effective}
        assert sizes[0] == sizes[3] > sizes[1] == sizes[4] > sizes[2], sizes
        for kind in ("nope", 4, 24, 42, 43, 99, 8.0):
            for name in ("type_k", "type_v"):
                assert expect(errors.OptionError, Llama, path, **{name: kind}).asked is not None
        expect(errors.UnsupportedError, Llama, path, type_v="turbo3", flash_attn=False)
        print("done")
    """) == "done"  # fmt: skip


def test_every_pair_of_types(try_: Probe) -> None:
    """JamePeng 96, TheTom 25: mixed pairs fail; each runs a prompt, a second one with its beginning, and a state."""
    assert try_("""
        names = [t.name for t in kv.types()]
        for k in names:
            for v in names:
                with Llama(path, n_ctx=256, type_k=k, type_v=v, k_center="off", n_threads=1) as llm:
                    first = text(llm("a beginning that stays, one", temperature=0, max_tokens=3))
                    text(llm("a beginning that stays, two", temperature=0, max_tokens=3))
                    assert text(llm("a beginning that stays, one", temperature=0, max_tokens=3)) == first, (k, v)
        print(len(names))
    """) == "15"  # fmt: skip


@pytest.mark.parametrize("kind", ["f16", "q4_0", "turbo3", "turbo4_tcq"])
def test_states_and_the_next_tokens(try_: Probe, kind: str) -> None:
    """llama.cpp 5648, 15082; llama-cpp-python 997: a restored state gives the same next 32 tokens, and is told."""
    assert try_(f"""
        keywords = dict(temperature=0, max_tokens=32)
        with Llama(path, n_ctx=512, kv="{kind}") as llm, Llama(path, n_ctx=512, kv="{kind}") as other:
            empty = llm.save_state()
            llm.load_state(empty)
            llm.eval(llm.tokenize("something that was computed once"))
            saved = llm.save_state()
            wanted = text(llm("something that was computed once", **keywords))
            other.load_state(saved)
            assert other.n_tokens == saved.n_tokens
            assert text(other("something that was computed once", **keywords)) == wanted
            full = llm("x " * 100, temperature=0, max_tokens=-1, logit_bias={{llm.token_eos(): -1000.0}})
            assert full["usage"]["total_tokens"] == 512
            other.load_state(llm.save_state())
            assert other.n_tokens == llm.n_tokens
        print("done")
    """) == "done"  # fmt: skip


def test_repeated_runs_are_one(try_: Probe) -> None:
    """TheTom 311, llama-cpp-python 386, 1809; ollama 5274: greedy and seeded runs repeat, unseeded ones differ."""
    assert try_("""
        with Llama(path, n_ctx=512, kv="turbo3") as llm:
            cold = set()  # all of the prompt is computed at once, afterwards its last token alone: other sums
            for _ in range(3):
                llm.reset()
                cold.add(text(llm("hello", temperature=0, max_tokens=16)))
            greedy = {text(llm("hello", temperature=0, max_tokens=16)) for _ in range(20)}
            seeded = {text(llm("hello", temperature=2.0, seed=3, max_tokens=16)) for _ in range(5)}
            drawn = {text(llm("hello", temperature=2.0, seed=-1, max_tokens=16)) for _ in range(5)}
        print(len(cold), len(greedy), len(seeded), len(drawn) > 1)
    """) == "1 1 1 True"  # fmt: skip


def test_memory_is_refused_with_the_arithmetic(try_: Probe) -> None:
    """TheTom 72, llama-cpp-python 374: an absurd context is an exception, and the process lives."""
    message = try_("""
        error = expect(errors.MemoryLimitError, Llama, path, n_ctx=2**31 - 256)
        assert isinstance(error, MemoryError) and error.asked > error.limit
        with Llama(path, n_ctx=256) as llm:
            assert llm("hello", max_tokens=1)
        print(error)
    """)
    assert "GiB" in message


def test_prompts_longer_than_a_batch_and_than_the_context(try_: Probe) -> None:
    """node-llama-cpp 129; llama-cpp-python 416, 462, 1645: batches are split; overflow says what and how much."""
    assert try_("""
        with Llama(path, n_ctx=512, n_batch=32, n_ubatch=16) as llm:
            assert llm("a b c d " * 50, max_tokens=2)["usage"]["prompt_tokens"] > 32
            error = expect(errors.ContextFullError, llm, "a b c d " * 400)
            assert str(error.asked) in str(error) and "512" in str(error) and "n_ctx" in str(error)
            endings = [llm("hi", max_tokens=n, logit_bias={2: bias})["choices"][0]["finish_reason"]
                       for n, bias in ((4, -1000.0), (-1, -1000.0), (4, 1000.0))]
            endings.append(llm("hi", max_tokens=4, grammar='root ::= "a"')["choices"][0]["finish_reason"])
        print(endings)
    """) == "['length', 'length', 'stop', 'stop']"  # fmt: skip


def test_constructors_that_fail_leave_no_noise(try_: Probe) -> None:
    """llama-cpp-python 2104, 2210; PR 2041: no AttributeError in a destructor, path and reason in the message."""
    assert try_("""
        import tempfile
        empty = tempfile.NamedTemporaryFile(suffix=".gguf")
        for bad in ("missing.gguf", empty.name, "/"):
            error = expect(errors.GGUFError, Llama, model_path=bad)
            assert bad in str(error)
        error = expect(errors.UnknownOptionError, Llama, path, cache_type_k="q8_0")
        assert isinstance(error, TypeError)
        assert "n_gpu_layers" in str(expect(errors.UnknownOptionError, Llama, path, n_gpu_layer=99))
        del error
        gc.collect()
        print("quiet")
    """) == "quiet"  # fmt: skip


@pytest.mark.parametrize(
    "ending",
    [
        "llm = Llama(path, n_ctx=256)",
        "llm = Llama(path, n_ctx=256); stream = llm('hello', stream=True); next(stream)",
        "llm = Llama(path, n_ctx=256); llm.me = llm; llm.close(); del llm",
        "llm = Llama(path, n_ctx=256); steps = llm.generate([1, 5]); next(steps); keep = [steps, llm]",
        "llm = Llama(path, n_ctx=256)\nthreading.Thread(target=llm, args=('hello',), daemon=True).start()",
        "llm = Llama(path, n_ctx=256)\nos._exit(0)",
    ],
)
def test_the_interpreter_ends_quietly(try_: Probe, ending: str) -> None:
    """llama-cpp-python 1610, 2002, 806, 860, 580; guidance 660: nothing on stderr, whatever is still open."""
    assert try_(ending) == ""


def test_bad_grammars(try_: Probe) -> None:
    """llama.cpp 4492, 19051; llama-cpp-python 1500: a bad grammar raises and the object goes on."""
    assert try_("""
        from pyllama_turbo.compat import LlamaGrammar
        with Llama(path, n_ctx=256) as llm:
            for bad in ("root ::= (", "root ::= missing", "start ::= 'x'", 'root ::= root "a"', "nonsense"):
                expect(errors.OptionError, llm, "x", grammar=bad)
            expect(errors.OptionError, LlamaGrammar.from_string, "")
            assert text(llm("x", grammar='root ::= "ok"')) == "ok"
        print("lives")
    """) == "lives"  # fmt: skip


def test_embeddings_of_many_and_of_long_texts(try_: Probe) -> None:
    """llama-cpp-python 1762, 2051: more than a batch, more texts than sequences, none at all."""
    assert try_("""
        with Llama(path, n_ctx=2048, n_batch=1024, n_ubatch=1024, embedding=True, pooling_type=1) as llm:
            many = llm.create_embedding(["a text"] * 100)
            assert len(many["data"]) == 100 and many["data"][99]["index"] == 99
            assert len(llm.embed("word " * 400)) == llm.n_embd()
            expect(errors.OptionError, llm.embed, [])
        print("done")
    """) == "done"  # fmt: skip


def test_a_second_turn_computes_only_what_is_new(try_: Probe) -> None:
    """llama-cpp-python 1369: the answer of the turn before is in the cache too."""
    assert try_("""
        with Llama(path, n_ctx=1024, kv="turbo3") as llm:
            messages = [{"role": "user", "content": "tell me something long about rivers and mountains"}]
            answer = llm.create_chat_completion(messages, max_tokens=16, grammar="root ::= [a-z]+")
            messages += [answer["choices"][0]["message"], {"role": "user", "content": "go on"}]
            before = llm.ctx.perf().n_prompt
            second = llm.create_chat_completion(messages, max_tokens=1)
            computed = llm.ctx.perf().n_prompt - before
            print(computed < second["usage"]["prompt_tokens"] / 2)
    """) == "True"  # fmt: skip


def test_memory_does_not_grow_with_context_times_vocabulary(try_: Probe) -> None:
    """llama-cpp-python 1542, 1303: no array of n_ctx x n_vocab floats (here it would take 4 GiB)."""
    assert try_(
        """
        import resource
        with Llama(path, n_ctx=65536, kv="turbo3", n_batch=256) as llm:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            llm("hello", max_tokens=4, logprobs=2)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(grown < 128 << 10)
        """,
        n_vocab=16384,
    ) == "True"  # fmt: skip


def test_threads(try_: Probe) -> None:
    """llama-cpp-python 471, 1995, 1836: four threads end well or with BusyError; other threads run meanwhile."""
    assert try_("""
        ended, counted, stop = [], [0], threading.Event()
        def count():
            while not stop.is_set():
                counted[0] += 1
        with Llama(path, n_ctx=2048, n_threads=1) as llm:
            def ask(i):
                try:
                    llm(f"thread {i}", max_tokens=30)
                    ended.append("done")
                except errors.BusyError:
                    ended.append("busy")
            threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            counter = threading.Thread(target=count)
            counter.start()
            start = counted[0]
            llm.eval(llm.tokenize("x y z " * 200))
            during = counted[0] - start
            stop.set()
            counter.join()
        assert len(ended) == 4 and "done" in ended, ended
        print(during > 100)
    """) == "True"  # fmt: skip


def test_dropped_streams_and_closing_while_it_runs(try_: Probe) -> None:
    """tabbyAPI 428; llama.cpp 24496; node-llama-cpp 631, 623: the object is free at once; closing ends a run."""
    assert try_("""
        llm = Llama(path, n_ctx=4096)
        for _ in range(5):
            for chunk in llm("hello", max_tokens=100, stream=True):
                break
            del chunk
            assert llm("again", max_tokens=1)
        stream = llm("hello", max_tokens=2000, stream=True, logit_bias={2: -1000.0})
        next(stream)
        closer = threading.Timer(0.2, llm.close)
        closer.start()
        try:
            for _ in stream: pass
            ended = "to the end"
        except errors.TurboError as error:
            ended = type(error).__name__
        closer.join()
        assert ended in ("ClosedError", "AbortedError", "to the end"), ended
        expect(errors.ClosedError, llm, "hello")
        print("done")
    """) == "done"  # fmt: skip


def test_characters_and_stop_texts_are_whole(try_: Probe) -> None:
    """llama-cpp-python 372, 8; java-llama.cpp 3; vllm 3574: characters of several tokens, stop texts of several."""
    assert try_("""
        def writes(llm, wanted):
            script, start = [*llm.tokenize(wanted, add_bos=False), llm.token_eos()], []
            def force(ids, scores):
                start or start.append(len(ids))
                forced = np.full_like(scores, -np.inf)
                forced[script[min(len(ids) - start[0], len(script) - 1)]] = 0.0
                return forced
            return force
        wanted = "été \\U0001f999 漢字 \\U0001f468\\u200d\\U0001f469 end"
        with Llama(path, n_ctx=512) as llm:
            chunks = [text(c) for c in llm("x", stream=True, max_tokens=-1, logits_processor=writes(llm, wanted))]
            assert "".join(chunks).strip() == wanted, chunks
            assert not any("\\ufffd" in chunk for chunk in chunks)
            assert text(llm("x", max_tokens=-1, logits_processor=writes(llm, wanted))).strip() == wanted
            chunks = [text(c) for c in llm("x", stream=True, stop=["漢字 \\U0001f468"], max_tokens=-1,
                                           logits_processor=writes(llm, wanted))]
            assert "".join(chunks).strip() == "été \\U0001f999", chunks
        print("whole")
    """) == "whole"  # fmt: skip


def test_nothing_is_printed_and_progress_is_told(try_: Probe) -> None:
    """llama-cpp-python 1245, 1874, 301, PR 2340: a silent load; progress from 0 to 1; an exception in it comes out."""
    assert try_("""
        seen = []
        Llama(path, n_ctx=256, progress=seen.append).close()
        assert seen == sorted(seen) and seen[-1] == 1.0
        def broken(share): raise RuntimeError("mine")
        try:
            Llama(path, n_ctx=256, progress=broken)
        except RuntimeError as error:
            print(error)
        expect(errors.AbortedError, Llama, path, progress=lambda share: False)
    """) == "mine"  # fmt: skip
