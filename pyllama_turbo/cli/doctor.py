"""`pyllama-turbo doctor`: what a bug report needs."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from .. import _native, devices, kv
from .._cpu import default_threads
from .._version import __version__
from ..buildinfo import build_info
from ..errors import TurboError
from ..memory import free_host_bytes
from ..models import KNOWN, cache_dir, fetched_path
from .flags import json_option
from .output import Cell, print_facts, print_json, size

PACKAGES = ("numpy", "cffi", "click", "rich")
CPU_FLAGS = (
    "sse4_2",
    "avx",
    "avx2",
    "fma",
    "f16c",
    "bmi2",
    "avx512f",
    "avx512bw",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
)


@click.command("doctor")
@json_option
def command(as_json: bool) -> int:
    """Report what this machine and this build can do.

    Exits with 1 if the native library cannot be used; the reason is in the report.
    """
    report = collect()
    if as_json:
        print_json(report)
    else:
        print_facts(_lines(report))
    return 0 if report["library"]["usable"] else 1


def collect() -> dict[str, Any]:
    """Everything, as plain data."""
    return {
        "package": {"version": __version__, "path": str(Path(__file__).parents[1])},
        "python": {"version": platform.python_version(), "executable": sys.executable, "packages": _versions()},
        "system": {"platform": platform.platform(), "libc": " ".join(platform.libc_ver())},
        "cpu": _cpu(),
        "memory": {"free_bytes": free_host_bytes()},
        "cuda": _cuda(),
        "library": _library(),
        "models": {"folder": str(cache_dir()), "here": [name for name in KNOWN if fetched_path(name)]},
        "environment": {
            k: v for k, v in sorted(os.environ.items()) if k.startswith(("PYLLAMA_TURBO_", "CUDA_VISIBLE"))
        },
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "missing"
    return found


def _cpu() -> dict[str, Any]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    name = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    flags = re.search(r"^flags\s*:\s*(.*)$", text, re.MULTILINE)
    have = set(flags[1].split()) if flags else set()
    return {
        "name": name[1] if name else platform.processor() or platform.machine(),
        "logical": os.cpu_count(),
        "threads": default_threads(),
        "features": [f for f in CPU_FLAGS if f in have],
    }


def _cuda() -> dict[str, Any]:
    """The driver, asked directly, so that it is seen even where the CUDA build cannot be loaded."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {"driver": None, "gpus": None}
    version, count = ctypes.c_int(0), ctypes.c_int(0)
    driver.cuDriverGetVersion(ctypes.byref(version))
    started = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return {"driver": f"{version.value // 1000}.{version.value % 1000 // 10}", "gpus": count.value if started else None}


def _library() -> dict[str, Any]:
    report = _native.load_report()
    facts: dict[str, Any] = {
        "usable": not report.error,
        "backend": report.backend or None,
        "path": str(report.path) if report.path else None,
        "passed_over": report.skipped,
        "error": report.error or None,
    }
    if report.error:
        return facts
    try:
        facts["build"] = build_info()
        facts["kv_types"] = [t.name for t in kv.types()]
        facts["devices"] = [
            {
                "name": d.name,
                "kind": d.kind,
                "what": d.description,
                "free_bytes": d.free_bytes,
                "total_bytes": d.total_bytes,
            }
            for d in devices.devices()
        ]
    except TurboError as error:
        facts |= {"usable": False, "error": str(error)}
    return facts


def _lines(report: dict[str, Any]) -> list[tuple[str, Cell]]:
    python, cpu, cuda, library = report["python"], report["cpu"], report["cuda"], report["library"]
    free = report["memory"]["free_bytes"]
    driver = f"driver for CUDA {cuda['driver']}, GPUs: {_or(cuda['gpus'], 'none reachable')}" if cuda["driver"] else ""
    lines: list[tuple[str, Cell]] = [
        ("pyllama_turbo", f"{report['package']['version']}, {report['package']['path']}"),
        ("python", f"{python['version']}, {python['executable']}"),
        ("packages", ", ".join(f"{name} {version}" for name, version in python["packages"].items())),
        ("system", f"{report['system']['platform']}, {report['system']['libc']}"),
        ("cpu", f"{cpu['name']}, {cpu['logical']} logical, {cpu['threads']} threads by default"),
        ("cpu features", " ".join(cpu["features"]) or "unknown"),
        ("memory", f"{size(free)} free" if free is not None else "unknown"),
        ("nvidia", driver or "no driver (libcuda.so.1)"),
        ("backend", _or(library["backend"], "none")),
    ]
    lines += [(f"  not {name}", reason) for name, reason in library["passed_over"].items()]
    if library["error"]:
        lines.append(("  error", library["error"]))
    lines += _library_lines(library)
    lines.append(("models", f"{', '.join(report['models']['here']) or 'none fetched'} in {report['models']['folder']}"))
    lines += [("environment", f"{name}={value}") for name, value in report["environment"].items()]
    return lines


def _library_lines(library: dict[str, Any]) -> list[tuple[str, Cell]]:
    if "build" not in library:
        return []
    lines: list[tuple[str, Cell]] = [("library", library["path"])]
    for key, value in library["build"].items():
        if key not in ("kv_types", "backend", "library"):
            lines.append((f"  {key.replace('_', ' ')}", _flat(value)))
    lines += [
        (f"device {d['name']}", f"{d['what']}, {size(d['free_bytes'])} of {size(d['total_bytes'])} free")
        for d in library["devices"]
    ]
    lines.append(("kv types", ", ".join(library["kv_types"])))
    return lines


def _or(value: Any, other: str) -> str:
    return other if value is None else str(value)


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_flat(v)}" for k, v in value.items()) or "-"
    if isinstance(value, list):
        return " ".join(map(str, value)) or "-"
    return "yes" if value is True else "no" if value is False else str(value)
