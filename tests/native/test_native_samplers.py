"""Every sampler of the chain against numpy: which tokens it leaves, and how probable they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pyllama_turbo import Context, Model, Sampler, SamplingOptions, _native, errors

FIRST, N_DRAWS, N_FRESH = 300, 3000, 800  # draws of one sampler, and of as many samplers with a history
LOGITS = np.array([3.0, 2.5, 2.0, 1.0, 0.5, 0.0, -1.0, -3.0])  # of tokens 300 to 307; all others are out of reach
OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}
Array = NDArray[np.float64]


@pytest.fixture(scope="module")
def ctx(tiny: Model) -> Iterator[Context]:
    """A context whose one row of logits is ours; samplers leave it alone."""
    with tiny.context(256) as ctx:
        ctx.decode([5])
        set_logits(ctx, LOGITS)
        yield ctx


def set_logits(ctx: Context, values: Array) -> None:
    row = ctx._logits(writable=True)[0]
    row[:] = -60.0
    row[FIRST : FIRST + len(values)] = values


def softmax(logits: Array) -> Array:
    e = np.exp(logits - logits.max())
    result: Array = e / e.sum()
    return result


def draw(ctx: Context, n: int = 0, history: list[int] | None = None, **keywords: Any) -> Array:
    """Shares of tokens 300 to 307 among draws; others must not come. With a history each draw is a first one."""
    n = n or (N_DRAWS if history is None else N_FRESH)
    counts: Counter[int] = Counter()
    sampler = Sampler(ctx.model, **{**OFF, "seed": 1, **keywords})
    for i in range(n):
        if history is not None:
            sampler.close()
            sampler = Sampler(ctx.model, **{**OFF, "seed": i, **keywords})
            for token in history:
                sampler.accept(token)
        counts[sampler.next(ctx)] += 1
    assert all(FIRST <= token < FIRST + len(LOGITS) for token in counts), counts
    return np.array([counts[FIRST + i] for i in range(len(LOGITS))]) / n


def check(shares: Array, expected: Array, n: int = N_DRAWS) -> None:
    """Shares of draws against probabilities: nothing that is impossible, the rest within five standard errors."""
    assert np.all(shares[expected == 0] == 0), (shares, expected)
    error = np.sqrt(expected * (1 - expected) / n)
    assert np.all(np.abs(shares - expected) <= 5 * error + 1e-9), (shares, expected)


def kept(mask: Any, logits: Array = LOGITS) -> Array:
    """Probabilities when only some tokens are left."""
    return np.where(mask, softmax(np.where(mask, logits, -np.inf)), 0.0)


def test_the_defaults_are_llama_cpp_s() -> None:
    b, ours = _native.binding(), SamplingOptions()
    native = b.ffi.new("turbo_sampler_params *")
    b.lib.turbo_sampler_params_init(native)
    for name in (
        "temperature", "top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold",
        "dynatemp_range", "dynatemp_exponent", "repeat_penalty", "frequency_penalty", "presence_penalty",
        "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "mirostat", "mirostat_tau",
        "mirostat_eta", "adaptive_target", "adaptive_decay", "min_keep", "ignore_eos",
    ):  # fmt: skip
        assert getattr(native, name) == pytest.approx(getattr(ours, name)), name
    assert native.penalty_last_n == ours.repeat_last_n


def test_the_default_order_is_llama_cpp_s(tiny: Model) -> None:
    b = _native.binding()
    native = b.ffi.new("turbo_sampler_params *")
    b.lib.turbo_sampler_params_init(native)  # no order: llama.cpp's own
    out, text = b.ffi.new("turbo_sampler **"), b.ffi.new("char **")
    assert b.lib.turbo_sampler_new(tiny.pointer(), native, out) == 0
    assert b.lib.turbo_sampler_describe(out[0], text) == 0
    upstream = _native.take_text(b, text[0])
    b.lib.turbo_sampler_free(out[0])
    assert Sampler(tiny).describe() == upstream
    assert Sampler(tiny, samplers=["temperature", "top_k"]).describe() != upstream


def test_temperature(ctx: Context) -> None:
    for t in (0.5, 1.0, 2.0):
        check(draw(ctx, temperature=t), softmax(LOGITS / t))
    assert draw(ctx, 50, temperature=0)[0] == 1.0


def test_top_k(ctx: Context) -> None:
    check(draw(ctx, top_k=3), kept(np.arange(8) < 3))


def test_top_p(ctx: Context) -> None:
    p = softmax(LOGITS)
    n = int(np.searchsorted(np.cumsum(p), 0.7)) + 1
    assert n == 2
    check(draw(ctx, top_p=0.7), kept(np.arange(8) < n))


def test_min_p(ctx: Context) -> None:
    p = softmax(LOGITS)
    check(draw(ctx, min_p=0.2), kept(p >= 0.2 * p.max()))


def test_min_keep(ctx: Context) -> None:
    check(draw(ctx, min_p=0.9, min_keep=3), kept(np.arange(8) < 3))


def test_typical_p(ctx: Context) -> None:
    p = softmax(LOGITS)
    entropy = -(p * np.log(p)).sum()
    order = np.argsort(np.abs(-np.log(p) - entropy), kind="stable")
    n = int(np.searchsorted(np.cumsum(p[order]), 0.4)) + 1
    mask = np.isin(np.arange(8), order[:n])
    assert not mask[0]  # the likeliest token is not a typical one here
    check(draw(ctx, typical_p=0.4), kept(mask))


def test_top_n_sigma(ctx: Context) -> None:
    row = ctx.logits[0].astype(np.float64)
    for n in (0.02, 0.2):
        mask = row.max() - n * row.std() <= LOGITS
        assert 0 < mask.sum() < 8
        check(draw(ctx, top_n_sigma=n), kept(mask))


def test_xtc(ctx: Context) -> None:
    above = np.flatnonzero(softmax(LOGITS) >= 0.12)
    assert len(above) == 3
    mask = ~np.isin(np.arange(8), above[:-1])  # all but the least probable of those above the threshold go
    check(draw(ctx, xtc_probability=1.0, xtc_threshold=0.12), kept(mask))
    half = draw(ctx, xtc_probability=0.5, xtc_threshold=0.12)
    check(half, (kept(mask) + softmax(LOGITS)) / 2)
    check(draw(ctx, xtc_probability=1.0, xtc_threshold=0.6), softmax(LOGITS))  # above one half it does nothing


def test_dynamic_temperature(ctx: Context) -> None:
    p = softmax(LOGITS)
    share = -(p * np.log(p)).sum() / np.log(8)
    for exponent in (1.0, 2.0):
        t = 0.5 + 1.0 * share**exponent  # from 1 - 0.5 to 1 + 0.5
        check(draw(ctx, top_k=8, dynatemp_range=0.5, dynatemp_exponent=exponent), softmax(LOGITS / t))


def test_penalties(ctx: Context) -> None:
    history = [300, 300, 301, 306]
    counts = np.array([2, 1, 0, 0, 0, 0, 1, 0])
    repeated = np.where(counts > 0, np.where(LOGITS > 0, LOGITS / 1.5, LOGITS * 1.5), LOGITS)
    check(draw(ctx, history=history, repeat_penalty=1.5), softmax(repeated), N_FRESH)
    check(draw(ctx, history=history, frequency_penalty=0.7), softmax(LOGITS - 0.7 * counts), N_FRESH)
    check(draw(ctx, history=history, presence_penalty=0.9), softmax(LOGITS - 0.9 * (counts > 0)), N_FRESH)
    last_two = np.array([0, 1, 0, 0, 0, 0, 1, 0])
    check(draw(ctx, history=history, frequency_penalty=0.7, repeat_last_n=2), softmax(LOGITS - 0.7 * last_two), N_FRESH)
    check(draw(ctx, history=history, frequency_penalty=0.7, repeat_last_n=0), softmax(LOGITS), N_FRESH)


def test_dry(ctx: Context) -> None:
    repeat = [310, 311, 312, 301, 313, 310, 311, 312]  # 301 would make four of a repetition
    penalty = 0.8 * 1.75 ** (3 - 2)
    bent = LOGITS - penalty * (np.arange(8) == 1)
    check(draw(ctx, history=repeat, dry_multiplier=0.8), softmax(bent), N_FRESH)
    check(
        draw(ctx, history=repeat, dry_multiplier=0.8, dry_base=3.0),
        softmax(LOGITS - 2.4 * (np.arange(8) == 1)),
        N_FRESH,
    )
    check(draw(ctx, history=repeat, dry_multiplier=0.8, dry_allowed_length=4), softmax(LOGITS), N_FRESH)
    check(draw(ctx, history=repeat, dry_multiplier=0.8, dry_penalty_last_n=4), softmax(LOGITS), N_FRESH)
    breaker = ctx.model.tokenizer.piece(312).decode()
    check(draw(ctx, history=repeat, dry_multiplier=0.8, dry_sequence_breakers=[breaker]), softmax(LOGITS), N_FRESH)


def mirostat_k(p: Array, mu: float, n_vocab: int) -> int:
    """The k of the first mirostat paper: Zipf's exponent from the likeliest tokens, then the wanted surprise."""
    p = np.sort(p)[::-1][:100]
    t = np.log(np.arange(2, len(p) + 1) / np.arange(1, len(p)))
    s = (t * np.log(p[:-1] / p[1:])).sum() / (t * t).sum()
    e = s - 1
    return max(int((e * 2**mu / (1 - n_vocab**-e)) ** (1 / s)), 1)


