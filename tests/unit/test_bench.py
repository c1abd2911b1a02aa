"""Cases, rows, ratios, the runner's order and its failures, 2x2 tables; without the native library."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pyllama_turbo.bench import flags, runner
from pyllama_turbo.bench.cases import Case, Matrix, Test, parse_numbers, parse_pairs, parse_tests
from pyllama_turbo.bench.compare import paired_ratio
from pyllama_turbo.bench.fill import fill, random_tokens
from pyllama_turbo.bench.rows import Row, csv_lines, from_samples, json_line, markdown, row_of, without_constants
from pyllama_turbo.errors import MemoryLimitError, OptionError, TurboError, UnsupportedError


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("512", (512,)),
        ("512,1k,512", (512, 1024)),
        ("0-4096+1024", (0, 1024, 2048, 3072, 4096)),
        ("3-6", (3, 4, 5, 6)),
        ("1k-32k*2", (1024, 2048, 4096, 8192, 16384, 32768)),
        ("1-10*3", (1, 3, 9)),
        (["64", "128,256"], (64, 128, 256)),
    ],
)
def test_lists_and_ranges(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_numbers(text) == numbers


@pytest.mark.parametrize("text", ["", "x", "5-3", "0-8*2", "1-8*1", "1-8+0", "1-100000", "1--2", "-5"])
def test_lists_that_are_none(text: str) -> None:
    with pytest.raises(OptionError):
        parse_numbers(text)


def test_pairs() -> None:
    assert parse_pairs(["f16,turbo3", "q8_0/turbo3"]) == (("f16", "f16"), ("turbo3", "turbo3"), ("q8_0", "turbo3"))
    assert parse_pairs([]) == (("f16", "f16"),)
    assert parse_pairs([], ["f16,q8_0"], ["turbo3"]) == (("f16", "turbo3"), ("q8_0", "turbo3"))
    assert parse_pairs([], (), ["turbo3"]) == (("f16", "turbo3"),)


def test_tests() -> None:
    assert parse_tests([512, 0], [128]) == (Test(512, 0), Test(0, 128))
    assert [t.name for t in parse_tests([64], [8], ["512,128"])] == ["pp64", "tg8", "pp512+tg128"]
    for prompts, both in ([0], []), ([], ["5"]), ([], ["0,5"]):
        with pytest.raises(OptionError):
            parse_tests(prompts, [], both)


def test_matrix_groups_by_everything_but_the_pair() -> None:
    matrix = Matrix(
        (Test(8, 0), Test(0, 4)), (0, 100), (("f16", "f16"), ("turbo3", "turbo3")), n_batch=(256,), n_ubatch=(512,)
    )
    groups = matrix.groups()
    assert len(groups) == 4 and len(matrix) == 8
    assert [c.kv[0] for c in groups[0]] == ["f16", "turbo3"]
    assert groups[3][0].name == "tg4 @ d100" and groups[3][0].n_ctx == 104
    assert groups[0][0].n_ubatch == 256  # never more than the batch


def test_samples_by_hand() -> None:
    values = from_samples(10, [1_000_000_000, 2_000_000_000])
    assert values["samples_ts"] == (10.0, 5.0) and values["avg_ts"] == 7.5 and values["avg_ns"] == 1.5e9
    assert values["stddev_ts"] == pytest.approx(3.5355, abs=1e-4)
    assert from_samples(10, [10])["stddev_ns"] == 0.0
    wrong: list[int]
    for wrong in ([], [0], [5, 0]):
        with pytest.raises(ValueError, match="take time"):
            from_samples(1, wrong)


def test_paired_ratio() -> None:
    ratio = paired_ratio([2.0, 4.0, 6.0], [1.0, 2.0, 4.0])
    assert (ratio.median, ratio.low, ratio.high, ratio.clear) == (2.0, 1.5, 2.0, True)
    assert not paired_ratio([1.0, 1.0], [0.9, 1.1]).clear
    for a, b in (([], []), ([1.0], [1.0, 2.0])):
        with pytest.raises(ValueError, match="paired"):
            paired_ratio(a, b)


def row(**changes: Any) -> Row:
    plain = {
        "model_type": "m",
        "type_k": "f16",
        "type_v": "f16",
        "n_gen": 8,
        "kv_bits": 16.0,
        **from_samples(8, [10**9, 2 * 10**9]),
    }
    return Row(**{**plain, **changes})


def test_markdown_keeps_failed_rows() -> None:
    bad = Row(
        model_type="m", type_k="x", type_v="x", n_gen=8, n_depth=64, n_threads=9, status="failed", reason="no such type"
    )
    lines = markdown(
        [row(ratio=1.0), row(type_k="turbo3", ratio=1.5, ratio_low=1.4, ratio_high=1.6, baseline="f16/f16"), bad]
    ).splitlines()
    assert len(lines) == 5 and len({len(line) for line in lines}) == 1
    assert "n_threads" not in lines[0]  # a row that did not run says nothing about what varied
    assert "1.500 (1.400 to 1.600)" in lines[3] and "failed: no such type" in lines[4] and "tg8 @ d64" in lines[4]
    assert "ratio" not in markdown([row()])


def test_json_and_csv_round_trip() -> None:
    made = row(ratio=1.0, environment={"A": "1"})
    record = json.loads(json_line(made))
    assert record["kind"] == "bench" and row_of({**record, "field_of_tomorrow": 1}) == made
    table = list(csv.DictReader(io.StringIO(csv_lines([made]))))
    assert table[0]["type_k"] == "f16" and json.loads(table[0]["samples_ns"]) == [10**9, 2 * 10**9]
    assert table[0]["ratio_low"] == ""


class FakeContext:
    """Keeps positions, and a log of what was called."""

    def __init__(self, log: list[str], keywords: dict[str, Any]) -> None:
        self.log, self.name = log, "/".join(dict.fromkeys(keywords["kv"]))
        self.facts = SimpleNamespace(n_batch=keywords["n_batch"], n_threads=2, flash_attn=True)
        layer = SimpleNamespace(type_k=keywords["kv"][0], type_v=keywords["kv"][1])
        self.kv = SimpleNamespace(bits=4.0, bytes=100, effective=(layer, layer))
        self.options = SimpleNamespace(offload_kqv=True)
        self.model = SimpleNamespace(facts=SimpleNamespace(n_vocab=100))
        self.seqs = self
        self._binding = SimpleNamespace(lib=SimpleNamespace())
        self.n_past = 0
        self.logits = None
        self.cannot_cut = False

    def decode(self, tokens: Sequence[int], pos: int, outputs: str = "last") -> None:
        assert pos == self.n_past
        self.n_past += len(tokens)
        self.log.append(f"{self.name} p{len(tokens)}")

    def decode_one(self, token: int, pos: int) -> None:
        assert pos == self.n_past
        self.n_past += 1
        self.log.append(f"{self.name} g")
        if self.name == "breaks" and self.log.count("breaks g") > 4:
            raise TurboError("it broke")

    def remove(self, seq: int, first: int) -> None:
        if self.cannot_cut:
            raise UnsupportedError("recurrent")
        self.n_past = first

    def clear(self) -> None:
        self.n_past = 0

    def close(self) -> None:
        self.log.append(f"{self.name} closed")


class FakeModel:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.facts = SimpleNamespace(n_vocab=100)
        self.cut = True

    def context(self, **keywords: Any) -> FakeContext:
        if keywords["kv"][0] == "huge":
            raise MemoryLimitError("does not fit", hint="less")
        context = FakeContext(self.log, keywords)
        context.cannot_cut = not self.cut
        return context


def cases(*names: str, test: Test | None = None, depth: int = 0) -> list[Case]:
    return [Case(test or Test(0, 1), depth, (name, name)) for name in names]


def test_repeats_are_taken_in_turns() -> None:
    model = FakeModel()
    options = runner.BenchOptions(repeats=2, warm_up=False)
    rows = runner.run_group(model, cases("a", "b"), options, Row())  # type: ignore[arg-type]
    assert model.log == ["a g", "b g", "a g", "b g", "a closed", "b closed"]
    assert [r.baseline for r in rows] == ["", "a/a"] and rows[0].ratio == 1.0 and rows[1].ratio is not None
    assert len(rows[0].samples_ns) == 2 and rows[0].effective_k == "a"


def test_without_turns_one_context_is_open_at_a_time() -> None:
    model = FakeModel()
    options = runner.BenchOptions(repeats=2, warm_up=False, interleave=False)
    rows = runner.run_group(model, cases("a", "b"), options, Row())  # type: ignore[arg-type]
    assert model.log == ["a g", "a g", "a closed", "b g", "b g", "b closed"]
    assert [r.ratio for r in rows] == [None, None]


def test_failures_keep_their_row() -> None:
    model = FakeModel()
    rows = runner.run_group(model, cases("huge", "a", "breaks", test=Test(0, 3)), runner.BenchOptions(repeats=2), Row())  # type: ignore[arg-type]
    assert [(r.status, r.reason) for r in rows] == [("failed", "does not fit"), ("ok", ""), ("failed", "it broke")]
    assert rows[1].ratio is None  # nothing is left to compare with
    assert rows[0].n_gen == 3 and rows[0].type_k == "huge"
    assert model.log.count("breaks closed") == 1


@pytest.mark.parametrize("cut", [True, False])
def test_depth_is_restored_between_samples(cut: bool) -> None:
    model = FakeModel()
    model.cut = cut
    rows = runner.run_group(model, cases("a", test=Test(4, 2), depth=10), runner.BenchOptions(repeats=2), Row())  # type: ignore[arg-type]
    assert rows[0].status == "ok" and rows[0].depth_fill == "prefill" and rows[0].n_depth == 10
    assert model.log.count("a p10") == (1 if cut else 4)  # filled once, or anew after warm-up and samples


def test_fill_modes() -> None:
    context = FakeContext([], {"kv": ("a", "a"), "n_batch": 64})
    assert fill(context, 0) == ""  # type: ignore[arg-type]
    assert fill(context, 150) == "prefill" and context.log == ["a p64", "a p64", "a p22"]  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError):
        fill(context, 10, "synthetic")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="fill mode"):
        fill(context, 10, "magic")  # type: ignore[arg-type]
    assert random_tokens(50, 9, 1) == random_tokens(50, 9, 1) and max(random_tokens(5, 99, 1)) == 4


def test_two_by_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGML_CUDA_DISABLE_GRAPHS", "1")  # must not reach the cells that have it on
    seen = []

    def spawn(arguments: Sequence[str], environment: dict[str, str]) -> str:
        graphs, fused = (flags.is_on(name, environment) for name in ("graphs", "fused"))
        seen.append((graphs, fused))
        rate = 100.0 * (1 + graphs) * (1.1 if fused and graphs else 1)
        return (
            "noise\n"
            + json.dumps({"kind": "bench", "status": "ok", "samples_ts": [rate, rate, 1e9], "reason": ""})
            + "\n"
        )

    cells = flags.run_cells(["fused", "graphs"], ["-m", "x"], spawn)
    assert sorted(seen) == [(False, False), (False, True), (True, False), (True, True)]
    headers, lines = flags.table(cells)
    assert headers == ["", "graphs=off", "graphs=on", "graphs gain"]
    assert lines == [["fused=off", "100.00", "200.00", "+100.0 %"], ["fused=on", "100.00", "220.00", "+120.0 %"]]
    for wrong in (["magic"], [], ["graphs", "graphs"]):
        with pytest.raises(OptionError):
            flags.run_cells(wrong, [], spawn)


def test_what_all_rows_share_stands_above_the_table() -> None:
    headers = ["model", "size", "backend", "type_k", "t/s"]
    caption, short, cells = without_constants(headers, [["M", "1", "CPU", "f16", "5"], ["M", "2", "CPU", "q8_0", "6"]])
    assert caption == "M, CPU" and short == ["size", "type_k", "t/s"] and cells[1] == ["2", "q8_0", "6"]
    assert without_constants(headers, []) == ("", headers, [])
