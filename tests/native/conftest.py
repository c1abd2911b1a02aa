"""The real library with tiny random models."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pyllama_turbo import Model, _native

sys.path.insert(0, str(Path(__file__).parent))  # the helper module, whatever pytest's import mode


@pytest.fixture(scope="session", autouse=True)
def native_library() -> _native.Binding:
    """These tests need the library: without it they fail, they are not skipped."""
    return _native.binding()


@pytest.fixture(scope="session")
def tiny(open_model: Callable[..., Model]) -> Model:
    """The default tiny model: llama, 2 layers, 4 heads, 2 KV heads of 64."""
    return open_model()


@pytest.fixture
def bpe_model() -> Callable[[Path, str], Path]:
    """`bpe_model(folder, pre)`: a byte-level BPE vocabulary without weights, split by the rules named `pre`."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "fuzz"))
    from fuzz_models import write_vocabularies

    def write(folder: Path, pre: str) -> Path:
        return next(path for path in write_vocabularies(folder) if path.stem == f"bpe-{pre}")

    return write
