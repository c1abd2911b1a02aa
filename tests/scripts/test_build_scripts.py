"""The small scripts behind the Makefile, and the Makefile itself."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import check_cuda
import jobs
import pytest
import setup_env

ROOT = Path(__file__).resolve().parents[2]
GB = 1 << 30
VERBS = [
    *("help", "fetch", "build", "demo", "test", "build-and-test", "lint", "types", "wheel", "sdist", "doctor"),
    *("clean", "distclean", "check-cuda", "test-gpu", "bench-gpu", "bench-kernels", "results", "reference"),
    *("fuzz", "sanitize", "soak", "lock"),
]


@pytest.mark.parametrize(
    ("backend", "cores", "memory", "n"),
    [
        ("cpu", 8, 64 * GB, 8),
        ("cpu", 8, 3 * GB + 1, 3),
        ("cuda", 8, 16 * GB, 5),
        ("auto", 8, 16 * GB, 5),
        ("cpu", 4, 100, 1),
        ("cpu", 4, None, 4),
    ],
)
def test_jobs(backend: str, cores: int, memory: int | None, n: int) -> None:
    assert jobs.jobs(backend, cores, memory) == n


def test_available_memory_counts_the_container(tmp_path: Path) -> None:
    assert jobs.available_bytes(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 8 kB\n")
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("5000\n")
    (group / "memory.current").write_text("1000\n")
    assert jobs.available_bytes(tmp_path) == 4000


def test_requirements_of_our_own_project_file() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    names = " ".join(setup_env.requirements(text, ["test", "dev"]))
    for name in ("scikit-build-core", "cffi", "numpy", "click", "rich", "pytest", "gguf", "ruff", "mypy"):
        assert name in names
    assert "pytest" not in " ".join(setup_env.requirements(text, []))
    with pytest.raises(SystemExit, match="no list 'nothing'"):
        setup_env.requirements(text, ["nothing"])


def test_build_tools_are_installed_only_where_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    def have(version: str | None) -> None:
        monkeypatch.setattr(setup_env.shutil, "which", lambda name: None if version is None else f"/bin/{name}")
        done = subprocess.CompletedProcess([], 0, f"cmake version {version}\n", "")
        monkeypatch.setattr(setup_env.subprocess, "run", lambda *args, **options: done)

    have("3.25.1")
    assert setup_env.tools() == []
    have("3.18.4")
    assert setup_env.tools() == ["cmake>=3.25"]
    have(None)
    assert setup_env.tools() == ["cmake>=3.25", "ninja"]


LOCK = """# Written by
# Pythons: 3.10 3.11
# base
cffi==2.1.1 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
# tools
cmake==4.4 \\
    --hash=sha256:cc
# tools
ninja==1.13 \\
    --hash=sha256:dd
# base test
pygments==2.1 ; python_version == "3.10" \\
    --hash=sha256:ee
# dev
ruff==0.9 \\
    --hash=sha256:ff
