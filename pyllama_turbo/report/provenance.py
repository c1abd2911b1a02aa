"""Where a number comes from: library, machine, command line. Every result file begins with it."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from .._version import __version__

__all__ = ["Provenance", "collect", "cpu_name", "gpu_state"]


@dataclass(frozen=True)
class Provenance:
    """Facts of a run.

    Attributes:
        package: version of this package.
        digest: build of the library (pin, patches, our sources).
        upstream_commit: commit of llama.cpp.
        backend: "cpu" or "cuda".
        cpu, n_cores: processor and the cores this process may use.
        gpus: names of the GPUs.
        driver: version of the NVIDIA driver, or "".
        clocks: present and highest clocks of the first GPU, or "".
        system: operating system.
        simd: vector instructions in use.
        command: the command line.
        time: start, UTC.
    """

    package: str
    digest: str
    upstream_commit: str
    backend: str
    cpu: str
    n_cores: int
    gpus: tuple[str, ...]
    driver: str
    clocks: str
    system: str
    simd: str
    command: str
    time: str

    def record(self) -> dict[str, Any]:
        """As a record of a result file."""
        return {"kind": "provenance", **asdict(self)}


@lru_cache(maxsize=1)
def cpu_name() -> str:
    """Marketing name of the processor, or the architecture where the system does not say."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@lru_cache(maxsize=1)
def gpu_state() -> tuple[str, str]:
    """Version of the NVIDIA driver and clocks of the first GPU, "" and "" where there is none."""
    fields = "driver_version,clocks.sm,clocks.max.sm,clocks.mem"
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout.split("\n")[0]
        driver, clock, highest, memory = (part.strip() for part in answer.split(","))
    except (OSError, subprocess.SubprocessError, ValueError):
        return "", ""
    return driver, f"{clock} of {highest}, memory {memory}"


def _command() -> str:
    """The command line; program and absolute paths by their names, as folders say nothing to a reader elsewhere."""
    name = Path(sys.argv[0]).name
    program = "python -m pyllama_turbo" if name in ("__main__.py", "-m", "-c") else name
    arguments = [Path(part).name if Path(part).is_absolute() else part for part in sys.argv[1:]]
    return " ".join([program, *map(shlex.quote, arguments)])


def collect() -> Provenance:
    """Facts of this process and machine; loads the library.

    Raises:
        NativeLibraryError: no library can be loaded.
    """
    from ..buildinfo import build_info
    from ..devices import gpus

    info = build_info()
    names = tuple(d.description for d in gpus())
    driver, clocks = gpu_state() if names else ("", "")
    return Provenance(
        package=__version__,
        digest=str(info.get("digest", "")),
        upstream_commit=str(info.get("upstream_commit", "")),
        backend=str(info.get("backend", "")),
        cpu=cpu_name(),
        n_cores=len(os.sched_getaffinity(0)),
        gpus=names,
        driver=driver,
        clocks=clocks,
        system=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        simd=str(info.get("simd", "")),
        command=_command(),
        time=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
