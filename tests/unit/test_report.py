"""Result files, plots and pages."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from pyllama_turbo.errors import StateError
from pyllama_turbo.report.bars import stacked_bars
from pyllama_turbo.report.kinds import css_class, pair_name
from pyllama_turbo.report.origins import origins
from pyllama_turbo.report.page import STYLE, failed_rows, html_page, markdown_page
from pyllama_turbo.report.plots import _pareto, figures
from pyllama_turbo.report.records import ResultFile, read_records
from pyllama_turbo.report.svg import Axis, Chart, _apart, format_tick


def test_result_file_appends_finds_and_survives_a_cut_line(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "r.jsonl"
    first = ResultFile(path)
    first.append({"kind": "kld", "pair": ("a", "b"), "n": 1})
    first.append({"kind": "kld", "pair": ("a", "b"), "n": 2})
    path.write_text(path.read_text() + '{"kind": "kl')
    again = ResultFile(path)
    assert len(again.records) == 2 and again.find(kind="kld", pair=("a", "b")) == {
        "kind": "kld",
        "pair": ["a", "b"],
        "n": 2,
    }
    assert again.find(kind="bench") is None
    again.append({"n": 3})
    assert [r.get("n") for r in read_records([path])] == [1, 2, 3]


def test_damage_in_the_middle_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "r").write_text('{"a": 1}\nnonsense\n{"a": 2}\n')
    with pytest.raises(StateError, match="line 2"):
        read_records([tmp_path / "r"])


@pytest.mark.parametrize(
    ("axis", "ticks"),
    [
        (Axis("", 0, 10), [0, 2, 4, 6, 8, 10]),
        (Axis("", 0.002, 0.5, log=True), [0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5]),
        (Axis("", 4096, 131072, log=True, unit="tokens"), [2.0**i for i in range(12, 18)]),
        (Axis("", 0, 131072, unit="tokens"), [0, 32768, 65536, 98304, 131072]),
    ],
)
def test_ticks(axis: Axis, ticks: list[float]) -> None:
    assert axis.ticks() == pytest.approx(ticks)


def test_places() -> None:
    assert Axis("", 2, 6).place(3) == 0.25
    assert Axis("", 1, 100, log=True).place(10) == pytest.approx(0.5)
    assert math.isfinite(Axis("", 1, 100, log=True).place(0))


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (4096, "tokens", "4k"),
        (512, "tokens", "512"),
        (3 << 30, "bytes", "3 GiB"),
        (0.5, "percent", "50 %"),
        (0.0001, "", "1e-4"),
        (0.05, "", "0.05"),
    ],
)
def test_tick_texts(value: float, unit: str, text: str) -> None:
    assert format_tick(value, unit) == text


def test_labels_are_moved_apart_as_little_as_possible() -> None:
    assert _apart([0, 100], 14) == [0, 100]
    assert _apart([50, 50, 50], 10) == pytest.approx([40, 50, 60])
    moved = _apart([0, 1, 2, 90], 14)
    assert all(b - a >= 14 - 1e-9 for a, b in zip(moved, moved[1:])) and moved[3] == 90


def test_svg_is_well_formed_and_escapes() -> None:
    chart = Chart(Axis("a < b", 0, 1), Axis("y", 0, 1), "R&D")
    chart.line([(0, 0), (1, 1)], "up")
    chart.band([(0, 0, 0.1), (1, 0.5, 1)], "up")
    for shape in ("circle", "square", "diamond"):
        chart.point(0.5, 0.5, "up", "<tip>", shape=shape)
    chart.error(0.5, 0.4, 0.6, "up")
    chart.near_label(0.5, 0.5, "x & y", "up")
    chart.end_label(1, "end", "up")
    chart.level(0.7, "limit")
    root = ET.fromstring(chart.render())
    texts = [e.text for e in root.iter("text")]
    assert {"a < b", "x & y", "end", "limit"} <= set(texts)
    ET.fromstring(stacked_bars([("<a>", {"x": 3.0, "y": 1.0}, 4.0)], {"x": "X", "y": "Y & Z"}, "us", "t"))


def test_pareto_keeps_what_nothing_beats() -> None:
    points = [(2, 0.5), (3, 0.1), (3, 0.2), (4, 0.15), (4.5, 0.05), (8, 0.05)]
    assert _pareto(points) == [(2, 0.5), (3, 0.1), (4.5, 0.05)]


def test_types_have_their_colours() -> None:
    def css(k: str, v: str) -> str:
        return css_class({"type_k": k, "type_v": v})

    assert css("turbo3", "turbo3") == "scalar b3" and css("turbo2_tcq", "turbo2_tcq") == "tcq b2"
    assert css("q8_0", "turbo3_tcq") == "tcq b3" and css("f16", "f16") == "up bhi" and css("q4_0", "q4_0") == "up blo"
    assert pair_name({"type_k": "a", "type_v": "a"}) == "a" and pair_name({"type_k": "a", "type_v": "b"}) == "a/b"
    classes = {f".{a}.{b}" for a, b in (css(k, k).split() for k in ("f16", "q8_0", "q4_0", "turbo2", "turbo4_tcq"))}
    assert all(name in STYLE for name in classes)


def test_keys_without_centre_are_named_and_on_no_frontier() -> None:
    plain, off = (kld("turbo3", "turbo3", 3.25, mean) for mean in (0.05, 0.01))
    off["context"] = {"k_center": "off"}
    assert [pair_name(r) for r in (plain, off)] == ["turbo3", "turbo3, keys as they are"]
    (figure,) = (f for f in figures([plain, off, kld("q8_0", "q8_0", 8.5, 0.001)]) if "against bits" in f.title)
    assert [row[0] for row in figure.rows] == ["q8_0", "turbo3", "turbo3, keys as they are"]
    frontier = re.search(r'class="line pareto" points="([^"]*)"', figure.svg)
    assert frontier and len(frontier[1].split()) == 2


def test_many_pairs_with_other_keys_are_two_charts() -> None:
    pairs = [kld(f"turbo{2 + i % 3}", f"q{i}_0", 3 + i / 4, 0.1 / (i + 1)) for i in range(12)]
    off = {**pairs[4], "kld_mean": 0.4, "context": {"k_center": "off"}}
    many, kinds = (f for f in figures([*pairs, off]) if "against bits" in f.title)
    assert len(many.rows) == 12 and kinds.title == f"{many.title}, kinds of keys"
    assert [row[0] for row in kinds.rows] == ["turbo3/q4_0", "turbo3/q4_0, keys as they are"]


def kld(k: str, v: str, bits: float, mean: float) -> dict[str, Any]:
    return {
        "kind": "kld",
        "model": "m.gguf",
        "type_k": k,
        "type_v": v,
        "path": "prefill",
        "n_ctx": 512,
        "first": 256,
        "last": 511,
        "text": "a.txt",
        "tokens": "t",
        "n_tokens": 1020,
        "kv_bits": bits,
        "kld_mean": mean,
        "kld_se": mean / 10,
        "kld_percentiles": {"0.999": 9 * mean},
        "same_top": 0.9,
        "same_top_err": 0.01,
        "ppl": 12.0,
        "ppl_base": 11.0,
        "status": "ok",
    }


def bench(k: str, depth: int, rate: float, **more: Any) -> dict[str, Any]:
    return {
        "kind": "bench",
        "model_filename": "m.gguf",
        "model_type": "m",
        "gpu_info": "",
        "cpu_info": "C",
        "graphs": None,
        "type_k": k,
        "type_v": k,
        "n_gen": 8,
        "n_prompt": 0,
        "n_depth": depth,
        "kv_bits": 4.0,
        "samples_ts": [rate, rate * 1.1, rate * 0.9],
        "ratio": 1.25,
        "baseline": "f16/f16",
        "status": "ok",
        **more,
    }


RECORDS: list[dict[str, Any]] = [
    {
        "kind": "provenance",
        "digest": "abc",
        "backend": "cpu",
        "cpu": "C<1>",
        "gpus": [],
        "command": "run me",
        "time": "1",
    },
    {
        "kind": "provenance",
        "digest": "abc",
        "backend": "cpu",
        "cpu": "C<1>",
        "gpus": [],
        "command": "run me",
        "time": "2",
    },
    kld("turbo3", "turbo3", 3.125, 0.06),
    kld("turbo3_tcq", "turbo3_tcq", 3.125, 0.03),
    kld("q8_0", "turbo3", 5.8, 0.01),
    kld("f16", "f16", 16.0, -1e-7),
    *(bench(k, d, r) for k, r in (("turbo3", 50.0), ("turbo3_tcq", 45.0), ("q8_0", 40.0)) for d in (0, 4096)),
    bench("q8_0", 0, 1.0, type_v="turbo3"),
    bench("q8_0", 4096, 1.0, type_v="turbo3"),
    {"kind": "bench", "status": "failed", "type_k": "x", "type_v": "x", "model_filename": "m.gguf", "reason": "no <x>"},
    {
        "kind": "memory",
        "model": "m.gguf",
        "free_bytes": 1 << 33,
        "weights_bytes": 1 << 30,
        "types": [{"type_k": "f16", "type_v": "f16", "kv_bits": 16.0, "points": [[4096, 1 << 28], [8192, 1 << 29]]}],
    },
    {
        "kind": "profile",
        "model": "m.gguf",
        "depth": 0,
        "label": "f16",
        "method": "operations",
        "step_us": 15.0,
        "plain_us": 12.0,
        "phases": [
            {"phase": "kv_read", "us_step": 10.0, "share": 0.67},
            {"phase": "gap", "us_step": 5.0, "share": 0.33},
        ],
    },
]


def needle(k: str, *logprobs: float) -> dict[str, Any]:
    depths = [0.1, 0.9]
    trial = {"found": True, "text": " 1<2", "n_tokens": 9, "reused": 0}
    trials = [
        {way: {**trial, "depth": d, "logprob": p} for way in ("cold", "warm")}
        for d, p in zip(depths, logprobs, strict=True)
    ]
    setting = {"kind": "needle", "status": "ok", "model": "m.gguf", "length": 2048, "backend": "cpu", "depths": depths}
    return {**setting, "type_k": k, "type_v": k, "trials": trials}


def test_every_plot_is_drawn_with_its_table() -> None:
    drawn = figures(RECORDS)
    assert [f.title.split(":")[0] for f in drawn] == [
        "Divergence against bits",
        "Decode speed against depth",
        "Speed against divergence",
        "Bytes of the KV cache against context",
        "What a decode step is made of",
    ]
    for figure in drawn:
        ET.fromstring(figure.svg)
        assert figure.rows and all(len(row) == len(figure.headers) for row in figure.rows)
    speed = drawn[1]
    assert speed.headers == ("K/V", "bits", "d 0", "d 4,096")
    assert "50.00 ± 5.00 = 1.25x" in next(row for row in speed.rows if row[0] == "turbo3")


def test_html_stands_alone() -> None:
    page = html_page(RECORDS, "T & t")
    assert "<title>T &amp; t</title>" in page and "C&lt;1&gt;" in page and "no &lt;x&gt;" in page
    assert "prefers-color-scheme: dark" in page and page.count("<svg") == 5
    assert not re.search(r"(src|href)=|@import|url\(", page)
    assert page.count("library abc") == 1  # two runs of one library on one machine are one origin
    assert page.count("run me") == 1 and "backend cpu" in page


def test_markdown_has_the_same_tables() -> None:
    text = markdown_page(RECORDS)
    assert text.count("\n## ") == 6 and "| turbo3 |" in text and "`run me`" in text and "no <x>" in text


def test_recall_is_drawn_by_depth() -> None:
    (figure,) = figures([needle("f16", -0.5, -0.25), needle("turbo3", -1.0, -2.0)])
    ET.fromstring(figure.svg)
    assert figure.headers == ("K/V", "10 %, cold", "10 %, cached", "90 %, cold", "90 %, cached")
    assert figure.rows[1] == ("turbo3", "found (-1.000)", "found (-1.000)", "found (-2.000)", "found (-2.000)")
    assert figure.svg.count("polyline") == 4 and "1&lt;2" in figure.svg


def test_origins_keep_every_command() -> None:
    machine = {"kind": "provenance", "gpus": ["G"], "driver": "5", "cpu": "C", "n_cores": 2, "digest": "d"}
    runs = [
        {**machine, "command": "a", "time": "2026-01-01T00:00:00Z", "clocks": "1 MHz"},
        {**machine, "command": "b", "time": "2026-01-03T00:00:00Z", "clocks": "2 MHz"},
        {**machine, "digest": "e", "command": "c", "time": "2026-01-03T00:00:00Z"},
    ]
    first, second = origins(runs)
    assert first.commands == ("a", "b") and second.commands == ("c",)
    assert first.facts == (
        "G", "driver 5", "C, 2 cores", "library d", "GPU clocks 1 MHz; 2 MHz", "measured 2026-01-01 to 2026-01-03"
    )  # fmt: skip


@pytest.mark.parametrize(("libraries", "above"), [(1, True), (2, True), (3, False)])
def test_many_origins_come_behind_the_figures(libraries: int, above: bool) -> None:
    machine = {"kind": "provenance", "gpus": [], "cpu": "C", "command": "run me", "time": "2026-01-01T00:00:00Z"}
    records = [{**machine, "digest": f"d{i}"} for i in range(libraries)]
    records += [kld("turbo3", "turbo3", 3.125, 0.06), kld("q8_0", "turbo3", 5.8, 0.01)]
    (figure,) = figures(records)
    for page in (html_page(records), markdown_page(records)):
        assert page.count("run me") == libraries
        assert (page.index("run me") < page.index(figure.title)) is above
        assert ("3 combinations of machine and library" in page) is not above


def test_one_row_for_each_depth_the_longest_and_latest() -> None:
    rows = [bench("turbo3", 0, 10.0), bench("turbo3", 0, 20.0), bench("turbo3", 0, 30.0, n_gen=4)]
    rows += [bench("turbo3", 64, 5.0), bench("q8_0", 0, 9.0), bench("q8_0", 0, 1.0, moe_fused=False)]
    (figure,) = figures(rows)
    cells = {row[0]: row[2:] for row in figure.rows}
    assert cells["turbo3"][0].startswith("20.00") and cells["q8_0"] == ("9.00 ± 0.90 = 1.25x", "-")


def test_lines_are_of_the_library_that_was_measured_last() -> None:
    old = [bench("f16", d, 70.0, n_gen=512, digest="old", test_time="2026-01-01T00:00:00Z") for d in (0, 4096, 8192)]
    new = [bench("f16", d, 90.0, n_gen=32, digest="new", test_time="2026-02-01T00:00:00Z") for d in (0, 4096)]
    for records in (old + new, new + old):
        row = next(f for f in figures(records) if f.title.startswith("Decode speed against depth")).rows[0]
        assert "90.00" in row[2] and "90.00" in row[3] and "70.00" in row[4]


def test_committed_results_are_up_to_date() -> None:
    """`make results` gives the committed pages from the committed records."""
    folder = Path(__file__).resolve().parents[2] / "docs" / "results"
    records = read_records(sorted(folder.glob("*.jsonl")))
    assert len(records) > 50
    for name, page in (("README.md", markdown_page), ("report.html", html_page)):
        assert (folder / name).read_text(encoding="utf-8") == page(records, "pyllama_turbo results"), "run make results"


def test_an_empty_report_says_so() -> None:
    assert "nothing to draw" in html_page([])
    assert figures([kld("turbo3", "turbo3", 3.1, 0.1)]) == []  # one point is no plot
    assert failed_rows(RECORDS) == [("bench", "m.gguf x", "no <x>")]
    json.dumps(RECORDS)
