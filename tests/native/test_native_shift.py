"""K-shift: keys moved to other positions inside a compressed cache mean what keys computed there would."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pyllama_turbo import Model, errors

KV = ["f16", "q8_0", "q4_0", "turbo2", "turbo3", "turbo4", "turbo2_tcq", "turbo3_tcq", "turbo4_tcq"]
N_DROPPED = 24


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """Relative difference of two vectors."""
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def last_logits(model: Model, kv: str, k_center: str, shifted: bool) -> np.ndarray:
    """Logits after tokens 24 to 71: computed at positions 0 on, or shifted there from 24 on."""
    tokens = [(11 * i * i + 5 * i + 2) % model.facts.n_vocab for i in range(72)]
    with model.context(n_ctx=256, kv=kv, k_center=k_center) as ctx:
        if not shifted:
            ctx.decode(tokens[N_DROPPED:])
            return ctx.logits[0].copy()
        assert ctx.facts.can_shift
        ctx.decode(tokens[:-1], outputs="none")
        ctx.seqs.remove(0, 0, N_DROPPED)
        ctx.seqs.shift(0, N_DROPPED, -1, -N_DROPPED)
        ctx.decode(tokens[-1:], pos=len(tokens) - 1 - N_DROPPED)
        return ctx.logits[0].copy()


@pytest.mark.parametrize("k_center", ["auto", "off"])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("kv", KV)
def test_shifted_keys_are_those_of_their_new_places(
    kv: str, head_dim: int, k_center: str, open_model: Callable[..., Model]
) -> None:
    # In one layer, keys and values depend on their own token and place alone, so both ways must agree.
    model = open_model(n_layer=1, head_dim=head_dim)
    reference = last_logits(model, "f16", "off", shifted=False)
    fresh = last_logits(model, kv, k_center, shifted=False)
    moved = last_logits(model, kv, k_center, shifted=True)
    quantised = difference(fresh, reference)
    # A shift decodes, rotates and encodes once more: about the error of two quantisations, with the luck of one token.
    assert difference(moved, reference) < 3.2 * quantised + 0.01, (kv, quantised)


def gap_logits(model: Model, kv: str) -> np.ndarray:
    """Logits of a last token after the second half of its past was moved 30 places away from the first."""
    tokens = [(11 * i * i + 5 * i + 2) % model.facts.n_vocab for i in range(48)]
    with model.context(n_ctx=256, kv=kv) as ctx:
        ctx.decode(tokens[:-1], outputs="none")
        ctx.seqs.shift(0, 24, -1, 30)
        ctx.decode(tokens[-1:], pos=len(tokens) - 1 + 30)
        return ctx.logits[0].copy()


@pytest.mark.parametrize("kv", ["q8_0", "turbo4", "turbo4_tcq"])
def test_a_shift_changes_distances_as_in_f16(kv: str, open_model: Callable[..., Model]) -> None:
    model = open_model(n_layer=1, head_dim=128)
    with model.context(n_ctx=256) as ctx:
        ctx.decode([(11 * i * i + 5 * i + 2) % model.facts.n_vocab for i in range(48)])
        together = ctx.logits[0].copy()
    apart = gap_logits(model, "f16")
    assert difference(apart, together) > 0.2
    assert difference(gap_logits(model, kv), apart) < 0.5 * difference(apart, together)


def test_a_cache_part_without_layers_is_not_shifted(open_model: Callable[..., Model]) -> None:
    # One layer, with a sliding window: the full-context part of the cache is empty, and shifting it would abort.
    model = open_model(arch="gemma3", n_layer=1, head_dim=128)
    with model.context(n_ctx=256, kv="turbo3") as ctx:
        ctx.decode([1, 2, 3, 4])
        assert not ctx.facts.can_shift
        with pytest.raises(errors.UnsupportedError):
            ctx.seqs.shift(0, 0, -1, 1)
