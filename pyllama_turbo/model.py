"""A loaded model: opening it, what it is, and making contexts."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _callbacks, _native, kv, logs
from ._lifetime import Handle
from ._model_file import ModelFiles
from .devices import resolve_gpu_layers
from .gguf import read_model
from .hparams import check_hyperparameters
from .lora import Lora, load_adapters
from .options import ContextOptions, ModelOptions, build
from .shape import ModelShape, model_shape
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from .context import Context

__all__ = ["LayerFacts", "Model", "ModelFacts"]

_SPLIT_MODES = {"none": 0, "layer": 1, "row": 2}
_LOADED_WHOLE = ("none", "dio")  # load modes that leave nothing mapped
_META_BYTES = 4096


@dataclass(frozen=True)
class ModelFacts:
    """What a model says about itself. Counts, and sizes in bytes."""

    arch: str
    description: str
    ftype: str
    n_layer: int
    n_layer_nextn: int
    n_embd: int
    n_head: int
    n_head_kv: int
    n_ctx_train: int
    n_vocab: int
    n_swa: int
    n_expert: int
    n_params: int
    size_bytes: int
    has_encoder: bool
    has_decoder: bool
    is_recurrent: bool
    is_hybrid: bool
    is_mla: bool
    is_diffusion: bool


@dataclass(frozen=True)
class LayerFacts:
    """Attention of one layer; `has_kv` says whether it owns cache tensors, `head_dim_v` is 0 where V is a view of K."""

    has_kv: bool
    is_swa: bool
    is_recurrent: bool
    n_head: int
    n_head_kv: int
    head_dim_k: int
    head_dim_v: int
    n_rot: int
    device: str


def _read_struct(b: _native.Binding, row: Any, cls: type) -> Any:
    """A dataclass filled from the struct's fields of the same names."""
    values = {}
    for name, kind in cls.__annotations__.items():
        value = getattr(row, name)
        values[name] = _native.text(b, value) if kind == "str" else bool(value) if kind == "bool" else value
    return cls(**values)


