"""Faults from outside: no memory, a full disk, kill -9, functions of the user's that fail, model files that change."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Probe = Callable[..., str]

LIMITED = """
import contextlib, resource

@contextlib.contextmanager
def limited(megabytes):
    gc.collect()
    now = int(open("/proc/self/statm").read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (now + (megabytes << 20), resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""


def test_tt72_no_memory_for_a_context(probe: Probe) -> None:
    assert probe(LIMITED + """
with Model.open(path) as model:
    model.context(256).close()
    for kv in ("f16", "turbo3"):
        for _ in range(3):
            with limited(64):
                error = expect(errors.MemoryLimitError, model.context, 1 << 20, kv=kv, check_memory=False)
            assert isinstance(error, MemoryError) and "alloc" in str(error), error
    with model.context(256, kv="turbo3") as ctx:
        ctx.complete("hello", max_tokens=4, ignore_eos=True)
print("lives")
""") == "lives"  # fmt: skip


def test_no_memory_for_a_model(probe: Probe) -> None:
    assert probe(LIMITED + """
from pyllama_turbo import model as module
Model.open(path).close()
with limited(8):  # too little to map the file and read its header
    expect(errors.MemoryLimitError, Model.open, path)
reads_shape = module.model_shape
with contextlib.ExitStack() as later:
    def hooked(parts):
        later.enter_context(limited(24))  # from here on: too little for the weights
        return reads_shape(parts)
    module.model_shape = hooked
    expect(errors.MemoryLimitError, Model.open, path, load_mode="none")
module.model_shape = reads_shape
with Model.open(path, load_mode="none") as model, model.context(256) as ctx:
    ctx.decode([5])
print("lives")
""", n_embd=1024, n_ff=4096, n_layer=2) == "lives"  # fmt: skip


def test_no_memory_for_saved_state(probe: Probe) -> None:
    assert probe(LIMITED + """
with Model.open(path) as model, model.context(65536, n_threads=1) as ctx:
    ctx._binding.lib.turbo_kv_fill(ctx.pointer(), 0, 60000, 1)  # a long cache at once
    with limited(8):
        error = expect(errors.MemoryLimitError, state.get_bytes, ctx)
    assert isinstance(error, MemoryError)
    ctx.decode([5])
print("lives")
""") == "lives"  # fmt: skip


def test_a_full_disk_keeps_the_old_file(probe: Probe) -> None:
    assert probe("""
        import resource, tempfile
        with tempfile.TemporaryDirectory() as folder, Model.open(path) as model, model.context(512) as ctx:
            target = os.path.join(folder, "s.state")
            ctx.prefill([5, 6, 7])
            state.save(ctx, target)
            before = open(target, "rb").read()
            ctx.prefill([5] * 300)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
            try:
                state.save(ctx, target)
            except OSError as error:
                print("OSError", error.errno)
            assert open(target, "rb").read() == before and os.listdir(folder) == ["s.state"]
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            state.save(ctx, target)
            assert state.load(ctx, target) == 300
    """) == "OSError 27"  # fmt: skip


def test_kill_9_in_a_save(probe: Probe) -> None:
    assert probe("""
        import subprocess, tempfile
        child = "; ".join([
            "import sys; from pyllama_turbo import Model, state; model = Model.open(sys.argv[1])",
            "ctx = model.context(4096); ctx.prefill([5] * 4000)",
            "[print(state.save(ctx, sys.argv[2]), flush=True) for _ in range(10 ** 6)]",
        ])
        with tempfile.TemporaryDirectory() as folder, Model.open(path) as model, model.context(4096) as ctx:
            target = os.path.join(folder, "s.state")
            for i in range(6):
                run = subprocess.Popen([sys.executable, "-c", child, path, target], stdout=subprocess.PIPE)
                run.stdout.readline()
                time.sleep(0.002 * i)  # somewhere inside one of the next saves
                run.kill()
                run.wait()
                assert state.load(ctx, target) == 4000
            state.save(ctx, target)
            assert os.listdir(folder) == ["s.state"]  # what the killed ones left is gone
        print("whole every time")
    """) == "whole every time"  # fmt: skip


def test_processors_that_fail(probe: Probe) -> None:
    assert probe("""
        class Own(Exception): pass
        def late(history, logits):
            if len(history) > 12: raise Own("mine")
        def shrinks(history, logits): return logits[:3]
        def text(history, logits): return "no"
        with Model.open(path) as model, model.context(256) as ctx:
            for _ in range(3):
                try:
                    ctx.complete([5] * 10, processors=late, max_tokens=20, ignore_eos=True)
                except Own as error:
                    assert str(error) == "mine"
                else:
                    raise SystemExit("the exception was lost")
            for bad in (shrinks, text):
                try:
                    ctx.complete([5] * 10, processors=bad, max_tokens=3, ignore_eos=True)
                except (errors.TurboError, TypeError, ValueError):
                    pass
            assert len(ctx.complete([5] * 10, max_tokens=3, ignore_eos=True)) > 0
        print("lives")
    """) == "lives"  # fmt: skip


def test_a_log_handler_that_fails(probe: Probe) -> None:
    assert probe("""
        import logging
        logging.raiseExceptions = False
        class Broken(logging.Handler):
            def emit(self, record): raise RuntimeError("mine")
        class Forbidding(logging.Handler):
            def emit(self, record): raise SystemExit(9)
        logger = logging.getLogger("pyllama_turbo")
        logger.setLevel(logging.DEBUG)
        logger.addHandler(Broken())
        with Model.open(path) as model, model.context(256) as ctx:
            ctx.complete("hello", max_tokens=3)
        logger.addHandler(Forbidding())
        logger.removeHandler(logger.handlers[-2])
        try:
            Model.open(path)
        except SystemExit:
            logger.removeHandler(logger.handlers[-1])
        Model.open(path).close()
        print("lives")
    """) == "lives"  # fmt: skip


def test_progress_functions_that_fail(probe: Probe) -> None:
    assert probe("""
        class Own(BaseException): pass
        for wrong in (Own("mine"), KeyError("k"), SystemExit(4)):
            def fail(value): raise wrong
            try:
                Model.open(path, progress=fail)
            except BaseException as error:
                assert error is wrong, error
            else:
                raise SystemExit("the exception was lost")
        expect(errors.AbortedError, Model.open, path, progress=lambda value: False)
        seen = []
        Model.open(path, progress=lambda value: seen.append(value)).close()
        assert seen == sorted(seen) and seen[-1] == 1.0 and 0 <= seen[0]
        import tempfile
        with tempfile.TemporaryDirectory() as folder, Model.open(path) as model:
            os.environ["PYLLAMA_TURBO_CACHE"] = folder  # where no mean keys are kept yet
            expect(errors.AbortedError, model.context, 256, kv="turbo3", progress=lambda value: False)
            with model.context(256, kv="turbo3") as ctx:
                ctx.decode([5])
        print("lives")
    """) == "lives"  # fmt: skip


def test_a_model_file_replaced_by_renaming_stays_mapped(probe: Probe) -> None:
    assert probe("""
        import shutil, tempfile
        with tempfile.TemporaryDirectory() as folder:
            mine = os.path.join(folder, "m.gguf")
            shutil.copy(path, mine)
            with Model.open(mine) as model, model.context(256, kv="turbo3") as ctx:
                expected = ctx.complete("hello", max_tokens=8, temperature=0, ignore_eos=True)
                data = state.get_bytes(ctx)
                open(mine + ".new", "wb").write(b"something else")
                os.replace(mine + ".new", mine)
                with model.context(256, kv="turbo3") as other:
                    assert other.complete("hello", max_tokens=8, temperature=0, ignore_eos=True) == expected
                    state.set_bytes(other, data)
            expect(errors.GGUFError, Model.open, mine)
        print("as before")
    """) == "as before"  # fmt: skip


@pytest.mark.parametrize("change", ["cut", "overwritten"])
def test_a_mapped_model_file_that_changes_in_place(probe: Probe, change: str) -> None:
    assert probe(f"""
        import shutil, tempfile
        with tempfile.TemporaryDirectory() as folder:
            mine = os.path.join(folder, "m.gguf")
            for mode, mapped in (("mmap", True), ("none", False)):
                shutil.copy(path, mine)
                with Model.open(mine, load_mode=mode, use_extra_bufts=False) as model, model.context(256) as ctx:
                    expected = ctx.complete("hello", max_tokens=8, temperature=0, ignore_eos=True)
                    os.utime(mine)  # touched only: goes on
                    ctx.seqs.clear()
                    assert ctx.complete("hello", max_tokens=8, temperature=0, ignore_eos=True) == expected
                    size = os.path.getsize(mine)
                    with open(mine, "r+b") as file:
                        if {change!r} == "cut":
                            file.truncate(size // 2)
                        else:
                            file.write(os.urandom(size))
                    os.utime(mine, (1, 1))
                    ctx.seqs.clear()
                    if mapped:
                        error = expect(errors.ModelLoadError, ctx.complete, "hello")
                        assert {change!r} in str(error) and mine in str(error)
                        expect(errors.ModelLoadError, model.context, 256)
                    else:  # it was read into memory: nothing can happen
                        assert ctx.complete("hello", max_tokens=8, temperature=0, ignore_eos=True) == expected
        print("noticed")
    """) == "noticed"  # fmt: skip
