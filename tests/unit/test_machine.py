"""What is decided from the machine: threads, GPU layers, and whether a context fits."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_native import FakeLib

from pyllama_turbo import _context_params, _cpu, devices, errors
from pyllama_turbo.model import Model


def test_threads_are_physical_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cpu.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings)
    assert _cpu.default_threads(tmp_path) == 2


@pytest.mark.parametrize(
    ("quota", "threads"), [("150000 100000", 1), ("400000 100000", 4), ("50000 100000", 1), ("max 100000", 8)]
)
def test_a_container_s_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, threads: int) -> None:
    monkeypatch.setattr(_cpu.os, "sched_getaffinity", lambda pid: set(range(8)))
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text(quota)
    assert _cpu.default_threads(tmp_path) == threads


def test_gpu_layers_without_a_gpu_are_refused(lib: FakeLib) -> None:
    assert devices.resolve_gpu_layers("auto", 30, 100) == 0
    assert devices.resolve_gpu_layers(0, 30, 100) == 0
    for asked in (10, "all"):
        with pytest.raises(errors.UnsupportedError, match="no GPU can be used"):
            devices.resolve_gpu_layers(asked, 30, 100)


@pytest.mark.parametrize(
    ("asked", "weights", "layers"),
    [("all", 1, 31), (10, 1, 10), (99, 1, 31), ("auto", 3 << 30, 31), ("auto", 8 << 30, 15), (0, 1, 0)],
)
def test_layers_for_a_gpu(monkeypatch: pytest.MonkeyPatch, asked: int | str, weights: int, layers: int) -> None:
    gpu = devices.Device("CUDA0", "", "gpu", 5 << 30, 8 << 30)
    monkeypatch.setattr(devices, "devices", lambda: (gpu,))
    assert devices.resolve_gpu_layers(asked, 30, weights) == layers


def test_a_context_beyond_memory_is_refused_with_the_arithmetic(
    lib: FakeLib, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_context_params, "free_host_bytes", lambda: 64 << 20)
    with pytest.raises(errors.MemoryLimitError, match=r"turbo3/turbo3 KV cache takes .* GiB") as caught:
        model.context(2_000_000_000, kv="turbo3")
    assert caught.value.limit == 64 << 20
    assert isinstance(caught.value.asked, int) and caught.value.asked > 2_000_000_000 * 4 * 52
    fits = int(caught.value.hint.split(" tokens")[0].split()[-1].replace(",", ""))
    assert fits > 0
    model.context(fits, kv="turbo3")
    with pytest.raises(errors.MemoryLimitError):
        model.context(fits + 1024, kv="turbo3")


def test_the_check_can_be_switched_off(lib: FakeLib, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_context_params, "free_host_bytes", lambda: 1)
    model.context(4096, check_memory=False)


def test_a_compressed_cache_fits_where_f16_does_not(
    lib: FakeLib, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_context_params, "free_host_bytes", lambda: 100 << 20)
    model.context(65536, kv="turbo3")
    with pytest.raises(errors.MemoryLimitError):
        model.context(65536, kv="f16")
