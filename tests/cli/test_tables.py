"""Commands that read a header and print a table: kv, info, estimate, models, tokenize, doctor."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_result import Run

from pyllama_turbo import kv
from pyllama_turbo.cli.output import number, size
from pyllama_turbo.kv_budget import K_WEIGHT, distortion, recommend
from pyllama_turbo.models import KNOWN

Snapshot = Callable[[str, str], None]
Models = dict[str, Path]


def test_kv_types(run: Run, snapshot: Snapshot) -> None:
    result = run("kv")
    assert (result.code, result.err) == (0, "")
    snapshot("kv", result.out)
    rows = {row["name"]: row for row in json.loads(run("kv", "--json").out)["types"]}
    assert set(rows) == {t.name for t in kv.types()}
    assert (rows["turbo3"]["bits"], rows["turbo3"]["block_values"], rows["turbo3"]["block_bytes"]) == (3.125, 128, 50)


@pytest.mark.parametrize("name", [None, "hd128", "hd64", "hd80", "swa"])
def test_recommended_pairs(run: Run, models: Models, name: str | None) -> None:
    """Within the budget, K never below V, better with every budget, and what is recommended runs."""
    args = ("kv", "--json") if name is None else ("kv", "-m", models[name], "--json")
    choices = json.loads(run(*args).out)["recommended"]
    assert bool(choices) is (name != "hd80")  # its head dims leave nothing below f16
    bits = {t.name: t.bits for t in kv.types()}
    for choice in choices:
        assert choice["bits"] <= choice["budget_bits"]
        assert bits[choice["type_k"]] >= bits[choice["type_v"]]
    errors = [K_WEIGHT * distortion(c["type_k"]) + distortion(c["type_v"]) for c in choices]
    assert errors == sorted(errors, reverse=True)
    assert len({(c["type_k"], c["type_v"]) for c in choices}) == len(choices)
    if name in ("hd128", "hd64"):
        pair = f"{choices[1]['type_k']}/{choices[1]['type_v']}"
        assert run("run", "-m", models[name], "-p", "x", "-n", "1", "-c", "256", "--kv", pair).code == 0


def test_recommendations_are_what_the_records_say() -> None:
    """No measured pair of as few bits is better, by more than noise, than the one recommended for them."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
    import make_quality

    kinds = {t.name: t for t in kv.types()}
    measured = make_quality.costs(make_quality.records())
    for choice in recommend([kinds[name] for name in {name for pair in measured for name in pair}]):
        within = [pair for pair in measured if sum(kinds[name].bits for name in pair) / 2 <= choice.budget]
        best = min(measured[pair] for pair in within)
        assert measured[choice.k.name, choice.v.name] <= 1.1 * best + 0.01, choice
        assert choice.k.bits >= choice.v.bits
    unit = (K_WEIGHT + 1) * distortion("turbo3_tcq")
    for (k, v), cost in measured.items():
        if kinds[v].bits > 3:
            assert (K_WEIGHT * distortion(k) + distortion(v)) / unit == pytest.approx(cost, rel=0.2, abs=0.04), (k, v)


def test_distortion_of_the_types() -> None:
    """The share of the variance that is lost: what is known of these quantisers on normally distributed values."""
    assert distortion("f16") < 1e-6
    assert distortion("q8_0") < 1e-4
    assert 0.03 < distortion("turbo3") < 0.04
    for scalar, trellis, saved in (("turbo2", "turbo2_tcq", 0.40), ("turbo3", "turbo3_tcq", 0.48)):
        assert distortion(trellis) / distortion(scalar) == pytest.approx(1 - saved, abs=0.03)


@pytest.mark.parametrize("name", ["hd128", "hd64", "hd80", "swa"])
def test_kv_types_that_fit(run: Run, models: Models, snapshot: Snapshot, name: str) -> None:
    result = run("kv", "-m", models[name])
    assert result.code == 0
    snapshot(f"kv-{name}", result.out)


