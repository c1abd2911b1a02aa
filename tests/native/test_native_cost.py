"""What Python adds to the C calls, with the real library and the fake one; scripts/python_cost.py documents numbers.

Limits here are twice those that are promised (30 microseconds a token, 150 ms for the import): test machines are busy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import python_cost

LOOP_US, IMPORT_MS = 60.0, 300.0


def test_the_token_loop_with_the_real_library(tiny_model: Callable[..., Path]) -> None:
    assert python_cost.real_loop_us(tiny_model(), n=300) < LOOP_US


def test_the_token_loop_with_the_fake_library() -> None:
    assert python_cost.fake_loop_us(500) < LOOP_US


@pytest.mark.parametrize("statement", python_cost.IMPORTS)
def test_imports(statement: str) -> None:
    assert python_cost.import_ms(statement) < IMPORT_MS
