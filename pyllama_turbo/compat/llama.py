"""`Llama`: llama-cpp-python's class, on this package's model and context."""

from __future__ import annotations

import importlib
import inspect
from collections import deque
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from .. import state as states
from ..errors import UnsupportedError
from . import chat, completion, embedding, state, tokens
from .arguments import LlamaOptions
from .base import LlamaBase
from .requests import CHAT_ORDER, COMPLETION_ORDER, ChatRequest, CompletionRequest, TokenRequest, bind, signature

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .responses import Response
    from .state import BaseLlamaCache, LlamaState

__all__ = ["Llama"]

_GENERATE_ORDER = (
    "tokens", "top_k", "top_p", "min_p", "typical_p", "temp", "repeat_penalty", "reset", "frequency_penalty",
    "presence_penalty", "tfs_z", "mirostat_mode", "mirostat_tau", "mirostat_eta", "penalize_nl", "logits_processor",
    "stopping_criteria", "grammar",
)  # fmt: skip
_SAMPLE_ORDER = (
    "top_k", "top_p", "min_p", "typical_p", "temp", "repeat_penalty", "frequency_penalty", "presence_penalty", "tfs_z",
    "mirostat_mode", "mirostat_eta", "mirostat_tau", "penalize_nl", "logits_processor", "grammar", "idx",
)  # fmt: skip