def test_kv_fits_as_json(run: Run, models: Models) -> None:
    rows = {r["name"]: r for r in json.loads(run("kv", "--model", models["hd64"], "--json").out)["types"]}
    assert rows["turbo3"]["stored"] == "turbo3_64"
    assert rows["turbo3"]["bytes_per_1k"] == 2 * 2 * 2 * 26 * 1024
    assert rows["turbo3"]["ratio"] == pytest.approx(3.25 / 16)
    rows = {r["name"]: r for r in json.loads(run("kv", "-m", models["hd80"], "--json").out)["types"]}
    assert rows["turbo3"]["fits"] is False
    assert rows["turbo3"]["reason"] == "head dims 80 are no multiples of 64"
    assert rows["q8_0"]["reason"] == "head dims 80 are no multiples of 32"
    assert rows["f16"]["fits"] is True


@pytest.mark.parametrize("name", ["hd128", "hd80", "swa", "moe", "novocab"])
def test_info(run: Run, models: Models, snapshot: Snapshot, name: str) -> None:
    result = run("info", models[name])
    assert result.code == 0
    snapshot(f"info-{name}", result.out)


def test_info_metadata_and_tensors(run: Run, models: Models, snapshot: Snapshot) -> None:
    snapshot("info-all", run("info", models["hd128"], "--metadata", "--tensors").out)
    data = json.loads(run("info", models["hd128"], "--json", "--metadata", "--tensors").out)
    assert data["shape"]["n_layer"] == 2
    assert data["metadata"]["llama.attention.key_length"] == 128
    assert data["tensors"][0] | {"offset": 0} == {
        "name": "token_embd.weight", "type": "f16", "shape": [128, 512], "offset": 0, "n_bytes": 131072
    }  # fmt: skip


