"""The GPU measuring scripts, tried on the CPU with small models of the real shapes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import gpu_common
import gpu_lab
import pytest

SCRIPTS = Path(gpu_lab.__file__).parent
SMALL = [
    *("--tiny", "--gpu-layers", "0", "--depths", "0,64", "--n-gen", "2", "--prompt", "16", "--repeats", "2"),
    *("--batch-repeats", "2", "--steps", "2", "--greedy", "3", "--prompts", "2", "--kv", "f16,turbo3"),
]


def run(script: str, folder: Path, *arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, str(SCRIPTS / script), *SMALL, "--work", str(folder), "--out", str(folder), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return done.returncode, done.stdout, done.stderr


def records(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("lab")
    code, out, err = run("gpu_bench.py", folder, "--shape", "gemma4-26b-a4b", "--cells", "0,3")
    assert code == 0, err
    return folder, out


def test_every_table_is_measured(measured: tuple[Path, str]) -> None:
    folder, out = measured
    found = records(folder / "lab-gemma4-26b-a4b.jsonl")
    assert [r["kind"] for r in found][:2] == ["gpu", "provenance"] and found[-1]["when"] == "after"
    assert "gpu_bench.py --tiny" in str(found[1]["command"])
    bench = {(r["n_prompt"], r["n_gen"], r["n_depth"]) for r in found if r["kind"] == "bench"}
    assert bench == {(0, 2, 0), (0, 2, 64), (4, 0, 64), (8, 0, 64), (16, 0, 64)}
    profiles = [(r["label"], r["depth"]) for r in found if r["kind"] == "profile"]
    assert profiles == [("f16", 0), ("f16", 64), ("turbo3", 0), ("turbo3", 64)]
    assert sum(r["kind"] == "launches" for r in found) == 4 + 2
    greedy = [r["tokens"] for r in found if r["kind"] == "greedy" and r["type_k"] == "f16"]
    assert len(greedy) == 2 and greedy[0] == greedy[1]
    assert "What a decode step is made of" in out and "short batches" in out and "6 merged" in out
    assert not (folder / "gemma4-26b-a4b-tiny.gguf").exists()


def test_speed_goes_through_the_public_command(measured: tuple[Path, str]) -> None:
    found = records(measured[0] / "gpu-gemma4-26b-a4b.jsonl")
    rows = [r for r in found if r["kind"] == "bench"]
    assert {r["type_k"] for r in rows} == {"f16", "turbo3", "turbo3_tcq", "q8_0"} and len(rows) == 8
    assert all(r["status"] == "ok" and r["digest"] for r in rows)


def test_separate_experts_are_told_from_merged_ones(tmp_path: Path) -> None:
    code, out, err = run("gpu_lab.py", tmp_path, "--shape", "qwen3moe-30b-a3b", "--cells", "0")
    assert code == 0, err
    launches = [r for r in records(tmp_path / "lab-qwen3moe-30b-a3b.jsonl") if r["kind"] == "launches"]
    experts = launches[0]["experts"]
    assert isinstance(experts, dict) and experts["separate"] == 2 and experts["merged"] == 0
    assert experts["calls_step"] == 6 and experts["fired"] == 0  # nothing is fused on the CPU
    assert "0 of 2" in out


def test_no_time_and_failures_exit_with_one(tmp_path: Path) -> None:
    code, _, err = run("gpu_lab.py", tmp_path, "--shape", "qwen3moe-30b-a3b", "--budget", "0")
    assert code == 1 and "the budget of 0 s was spent" in err
    assert all(r["status"] == "skipped" for r in records(tmp_path / "lab-qwen3moe-30b-a3b.jsonl") if "status" in r)
    code, _, err = run("gpu_lab.py", tmp_path, "--shape", "qwen3moe-30b-a3b", "--kv", "f16,nonsense", "--cells", "1")
    assert code == 1 and "unknown KV cache type" in err


def test_a_broken_cell_leaves_a_record(tmp_path: Path) -> None:
    broken = tmp_path / "m.gguf"
    broken.write_bytes(b"GGUF")
    code, _, err = run("gpu_lab.py", tmp_path, "--shape", "x", "--model", str(broken), "--cells", "0,4")
    failed = [r for r in records(tmp_path / "lab-x.jsonl") if r["kind"] == "cell"]
    assert code == 1 and len(failed) == 2 and "process ended with" in str(failed[0]["reason"])
    assert "FAILED x: " in err and broken.exists()


def test_budget_and_results(tmp_path: Path) -> None:
    budget = gpu_common.Budget(10.0)
    assert 9 < budget.left <= 10 and budget.spent < 1
    results = gpu_common.Results(tmp_path / "r.jsonl")
    results.add({"kind": "bench", "status": "ok"})
    results.add({"kind": "bench", "type_k": "a", "type_v": "b", "status": "failed", "reason": "no room"})
    results.skip("profile", "f16", "late")
    assert results.failed == ["bench a/b: no room", "profile f16: late"] and len(results.records()) == 3
    assert gpu_common.Results(tmp_path / "r.jsonl", fresh=True).path.exists() is False


def test_gpu_facts_say_when(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(*args: object, **kw: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 0, ", ".join(str(i) for i in range(len(gpu_common._FIELDS))) + "\n")

    monkeypatch.setattr(subprocess, "run", answer)
    assert gpu_common.gpu_facts("before")["driver_version"] == "1"
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: (_ for _ in ()).throw(FileNotFoundError("nvidia-smi")))
    assert gpu_common.gpu_facts("after") == {"kind": "gpu", "when": "after"}