"""


def test_the_lock_gives_what_was_asked_for() -> None:
    def names(*extras: str, tools: list[str]) -> list[str]:
        chosen = setup_env.locked(LOCK, "3.11", list(extras), tools)
        assert chosen is not None
        return [line.split("==")[0] for line in chosen.splitlines() if "==" in line and "--hash" not in line]

    assert names(tools=[]) == ["cffi", "pygments"]
    assert names("dev", tools=["ninja"]) == ["cffi", "ninja", "pygments", "ruff"]
    assert names("test", tools=["cmake>=3.25"]) == ["cffi", "cmake", "pygments"]
    assert setup_env.locked(LOCK, "3.14", [], []) is None
    assert setup_env.locked(LOCK, "", [], []) is None


def test_the_lock_covers_the_project_file() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    for version in ("3.10", "3.11", "3.12", "3.13"):
        chosen = setup_env.locked(lock, version, ["test", "dev"], ["cmake", "ninja"])
        assert chosen is not None
        lines = [line for line in chosen.splitlines() if "==" in line and "--hash" not in line]
        pins = {line.split("==")[0] for line in lines if "python_version" not in line or f'"{version}"' in line}
        for requirement in setup_env.requirements(project, ["test", "dev"]):
            name = re.split(r"[ <>=~;]", requirement)[0]
            assert name in pins or "python_version" in requirement, (version, name)
        assert {"cmake", "ninja", "pluggy", "pycparser"} <= pins
    blocks = re.findall(r"^[^#\s].*\n(?:    .*\n)*", lock, re.MULTILINE)
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", block) for block in blocks)


def test_only_an_environment_of_ours_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, "3.11\n", "")

    monkeypatch.setattr(setup_env.subprocess, "run", run)
    monkeypatch.setattr(setup_env, "make_env", lambda env: env / "bin" / "python")
    for made_here in (False, True):
        env = tmp_path / str(made_here)
        env.mkdir()
        if made_here:
            (env / setup_env.MADE_HERE).touch()
        assert setup_env.main([str(env), "test"]) == 0
        assert ("--require-hashes" in commands[-1]) is made_here
        assert ("numpy>=1.24" in commands[-1]) is not made_here
        n = len([c for c in commands if "install" in c])
        assert setup_env.main([str(env), "test"]) == 0  # nothing new: pip is not asked
        assert len([c for c in commands if "install" in c]) == n


def test_environment_without_venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(env: Path, **options: object) -> None:
        env.mkdir()
        raise subprocess.CalledProcessError(1, "ensurepip")

    monkeypatch.setattr(setup_env.venv, "create", broken)
    with pytest.raises(SystemExit, match="python3-venv"):
        setup_env.make_env(tmp_path / "env")
    assert not (tmp_path / "env").exists()


def test_check_cuda_without_a_compiler(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(check_cuda, "find_nvcc", lambda: None)
    assert check_cuda.main([]) == 0
    assert "nothing was checked" in capsys.readouterr().out


@pytest.mark.parametrize(("status", "code"), [(0, 0), (1, 1)])
def test_check_cuda_reports_what_the_compiler_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: int, code: int
) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(f'#!/bin/sh\necho "complaint" >&2\nexit {status}\n')
    nvcc.chmod(0o755)
    native = tmp_path / "native"
    (native / "turbo/cuda").mkdir(parents=True)
    (native / "turbo/cuda/a.cu").touch()
    monkeypatch.setattr(check_cuda, "NATIVE", native)
    monkeypatch.setattr(check_cuda, "find_nvcc", lambda: str(nvcc))
    monkeypatch.setattr(check_cuda, "prepare", lambda *args: "digest")
    monkeypatch.setattr(check_cuda, "cublas_headers", lambda *args: [])
    assert check_cuda.main(["86"]) == code
    captured = capsys.readouterr()
    assert f"{1 - status} of 1 files compile for sm_86" in captured.out
    assert ("complaint" in captured.err) is (status != 0)


def test_compile_command_names_every_architecture(tmp_path: Path) -> None:
    command = check_cuda.compile_command("nvcc", tmp_path / "a.cu", [tmp_path], ["80", "120"], tmp_path / "a.o")
    assert f"-I{tmp_path}" in command
    assert "-gencode=arch=compute_80,code=sm_80" in command
    assert "-gencode=arch=compute_120,code=sm_120" in command
    special = check_cuda.compile_command("nvcc", tmp_path / "a_sm90a.cu", [], ["80", "90"], tmp_path / "a.o")
    assert "-gencode=arch=compute_90a,code=sm_90a" in special
    assert "-gencode=arch=compute_80,code=sm_80" in special


def test_cublas_headers_come_from_the_toolkit_or_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvcc = tmp_path / "cuda" / "bin" / "nvcc"
    package = tmp_path / "nvidia"
    (package / "cu13/include").mkdir(parents=True)
    (package / "cu13/include/cublas_v2.h").touch()
    (package / "cu13/include/cuda_runtime.h").touch()
    found = type("Spec", (), {"submodule_search_locations": [str(package)]})()
    monkeypatch.setattr(check_cuda.importlib.util, "find_spec", lambda name: found)
    (folder,) = check_cuda.cublas_headers(str(nvcc), tmp_path / "build")
    assert [path.name for path in folder.iterdir()] == ["cublas_v2.h"]
    monkeypatch.setattr(check_cuda.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="nvidia-cublas"):
        check_cuda.cublas_headers(str(nvcc), tmp_path / "build")
    (tmp_path / "cuda/include").mkdir(parents=True)
    (tmp_path / "cuda/include/cublas_v2.h").touch()
    assert check_cuda.cublas_headers(str(nvcc), tmp_path / "build") == []


def make(*args: str) -> str:
    return subprocess.run(["make", "-C", str(ROOT), *args], capture_output=True, text=True, check=True).stdout


def test_make_alone_lists_every_verb() -> None:
    listed = [line.split()[0] for line in make("--no-print-directory").splitlines()]
    assert sorted(listed) == sorted(VERBS)


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        (("BACKEND=cpu", "JOBS=1"), ["TURBO_BACKEND=cpu"]),
        (("BACKEND=cuda", "ARCH=86", "JOBS=1"), ["TURBO_BACKEND=cuda", "CMAKE_CUDA_ARCHITECTURES=86"]),
        (("BACKEND=cuda", "GRAPHS=off", "JOBS=1"), ["TURBO_CUDA_GRAPHS=OFF"]),
        (("VENV=other", "VIRTUAL_ENV=", "JOBS=1"), ["other/bin/python -m pip"]),
        (("VIRTUAL_ENV=/active", "JOBS=1"), ["/active/bin/python -m pip"]),
    ],
)
def test_make_variables_reach_the_build(variables: tuple[str, ...], wanted: list[str]) -> None:
    recipe = make("-n", "build", *variables)
    for text in wanted:
        assert text in recipe


def test_ci_script_is_valid_and_stops_at_the_first_failure() -> None:
    script = ROOT / ".ci" / "run"
    assert "set -euo pipefail" in script.read_text(encoding="utf-8")
    subprocess.run(["bash", "-n", str(script)], check=True)


@pytest.mark.parametrize(
    ("architectures", "refused"),
    [("75", "sm_75"), ("86;70-real", "sm_70"), ("90-real", ""), ("80;86;120", ""), ("native", ""), ("90a", "")],
)
def test_the_build_refuses_gpus_before_ampere(tmp_path: Path, architectures: str, refused: str) -> None:
    module = ROOT / "native" / "cmake" / "CudaArchitectures.cmake"
    script = tmp_path / "check.cmake"
    script.write_text(f'include("{module}")\nturbo_check_cuda_architectures({architectures})\n')
    command = [shutil.which("cmake") or Path(sys.executable).with_name("cmake"), "-P", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == bool(refused)
    if refused:
        assert f"need compute capability 8.0 (sm_80) or later, and {refused}" in " ".join(done.stderr.split())
