"""The measuring commands end to end on tiny random models: numbers that must hold whatever the machine."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama_turbo import Model
from pyllama_turbo.bench.cases import Matrix, Test
from pyllama_turbo.bench.runner import BenchOptions, run_matrix
from pyllama_turbo.cli import main
from pyllama_turbo.quality.identity import compare_runs, greedy
from pyllama_turbo.quality.matrix import run_pairs
from pyllama_turbo.quality.measure import perplexity
from pyllama_turbo.quality.needle import recall
from pyllama_turbo.quality.passes import open_source, run
from pyllama_turbo.quality.plan import ScorePlan, chunk_plan, range_plan
from pyllama_turbo.quality.reference import Setting
from pyllama_turbo.quality.texts import builtin_tokens
from pyllama_turbo.report.provenance import collect
from pyllama_turbo.report.records import ResultFile, read_records

PAIRS = (("f16", "f16"), ("q8_0", "q8_0"), ("turbo4_tcq", "turbo4_tcq"), ("turbo2", "turbo2"))
CONTEXT: dict[str, Any] = {"n_threads": 1, "calibrate": False, "k_center": "off"}
SETTING = Setting("test", "cpu", CONTEXT)


def tokens(model: Model, n: int) -> list[int]:
    return builtin_tokens(lambda text: model.tokenizer.encode(text, add_special=False), n, 128)


def logits(model: Model, plan: ScorePlan, **keywords: Any) -> np.ndarray:
    rows = np.zeros((plan.n_chunk, plan.per_chunk, model.facts.n_vocab), np.float32)
    source = open_source(model, plan, **{**CONTEXT, **keywords})
    with source.context:
        for piece in run(source, plan):
            rows[piece.chunk, piece.offset : piece.offset + len(piece.logits)] = piece.logits
    return rows


def test_perplexity_is_that_of_plain_decoding(tiny: Model) -> None:
    plan = chunk_plan(tokens(tiny, 256), 64)
    source = open_source(tiny, plan, **CONTEXT)
    with source.context:
        result = perplexity(source, plan)
    nll = []
    with tiny.context(64, logits_all=True, **CONTEXT) as context:
        for chunk in range(plan.n_chunk):
            context.seqs.clear()
            context.decode(plan.tokens[chunk].tolist(), outputs="all")
            x = context.logits[plan.first : plan.last].astype(np.float64)
            x -= x.max(axis=1, keepdims=True)
            x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
            nll += (-x[np.arange(len(x)), plan.targets(chunk)]).tolist()
    assert result.n_tokens == len(nll) == 4 * 31
    assert result.ppl == pytest.approx(math.exp(np.mean(nll)), rel=1e-4)


@pytest.mark.parametrize("kv", ["f16", "turbo4_tcq"])
def test_both_paths_see_the_same_model(tiny: Model, kv: str) -> None:
    text = tokens(tiny, 192)
    prefill = logits(tiny, chunk_plan(text, 64), kv=kv)
    # A code that rounds the other way moves single logits: the mean counts, against what two bits less would do.
    allowed = 0.3 * np.abs(prefill - logits(tiny, chunk_plan(text, 64), kv="turbo2")).mean()
    for parallel in (1, 3):
        decode = logits(tiny, chunk_plan(text, 64, path="decode", parallel=parallel), kv=kv)
        assert np.abs(decode - prefill).mean() < 0.1 * allowed


def test_a_range_gives_the_rows_of_the_whole(tiny: Model) -> None:
    text = tokens(tiny, 201)
    part = logits(tiny, range_plan(text, 150, 160, n_batch=64))
    whole = logits(tiny, range_plan(text, 0, 200, n_batch=64))
    # Other numbers of outputs in a batch take other paths through the last layer: close, not equal.
    assert np.abs(part[0] - whole[0, 150:160]).max() < 0.01 * whole.std()
    assert np.abs(part[0] - whole[0, 151:161]).max() > 0.1 * whole.std()


def test_divergence_grows_with_fewer_bits(tiny: Model, tmp_path: Path) -> None:
    plan = chunk_plan(tokens(tiny, 512), 128)
    results = ResultFile(tmp_path / "r.jsonl")
    records = run_pairs(tiny, [plan], PAIRS, SETTING, tmp_path / "lab", results=results)
    kld = [r["kld_mean"] for r in records]
    assert [r["status"] for r in records] == ["ok"] * 4 and records[0]["n_tokens"] == 4 * 63
    assert abs(kld[0]) < 1e-4 and records[0]["same_top"] > 0.99
    assert kld[0] < kld[1] < kld[2] < kld[3]
    assert [r["kv_bits"] for r in records] == [16.0, 8.5, 4.25, 2.25]
    assert records[2]["effective_k"] == "turbo4_tcq_64"
    assert list((tmp_path / "lab").iterdir()) == []  # the base is gone when all is measured


def test_what_is_in_the_result_file_is_not_measured_again(tiny: Model, tmp_path: Path) -> None:
    plan = chunk_plan(tokens(tiny, 128), 64)
    first = run_pairs(tiny, [plan], PAIRS[:2], SETTING, tmp_path, results=ResultFile(tmp_path / "r.jsonl"))
    seen: list[str] = []
    again = run_pairs(
        tiny, [plan], PAIRS[:2], SETTING, tmp_path, results=ResultFile(tmp_path / "r.jsonl"),
        progress=lambda label, done, total: seen.append(label),
    )  # fmt: skip
    assert seen == [] and again == first
    assert len(read_records([tmp_path / "r.jsonl"])) == 2


def test_a_pair_that_does_not_fit_has_its_reason(open_model: Callable[..., Model], tmp_path: Path) -> None:
    model = open_model(head_dim=80)
    plan = chunk_plan(tokens(model, 128), 64)
    good, bad = run_pairs(model, [plan], (("q8_0", "q8_0"), ("turbo3", "turbo3")), SETTING, tmp_path)
    if good["status"] == "ok":
        assert good["kld_mean"] >= 0
    assert bad["status"] == "failed" and "80" in bad["reason"]


def test_an_interrupted_matrix_goes_on(tiny: Model, tmp_path: Path) -> None:
    plan = chunk_plan(tokens(tiny, 512), 64)
    pairs = (("turbo3", "turbo3"),)

    def stop(label: str, done: int, total: int) -> None:
        if label == "turbo3" and done >= 3 * plan.per_chunk:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_pairs(tiny, [plan], pairs, SETTING, tmp_path, progress=stop)
    seen: list[tuple[str, int]] = []
    (record,) = run_pairs(tiny, [plan], pairs, SETTING, tmp_path, progress=lambda a, b, c: seen.append((a, b)))
    assert seen[0] == ("turbo3", 3 * plan.per_chunk)  # neither the base nor the first chunks again
    (whole,) = run_pairs(tiny, [plan], pairs, SETTING, tmp_path / "other")
    assert record["kld_mean"] == pytest.approx(whole["kld_mean"], rel=1e-9)


def test_greedy_identity(tiny: Model) -> None:
    prompts = ("hello", "the quick")
    runs = []
    for kv in ("f16", "f16", "turbo2"):
        with tiny.context(64, kv=kv, **CONTEXT) as context:
            runs.append(greedy(context, prompts, 16))
    assert compare_runs(runs[0], runs[1]).identical
    assert len(runs[0][0].tokens) == 16 and min(runs[0][0].gaps) >= 0
    different = compare_runs(runs[0], runs[2])
    assert not different.identical  # two bits on a random model: not the same text


def test_needle_runs_cold_and_cached(tiny: Model) -> None:
    with tiny.context(512, **CONTEXT) as context:
        results = recall(context, 400, (0.1, 0.9))
    for cold, warm in results:
        assert cold.n_tokens == warm.n_tokens == 400 and cold.reused == 0 and 300 < warm.reused < 400
        assert cold.logprob == pytest.approx(warm.logprob, abs=0.05) and cold.logprob < 0


def test_bench_rows(tiny: Model) -> None:
    matrix = Matrix((Test(16, 0), Test(0, 4)), (0, 32), (("f16", "f16"), ("turbo3", "turbo3"), ("nonsense", "f16")))
    options = BenchOptions(repeats=3, context=CONTEXT)
    rows = [row for group in run_matrix(tiny, matrix, options, collect()) for row in group]
    assert len(rows) == 12
    good = [row for row in rows if row.status == "ok"]
    assert len(good) == 8 and all(len(row.samples_ns) == 3 and row.avg_ts > 0 for row in good)
    assert {row.effective_k for row in good} == {"f16", "turbo3_64"}
    assert all(row.ratio is not None and row.digest for row in good)
    assert all("nonsense" in row.reason for row in rows if row.status == "failed")
    assert [row.test for row in rows[::3]] == ["pp16", "tg4", "pp16 @ d32", "tg4 @ d32"]


def command(capfd: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    capfd.readouterr()
    code = main([str(arg) for arg in args])
    out, err = capfd.readouterr()
    return code, out, err


def test_kld_command(tiny: Model, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.jsonl"
    base = ("kld", "-m", tiny.path, "-c", 64, "--chunks", 2, "-t", 1, "--no-calibrate", "--out", out)
    code, text, err = command(capfd, *base, "-kv", "q8_0,turbo3", "--gate", "kld<=100")
    assert code == 0 and "turbo3" in text and "gate turbo3 (prefill): passed" in err
    code, text, _ = command(capfd, *base, "-kv", "q8_0,turbo3", "--gate", "kld<=0", "--json")
    assert code == 1 and [(r["type_k"], r["floor"]) for r in json.loads(text)] == [
        ("f16", True), ("q8_0", False), ("turbo3", False),
    ]  # fmt: skip
    assert [r["kind"] for r in read_records([out])] == ["provenance", "kld", "kld", "kld"]
    code, _, err = command(capfd, *base, "--gate", "beautiful")
    assert code == 2 and "no gate" in err


def test_bench_and_report_commands(tiny: Model, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.jsonl"
    base = ("bench", "-m", tiny.path, "-p", 0, "-n", 4, "-d", "0,16", "-r", 2, "-t", 1, "--no-calibrate", "--out", out)
    code, text, _ = command(capfd, *base, "-kv", "f16,q8_0", "-o", "jsonl")
    rows = [json.loads(line) for line in text.splitlines()]
    assert code == 0 and [(r["type_k"], r["n_depth"]) for r in rows] == [
        ("f16", 0),
        ("q8_0", 0),
        ("f16", 16),
        ("q8_0", 16),
    ]
    code, text, _ = command(capfd, *base, "-kv", "f16,q8_0", "-o", "json")
    assert [r["samples_ns"] for r in json.loads(text)] == [r["samples_ns"] for r in rows]  # from the file
    code, text, _ = command(capfd, *base, "-kv", "f16,none", "-o", "md")
    assert code == 1 and "failed: unknown KV cache type" in text
    page = tmp_path / "p.html"
    code, _, err = command(capfd, "report", out, "-o", page, "--markdown", tmp_path / "p.md", "-m", tiny.path)
    html = page.read_text()
    assert code == 0 and "Decode speed against depth" in html and "Bytes of the KV cache" in html and "none" in html
    assert "| f16 |" in (tmp_path / "p.md").read_text()


def test_identity_command_across_processes(tiny: Model, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    base = ("identity", "-m", tiny.path, "-n", 8, "-a", "kv=f16,n_threads=1")
    assert command(capfd, *base, "--save", tmp_path / "a.json")[0] == 0
    code, text, _ = command(capfd, *base, "--against", tmp_path / "a.json")
    assert code == 0 and text.startswith("identical: 64 tokens of 8 prompts")
    code, text, _ = command(capfd, *base, "-b", "kv=turbo2,k_center=off", "--json")
    assert code == 1 and json.loads(text)["identical"] is False
    (tmp_path / "a.json").write_text("[{}]")
    assert command(capfd, *base, "--against", tmp_path / "a.json")[0] == 1
    assert command(capfd, *base)[0] == 2


def test_advise_command(tiny: Model, capfd: pytest.CaptureFixture[str]) -> None:
    base = ("advise", "-m", tiny.path, "-c", "1k", "--chunks", 1, "-t", 1, "--no-calibrate", "--json")
    code, text, _ = command(capfd, *base, "--quality", "kld<=1000")
    advice = json.loads(text)
    assert code == 0 and advice["chosen"]["type_k"] == "turbo2_tcq" and advice["chosen"]["tok_s"] > 0
    sizes = [c["kv_bytes"] for c in advice["candidates"]]
    assert sizes == sorted(sizes)
    code, text, _ = command(capfd, *base, "--memory", 1000)
    assert code == 1 and json.loads(text)["chosen"] is None


def test_switches_are_measured_in_processes_of_their_own(tiny: Model, capfd: pytest.CaptureFixture[str]) -> None:
    base = ("bench", "-m", tiny.path, "-p", 0, "-n", 2, "-r", 1, "-t", 1, "--no-calibrate", "--no-interleave")
    code, text, _ = command(capfd, *base, "--switches", "fused,graphs")
    lines = text.splitlines()
    assert code == 0 and lines[0].split() == ["graphs=off", "graphs=on", "graphs", "gain"]
    assert [line.split()[0] for line in lines[1:]] == ["fused=off", "fused=on"]
    assert all(float(cell) > 0 for line in lines[1:] for cell in line.split()[1:3])
    assert command(capfd, *base, "--switches", "magic")[0] == 2
