"""The native hooks of the measuring commands: a cache filled without a prompt, and times of single operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pyllama_turbo import Model
from pyllama_turbo.bench.fill import fill
from pyllama_turbo.errors import OptionError, UnsupportedError
from pyllama_turbo.profile.capture import capture

CONTEXT: dict[str, Any] = {"n_threads": 1, "calibrate": False, "k_center": "off"}


@pytest.mark.parametrize("kv", ["f16", "q8_0", "turbo3", "turbo2_tcq", "q8_0/turbo4_tcq"])
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_a_filled_cache_can_be_decoded_and_cut(open_model: Callable[..., Model], arch: str, kv: str) -> None:
    model = open_model(arch=arch)
    with model.context(600, kv=kv, **CONTEXT) as context:
        assert fill(context, 500, "synthetic") == "synthetic"
        assert context.seqs.range(0)[1] == 499
        context.decode_one(1, 500)
        after_fill = context.logits.copy()
        assert after_fill.std() > 0
        context.seqs.remove(0, 500)
        context.decode([5, 6, 7], pos=500)
        assert context.seqs.range(0)[1] == 502
        context.seqs.clear()
        context.decode_one(1, 0)  # an empty cache says something else
        assert abs(context.logits - after_fill).max() > 1e-3


def test_fill_refuses_what_it_cannot(tiny: Model) -> None:
    with tiny.context(256, **CONTEXT) as context, pytest.raises(OptionError, match="256"):
        fill(context, 300, "synthetic")
    with tiny.context(512, n_seq_max=2, **CONTEXT) as context, pytest.raises(UnsupportedError, match="one sequence"):
        fill(context, 10, "synthetic")


def test_recording_goes_on_when_the_graph_changes(tiny: Model) -> None:
    # The cache grows past 256 cells within these steps: a new graph is built.
    found = capture(tiny, depth=243, steps=8, kv="f16", **CONTEXT)
    per_step = {row.phase: row.calls_step for row in found.profile.phases}
    assert per_step["kv_read"] == 2 and per_step["rope"] == 4


def test_operations_of_a_step(tiny: Model) -> None:
    found = capture(tiny, depth=64, steps=3, kv="turbo3", **CONTEXT)
    phases = {row.phase: row for row in found.profile.phases}
    assert found.method == "operations" and found.effective == "turbo3_64/turbo3_64"
    assert {"experts", "matmul", "kv_read", "kv_write", "rope", "elementwise", "rows"} <= phases.keys()
    assert phases["kv_read"].calls_step == 2 and phases["kv_write"].calls_step == 4  # two layers
    assert 0.5 < sum(row.share for row in found.profile.phases) < 1.01
    assert all(event.end_ns >= event.start_ns for event in found.events)
    # the hook is gone afterwards: a context of the model decodes as before
    with tiny.context(64, **CONTEXT) as context:
        context.decode([1, 2, 3])
