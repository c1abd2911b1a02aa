"""Fixtures shared by all tests: tiny random models, written once per session, and the real ones if they are there."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pyllama_turbo import Model
from pyllama_turbo.models import cache_dir

# A job in the background of a shell ignores SIGINT, and its children inherit that; tests that interrupt a program would
# wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent
SMOLLM = "SmolLM2-135M-Instruct.Q4_1.gguf"
FETCHED = cache_dir()  # before the tests get a cache of their own


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests keep (mean keys of models, ...) goes to a temporary cache, subprocesses included."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYLLAMA_TURBO_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def _load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_model(head_dim=128, ...)`: path of a random GGUF, arguments as scripts/make_model.py; cached.

    `tiny_model(odd="gemma2")` is one of scripts/odd_models.py.
    """
    folder = tmp_path_factory.mktemp("models")
    written: dict[tuple[tuple[str, Any], ...], Path] = {}
    script, odd_script = _load_script("make_model"), _load_script("odd_models")

    def make(**shape: Any) -> Path:
        key = tuple(sorted(shape.items()))
        if key not in written:
            path = folder / f"tiny{len(written)}.gguf"
            odd = shape.pop("odd", None)
            written[key] = odd_script.write_odd(path, odd) if odd else script.write_model(path, **shape)
        return written[key]

    return make


@pytest.fixture(scope="session")
def open_model(tiny_model: Callable[..., Path]) -> Iterator[Callable[..., Model]]:
    """`open_model(head_dim=128, ...)`: a loaded tiny model, shared by the session; arguments as `tiny_model`."""
    opened: dict[Path, Model] = {}

    def get(**shape: object) -> Model:
        path = tiny_model(**shape)
        if path not in opened:
            opened[path] = Model.open(path)
        return opened[path]

    yield get
    for model in opened.values():
        model.close()


@pytest.fixture(scope="session")
def failing_malloc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library to preload that lets chosen allocations fail (native/tests/fail_alloc.c)."""
    if "TURBO_TEST_LIBRARY" in os.environ:
        pytest.skip("the sanitizers have a malloc of their own")
    source, library = ROOT / "native" / "tests" / "fail_alloc.c", tmp_path_factory.mktemp("fail") / "fail_alloc.so"
    command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return library


@pytest.fixture(scope="session")
def smollm() -> Path:
    """SmolLM2-135M; the test is skipped, visibly, where it was not fetched."""
    folders = [os.environ.get("PYLLAMA_TURBO_MODELS", ""), str(FETCHED), str(Path.home() / "models")]
    for folder in filter(None, folders):
        if (Path(folder) / SMOLLM).is_file():
            return Path(folder) / SMOLLM
    pytest.skip(f"{SMOLLM} is in none of {folders}")
