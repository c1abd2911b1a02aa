"""The files a model was loaded from, kept open: who they are, and whether they still hold what was loaded.

Weights are usually mapped, not read. A file that another one replaces by renaming (what downloads and package managers
do) stays mapped as it was. A file that is cut or overwritten in place changes under the running model; it is recognised
before a context is made and before a prompt is run. A file that is cut while tokens are computed ends the process with
SIGBUS: only `load_mode="none"` is proof against that.
"""

from __future__ import annotations

import hashlib
import os
import weakref
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from .errors import ModelLoadError

__all__ = ["ModelFiles", "fingerprint"]

_SAMPLE_BYTES = 1 << 16
_SAMPLES = 64


def _sample(fd: int) -> str:
    size = os.fstat(fd).st_size
    digest = hashlib.sha256(str(size).encode())
    for i in range(_SAMPLES):
        digest.update(os.pread(fd, _SAMPLE_BYTES, max(0, (size - _SAMPLE_BYTES) * i // (_SAMPLES - 1))))
    return digest.hexdigest()[:32]


def fingerprint(path: Path) -> str:
    """Identifies a model file by its size and 64 samples spread over it (to hash it whole would outlast loading)."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return _sample(fd)
    finally:
        os.close(fd)


class _OpenFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.fd)
        status = os.fstat(self.fd)
        self.size, self.changed_ns = status.st_size, status.st_mtime_ns
        self.fingerprint = _sample(self.fd)

    def check(self) -> None:
        """Raise `ModelLoadError` if the file has changed since it was opened."""
        status = os.fstat(self.fd)
        if status.st_size < self.size:
            raise ModelLoadError(
                f"{self.path} was cut from {self.size:,} to {status.st_size:,} bytes since it was loaded",
                asked=str(self.path),
                limit=status.st_size,
                hint="its weights are mapped and cannot be read any more: restore the file and load it again",
            )
        if status.st_mtime_ns != self.changed_ns:
            if _sample(self.fd) != self.fingerprint:
                raise ModelLoadError(
                    f"{self.path} was overwritten since it was loaded",
                    asked=str(self.path),
                    hint="its weights are mapped and are others now: load it again; replace models by renaming",
                )
            self.changed_ns = status.st_mtime_ns


class ModelFiles:
    """The open files of one model.

    Args:
        paths: the file, or all parts of a split model.
        mapped: whether weights are read from the files while the model runs.

    Raises:
        OSError: one cannot be opened.
    """

    def __init__(self, paths: Iterable[Path], mapped: bool) -> None:
        self._files = [_OpenFile(path) for path in paths]
        self._mapped = mapped

    @cached_property
    def fingerprint(self) -> str:
        """Identifies what was loaded; equal to `fingerprint` of the path for a model of one file."""
        parts = [file.fingerprint for file in self._files]
        return parts[0] if len(parts) == 1 else hashlib.sha256("".join(parts).encode()).hexdigest()[:32]

    def check(self) -> None:
        """Raises ModelLoadError if a mapped file was cut or overwritten."""
        if self._mapped:
            for file in self._files:
                file.check()
