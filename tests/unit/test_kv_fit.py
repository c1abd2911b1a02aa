"""Which types fit a model, told from its header."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_native import fake_shape

from pyllama_turbo import kv_fit
from pyllama_turbo.errors import UnsupportedError
from pyllama_turbo.kv import find
from pyllama_turbo.shape import LayerKV

LATENT = replace(fake_shape(), mla=True, layers=(LayerKV(0, 1, 576, 0, 0),))


@pytest.mark.usefixtures("lib")
def test_latent_attention_is_refused_with_the_reason() -> None:
    assert "MLA" in kv_fit.fit(LATENT, find("turbo3")).reason
    with pytest.raises(UnsupportedError, match=r"latent \(MLA\).*types that fit: f16"):
        kv_fit.plan(LATENT, "turbo3", "f16")


@pytest.mark.usefixtures("lib")
def test_a_model_without_cache_is_refused_with_the_reason() -> None:
    with pytest.raises(UnsupportedError, match="no KV cache"):
        kv_fit.plan(replace(fake_shape(), layers=()), "turbo3", "turbo3")
