"""Centred and balanced keys change what a cache stores, not what attention computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pyllama_turbo import Model, centers, errors, gguf

SHAPES = [
    {"head_dim": 64},
    {"head_dim": 128},
    {"arch": "qwen2", "head_dim": 64, "k_bias": 8.0},
    {"arch": "qwen3", "head_dim": 128},
    {"arch": "gemma3", "head_dim": 128, "n_layer": 6},
    {"arch": "gemma4", "head_dim": 64, "n_layer": 6},
]
N_TOKENS = 72


def tokens_of(model: Model, n: int = N_TOKENS) -> list[int]:
    """The same arbitrary text for every model."""
    return [(11 * i * i + 5 * i + 2) % model.facts.n_vocab for i in range(n)]


def logits_of(model: Model, kv: str, k_center: str) -> np.ndarray:
    """Logits of the text: most of it as a batch, the last tokens one at a time."""
    tokens = tokens_of(model)
    rows = []
    with model.context(n_ctx=256, kv=kv, k_center=k_center) as ctx:
        ctx.decode(tokens[:-8], outputs="all")
        rows.append(ctx.logits.copy())
        for token in tokens[-8:]:
            ctx.decode([token])
            rows.append(ctx.logits.copy())
    return np.concatenate(rows)


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """Relative difference of two arrays."""
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def random_means(model: Model, spread: float, seed: int = 1) -> centers.KeyMeans:
    """Mean keys and moments that have nothing to do with the model: exactness must not depend on them."""
    rng = np.random.default_rng(seed)
    layers = []
    for x in centers.calibrate(model, text="word " * 60, n_threads=1).layers:
        moments = np.exp(spread * rng.standard_normal((4, x.values.size)))
        values = 0.5 * rng.standard_normal(x.values.size)
        layers.append(
            centers.LayerMean(x.layer, values.astype(np.float32), moments.astype(np.float32), x.roped, 0.1, 0.1)
        )
    return centers.KeyMeans("random", tuple(layers))


@pytest.fixture
def random_frame(tmp_path: Path) -> Callable[[Model], str]:
    """`random_frame(model)`: a file for `k_center` with centres and strong scales taken out of the air."""

    def write(model: Model) -> str:
        path = tmp_path / "means.npz"
        centers.save(random_means(model, spread=1.0), path, model.files.fingerprint)
        return str(path)

    return write


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kv", ["q8_0", "turbo4_tcq"])
def test_any_centre_and_any_scale_leave_attention_alone(
    kv: str, shape: dict[str, object], open_model: Callable[..., Model], random_frame: Callable[[Model], str]
) -> None:
    model = open_model(**shape)
    reference = logits_of(model, "f16", "off")
    plain = difference(logits_of(model, kv, "off"), reference)
    framed = difference(logits_of(model, kv, random_frame(model)), reference)
    # Keys that are stored off centre and out of balance quantise worse, but only by their greater length.
    # What is stored off centre and out of balance quantises worse; without a rotation (q8_0) more so.
    assert plain < framed < (3 if kv == "q8_0" else 2) * plain


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_calibration_finds_does_no_harm(shape: dict[str, object], open_model: Callable[..., Model]) -> None:
    model = open_model(**shape)
    reference = logits_of(model, "f16", "off")
    off = difference(logits_of(model, "turbo3", "off"), reference)
    calibrated = difference(logits_of(model, "turbo3", "auto"), reference)
    assert calibrated < 1.1 * off


def test_unequal_channels_gain(open_model: Callable[..., Model]) -> None:
    # K biases in two channels of each head, 30 times the spread of the others: useless without a centre.
    model = open_model(arch="qwen2", head_dim=64, k_bias=30.0)
    reference = logits_of(model, "f16", "off")
    off = difference(logits_of(model, "turbo3", "off"), reference)
    for choice in ("bias", "auto"):
        assert difference(logits_of(model, "turbo3", choice), reference) < 0.6 * off, choice


def with_unequal_channels(source: Path, target: Path) -> Path:
    """A copy of a qwen3 file that computes the same, some channels of keys 8 times larger and of queries smaller.

    Both channels of a RoPE pair get the same factor, so that it passes RoPE.
    """
    data = bytearray(source.read_bytes())
    factor = np.where(np.arange(64) % 8 == 0, np.float32(8), np.float32(1))
    factor = np.concatenate([factor, factor])
    for name, tensor in gguf.read_gguf(source).tensors.items():
        if "_norm" in name and ("attn_k" in name or "attn_q" in name):
            values = np.frombuffer(data, np.float32, tensor.n_bytes // 4, tensor.offset)
            values[:] = values * factor if "attn_k" in name else values / factor
    target.write_bytes(data)
    return target


def test_balancing_undoes_unequal_channels(open_model: Callable[..., Model], tmp_path: Path) -> None:
    equal = open_model(arch="qwen3", head_dim=128)
    reference = logits_of(equal, "f16", "off")
    with Model.open(with_unequal_channels(equal.path, tmp_path / "unequal.gguf")) as unequal:
        assert difference(logits_of(unequal, "f16", "off"), reference) < 0.01
        off = difference(logits_of(unequal, "turbo4", "off"), reference)
        balanced = difference(logits_of(unequal, "turbo4", "auto"), reference)
        assert balanced < 0.7 * off
        assert balanced < 1.1 * difference(logits_of(equal, "turbo4", "auto"), reference)
        before, after = (
            sum(getattr(x, side) for x in centers.calibrate(unequal).layers) for side in ("before", "after")
        )
        assert after < 0.5 * before


def test_float_keys_are_left_alone(open_model: Callable[..., Model], random_frame: Callable[[Model], str]) -> None:
    model = open_model()
    assert np.array_equal(logits_of(model, "f16", random_frame(model)), logits_of(model, "f16", "off"))


def test_a_shift_knows_centre_and_scale(open_model: Callable[..., Model], random_frame: Callable[[Model], str]) -> None:
    model = open_model(n_layer=1, head_dim=128)
    tokens = tokens_of(model, 72)

    def last(kv: str, k_center: str) -> np.ndarray:
        with model.context(n_ctx=256, kv=kv, k_center=k_center) as ctx:
            ctx.decode(tokens[:-1], outputs="none")
            ctx.seqs.remove(0, 0, 24)
            ctx.seqs.shift(0, 24, -1, -24)
            ctx.decode(tokens[-1:], pos=47)
            return ctx.logits[0].copy()

    reference = last("f16", "off")
    assert difference(last("q8_0", random_frame(model)), reference) < 0.06


@pytest.mark.parametrize(
    ("shape", "reason"),
    [({"arch": "gemma2", "head_dim": 64}, "soft-cap"), ({"arch": "gpt-oss", "head_dim": 64, "n_expert": 4}, "sinks")],
    ids=["gemma2", "gpt-oss"],
)
def test_other_softmaxes_are_refused_by_name(
    shape: dict[str, object], reason: str, open_model: Callable[..., Model]
) -> None:
    model = open_model(**shape)
    with model.context(n_ctx=64, kv="turbo4_tcq") as ctx:
        assert ctx.kv.centering.source == ""
        assert reason in ctx.kv.centering.reason
    with pytest.raises(errors.UnsupportedError, match=reason):
        centers.calibrate(model)
    reference = logits_of(model, "f16", "off")
    assert difference(logits_of(model, "q8_0", "auto"), reference) < 0.06


def test_calibration_can_be_stopped_at_any_layer(open_model: Callable[..., Model]) -> None:
    model = open_model(arch="gemma3", head_dim=128, n_layer=6)
    seen: list[float] = []

    def stop_halfway(done: float) -> bool:
        seen.append(done)
        return done < 0.5

    with pytest.raises(errors.AbortedError):
        centers.calibrate(model, progress=stop_halfway)
    assert 0.5 <= max(seen) < 1.0
    assert len(centers.calibrate(model).layers) == 6


def test_layers_that_share_keys_have_one_frame(open_model: Callable[..., Model]) -> None:
    layers = centers.calibrate(open_model(arch="gemma4", head_dim=64, n_layer=6)).layers
    assert [x.layer for x in layers] == [0, 1, 2, 3]  # the last two read the keys of layers 2 and 3


def test_mean_keys_survive_a_file(open_model: Callable[..., Model], tmp_path: Path) -> None:
    model = open_model()
    means = centers.calibrate(model, n_threads=1)
    assert all(x.moments.shape == (4, x.values.size) and np.isfinite(x.moments).all() for x in means.layers)
    centers.save(means, tmp_path / "a.npz", model.files.fingerprint)
    loaded = centers.load(tmp_path / "a.npz", model.files.fingerprint)
    assert loaded.hash == means.hash
    assert all(np.array_equal(a.moments, b.moments) for a, b in zip(loaded.layers, means.layers, strict=True))
    bias = open_model(arch="qwen2", head_dim=64)
    assert all(x.moments.size == 0 for x in centers.from_bias(bias).layers)
