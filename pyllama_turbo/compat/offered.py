"""What llama-cpp-python has and this package has not, each with a sentence that says so and what to do instead.

The table in the README is made from the same words.
"""

from __future__ import annotations

from typing import Any

from ..errors import UnsupportedError

# Constructor keywords: values that change nothing, and the sentence for any other.
KEYWORDS: dict[str, tuple[tuple[Any, ...], str]] = {
    "kv_overrides": ((None, {}), "metadata of a model cannot be overridden; change the file with gguf's tools"),
    "lora_base": ((None,), "an adapter is applied to the loaded model; load the model you mean and use lora_path"),
    "chat_handler": ((None,), "chat templates run in llama.cpp's engine; give a jinja text with chat_template"),
    "draft_model": ((None,), "drafting in Python is not offered"),
    "tokenizer": ((None,), "the model's own tokenizer is used; give token ids for any other"),
    "numa": ((None, False, 0), "NUMA placement is left to the system: start Python under numactl"),
    "attention_type": ((None, -1, 0), "attention is causal or as the model says"),
}

# Arguments of a request: values that change nothing, and the sentence for any other.
ARGUMENTS: dict[str, tuple[tuple[Any, ...], str]] = {
    "tfs_z": ((None, 1, 1.0), "tail-free sampling is not in llama.cpp any more; use min_p or typical_p"),
    "penalize_nl": ((None, True), "llama.cpp's penalties treat newlines as any other token"),
}

# Methods and attributes of an object.
ATTRIBUTES = {
    "chat_handler": "chat templates run in llama.cpp's engine; there are no handlers in Python",
    "draft_model": "drafting in Python is not offered",
    "context_params": "there are no C structures here; see llm.ctx.options and llm.ctx.facts",
    "model_params": "there are no C structures here; see llm.model.options and llm.model.facts",
    "_ctx": "there is no C wrapper here; llm.ctx is the context",
    "_model": "there is no C wrapper here; llm.model is the model",
    "_batch": "there is no C wrapper here; llm.ctx.decode runs tokens",
    "lora_base": KEYWORDS["lora_base"][1],
    "numa": KEYWORDS["numa"][1],
}

# Names of the module `llama_cpp` and of those inside it.
NAMES = {
    "LlamaDraftModel": "drafting in Python is not offered",
    "LlamaPromptLookupDecoding": "drafting in Python is not offered",
    "BaseLlamaTokenizer": "the model's own tokenizer is used; give token ids for any other",
    "LlamaHFTokenizer": "the model's own tokenizer is used; give token ids for any other",
    "Jinja2ChatFormatter": "chat templates run in llama.cpp's engine; give a jinja text with chat_template",
    "register_chat_format": "there is no registry of formats; give a jinja text with chat_template",
    "register_chat_completion_handler": "there is no registry of handlers; give a jinja text with chat_template",
}

HUB = (
    "nothing is downloaded from model hubs",
    "download the file with your hub's own client (hf download REPO FILE) and give its path, or use "
    "`pyllama-turbo models fetch`",
)
C_API = "llama.cpp's C functions are not offered; Model, Context and Sampler do their work"
IMAGES = "images and other media are not offered: only text can be in a message"
SERVER = "an HTTP server is not offered"


def check(table: dict[str, tuple[tuple[Any, ...], str]], name: str, value: Any) -> None:
    """Accept a keyword of `table` only with a value that changes nothing.

    Raises:
        UnsupportedError: any other value, with the sentence of the table.
    """
    harmless, sentence = table[name]
    if not any(value is known or (type(value) is type(known) and value == known) for known in harmless):
        raise UnsupportedError(f"{name} is not offered: {sentence}", asked=value)


def missing_name(name: str) -> UnsupportedError | None:
    """The error for a name of `llama_cpp` that is known and not offered, or None."""
    if name in NAMES:
        return UnsupportedError(f"{name} is not offered: {NAMES[name]}", asked=name)
    if name.endswith("ChatHandler"):
        return UnsupportedError(f"{name} is not offered: {IMAGES}", asked=name)
    if name.startswith(("llama_", "ggml_", "mtmd_", "llava_")):
        return UnsupportedError(f"{name} is not offered: {C_API}", asked=name)
    return None
