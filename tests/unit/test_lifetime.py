"""Closing: once, children first, from any thread; the finalizer as the net."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest
from fake_native import FakeLib, fake_model

from pyllama_turbo import _lifetime, _native, errors
from pyllama_turbo.context import Context
from pyllama_turbo.model import Model


def test_close_is_idempotent(lib: FakeLib, model: Model) -> None:
    model.close()
    model.close()
    assert lib.freed == ["model"]
    assert model.closed


def test_closing_a_model_closes_its_contexts_first(lib: FakeLib, model: Model, ctx: Context) -> None:
    model.close()
    assert lib.freed == ["context", "model"]
    with pytest.raises(errors.ClosedError, match="context"):
        ctx.decode([1])
    with pytest.raises(errors.ClosedError, match="model"):
        model.context(64)


def test_context_managers_free_in_order(lib: FakeLib) -> None:
    with fake_model(_native.binding()) as model, model.context(64) as ctx:
        ctx.decode([1])
    assert lib.freed == ["context", "model"]


def test_forgotten_objects_are_freed_children_first(lib: FakeLib) -> None:
    model = fake_model(_native.binding())
    ctx = model.context(64)
    del model
    gc.collect()
    assert lib.freed == []  # the context needs its model
    del ctx
    gc.collect()
    gc.collect()  # the context's finalizer held the model during the first
    assert lib.freed == ["context", "model"]


def test_close_stops_and_waits_for_a_running_decode(lib: FakeLib, ctx: Context) -> None:
    inside = threading.Event()
    seen: list[str] = []

    def slow(n: int) -> int:
        inside.set()
        while not lib.abort:
            time.sleep(0.001)
        seen.append("stopped")
        return -5

    lib.fail_decode = slow
    failure: list[BaseException] = []

    def work() -> None:
        try:
            ctx.decode([1])
        except errors.TurboError as error:
            failure.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    assert inside.wait(5)
    ctx.close()
    worker.join(5)
    assert lib.freed == ["context"] and seen == ["stopped"]
    assert isinstance(failure[0], errors.AbortedError)


def test_close_during_a_generation_ends_it_with_a_typed_error(lib: FakeLib, ctx: Context) -> None:
    lib.script = [97] * 50
    generation = ctx.generate("hello")
    next(generation)
    ctx.close()
    with pytest.raises(errors.ClosedError):
        for _ in generation:
            pass
    generation.close()


def test_cancel_after_close_does_nothing(lib: FakeLib, ctx: Context) -> None:
    ctx.close()
    ctx.cancel()
    assert lib.abort == 1  # set by close itself, before the memory was freed


def test_at_exit_locks_are_kept_and_a_stuck_call_keeps_its_memory(
    lib: FakeLib, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, stuck = model.context(64), model.context(64)
    monkeypatch.setattr(_lifetime, "_live", weakref.WeakSet([free, stuck]))
    monkeypatch.setattr(_lifetime, "_PATIENCE_S", 0.01)
    release, held = threading.Event(), threading.Event()

    def hold() -> None:
        with stuck.lock:
            held.set()
            release.wait(5)

    worker = threading.Thread(target=hold)
    worker.start()
    held.wait(5)
    _lifetime._quiesce()
    release.set()
    worker.join()
    assert free._finalizer.atexit and not stuck._finalizer.atexit
    assert not model._finalizer.atexit  # the stuck call uses the model too
    assert not _taken_by_another_thread(stuck) and _taken_by_another_thread(free)
    free.lock.release()


def _taken_by_another_thread(ctx: Context) -> bool:
    results: list[bool] = []

    def attempt() -> None:
        got = ctx.lock.acquire(blocking=False)
        results.append(not got)
        if got:
            ctx.lock.release()

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return results[0]


def test_a_failed_constructor_leaves_no_noise(lib: FakeLib, model: Model, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(errors.OptionError):
        model.context(64, kv="nope")
    gc.collect()
    assert capfd.readouterr().err == ""
