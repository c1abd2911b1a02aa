"""Plans, paths, base files, resuming and gates, on a stand-in for a model whose logits depend on all tokens before."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from pyllama_turbo.errors import OptionError, StateError
from pyllama_turbo.quality import basefile, measure, passes
from pyllama_turbo.quality.advise import CANDIDATES, Candidate, choose, with_quality
from pyllama_turbo.quality.divergence import Divergence, TokenScores, summarise
from pyllama_turbo.quality.gates import LEVELS, Gate, judge, parse_gate
from pyllama_turbo.quality.identity import GreedyRun, compare_runs
from pyllama_turbo.quality.matrix import DEFAULT_PAIRS
from pyllama_turbo.quality.needle import _prompt, make_needle
from pyllama_turbo.quality.plan import ScorePlan, chunk_plan, range_plan
from pyllama_turbo.quality.softmax import row_words
from pyllama_turbo.quality.texts import builtin_tokens, file_tokens

VOCAB = 51


class FakeModel:
    """Logits are random numbers drawn from the tokens up to and including the position, plus noise if asked."""

    def __init__(self, noise: float = 0.0, stop_after: int | None = None) -> None:
        self.n_vocab = VOCAB
        self.held: dict[int, list[int]] = {}
        self.batches: list[int] = []
        self.noise = noise
        self.left = stop_after

    def clear(self) -> None:
        self.held.clear()

    def row(self, tokens: Sequence[int]) -> np.ndarray:
        seed = int.from_bytes(hashlib.sha256(repr(list(tokens)).encode()).digest()[:4], "little")
        rng = np.random.default_rng(seed)
        return (2 * rng.standard_normal(VOCAB) + self.noise * rng.standard_normal(VOCAB)).astype(np.float32)

    def feed(
        self, tokens: Sequence[int], positions: Sequence[int], seqs: Sequence[int], outputs: Sequence[bool]
    ) -> np.ndarray | None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
        self.batches.append(len(tokens))
        rows = []
        for token, position, seq, output in zip(tokens, positions, seqs, outputs):
            history = self.held.setdefault(seq, [])
            assert position == len(history), "positions must continue the sequence"
            history.append(token)
            if output:
                rows.append(self.row(history))
        return np.stack(rows) if rows else None


def text(n: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, VOCAB, n)]


def collect(plan: ScorePlan, start: int = 0) -> np.ndarray:
    out = np.full((plan.n_chunk, plan.per_chunk, VOCAB), np.nan, np.float32)
    for piece in passes.run(FakeModel(), plan, start):
        out[piece.chunk, piece.offset : piece.offset + len(piece.logits)] = piece.logits
    return out


def expected(plan: ScorePlan) -> np.ndarray:
    model = FakeModel()
    return np.stack([[model.row(row[: i + 1].tolist()) for i in range(plan.first, plan.last)] for row in plan.tokens])


@pytest.mark.parametrize("n_batch", [3, 8, 16, 64])
def test_prefill_gives_the_second_half(n_batch: int) -> None:
    plan = chunk_plan(text(50), 16, n_batch=n_batch)
    assert (plan.n_chunk, plan.first, plan.last, plan.per_chunk) == (3, 8, 15, 7) and plan.half
    assert np.array_equal(collect(plan), expected(plan))


@pytest.mark.parametrize("parallel", [1, 2, 5])
def test_one_token_at_a_time_gives_the_same(parallel: int) -> None:
    plan = chunk_plan(text(50), 16, path="decode", n_batch=5, parallel=parallel)
    assert np.array_equal(collect(plan), expected(plan))
    model = FakeModel()
    list(passes.run(model, plan))
    width = min(parallel, 3)
    assert model.batches.count(width) >= plan.per_chunk


def test_range_of_a_long_text() -> None:
    plan = range_plan(text(100), 60, 70, n_batch=16)
    assert plan.n_scored == 10 and not plan.half and plan.n_ctx == 71
    assert np.array_equal(collect(plan), expected(plan))
    assert np.array_equal(collect(replace(plan, path="decode")), expected(plan))
    assert plan.targets(0).tolist() == text(100)[61:71]


def test_bos_replaces_the_first_token_of_each_chunk() -> None:
    plan = chunk_plan(text(32), 16, bos=7)
    assert plan.tokens[:, 0].tolist() == [7, 7]


def test_plans_that_cannot_be() -> None:
    with pytest.raises(OptionError, match="15 tokens"):
        chunk_plan(text(15), 16)
    with pytest.raises(OptionError, match="21 are needed"):
        range_plan(text(20), 5, 20)
    with pytest.raises(OptionError, match="path"):
        chunk_plan(text(16), 16, path="sideways")
    with pytest.raises(OptionError, match="decode path"):
        replace(chunk_plan(text(32), 16), parallel=2)


def test_llama_cpp_base_format(tmp_path: Path) -> None:
    plan = chunk_plan(text(32), 16)
    base = basefile.create(tmp_path / "b", plan, VOCAB, {"who": "me"})
    measure.write_base(FakeModel(), plan, base)
    raw = (tmp_path / "b").read_bytes()
    assert raw[:8] == b"_logits_" and struct.unpack("<3i", raw[8:20]) == (16, VOCAB, 2)
    assert np.frombuffer(raw[20 : 20 + 4 * 32], "<i4").tolist() == text(32)
    assert len(raw) == 20 + 128 + 2 * 7 * row_words(VOCAB) * 2 == basefile.size_bytes(plan, VOCAB)
    scale, low = struct.unpack("<2f", raw[148:156])
    codes = np.frombuffer(raw[156 : 156 + 2 * VOCAB], "<u2")
    logits = expected(plan)[0, 0].astype(np.float64)
    exact = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    assert codes * scale + low == pytest.approx(exact, abs=2e-4)


def test_a_file_without_a_side_file_is_complete_and_anonymous(tmp_path: Path) -> None:
    plan = chunk_plan(text(32), 16)
    measure.write_base(FakeModel(), plan, basefile.create(tmp_path / "b", plan, VOCAB, {"who": "me"}))
    (tmp_path / "b.json").unlink()
    found = basefile.open_base(tmp_path / "b")
    assert found.complete and found.identity == {}
    again = found.plan(bos=3)
    assert again.half and again.tokens[0].tolist() == [3, *text(32)[1:16]]


def test_range_base_round_trip(tmp_path: Path) -> None:
    plan = range_plan(text(40), 20, 30)
    measure.write_base(FakeModel(), plan, basefile.create(tmp_path / "b", plan, VOCAB, {}))
    found = basefile.open_base(tmp_path / "b")
    assert (tmp_path / "b").read_bytes()[:8] == b"_trange_"
    assert found.plan().text_hash == plan.text_hash
    assert summarise(measure.score(FakeModel(), plan, found)).kld_mean == pytest.approx(0, abs=1e-5)


def test_an_interrupted_base_goes_on(tmp_path: Path) -> None:
    plan = chunk_plan(text(64), 16)
    whole = basefile.create(tmp_path / "whole", plan, VOCAB, {})
    measure.write_base(FakeModel(), plan, whole)
    with pytest.raises(KeyboardInterrupt):
        measure.write_base(FakeModel(stop_after=2), plan, basefile.create(tmp_path / "b", plan, VOCAB, {"a": 1}))
    resumed = basefile.create(tmp_path / "b", plan, VOCAB, {"a": 1})
    assert resumed.done == 2 and not resumed.complete
    with pytest.raises(StateError, match="2 of 4 chunks"):
        measure.score(FakeModel(), plan, resumed)
    model = FakeModel()
    measure.write_base(model, plan, resumed)
    assert model.batches == [16, 16]  # only the two chunks that were missing
    assert (tmp_path / "b").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_base_of_another_run_is_refused(tmp_path: Path) -> None:
    plan = chunk_plan(text(32), 16)
    basefile.create(tmp_path / "b", plan, VOCAB, {"model": "a"})
    with pytest.raises(StateError, match="another run"):
        basefile.create(tmp_path / "b", plan, VOCAB, {"model": "b"})
    with pytest.raises(StateError, match="another run"):
        basefile.create(tmp_path / "b", chunk_plan(text(32, seed=9), 16), VOCAB, {"model": "a"})


@pytest.mark.parametrize("damage", [b"", b"_logits_", b"GGUF" + bytes(40), b"_logits_" + struct.pack("<3i", 16, -1, 2)])
def test_damaged_base_files(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "b").write_bytes(damage)
    with pytest.raises(StateError):
        basefile.open_base(tmp_path / "b")


def test_a_cut_base_file_is_refused(tmp_path: Path) -> None:
    plan = chunk_plan(text(32), 16)
    measure.write_base(FakeModel(), plan, basefile.create(tmp_path / "b", plan, VOCAB, {}))
    raw = (tmp_path / "b").read_bytes()
    (tmp_path / "b").write_bytes(raw[:-1])
    with pytest.raises(StateError, match="cut off"):
        basefile.open_base(tmp_path / "b")


def test_an_interrupted_score_goes_on(tmp_path: Path) -> None:
    plan = chunk_plan(text(64), 16)
    base = basefile.create(tmp_path / "b", plan, VOCAB, {})
    measure.write_base(FakeModel(), plan, base)
    keep = tmp_path / "scores.npz"
    whole = measure.score(FakeModel(noise=0.3), plan, base)
    with pytest.raises(KeyboardInterrupt):
        measure.score(FakeModel(noise=0.3, stop_after=3), plan, base, keep=keep)
    model = FakeModel(noise=0.3)
    seen: list[int] = []
    resumed = measure.score(model, plan, base, seen.append, keep)
    assert model.batches == [16] and seen == [21, 28]
    assert np.array_equal(resumed.kld, whole.kld) and np.array_equal(resumed.chunk, whole.chunk)
    assert summarise(resumed) == summarise(whole)


def test_more_noise_diverges_more(tmp_path: Path) -> None:
    plan = chunk_plan(text(320), 32)
    base = basefile.create(tmp_path / "b", plan, VOCAB, {})
    measure.write_base(FakeModel(), plan, base)
    klds = [summarise(measure.score(FakeModel(noise=n), plan, base)).kld_mean for n in (0.0, 0.1, 0.4)]
    assert klds[0] < 1e-5 < klds[1] < klds[2]


def test_score_refuses_other_tokens_and_vocabularies(tmp_path: Path) -> None:
    plan = chunk_plan(text(32), 16)
    base = basefile.create(tmp_path / "b", plan, VOCAB, {})
    measure.write_base(FakeModel(), plan, base)
    with pytest.raises(StateError, match="other tokens"):
        measure.score(FakeModel(), chunk_plan(text(32, seed=4), 16), base)
    other = FakeModel()
    other.n_vocab = 40
    with pytest.raises(StateError, match="the model has 40"):
        measure.score(other, plan, base)


def test_perplexity_is_that_of_the_base_run(tmp_path: Path) -> None:
    plan = chunk_plan(text(64), 16)
    base = basefile.create(tmp_path / "b", plan, VOCAB, {})
    measure.write_base(FakeModel(), plan, base)
    from_base = summarise(measure.score(FakeModel(), plan, base))
    result = measure.perplexity(FakeModel(), plan)
    assert result.n_tokens == 28
    assert result.ppl == pytest.approx(from_base.ppl) and result.ppl_err == pytest.approx(from_base.ppl_err)


def words(part: str) -> list[int]:
    return [hash(w) % 1000 for w in part.split()]


def test_builtin_text_takes_turns() -> None:
    tokens = builtin_tokens(words, 4096, 512)
    assert len(tokens) == 4096
    assert tokens[:512] != tokens[512:1024]
    assert tokens == builtin_tokens(words, 4096, 512)
    assert builtin_tokens(words, 1000, 512) == tokens[:1000]


def test_text_files(tmp_path: Path) -> None:
    for name, count in (("a", 100), ("b", 60)):
        (tmp_path / name).write_text(" ".join(f"{name}{i}" for i in range(count)))
    both = file_tokens(words, [tmp_path / "a", tmp_path / "b"], piece=20)
    assert both[:40] == words(" ".join(f"a{i}" for i in range(20))) + words(" ".join(f"b{i}" for i in range(20)))
    assert len(both) == 120  # as long as the shorter one lasts
    with pytest.raises(OptionError, match="100 tokens"):
        file_tokens(words, [tmp_path / "a"], 200)


def result(**changes: float) -> Divergence:
    plain = {name: 0.0 for name in Divergence.__dataclass_fields__ if not name.endswith("percentiles")}
    made = Divergence(**plain, kld_percentiles={"0.999": 0.5, "0.5": 0.01})  # type: ignore[arg-type]
    return replace(made, **{"same_top": 0.95, "kld_mean": 0.01, **changes})  # type: ignore[arg-type]


def test_gates() -> None:
    assert parse_gate("kld<=0.036") == (Gate("kld", "<=", 0.036),)
    assert parse_gate(" same_top >= 0.9 ") == (Gate("same_top", ">=", 0.9),)
    assert parse_gate("good") is LEVELS["good"]
    assert judge(result(), LEVELS["near-lossless"]).passed
    worse = judge(result(kld_mean=0.03), LEVELS["near-lossless"])
    assert not worse.passed and [str(c.gate) for c in worse.checks if not c.passed] == ["kld <= 0.02"]
    assert not judge(result(kld_mean=float("nan")), parse_gate("kld<=9")).passed
    assert not judge(result(kld_se=0.02), parse_gate("kld_upper<=0.04")).passed


@pytest.mark.parametrize("wrong", ["", "kld", "kld<0.1", "kld<=", "beauty>=1", "kld<=1e"])
def test_gates_that_are_none(wrong: str) -> None:
    with pytest.raises(OptionError, match="no gate"):
        parse_gate(wrong)


def test_levels_are_ordered() -> None:
    limits = [LEVELS[name][0].limit for name in ("near-lossless", "good", "fair")]
    assert limits == sorted(limits)


def test_identity_finds_the_first_difference() -> None:
    a = [GreedyRun("x", (1, 2, 3), (0.5, 0.1, 2.0)), GreedyRun("y", (4, 5), (1.0, 1.0))]
    b = [GreedyRun("x", (1, 9, 3), (0.5, 0.2, 2.0)), GreedyRun("y", (4, 5), (1.0, 1.0))]
    same = compare_runs(a, a)
    assert same.identical and same.n_tokens == 5
    found = compare_runs(a, b)
    assert not found.identical and found.n_tokens == 3
    (d,) = found.differences
    assert (d.prompt, d.position, d.token_a, d.token_b, d.gap_a, d.gap_b) == (0, 1, 2, 9, 0.1, 0.2)
    with pytest.raises(ValueError, match="different prompts"):
        compare_runs(a, b[:1])


def test_needle_prompt_has_the_fact_at_its_depth() -> None:
    needle = make_needle(5)
    assert needle == make_needle(5) != make_needle(6) and needle.answer.strip() in needle.fact
    fact = words(needle.fact)
    for depth in (0.0, 0.5, 1.0):
        body, question = _prompt(words, needle, 400, depth)
        assert len(body) + len(question) == 400 and question == words(needle.question)
        place = int((400 - len(fact) - len(question)) * depth)
        assert body[place : place + len(fact)] == fact


def candidate(k: str, v: str, n_bytes: int, **more: object) -> Candidate:
    return Candidate(k, v, n_bytes, n_bytes + 100, fits=True, **more)  # type: ignore[arg-type]


def test_advice_is_the_smallest_that_passes() -> None:
    gates = LEVELS["good"]
    measured = {"status": "ok", **asdict(result(kld_mean=0.05, kld_se=0.01))}
    good = with_quality(candidate("turbo3_tcq", "turbo3_tcq", 50), measured, gates)
    worse = with_quality(candidate("turbo2", "turbo2", 30), {**measured, "kld_mean": 0.3}, gates)
    better = with_quality(candidate("turbo3", "turbo3", 50), {**measured, "kld_mean": 0.04}, gates)
    dear = with_quality(candidate("q8_0", "q8_0", 90), {**measured, "kld_mean": 0.001}, gates)
    broken = with_quality(candidate("x", "x", 1), {"status": "failed", "reason": "no head dims"}, gates)
    assert (good.passed, worse.passed, broken.passed) == (True, False, False)
    assert worse.reason == "kld 0.3, kld <= 0.08" and broken.reason == "no head dims"
    assert choose([worse, broken, good, better, dear]).chosen is better
    assert choose([worse, replace(good, fits=False), dear]).chosen is dear
    assert choose([worse, broken, candidate("y", "y", 1)]).chosen is None


def test_keys_never_get_fewer_bits_than_values() -> None:
    bits = {"turbo2": 2, "turbo3": 3, "turbo4": 4, "q8_0": 8, "f16": 16}
    for k, v in (*CANDIDATES, *DEFAULT_PAIRS):
        names = [name.removesuffix("_tcq") for name in (k, v)]
        if "q4_0" not in names:
            assert bits[names[0]] >= bits[names[1]]


def test_base_files_beyond_4_gib(tmp_path: Path) -> None:
    """Offsets are 64 bits wide: the last row of a (sparse) base above 4 GiB is where its header says."""
    n_vocab = 262_144
    plan = chunk_plan(list(range(40 * 512)), 512)
    assert basefile.size_bytes(plan, n_vocab) > 4 << 30
    base = basefile.create(tmp_path / "b", plan, n_vocab, {"model": "m"})
    base.rows[-1, -1, :4] = (1, 2, 3, 4)
    base.advance(40)
    found = basefile.open_base(tmp_path / "b")
    assert found.complete and found.rows[-1, -1, :4].tolist() == [1, 2, 3, 4] and found.rows[0, 0, 0] == 0
    with (tmp_path / "b").open("rb") as file:
        file.seek(-2 * row_words(n_vocab), 2)
        assert np.frombuffer(file.read(8), "<u2").tolist() == [1, 2, 3, 4]


def test_percentiles_and_summary_agree_with_numpy() -> None:
    rng = np.random.default_rng(5)
    n = 1000
    made = TokenScores.empty(4, n // 4)
    made.nll[:] = rng.gamma(2.0, size=n)
    made.nll_base[:] = made.nll + 0.1 * rng.standard_normal(n)
    made.kld[:] = rng.gamma(0.5, 0.02, n)
    made.dp[:] = 0.1 * rng.standard_normal(n)
    made.same_top[:] = rng.random(n) < 0.9
    found = summarise(made)
    for key, value in found.kld_percentiles.items():
        assert value == pytest.approx(np.quantile(made.kld, float(key)), rel=2e-4, abs=1e-7)
    for key, value in found.dp_percentiles.items():
        assert value == pytest.approx(np.quantile(made.dp.astype(np.float64), float(key)), rel=2e-3, abs=1e-6)
    assert found.ppl == pytest.approx(np.exp(made.nll.astype(np.float64).mean()), rel=1e-9)
    assert found.kld_err == pytest.approx(made.kld.std(ddof=1) / n**0.5, rel=1e-6)
    assert found.same_top == made.same_top.mean() and found.dp_rms == pytest.approx((made.dp**2).mean() ** 0.5, 1e-4)
    assert found.correlation == pytest.approx(np.corrcoef(made.nll, made.nll_base)[0, 1], rel=1e-4)
