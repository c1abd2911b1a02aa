"""One key among thousands: attention finds it at every depth of 1,000 to 32,768 tokens, for every type."""

from __future__ import annotations

import pytest
from lookup_model import LENGTHS, check_recall, write_lookup_model

from pyllama_turbo import Model

TYPES = ("f16", "q8_0", "q4_0", "turbo2", "turbo3", "turbo4", "turbo2_tcq", "turbo3_tcq", "turbo4_tcq")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    with Model.open(write_lookup_model(tmp_path_factory.mktemp("lookup") / "m.gguf", LENGTHS[-1] + 512)) as model:
        yield model


@pytest.mark.parametrize("kv", TYPES)
def test_a_needle_is_found_at_every_depth(model: Model, kv: str) -> None:
    check_recall(model, kv)
