"""What a completion and a chat are asked with: llama-cpp-python's arguments and defaults, each defined once.

`bind` puts a call's arguments into one of these objects; `signature` shows them to `help()`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

from .._option_spec import build, option, specs
from ..errors import OptionError
from .grammar import LlamaGrammar
from .offered import ARGUMENTS, check

if TYPE_CHECKING:
    from .hooks import LogitsProcessor, StoppingCriterion

_T = TypeVar("_T")


def _texts(value: Any) -> tuple[str, ...]:
    items = () if value is None else (value,) if isinstance(value, str) else tuple(value)
    for item in items:
        if not isinstance(item, str):
            raise ValueError(f"{item!r} is not a text")
    return tuple(item for item in items if item)  # llama-cpp-python's users pass "" for "no stop text"


def _bias(value: Any) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is no dict of token id -> bias")
    return tuple((int(token), float(bias)) for token, bias in value.items())


def _functions(value: Any) -> tuple[Callable[..., Any], ...]:
    items = (value,) if callable(value) and not isinstance(value, (list, tuple)) else tuple(value)
    for item in items:
        if not callable(item):
            raise ValueError(f"{item!r} is not a function")
    return items


def _gbnf(value: Any) -> str:
    if isinstance(value, LlamaGrammar):
        return value.gbnf
    if isinstance(value, str):
        return value
    raise ValueError(f"{value!r} is neither a LlamaGrammar nor a GBNF text")


def _optional(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else parse(value)


@dataclass(frozen=True)
class SamplingRequest:
    """How tokens are chosen; the defaults are llama-cpp-python's."""

    temperature: float = option(0.8, kind="float", help="0 takes the likeliest token.")
    top_p: float = option(0.95, kind="float", low=0, high=1, help="Nucleus; 1 = off.")
    min_p: float = option(0.05, kind="float", low=0, high=1, help="Share of the likeliest; 0 = off.")
    typical_p: float = option(1.0, kind="float", low=0, high=1, help="1 = off.")
    top_k: int = option(40, kind="int", help="Keep the k likeliest; 0 = all.")
    frequency_penalty: float = option(0.0, kind="float", help="0 = off.")
    presence_penalty: float = option(0.0, kind="float", help="0 = off.")
    repeat_penalty: float = option(1.0, kind="float", help="1 = off.")
    mirostat_mode: int = option(0, kind="int", low=0, high=2, help="0 = off, 1, 2.")
    mirostat_tau: float = option(5.0, kind="float", help="Target entropy.")
    mirostat_eta: float = option(0.1, kind="float", help="Learning rate.")
    seed: int | None = option(None, kind="any", help="None: drawn from the object's own.")
    logits_processor: tuple[LogitsProcessor, ...] = option(
        (), kind="list", parse=_functions, help="Functions (token ids, logits) -> logits."
    )
    grammar: str | None = option(None, kind="any", parse=_optional(_gbnf), help="LlamaGrammar or GBNF text.")
    logit_bias: tuple[tuple[int, float], ...] = option(
        (), kind="any", parse=_bias, help="Token -> value added to its logit."
    )


@dataclass(frozen=True)
class CompletionRequest(SamplingRequest):
    """Arguments of `create_completion` behind the prompt."""

    suffix: str | None = option(None, kind="any", help="Text behind what is to be filled in.")
    max_tokens: int | None = option(16, kind="any", help="None, 0 or -1: until the context is full.")
    logprobs: int | None = option(None, kind="any", help="How many alternatives to report per token.")
    echo: bool = option(False, kind="bool", help="The prompt first.")
    stop: tuple[str, ...] = option((), kind="list", parse=_texts, help="Texts that end it; not shown.")
    stream: bool = option(False, kind="bool", help="An iterator of chunks.")
    model: str | None = option(None, kind="any", help="Name to report; None: the path.")
    stopping_criteria: tuple[StoppingCriterion, ...] = option(
        (), kind="list", parse=_functions, help="Functions (token ids, logits) -> whether to stop."
    )


COMPLETION_ORDER = (
    "prompt", "suffix", "max_tokens", "temperature", "top_p", "min_p", "typical_p", "logprobs", "echo", "stop",
    "frequency_penalty", "presence_penalty", "repeat_penalty", "top_k", "stream", "seed", "tfs_z", "mirostat_mode",
    "mirostat_tau", "mirostat_eta", "model", "stopping_criteria", "logits_processor", "grammar", "logit_bias",
)  # fmt: skip


