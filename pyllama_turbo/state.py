"""Saved state: the cache of a sequence or of a whole context, in bytes or a file, loaded only where it means the same.

    state.save(ctx, "chat.state")                  # one sequence, to a file
    n = state.load(other, "chat.state")            # tokens restored; their prefix is not computed again
    data = state.get_bytes(ctx, seq=None)          # all sequences, in memory
    state.set_bytes(other, data, seq=None)

What was saved carries the identity of its cache: model, KV types by layer, block format, codebooks, centre of the
keys, RoPE settings, build. All of it is compared before the context is touched; a difference is refused with both
values.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _native, errors
from ._state_file import Header, Held, pack, read, unpack, write
from .buildinfo import build_info

if TYPE_CHECKING:
    from .context import Context

__all__ = ["fingerprint", "get_bytes", "load", "save", "set_bytes"]

_ROPE = ("rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow")
_FLAGS = ("rotated_k", "rotated_v", "transposed_v")


def fingerprint(context: Context) -> dict[str, Any]:
    """What must be equal for saved state to mean the same, as plain JSON values.

    Model (fingerprint of its file), LoRA adapters and their scales, stored KV types by layer, block format and
    codebooks, centre of the keys and what shares it, effective RoPE settings, layout, and the build's digest.
    """
    b, info, facts = context._binding, build_info(), context.model.facts
    row = b.ffi.new("turbo_kv_identity *")
    with context.lock:
        _native.check(b, b.lib.turbo_kv_get_identity(context.pointer(), row))
    return {
        "model": context.model.files.fingerprint,
        "arch": facts.arch,
        "n_params": facts.n_params,
        "layers": _layers(context),
        "kv_format": info["kv_format"],
        "codebook_hash": info["codebook_hash"],
        "key_center": context.kv.centering.hash,
        "key_runs": _by_layer((x.k_center, x.layer) for x in context.kv.effective),
        **{name: getattr(row, name) for name in _ROPE},
        "yarn_orig_ctx": row.yarn_orig_ctx,
        "n_stream": row.n_stream,
        **{name: bool(getattr(row, name)) for name in _FLAGS},
        "lora": [[a.fingerprint, scale] for a, scale in zip(context.model.lora, context.lora_scales) if scale],
        "build": info["digest"],
    }


def _layers(context: Context) -> str:
    """The stored types in one line: "0-23 full turbo3/turbo3"."""
    return _by_layer((f"{x.part} {x.type_k}/{x.type_v}", x.layer) for x in context.kv.effective)


def _by_layer(kinds: Iterable[tuple[str, int]]) -> str:
    runs = [(kind, [layer for _, layer in group]) for kind, group in groupby(kinds, key=lambda pair: pair[0])]
    return ", ".join(f"{layers[0]}-{layers[-1]} {kind}" for kind, layers in runs)


def _capture(context: Context, seq: int | None) -> tuple[bytes, memoryview]:
    """What stands in front, and the native bytes."""
    b, native_seq = context._binding, -1 if seq is None else seq
    with context.lock:
        size = _native.check(b, b.lib.turbo_state_size(context.pointer(), native_seq), asked=seq)
        try:
            buffer = bytearray(size)
        except MemoryError:
            raise errors.MemoryLimitError(f"no memory for a copy of the cache: {size:,} bytes", asked=size) from None
        target = b.ffi.from_buffer("char[]", buffer, require_writable=True)
        written = _native.check(b, b.lib.turbo_state_get(context.pointer(), native_seq, target, size), asked=seq)
        payload = memoryview(buffer)[:written]
        seqs = range(context.facts.n_seq_max) if seq is None else (seq,)
        held = tuple(Held(i, context.seqs.tokens(i), context.seqs.n_exact(i), *_ends(context, i)) for i in seqs)
        kind = "context" if seq is None else "sequence"
        header = Header(kind, fingerprint(context), context.facts.n_ctx_seq, held, len(payload))
        return pack(header, payload), payload


def _ends(context: Context, seq: int) -> tuple[int, int]:
    return context.seqs.range(seq) if context.facts.has_memory else (-1, -1)


def get_bytes(context: Context, seq: int | None = 0) -> bytes:
    """The cache of a sequence, or with `seq=None` of the whole context, with its header.

    Raises:
        StateError: the library could not write it.
        OptionError: there is no such sequence.
        MemoryLimitError: there is no memory for the copy.
    """
    front, payload = _capture(context, seq)
    return b"".join((front, payload))


def save(context: Context, path: str | os.PathLike[str], seq: int | None = 0) -> int:
    """Write the cache of a sequence, or with `seq=None` of the whole context, to a file, complete or not at all.

    Returns:
        The bytes written.

    Raises:
        As `get_bytes`, and OSError if the file could not be written; an older file is still there then.
    """
    return write(Path(path), *_capture(context, seq))


def set_bytes(context: Context, data: bytes | memoryview, seq: int | None = 0) -> int:
    """Replace the cache of a sequence, or with `seq=None` of the whole context, by what `get_bytes` gave.

    A sequence may be loaded as another one than it was saved from.

    Returns:
        The tokens restored.

    Raises:
        StateError: damaged, or saved by another model, KV type, format, centre, RoPE setting or build; the message has
            both values. Nothing was changed, unless the message says that the sequence is empty now.
        BusyError: a generation runs on the context.
    """
    return _restore(context, *unpack(data, "saved state"), seq, "saved state")


def load(context: Context, path: str | os.PathLike[str], seq: int | None = 0) -> int:
    """Replace the cache of a sequence, or with `seq=None` of the whole context, by a saved one.

    Returns and raises as `set_bytes`; a file that is missing or cannot be read is a StateError too.
    """
    file = Path(path)
    return _restore(context, *unpack(read(file), str(file)), seq, str(file))


def _restore(context: Context, header: Header, payload: memoryview, seq: int | None, name: str) -> int:
    with context.lock:
        if context.user is not None:
            raise errors.BusyError("this context is generating: its cache cannot be replaced", hint="end that first")
        held = _check(context, header, seq, name)
        b, native_seq = context._binding, -1 if seq is None else seq
        for part in held:
            context.seqs.forget(part.seq)
        status = b.lib.turbo_state_set(context.pointer(), native_seq, b.ffi.from_buffer(payload), len(payload))
        try:
            _native.check(b, status, asked=len(payload), hint=f"{name} was refused half-way: what it replaced is gone")
        except errors.TurboError:
            context.seqs.clear() if seq is None else context.seqs.remove(seq)
            raise
        for part in held:
            context.seqs.set_tokens(part.seq, part.tokens, part.n_exact)
        return sum(part.last + 1 for part in held)


def _check(context: Context, header: Header, seq: int | None, name: str) -> list[Held]:
    """What the sequences will hold; raises StateError unless all of it means the same here."""
    kind = "context" if seq is None else "sequence"
    if header.kind != kind:
        hint = "load it with seq=None" if header.kind == "context" else "load it as a sequence"
        raise _refusal(name, "kind", header.kind, kind, hint)
    here = fingerprint(context)
    for key, value in here.items():
        if header.identity.get(key) != value:
            raise _refusal(name, key, header.identity.get(key), value)
    room = context.facts.n_ctx_seq
    # the centre of the keys is a mean over all positions of the context
    if header.n_ctx_seq != room and (seq is None or here["key_center"]):
        raise _refusal(name, "n_ctx", header.n_ctx_seq, room, "make the context as large as the one it was saved from")
    last = max((part.last for part in header.held), default=-1)
    if last >= room and context.facts.has_memory:
        raise _refusal(name, "n_ctx", f"position {last}", f"{room} tokens a sequence", "make n_ctx larger")
    if seq is None:
        n_seq = context.facts.n_seq_max
        if [part.seq for part in header.held] != list(range(n_seq)):
            raise _refusal(name, "n_seq_max", len(header.held), n_seq)
        return list(header.held)
    context.seqs.check(seq)
    return [replace(header.held[0], seq=seq)]


def _refusal(name: str, what: str, there: object, here: object, hint: str = "") -> errors.StateError:
    return errors.StateError(
        f"{name}: saved for another configuration: {what} is {there!r} there and {here!r} here",
        asked=there,
        limit=here,
        hint=hint,
    )
