"""One prompt twenty times: the same logits, bit for bit, for every type, in new contexts and in warm ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from gpu_runs import TYPES, context, load, on_gpu, prompt

from pyllama_turbo import Context


def fingerprint(ctx: Context, ids: list[int]) -> str:
    """Of every logit of a prefill, of 16 tokens one by one, and of two batches of four."""
    digest = hashlib.sha256()
    ctx.prefill(ids)
    digest.update(ctx.logits[0].tobytes())
    for token in range(5, 21):
        ctx.decode([token])
        digest.update(ctx.logits[0].tobytes())
    for first in (30, 40):
        ctx.decode([first, first + 1, first + 2, first + 3])
        digest.update(ctx.logits[0].tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("kv", TYPES)
def test_twenty_times_one_hash(tiny_model: Callable[..., Path], kv: str) -> None:
    with load(tiny_model(head_dim=128), gpu=True) as model:
        ids = prompt(model, 200)
        hashes = []
        for _ in range(10):
            with context(model, True, kv, 256) as ctx:
                assert all(on_gpu(ctx))
                hashes.append(fingerprint(ctx, ids))
                ctx.seqs.clear()
                hashes.append(fingerprint(ctx, ids))
        assert len(hashes) == 20 and len(set(hashes)) == 1
