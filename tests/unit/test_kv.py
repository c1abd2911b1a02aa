"""KV types: the table, how a choice is written, what a report says."""

from __future__ import annotations

import pytest
from fake_native import FakeLib

from pyllama_turbo import errors, kv
from pyllama_turbo.context import Context


def test_public_types_have_one_entry_each(lib: FakeLib) -> None:
    names = [t.name for t in kv.types()]
    assert names == ["f16", "q8_0", "turbo3", "turbo4"]
    assert kv.find("turbo3_64").bits == 3.25
    assert kv.find("turbo3").bits == 3.125


@pytest.mark.parametrize(
    ("choice", "pair"),
    [
        ({}, ("f16", "f16")),
        ({"kv": "turbo3"}, ("turbo3", "turbo3")),
        ({"kv": "Q8_0/turbo3"}, ("q8_0", "turbo3")),
        ({"kv": ("q8_0", "turbo3")}, ("q8_0", "turbo3")),
        ({"kv": ["q8_0", "turbo3_64"]}, ("q8_0", "turbo3")),
        ({"type_k": "turbo4"}, ("turbo4", "f16")),
        ({"type_k": "turbo4", "type_v": "turbo3"}, ("turbo4", "turbo3")),
    ],
)
def test_a_choice_can_be_written_in_several_ways(
    lib: FakeLib, choice: dict[str, object], pair: tuple[str, str]
) -> None:
    assert kv.parse(**choice) == pair  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "choice",
    [
        {"kv": "turbo"},
        {"kv": "a/b/c"},
        {"kv": 42},
        {"kv": ()},
        {"kv": ("f16", 1)},
        {"type_k": 8},
        {"kv": "turbo3", "type_k": "f16"},
    ],
)
def test_bad_choices_are_refused(lib: FakeLib, choice: dict[str, object]) -> None:
    with pytest.raises(errors.OptionError):
        kv.parse(**choice)  # type: ignore[arg-type]


def test_an_unknown_name_gets_a_suggestion_and_the_list(lib: FakeLib) -> None:
    with pytest.raises(errors.OptionError, match="did you mean turbo3") as caught:
        kv.parse("turbo33")
    assert caught.value.limit == ("f16", "q8_0", "turbo3", "turbo4")


def test_the_report_computes_bits_from_bytes(ctx: Context) -> None:
    assert ctx.kv.requested == ("turbo3", "turbo3")
    assert ctx.kv.bits == pytest.approx(3.25)
    assert ctx.kv.bytes == 2 * 2 * 52 * 64
    assert ctx.kv.substituted == ()


def test_a_substitution_is_visible(lib: FakeLib, ctx: Context) -> None:
    report = kv.KVReport(("turbo4", "turbo3"), ctx.kv.effective)
    assert [layer.layer for layer in report.substituted] == [0, 1]


@pytest.mark.parametrize("values", [0, 32, 100])
def test_rows_must_fill_blocks(lib: FakeLib, values: int) -> None:
    with pytest.raises(errors.OptionError):
        kv._for_rows("turbo3", values)


def test_the_largest_fitting_block_is_taken(lib: FakeLib) -> None:
    assert kv._for_rows("turbo3", 256).name == "turbo3"
    assert kv._for_rows("turbo3", 192).name == "turbo3_64"
    assert kv._for_rows("turbo3_64", 256).name == "turbo3_64"
