#!/usr/bin/env python3
"""Write requirements.lock: every package that building, testing and checking install, with version and SHA-256.

    make_lock.py python3.10 python3.11 python3.12 python3.13

pip of each named interpreter resolves the requirements of pyproject.toml (`--dry-run --report`: nothing is installed)
for the machine it runs on, then the same versions for the other machines of `PLATFORMS`. The lock holds what any of
them would download; scripts/setup_env.py takes from it what it needs. Standard library only.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import setup_env

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
GROUPS = ("base", "tools", "test", "dev", "fuzz")  # base: to build and to run; tools: where the machine has none
TOOLS = [f"cmake>={'.'.join(map(str, setup_env.MIN_CMAKE))}", "ninja"]
_LIBC = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")
# What a newer libc gets, and what an old one does.
PLATFORMS = [[f"{libc}_{cpu}" for libc in _LIBC[start:]] for cpu in ("x86_64", "aarch64") for start in (0, 2)]


@dataclass
class Locked:
    """One version of one package: who wants it, for which Pythons, and the hashes of its files."""

    groups: set[str] = field(default_factory=set)
    pythons: set[str] = field(default_factory=set)
    hashes: set[str] = field(default_factory=set)


def wanted(group: str) -> list[str]:
    """The requirements of a group."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    if group == "tools":
        return TOOLS
    base = setup_env.requirements(project, [])
    return base if group == "base" else setup_env.requirements(project, [group])[len(base) :]


def report(python: str, requirements: list[str], platforms: list[str]) -> list[dict[str, Any]] | None:
    """What pip would install, or None where there is no wheel for these platforms."""
    command = [python, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    command += ["--disable-pip-version-check", "--only-binary=:all:"]
    with tempfile.TemporaryDirectory() as target:
        if platforms:
            command += ["--no-deps", "--target", target, *(f"--platform={name}" for name in platforms)]
        done = subprocess.run([*command, *requirements], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return None
    rows: list[dict[str, Any]] = json.loads(done.stdout)["install"]
    return rows


def pinned(rows: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """(name, version) -> SHA-256 of the file."""
    found = {}
    for row in rows:
        name = row["metadata"]["name"].lower().replace("_", "-")
        found[name, row["metadata"]["version"]] = row["download_info"]["archive_info"]["hashes"]["sha256"]
    return found


def version_of(python: str) -> str:
    """ "3.11" of an interpreter."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def collect(pythons: list[str]) -> dict[tuple[str, str], Locked]:
    """Resolve every group with every interpreter."""
    locked: dict[tuple[str, str], Locked] = defaultdict(Locked)
    for python in pythons:
        version = version_of(python)
        for group in GROUPS:
            rows = report(python, wanted(group), [])
            if rows is None:
                print(f"make_lock: Python {version} has no {group}", file=sys.stderr)
                continue
            for key, digest in pinned(rows).items():
                entry = locked[key]
                entry.groups.add(group)
                entry.pythons.add(version)
                entry.hashes.add(digest)
        names = [f"{name}=={number}" for (name, number), entry in locked.items() if version in entry.pythons]
        for platforms in PLATFORMS:
            rows = report(python, names, platforms)
            if rows is None:  # one package without a wheel there must not hide the others
                rows = [row for name in names for row in report(python, [name], platforms) or []]
            for key, digest in pinned(rows).items():
                locked[key].hashes.add(digest)
    return locked


def text(locked: dict[tuple[str, str], Locked], versions: list[str]) -> str:
    """The lock in pip's format; a comment in front of each package names the groups that want it."""
    lines = [
        "# Written by scripts/make_lock.py: what building, testing and checking install, each file with its SHA-256.",
        f"# Pythons: {' '.join(versions)}",
    ]
    for (name, number), entry in sorted(locked.items()):
        lines.append(f"# {' '.join(group for group in GROUPS if group in entry.groups)}")
        only = sorted(entry.pythons, key=versions.index)
        marker = "" if only == versions else " ; " + " or ".join(f'python_version == "{v}"' for v in only)
        hashes = [f"    --hash=sha256:{digest}" for digest in sorted(entry.hashes)]
        lines.append(" \\\n".join([f"{name}=={number}{marker}", *hashes]))
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> int:
    """Command line: see the module's docstring."""
    if not argv:
        raise SystemExit(__doc__)
    locked = collect(argv)
    LOCK.write_text(text(locked, [version_of(python) for python in argv]), encoding="utf-8")
    print(f"{LOCK.name}: {len(locked)} packages, {sum(len(entry.hashes) for entry in locked.values())} files")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
