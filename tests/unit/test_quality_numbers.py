"""Log-softmax, the 16-bit base rows, divergence and statistics against hand-checked cases and plain numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pyllama_turbo.quality.divergence import TokenScores, summarise
from pyllama_turbo.quality.softmax import FLOOR, compare, decode_row, encode_rows, row_words
from pyllama_turbo.quality.stats import block_error, covariance, mean_and_error, median, percentile


def exact_log_softmax(x: np.ndarray) -> np.ndarray:
    y = x.astype(np.float64)
    y = y - y.max(axis=-1, keepdims=True)
    return np.asarray(y - np.log(np.exp(y).sum(axis=-1, keepdims=True)))


def encoded(logits: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rows = np.full((len(logits), row_words(logits.shape[1])), 0xFFFF, np.uint16)
    return rows, encode_rows(logits, targets, rows)


def test_row_of_three_tokens_by_hand() -> None:
    # p = 1/2, 1/4, 1/4
    logits = np.log(np.array([[0.5, 0.25, 0.25]], np.float32))
    rows, nll = encoded(logits, np.array([0], np.int32))
    assert rows.shape == (1, 8)  # 4 words of header, 3 codes and one to fill up
    assert rows[0, 4:].tolist() == [65535, 0, 0, 0]
    assert nll[0] == pytest.approx(math.log(2), abs=1e-6)
    assert decode_row(rows, 3)[0] == pytest.approx(np.log([0.5, 0.25, 0.25]), abs=1e-6)


def test_codes_keep_log_probabilities_within_half_a_step() -> None:
    rng = np.random.default_rng(0)
    logits = (4 * rng.standard_normal((7, 1001))).astype(np.float32)
    rows, nll = encoded(logits, np.arange(7, dtype=np.int32))
    exact = exact_log_softmax(logits)
    got = decode_row(rows, 1001)
    low = exact.max(axis=1, keepdims=True) - FLOOR
    step = 16 / 65535
    assert np.abs(np.maximum(exact, low) - got).max() < step / 2 + 1e-5
    assert nll == pytest.approx(-exact[np.arange(7), np.arange(7)], abs=1e-5)


def test_logits_far_below_the_top_share_the_lowest_code() -> None:
    logits = np.array([[0.0, -15.0, -40.0, -1e30]], np.float32)
    rows, _ = encoded(logits, np.array([0], np.int32))
    assert rows[0, 6] == 0 and rows[0, 7] == 0 and rows[0, 5] > 0


def test_equal_logits_are_one_code() -> None:
    rows, nll = encoded(np.zeros((1, 4), np.float32), np.array([2], np.int32))
    assert rows[0, 4:8].tolist() == [0, 0, 0, 0]
    assert decode_row(rows, 4)[0] == pytest.approx([math.log(0.25)] * 4)
    assert nll[0] == pytest.approx(math.log(4))


def test_kl_divergence_by_hand() -> None:
    base = np.log(np.array([[0.5, 0.25, 0.25]], np.float32))
    other = np.log(np.array([[0.25, 0.5, 0.25]], np.float32))
    rows, _ = encoded(base, np.array([1], np.int32))
    row = compare(other, rows, np.array([1], np.int32))
    # 0.5 ln 2 + 0.25 ln 0.5 = 0.25 ln 2
    assert row.kld[0] == pytest.approx(0.25 * math.log(2), abs=1e-4)
    assert row.dp[0] == pytest.approx(0.25, abs=1e-4)
    assert row.nll[0] == pytest.approx(math.log(2), abs=1e-5)
    assert row.nll_base[0] == pytest.approx(math.log(4), abs=1e-4)
    assert not row.same_top[0]


def test_compare_agrees_with_double_precision_and_is_zero_for_itself() -> None:
    rng = np.random.default_rng(1)
    base = (3 * rng.standard_normal((40, 3000))).astype(np.float32)
    other = base + 0.3 * rng.standard_normal(base.shape).astype(np.float32)
    targets = rng.integers(0, 3000, 40).astype(np.int32)
    rows, _ = encoded(base, targets)
    p, q = exact_log_softmax(base), exact_log_softmax(other)
    got = compare(other, rows, targets)
    assert got.kld == pytest.approx((np.exp(p) * (p - q)).sum(axis=1), abs=3e-4)
    assert got.same_top.tolist() == (p.argmax(axis=1) == q.argmax(axis=1)).tolist()
    itself = compare(base, rows, targets)
    assert np.abs(itself.kld).max() < 1e-4 and itself.same_top.all()


def test_rows_are_grouped_without_a_trace() -> None:
    # 1.5 groups of rows: the border must not show
    rng = np.random.default_rng(2)
    logits = rng.standard_normal((24, 65536)).astype(np.float32)
    targets = np.zeros(24, np.int32)
    rows, nll = encoded(logits, targets)
    single = [encoded(logits[i : i + 1], targets[:1]) for i in range(24)]
    assert np.array_equal(rows, np.concatenate([r for r, _ in single]))
    assert np.array_equal(nll, np.concatenate([n for _, n in single]))


def test_mean_error_and_covariance() -> None:
    x = np.arange(20.0)
    mean, error = mean_and_error(x)
    assert mean == 9.5
    assert error == pytest.approx(x.std() / math.sqrt(19))
    assert mean_and_error([1.0, 2.0]) == (1.5, 0.0)  # too few for an error
    assert mean_and_error([]) == (0.0, 0.0)
    assert covariance(x, 2 * x) == pytest.approx(2 * error**2)
    assert covariance(x[:5], x[:5]) == 0.0


def test_block_error_of_independent_and_of_repeated_values() -> None:
    rng = np.random.default_rng(3)
    chunk = np.repeat(np.arange(20), 160)
    independent = rng.standard_normal(3200)
    _, plain = mean_and_error(independent)
    assert block_error(independent, chunk) == pytest.approx(plain, rel=0.15)
    # 16 equal neighbours carry the information of one: the error is 4 times that of independent values
    repeated = np.repeat(rng.standard_normal(200), 16)
    _, plain = mean_and_error(repeated)
    assert block_error(repeated, chunk) == pytest.approx(4 * plain, rel=0.05)
    assert block_error([1.0] * 16, [0] * 16) == 0.0


def test_blocks_do_not_reach_over_chunks() -> None:
    # 17 tokens a chunk: blocks of 16 and 1
    chunk = np.repeat([0, 1], 17)
    values = np.r_[np.ones(16), -1.0, np.ones(16), -1.0]
    mean = values.mean()
    sums = [16 - 16 * mean, -1 - mean] * 2
    expected = math.sqrt(4 / 3 * sum(s * s for s in sums)) / 34
    assert block_error(values, chunk) == pytest.approx(expected)


def test_percentiles_interpolate() -> None:
    ordered = np.arange(11, dtype=np.float32)
    assert percentile(ordered, 0.0) == 0 and percentile(ordered, 1.0) == 10
    assert percentile(ordered, 0.25) == pytest.approx(2.5)
    assert percentile(ordered, 0.9) == pytest.approx(9.0, abs=1e-5)
    assert median(ordered) == 5 and median(ordered[:10]) == 4.5


def scores(n: int, **values: np.ndarray) -> TokenScores:
    made = TokenScores.empty(1, n)
    for name, value in values.items():
        getattr(made, name)[:] = value
    return made


def test_summary_by_hand() -> None:
    ln2 = math.log(2)
    nll = np.array([ln2, 2 * ln2] * 10)
    base = np.full(20, ln2)
    kld = np.r_[np.zeros(19), 1.0]
    dp = np.r_[np.full(10, 0.1), np.full(10, -0.3)]
    result = summarise(scores(20, nll=nll, nll_base=base, kld=kld, dp=dp, same_top=np.r_[np.ones(15), np.zeros(5)]))
    assert result.n_tokens == 20
    assert result.ppl == pytest.approx(2**1.5) and result.ppl_base == pytest.approx(2.0)
    assert result.ln_ratio == pytest.approx(0.5 * ln2) and result.ppl_ratio[0] == pytest.approx(2**0.5)
    assert result.kld_mean == pytest.approx(0.05) and result.kld_max == 1.0 and result.kld_median == 0.0
    assert result.kld_999 == pytest.approx(1 - 0.001 * 19, abs=1e-4)
    assert result.dp_mean == pytest.approx(-0.1) and result.dp_rms == pytest.approx(math.sqrt(0.05))
    assert result.same_top == 0.75 and result.same_top_err == pytest.approx(math.sqrt(0.75 * 0.25 / 19))


def test_summary_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no token"):
        summarise(TokenScores.empty(0, 5))