@pytest.mark.parametrize(
    ("data", "message"), [(b"", "is empty"), (b"GGUF" + bytes(20), "GGUF version 0"), (b"PK\3\4", "no GGUF file")]
)
def test_damaged_file(run: Run, tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    for args in (("info", path), ("kv", "-m", path), ("estimate", "-m", path), ("run", "-m", path, "-p", "x")):
        result = run(*args)
        assert (result.code, result.out) == (1, "")
        assert result.err.startswith(f"error: {path}: ")
        assert message in result.err
        assert len(result.err.splitlines()) <= 2


def test_missing_file_has_a_hint(run: Run) -> None:
    result = run("info", "nothing.gguf")
    assert result.code == 1
    assert result.err == (
        "error: nothing.gguf: does not exist\nhint: `pyllama-turbo models` lists models that can be fetched\n"
    )


def test_estimate(run: Run, models: Models, snapshot: Snapshot) -> None:
    result = run("estimate", "-m", models["hd128"], "-c", "8k", "--memory", "64M")
    assert result.code == 0
    snapshot("estimate", result.out)
    assert result.err == "\nmemory: 64.00 MiB\n"


def test_estimate_of_one_choice(run: Run, models: Models) -> None:
    args = ("estimate", "-m", models["hd128"], "--kv", "q8_0/turbo3", "--json", "-c", "4096")
    result = run(*args, "--memory", "1G")
    assert result.code == 0
    data = json.loads(result.out)
    (row,) = data["estimates"]
    assert data["free_bytes"] == {"all": 1 << 30}
    assert (row["type_k"], row["type_v"], row["fits"]) == ("q8_0", "turbo3", True)
    runs, scales = (4096 // 64 + 1) * 2, 3 * 4  # centres of runs in f16; one factor for keys and two heads of queries
    cells, beside = 2 * 4096 * (128 // 32 * 34 + 50), 2 * 128 * (runs + scales)
    assert cells + beside <= row["kv_bytes"] < cells + 2 * beside
    assert row["total_bytes"] == sum(row[f"{key}_bytes"] for key in ("weights", "kv", "compute"))
    assert run(*args, "--memory", "1M").code == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--kv", "turbo9"), "unknown KV cache type 'turbo9'"),
        (("--kv", "turbo3", "-ctk", "f16"), "kv stands for type_k and type_v"),
        (("--memory", "much"), "is no size such as 8G"),
    ],
)
def test_estimate_wrong_usage(run: Run, models: Models, args: tuple[str, ...], message: str) -> None:
    result = run("estimate", "-m", models["hd128"], *args)
    assert result.code == 2
    assert message in result.err


def test_estimate_of_a_type_that_does_not_fit(run: Run, models: Models) -> None:
    result = run("estimate", "-m", models["hd80"], "--kv", "turbo3")
    assert result.code == 1
    assert "turbo3 does not fit this model: head dims 80 are no multiples of 64" in result.err
    assert "hint: types that fit: f32, f16, bf16\n" in result.err


def test_models(run: Run, snapshot: Snapshot) -> None:
    result = run("models")
    assert result.code == 0
    snapshot("models", result.out)
    assert run("models", "list").out == result.out
    data = json.loads(run("models", "list", "--json").out)
    assert [entry["name"] for entry in data] == list(KNOWN)
    assert all(entry["path"] is None for entry in data)


def test_model_that_is_not_here(run: Run) -> None:
    result = run("models", "path", "smollm2")
    assert (result.code, result.out) == (1, "")
    assert "pyllama-turbo models fetch smollm2" in result.err
    result = run("run", "-m", "smollm2", "-p", "x")
    assert result.code == 1
    assert "hint: fetch it: pyllama-turbo models fetch smollm2" in result.err
    assert run("models", "fetch", "nothing").code == 1


def test_restricting_licence_is_asked_about(run: Run) -> None:
    result = run("models", "fetch", "gemma-270m", stdin="")
    assert result.code == 2
    assert "licence: Gemma Terms of Use" in result.err
    assert "--yes" in result.err


def test_fetched_model_by_name(run: Run, models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYLLAMA_TURBO_CACHE", str(tmp_path))
    here = tmp_path / "models" / "toy.gguf"
    here.parent.mkdir(parents=True)
    here.write_bytes(models["hd128"].read_bytes())
    toy = dataclasses.replace(KNOWN["smollm2"], name="toy", file="toy.gguf", n_bytes=here.stat().st_size)
    monkeypatch.setitem(KNOWN, "toy", toy)
    assert run("models", "path", "toy").out == f"{here}\n"
    assert run("models", "fetch", "toy").out == f"{here}\n"
    assert run("info", "toy").code == 0


def test_tokenize(run: Run, models: Models, snapshot: Snapshot) -> None:
    result = run("tokenize", "-m", models["hd64"], "-p", "the end \u00e9")
    assert (result.code, result.err) == (0, "")
    snapshot("tokenize", result.out)
    ids = run("tokenize", "-m", models["hd64"], "-p", "the end \u00e9", "--ids").out.split()
    assert ids == re.findall(r"^ *(\d+)", result.out, re.MULTILINE)
    rows = json.loads(run("tokenize", "-m", models["hd64"], "--json", stdin="the end \u00e9").out)
    assert [str(row["id"]) for row in rows] == ids
    assert run("tokenize", "-m", models["hd64"], "-p", "x", "--no-bos", "--ids").out.split()[0] != ids[0]
    counted = run("tokenize", "-m", models["hd64"], "-p", "the end \u00e9", "--show-count").out
    assert counted.splitlines()[-1] == f"{len(ids)} tokens"


def test_tokenize_without_a_vocabulary(run: Run, models: Models) -> None:
    result = run("tokenize", "-m", models["novocab"], "-p", "x")
    assert result.code == 1
    assert result.err.startswith("error: ")


def test_doctor(run: Run) -> None:
    result = run("doctor")
    assert result.code == 0
    for line in ("backend", "kv types", "cpu features", "upstream commit", "digest", "device CPU", "packages"):
        assert re.search(rf"^ *{line}", result.out, re.MULTILINE), line
    data = json.loads(run("doctor", "--json").out)
    assert data["library"]["usable"] is True
    assert {"turbo3", "turbo3_tcq", "f16"} <= set(data["library"]["kv_types"])


def test_doctor_without_a_library(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyllama_turbo import _native

    report = _native.LoadReport(skipped={"cuda": "no driver"}, error="nothing can be used here")
    monkeypatch.setattr(_native, "load_report", lambda: report)
    result = run("doctor")
    assert result.code == 1
    assert re.search(r"not cuda +no driver", result.out)
    assert "nothing can be used here" in result.out


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (1234567, "1,234,567"), (2.0, "2"), (3.125, "3.125"), (1234.5, "1,234"), ("x", "x")],
)
def test_numbers(value: object, text: str) -> None:
    assert number(value) == text  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (1 << 30, "1.00 GiB"), (1 << 45, "32768.00 GiB")],
)
def test_sizes(value: int, text: str) -> None:
    assert size(value) == text
