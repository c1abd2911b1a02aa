"""One key among thousands is found on a GPU too, at every depth and for every type."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_runs import TYPES, load
from lookup_model import LENGTHS, check_recall, write_lookup_model


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lookup_model(tmp_path_factory.mktemp("lookup") / "m.gguf", LENGTHS[-1] + 512)


@pytest.mark.parametrize("kv", TYPES)
def test_a_needle_is_found_at_every_depth(path: Path, kv: str) -> None:
    with load(path, gpu=True) as model:
        check_recall(model, kv)
