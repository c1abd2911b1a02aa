"""Damaged files, signals, and interpreters that end in odd states."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Probe = Callable[..., str]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_file(probe: Probe, share: float) -> None:
    text = probe(f"""
        import tempfile
        data = open(path, "rb").read()
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            file.write(data[: int(len(data) * {share})]); file.flush()
            try:
                Model.open(file.name)
            except errors.ModelLoadError as error:
                print(file.name in str(error), len(str(error)) > len(file.name) + 10)
    """)
    assert text == "True True"


def test_files_that_are_no_model(probe: Probe) -> None:
    assert probe("""
        import tempfile
        with tempfile.TemporaryDirectory() as folder:
            name = os.path.join(folder, "x.gguf")
            expect(errors.GGUFError, Model.open, name)
            expect(errors.GGUFError, Model.open, folder)
            for content in (b"", b"GGUF", b"GGML" * 100, b"<html>", b"GGUF\\x03\\0\\0\\0" + b"\\xff" * 64):
                open(name, "wb").write(content)
                expect(errors.GGUFError, Model.open, name)
        print("lives")
    """) == "lives"  # fmt: skip


def test_damaged_headers_never_crash(probe: Probe) -> None:
    assert probe("""
        import random, tempfile
        data = open(path, "rb").read()
        rng = random.Random(1)
        with tempfile.TemporaryDirectory() as folder:
            name = os.path.join(folder, "x.gguf")
            for _ in range(25):
                bad = bytearray(data)
                for _ in range(3):
                    bad[rng.randrange(4, 2000)] = rng.randrange(256)
                open(name, "wb").write(bad)
                try:
                    Model.open(name).close()
                except errors.TurboError:
                    pass
        print("lives")
    """) == "lives"  # fmt: skip


def test_keyboard_interrupt_in_the_progress_function(probe: Probe) -> None:
    assert probe("""
        def interrupt(progress):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        try:
            Model.open(path, progress=interrupt)
        except KeyboardInterrupt:
            print("interrupted")
        Model.open(path).close()
    """) == "interrupted"  # fmt: skip


BIG = {"n_layer": 8, "head_dim": 128, "n_head": 8, "n_head_kv": 8, "n_embd": 512, "n_ff": 2048}


def test_ctrl_c_reaches_a_running_prefill(probe: Probe) -> None:
    seconds = float(
        probe(
            """
            with Model.open(path) as model, model.context(4096, n_threads=1) as ctx:
                threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
                start = time.perf_counter()
                try:
                    ctx.prefill([5] * 4000)
                except KeyboardInterrupt:
                    took = time.perf_counter() - start
                ctx.seqs.clear()
                ctx.decode([5])
                print(took)
            """,
            **BIG,
        )
    )
    assert seconds < 3.0


def test_ctrl_c_reaches_a_generation_and_the_context_lives_on(probe: Probe) -> None:
    assert probe(
        """
        with Model.open(path) as model, model.context(4096, n_threads=1) as ctx:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                for _ in ctx.generate([5] * 10, max_tokens=4000, ignore_eos=True):
                    pass
            except KeyboardInterrupt:
                print("interrupted")
            ctx.complete([5] * 10, max_tokens=2)
        """,
        **BIG,
    ) == "interrupted"  # fmt: skip


ENDINGS = {
    "open model": "model = Model.open(path)",
    "open context": "model = Model.open(path); ctx = model.context(256)",
    "context without its model": "ctx = Model.open(path).context(256); ctx.decode([5])",
    "unfinished generation": "ctx = Model.open(path).context(256); run = ctx.generate('a', ignore_eos=True); next(run)",
    "cycle": "m = Model.open(path); m.self = m; c = m.context(256); c.self = c",
    "closed model, open context": "m = Model.open(path); c = m.context(256); m.close()",
    "daemon thread decodes": (
        "c = Model.open(path).context(8192)\n"
        "threading.Thread(target=lambda: [c.decode([5]) for _ in range(8000)], daemon=True).start()\n"
        "time.sleep(0.2)"
    ),
    "view kept": "c = Model.open(path).context(256); c.decode([5]); view = c.logits",
    "failed constructors": "expect(errors.OptionError, Model.open(path).context, kv='no')",
    "os._exit after work": "c = Model.open(path).context(256); c.decode([5]); sys.stdout.flush(); os._exit(0)",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_interpreter_ends_quietly(probe: Probe, ending: str) -> None:
    assert probe(ENDINGS[ending]) == ""


def test_a_fork_after_loading_is_a_clear_error(probe: Probe) -> None:
    assert probe("""
        model = Model.open(path)
        pid = os.fork()
        if pid == 0:
            try:
                Model.open(path)
            except errors.UnsupportedError as error:
                os._exit(7 if "forked" in str(error) else 1)
            os._exit(2)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """) == "7"  # fmt: skip


def test_nothing_is_printed_by_default(probe: Probe) -> None:
    assert probe("""
        with Model.open(path) as model, model.context(256, kv="turbo3") as ctx:
            ctx.complete("hello", max_tokens=4)
    """) == ""  # fmt: skip


def test_native_lines_reach_logging(probe: Probe) -> None:
    assert int(probe("""
        import logging
        seen = []
        class Keep(logging.Handler):
            def emit(self, record): seen.append(record.getMessage())
        logging.getLogger("pyllama_turbo").addHandler(Keep())
        logging.getLogger("pyllama_turbo").setLevel(logging.INFO)
        Model.open(path).close()
        print(len(seen))
    """)) > 10  # fmt: skip


@pytest.mark.parametrize("call", ["ctx.complete('hello', max_tokens=16)", "model.context(256)", "Sampler(model)"])
def test_a_daemon_thread_at_the_end_of_the_program(probe: Probe, call: str) -> None:
    """It may be inside any native call when the interpreter frees the model: each waits for the other."""
    for _ in range(4):  # which call it is depends on the moment
        assert probe(f"""
            model = Model.open(path)
            ctx = model.context(256)
            threading.Thread(target=lambda: {call}, daemon=True).start()
        """) == ""  # fmt: skip
