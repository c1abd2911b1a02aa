"""Saved state: a sequence's cache on disk, loaded only where it means the same.

A file is a JSON line (format, model, KV types and block format, tokens, checksum) and the native bytes. Loading
compares the line with the context first: state of another model, KV type, codebook or file damage is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _native, errors
from .buildinfo import build_info

if TYPE_CHECKING:
    from .context import Context

__all__ = ["fingerprint", "get_bytes", "load", "save", "set_bytes"]

MAGIC = b"pyllama-turbo state 1\n"
_MAX_HEADER_BYTES = 64 << 20


def fingerprint(context: Context) -> dict[str, Any]:
    """What must be equal for saved state to mean the same: model, KV types, block format, codebooks, key centres."""
    facts, info = context.model.facts, build_info()
    layers = [[x.layer, x.part, x.type_k, x.type_v] for x in context.kv.effective]
    return {
        "arch": facts.arch,
        "n_params": facts.n_params,
        "size_bytes": facts.size_bytes,
        "n_vocab": facts.n_vocab,
        "kv_format": info["kv_format"],
        "codebook_hash": info["codebook_hash"],
        "upstream_commit": info["upstream_commit"],
        "layers": hashlib.sha256(json.dumps(layers).encode()).hexdigest(),
        "kv": list(context.kv.requested),
        "k_center": context.kv.centering.hash,
        "centering": context.kv.centering.hash,
        "rope": [context.options.rope_scaling, context.options.rope_freq_base, context.options.rope_freq_scale],
    }


def get_bytes(context: Context, seq: int = 0) -> bytes:
    """The native bytes of a sequence's cache.

    Raises:
        StateError: the library could not write it.
    """
    b = context._binding
    with context.lock:
        size = _native.check(b, b.lib.turbo_state_size(context.pointer(), seq), asked=seq)
        buffer = bytearray(size)
        target = b.ffi.from_buffer("char[]", buffer, require_writable=True)
        written = _native.check(b, b.lib.turbo_state_get(context.pointer(), seq, target, size), asked=seq)
    return bytes(memoryview(buffer)[:written])


def set_bytes(context: Context, data: bytes, seq: int = 0) -> None:
    """Replace a sequence's cache by bytes of `get_bytes`.

    Raises:
        StateError: they are damaged or belong to another configuration; the sequence is empty then.
    """
    b = context._binding
    with context.lock:
        context.seqs.forget(seq)
        status = b.lib.turbo_state_set(context.pointer(), seq, b.ffi.from_buffer(data), len(data))
        try:
            _native.check(b, status, asked=len(data))
        except errors.StateError:
            context.seqs.remove(seq)
            raise


def save(context: Context, path: str | os.PathLike[str], seq: int = 0) -> int:
    """Write a sequence's cache to a file, complete or not at all. Returns the bytes written.

    Raises:
        StateError: the library could not write it.
        OSError: the file could not be written.
    """
    with context.lock:
        payload = get_bytes(context, seq)
        header = {
            "fingerprint": fingerprint(context),
            "tokens": context.seqs.tokens(seq),
            "bytes": len(payload),
            "sha256": hashlib.sha256(payload).hexdigest(),
        }
    line = json.dumps(header).encode() + b"\n"
    target = Path(path)
    partial = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as file:
            file.write(MAGIC + line)
            file.write(payload)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return len(MAGIC) + len(line) + len(payload)


def _refuse(path: Path, reason: str, **facts: Any) -> errors.StateError:
    return errors.StateError(f"{path}: {reason}", **facts)


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    try:
        with path.open("rb") as file:
            if file.readline(len(MAGIC)) != MAGIC:
                raise _refuse(path, "this is no saved state of this version")
            line = file.readline(_MAX_HEADER_BYTES)
            payload = file.read()
    except OSError as error:
        raise _refuse(path, f"cannot be read: {error.strerror}") from None
    try:
        header = json.loads(line)
        size, digest = header["bytes"], header["sha256"]
        dict(header["fingerprint"])
    except (ValueError, KeyError, TypeError):
        raise _refuse(path, "the header is damaged") from None
    if len(payload) != size:
        raise _refuse(path, f"{len(payload)} of {size} bytes are there", asked=len(payload), limit=size)
    if hashlib.sha256(payload).hexdigest() != digest:
        raise _refuse(path, "the checksum does not match: the file is damaged")
    return header, payload


def load(context: Context, path: str | os.PathLike[str], seq: int = 0) -> int:
    """Replace a sequence's cache by a saved one. Returns the number of tokens restored.

    Raises:
        StateError: the file is missing or damaged, or was saved for another model, KV type, format or build.
    """
    file = Path(path)
    header, payload = _read(file)
    here, there = fingerprint(context), header["fingerprint"]
    differing = [name for name in here if here[name] != there.get(name)]
    if differing:
        name = differing[0]
        raise _refuse(
            file,
            f"saved for another configuration: {', '.join(differing)} differ "
            f"({there.get(name)} there, {here[name]} here)",
            asked=there,
            limit=here,
        )
    with context.lock:
        set_bytes(context, payload, seq)
        context.seqs.set_tokens(seq, header["tokens"])
        return context.seqs.next_position(seq)
