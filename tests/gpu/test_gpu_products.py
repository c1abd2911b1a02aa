"""What a decode step joins in one launch: products with what stands around them, queries and keys as they are turned.

Every weight type and kind of layer. One process a setting decodes a few tokens one by one with each model, and short
batches of two to eight; what the two settings and the CPU say is compared.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gpu_runs import difference

from pyllama_turbo import _native

# llama.cpp's file types (llama.h, llama_ftype) by the type most of their matrices have.
FILE_TYPES = {
    "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q2_K": 10, "q3_K": 12, "q4_K": 15, "q5_K": 17, "q6_K": 18,
    "iq4_nl": 25, "iq4_xs": 30, "mxfp4": 38,
}  # fmt: skip
MODELS: dict[str, dict[str, object]] = {
    "dense": {"arch": "llama", "n_embd": 512, "n_ff": 768},
    "biased": {"arch": "qwen2", "n_head": 8, "n_head_kv": 2, "n_ff": 512},
    "post norm": {"arch": "gemma3", "n_embd": 256, "n_ff": 512},
    "experts": {"arch": "qwen3moe", "n_embd": 256, "n_ff": 256, "n_expert": 8},
    "expert biases": {"arch": "gpt-oss", "n_embd": 256, "n_ff": 256, "n_expert": 4},
}
SCALED = "expert scales"  # gemma4's experts, each of whose products has a factor: a small model of real shape
# Model, weights, cache: llama.cpp turns and writes f16 keys itself, others are turned together with the queries.
CASES = [(model, kind, "f16") for model in ("dense", "experts") for kind in FILE_TYPES]
CASES += [(model, kind, "f16") for model in MODELS if model not in ("dense", "experts") for kind in ("q4_0", "q6_K")]
CASES += [(model, "q8_0", "q8_0") for model in MODELS] + [(SCALED, "q4_0", kv) for kv in ("f16", "q8_0")]

PROGRAM = """
import json, sys
import numpy as np
from pyllama_turbo import Model
from pyllama_turbo.profile.cupti import Recorder
cases, out, gpu = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3] == "gpu"
kernels = ("vector_products", "float_products", "expert_mix", "rope_together", "quantize_q8_1", "rms_norm",
           "batch_products", "float_batch", "mul_mat_vec")
tokens = [1, 5, 9, 2, 77, 31, 400, 8]
found, counts = {}, {}
recorder = Recorder.shared() if gpu else None
for name, (path, kv) in cases.items():
    with Model.open(path, n_gpu_layers="all" if gpu else 0) as model:
        if gpu:
            recorder.start()
        with model.context(
            n_ctx=64, kv=kv, offload_kqv=gpu, op_offload=gpu, n_threads=2, logits_all=True
        ) as ctx:
            rows = []
            for pos, token in enumerate(tokens):
                ctx.decode([token], pos=pos)
                rows.append(ctx.logits[0].copy())
            pos = len(tokens)
            for n in (2, 3, 4, 5, 8):
                ctx.decode(tokens[:n], pos=pos, outputs="all")
                rows += list(ctx.logits.copy())
                pos += n
            found[name] = np.stack(rows)
        names = [event.name for event in recorder.stop()] if gpu else []
        counts[name] = {kernel: sum(kernel in name for name in names) for kernel in kernels}
np.savez(out, **found)
print(json.dumps(counts))
"""
Results = dict[str, tuple[dict[str, np.ndarray], dict[str, dict[str, int]]]]


class _QuantizeParams(ctypes.Structure):
    """Threads and file type of llama_model_quantize_params; what is behind them keeps its defaults."""

    _fields_ = (("n_threads", ctypes.c_int32), ("file_type", ctypes.c_int32), ("rest", ctypes.c_byte * 248))


def quantize(source: Path, target: Path, kind: str) -> None:
    """Write `source` with its matrices in another type, as llama.cpp's quantize tool does."""
    library = ctypes.CDLL(str(_native.load_report().path))
    library.llama_model_quantize_default_params.restype = _QuantizeParams
    params = library.llama_model_quantize_default_params()
    params.n_threads, params.file_type = 2, FILE_TYPES[kind]
    code = library.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params))
    assert code == 0, (source, kind)


@pytest.fixture(scope="module")
def results(tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Logits and kernel counts of all cases by setting: "joined", "apart" and "cpu"."""
    folder = tmp_path_factory.mktemp("products")
    cases = {}
    for model, kind, kv in CASES:
        path = folder / f"{model.replace(' ', '_')}-{kind}.gguf"
        if model == SCALED and not path.exists():
            script = Path(__file__).parents[2] / "scripts" / "make_model.py"
            command = [sys.executable, str(script), str(path), "--shape", "gemma4-26b-a4b", "--tiny"]
            subprocess.run(command, check=True, capture_output=True)
        if not path.exists():
            quantize(tiny_model(weight_type="f32", seed=3, **MODELS[model]), path, kind)
        cases[f"{model} {kind} {kv}"] = (str(path), kv)
    found = {}
    for setting, device, switch in (("joined", "gpu", "1"), ("apart", "gpu", "0"), ("cpu", "cpu", "1")):
        out = folder / f"{setting}.npz"
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps(cases), str(out), device],
            env={**os.environ, "TURBO_FUSED_PRODUCTS": switch}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        with np.load(out) as arrays:
            found[setting] = ({name: arrays[name] for name in arrays.files}, json.loads(done.stdout.splitlines()[-1]))
    return found


@pytest.mark.parametrize(("model", "kind", "kv"), CASES)
def test_joined_gives_the_logits(model: str, kind: str, kv: str, results: Results) -> None:
    name = f"{model} {kind} {kv}"
    joined, apart, cpu = (results[setting][0][name] for setting in ("joined", "apart", "cpu"))
    assert np.isfinite(joined).all()
    # Vectors are quantised alike, but what is rounded last differs, and a last bit may tip a code of the next vector
    # or key; the CPU rounds vectors in blocks of its own.
    assert difference(joined, apart) < 0.05, name
    noise = difference(apart, cpu)
    assert difference(joined, cpu) < 1.3 * noise + 0.01, (name, noise)


@pytest.mark.parametrize(("model", "kind", "kv"), CASES)
def test_it_is_joined(model: str, kind: str, kv: str, results: Results) -> None:
    counts, before = (results[setting][1][f"{model} {kind} {kv}"] for setting in ("joined", "apart"))
    ours = ("vector_products", "float_products", "expert_mix", "rope_together", "batch_products", "float_batch")
    assert all(before[kernel] == 0 for kernel in ours)
    assert counts["vector_products"] > 0
    assert counts["batch_products"] > 0
    assert counts["rms_norm"] + counts["quantize_q8_1"] < before["rms_norm"] + before["quantize_q8_1"]
    # gemma4's f16 keys are turned with the queries, too: other nodes stand between that and their being written
    assert (counts["rope_together"] > 0) == (kv != "f16" or model == SCALED)
    if model in ("dense", "post norm", "experts") and kind in ("q4_0", "q8_0"):
        assert counts["mul_mat_vec"] == 0  # nothing is left to llama.cpp's own, nor computed by both
    if model == SCALED:
        assert counts["expert_mix"] > 0
    if model == "experts":
        assert counts["expert_mix"] >= 13 * 2  # of each of 13 batches, one a layer
        assert counts["float_products"] > 0
        assert counts["float_batch"] > 0