class Model(Handle):
    """A model. Open one with `Model.open`; it is a context manager and may serve several contexts.

    Attributes:
        path: the file it was loaded from.
        files: its files, kept open to notice when they change.
        options: how it was loaded; `n_gpu_layers` is the number really used.
        facts: see `ModelFacts`.
        tokenizer: see `Tokenizer`.
        lora: the LoRA adapters it was opened with.
    """

    _what = "model"

    def __init__(
        self,
        binding: _native.Binding,
        pointer: Any,
        path: Path,
        options: ModelOptions,
        shape: ModelShape,
        files: ModelFiles | None = None,
    ) -> None:
        super().__init__(binding, pointer, binding.lib.turbo_model_free)
        self.path = path
        self.files = files or ModelFiles((), mapped=False)
        self.options = options
        self.shape = shape
        row = binding.ffi.new("turbo_model_facts *")
        _native.check(binding, binding.lib.turbo_model_get_facts(pointer, row))
        self.facts: ModelFacts = _read_struct(binding, row, ModelFacts)
        self.tokenizer = Tokenizer(binding, self)
        self.lora: tuple[Lora, ...] = ()

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        progress: Callable[[float], bool | None] | None = None,
        options: ModelOptions | None = None,
        **keywords: Any,
    ) -> Model:
        """Load a GGUF file.

        Args:
            path: the file, or the first part of a split one.
            progress: called with 0.0 to 1.0 while loading; returning False cancels. Exceptions come out of `open`.
            options: all options as one object, instead of keywords.
            **keywords: fields of `ModelOptions`, such as `n_gpu_layers` or `lora`.

        Raises:
            ModelLoadError: the file, or a LoRA adapter, is missing, damaged or of an unknown or another architecture.
            UnsupportedError: GPU layers were asked for and no GPU can be used.
            MemoryLimitError: an allocation failed.
            AbortedError: the progress function returned False.
            OptionError, UnknownOptionError: a bad value, a keyword that does not exist.
        """
        chosen = options if options is not None and not keywords else build(ModelOptions, keywords)
        file = Path(path).expanduser()
        parts = read_model(file)  # a damaged file is refused here, with the reason and the place
        check_hyperparameters(parts[0])
        shape = model_shape(parts)
        files = ModelFiles([part.path for part in parts], mapped=chosen.load_mode not in _LOADED_WHOLE)
        b = _native.binding()
        n_gpu_layers = resolve_gpu_layers(chosen.n_gpu_layers, shape.n_layer, shape.weights_bytes)
        params, keep = native_model_params(b, chosen, n_gpu_layers, progress)
        out = b.ffi.new("turbo_model **")
        logs.forget()
        status = b.lib.turbo_model_load(os.fsencode(file), params, out)
        del keep
        _native.check(b, status, asked=str(file))
        effective = replace(chosen, n_gpu_layers=n_gpu_layers)
        # made first of all: from here on it is freed whatever happens
        model = cls(b, out[0], file, effective, shape, files)
        try:
            logs.drain(b.ffi, b.lib)
            _callbacks.raise_parked()
            model.lora = load_adapters(model, chosen.lora)
        except BaseException:
            model.close()
            raise
        return model

    def context(
        self,
        n_ctx: int | str | None = None,
        *,
        progress: Callable[[float], bool | None] | None = None,
        **keywords: Any,
    ) -> Context:
        """Make a context.

        The first context of a model with a compressed K type measures the model's mean keys (`pyllama_turbo.centers`),
        which takes some seconds and is kept; `k_center` and `calibrate` decide otherwise.

        Args:
            n_ctx: tokens it holds; 0 = as trained.
            progress: called with 0.0 to 1.0 while mean keys are measured; returning False cancels.
            **keywords: fields of `ContextOptions`, such as `kv="turbo3"`, `n_seq_max`, `flash_attn`.

        Raises:
            UnsupportedError: the KV types do not fit this model; the message says which head dims it has.
            MemoryLimitError: it would not fit into free memory; the message holds the arithmetic.
            OptionError, UnknownOptionError: a bad value, a keyword that does not exist.
        """
        from .context import Context

        if n_ctx is not None:
            keywords["n_ctx"] = n_ctx
        return Context(self, build(ContextOptions, keywords), progress)

    def layer(self, index: int) -> LayerFacts:
        """Facts of one layer. Raises OptionError when the index is out of range."""
        row = self._binding.ffi.new("turbo_layer_facts *")
        with self.lock:
            status = self._binding.lib.turbo_model_get_layer(self.pointer(), index, row)
            _native.check(self._binding, status, asked=index, limit=self.facts.n_layer)
        facts: LayerFacts = _read_struct(self._binding, row, LayerFacts)
        return facts

    @cached_property
    def layers(self) -> tuple[LayerFacts, ...]:
        """Facts of all layers, prediction heads included."""
        return tuple(self.layer(i) for i in range(self.facts.n_layer + self.facts.n_layer_nextn))

    @cached_property
    def metadata(self) -> dict[str, str]:
        """GGUF metadata: scalars as text. Arrays (the vocabulary) are left out; `gguf.read_gguf` knows them."""
        lib, pointer = self._binding.lib, self.pointer()
        return {
            self._meta(lib.turbo_model_meta_key, i): self._meta(lib.turbo_model_meta_value, i)
            for i in range(lib.turbo_model_meta_count(pointer))
        }

    def _meta(self, read: Callable[..., int], index: int) -> str:
        room = _META_BYTES
        while True:
            buffer = self._binding.ffi.new("char[]", room)
            with self.lock:
                need = _native.check(self._binding, read(self.pointer(), index, buffer, room))
            if need < room:
                return _native.text(self._binding, buffer)
            room = need + 1

    def kv_types(self, kv_choice: Any = None, *, type_k: Any = None, type_v: Any = None) -> tuple[kv.KVType, kv.KVType]:
        """The exact K and V types a context of this model would store for a choice (see `kv.parse`).

        Raises:
            UnsupportedError: they do not fit this model, with the reason.
            OptionError: an unknown name.
        """
        k, v = kv.parse(kv_choice, type_k, type_v)
        b = self._binding
        rows = [b.ffi.new("turbo_kv_type *") for _ in range(2)]
        with self.lock:
            _native.check(b, b.lib.turbo_kv_select(self.pointer(), k.encode(), v.encode(), *rows), asked=(k, v))
        return kv.find(_native.text(b, rows[0].name)), kv.find(_native.text(b, rows[1].name))

    def __repr__(self) -> str:
        return f"<Model {self.facts.description!r} {self.path.name}{' closed' if self.closed else ''}>"


def native_model_params(
    b: _native.Binding, options: ModelOptions, n_gpu_layers: int, progress: Callable[[float], bool | None] | None
) -> tuple[Any, list[Any]]:
    """The native parameters, and what must stay alive until the load is over."""
    ffi = b.ffi
    params = ffi.new("turbo_model_params *")
    b.lib.turbo_model_params_init(params)
    keep: list[Any] = [
        ffi.new("char[]", options.load_mode.encode()),
        ffi.new("char[]", options.override_tensor.encode()),
    ]
    params.n_gpu_layers = n_gpu_layers
    params.split_mode = _SPLIT_MODES[options.split_mode]
    params.main_gpu = options.main_gpu
    params.load_mode = keep[0]
    if options.override_tensor:
        params.overrides = keep[1]
    if options.tensor_split:
        keep.append(ffi.new("float[]", list(options.tensor_split)))
        params.tensor_split = keep[-1]
        params.n_tensor_split = len(options.tensor_split)
    for name in ("use_extra_bufts", "check_tensors", "vocab_only", "load_mtp"):
        setattr(params, name, getattr(options, name))
    # without a function of the user's, progress still enters Python now and then, so that Ctrl-C reaches a load
    target = ffi.new_handle(_callbacks.ProgressTarget(progress or (lambda _: None)))
    keep.append(target)
    params.progress = b.lib.turbo_py_progress
    params.progress_data = target
    return params, keep
