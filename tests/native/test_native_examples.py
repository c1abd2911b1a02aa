"""The example of embeddings, with a model that makes them; tests/cli runs all examples."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import search
from make_encoder import write_encoder


def test_search(tmp_path: Path) -> None:
    texts = ["the same words", "other words", "numbers 1 2 3"]
    found = search.main(str(write_encoder(tmp_path / "bert.gguf")), "the same words", texts)
    assert found[0][1] == "the same words" and found[0][0] == pytest.approx(1.0, abs=1e-3)
