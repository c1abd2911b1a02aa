"""OpenAI's response dicts as llama-cpp-python gives them, built from what a generation produced."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..logprobs import TokenLogprobs

Response = dict[str, Any]


@dataclass(frozen=True)
class Heading:
    """What every response and chunk of one request repeats."""

    id: str
    object: str
    created: int
    model: str

    @classmethod
    def completion(cls, model: str) -> Heading:
        """Of a completion."""
        return cls(f"cmpl-{uuid.uuid4()}", "text_completion", int(time.time()), model)

    @classmethod
    def chat(cls, model: str, *, stream: bool) -> Heading:
        """Of a chat."""
        kind = "chat.completion.chunk" if stream else "chat.completion"
        return cls(f"chatcmpl-{uuid.uuid4()}", kind, int(time.time()), model)

    def response(self, choice: Response, usage: Response | None = None) -> Response:
        """A response with one choice."""
        result = {**vars(self), "choices": [choice]}
        if usage is not None:
            result["usage"] = usage
        return result


def usage(n_prompt: int, n_generated: int) -> Response:
    """Token counts."""
    return {"prompt_tokens": n_prompt, "completion_tokens": n_generated, "total_tokens": n_prompt + n_generated}


def text_choice(text: str, logprobs: Response | None, finish_reason: str | None) -> Response:
    """The choice of a completion or of one of its chunks."""
    return {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": finish_reason}


def _shown(piece: bytes) -> str:
    return piece.decode("utf-8", "ignore")


def _alternatives(entry: TokenLogprobs) -> dict[str, float]:
    table = {_shown(candidate.piece): candidate.logprob for candidate in entry.top}
    table.setdefault(_shown(entry.piece), entry.logprob)
    return table


@dataclass(frozen=True)
class Scored:
    """One token of a text: where it begins, in characters, and its log probabilities (None: there are none)."""

    offset: int
    piece: bytes
    entry: TokenLogprobs | None


def text_logprobs(tokens: Sequence[Scored]) -> Response:
    """The older, column-wise form of completions."""
    return {
        "tokens": [_shown(token.piece) for token in tokens],
        "text_offset": [token.offset for token in tokens],
        "token_logprobs": [token.entry.logprob if token.entry else None for token in tokens],
        "top_logprobs": [_alternatives(token.entry) if token.entry else None for token in tokens],
    }


def chat_logprobs(tokens: Sequence[Scored]) -> Response:
    """The row-wise form of chats."""
    return {
        "content": [
            {**_row(t.entry.piece, t.entry.logprob), "top_logprobs": [_row(c.piece, c.logprob) for c in t.entry.top]}
            for t in tokens
            if t.entry is not None
        ],
        "refusal": None,
    }


def _row(piece: bytes, logprob: float) -> Response:
    return {"token": _shown(piece), "bytes": list(piece), "logprob": logprob}
