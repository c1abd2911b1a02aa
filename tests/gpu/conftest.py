"""Fixtures of the tests that need an NVIDIA GPU and the CUDA library (make test-gpu)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pyllama_turbo import _native
from pyllama_turbo.devices import devices

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "reliability"), str(TESTS / "cli")]  # helper modules
from probe_process import run_probe  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def cuda_is_there() -> None:
    """These tests fail, and are not skipped, where there is no GPU: they were asked for by name."""
    _native.binding()
    kinds = [device.kind for device in devices()]
    assert "gpu" in kinds, f"no GPU is usable: {_native.load_report()}"


@pytest.fixture
def probe(tiny_model: Callable[..., Path]) -> Callable[..., str]:
    """`probe(code, head_dim=64, ...)`: run the code in a fresh process; its stdout, stripped."""

    def run(code: str, *, returncode: int = 0, **shape: object) -> str:
        return run_probe(code, tiny_model(**shape), returncode=returncode)

    return run
