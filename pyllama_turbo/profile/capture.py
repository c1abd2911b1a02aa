"""Profiling decode steps of a model at a depth: fill, warm up, record, add up."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from ..bench.fill import fill, random_tokens
from ..errors import OptionError
from ..gguf import read_model
from .cupti import Recorder
from .events import Event, PhaseRow, Profile, summarise
from .operations import OperationRecorder
from .roofline import cache_bytes, device_copy_rate, host_copy_rate, weight_bytes

if TYPE_CHECKING:
    from ..context import Context
    from ..model import Model

__all__ = ["Capture", "capture"]

_WARM_UP_STEPS = 4
_WEIGHT_PHASES = ("experts", "matmul")


class _Recording(Protocol):
    def start(self) -> None: ...
    def stop(self) -> list[Event]: ...


@dataclass(frozen=True)
class Capture:
    """A profile with its events and what it was made of.

    Attributes:
        profile: the numbers.
        events: every kernel or operation, for a trace.
        method: "cupti" or "operations".
        depth_fill: how the cache was filled.
        effective: types of the cache as "K/V".
        plain_us: mean time of a step without the profiler, microseconds.
    """

    profile: Profile
    events: tuple[Event, ...]
    method: str
    depth_fill: str
    effective: str
    plain_us: float


def _steps(context: Context, tokens: list[int], position: int) -> int:
    """Decode tokens one at a time; returns nanoseconds."""
    start = time.perf_counter_ns()
    for token in tokens:
        context.decode_one(token, position)
        _ = context.logits  # waits for the device
        position += 1
    return time.perf_counter_ns() - start


def _with_bytes(profile: Profile, weights: int, cache: int) -> Profile:
    """The profile with bytes per second of the phases whose traffic follows from the shapes, where events lack them."""
    heavy = max((row for row in profile.phases if row.phase in _WEIGHT_PHASES), key=lambda r: r.us_step, default=None)
    weight_us = sum(row.us_step for row in profile.phases if row.phase in _WEIGHT_PHASES)

    def rate(row: PhaseRow) -> float:
        if row.gb_s:
            return row.gb_s
        if heavy is not None and row.phase == heavy.phase and weight_us:
            return weights / weight_us / 1e3
        return cache / row.us_step / 1e3 if row.phase == "kv_read" and row.us_step else 0.0

    return replace(profile, phases=tuple(replace(row, gb_s=rate(row)) for row in profile.phases))


def capture(
    model: Model,
    *,
    depth: int = 0,
    steps: int = 16,
    fill_mode: str = "auto",
    method: str = "auto",
    note: Callable[[str], None] = lambda _: None,
    **keywords: Any,
) -> Capture:
    """Profile `steps` decode steps behind `depth` tokens.

    Args:
        model: a loaded model.
        depth: tokens in the cache before the first step.
        steps: steps recorded.
        fill_mode: see `bench.fill.fill`.
        method: "cupti" (GPU kernels), "operations" (CPU), or "auto" by the library in use.
        note: told what is being done.
        **keywords: of the context, such as kv.

    Raises:
        OptionError: no steps, an unknown method.
        UnsupportedError: no profiler for this library or machine.
    """
    if steps < 1:
        raise OptionError(f"{steps} steps cannot be profiled", asked=steps, limit=1)
    if method == "auto":
        method = "cupti" if model._binding.backend == "cuda" else "operations"
    if method not in ("cupti", "operations"):
        raise OptionError(f"the method is {method!r}", asked=method, hint="one of auto, cupti, operations")
    kernels = Recorder() if method == "cupti" else None
    if kernels is not None:
        kernels.start()
    room = depth + _WARM_UP_STEPS + 2 * steps
    with model.context(n_ctx=room, **keywords) as context:
        recorder: _Recording = kernels or OperationRecorder(context)
        note("filling the cache")
        depth_fill = fill(context, depth, fill_mode)
        tokens = random_tokens(model.facts.n_vocab, _WARM_UP_STEPS + 2 * steps, seed=3)
        note("warming up")
        _steps(context, tokens[:_WARM_UP_STEPS], depth)
        position = depth + _WARM_UP_STEPS
        note("running without the profiler" if kernels is None else "running once more")
        plain = _steps(context, tokens[:steps], position)
        note("recording")
        if kernels is not None:
            kernels.discard()
        else:
            recorder.start()
        wall = _steps(context, tokens[steps : 2 * steps], position + steps)
        events = recorder.stop()
        files = read_model(model.path)
        weights = weight_bytes(files, model.shape.n_expert, model.shape.n_expert_used)
        cache = cache_bytes(context, position + steps)
        layer = context.kv.effective[0] if context.kv.effective else None
        effective = f"{layer.type_k}/{layer.type_v}" if layer else "-"
    note("measuring the copy rate")
    peak = device_copy_rate() if kernels is not None else host_copy_rate()
    profile = _with_bytes(summarise(events, steps, wall, peak), weights, cache)
    return Capture(profile, tuple(events), method, depth_fill, effective, plain / steps / 1e3)