def test_mirostat_1(ctx: Context) -> None:
    row = np.linspace(2.0, -4.0, 200)
    p = softmax(np.concatenate([row, np.full(ctx.model.facts.n_vocab - 200, -60.0)]))
    set_logits(ctx, row)
    try:
        for tau in (1.0, 2.0):
            k = mirostat_k(p, 2 * tau, ctx.model.facts.n_vocab)
            seen = set()
            for seed in range(400):
                with Sampler(ctx.model, mirostat=1, mirostat_tau=tau, temperature=1.0, seed=seed) as sampler:
                    seen.add(sampler.next(ctx) - FIRST)
            assert seen == set(range(k)), (tau, k)
    finally:
        set_logits(ctx, LOGITS)


def test_mirostat_2(ctx: Context) -> None:
    p = softmax(LOGITS)
    mask = -np.log2(p) <= 2 * 1.0
    assert mask.sum() == 2
    check(draw(ctx, history=[], mirostat=2, mirostat_tau=1.0), kept(mask), N_FRESH)
    # the step after a draw: mu moves against the error with the learning rate
    for seed in range(5):
        with Sampler(ctx.model, mirostat=2, mirostat_tau=1.0, mirostat_eta=4.0, temperature=1.0, seed=seed) as sampler:
            surprise = -np.log2(kept(mask)[sampler.next(ctx) - FIRST])
            mu = 2.0 - 4.0 * (surprise - 1.0)
            allowed = -np.log2(p) <= mu
            assert allowed[sampler.next(ctx) - FIRST] or not allowed.any()


