#!/usr/bin/env python3
"""Make a virtual environment hold what building and testing need; used by the Makefile.

    setup_env.py ENV [EXTRA ...]

ENV is created if it is not there. Installed are the build requirements and the dependencies of pyproject.toml, the
named extras, and cmake and ninja where the machine has none that will do. Into an environment that this script made,
pip installs the versions of requirements.lock and checks the SHA-256 of every file; an environment of the user's own
keeps what it has as long as that fits pyproject.toml. A second call with nothing new to install is quick and needs no
network. Standard library only.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MIN_CMAKE = (3, 25)
MADE_HERE = ".turbo-env"  # in an environment of ours


def requirements(pyproject: str, extras: list[str]) -> list[str]:
    """The requirements pyproject.toml names: to build, to run, and for `extras`.

    Read with regular expressions, because Python 3.10 has no TOML parser to begin with. Only the form this project's
    own file has is understood: a list of double-quoted strings after the key.
    """
    found: list[str] = []
    for key in ("requires", "dependencies", *extras):
        match = re.search(rf"^{key} = \[(.*?)\]\s*$", pyproject, re.MULTILINE | re.DOTALL)
        if match is None:
            raise SystemExit(f"setup_env: pyproject.toml has no list {key!r}")
        found += re.findall(r'"([^"]+)"', match[1])
    return found


def tools() -> list[str]:
    """Packages for the build tools this machine lacks."""
    wanted = []
    cmake = shutil.which("cmake")
    version = subprocess.run([cmake, "--version"], capture_output=True, text=True, check=False).stdout if cmake else ""
    match = re.search(r"(\d+)\.(\d+)", version)
    if match is None or (int(match[1]), int(match[2])) < MIN_CMAKE:
        wanted.append("cmake>=3.25")
    if not shutil.which("ninja"):
        wanted.append("ninja")
    return wanted


def check_compiler() -> None:
    """Stop with one line where there is no C++ compiler: the build would fail much later, and at length."""
    asked = os.environ.get("CXX", "").split()
    if not any(shutil.which(name) for name in (asked[:1] or ["c++", "g++", "clang++"])):
        raise SystemExit(
            f"setup_env: no C++ compiler was found ({' '.join(asked) or 'c++, g++ or clang++'}). "
            "On Debian and Ubuntu: apt install g++"
        )


def make_env(env: Path) -> Path:
    """Create the environment if needed; returns its interpreter."""
    python = env / "bin" / "python"
    if not python.exists():
        print(f"creating the virtual environment {env}", file=sys.stderr)
        try:
            venv.create(env, with_pip=True, symlinks=True)
        except (subprocess.CalledProcessError, OSError) as error:
            shutil.rmtree(env, ignore_errors=True)
            raise SystemExit(
                f"setup_env: Python's venv does not work here ({error}). On Debian and Ubuntu: apt install python3-venv"
            ) from None
        (env / MADE_HERE).touch()
    return python


def locked(lock: str, version: str, extras: list[str], build_tools: list[str]) -> str | None:
    """What requirements.lock has for a Python version ("3.11"), as text for pip; None if it was not made for that one.

    A package stands below a comment that names the groups which want it; `base` is always wanted, of `tools` only those
    named.
    """
    header, _, rest = lock.partition("\n# Pythons: ")
    pythons, _, blocks = rest.partition("\n")
    if not header or version not in pythons.split():
        return None
    groups = {"base", *extras}
    names = {re.split(r"[<>=~]", tool)[0] for tool in build_tools}
    chosen = []
    for wanted_by, block in re.findall(r"^# (.*)\n((?:[^#].*\n)+)", blocks, re.MULTILINE):
        if groups & set(wanted_by.split()) or block.split("==")[0] in names:
            chosen.append(block)
    return "".join(chosen)


def python_version(python: Path) -> str:
    """ "3.11" of an interpreter on Linux with glibc, for which the lock has files; else ""."""
    code = (
        "import platform, sys\n"
        "known = platform.libc_ver()[0] == 'glibc' and platform.machine() in ('x86_64', 'aarch64')\n"
        "print('%d.%d' % sys.version_info[:2] if known else '')"
    )
    return subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def main(argv: list[str]) -> int:
    """Command line: see the module's docstring."""
    if not argv:
        raise SystemExit(__doc__)
    env, extras = Path(argv[0]), argv[1:]
    check_compiler()
    python = make_env(env)
    build_tools = tools()
    wanted = requirements((ROOT / "pyproject.toml").read_text(encoding="utf-8"), extras) + build_tools
    pins = None
    if (env / MADE_HERE).exists():
        lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
        pins = locked(lock, python_version(python), extras, build_tools)
    name = "-".join(["base", *extras])
    stamp = env / f".turbo-{name}"
    digest = hashlib.sha256("\n".join([str(python), *wanted, pins or ""]).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return 0
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if pins is None:
        command += wanted
    else:
        file = env / f".turbo-{name}.txt"
        file.write_text(pins)
        command += ["--require-hashes", "--only-binary=:all:", "--requirement", str(file)]
    done = subprocess.run(command, check=False)
    if done.returncode == 0:
        stamp.write_text(digest)
    return done.returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
