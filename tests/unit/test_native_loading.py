"""Choosing a library: the environment variable, missing files, reasons that stay."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_native import FakeLib

from pyllama_turbo import _callbacks, _native, errors, logs
from pyllama_turbo._cuda_device import compute_capabilities, why_not


@pytest.fixture
def fresh() -> Iterator[None]:
    """No library loaded and no reasons kept, for this test."""
    before = (_native._binding, _native._report, _native._started_pid)
    _native._binding, _native._report = None, _native.LoadReport()
    yield
    _native._binding, _native._report, _native._started_pid = before


def test_an_unknown_backend_is_refused(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYLLAMA_TURBO_BACKEND", "tpu")
    with pytest.raises(errors.NativeLibraryError, match="tpu"):
        _native.binding()


def test_missing_libraries_are_named_with_a_way_out(fresh: None, tmp_path: Path) -> None:
    with pytest.raises(errors.NativeLibraryError, match="no cpu library is installed") as caught:
        _native._choose(tmp_path)
    assert "doctor" in caught.value.hint
    assert set(_native._report.skipped) == {"cuda", "cpu"}


def test_a_file_that_is_no_library_gives_the_loader_s_reason(fresh: None, tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / _native.LIBRARY).write_bytes(b"not an ELF file")
    with pytest.raises(errors.NativeLibraryError, match="cannot be loaded"):
        _native._open_candidate("cpu", tmp_path)


def test_the_reason_is_raised_again_later(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> _native.Binding:
        raise errors.NativeLibraryError("first reason")

    monkeypatch.setattr(_native, "_load", broken)
    for _ in range(2):
        with pytest.raises(errors.NativeLibraryError, match="first reason"):
            _native.binding()
    assert _native.load_report().error == "first reason"


def test_use_after_fork_is_a_clear_error(lib: FakeLib, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "_started_pid", os.getpid() + 1)
    with pytest.raises(errors.UnsupportedError, match="forked"):
        _native.binding()


def test_statuses_become_their_exceptions_with_the_log_tail(lib: FakeLib) -> None:
    b = _native.binding()
    expected = {
        lib.TURBO_E_ARGUMENT: errors.OptionError,  # type: ignore[attr-defined]
        lib.TURBO_E_LOAD: errors.ModelLoadError,  # type: ignore[attr-defined]
        lib.TURBO_E_MEMORY: errors.MemoryLimitError,  # type: ignore[attr-defined]
        lib.TURBO_E_UNSUPPORTED: errors.UnsupportedError,  # type: ignore[attr-defined]
        lib.TURBO_E_ABORTED: errors.AbortedError,  # type: ignore[attr-defined]
        lib.TURBO_E_NO_SLOT: errors.ContextFullError,  # type: ignore[attr-defined]
        lib.TURBO_E_DECODE: errors.DecodeError,  # type: ignore[attr-defined]
        lib.TURBO_E_STATE: errors.StateError,  # type: ignore[attr-defined]
        lib.TURBO_E_INTERNAL: errors.InternalError,  # type: ignore[attr-defined]
        -99: errors.InternalError,
    }
    for status, kind in expected.items():
        logs.forget()
        lib.log = [(2, "some info"), (4, "the native reason")]
        with pytest.raises(kind) as caught:
            _native.check(b, lib.fail(status, "text"), asked=1)
        assert type(caught.value) is kind
        assert caught.value.native_log == ("the native reason",)
        assert caught.value.asked == 1


def test_a_parked_exception_goes_before_the_status(lib: FakeLib) -> None:
    _callbacks._park(KeyboardInterrupt, KeyboardInterrupt(), None)
    with pytest.raises(KeyboardInterrupt):
        _native.check(_native.binding(), lib.fail(-5, "aborted"))
    with pytest.raises(errors.AbortedError):
        _native.check(_native.binding(), lib.fail(-5, "aborted"))


def test_native_lines_reach_logging_and_nothing_else(
    lib: FakeLib, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    lib.log = [(2, "hello"), (3, "careful")]
    with caplog.at_level("INFO", logger="pyllama_turbo.native"):
        logs.drain(lib.ffi, lib)
    assert [(r.levelname, r.message) for r in caplog.records] == [("INFO", "hello"), ("WARNING", "careful")]
    assert capfd.readouterr() == ("", "")


def test_progress_never_falls_and_false_cancels() -> None:
    seen: list[float] = []
    target = _callbacks.ProgressTarget(lambda p: seen.append(p))  # type: ignore[func-returns-value]
    assert [target(p) for p in (0.0, 0.5, 0.25, 2.0)] == [True] * 4
    assert seen == [0.0, 0.5, 0.5, 1.0]
    assert _callbacks.ProgressTarget(lambda p: False)(0.1) is False


class FakeDriver:
    """libcuda of a machine with these GPUs; `cuInit` may fail."""

    def __init__(self, *capabilities: int, status: int = 0) -> None:
        self.capabilities, self.cuInit = capabilities, lambda flags: status

    def cuDeviceGetCount(self, out: object) -> int:  # noqa: N802
        out._obj.value = len(self.capabilities)  # type: ignore[attr-defined]
        return 0

    def cuDeviceGetAttribute(self, out: object, attribute: int, device: int) -> int:  # noqa: N802
        major, minor = divmod(self.capabilities[device], 10)
        out._obj.value = {75: major, 76: minor}[attribute]  # type: ignore[attr-defined]
        return 0


@pytest.mark.parametrize(
    ("built", "gpus", "refusal"),
    [
        (["90-real"], (75,), "built for sm_90, and this machine's GPU is sm_75"),
        (["90-real"], (90,), ""),
        (["80"], (120,), ""),  # intermediate code is compiled by the driver
        (["80-real"], (86,), ""),
        (["80-real", "90-real"], (120,), "built for sm_80, sm_90, and this machine's GPU is sm_120"),
        (["86"], (80,), "sm_86, and this machine's GPU is sm_80"),
        (["90-real"], (75, 90), ""),
        (["native"], (75,), ""),
        ([], (75,), ""),
        (["90a-real"], (), ""),
    ],
)
def test_a_gpu_the_library_was_not_built_for(built: list[str], gpus: tuple[int, ...], refusal: str) -> None:
    reason = why_not(built, compute_capabilities(FakeDriver(*gpus)))
    assert reason.endswith(refusal) and bool(reason) == bool(refusal)


def test_a_driver_that_does_not_answer_decides_nothing() -> None:
    assert compute_capabilities(FakeDriver(75, status=100)) == []
