"""What a model and a context will take, and what fits: planned by the native library itself, before anything is loaded.

    estimate("model.gguf", 32768, kv="turbo3").total        # bytes
    fit("model.gguf", kv="turbo3").n_ctx                    # the largest context for the memory that is free now

The library reads the file's header, decides where every tensor goes (copies that the CPU backend repacks included) and
lays out cache and compute buffers without allocating them, so the numbers are those that `Context.memory` reports
later. `memory` answers from the header alone, without the library, and less exactly.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _native, errors, kv, logs
from ._context_params import native_params
from ._model_file import ModelFiles
from .centers import expected_means, install, known_means
from .context_facts import MemoryRow, read_facts, read_memory
from .devices import GPU_MARGIN_BYTES, devices, gpus, resolve_gpu_layers
from .gguf import read_model
from .hparams import check_hyperparameters
from .memory import CELL_STEP, free_host_bytes
from .model import Model, native_model_params
from .options import ContextOptions, ModelOptions, split_keywords
from .shape import model_shape

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Fit", "MemoryEstimate", "Planner", "estimate", "fit"]

MIN_N_CTX = 4096  # a context that is worth moving layers to the CPU for, as in llama.cpp's --fit-ctx
_MAPPING_MODES = ("auto", "mmap", "mmap+mlock")
_LARGEST_PLANNED = 1 << 19  # beyond, numbers are extended in a straight line: planning keeps 50 bytes a token
_HOST = "CPU"


@dataclass(frozen=True)
class MemoryEstimate:
    """Memory of a model with one context, in bytes.

    Attributes:
        n_ctx: tokens the context holds.
        n_gpu_layers: layers on the GPU, the output layer counted as one.
        type_k, type_v: KV types as stored ("turbo3_64").
        rows: by kind of buffer, as `Context.memory` will report them.
    """

    n_ctx: int
    n_gpu_layers: int
    type_k: str
    type_v: str
    rows: tuple[MemoryRow, ...]

    @property
    def weights(self) -> int:
        """The model's tensors: allocated, and mapped from the file."""
        return sum(row.model_bytes for row in self.rows)

    @property
    def mapped(self) -> int:
        """The part of `weights` that is mapped from the file: the system can drop and reread it."""
        return sum(row.model_bytes for row in self.rows if row.buffer.endswith("_Mapped"))

    @property
    def cache(self) -> int:
        """KV cache and recurrent state."""
        return sum(row.context_bytes for row in self.rows)

    @property
    def compute(self) -> int:
        """Buffers of the computation."""
        return sum(row.compute_bytes for row in self.rows)

    @property
    def total(self) -> int:
        """Everything together."""
        return self.weights + self.cache + self.compute

    def by_device(self) -> dict[str, int]:
        """Bytes by device; host memory of every kind is called CPU."""
        names = [_HOST, *(d.name for d in devices() if d.kind != "cpu")]
        sizes = {
            name: sum(row.model_bytes + row.context_bytes + row.compute_bytes for row in self.on(name))
            for name in names
        }
        return {name: size for name, size in sizes.items() if size}

    def on(self, device: str) -> tuple[MemoryRow, ...]:
        """The rows of one device ("CPU", "CUDA0")."""
        return tuple(row for row in self.rows if _device_of(row.buffer) == device)


@dataclass(frozen=True)
class Fit:
    """What fits.

    Attributes:
        estimate: the plan that fits, with its `n_ctx` and `n_gpu_layers`.
        free: bytes there were to fit into, by device.
        limited_by: "memory", "training" (the model was not trained for more), or "request".
    """

    estimate: MemoryEstimate
    free: Mapping[str, int]
    limited_by: str

    @property
    def n_ctx(self) -> int:
        """Tokens of the context that fits."""
        return self.estimate.n_ctx

    @property
    def n_gpu_layers(self) -> int:
        """Layers on the GPU, the output layer counted as one."""
        return self.estimate.n_gpu_layers


