"""How many threads to use when nobody says: the physical cores this process may run on."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["default_threads"]


def _physical(cpus: set[int], root: Path) -> int:
    """Cores behind logical CPUs, told by their sibling lists; the CPUs themselves where the system does not say."""
    cores = set()
    for cpu in cpus:
        siblings = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        try:
            cores.add(siblings.read_text().strip())
        except OSError:
            return len(cpus)
    return len(cores)


def _container_limit(root: Path) -> int | None:
    """Whole CPUs a container may use, at least 1, or None without a limit."""
    try:
        quota, period = (root / "sys/fs/cgroup/cpu.max").read_text().split()
        return max(int(quota) // int(period), 1)
    except (OSError, ValueError):
        return None


def default_threads(root: Path = Path("/")) -> int:
    """Physical cores of this process' CPUs, within a container's limit; at least 1."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    limit = _container_limit(root)
    cores = max(_physical(cpus, root), 1)
    return min(cores, limit) if limit else cores
