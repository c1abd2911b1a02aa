"""What a generation says at each step."""

from __future__ import annotations

from dataclasses import dataclass

from .logprobs import TokenLogprobs

__all__ = ["Event"]


@dataclass(frozen=True)
class Event:
    """One step of a generation.

    Attributes:
        text: new text that can be shown; may be empty while a character or a stop text is incomplete.
        token: the token of this step, None for the last event and for the echoed prompt.
        n_prompt: tokens of the prompt, of which `n_reused` were in the cache already.
        n_generated: tokens generated so far.
        prompt_tok_s: tokens of the prompt computed per second, 0 if none were.
        decode_tok_s: tokens generated per second, the prompt's time not counted; 0 before the second.
        finish_reason: None, and in the last event "stop" (end token or stop text), "length" (max_tokens, or the context
            is full), "grammar_end" (the text satisfies the grammar and nothing could follow) or "abort".
        stop_text: the stop text that ended it, if one did.
        seed: the sampler's seed.
        job: which prompt of a batch it belongs to, in the order they were added; 0 for a single generation.
        seq: the sequence of the context it runs in.
        logprobs: of `token`, if asked for.
        prompt_logprobs: in the event of the echoed prompt, if logprobs were asked for: one entry a token, None for the
            first, which nothing predicts.
    """

    text: str
    token: int | None
    n_prompt: int
    n_reused: int
    n_generated: int
    prompt_tok_s: float
    decode_tok_s: float
    finish_reason: str | None
    stop_text: str | None
    seed: int
    job: int = 0
    seq: int = 0
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
