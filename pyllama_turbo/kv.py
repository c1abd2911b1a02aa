"""KV cache types: which there are, how a choice is written, and encoding of plain arrays.

A choice is a name for both ("turbo3"), "K/V" ("q8_0/turbo3") or a pair ("q8_0", "turbo3"). Names and sizes come from
the loaded library; ids never leave this module, they differ between builds.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _native, errors
from ._option_spec import suggest
from .centering import Centering

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

__all__ = ["DEFAULT", "Centering", "KVLayer", "KVReport", "KVType", "decode", "encode", "find", "parse", "types"]

DEFAULT = "f16"
_AS_THEY_ARE = Centering("off", reason="keys of this type are stored as they are")


@dataclass(frozen=True)
class KVType:
    """A storage format for cached keys and values.

    Attributes:
        name: the exact name; "turbo3_64" is "turbo3" with blocks of 64 values.
        family: the name users choose.
        block_values: values a block holds.
        block_bytes: bytes it takes.
        is_turbo: one of this project's compressed types.
    """

    name: str
    family: str
    block_values: int
    block_bytes: int
    is_turbo: bool

    @property
    def bits(self) -> float:
        """Bits a value takes, everything included."""
        return 8 * self.block_bytes / self.block_values


@dataclass(frozen=True)
class KVLayer:
    """One layer of a context's cache, read back from its tensors.

    Attributes:
        layer: index in the model.
        part: "full" or "window" (sliding-window cache).
        type_k, type_v: exact type names; type_v is "" where V is a view of K.
        k_bytes, v_bytes: size of the tensors.
        k_bits, v_bits: bits a value takes in them.
        cells: tokens the layer holds.
        k_center: what the layer's keys are stored less of: "none", "one centre" or "runs of 64" (a centre for each run
            of so many cells, where all attention to them is on the CPU).
        device_k, device_v: buffer each tensor lies in.
    """

    layer: int
    part: str
    type_k: str
    type_v: str
    k_bytes: int
    v_bytes: int
    k_bits: float
    v_bits: float
    cells: int
    k_center: str
    device_k: str
    device_v: str


@dataclass(frozen=True)
class KVReport:
    """What was asked for and what the cache is: `ctx.kv`.

    Attributes:
        requested: names of the K and V type asked for.
        effective: one entry per layer that owns a cache.
        centering: what is done about the mean of the keys.
    """

    requested: tuple[str, str]
    effective: tuple[KVLayer, ...]
    centering: Centering = _AS_THEY_ARE

    @property
    def bytes(self) -> int:
        """Bytes of all K and V tensors."""
        return sum(layer.k_bytes + layer.v_bytes for layer in self.effective)

    @property
    def bits(self) -> float:
        """Mean bits a value takes over K and V of all layers; 0 for a model without KV cache."""
        values = sum(8 * n / b for x in self.effective for n, b in ((x.k_bytes, x.k_bits), (x.v_bytes, x.v_bits)) if b)
        return 8 * self.bytes / values if values else 0.0

    @property
    def substituted(self) -> tuple[KVLayer, ...]:
        """Layers whose tensors are not of the family asked for."""
        table = {t.name: t.family for t in _table()}
        k, v = self.requested
        return tuple(
            x for x in self.effective if table.get(x.type_k) != k or (x.type_v != "" and table.get(x.type_v) != v)
        )


def _table() -> tuple[KVType, ...]:
    b = _native.binding()
    row = b.ffi.new("turbo_kv_type *")
    found = []
    for i in range(b.lib.turbo_kv_type_count()):
        _native.check(b, b.lib.turbo_kv_type_get(i, row))
        name, family = _native.text(b, row.name), _native.text(b, row.family)
        found.append(KVType(name, family, row.block_values, row.block_bytes, bool(row.is_turbo)))
    return tuple(found)


def types() -> tuple[KVType, ...]:
    """The types of the loaded library under their public names, upstream's first, each with its largest block."""
    return tuple(t for t in _table() if t.name == t.family)


def find(name: str) -> KVType:
    """The type of that exact or public name.

    Raises:
        OptionError: there is none; `limit` holds the names there are.
    """
    table = _table()
    for kind in table:
        if kind.name == name:
            return kind
    names = tuple(t.name for t in table if t.name == t.family)
    close = suggest(str(name), list(names))
    raise errors.OptionError(
        f"unknown KV cache type {name!r}", asked=name, limit=names, hint=close or f"one of {', '.join(names)}"
    )


