"""LoRA adapters: small files that change a model's weights, loaded with it and scaled per context.

    with Model.open("model.gguf", lora=["style.gguf", ("tone.gguf", 0.5)]) as model:
        with model.context(4096) as ctx, model.context(4096, lora_scales=[0, 0]) as plain:
            ...

Several adapters add up. The adapter's memory belongs to the model and goes with it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _native, errors, logs
from ._model_file import fingerprint
from .gguf import read_gguf

if TYPE_CHECKING:
    from .context import Context
    from .model import Model

__all__ = ["Lora"]


@dataclass(frozen=True)
class Lora:
    """A loaded adapter.

    Attributes:
        path: its file.
        scale: its weight in contexts that do not say otherwise.
        alpha: the adapter's own scaling numerator (its effect is scale * alpha / rank), 0 if the file has none.
        n_bytes: of its tensors.
        fingerprint: identifies the file's content; part of the identity of saved state.
    """

    path: Path
    scale: float
    alpha: float
    n_bytes: int
    fingerprint: str
    pointer: Any = field(repr=False, compare=False)


def load_adapters(model: Model, chosen: Sequence[tuple[str, float]]) -> tuple[Lora, ...]:
    """Load adapters into a model.

    Raises:
        ModelLoadError: a file is missing, damaged, no adapter, or made for another model; the message says which.
    """
    b = model._binding
    adapters = []
    for name, scale in chosen:
        path = Path(name).expanduser()
        try:
            header = read_gguf(path)
        except errors.GGUFError as error:
            raise errors.ModelLoadError(f"LoRA adapter {error.message}", asked=str(path)) from None
        out = b.ffi.new("turbo_lora **")
        logs.forget()
        with model.lock:
            status = b.lib.turbo_lora_load(model.pointer(), os.fsencode(path), out)
        _native.check(b, status, asked=str(path), hint=f"the model's architecture is {model.facts.arch}")
        logs.drain(b.ffi, b.lib)
        alpha = header.get("adapter.lora.alpha")
        alpha = alpha if isinstance(alpha, float) else 0.0
        adapters.append(Lora(path, scale, alpha, header.weights_bytes, fingerprint(path), out[0]))
    return tuple(adapters)


def apply_scales(context: Context, scales: Sequence[float]) -> tuple[float, ...]:
    """Set the weights of the model's adapters in a context; returns them.

    Raises:
        OptionError: another number of scales than there are adapters, or one that is not finite.
    """
    adapters, b = context.model.lora, context._binding
    values = tuple(float(s) for s in scales)
    if len(values) != len(adapters):
        raise errors.OptionError(
            f"{len(values)} LoRA scales for {len(adapters)} adapters",
            asked=values,
            limit=len(adapters),
            hint="give one scale for each adapter the model was opened with",
        )
    pointers = b.ffi.new("turbo_lora *[]", [a.pointer for a in adapters])
    status = b.lib.turbo_lora_set(context.pointer(), pointers, b.ffi.new("float[]", values), len(values))
    _native.check(b, status, asked=values)
    return values
