"""Write tiny random LoRA adapters for the models of make_model.py, for tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))  # the sibling modules, also when loaded by path

from gguf_writer import GGUFWriter  # noqa: E402


def write_lora(
    path: str | os.PathLike[str],
    tensors: Mapping[str, tuple[int, int]],
    *,
    arch: str = "llama",
    rank: int = 2,
    alpha: float = 4.0,
    gain: float = 1.0,
    seed: int = 0,
    general_type: str = "adapter",
) -> Path:
    """Write an adapter that adds a random matrix of `rank` to each tensor, and return its path.

    Args:
        path: the file to write.
        tensors: name of a model's matrix (with ".weight") -> its inputs and outputs.
        arch: architecture of the model it is for.
        rank, alpha: the product of the two factors is scaled by alpha / rank.
        gain: size of the change, relative to a matrix that keeps unit variance.
        seed: of the random numbers.
        general_type: what the file says it is.
    """
    rng = np.random.default_rng(seed)
    writer = GGUFWriter(path, arch)
    writer.set("general.type", general_type)
    writer.set("adapter.type", "lora")
    writer.set("adapter.lora.alpha", float(alpha))
    for name, (n_in, n_out) in tensors.items():
        a = rng.standard_normal((rank, n_in), dtype=np.float32) * np.float32(gain / n_in**0.5)
        b = rng.standard_normal((n_out, rank), dtype=np.float32)
        writer.add(f"{name}.lora_a", a)
        writer.add(f"{name}.lora_b", b)
    return writer.write()