def parse(kv: Any = None, type_k: Any = None, type_v: Any = None) -> tuple[str, str]:
    """Names of the K and V type of a choice, checked; f16 where nothing is given.

    Args:
        kv: "turbo3", "q8_0/turbo3", ("q8_0", "turbo3") or None.
        type_k, type_v: one name each; not together with `kv`.

    Raises:
        OptionError: an unknown name, both ways used at once, or another shape.
    """
    if kv is not None and (type_k is not None or type_v is not None):
        raise errors.OptionError(
            "kv stands for type_k and type_v", asked=kv, hint="give either kv or type_k and type_v"
        )
    if kv is None:
        pair: tuple[Any, ...] = (type_k or DEFAULT, type_v or DEFAULT)
    elif isinstance(kv, str):
        pair = tuple(part.strip() for part in kv.split("/")) if "/" in kv else (kv.strip(), kv.strip())
    elif isinstance(kv, (tuple, list)):
        pair = tuple(kv)
    else:
        pair = ()
    if len(pair) != 2 or not all(isinstance(part, str) for part in pair):
        raise errors.OptionError(
            f"a KV choice cannot be {kv if kv is not None else (type_k, type_v)!r}",
            asked=kv if kv is not None else (type_k, type_v),
            hint="write 'turbo3', 'q8_0/turbo3' or ('q8_0', 'turbo3')",
        )
    return find(pair[0].lower()).family, find(pair[1].lower()).family


def _for_rows(name: str, values: int) -> KVType:
    """The sibling of a type with the largest block that divides rows of `values`; an exact name stays as it is."""
    kind = find(name)
    fitting = [t for t in _table() if t.family == kind.family and values % t.block_values == 0]
    if kind.name != kind.family:
        fitting = [t for t in fitting if t.name == kind.name]
    if not fitting or values <= 0:
        raise errors.OptionError(
            f"rows of {values} values do not fill whole blocks of {name}", asked=values, limit=kind.block_values
        )
    return max(fitting, key=operator.attrgetter("block_values"))


def encode(x: ArrayLike, kv_type: str) -> NDArray[np.uint8]:
    """Encode float values exactly as the cache would.

    Args:
        x: any shape; the last axis is one head, a multiple of 128 or 64 for turbo types.
        kv_type: a type name; the block size follows from the last axis unless the name ends in _64.

    Returns:
        uint8, shape `x.shape[:-1] + (bytes,)`.

    Raises:
        OptionError: unknown type, rows that do not fill blocks, or values that are not finite.
    """
    import numpy as np

    rows = np.ascontiguousarray(x, dtype=np.float32)
    if rows.ndim == 0 or rows.size == 0:
        raise errors.OptionError("there is nothing to encode", asked=rows.shape)
    kind = _for_rows(kv_type, rows.shape[-1])
    out = np.empty((*rows.shape[:-1], rows.shape[-1] // kind.block_values * kind.block_bytes), dtype=np.uint8)
    b = _native.binding()
    source = b.ffi.from_buffer("float[]", rows)
    target = b.ffi.from_buffer("uint8_t[]", out, require_writable=True)
    _native.check(b, b.lib.turbo_kv_encode(kind.name.encode(), source, rows.size, target, out.nbytes))
    return out


def decode(data: ArrayLike, kv_type: str, values: int | None = None) -> NDArray[np.float32]:
    """Decode what `encode` made.

    Args:
        data: uint8, last axis = the bytes of one row.
        kv_type: the type name given to `encode`.
        values: values of one row, the length of the last axis before encoding. Default: what whole blocks of that many
            bytes hold, of the larger block size where both would fit (rows of 9 and more).

    Returns:
        float32, shape `data.shape[:-1] + (values,)`.

    Raises:
        OptionError: unknown type, or a row whose bytes do not hold `values` values.
    """
    import numpy as np

    rows = np.ascontiguousarray(data, dtype=np.uint8)
    row_bytes = rows.shape[-1] if rows.ndim else 0
    if values is None:
        values = _values_in(kv_type, row_bytes)
    kind = _for_rows(kv_type, values)
    need = values // kind.block_values * kind.block_bytes
    if row_bytes != need:
        raise errors.OptionError(
            f"a row of {values} values of {kind.name} has {need} bytes, the last axis has {row_bytes}",
            asked=rows.shape,
            limit=need,
        )
    out = np.empty((*rows.shape[:-1], values), dtype=np.float32)
    b = _native.binding()
    source = b.ffi.from_buffer("uint8_t[]", rows)
    target = b.ffi.from_buffer("float[]", out, require_writable=True)
    _native.check(b, b.lib.turbo_kv_decode(kind.name.encode(), source, rows.nbytes, target, out.size))
    return out


def _values_in(name: str, row_bytes: int) -> int:
    """Values that `row_bytes` hold as whole blocks of a type, of its largest block size that fills them."""
    kind = find(name)
    siblings = [t for t in _table() if t.family == kind.family and (t.name == name or kind.name == kind.family)]
    sizes = [
        t.block_values * row_bytes // t.block_bytes for t in siblings if row_bytes and row_bytes % t.block_bytes == 0
    ]
    if not sizes:
        raise errors.OptionError(
            f"rows of {row_bytes} bytes are no whole blocks of {name}", asked=row_bytes, limit=kind.block_bytes
        )
    return max(sizes)
