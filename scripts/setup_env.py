#!/usr/bin/env python3
"""Make a virtual environment hold what building and testing need; used by the Makefile.

    setup_env.py ENV [EXTRA ...]

ENV is created if it is not there. Installed are the build requirements and the dependencies of pyproject.toml, the
named extras, and cmake and ninja where the machine has none that will do. A second call with nothing new to install
is quick and needs no network. Standard library only.
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
    return python


def main(argv: list[str]) -> int:
    """Command line: see the module's docstring."""
    if not argv:
        raise SystemExit(__doc__)
    env, extras = Path(argv[0]), argv[1:]
    check_compiler()
    python = make_env(env)
    wanted = requirements((ROOT / "pyproject.toml").read_text(encoding="utf-8"), extras) + tools()
    stamp = env / f".turbo-{'-'.join(['base', *extras])}"
    digest = hashlib.sha256("\n".join([str(python), *wanted]).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return 0
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
    done = subprocess.run(command, check=False)
    if done.returncode == 0:
        stamp.write_text(digest)
    return done.returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
