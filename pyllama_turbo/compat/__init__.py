"""llama-cpp-python's surface on this package: its class, its objects, its constants.

    from pyllama_turbo import Llama                  # instead of: from llama_cpp import Llama
    from pyllama_turbo.compat import LlamaGrammar    # everything else of `llama_cpp` that is offered

What is not offered raises `UnsupportedError` with a sentence when it is asked for.
"""

from __future__ import annotations

from . import constants as _constants
from .arguments import LlamaOptions
from .grammar import LlamaGrammar
from .hooks import LogitsProcessorList, MinTokensLogitsProcessor, StoppingCriteriaList
from .llama import Llama
from .offered import missing_name
from .state import BaseLlamaCache, LlamaCache, LlamaDiskCache, LlamaRAMCache, LlamaState
from .tokens import LlamaTokenizer

__all__ = [
    "BaseLlamaCache",
    "Llama",
    "LlamaCache",
    "LlamaDiskCache",
    "LlamaGrammar",
    "LlamaOptions",
    "LlamaRAMCache",
    "LlamaState",
    "LlamaTokenizer",
    "LogitsProcessorList",
    "MinTokensLogitsProcessor",
    "StoppingCriteriaList",
]


def __getattr__(name: str) -> int:
    if name in _constants.NAMED:
        return _constants.NAMED[name]
    refusal = missing_name(name)
    if refusal is not None:
        raise refusal
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