def test_adaptive_p(ctx: Context) -> None:
    p = softmax(LOGITS)
    target = float(p[2])
    near = draw(ctx, history=[], adaptive_target=target, top_k=8)  # the first draw: no memory yet
    assert near.argmax() == 2 and near[2] > 1.5 * p[2]
    chosen = []
    with Sampler(ctx.model, **{**OFF, "top_k": 8}, adaptive_target=0.3, seed=1) as sampler:  # type: ignore[arg-type]
        for _ in range(3000):
            chosen.append(p[sampler.next(ctx) - FIRST])
    assert np.mean(chosen) == pytest.approx(0.3, abs=0.03)
    check(draw(ctx, adaptive_target=-1.0), softmax(LOGITS))


def test_the_order_decides(ctx: Context) -> None:
    hot = softmax(LOGITS / 3.0)
    after = int(np.searchsorted(np.cumsum(hot), 0.7)) + 1
    assert after > 2
    first = draw(ctx, temperature=3.0, top_p=0.7, samplers="top_p;temperature")
    check(first, kept(np.arange(8) < 2, LOGITS / 3.0))
    second = draw(ctx, temperature=3.0, top_p=0.7, samplers=["temperature", "top_p"])
    check(second, kept(np.arange(8) < after, LOGITS / 3.0))
    check(draw(ctx, top_k=1, samplers=["temperature"]), softmax(LOGITS))  # what is not named does nothing


def test_logit_bias(ctx: Context) -> None:
    check(draw(ctx, logit_bias={300: -1.0, 305: 2.0, 301: -float("inf")}),
          softmax(LOGITS + [-1, -np.inf, 0, 0, 0, 2, 0, 0]))  # fmt: skip


def test_seeds(ctx: Context) -> None:
    def texts(seed: int | None) -> tuple[int, list[int]]:
        with Sampler(ctx.model, **OFF, seed=seed) as sampler:  # type: ignore[arg-type]
            return sampler.seed, [sampler.next(ctx) for _ in range(40)]

    assert texts(5) == texts(5) != texts(6)
    (drawn, first), (other, _) = texts(None), texts(-1)
    assert drawn != other
    assert texts(drawn) == (drawn, first)  # the reported seed gives the same again


def test_a_reset_sampler_begins_anew(ctx: Context) -> None:
    with Sampler(ctx.model, **OFF, repeat_penalty=3.0, mirostat=0, seed=3) as sampler:  # type: ignore[arg-type]
        first = [sampler.next(ctx) for _ in range(30)]
        sampler.reset()
        assert [sampler.next(ctx) for _ in range(30)] == first


@pytest.mark.parametrize(
    "keywords",
    [
        {"samplers": "top_k;nope"}, {"temperature": float("nan")}, {"repeat_penalty": 0}, {"top_p": 1.5},
        {"min_p": -0.1},
        {"mirostat": 3}, {"xtc_probability": 2}, {"adaptive_decay": 1.0}, {"repeat_last_n": -5}, {"seed": 2**32},
        {"logit_bias": {10**6: 1.0}}, {"logit_bias": {5: float("nan")}}, {"dry_sequence_breakers": [""]},
        {"dynatemp_range": -1}, {"top_k": "many"},
    ],
    ids=str,
)  # fmt: skip
def test_values_nobody_can_mean(tiny: Model, keywords: dict[str, Any]) -> None:
    with pytest.raises(errors.OptionError):
        Sampler(tiny, **keywords)
