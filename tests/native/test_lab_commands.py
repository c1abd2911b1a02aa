"""The measuring commands as a user runs them: against llama-bench, interrupted and resumed, as JSON and as text."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pyllama_turbo import Model
from pyllama_turbo.bench.cases import Case, Test
from pyllama_turbo.bench.runner import BenchOptions
from pyllama_turbo.bench.upstream import against_llama_bench, llama_bench_command, llama_bench_samples
from pyllama_turbo.cli import main
from pyllama_turbo.errors import TurboError
from pyllama_turbo.report.records import read_records

ONE = ("-t", "1", "--no-calibrate")
CONTEXT: dict[str, Any] = {"calibrate": False, "k_center": "off"}


def command(capfd: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    capfd.readouterr()
    code = main([str(arg) for arg in args])
    out, err = capfd.readouterr()
    return code, out, err


def program(folder: Path, ns: int, code: int = 0) -> Path:
    """A stand-in for llama-bench that took `ns` for its sample."""
    path = folder / "llama-bench"
    line = json.dumps({"n_prompt": 0, "n_gen": 4, "samples_ns": [ns]})
    path.write_text(f"#!/bin/sh\necho '{line}'\necho failed for a reason >&2\nexit {code}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_llama_bench_gets_the_same_case() -> None:
    case = Case(Test(0, 32), 64, ("q8_0", "turbo3"), 128, 64, 3, "on")
    called = llama_bench_command(Path("/x/llama-bench"), Path("m.gguf"), case, 3, 0)
    options = dict(zip(called[1::2], called[2::2], strict=True))
    assert called[0] == "/x/llama-bench" and options["-r"] == "1" and options["-o"] == "jsonl"
    wanted = {"-p": "0", "-n": "32", "-d": "64", "-ctk": "q8_0", "-ctv": "turbo3", "-t": "3", "-fa": "1", "-ub": "64"}
    assert wanted.items() <= options.items()
    both = llama_bench_command(Path("b"), Path("m"), Case(Test(8, 4), 0, ("f16", "f16")), 1, 0)
    assert both[both.index("-pg") + 1] == "8,4" and both[both.index("-p") + 1] == both[both.index("-n") + 1] == "0"
    assert llama_bench_samples('noise\n{"samples_ns": [5, 6]}\n') == [5, 6]
    with pytest.raises(TurboError, match="no samples"):
        llama_bench_samples("nothing")


def test_rounds_alternate_and_the_ratio_is_ours_over_theirs(tiny: Model) -> None:
    order: list[str] = []

    def run(arguments: Any) -> str:
        order.append("theirs")
        return '{"samples_ns": [1000000000]}'

    case = Case(Test(0, 2), 0, ("f16", "f16"), n_threads=1)
    done = against_llama_bench(tiny, case, Path("x"), BenchOptions(3, context=CONTEXT), run)
    assert len(done.ours) == len(done.theirs) == len(order) == 3
    assert done.ratio.median == pytest.approx(sorted(1e9 / ns for ns in done.ours)[1])
    assert not done.agrees and done.rates[1] == pytest.approx(2.0)
    assert done.record()["test"] == "tg2" and done.record()["kind"] == "agreement"


def test_bench_command_compares_with_llama_bench(
    tiny: Model, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    base = ("bench", "-m", tiny.path, "-p", 0, "-n", 4, "-r", 2, *ONE, "--llama-bench")
    code, text, _ = command(capfd, *base, program(tmp_path, 10**12))
    assert code == 1 and "LLAMA-BENCH" in text and text.rstrip().endswith("NO")
    code, text, _ = command(capfd, *base, program(tmp_path, 10**12), "--json", "--out", tmp_path / "r.jsonl")
    assert json.loads(text)[0]["agrees"] is False
    assert [r["kind"] for r in read_records([tmp_path / "r.jsonl"])] == ["provenance", "agreement"]
    code, _, err = command(capfd, *base, program(tmp_path, 1, code=3))
    assert code == 1 and "ended with 3: failed for a reason" in err


def test_switches_as_json(tiny: Model, capfd: pytest.CaptureFixture[str]) -> None:
    base = ("bench", "-m", tiny.path, "-p", 0, "-n", 2, "-r", 1, *ONE, "--switches", "up_gate", "--json")
    code, text, _ = command(capfd, *base)
    cells = json.loads(text)
    assert code == 0 and [cell["state"] for cell in cells] == [{"up_gate": False}, {"up_gate": True}]
    assert cells[0]["rows"][0]["environment"] == {"TURBO_FUSED_UP_GATE": "0"} and cells[1]["median_ts"] > 0


def test_profile_and_levers_count_what_ran(tmp_path: Path, open_model: Any, capfd: pytest.CaptureFixture[str]) -> None:
    model = open_model(arch="qwen3moe", n_expert=8)
    base = ("-m", model.path, "-kv", "turbo3", "-n", 2, *ONE)
    code, text, _ = command(capfd, "profile", *base, "--trace", tmp_path / "t.json")
    assert code == 0 and "up and gate are separate and ran as one in 0 of 2 layers" in text
    assert "norm and elementwise:" in text and json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    code, text, _ = command(capfd, "profile", *base, "--against", "f16", "--json", "--out", tmp_path / "r.jsonl")
    a, b = json.loads(text)
    assert (a["label"], b["label"]) == ("turbo3", "f16") and a["experts"]["calls_step"] == 6
    assert a["launches"]["kernels"] > 50 and [r["kind"] for r in read_records([tmp_path / "r.jsonl"])][1] == "profile"
    code, text, _ = command(capfd, "profile", *base, "--before", tmp_path / "r.jsonl")
    assert code == 0 and "A = f16 of library" in text and "B = turbo3 now" in text and "step" in text.splitlines()[-1]
    (tmp_path / "none.jsonl").write_text('{"kind": "bench"}\n')
    assert command(capfd, "profile", *base, "--before", tmp_path / "none.jsonl")[0] == 2
    code, text, _ = command(capfd, "levers", *base)
    assert code == 0 and "L7" in text and "no kernel of its own" in text and "expert matmul: 6 calls" in text
    code, text, _ = command(capfd, "levers", *base, "--json")
    data = json.loads(text)
    assert data["experts"]["separate"] == 2 and {"L3", "L4", "L5", "L6"} <= {x["ids"] for x in data["levers"]}


def test_report_prints_tables(tiny: Model, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, text, _ = command(capfd, "report", "-m", tiny.path)
    assert code == 0 and "| f16 | 16.000 |" in text
    code, text, _ = command(capfd, "report", "-m", tiny.path, "--json", "--out", tmp_path / "m.jsonl")
    assert code == 0 and json.loads(text)[0]["headers"][0] == "K/V"
    assert read_records([tmp_path / "m.jsonl"])[-1]["kind"] == "memory"
    assert command(capfd, "report")[0] == 2


def test_kld_is_interrupted_with_130_and_goes_on(tiny: Model, tmp_path: Path) -> None:
    arguments = ["kld", "-m", str(tiny.path), "-c", "128", "--chunks", "40", "-kv", "turbo3", "--no-floor", *ONE]
    arguments += ["--path", "decode", "--json", "--out"]
    environment = {**os.environ, "PYLLAMA_TURBO_CACHE": str(tmp_path), "OMP_WAIT_POLICY": "passive"}
    python = [sys.executable, "-m", "pyllama_turbo", *arguments]
    process = subprocess.Popen([*python, str(tmp_path / "r.jsonl")], env=environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "lab").glob("*.npz")):  # the pair is being scored
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    left = sorted(path.name.split(".", 1)[1] for path in (tmp_path / "lab").iterdir())
    assert any(name.endswith(".npz") for name in left) and any(name.endswith("base") for name in left)
    assert [r["kind"] for r in read_records([tmp_path / "r.jsonl"])] == ["provenance"]
    resumed = subprocess.run([*python, str(tmp_path / "r.jsonl")], env=environment, capture_output=True, check=True)
    whole = subprocess.run([*python, str(tmp_path / "w.jsonl")], env=environment, capture_output=True, check=True)
    (a,), (b,) = json.loads(resumed.stdout), json.loads(whole.stdout)
    assert a["n_tokens"] == b["n_tokens"] == 40 * 63 and a["kld_mean"] == pytest.approx(b["kld_mean"], rel=1e-9)
    assert a["kld_percentiles"] == b["kld_percentiles"] and list((tmp_path / "lab").iterdir()) == []


def test_identity_between_cpu_settings_shows_the_gap(tiny: Model, capfd: pytest.CaptureFixture[str]) -> None:
    base = ("identity", "-m", tiny.path, "-n", 8, "-a", "kv=f16,n_threads=1,k_center=off")
    code, text, _ = command(capfd, *base, "-b", "kv=turbo2,n_threads=1,k_center=off")
    assert code == 1 and text.startswith("different") and "A'S GAP" in text
    code, text, _ = command(capfd, *base, "-b", "kv=f16,n_threads=2,k_center=off", "--json")
    assert json.loads(text)["n_prompts"] == 8


def test_a_saved_run_says_what_made_it(
    tiny: Model, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = ("identity", "-m", tiny.path, "-n", 4, "-a", "kv=f16,n_threads=1")
    assert command(capfd, *base, "--save", tmp_path / "a.json")[0] == 0
    monkeypatch.setenv("GGML_CUDA_DISABLE_GRAPHS", "1")
    code, text, err = command(capfd, *base, "--against", tmp_path / "a.json")
    a, b = err.splitlines()[-2:]
    assert code == 0 and text.startswith("identical") and a.endswith("graphs off") and not b.endswith("off")
    assert "library " in b and b.startswith("B: kv=f16,n_threads=1 on cpu")
    code, text, _ = command(capfd, *base, "--against", tmp_path / "a.json", "--json")
    assert json.loads(text)["a"]["off"] == ["graphs"] and json.loads(text)["b"]["off"] == []
    (tmp_path / "a.json").write_text('{"runs": 3}')
    assert command(capfd, *base, "--against", tmp_path / "a.json")[0] == 1
