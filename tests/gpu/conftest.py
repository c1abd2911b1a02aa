"""Fixtures of the tests that need an NVIDIA GPU and the CUDA library (make test-gpu)."""

from __future__ import annotations

import pytest

from pyllama_turbo import _native
from pyllama_turbo.devices import devices


@pytest.fixture(scope="session", autouse=True)
def cuda_is_there() -> None:
    """These tests fail, and are not skipped, where there is no GPU: they were asked for by name."""
    _native.binding()
    kinds = [device.kind for device in devices()]
    assert "gpu" in kinds, f"no GPU is usable: {_native.load_report()}"
