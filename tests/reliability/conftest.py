"""What every KV type must survive, with the real library and tiny random models."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pyllama_turbo import _native

sys.path.insert(0, str(Path(__file__).parent))  # the helper module, whatever pytest's import mode


@pytest.fixture(scope="session", autouse=True)
def native_library() -> _native.Binding:
    """These tests need the library: without it they fail, they are not skipped."""
    return _native.binding()
