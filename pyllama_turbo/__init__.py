"""Run GGUF language models with a compressed KV cache.

    from pyllama_turbo import Model

    with Model.open("model.gguf") as model, model.context(8192, kv="turbo3") as ctx:
        for event in ctx.generate("Once upon a time", max_tokens=100):
            print(event.text, end="", flush=True)

Importing this package loads nothing; the native library starts with the first model.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ._version import __version__ as __version__

if TYPE_CHECKING:
    from . import chat as chat
    from . import devices as devices
    from . import generate as generate
    from . import grammar as grammar
    from . import kv as kv
    from . import state as state
    from .batch import Batch as Batch
    from .buildinfo import build_info as build_info
    from .chat import Chat as Chat
    from .compat import Llama as Llama
    from .context import Context as Context
    from .devices import Device as Device
    from .embedding import Embeddings as Embeddings
    from .errors import AbortedError as AbortedError
    from .errors import BusyError as BusyError
    from .errors import ClosedError as ClosedError
    from .errors import ContextFullError as ContextFullError
    from .errors import DecodeError as DecodeError
    from .errors import GGUFError as GGUFError
    from .errors import InternalError as InternalError
    from .errors import MemoryLimitError as MemoryLimitError
    from .errors import ModelFetchError as ModelFetchError
    from .errors import ModelLoadError as ModelLoadError
    from .errors import NativeLibraryError as NativeLibraryError
    from .errors import OptionError as OptionError
    from .errors import StateError as StateError
    from .errors import TurboError as TurboError
    from .errors import UnknownOptionError as UnknownOptionError
    from .errors import UnsupportedError as UnsupportedError
    from .events import Event as Event
    from .generate import Generation as Generation
    from .generate import agenerate as agenerate
    from .generate import complete as complete
    from .logprobs import Candidate as Candidate
    from .logprobs import TokenLogprobs as TokenLogprobs
    from .lora import Lora as Lora
    from .model import Model as Model
    from .options import ContextOptions as ContextOptions
    from .options import GenerationOptions as GenerationOptions
    from .options import ModelOptions as ModelOptions
    from .options import SamplingOptions as SamplingOptions
    from .planning import Fit as Fit
    from .planning import MemoryEstimate as MemoryEstimate
    from .planning import Planner as Planner
    from .planning import estimate as estimate
    from .planning import fit as fit
    from .sampling import Sampler as Sampler
    from .tokenizer import Tokenizer as Tokenizer

_ERRORS = (
    "AbortedError", "BusyError", "ClosedError", "ContextFullError", "DecodeError", "GGUFError", "InternalError",
    "MemoryLimitError", "ModelFetchError", "ModelLoadError", "NativeLibraryError", "OptionError", "StateError",
    "TurboError", "UnknownOptionError", "UnsupportedError",
)  # fmt: skip

_HOME = {
    **dict.fromkeys(_ERRORS, "errors"),
    **dict.fromkeys(("Candidate", "TokenLogprobs"), "logprobs"),
    "Event": "events",
    **dict.fromkeys(("Generation", "agenerate", "complete"), "generate"),
    **dict.fromkeys(("ContextOptions", "GenerationOptions", "ModelOptions", "SamplingOptions"), "options"),
    "Batch": "batch",
    "Chat": "chat",
    "Context": "context",
    "Device": "devices",
    "Llama": "compat",
    "Embeddings": "embedding",
    "Lora": "lora",
    "Model": "model",
    "Sampler": "sampling",
    "Tokenizer": "tokenizer",
    **dict.fromkeys(("Fit", "MemoryEstimate", "Planner", "estimate", "fit"), "planning"),
    "build_info": "buildinfo",
}
_MODULES = ("chat", "devices", "generate", "grammar", "kv", "state")

__all__ = [
    "AbortedError",
    "Batch",
    "BusyError",
    "Candidate",
    "Chat",
    "ClosedError",
    "Context",
    "ContextFullError",
    "ContextOptions",
    "DecodeError",
    "Device",
    "Embeddings",
    "Event",
    "Fit",
    "GGUFError",
    "Generation",
    "GenerationOptions",
    "InternalError",
    "Llama",
    "Lora",
    "MemoryEstimate",
    "MemoryLimitError",
    "Model",
    "ModelFetchError",
    "ModelLoadError",
    "ModelOptions",
    "NativeLibraryError",
    "OptionError",
    "Planner",
    "Sampler",
    "SamplingOptions",
    "StateError",
    "TokenLogprobs",
    "Tokenizer",
    "TurboError",
    "UnknownOptionError",
    "UnsupportedError",
    "__version__",
    "agenerate",
    "build_info",
    "chat",
    "complete",
    "devices",
    "estimate",
    "fit",
    "generate",
    "grammar",
    "kv",
    "state",
]


def __getattr__(name: str) -> object:
    """Import a public name at its first use: numpy and the native library stay unloaded until then."""
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _HOME:
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
