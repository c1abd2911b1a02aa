"""Profiling decode steps of a model at a depth: fill, warm up, record, add up."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..bench.fill import fill, random_tokens
from ..errors import OptionError
from ..gguf import read_model
from .cupti import Recorder
from .events import Event, Profile, summarise
from .launches import ExpertMatmul, Launches, count_launches, expert_matmul, expert_shape
from .operations import OperationRecorder
from .roofline import cache_bytes, device_copy_rate, host_copy_rate, weight_bytes, with_rates

if TYPE_CHECKING:
    from ..context import Context
    from ..model import Model

__all__ = ["Capture", "capture"]

_WARM_UP_STEPS = 4


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
        launches: how the kernels of a step were launched.
        experts: the expert matmul, None for a model without experts.
    """

    profile: Profile
    events: tuple[Event, ...]
    method: str
    depth_fill: str
    effective: str
    plain_us: float
    launches: Launches
    experts: ExpertMatmul | None

    def record(self, **more: Any) -> dict[str, Any]:
        """As a record of a result file."""
        return self.profile.record(
            method=self.method,
            depth_fill=self.depth_fill,
            effective=self.effective,
            plain_us=self.plain_us,
            launches=self.launches.record(),
            experts=self.experts.record() if self.experts is not None else None,
            **more,
        )


def _steps(context: Context, tokens: list[int], position: int) -> int:
    """Decode tokens one at a time; returns nanoseconds."""
    start = time.perf_counter_ns()
    for token in tokens:
        context.decode_one(token, position)
        _ = context.logits  # waits for the device
        position += 1
    return time.perf_counter_ns() - start


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
    kernels = Recorder.shared() if method == "cupti" else None
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
    shape = expert_shape(files, model.shape.n_expert, model.shape.n_expert_used)
    return Capture(
        profile=with_rates(summarise(events, steps, wall, peak), weights, cache),
        events=tuple(events),
        method=method,
        depth_fill=depth_fill,
        effective=effective,
        plain_us=plain / steps / 1e3,
        launches=count_launches(events, steps),
        experts=expert_matmul(events, steps, shape, peak),
    )
