"""Hyperparameters that llama.cpp asserts on are refused first, with the number, its key and what would do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyllama_turbo.errors import GGUFError
from pyllama_turbo.gguf import GGUFFile
from pyllama_turbo.hparams import check_hyperparameters

PLAIN = {
    ".block_count": 4,
    ".embedding_length": 512,
    ".attention.head_count": 8,
    ".attention.head_count_kv": 2,
    ".attention.layer_norm_rms_epsilon": 1e-5,
}
MOE = {**PLAIN, ".expert_count": 8, ".expert_used_count": 2}


def header(arch: str, **changes: Any) -> GGUFFile:
    keys = {arch + key: value for key, value in changes.items()}
    return GGUFFile(Path("x.gguf"), 0, 3, 32, 0, {"general.architecture": arch, **keys}, {})


SHARED = {
    **PLAIN,
    ".attention.sliding_window": 64,
    ".attention.sliding_window_pattern": (True, False, True, False),
    ".attention.shared_kv_layers": 2,
}

GOOD = [
    ("qwen2", PLAIN),
    ("qwen3", {**PLAIN, ".attention.key_length": 128, ".attention.value_length": 128}),
    ("qwen3moe", MOE),
    ("stablelm", {**PLAIN, ".rope.dimension_count": 16}),
    ("deepseek2", {**PLAIN, ".attention.key_length": 192, ".attention.value_length": 128}),
    ("granitehybrid", {**PLAIN, ".attention.head_count": (0, 8, 0, 8), ".attention.head_count_kv": (0, 2, 0, 2)}),
    ("mamba", {**PLAIN, ".attention.head_count": 0, ".attention.head_count_kv": 0}),
    ("llama4", {**MOE, ".expert_group_count": 4, ".expert_group_used_count": 2}),
    ("qwen2", {**PLAIN, ".rope.scaling.type": "yarn"}),
    ("hunyuan-dense", {**PLAIN, ".expert_count": 1, ".expert_used_count": 1}),
    ("lfm2", {**PLAIN, ".shortconv.l_cache": 3}),
    ("phi3", {**PLAIN, ".pooling_type": 3}),
    ("gemma4", SHARED),
]
BAD = [
    ("qwen2", PLAIN, ".rope.dimension_count", 32),
    ("qwen3", PLAIN, ".rope.dimension_count", 32),
    ("qwen3moe", MOE, ".rope.dimension_count", 128),
    ("llama", PLAIN, ".attention.value_length", 32),
    ("phi3", PLAIN, ".attention.value_length", 128),
    ("gpt-oss", PLAIN, ".attention.value_length", 128),
    ("stablelm", {**PLAIN, ".attention.key_length": 64, ".attention.value_length": 64}, ".attention.head_count", 4),
    ("gemma2", PLAIN, ".rope.dimension_count", 0),
    ("gemma2", PLAIN, ".rope.dimension_count", 33),
    ("gemma2", PLAIN, ".rope.dimension_count", 66),
    ("gemma4", PLAIN, ".rope.dimension_count_swa", 7),
    ("llama", PLAIN, ".attention.head_count_kv", 3),
    ("llama", PLAIN, ".block_count", 513),
    ("llama", PLAIN, ".block_count", 0),
    ("deepseek2", PLAIN, ".nextn_predict_layers", 5),
    ("llama", PLAIN, ".nextn_predict_layers", -1),
    ("llama", PLAIN, ".expert_used_count", 2),
    ("llama", PLAIN, ".expert_group_count", 1),
    ("llama", PLAIN, ".expert_count", 2000),
    ("qwen3moe", MOE, ".expert_used_count", 0),
    ("qwen3moe", MOE, ".expert_used_count", 9),
    ("qwen3moe", MOE, ".expert_used_count", (2, 2, 2, 9)),
    ("qwen3moe", MOE, ".expert_group_count", 8),
    ("qwen3moe", MOE, ".expert_group_count", 3),
    ("qwen3moe", {**MOE, ".expert_group_count": 4}, ".expert_group_used_count", 4),
    ("qwen3moe", MOE, ".expert_gating_func", 9),
    ("qwen2", PLAIN, ".rope.scaling.type", "nonsense"),
    ("qwen2", PLAIN, ".attention.layer_norm_rms_epsilon", float("nan")),
    ("qwen2", PLAIN, ".attention.layer_norm_rms_epsilon", -1e-5),
    ("bert", PLAIN, ".pooling_type", 7),
    ("lfm2", PLAIN, ".shortconv.l_cache", 1),
    ("gemma4", SHARED, ".attention.shared_kv_layers", 1),
    ("gemma4", SHARED, ".attention.shared_kv_layers", 3),
    ("gemma4", SHARED, ".attention.shared_kv_layers", 9),
    ("gemma4", {**SHARED, ".attention.key_length_swa": 32}, ".rope.dimension_count_swa", 64),
]


@pytest.mark.parametrize(("arch", "keys"), GOOD)
def test_what_runs_passes(arch: str, keys: dict[str, Any]) -> None:
    check_hyperparameters(header(arch, **keys))


@pytest.mark.parametrize(("arch", "keys", "key", "value"), BAD)
def test_what_aborts_is_refused_by_name(arch: str, keys: dict[str, Any], key: str, value: Any) -> None:
    with pytest.raises(GGUFError) as caught:
        check_hyperparameters(header(arch, **{**keys, key: value}))
    assert f"{arch}{key}" in str(caught.value)
