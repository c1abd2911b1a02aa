"""Run GGUF language models with a compressed KV cache.

    from pyllama_turbo import Model, generate

    with Model.open("model.gguf") as model, model.context(8192, kv="turbo3") as ctx:
        for event in generate(ctx, "Once upon a time", max_tokens=100):
            print(event.text, end="", flush=True)

Importing this package loads nothing; the native library starts with the first model.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import chat as chat
    from . import kv as kv
    from . import state as state
    from .buildinfo import build_info as build_info
    from .chat import Chat as Chat
    from .context import Context as Context
    from .device import devices as devices
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
    from .generation import Event as Event
    from .generation import Generation as Generation
    from .generation import agenerate as agenerate
    from .generation import complete as complete
    from .generation import generate as generate
    from .model import Model as Model
    from .options import ContextOptions as ContextOptions
    from .options import GenerationOptions as GenerationOptions
    from .options import ModelOptions as ModelOptions
    from .options import SamplingOptions as SamplingOptions
    from .sampling import Sampler as Sampler
    from .tokenizer import Tokenizer as Tokenizer

_ERRORS = (
    "AbortedError", "BusyError", "ClosedError", "ContextFullError", "DecodeError", "GGUFError", "InternalError",
    "MemoryLimitError", "ModelFetchError", "ModelLoadError", "NativeLibraryError", "OptionError", "StateError",
    "TurboError", "UnknownOptionError", "UnsupportedError",
)  # fmt: skip

_HOME = {
    **dict.fromkeys(_ERRORS, "errors"),
    **dict.fromkeys(("Event", "Generation", "agenerate", "complete", "generate"), "generation"),
    **dict.fromkeys(("ContextOptions", "GenerationOptions", "ModelOptions", "SamplingOptions"), "options"),
    "Chat": "chat",
    "Context": "context",
    "Model": "model",
    "Sampler": "sampling",
    "Tokenizer": "tokenizer",
    "build_info": "buildinfo",
    "devices": "device",
}
_MODULES = ("chat", "kv", "state")

__all__ = sorted((*_HOME, *_MODULES, "__version__"))


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
