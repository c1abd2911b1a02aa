"""The compiled codecs, and Gaussian blocks to feed them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from codec_library import CodecLibrary, FloatArray, build


@pytest.fixture(scope="session")
def library_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The codecs compiled without any -m flag, as portable builds compile them."""
    return build(tmp_path_factory.mktemp("codecs") / "libcodecs.so")


@pytest.fixture
def codecs(library_path: Path) -> Iterator[CodecLibrary]:
    """The codecs on their best path; tests that switch it find it restored."""
    library = CodecLibrary(library_path)
    best = library.path
    yield library
    library.select(best)


@pytest.fixture(scope="session")
def sphere() -> Callable[[int, int, int], FloatArray]:
    """sphere(count, n, seed): Gaussian blocks [count, n] normalised to an rms of 1."""

    def make(count: int, n: int, seed: int = 1) -> FloatArray:
        x = np.random.default_rng(seed).standard_normal((count, n))
        blocks: FloatArray = (x / np.sqrt(np.mean(np.square(x), axis=1, keepdims=True))).astype(np.float32)
        return blocks

    return make
