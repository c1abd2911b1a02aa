"""Centred keys: the mean key of every layer, measured once a model and used by every compressed K cache.

Softmax does not change when one vector is subtracted from all keys a query sees, so a compressed cache stores keys less
their mean. Some models need it (Qwen2.5 has key channels whose mean is 200 times their spread) and all gain. What is
kept is the mean key *before* RoPE: the centre of a context is the mean of its rotation over the context's positions, so
it does not go stale at long contexts. Layers whose keys stay badly conditioned even so get q8_0 keys.

Calibration also measures which channels of keys and queries carry attention: stored keys are scaled by channel and
queries inversely, which leaves dot products alone and takes a third off the effect of quantisation.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _callbacks, _native, errors
from ._user_cache import user_cache
from .centering import Centering

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .kv import KVType
    from .model import Model
    from .options import ContextOptions

__all__ = [
    "KeyMeans",
    "LayerMean",
    "calibrate",
    "from_bias",
    "install",
    "load",
    "obtain",
    "plan_centering",
    "save",
    "sidecar",
]

FORMAT = 2  # of the file, and of what the library makes of its numbers (kv_centering.cpp)
MAX_TOKENS = 768  # of the calibration text
# Half the variance of a logit's error, nats, above which a layer's keys get q8_0. Well-behaved layers stay below 0.4
# once centred; the layers this is for reach 10 and more.
DISTURBANCE_LIMIT = 2.0

_log = logging.getLogger(__name__)
Progress = Callable[[float], "bool | None"]


@dataclass(frozen=True, eq=False)
class LayerMean:
    """The mean key of one layer.

    Attributes:
        layer: index in the model.
        values: mean key before RoPE, float32 [n_head_kv * head_dim].
        moments: second moments of keys and queries before RoPE, float32 [4, n_head_kv * head_dim], or [0, ...] where
            they were not measured: keys are then centred, not balanced.
        roped: whether RoPE applies to the layer's keys.
        before, after: disturbance of the layer's attention by 3-bit trellis keys, in nats, without and with the centre.
    """

    layer: int
    values: NDArray[np.float32]
    moments: NDArray[np.float32]
    roped: bool
    before: float
    after: float


@dataclass(frozen=True, eq=False)
class KeyMeans:
    """Mean keys of a model.

    Attributes:
        source: "calibrated", "bias" or the path of a file.
        layers: one entry per layer that owns a KV cache.
    """

    source: str
    layers: tuple[LayerMean, ...]

    @property
    def hash(self) -> str:
        """Identifies the values; part of the identity of every cache made with them."""
        digest = hashlib.sha256(f"frame {FORMAT} ".encode())
        for x in self.layers:
            digest.update(f"{x.layer} {int(x.roped)} ".encode() + x.values.tobytes() + x.moments.tobytes())
        return digest.hexdigest()[:16]

    def badly_conditioned(self, limit: float = DISTURBANCE_LIMIT) -> tuple[int, ...]:
        """Layers that a centre does not help enough: their disturbance stays above `limit` nats."""
        return tuple(x.layer for x in self.layers if x.after > limit)


def sidecar(owner: str) -> Path:
    """Where the mean keys of a model (`model.files.fingerprint`) are kept, in the user's cache."""
    return user_cache() / "keys" / f"{owner}.npz"


# -- from and to native ------------------------------------------------------------------------------------------------


