#!/usr/bin/env python3
"""Fetch the pinned source distribution, check it and unpack the part we build.

The pin is native/upstream.toml. The archive is downloaded with pip (so proxies, mirrors and certificates of
the user's pip apply), its SHA-256 is checked before anything is read from it, and the members named by the
profile are written below the user's cache directory. Nothing half-done is left behind: archive and tree get
their final names only when complete. Only the standard library is used, so the script runs inside an isolated
PEP 517 build.

`PYLLAMA_TURBO_UPSTREAM` (or --source) names a local archive or an unpacked llama.cpp tree instead.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib  # type: ignore[import-not-found, no-redef]

NATIVE = Path(__file__).resolve().parent.parent / "native"


class FetchError(Exception):
    """The source could not be provided; the message says what to do."""


@dataclass(frozen=True)
class Pin:
    """The pinned source distribution (native/upstream.toml)."""

    package: str
    version: str
    sha256: str
    inner_path: str
    commit: str
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    profile: str

    def wants(self, path: str) -> bool:
        """Whether `path` (relative to the llama.cpp tree) belongs to the profile."""

        def under(prefixes: tuple[str, ...]) -> bool:
            return any(path == p or (p.endswith("/") and path.startswith(p)) for p in prefixes)

        return under(self.include) and not under(self.exclude)


def load_pin(profile: str, toml: Path = NATIVE / "upstream.toml") -> Pin:
    """Read the pin; profile "tests" contains "library"."""
    data = tomllib.loads(toml.read_text(encoding="utf-8"))
    names = ["library"] if profile == "library" else ["library", profile]
    try:
        parts = [data["profiles"][name] for name in names]
    except KeyError as missing:
        raise FetchError(f"unknown profile {missing}; known: {', '.join(data['profiles'])}") from None
    return Pin(
        package=data["package"],
        version=data["version"],
        sha256=data["sha256"],
        inner_path=data["inner_path"],
        commit=data["commit"],
        include=tuple(p for part in parts for p in part["include"]),
        exclude=tuple(p for part in parts for p in part["exclude"]),
        profile=profile,
    )


def cache_dir() -> Path:
    """The per-user cache: $PYLLAMA_TURBO_CACHE, else $XDG_CACHE_HOME/pyllama-turbo, else ~/.cache/pyllama-turbo."""
    own = os.environ.get("PYLLAMA_TURBO_CACHE")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pyllama-turbo"


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, as hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def check_hash(path: Path, pin: Pin) -> None:
    """Raise FetchError unless the archive is the pinned one."""
    actual = sha256_of(path)
    if actual != pin.sha256:
        raise FetchError(
            f"{path} is not the pinned source: its sha256 is {actual}, the pin wants {pin.sha256}. "
            f"Delete it, or give the archive of {pin.package} {pin.version}."
        )


def download(pin: Pin, folder: Path) -> Path:
    """Download the archive into `folder` with pip and return its path, hash checked."""
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"{pin.package.replace('-', '_')}-{pin.version}.tar.gz"
    if final.is_file() and sha256_of(final) == pin.sha256:
        return final
    with tempfile.TemporaryDirectory(dir=folder, prefix="download-") as tmp:
        wanted = Path(tmp) / "requirements.txt"
        wanted.write_text(f"{pin.package}=={pin.version} --hash=sha256:{pin.sha256}\n", encoding="utf-8")
        # The hash travels to pip, which checks it before it runs anything of the archive.
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", pin.package]
        command += ["--require-hashes", "--disable-pip-version-check", "--dest", tmp, "--requirement", str(wanted)]
        print(f"fetching the source of {pin.package} {pin.version} (77 MB)", file=sys.stderr)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = list(Path(tmp).glob("*.tar.gz"))
        if done.returncode != 0 or len(found) != 1:
            raise FetchError(_download_message(pin, done.stderr))
        check_hash(found[0], pin)
        os.replace(found[0], final)
    return final


def _download_message(pin: Pin, stderr: str) -> str:
    lines = [line for line in stderr.strip().splitlines() if line.strip() and "WARNING" not in line]
    reason = lines[-1] if lines else "no reason given"
    if "No module named pip" in stderr:
        reason = f"{sys.executable} has no pip (install it with: {sys.executable} -m ensurepip)"
    return (
        f"pip could not download {pin.package}=={pin.version}: {reason}\n"
        "Check the network, or download the archive elsewhere and name it: "
        "PYLLAMA_TURBO_UPSTREAM=/path/to/archive.tar.gz"
    )


def _member_target(name: str, root: str, pin: Pin) -> PurePosixPath | None:
    """Where a tar member goes below the tree, or None if it is not wanted. Refuses paths that leave the tree."""
    prefix = f"{root}/{pin.inner_path}/"
    if not name.startswith(prefix):
        return None
    inner = PurePosixPath(name[len(prefix) :])
    if inner.is_absolute() or ".." in inner.parts:
        raise FetchError(f"the archive holds a path that leaves its folder: {name}")
    return inner if pin.wants(str(inner)) else None


def unpack(archive: Path, pin: Pin, target: Path) -> int:
    """Write the wanted regular files of the archive below `target`; returns how many."""
    count = 0
    with tarfile.open(archive, "r:gz") as tar:
        root = ""
        for member in tar:
            root = root or member.name.split("/", 1)[0]
            inner = _member_target(member.name, root, pin)
            if inner is None or member.isdir():
                continue
            if not member.isfile():
                raise FetchError(f"the archive holds a link or device where a file belongs: {member.name}")
            source = tar.extractfile(member)
            if source is None:
                raise FetchError(f"the archive's member cannot be read: {member.name}")
            out = target.joinpath(*inner.parts)
            out.parent.mkdir(parents=True, exist_ok=True)
            with source, out.open("wb") as file:
                shutil.copyfileobj(source, file)
            count += 1
    if count == 0:
        raise FetchError(f"{archive} holds nothing below {pin.inner_path}: is it the right archive?")
    return count


def tree_from_archive(archive: Path, pin: Pin, cache: Path) -> Path:
    """The pristine tree of the profile below the cache, unpacked once."""
    final = cache / f"llama.cpp-{pin.commit[:12]}-{pin.profile}"
    if (final / "LICENSE").is_file():
        return final
    cache.mkdir(parents=True, exist_ok=True)
    tmp = Path(tempfile.mkdtemp(dir=cache, prefix="unpack-"))
    try:
        unpack(archive, pin, tmp)
        if final.exists():
            shutil.rmtree(final)
        os.replace(tmp, final)
    except (OSError, tarfile.TarError, EOFError) as error:
        raise FetchError(f"cannot unpack {archive} below {cache}: {error}") from error
    finally:
        shutil.rmtree(tmp, ignore_errors=True)
    return final


def provide(profile: str, source: str | None = None, toml: Path = NATIVE / "upstream.toml") -> Path:
    """Return a pristine llama.cpp tree for the profile: local tree, local archive, or download.

    Raises FetchError with one clear message; nothing half-done stays on disk.
    """
    pin = load_pin(profile, toml)
    source = source or os.environ.get("PYLLAMA_TURBO_UPSTREAM")
    cache = cache_dir() / "upstream"
    try:
        if source:
            given = Path(source).expanduser()
            if given.is_dir():
                if not (given / "ggml" / "include" / "ggml.h").is_file():
                    raise FetchError(f"{given} is not a llama.cpp tree (no ggml/include/ggml.h)")
                return given
            if not given.is_file():
                raise FetchError(f"no such file or folder: {given}")
            check_hash(given, pin)
            return tree_from_archive(given, pin, cache)
        final = cache / f"llama.cpp-{pin.commit[:12]}-{pin.profile}"
        if (final / "LICENSE").is_file():
            return final
        return tree_from_archive(download(pin, cache), pin, cache)
    except OSError as error:
        raise FetchError(f"cannot write the source below {cache}: {error}") from error


def main() -> int:
    """Command line: print the path of the pristine tree."""
    parser = argparse.ArgumentParser(description="Fetch and unpack the pinned llama.cpp source.")
    parser.add_argument("--profile", default="library", help="library or tests")
    parser.add_argument("--source", help="a local archive or llama.cpp tree instead of the download")
    args = parser.parse_args()
    try:
        print(provide(args.profile, args.source))
    except FetchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
