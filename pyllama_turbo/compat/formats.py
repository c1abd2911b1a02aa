"""Chat formats by the names that llama-cpp-python's users know, as jinja templates for llama.cpp's engine.

Needed only where a model file has no template or a wrong one; the model's own is the default.
"""

from __future__ import annotations

from ..errors import UnsupportedError
from ..options import suggest

_SYSTEM_FIRST = (
    "{% set start = 1 if messages[0]['role'] == 'system' else 0 %}"
    "{% set system = messages[0]['content'] if start else '' %}"
)


def _labelled(user: str, assistant: str, gap: str, end: str = "") -> str:
    """A template of lines that begin with a label, the system message first."""
    return (
        f"{_SYSTEM_FIRST}{{% if system %}}{{{{ system + {gap!r} }}}}{{% endif %}}"
        "{% for message in messages[start:] %}"
        f"{{% if message['role'] == 'user' %}}{{{{ {user!r} + message['content'] + {gap!r} }}}}"
        f"{{% else %}}{{{{ {assistant!r} + message['content'] + {end + gap!r} }}}}{{% endif %}}"
        "{% endfor %}"
        f"{{% if add_generation_prompt %}}{{{{ {assistant.rstrip()!r} }}}}{{% endif %}}"
    )


def _tagged(open_: str, close: str, *, assistant: str = "assistant", merge_system: bool = False) -> str:
    """A template whose turns are wrapped: `open_` has {} where the role goes."""
    before, after = open_.split("{}")
    first = (
        "{% set lead = system + '\\n\\n' if loop.first and system else '' %}" if merge_system else "{% set lead = '' %}"
    )
    turns = "messages[start:]" if merge_system else "messages"
    return (
        f"{_SYSTEM_FIRST}{{% for message in {turns} %}}{first}"
        f"{{% set role = {assistant!r} if message['role'] == 'assistant' else message['role'] %}}"
        f"{{{{ {before!r} + role + {after!r} + lead + message['content'] + {close!r} }}}}"
        "{% endfor %}"
        f"{{% if add_generation_prompt %}}{{{{ {before + assistant + after!r} }}}}{{% endif %}}"
    )


_LLAMA2 = (
    f"{_SYSTEM_FIRST}{{% for message in messages[start:] %}}"
    "{% if message['role'] == 'user' %}"
    "{% set lead = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' if loop.first and system else '' %}"
    "{{ bos_token + '[INST] ' + lead + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + ' ' + eos_token }}{% endif %}{% endfor %}"
)
_MISTRAL = (
    f"{_SYSTEM_FIRST}{{{{ bos_token }}}}{{% for message in messages[start:] %}}"
    "{% if message['role'] == 'user' %}"
    "{% set lead = system + '\\n\\n' if loop.first and system else '' %}"
    "{{ '[INST] ' + lead + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"
)

_CHATML = _tagged("<|im_start|>{}\n", "<|im_end|>\n")
TEMPLATES = {
    "chatml": _CHATML,
    "qwen": _CHATML,
    "llama-2": _LLAMA2,
    "llama-3": "{{ bos_token }}" + _tagged("<|start_header_id|>{}<|end_header_id|>\n\n", "<|eot_id|>"),
    "mistral-instruct": _MISTRAL,
    "gemma": "{{ bos_token }}"
    + _tagged("<start_of_turn>{}\n", "<end_of_turn>\n", assistant="model", merge_system=True),
    "zephyr": _tagged("<|{}|>\n", "</s>\n"),
    "vicuna": _labelled("USER: ", "ASSISTANT: ", " ", "</s>"),
    "alpaca": _labelled("### Instruction:\n", "### Response:\n", "\n\n", "</s>"),
}
# Texts that end an answer, where a model's own end token may be another one.
STOPS = {
    "chatml": ("<|im_end|>",),
    "qwen": ("<|im_end|>",),
    "llama-3": ("<|eot_id|>",),
    "gemma": ("<end_of_turn>",),
    "zephyr": ("</s>",),
    "vicuna": ("USER:", "</s>"),
    "alpaca": ("### Instruction:", "</s>"),
}
OWN = ("chat_template.default", "jinja", "chatml-function-calling", "functionary-v2")


def template_of(chat_format: str | None) -> str | None:
    """Jinja text of a format; None means the model's own template.

    Raises:
        UnsupportedError: a format that is not known here.
    """
    if chat_format is None or chat_format in OWN:
        return None
    if chat_format in TEMPLATES:
        return TEMPLATES[chat_format]
    near = suggest(chat_format, list(TEMPLATES))
    raise UnsupportedError(
        f"chat format {chat_format!r} is not offered",
        asked=chat_format,
        limit=tuple(TEMPLATES),
        hint=near or f"leave chat_format out, give a jinja text with chat_template, or use {', '.join(TEMPLATES)}",
    )
