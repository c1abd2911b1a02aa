"""Embeddings: pooling and normalisation against numpy, batches of texts, what is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_helpers import PROMPT

from pyllama_turbo import Model, errors
from pyllama_turbo.embedding import normalized

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from gguf import GGUFReader
from make_encoder import N_EMBD, N_LABELS, write_encoder

TEXTS = [PROMPT, "short", "a text of another length, somewhat longer than the first one was, and then more"]


@pytest.fixture(scope="module")
def encoder_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder") / "bert.gguf")


@pytest.fixture(scope="module")
def encoder(encoder_path: Path) -> Iterator[Model]:
    with Model.open(encoder_path) as model:
        yield model


@pytest.fixture(params=["decoder", "encoder"])
def model(request: pytest.FixtureRequest, open_model: Callable[..., Model], encoder: Model) -> Model:
    return encoder if request.param == "encoder" else open_model(weight_type="f32")


def embed(model: Model, texts: Any = TEXTS, *, normalize: int = -1, **options: Any) -> Any:
    # 32 bits throughout: flash attention rounds to 16 where the batch decides
    with model.context(512, embeddings=True, kv="f32", flash_attn="off", **options) as ctx:
        return ctx.embed(texts, normalize=normalize)


def test_pooling_is_what_numpy_makes_of_the_tokens(model: Model) -> None:
    per_token = embed(model, pooling_type="none")
    assert [v.shape for v in per_token.vectors] == [(n, model.facts.n_embd) for n in per_token.n_tokens]
    for pooling, reduce in (("mean", lambda v: v.mean(0)), ("cls", lambda v: v[0]), ("last", lambda v: v[-1])):
        result = embed(model, pooling_type=pooling)
        assert (result.pooling, result.n_truncated) == (pooling, 0)
        assert np.abs(result.matrix() - np.stack([reduce(v) for v in per_token.vectors])).max() < 1e-4
    with pytest.raises(errors.UnsupportedError, match="as many vectors as tokens"):
        per_token.matrix()


@pytest.mark.parametrize("pooling", ["none", "mean", "last"])
def test_texts_in_one_batch_equal_single_ones(model: Model, pooling: str) -> None:
    alone = [embed(model, [text], pooling_type=pooling).vectors[0] for text in TEXTS * 3]
    for options in ({"n_seq_max": 4, "kv_unified": True}, {"n_seq_max": 4}, {"n_ubatch": 64}):
        together = embed(model, TEXTS * 3, pooling_type=pooling, **options).vectors
        for a, b in zip(alone, together, strict=True):
            assert np.abs(a - b).max() < 1e-3  # GELU is read from a table of 16-bit values


def test_scores_of_a_classification_head(encoder: Model, encoder_path: Path) -> None:
    weights = {t.name: np.array(t.data, dtype=np.float64) for t in GGUFReader(str(encoder_path)).tensors}
    first = np.stack([v[0] for v in embed(encoder, pooling_type="none").vectors])
    hidden = np.tanh(first @ weights["cls.weight"].T + weights["cls.bias"])
    expected = hidden @ weights["cls.output.weight"].T + weights["cls.output.bias"]
    scores = embed(encoder, pooling_type="rank", normalize=2)
    assert scores.matrix().shape == (3, N_LABELS)
    assert np.abs(scores.matrix() - expected).max() < 1e-4  # and normalisation left them alone


def test_the_model_s_own_pooling(encoder: Model, tmp_path: Path) -> None:
    assert embed(encoder).pooling == "cls"
    with Model.open(write_encoder(tmp_path / "mean.gguf", pooling=1, head=False)) as other:
        assert embed(other).pooling == "mean"
        with pytest.raises(errors.UnsupportedError, match="classification head"):
            embed(other, pooling_type="rank")


def test_normalisation() -> None:
    v = np.array([[3.0, -4.0], [0.0, 0.0]], np.float32)
    assert np.array_equal(normalized(v, -1), v)
    assert np.allclose(normalized(v, 0), [[24570, -32760], [0, 0]])
    assert np.allclose(normalized(v, 1), [[3 / 7, -4 / 7], [0, 0]])
    assert np.allclose(normalized(v, 2), [[0.6, -0.8], [0, 0]])
    assert np.allclose(normalized(v, 3), v / 91 ** (1 / 3))


def test_it_is_applied(encoder: Model) -> None:
    with encoder.context(512, embeddings=True, pooling_type="mean") as ctx:
        raw = ctx.embed(TEXTS, normalize=-1).matrix()
        for choice, kind in ((True, 2), (False, -1), (1, 1), (0, 0)):
            assert np.allclose(ctx.embed(TEXTS, normalize=choice).matrix(), normalized(raw, kind))
        assert np.linalg.norm(ctx.embed("one").matrix()) == pytest.approx(1.0, abs=1e-5)
        ids = encoder.tokenizer.encode("one")
        assert np.array_equal(ctx.embed([ids]).matrix(), ctx.embed("one").matrix())


def test_what_is_refused(model: Model) -> None:
    with model.context(512, embeddings=True, pooling_type="mean", n_batch=64, n_ubatch=16) as ctx:
        with pytest.raises(errors.ContextFullError, match="text 1") as caught:
            ctx.embed(["ok", PROMPT * 3])
        assert (caught.value.asked, caught.value.limit) == (len(model.tokenizer.encode(PROMPT * 3)), 16)
        cut = ctx.embed(["ok", PROMPT * 3], truncate=True)
        assert (cut.n_truncated, cut.n_tokens[1]) == (1, 16)
        for texts in ([], [[]]):
            with pytest.raises(errors.OptionError):
                ctx.embed(texts)
        with pytest.raises(errors.OptionError, match="normalize"):
            ctx.embed("x", normalize=-2)
        with pytest.raises(errors.OptionError, match="vocabulary"):
            ctx.embed([[10**6]])
        assert ctx.embed("still works").matrix().shape == (1, model.facts.n_embd)
    with model.context(256) as ctx, pytest.raises(errors.UnsupportedError, match="without embeddings"):
        ctx.embed("x")


def test_many_texts_and_a_large_batch(encoder: Model) -> None:
    with encoder.context(512, embeddings=True, n_batch=512, n_ubatch=512, n_seq_max=16) as ctx:
        vectors = ctx.embed([f"text number {i}" for i in range(200)]).matrix()
    assert vectors.shape == (200, N_EMBD) and len(np.unique(vectors.round(4), axis=0)) == 200


def test_a_generating_context_is_busy(open_model: Callable[..., Model]) -> None:
    with open_model().context(256, embeddings=True, pooling_type="mean") as ctx:
        run = ctx.generate(PROMPT, max_tokens=4, ignore_eos=True)
        next(run)
        with pytest.raises(errors.BusyError):
            ctx.embed("x")
        run.close()
        assert ctx.embed("x").matrix().any()


def test_a_model_without_cache_cannot_generate(encoder: Model) -> None:
    with encoder.context(256, embeddings=True) as ctx:
        with pytest.raises(errors.UnsupportedError):
            ctx.generate_many([PROMPT])
        with pytest.raises(errors.UnsupportedError):
            ctx.generate(PROMPT)
