"""The tables of docs/quality.md are those of the committed records."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import make_quality  # noqa: E402


def record(k: str, v: str, kld: float, **more: Any) -> dict[str, Any]:
    fields = {"model": "SmolLM2.gguf", "backend": "cpu", "path": "prefill", "n_ctx": 512, "text": "built-in (x)"}
    fields |= {"first": 256, "floor": False, "context": {}, "kld_se": kld / 10, "kv_bits": 3.0}
    return {**fields, "type_k": k, "type_v": v, "kld_mean": kld, **more}


def test_the_page_is_up_to_date() -> None:
    assert make_quality.main(["--check"]) == 0, "run scripts/make_quality.py"


def test_costs_are_above_the_floor_and_of_the_default_keys() -> None:
    rows = [
        record("f16", "f16", 0.01, floor=True),
        record("turbo3_tcq", "turbo3_tcq", 0.05),
        record("q8_0", "q8_0", 0.9),
        record("q8_0", "q8_0", 0.03),
        record("q8_0", "q8_0", 0.8, context={"k_center": "off"}),
        record("q8_0", "q8_0", 0.7, text="other.txt"),
        record("q8_0", "f16", 0.02),
    ]
    assert make_quality.costs(rows) == {
        ("turbo3_tcq", "turbo3_tcq"): 1.0,
        ("q8_0", "q8_0"): pytest.approx(0.5),
    }
