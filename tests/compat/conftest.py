"""Models of these tests, and chat templates of real models from the pinned source."""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pyllama_turbo import Llama

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from fetch_upstream import cache_dir, load_pin  # noqa: E402

FETCHED = cache_dir()  # before the tests get a cache of their own
FIM = tuple((f"tokenizer.ggml.fim_{which}_token_id", token) for token, which in enumerate(("pre", "suf", "mid"), 400))
TEMPLATES = (
    "Qwen-Qwen2.5-7B-Instruct",
    "Qwen-Qwen3-0.6B",
    "meta-llama-Llama-3.1-8B-Instruct",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "google-gemma-2-2b-it",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    "openai-gpt-oss-120b",
)


@pytest.fixture(scope="session")
def path(tiny_model: Callable[..., Path]) -> Path:
    """A tiny model that knows how to fill in."""
    return tiny_model(head_dim=128, n_head=4, n_head_kv=1, metadata=FIM)


@pytest.fixture(scope="session")
def shared(path: Path) -> Iterator[Llama]:
    """One object for all tests that change nothing but its cache."""
    with Llama(path, n_ctx=512, n_threads=1, seed=5) as llm:
        yield llm


@pytest.fixture
def llm(shared: Llama) -> Llama:
    """The shared object, emptied."""
    shared.reset()
    shared.set_cache(None)
    shared.set_seed(5)
    return shared


@pytest.fixture(scope="session")
def templates() -> dict[str, str]:
    """Chat templates of real models: they are in the archive that the build downloads, not in this repository."""
    archives = sorted((FETCHED / "upstream").glob("*.tar.gz"))
    if not archives:
        pytest.skip("the archive of the pinned source is not in the cache: the library was built from a local tree")
    pin = load_pin("library")
    wanted = {f"{pin.inner_path}/models/templates/{name}.jinja": name for name in TEMPLATES}
    found = {}
    with tarfile.open(archives[0]) as archive:
        for member in archive:
            name = wanted.get(member.name.partition("/")[2])
            file = archive.extractfile(member) if name else None
            if name and file:
                found[name] = file.read().decode("utf-8")
            if len(found) == len(wanted):
                break
    return found


@pytest.fixture
def openai(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the `openai` package: objects with the keywords as attributes."""

    class _Object:
        def __init__(self, **values: object) -> None:
            vars(self).update(values)

    module = ModuleType("openai.types.chat")
    module.ChatCompletion = module.ChatCompletionChunk = _Object  # type: ignore[attr-defined]
    for name in ("openai", "openai.types"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "openai.types.chat", module)