class Planner:
    """A model whose memory can be planned for one context after another; nothing of its weights is read.

    Args:
        path: the GGUF file.
        options: how it would be loaded.

    Raises:
        ModelLoadError: the file is missing, damaged or of an unknown architecture.
        UnsupportedError: GPU layers were asked for and no GPU can be used.
    """

    def __init__(self, path: str | os.PathLike[str], options: ModelOptions | None = None) -> None:
        chosen = options or ModelOptions()
        file = Path(path).expanduser()
        headers = read_model(file)
        check_hyperparameters(headers[0])
        shape = model_shape(headers)
        files = ModelFiles([header.path for header in headers], mapped=False)
        b = self._binding = _native.binding()
        n_gpu_layers = resolve_gpu_layers(chosen.n_gpu_layers, shape.n_layer, shape.weights_bytes)
        params, keep = native_model_params(b, replace(chosen, load_mode="none", vocab_only=False), n_gpu_layers, None)
        params.no_alloc = True
        out = b.ffi.new("turbo_model **")
        logs.forget()
        status = b.lib.turbo_model_load(os.fsencode(file), params, out)
        del keep
        _native.check(b, status, asked=str(file))
        self._model = Model(b, out[0], file, replace(chosen, n_gpu_layers=n_gpu_layers), shape, files)
        self._has_bias = any(name.endswith("attn_k.bias") for header in headers for name in header.tensors)
        self._mapped = self._mapped_bytes(headers) if chosen.load_mode in _MAPPING_MODES else 0
        logs.drain(b.ffi, b.lib)

    @property
    def n_gpu_layers(self) -> int:
        """Layers that would be on the GPU, the output layer counted as one."""
        return int(self._model.options.n_gpu_layers)

    @property
    def n_ctx_train(self) -> int:
        """Tokens the model was trained for."""
        return self._model.facts.n_ctx_train

    def _mapped_bytes(self, headers: Sequence[Any]) -> int:
        """Bytes from the first to the last mapped weight of every file: what lies between is mapped with them."""
        b, total = self._binding, 0
        name = b.ffi.new("char[]", 64)
        for header in headers:
            first, last = header.size, 0
            for tensor in header.tensors.values():
                b.lib.turbo_model_tensor_buffer(self._model.pointer(), tensor.name.encode(), name, 64)
                if _is_host(_native.text(b, name)):
                    first, last = min(first, tensor.offset), max(last, tensor.offset + tensor.n_bytes)
            total += max(last - first, 0)
        return total

    def estimate(self, n_ctx: int | str | None = None, **keywords: Any) -> MemoryEstimate:
        """Memory with one context.

        Args:
            n_ctx: tokens it holds; default 4096, 0 = as trained.
            **keywords: fields of `ContextOptions`, such as `kv`, `n_seq_max`, `n_ubatch`.

        Raises:
            UnsupportedError: the KV types do not fit this model.
            OptionError, UnknownOptionError: a bad value, a keyword that does not exist.
        """
        if n_ctx is not None:
            keywords["n_ctx"] = n_ctx
        (options,) = split_keywords(keywords, ContextOptions)
        return self.plan(options)

    def plan(self, options: ContextOptions) -> MemoryEstimate:
        """`estimate` with all options as one object."""
        wanted = options.n_ctx or self.n_ctx_train
        if wanted <= _LARGEST_PLANNED:
            return self._measure(options, wanted)
        low, high = (self._measure(options, n) for n in (_LARGEST_PLANNED // 2, _LARGEST_PLANNED))
        wanted = -(-wanted // CELL_STEP) * CELL_STEP
        steps = (wanted - high.n_ctx) / (high.n_ctx - low.n_ctx)
        before = {row.buffer: row for row in low.rows}
        rows = tuple(_extended(before[row.buffer], row, steps) for row in high.rows)
        return replace(high, n_ctx=wanted, rows=rows)

    def _measure(self, options: ContextOptions, n_ctx: int) -> MemoryEstimate:
        b, model = self._binding, self._model
        asked = kv.parse(options.kv, options.type_k, options.type_v)
        types = model.kv_types(asked)
        means = known_means(model.files.fingerprint, options) if types[0].block_values > 1 else None
        layers = means.badly_conditioned() if means is not None and types[0].bits < 8 else ()
        params, keep = native_params(b, options, n_ctx, asked, dict.fromkeys(layers, "q8_0"))
        out = b.ffi.new("turbo_context **")
        logs.forget()
        with model.lock:
            status = b.lib.turbo_context_new(model.pointer(), params, out)
        del keep
        _native.check(b, status, asked=asked)
        try:
            if types[0].block_values > 1:
                centred = means or expected_means(model, options, has_bias=self._has_bias)
                if centred is not None:
                    install(b, out[0], centred)  # only measures them, like all else here
            facts, rows = read_facts(b, out[0]), read_memory(b, out[0])
        finally:
            b.lib.turbo_context_free(out[0])
            logs.drain(b.ffi, b.lib)
        mapped = self._with_mapping(rows)
        return MemoryEstimate(facts.n_ctx, self.n_gpu_layers, types[0].name, types[1].name, mapped)

    def _with_mapping(self, rows: tuple[MemoryRow, ...]) -> tuple[MemoryRow, ...]:
        if not self._mapped:
            return rows
        kept = tuple(replace(row, model_bytes=0) if _is_host(row.buffer) else row for row in rows)
        return (MemoryRow(f"{_HOST}_Mapped", self._mapped, 0, 0), *kept)

    def close(self) -> None:
        """Forget the model. Later calls do nothing."""
        self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _device_of(buffer: str) -> str:
    """Device of a kind of buffer: "CUDA0" of "CUDA0", the CPU of "CPU_REPACK" and of pinned "CUDA_Host"."""
    name = buffer.split("_")[0]
    return _HOST if buffer.endswith("_Host") or not any(d.name == name for d in devices()) else name


def _is_host(buffer: str) -> bool:
    """Whether weights of this kind of buffer are mapped where files are mapped: plain and pinned host memory."""
    return buffer == _HOST or buffer.endswith("_Host")


def _extended(before: MemoryRow, after: MemoryRow, steps: float) -> MemoryRow:
    def line(a: int, b: int) -> int:
        return b + int((b - a) * steps)

    return MemoryRow(
        after.buffer,
        after.model_bytes,
        line(before.context_bytes, after.context_bytes),
        line(before.compute_bytes, after.compute_bytes),
    )


def estimate(path: str | os.PathLike[str], n_ctx: int | str | None = None, **keywords: Any) -> MemoryEstimate:
    """Memory of a model with one context, before loading it.

    Args:
        path: the GGUF file.
        n_ctx: tokens the context holds; default 4096, 0 = as trained.
        **keywords: fields of `ModelOptions` and `ContextOptions`.

    Raises:
        As `Planner` and `Planner.estimate`.
    """
    if n_ctx is not None:
        keywords["n_ctx"] = n_ctx
    model_options, options = split_keywords(keywords, ModelOptions, ContextOptions)
    with Planner(path, model_options) as planner:
        return planner.plan(options)


def free_bytes() -> dict[str, int]:
    """Memory that can be had now, by device; a part of every GPU is left to others. Unknown is left out."""
    free = {d.name: max(d.free_bytes - GPU_MARGIN_BYTES, 0) for d in devices() if d.kind != "cpu"}
    host = free_host_bytes()
    return free if host is None else {**free, _HOST: host}


def fit(
    path: str | os.PathLike[str],
    n_ctx: int | str | None = None,
    *,
    free: Mapping[str, int] | int | None = None,
    **keywords: Any,
) -> Fit:
    """The largest context, or the fewest layers on the CPU, for the memory that is free.

    With `n_ctx` given, as many layers as fit beside it go to the GPU. Without, the context is as large as the model
    was trained for or as fits with all layers on the GPU; where that would be below 4096 tokens, layers move to the CPU
    instead. Without a GPU only the context can give way.

    Args:
        path: the GGUF file.
        n_ctx: tokens the context has to hold; 0 = as trained.
        free: bytes by device ("CPU", "CUDA0"), or of the host alone; default: what is free now.
        **keywords: fields of `ModelOptions` and `ContextOptions`; a number for `n_gpu_layers` is kept.

    Raises:
        MemoryLimitError: nothing fits; the message holds the arithmetic.
        As `estimate`.
    """
    keywords["n_ctx"] = 0 if n_ctx is None else n_ctx
    model_options, options = split_keywords(keywords, ModelOptions, ContextOptions)
    known = {_HOST: free} if isinstance(free, int) else dict(free) if free is not None else free_bytes()
    chosen = model_options.n_gpu_layers
    fixed = isinstance(chosen, int) or not gpus()

    first = Planner(path, model_options if fixed else replace(model_options, n_gpu_layers="all"))
    top = first.n_gpu_layers
    planners = {top: first}

    def measure(n_gpu_layers: int, tokens: int) -> MemoryEstimate:
        if n_gpu_layers not in planners:
            planners[n_gpu_layers] = Planner(path, replace(model_options, n_gpu_layers=n_gpu_layers))
        return planners[n_gpu_layers].plan(replace(options, n_ctx=tokens))

    try:
        choices = range(top, top + 1) if fixed else range(top + 1)
        return search(measure, known, choices, options.n_ctx or first.n_ctx_train, n_ctx is not None)
    finally:
        for planner in planners.values():
            planner.close()


def search(
    measure: Callable[[int, int], MemoryEstimate],
    free: Mapping[str, int],
    gpu_layers: range,
    n_ctx: int,
    asked: bool,
) -> Fit:
    """`fit` with the measuring apart: `measure(n_gpu_layers, n_ctx)`, and the numbers of layers to choose from."""

    def fits(plan: MemoryEstimate, host: bool = True) -> bool:
        sizes = plan.by_device().items()
        return all(size <= free[name] for name, size in sizes if name in free and (host or name != _HOST))

    most = gpu_layers[-1]
    whole = measure(most, n_ctx)
    if fits(whole):
        return Fit(whole, free, "request" if asked else "training")
    smallest = n_ctx if asked else min(MIN_N_CTX if len(gpu_layers) > 1 else CELL_STEP, n_ctx)
    if not asked:
        low, high = max(smallest // CELL_STEP, 1), n_ctx // CELL_STEP
        best = _largest(lambda i: fits(measure(most, i * CELL_STEP)), low, high)
        if best is not None:
            return Fit(measure(most, best * CELL_STEP), free, "memory")
    layers = _largest(lambda i: fits(measure(i, smallest), host=False), gpu_layers[0], most)
    plan = measure(gpu_layers[0] if layers is None else layers, smallest)
    if layers is None or not fits(plan):
        less = _largest(lambda i: fits(measure(plan.n_gpu_layers, i * CELL_STEP)), 1, smallest // CELL_STEP)
        raise _refusal(plan, free, (less or 0) * CELL_STEP)
    return Fit(plan, free, "memory")


def _largest(fits: Callable[[int], bool], low: int, high: int) -> int | None:
    """The largest number from low to high that fits, or None; what fits a number fits all below."""
    if high < low or not fits(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _refusal(plan: MemoryEstimate, free: Mapping[str, int], less: int) -> errors.MemoryLimitError:
    def gib(n: int) -> str:
        return f"{n / 2**30:,.2f} GiB"

    name, need = max(plan.by_device().items(), key=lambda item: item[1] - free.get(item[0], item[1]))
    return errors.MemoryLimitError(
        f"{plan.n_ctx:,} tokens do not fit: weights {gib(plan.weights)}, {plan.type_k}/{plan.type_v} cache "
        f"{gib(plan.cache)} and computing {gib(plan.compute)} need {gib(need)} on {name}, free are {gib(free[name])}",
        asked=need,
        limit=free[name],
        hint=f"{less:,} tokens would fit; or choose a smaller KV type" if less else "choose a smaller model",
    )
