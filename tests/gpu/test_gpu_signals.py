"""SIGINT and SIGTERM on a GPU: 130 and 143, and a prompt ends with the micro-batch that runs."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from signal_run import CODES, interrupted

BIG = {"n_layer": 6, "head_dim": 128, "n_head": 8, "n_head_kv": 8, "n_embd": 512, "n_ff": 2048, "n_ctx_train": 262144}


@pytest.mark.parametrize("number", CODES, ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("stage", ["load", "decode"])
def test_a_signal_at(tiny_model: Callable[..., Path], stage: str, number: signal.Signals) -> None:
    args = ["run", "-m", str(tiny_model(**BIG)), "-ngl", "all", "-n", "-1", "-c", "16k", "--kv", "turbo3"]
    status, seconds, text = interrupted([*args, "--k-center", "off", "-p", "hello"], stage, number)
    assert status == CODES[number] and seconds < 2.0  # closing a CUDA process takes its time
    assert b"Traceback" not in text


def test_a_prompt_ends_with_its_micro_batch(probe: Callable[..., str]) -> None:
    found = probe("""
        ids = [4 + (11 * i * i + 5 * i) % 500 for i in range(131072)]
        keywords = {"kv": "turbo3", "k_center": "off", "n_batch": len(ids), "n_ubatch": 512}
        with Model.open(path, n_gpu_layers="all") as model, model.context(len(ids), **keywords) as ctx:
            ctx.decode(ids[:2048])
            ctx.seqs.clear()
            began = time.monotonic()
            ctx.decode(ids)
            ctx.logits
            whole = time.monotonic() - began
            ctx.seqs.clear()
            sent = []
            def send():
                sent.append(time.monotonic())
                os.kill(os.getpid(), signal.SIGINT)
            threading.Timer(0.3 * whole, send).start()
            try:
                ctx.decode(ids)
            except (KeyboardInterrupt, errors.AbortedError):
                seconds = time.monotonic() - sent[0]
            else:
                raise SystemExit("it was not interrupted")
            held = ctx.seqs.range()[1] + 1
            assert 0 < held < len(ids) and held % 512 == 0, held
            # Later micro-batches attend to more, none takes more than a few times the mean; signals are looked for
            # every 50 ms.
            assert seconds < 0.25 + 8 * whole * 512 / len(ids), (seconds, whole, held)
            ctx.seqs.clear()
            ctx.decode(ids[:600])
            assert np.isfinite(ctx.logits).all()
        print("interrupted", whole > 0.1)
    """, **BIG)  # fmt: skip
    assert found == "interrupted True"
