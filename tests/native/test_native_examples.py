"""The programs of examples/ that need no conversation, with tiny models."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "scripts")]
import many_prompts  # noqa: E402
import search  # noqa: E402
from make_encoder import write_encoder  # noqa: E402


def test_many_prompts(tiny_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    texts = many_prompts.main(str(tiny_model()), ["one", "two", "three", "four", "five"], max_tokens=5)
    assert len(texts) == 5 and all(texts)
    assert capsys.readouterr().out.count("tokens, ") == 5


def test_search(tmp_path: Path) -> None:
    texts = ["the same words", "other words", "numbers 1 2 3"]
    found = search.main(str(write_encoder(tmp_path / "bert.gguf")), "the same words", texts)
    assert found[0][1] == "the same words" and found[0][0] == pytest.approx(1.0, abs=1e-3)