def _read_native(b: _native.Binding, pointer: Any, source: str) -> KeyMeans:
    import numpy as np

    n = b.lib.turbo_keys_layers(pointer, b.ffi.NULL, 0)
    rows = b.ffi.new("turbo_keys_layer[]", max(n, 1))
    b.lib.turbo_keys_layers(pointer, rows, n)
    layers = []
    for i in range(n):
        row = rows[i]
        values = np.empty(row.n_values, np.float32)
        moments = np.empty((row.n_moments // row.n_values, row.n_values), np.float32)
        target = b.ffi.from_buffer("float[]", values, require_writable=True)
        _native.check(b, b.lib.turbo_keys_values(pointer, i, target, len(values)))
        if moments.size:
            target = b.ffi.from_buffer("float[]", moments, require_writable=True)
            _native.check(b, b.lib.turbo_keys_moments(pointer, i, target, moments.size))
        layers.append(LayerMean(row.layer, values, moments, bool(row.roped), row.before, row.after))
    return KeyMeans(source, tuple(layers))


def install(b: _native.Binding, context: Any, means: KeyMeans) -> None:
    """Centre the keys of a new native context. Raises UnsupportedError with the reason if that cannot be done."""
    import numpy as np

    out = b.ffi.new("turbo_keys **")
    _native.check(b, b.lib.turbo_keys_new(out))
    try:
        row = b.ffi.new("turbo_keys_layer *")
        for x in means.layers:
            values = np.ascontiguousarray(x.values, np.float32)
            moments = np.ascontiguousarray(x.moments, np.float32)
            row.layer, row.n_values, row.n_moments, row.roped = x.layer, len(values), moments.size, x.roped
            row.before, row.after = x.before, x.after
            second = b.ffi.from_buffer("float[]", moments) if moments.size else b.ffi.NULL
            _native.check(b, b.lib.turbo_keys_set(out[0], row, b.ffi.from_buffer("float[]", values), second))
        _native.check(b, b.lib.turbo_context_set_keys(context, out[0]), asked=means.source)
    finally:
        b.lib.turbo_keys_free(out[0])


def refusal(model: Model) -> str:
    """Why the keys of this model cannot be centred; "" if they can."""
    b = model._binding
    return _native.text(b, b.lib.turbo_keys_refusal(model.pointer()))


# -- making ------------------------------------------------------------------------------------------------------------


def calibration_text() -> str:
    """The built-in text: prose, code, dialogue, data."""
    from importlib.resources import files

    return files("pyllama_turbo").joinpath("data/calibration.txt").read_text(encoding="utf-8")


def calibrate(
    model: Model, *, text: str | None = None, n_threads: int = 0, progress: Progress | None = None
) -> KeyMeans:
    """Measure the mean keys of a model over a text (the built-in one by default; its first 768 tokens).

    Args:
        progress: called with 0.0 to 1.0; returning False cancels.

    Raises:
        UnsupportedError: this model's keys cannot be centred, with the reason.
        AbortedError: the progress function returned False.
        OptionError: the text has fewer than 16 tokens.
    """
    b = model._binding
    tokens = model.tokenizer.encode(calibration_text() if text is None else text)
    tokens = tokens[: min(MAX_TOKENS, model.facts.n_ctx_train or MAX_TOKENS)]
    target = b.ffi.new_handle(_callbacks.ProgressTarget(progress or (lambda _: None)))
    out = b.ffi.new("turbo_keys **")
    with model.lock:
        status = b.lib.turbo_keys_calibrate(
            model.pointer(),
            b.ffi.new("int32_t[]", tokens),
            len(tokens),
            n_threads,
            b.lib.turbo_py_progress,
            target,
            out,
        )
    _native.check(b, status, asked=len(tokens))
    try:
        _callbacks.raise_parked()
        return _read_native(b, out[0], "calibrated")
    finally:
        b.lib.turbo_keys_free(out[0])


def from_bias(model: Model) -> KeyMeans:
    """The model's own K bias as mean keys. Raises UnsupportedError for a model without."""
    b = model._binding
    out = b.ffi.new("turbo_keys **")
    _native.check(b, b.lib.turbo_keys_from_bias(model.pointer(), out))
    try:
        return _read_native(b, out[0], "bias")
    finally:
        b.lib.turbo_keys_free(out[0])


# -- files -------------------------------------------------------------------------------------------------------------


def save(means: KeyMeans, path: Path, owner: str) -> None:
    """Write the mean keys of a model (`model.files.fingerprint`) to a file, complete or not at all."""
    import numpy as np

    meta = {
        "format": FORMAT,
        "model": owner,
        "layers": [[x.layer, bool(x.roped), x.before, x.after] for x in means.layers],
        "hash": means.hash,
    }
    arrays = {f"layer{x.layer}": np.vstack([x.values[None], x.moments]) for x in means.layers}
    buffer = io.BytesIO()
    np.savez(buffer, meta=np.frombuffer(json.dumps(meta).encode(), np.uint8), **arrays)  # type: ignore[arg-type]
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        partial.write_bytes(buffer.getvalue())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def load(path: Path, owner: str) -> KeyMeans:
    """Read mean keys of a model (`model.files.fingerprint`).

    Raises:
        StateError: the file is missing, damaged, of another version, or belongs to another model.
    """
    import zipfile

    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as data:
            meta = json.loads(bytes(data["meta"]))
            rows = {int(i): np.asarray(data[f"layer{i}"], np.float32) for i, *_ in meta["layers"]}
            layers = tuple(
                LayerMean(int(i), rows[i][:1].ravel(), rows[i][1:], bool(roped), float(before), float(after))
                for i, roped, before, after in meta["layers"]
            )
        means = KeyMeans(str(path), layers)
        good = meta["format"] == FORMAT and meta["hash"] == means.hash
        found = meta["model"]
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise errors.StateError(f"{path}: no readable mean keys: {error}", hint="calibrate again") from None
    if not good:
        raise errors.StateError(f"{path}: damaged, or of another version", hint="calibrate again")
    if found != owner:
        raise errors.StateError(f"{path}: belongs to another model", asked=found, limit=owner)
    return means


def obtain(
    model: Model, choice: str, *, may_calibrate: bool = True, progress: Progress | None = None
) -> tuple[KeyMeans | None, str]:
    """Mean keys for a context, or None and the reason why its keys are stored as they are.

    Args:
        choice: "auto" (the sidecar, else a calibration that is kept there), "bias", "off", or the path of a file.
        may_calibrate: with "auto" and no sidecar, whether to calibrate; otherwise a K bias is used if there is one.

    Raises:
        UnsupportedError: "bias" or a path was asked for and cannot be used.
        StateError: the file given is damaged or belongs to another model.
    """
    if choice == "off":
        return None, "switched off"
    why = refusal(model)
    if why:
        if choice != "auto":
            raise errors.UnsupportedError(f"keys of this model are not centred: {why}", asked=choice)
        return None, why
    if choice == "bias":
        return from_bias(model), ""
    if choice != "auto":
        return load(Path(choice).expanduser(), model.files.fingerprint), ""
    return _automatic(model, may_calibrate, progress)


def known_means(owner: str, options: ContextOptions) -> KeyMeans | None:
    """Mean keys that a context would read from a file; None where there is none yet, or none are wanted.

    Args:
        owner: fingerprint of the model's files.
        options: the context's.

    Raises:
        StateError: the file that `k_center` names is damaged or belongs to another model.
    """
    if options.k_center in ("off", "bias"):
        return None
    if options.k_center != "auto":
        return load(Path(options.k_center).expanduser(), owner)
    try:
        return load(sidecar(owner), owner)
    except errors.StateError:
        return None


def expected_means(model: Model, options: ContextOptions, *, has_bias: bool) -> KeyMeans | None:
    """Mean keys as a context will have them, for planning its memory: of the right shape, with nothing in them.

    None where its keys will be stored as they are.

    Args:
        model: may be one without weights.
        options: the context's, of a compressed K type.
        has_bias: whether the model has a K bias.
    """
    import numpy as np

    measured = options.k_center not in ("off", "bias") and (options.k_center != "auto" or options.calibrate)
    if not (measured or (has_bias and options.k_center != "off")) or refusal(model):
        return None
    layers = []
    for i, facts in enumerate(model.layers):
        n = facts.n_head_kv * facts.head_dim_k if facts.has_kv else 0
        if n:
            moments = np.zeros((4 if measured else 0, n), np.float32)
            layers.append(LayerMean(i, np.zeros(n, np.float32), moments, True, 0.0, 0.0))
    return KeyMeans("expected", tuple(layers))


def plan_centering(
    model: Model, options: ContextOptions, k_type: KVType, progress: Progress | None = None
) -> tuple[KeyMeans | None, Centering]:
    """What a new context does about its keys: the mean keys to install, if any, and the report about it.

    Float K types are left alone. Types of fewer than 8 bits give q8_0 keys to layers that a centre hardly helps.

    Raises:
        As `obtain` and `calibrate`.
    """
    choice = options.k_center
    if k_type.block_values == 1:
        return None, Centering(choice, reason=f"{k_type.name} keys are stored as they are")
    means, reason = obtain(model, choice, may_calibrate=options.calibrate, progress=progress)
    if means is None:
        return None, Centering(choice, reason=reason)
    q8_layers = means.badly_conditioned() if k_type.bits < 8 else ()
    return means, Centering(choice, means.source, "", means.hash, q8_layers)


def _automatic(model: Model, may_calibrate: bool, progress: Progress | None) -> tuple[KeyMeans | None, str]:
    owner = model.files.fingerprint
    path = sidecar(owner)
    if path.exists():
        try:
            return KeyMeans("calibrated", load(path, owner).layers), ""
        except errors.StateError as error:
            _log.warning("%s; calibrating again", error)
    if not may_calibrate:
        try:
            return from_bias(model), ""
        except errors.UnsupportedError:
            return None, "not calibrated, and the model has no K bias"
    _log.info("calibrating the keys of %s (once for this model)", model.path.name)
    means = calibrate(model, progress=progress)
    try:
        save(means, path, owner)
    except OSError as error:
        _log.warning("mean keys could not be kept in %s: %s", path, error)
    return means, ""
