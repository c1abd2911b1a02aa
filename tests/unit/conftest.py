"""The fake library, in place of the real one, for the tests of this folder that ask for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_native import FakeLib, fake_model, make_ffi

from pyllama_turbo import _native
from pyllama_turbo.context import Context
from pyllama_turbo.model import Model

_FFI = make_ffi()


@pytest.fixture
def lib() -> Iterator[FakeLib]:
    """The fake library, installed for this test."""
    fake = FakeLib(_FFI)
    before = _native._binding
    _native.set_binding(_native.Binding(_FFI, fake, "cpu"))
    yield fake
    _native.set_binding(before)


@pytest.fixture
def model(lib: FakeLib) -> Model:
    """A model of the fake library."""
    return fake_model(_native.binding())


@pytest.fixture
def ctx(model: Model) -> Context:
    """A context of 64 tokens in batches of 16."""
    return model.context(64, kv="turbo3", n_batch=16)
