"""The lab on a GPU: kernels through CUPTI, CUDA graph launches and the fused up+gate of experts, counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, sys
from pyllama_turbo import Model
from pyllama_turbo.profile.capture import capture
from pyllama_turbo.quality.identity import PROMPTS, greedy
with Model.open(sys.argv[1], n_gpu_layers="all") as model:
    with model.context(256, kv=sys.argv[2], k_center="off") as context:
        tokens = [run.tokens for run in greedy(context, PROMPTS[:2], 24)]
    found = capture(model, depth=300, steps=4, kv=sys.argv[2], fill_mode="synthetic", k_center="off")
    again = capture(model, depth=300, steps=4, kv=sys.argv[2], fill_mode="synthetic", k_center="off")
print(json.dumps({"tokens": tokens, "again": again.launches.record(), **found.record()}))
"""


@pytest.fixture(scope="session")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small models with the experts and heads of the real ones: separate up and gate (qwen3moe), merged (gemma4)."""
    folder = tmp_path_factory.mktemp("shapes")
    found = {}
    for name in ("qwen3moe-30b-a3b", "gemma4-26b-a4b"):
        found[name.split("-")[0]] = folder / f"{name}.gguf"
        script = ROOT / "scripts" / "make_model.py"
        command = [sys.executable, str(script), str(folder / f"{name}.gguf"), "--shape", name, "--tiny"]
        subprocess.run(command, check=True, capture_output=True)
    return found


def measure(path: Path, kv: str, **switches: str) -> dict[str, Any]:
    """A profile and greedy tokens from a process of its own: the library reads its switches once."""
    names = ("GGML_CUDA_DISABLE_GRAPHS", "GGML_CUDA_DISABLE_FUSION", "TURBO_FUSED_UP_GATE")
    environment = {k: v for k, v in os.environ.items() if k not in names} | switches
    command = [sys.executable, "-c", PROGRAM, str(path), kv]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize("kv", ["f16", "q8_0", "turbo3", "turbo3_tcq"])
def test_a_step_is_one_graph_launch_and_graphs_change_no_token(shapes: dict[str, Path], kv: str) -> None:
    on = measure(shapes["qwen3moe"], kv)
    off = measure(shapes["qwen3moe"], kv, GGML_CUDA_DISABLE_GRAPHS="1")
    assert on["method"] == "cupti" and on["peak_gb_s"] > 100
    assert on["launches"]["graph_launches"] >= 1 and off["launches"]["graph_launches"] == 0
    assert on["launches"]["graph_kernels"] > 0.9 * on["launches"]["kernels"]
    assert off["launches"]["alone"] == off["launches"]["kernels"]
    assert on["launches"]["kernels"] == pytest.approx(off["launches"]["kernels"], rel=0.02)
    assert on["again"] == on["launches"]  # a second profile in one process counts the same
    assert on["tokens"] == off["tokens"]


def test_phases_cover_the_step(shapes: dict[str, Path]) -> None:
    for path in shapes.values():
        found = measure(path, "turbo3")
        rows = {row["phase"]: row for row in found["phases"]}
        assert {"experts", "kv_read", "kv_write", "elementwise", "gap"} <= rows.keys() and "rotate" not in rows
        # Kernels may overlap, so phases can add up to more than the step; busy time and gaps are the step.
        assert sum(row["share"] for row in rows.values()) > 0.97
        assert found["busy_us"] + rows["gap"]["us_step"] == pytest.approx(found["step_us"], rel=0.01)
        assert "other" not in rows or rows["other"]["share"] < 0.05
        assert rows["kv_read"]["calls_step"] > 0 and rows["kv_write"]["calls_step"] > 0


def test_up_and_gate_are_one_kernel_where_they_are_separate(shapes: dict[str, Path]) -> None:
    for kv in ("f16", "turbo3_tcq"):
        on = measure(shapes["qwen3moe"], kv)
        off = measure(shapes["qwen3moe"], kv, TURBO_FUSED_UP_GATE="0")
        assert on["experts"]["separate"] == 2 and on["experts"]["merged"] == 0
        # upstream fuses where the shapes suit its kernel; the switch turns it off everywhere
        assert on["experts"]["fired"] in (0, 2) and off["experts"]["fired"] == 0
        assert on["experts"]["calls_step"] == 6 - on["experts"]["fired"] and off["experts"]["calls_step"] == 6
        assert on["experts"]["batched"] == 2  # all experts of a token in one launch
        assert on["tokens"] == off["tokens"]


def test_merged_up_and_gate_leave_nothing_to_fuse(shapes: dict[str, Path]) -> None:
    on = measure(shapes["gemma4"], "turbo3")
    off = measure(shapes["gemma4"], "turbo3", TURBO_FUSED_UP_GATE="0")
    assert on["experts"]["merged"] == 6 and on["experts"]["separate"] == 0
    assert on["experts"]["fired"] == off["experts"]["fired"] == 0
    assert on["launches"] == off["launches"] and on["tokens"] == off["tokens"]


def test_the_commands_print_counts(shapes: dict[str, Path]) -> None:
    for command in ("profile", "levers"):
        arguments = [command, "-m", str(shapes["qwen3moe"]), "-ngl", "all", "-kv", "turbo3", "-n", "4"]
        done = subprocess.run(
            [sys.executable, "-m", "pyllama_turbo", *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "launches of CUDA graphs" in done.stdout and "of 2 layers" in done.stdout