@dataclass(frozen=True)
class ChatRequest(SamplingRequest):
    """Arguments of `create_chat_completion` behind the messages."""

    temperature: float = option(0.2, kind="float", help="0 takes the likeliest token.")
    functions: Sequence[Mapping[str, Any]] | None = option(None, kind="any", help="Older form of tools.")
    function_call: str | Mapping[str, Any] | None = option(None, kind="any", help="Older form of tool_choice.")
    tools: Sequence[Mapping[str, Any]] | None = option(None, kind="any", help="OpenAI's tool descriptions.")
    tool_choice: str | Mapping[str, Any] | None = option(
        None, kind="any", help="auto, none, required, or one tool by name."
    )
    stream: bool = option(False, kind="bool", help="An iterator of chunks.")
    stop: tuple[str, ...] = option((), kind="list", parse=_texts, help="Texts that end the answer; not shown.")
    response_format: Mapping[str, Any] | None = option(None, kind="any", help="json_object or json_schema.")
    max_tokens: int | None = option(None, kind="any", help="None, 0 or -1: until the context is full.")
    model: str | None = option(None, kind="any", help="Name to report; None: the path.")
    logprobs: bool | None = option(None, kind="any", help="Report log probabilities.")
    top_logprobs: int | None = option(None, kind="any", help="How many alternatives to report per token.")
    template_kwargs: Mapping[str, Any] | None = option(None, kind="any", help="Further variables of the template.")
    enable_thinking: bool = option(True, kind="bool", help="Let a reasoning model reason.")


CHAT_ORDER = (
    "messages", "functions", "function_call", "tools", "tool_choice", "temperature", "top_p", "top_k", "min_p",
    "typical_p", "stream", "stop", "seed", "response_format", "max_tokens", "presence_penalty", "frequency_penalty",
    "repeat_penalty", "tfs_z", "mirostat_mode", "mirostat_tau", "mirostat_eta", "model", "logits_processor", "grammar",
    "logit_bias", "logprobs", "top_logprobs",
)  # fmt: skip


@dataclass(frozen=True)
class TokenRequest(SamplingRequest):
    """Arguments of `sample`, and those of `generate` behind the tokens; the temperature is called `temp`."""

    stopping_criteria: tuple[StoppingCriterion, ...] = option(
        (), kind="list", parse=_functions, help="Functions (token ids, logits) -> whether to stop."
    )
    reset: bool = option(True, kind="bool", help="Begin anew, keeping the start that the cache holds already.")


def bind(cls: type[_T], order: tuple[str, ...], args: tuple[Any, ...], keywords: Mapping[str, Any]) -> tuple[Any, _T]:
    """The first argument of a call, and the others as an object of `cls`.

    Args:
        cls: a request.
        order: llama-cpp-python's positional names, the first argument's included.
        args, keywords: of the call. None for a number that has another default stands for that default.

    Raises:
        UnknownOptionError: a keyword that does not exist, with the closest names.
        OptionError: a value of the wrong kind, or an argument twice or missing.
        UnsupportedError: a value that is not offered.
    """
    if len(args) > len(order):
        raise OptionError(f"{len(args)} arguments, there are {len(order)}", asked=len(args), limit=len(order))
    values = dict(zip(order, args))
    if twice := values.keys() & keywords.keys():
        raise OptionError(f"{min(twice)} is given twice", asked=min(twice))
    values.update(keywords)
    if order[0] not in values:
        raise OptionError(f"{order[0]} is missing", asked=order[0])
    first = values.pop(order[0])
    for name in ARGUMENTS.keys() & values.keys():
        check(ARGUMENTS, name, values.pop(name))
    plain = {spec.name for spec in specs(cls) if spec.kind in ("int", "float", "bool")}
    given = {name: value for name, value in values.items() if value is not None or name not in plain}
    return first, build(cls, given, also=(order[0], *ARGUMENTS))


def sampling_options(request: SamplingRequest, last_n: int, seed: int) -> dict[str, Any]:
    """Keywords of `Sampler` for a request."""
    names = (
        "temperature", "top_k", "top_p", "min_p", "typical_p", "frequency_penalty", "presence_penalty",
        "repeat_penalty", "mirostat_tau", "mirostat_eta", "logit_bias", "grammar",
    )  # fmt: skip
    chosen = {name: getattr(request, name) for name in names}
    return {**chosen, "mirostat": request.mirostat_mode, "repeat_last_n": last_n, "seed": seed}


def signature(cls: type, order: tuple[str, ...], result: str | None) -> inspect.Signature:
    """What `help()` shows of a method that takes the fields of a dataclass, the names of `order` first."""
    defaults = {f.name: f.default for f in fields(cls)}
    keyword_only = [name for name in defaults if name not in order]
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for name in (*order, *keyword_only):
        default = defaults.get(name, ARGUMENTS[name][0][1] if name in ARGUMENTS else inspect.Parameter.empty)
        kind = inspect.Parameter.KEYWORD_ONLY if name in keyword_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters.append(
            inspect.Parameter(name, kind, default=inspect.Parameter.empty if default is MISSING else default)
        )
    return inspect.Signature(parameters, return_annotation=result)
