"""The only door to native code: finds, loads and checks the library, and turns statuses into exceptions.

Two builds of one library may be installed, ``lib/cuda`` and ``lib/cpu``. The first that can run here is loaded; why
another was passed over is kept for `pyllama-turbo doctor`. The environment variable PYLLAMA_TURBO_BACKEND (auto, cpu,
cuda) decides otherwise. Loading happens at first use, never at import.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import re
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import _callbacks, errors, logs
from ._cuda_device import compute_capabilities, why_not

__all__ = [
    "Binding",
    "LoadReport",
    "binding",
    "c_json",
    "c_text",
    "check",
    "load_report",
    "set_binding",
    "take_text",
    "text",
]

LIBRARY = "libllama_turbo.so"
BACKENDS = ("cuda", "cpu")
_MISSING = re.compile(r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file")


@dataclass(frozen=True)
class Binding:
    """A loaded library: the cffi objects, and which build they belong to."""

    ffi: Any
    lib: Any
    backend: str
    path: Path | None = None


@dataclass
class LoadReport:
    """How the library was chosen.

    Attributes:
        backend: "cpu" or "cuda", empty if none could be loaded.
        path: the library file.
        skipped: backend -> why it was not used.
        error: why nothing could be loaded.
    """

    backend: str = ""
    path: Path | None = None
    skipped: dict[str, str] = field(default_factory=dict)
    error: str = ""


_lock = threading.Lock()
_binding: Binding | None = None
_report = LoadReport()
_started_pid = 0


def _wanted() -> tuple[str, ...]:
    choice = os.environ.get("PYLLAMA_TURBO_BACKEND", "auto").strip().lower() or "auto"
    if choice == "auto":
        return BACKENDS
    if choice not in BACKENDS:
        raise errors.NativeLibraryError(
            f"PYLLAMA_TURBO_BACKEND is {choice!r}",
            asked=choice,
            limit=("auto", *BACKENDS),
            hint="use auto, cpu or cuda",
        )
    return (choice,)


def _find_cuda_library(name: str) -> Path | None:
    """Where a CUDA library is, in the order: wheels of NVIDIA, CUDA_HOME, the usual folder."""
    for entry in sys.path:
        found = sorted(Path(entry or ".").glob(f"nvidia/*/lib/{name}"))
        if found:
            return found[0]
    for root in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        for folder in ("lib64", "lib"):
            if root and (Path(root) / folder / name).is_file():
                return Path(root) / folder / name
    return None


def _dlopen(path: Path) -> ctypes.CDLL:
    """Load a library without exporting its symbols, loading CUDA libraries it misses first."""
    tried: set[str] = set()
    while True:
        try:
            return ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            missing = _MISSING.search(str(error))
            name = missing.group(1) if missing else ""
            found = _find_cuda_library(name) if name and name not in tried else None
            if found is None:
                raise
            tried.add(name)
            _dlopen(found)


def _open_candidate(backend: str, folder: Path) -> Path:
    """Load one build. Raises NativeLibraryError with the reason if this machine cannot run it."""
    path = folder / backend / LIBRARY
    if not path.is_file():
        raise errors.NativeLibraryError(f"no {backend} library is installed ({path})")
    if backend == "cuda":
        try:
            driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError:
            raise errors.NativeLibraryError("no NVIDIA driver was found (libcuda.so.1)") from None
    try:
        library = _dlopen(path)
    except OSError as error:
        raise errors.NativeLibraryError(f"{path.name} ({backend}) cannot be loaded: {error}") from None
    buffer = ctypes.create_string_buffer(256)
    if library.turbo_cpu_missing(buffer, len(buffer)) > 0:
        raise errors.NativeLibraryError(
            f"the {backend} library needs CPU features that this machine lacks: {buffer.value.decode()}",
            hint="build it on this machine, or with TURBO_CPU=avx2 or TURBO_CPU=baseline",
        )
    if backend == "cuda":
        library.turbo_build_info.restype = ctypes.c_char_p
        built = json.loads(library.turbo_build_info())["cuda_architectures"]
        if reason := why_not(built, compute_capabilities(driver)):
            raise errors.NativeLibraryError(
                reason, hint="build it on this machine; sm_80 is the oldest it can be built for"
            )
    return path


def _choose(folder: Path) -> tuple[str, Path]:
    for backend in _wanted():
        try:
            return backend, _open_candidate(backend, folder)
        except errors.NativeLibraryError as error:
            _report.skipped[backend] = str(error)
    reasons = "; ".join(f"{name}: {reason}" for name, reason in _report.skipped.items())
    raise errors.NativeLibraryError(
        f"no native library can be used here: {reasons}",
        hint="build it with `make build`, or see `pyllama-turbo doctor`",
    )


def _library_folder() -> Path:
    """Where the builds lie: beside the extension module, which an editable install keeps apart from the sources."""
    spec = importlib.util.find_spec("pyllama_turbo._ffi")
    home = Path(spec.origin) if spec is not None and spec.origin else Path(__file__)
    return home.parent / "lib"


def _load() -> Binding:
    backend, path = _choose(_library_folder())
    try:
        module = importlib.import_module("pyllama_turbo._ffi")
    except ImportError as error:
        raise errors.NativeLibraryError(
            f"the extension module cannot be imported: {error}", hint="rebuild it"
        ) from None
    ffi, lib = module.ffi, module.lib
    if lib.turbo_abi() != lib.TURBO_ABI:
        raise errors.NativeLibraryError(
            f"{path} and the extension module come from different builds",
            asked=lib.TURBO_ABI,
            limit=lib.turbo_abi(),
            hint="rebuild both",
        )
    _callbacks.register(ffi)
    loaded = Binding(ffi, lib, backend, path)
    if lib.turbo_backend_init() != lib.TURBO_OK:
        raise errors.NativeLibraryError(text(loaded, lib.turbo_last_error()))
    logs.drain(ffi, lib)
    return loaded


def binding() -> Binding:
    """The loaded library; loads it on the first call.

    Raises:
        NativeLibraryError: no build can run here. The same reason is raised again on later calls.
    """
    global _binding, _started_pid
    loaded = _binding
    if loaded is None:
        with _lock:
            if _binding is None:
                if _report.error:
                    raise errors.NativeLibraryError(_report.error)
                try:
                    _binding = _load()
                except errors.NativeLibraryError as error:
                    _report.error = str(error)
                    raise
                _report.backend, _report.path = _binding.backend, _binding.path
                _started_pid = os.getpid()
            loaded = _binding
    if _started_pid and _started_pid != os.getpid():
        raise errors.UnsupportedError(
            "the native library was started before this process was forked: its threads do not exist here",
            hint="use multiprocessing's 'spawn', or load models after the fork",
        )
    return loaded


def load_report() -> LoadReport:
    """How the library was chosen, loading it if that was not tried yet. Never raises."""
    try:
        binding()
    except errors.TurboError as error:
        _report.error = _report.error or str(error)
    return _report


def set_binding(replacement: Binding | None) -> None:
    """Use another library object (tests), or forget the current one with None."""
    global _binding, _started_pid
    _binding = replacement
    _started_pid = 0


def text(b: Binding, value: Any) -> str:
    """A C string as str."""
    raw: bytes = b.ffi.string(value)
    return raw.decode("utf-8", "replace")


def c_text(value: str, what: str) -> bytes:
    """A str for a C function, as UTF-8. Raises OptionError for what no such text can hold; `what` names it there."""
    if "\0" in value:
        raise errors.OptionError(f"{what} has a zero byte at character {value.index(chr(0))}", asked=value)
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise errors.OptionError(f"{what} is no valid text: {error}", asked=value) from None


def c_json(value: Any, what: str) -> bytes:
    """A value as JSON for a C function. Raises OptionError for what has no JSON; `what` names it there."""
    try:
        return json.dumps(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise errors.OptionError(f"{what} cannot be written as JSON: {error}") from None


def take_text(b: Binding, value: Any) -> str:
    """A C string that belongs to the caller, as str; its memory is freed."""
    try:
        return text(b, value)
    finally:
        b.lib.turbo_string_free(value)


def _error_class(lib: Any, status: int) -> type[errors.TurboError]:
    return {
        lib.TURBO_E_ARGUMENT: errors.OptionError,
        lib.TURBO_E_LOAD: errors.ModelLoadError,
        lib.TURBO_E_MEMORY: errors.MemoryLimitError,
        lib.TURBO_E_UNSUPPORTED: errors.UnsupportedError,
        lib.TURBO_E_ABORTED: errors.AbortedError,
        lib.TURBO_E_NO_SLOT: errors.ContextFullError,
        lib.TURBO_E_DECODE: errors.DecodeError,
        lib.TURBO_E_STATE: errors.StateError,
    }.get(status, errors.InternalError)


def check(b: Binding, status: int, *, asked: object = None, limit: object = None, hint: str = "") -> int:
    """Return a status that is not negative; otherwise raise its exception with the native reason and log tail.

    An exception parked by a callback during the call goes first.
    """
    if status >= 0:
        return status
    message = text(b, b.lib.turbo_last_error())
    logs.drain(b.ffi, b.lib)
    _callbacks.raise_parked()
    raise _error_class(b.lib, status)(message, asked=asked, limit=limit, hint=hint, native_log=logs.tail())
