"""Reports of users of the command lines, tried on ours as processes: signals, exit codes, what doctor tells."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tiny_model: Callable[..., Path]) -> Start:
    """Start a command on a tiny model."""

    def run(command: str, *args: str, **shape: object) -> subprocess.Popen[str]:
        folders = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, "PYTHONPATH": folders, "PYLLAMA_TURBO_MODEL": str(tiny_model(**shape))}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([sys.executable, "-m", "pyllama_turbo", command, *args], text=True, env=env, **pipes)  # type: ignore[call-overload,no-any-return]

    return run


def test_ctrl_c_in_a_long_prompt(start: Start) -> None:
    """cyllama 8, llama-cpp-python 599: the prompt is left at once, exit code 130, no traceback."""
    with start("run", "-c", "64k", "-ub", "64", "-t", "1", "-f", "-", n_layer=24, n_ff=2048) as process:
        assert process.stdin is not None
        process.stdin.write("a b c d e f " * 4000)
        process.stdin.close()
        process.stdin = None
        time.sleep(3.0)
        assert process.poll() is None, "the prompt was over too soon to be interrupted"
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        out, err = process.communicate(timeout=60)
    assert time.monotonic() - began < 5
    assert process.returncode == 130
    assert "Traceback" not in out + err


@pytest.mark.parametrize("flag", ["-ctk", "-ctv", "--kv"])
def test_types_that_do_not_exist(start: Start, flag: str) -> None:
    """TheTom 56: the message names the types of this build."""
    with start("run", "-p", "x", flag, "turbo5") as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "unknown KV cache type 'turbo5'" in err
    assert "turbo4" in err or "turbo3" in err


def test_doctor_tells_what_is_compiled_in() -> None:
    """TheTom 56, llama-cpp-python 1693, 2068: types, backend, build, and why the GPU is not used."""
    done = subprocess.run(
        [sys.executable, "-m", "pyllama_turbo", "doctor", "--json"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    report = json.loads(done.stdout)
    library = report["library"]
    assert {"turbo2", "turbo3", "turbo4", "turbo3_tcq"} <= set(library["kv_types"])
    assert library["backend"] == "cuda" or library["passed_over"].get("cuda") or "cuda" not in library["passed_over"]
    assert library["build"]["digest"]
    assert done.stderr == ""


def test_gpu_layers_without_a_gpu(start: Start) -> None:
    """llama-cpp-python 514, 1939, 1826: layers asked for and no GPU is an error, not a slow run."""
    from pyllama_turbo.devices import gpus

    if gpus():
        pytest.skip("there is a GPU")
    with start("run", "-p", "x", "-ngl", "99") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert "no GPU can be used" in err


def test_a_long_context_that_ends(start: Start) -> None:
    """llama.cpp 7230: past the end of the context with a compressed K, with and without a shift; no abort."""
    for more, reason in ((), "ended by length"), (("--context-shift",), "ended by length"):
        with start("run", "-p", "once upon", "-c", "256", "-n", "400", "-ctk", "turbo3", *more) as process:
            _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert reason in err