class Llama(LlamaBase):
    """A model with one context, used as llama-cpp-python's class of this name.

        llm = Llama("model.gguf", n_ctx=8192, type_k="turbo4_tcq", type_v="turbo3_tcq")
        print(llm("Once upon a time", max_tokens=32)["choices"][0]["text"])

    Args:
        model_path: a GGUF file.
        progress: called with 0.0 to 1.0 while loading; returning False cancels.
        **keywords: llama-cpp-python's, and every field of `ModelOptions` and `ContextOptions`; see `LlamaOptions`.

    Attributes:
        model: the model, with `facts`, `tokenizer`, `metadata`.
        metadata: the model's metadata as text.
        options: the keywords in effect.
        n_batch, last_n_tokens_size, verbose, spm_infill: as given.
        chat_template: jinja text in use instead of the model's own, or None.

    Raises:
        ModelLoadError: the file is missing or damaged.
        UnknownOptionError, OptionError: a keyword that does not exist, a bad value.
        UnsupportedError: a keyword that is not offered, KV types that do not fit the model, GPU layers without a GPU.
        MemoryLimitError: it would not fit into memory.
    """

    # -- completions ---------------------------------------------------------------------------------------------

    def create_completion(self, *args: Any, **keywords: Any) -> Any:
        """Continue a prompt.

        Args:
            prompt: text, or token ids.
            *args, **keywords: llama-cpp-python's; `help(Llama.create_completion)` lists them with their defaults.

        Returns:
            A response dict; with `stream=True` an iterator of chunks.

        Raises:
            ContextFullError: the prompt leaves no room in the context.
            OptionError, UnknownOptionError: a bad value, a keyword that does not exist.
            UnsupportedError: a suffix for a model that cannot fill in; an argument that is not offered.
            BusyError: another completion of this object is running.
        """
        prompt, request = bind(CompletionRequest, COMPLETION_ORDER, args, keywords)
        task = completion.prepare(self, prompt, request)
        give = completion.stream if request.stream else completion.complete
        return give(self, prompt, task, request)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """`create_completion`."""
        return self.create_completion(*args, **keywords)

    def create_chat_completion(self, *args: Any, **keywords: Any) -> Any:
        """Answer a list of messages, through the model's chat template.

        Args:
            messages: dicts with "role" and "content", oldest first.
            *args, **keywords: llama-cpp-python's; `help(Llama.create_chat_completion)` lists them.

        Returns:
            A response dict; with `stream=True` an iterator of chunks, the first of which holds the role. A reasoning
            part is in `reasoning_content`, tool calls are in `tool_calls`.

        Raises:
            As `create_completion`; also OptionError where the template refuses the messages.
        """
        messages, request = bind(ChatRequest, CHAT_ORDER, args, keywords)
        question = chat.prepare(self, messages, request)
        return (chat.stream if request.stream else chat.complete)(self, question, request)

    def create_chat_completion_openai_v1(self, *args: Any, **keywords: Any) -> Any:
        """`create_chat_completion` with objects of the `openai` package as the result.

        Raises:
            UnsupportedError: that package is not installed.
        """
        try:
            types = importlib.import_module("openai.types.chat")
        except ImportError:
            raise UnsupportedError(
                "objects of the openai package need that package", hint="pip install openai"
            ) from None
        answer = self.create_chat_completion(*args, **keywords)
        if isinstance(answer, dict):
            return types.ChatCompletion(**answer)
        return (types.ChatCompletionChunk(**chunk) for chunk in answer)

    # -- embeddings ----------------------------------------------------------------------------------------------

    def embed(
        self,
        input: str | Sequence[str],
        normalize: bool = False,
        truncate: bool = True,
        return_count: bool = False,
    ) -> Any:
        """Embedding of a text, or a list of them for several; without pooling one for each token.

        Args:
            input: one text or several.
            normalize: give them length 1.
            truncate: cut texts to one batch instead of refusing them.
            return_count: give the number of tokens as well.

        Raises:
            UnsupportedError: the object was made without `embedding=True`.
        """
        texts = [input] if isinstance(input, str) else list(input)
        vectors, n_tokens = embedding.embed(self, texts, normalize=normalize, truncate=truncate)
        result = vectors[0] if isinstance(input, str) else vectors
        return (result, n_tokens) if return_count else result

    def create_embedding(self, input: str | Sequence[str], model: str | None = None) -> Response:
        """`embed` with OpenAI's response."""
        texts = [input] if isinstance(input, str) else list(input)
        vectors, n_tokens = embedding.embed(self, texts, normalize=False, truncate=True)
        return embedding.response(self, vectors, n_tokens, model)

    # -- tokens --------------------------------------------------------------------------------------------------

    def tokenizer(self) -> tokens.LlamaTokenizer:
        """The tokenizer as an object."""
        return tokens.LlamaTokenizer(self)

    def eval(self, tokens: Sequence[int]) -> None:
        """Run tokens behind what the context holds.

        Raises:
            ContextFullError: they do not fit.
        """
        self.steps.evaluate(tokens)

    def sample(self, *args: Any, **keywords: Any) -> int:
        """Choose a token from the logits of the last `eval`; arguments as llama-cpp-python's."""
        chosen = {"idx": None, **dict(zip(_SAMPLE_ORDER, args)), **keywords}
        idx = chosen.pop("idx")
        _, request = bind(TokenRequest, ("tokens",), ((),), _with_temperature(chosen))
        return self.steps.sample(request, -1 if idx is None else idx - self.n_tokens)

    def generate(self, *args: Any, **keywords: Any) -> Generator[int, Sequence[int] | None, None]:
        """Token ids behind a prompt of token ids, without end; arguments as llama-cpp-python's.

        The caller stops, at `token_eos()` for example. What the cache holds of the prompt is not computed again.
        """
        named = _with_temperature({**dict(zip(_GENERATE_ORDER, args)), **keywords})
        prompt, request = bind(TokenRequest, ("tokens",), (), named)
        return tokens.generate(self, prompt, request)

    @property
    def input_ids(self) -> NDArray[np.intc]:
        """Tokens in the context, as an array."""
        import numpy as np

        return np.asarray(self.eval_tokens, dtype=np.intc)

    @property
    def scores(self) -> NDArray[np.float32]:
        """Logits of the tokens run by `eval`, [tokens, n_vocab]; the object must be made with `logits_all=True`."""
        return self.steps.scores

    @property
    def eval_logits(self) -> deque[list[float]]:
        """The same as lists; without `logits_all` those of the last token alone."""
        rows = self.steps.scores if self.ctx.options.logits_all else self.ctx.logits[-1:]
        return deque(rows.tolist(), maxlen=self.n_ctx() if self.ctx.options.logits_all else 1)

    def reset(self) -> None:
        """Empty the context."""
        self.ctx.seqs.clear()
        self.steps.reset()

    # -- states and caches --------------------------------------------------------------------------------------

    def set_cache(self, cache: BaseLlamaCache | None) -> None:
        """Keep the state behind every completion in `cache`, and begin with the best one it has."""
        self.cache = cache

    def save_state(self) -> LlamaState:
        """What the context holds.

        Raises:
            StateError: the library could not write it, or it is not known what the context holds.
        """
        return state.save(self.ctx)

    def load_state(self, saved: LlamaState) -> None:
        """Put back what `save_state` gave.

        Raises:
            StateError: it belongs to another model, KV type, format or build, or it is damaged.
        """
        states.set_bytes(self.ctx, saved.llama_state)
        self.steps.reset()


def _with_temperature(values: dict[str, Any]) -> dict[str, Any]:
    """`temp` of the token methods under the name the other methods use."""
    if "temp" in values:
        values["temperature"] = values.pop("temp")
    return values


Llama.create_completion.__signature__ = signature(CompletionRequest, COMPLETION_ORDER, "dict | Iterator[dict]")  # type: ignore[attr-defined]
Llama.__call__.__signature__ = Llama.create_completion.__signature__  # type: ignore[attr-defined]
Llama.create_chat_completion.__signature__ = signature(ChatRequest, CHAT_ORDER, "dict | Iterator[dict]")  # type: ignore[attr-defined]
Llama.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    list(signature(LlamaOptions, ("model_path",), None).parameters.values())[1:]
)
