#!/usr/bin/env python3
"""Print how many compiler processes this machine bears at once: its cores, bounded by its free memory.

A C++ file of llama.cpp takes about 1 GB, a CUDA file about 3 GB. Standard library only: it runs before anything is
installed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

GB = 1 << 30
BYTES_PER_JOB = {"cpu": 1 * GB, "cuda": 3 * GB, "auto": 3 * GB}


def available_bytes(root: Path = Path("/")) -> int | None:
    """Memory that can be had without swapping, the container's limit included; None where neither can be read."""
    found = []
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    except (OSError, ValueError, IndexError):
        pass
    try:
        group = root / "sys/fs/cgroup"
        limit = int((group / "memory.max").read_text())  # "max" when unlimited: no number, no bound
        found.append(limit - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return min(found, default=None)


def jobs(backend: str, cores: int, memory: int | None) -> int:
    """Number of jobs: at least one, at most `cores`."""
    per_job = BYTES_PER_JOB.get(backend, BYTES_PER_JOB["cpu"])
    return max(1, min(cores, memory // per_job if memory is not None else cores))


if __name__ == "__main__":
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    print(jobs(sys.argv[1] if len(sys.argv) > 1 else "cpu", n_cores, available_bytes()))
