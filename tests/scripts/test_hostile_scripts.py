"""The scripts behind `make fuzz`, `make sanitize`, `make soak` and `make lock`, as far as they need no build."""

from __future__ import annotations

import json
from pathlib import Path

import build_fuzz
import fuzz
import make_lock
import pytest
import soak

LOG = """INFO: seed corpus: files: 3
#2 INITED cov: 10 ft: 20 corp: 1/1b exec/s: 0 rss: 90Mb
#5321	NEW    cov: 163 ft: 1201 corp: 91/3Kb exec/s: 500
Done 11204 runs in 16 second(s)
stat::number_of_executed_units: 11204
stat::peak_rss_mb:              524
"""


def test_figures_of_a_fuzz_run() -> None:
    assert fuzz.figures(LOG) == {"executions": 11204, "edges": 163, "features": 1201, "peak_rss_mib": 524}
    assert fuzz.figures("killed") == {"executions": 0, "edges": 0, "features": 0, "peak_rss_mib": 0}


def test_the_script_and_the_tests_name_the_same_targets() -> None:
    text = (fuzz.FUZZ / "targets.py").read_text(encoding="utf-8")
    assert [name for name in fuzz.TARGETS if f'"{name}": Target(' in text] == list(fuzz.TARGETS)
    assert text.count(": Target(") == len(fuzz.TARGETS)


def test_an_unknown_target_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["fuzz.py", "nonsense"])
    with pytest.raises(SystemExit):
        fuzz.main()
    assert "known: gguf, model" in capsys.readouterr().err


def test_the_second_compilation_keeps_paths_and_takes_clang(tmp_path: Path) -> None:
    source = "/w/native/shim/chat.cpp"
    command = f"env X=1 ccache /usr/bin/c++ -I/inc -O3 -fopenmp -o shim/chat.o -c {source}"
    commands = [
        {"file": source, "command": command, "directory": "/w"},
        {"file": "/w/llama.cpp/src/llama-graph.cpp", "command": "/usr/bin/c++ -o x -c y", "directory": "/w"},
    ]
    (planned,) = build_fuzz.plan(commands, {"/usr/bin/c++"}, tmp_path, [])
    assert planned.command[:4] == ["clang++", "-I/inc", "-O3", "-c"]
    assert planned.command[-2:] == ["-o", str(planned.target)]
    assert "-fsanitize=address,fuzzer-no-link" in planned.command and "-fopenmp" not in planned.command


def test_only_readers_of_hostile_input_are_instrumented() -> None:
    assert build_fuzz.is_instrumented(Path("/b/llama.cpp/common/jinja/runtime.cpp"))
    assert build_fuzz.is_instrumented(Path("/b/llama.cpp/ggml/src/gguf.cpp"))
    assert not build_fuzz.is_instrumented(Path("/b/llama.cpp/ggml/src/ggml-cpu/ops.cpp"))


def test_a_lock_is_written_as_pip_reads_it() -> None:
    locked = {
        ("numpy", "2.2.6"): make_lock.Locked({"base"}, {"3.10"}, {"b" * 64, "a" * 64}),
        ("ruff", "0.9"): make_lock.Locked({"dev"}, {"3.10", "3.11"}, {"c" * 64}),
    }
    text = make_lock.text(locked, ["3.10", "3.11"])
    assert text.splitlines()[1:] == [
        "# Pythons: 3.10 3.11",
        "# base",
        'numpy==2.2.6 ; python_version == "3.10" \\',
        f"    --hash=sha256:{'a' * 64} \\",
        f"    --hash=sha256:{'b' * 64}",
        "# dev",
        "ruff==0.9 \\",
        f"    --hash=sha256:{'c' * 64}",
    ]


def test_the_soak_ends_at_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "episode", lambda world, number, disturb: [[number]])
    monkeypatch.setattr(soak, "fresh", lambda folder, number: [[number if number < 12 else 0]])
    with pytest.raises(SystemExit, match="episode 12 differs"):
        soak.soak(60, 10, tmp_path)


def test_a_recorded_soak_was_long_and_flat() -> None:
    record = json.loads((fuzz.ROOT / "docs" / "results" / "soak.json").read_text(encoding="utf-8"))
    assert record["minutes"] >= 20 and record["flat"] and record["steps_equal"] > 500


def test_third_parties_are_all_named() -> None:
    text = (fuzz.ROOT / "THIRD_PARTY.md").read_text(encoding="utf-8").lower().replace("_", "-")
    lock = make_lock.LOCK.read_text(encoding="utf-8")
    names = [line.split("==")[0] for line in lock.splitlines() if "==" in line and line[0] not in "# "]
    assert len(names) > 20
    assert [name for name in names if name not in text] == []
