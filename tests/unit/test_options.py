"""Options: one definition each, checked values, and a suggestion for every typo."""

from __future__ import annotations

import dataclasses

import pytest

from pyllama_turbo import errors
from pyllama_turbo.options import (
    ContextOptions,
    GenerationOptions,
    ModelOptions,
    SamplingOptions,
    build,
    parse_size,
    specs,
    split_keywords,
)

ALL = (ModelOptions, ContextOptions, SamplingOptions, GenerationOptions)


def test_names_flags_and_environment_variables_are_unique() -> None:
    every = [spec for cls in ALL for spec in specs(cls)]
    assert len({s.name for s in every}) == len(every)
    flags = [flag for s in every for flag in s.flags]
    assert len(set(flags)) == len(flags)
    assert {s.env for s in every} >= {"PYLLAMA_TURBO_N_CTX", "PYLLAMA_TURBO_TEMPERATURE"}


@pytest.mark.parametrize("cls", ALL)
def test_every_field_is_an_option_with_help_and_a_group(cls: type) -> None:
    listed = {s.name: s for s in specs(cls)}
    assert set(listed) == {f.name for f in dataclasses.fields(cls)}
    assert all(s.help.endswith(".") or s.help[-1].isalnum() for s in listed.values())
    assert all(s.group for s in listed.values())


@pytest.mark.parametrize("cls", ALL)
def test_defaults_pass_their_own_checks(cls: type) -> None:
    given = {s.name: s.default for s in specs(cls)}
    assert build(cls, given) == cls()


@pytest.mark.parametrize(
    ("text", "value"), [(4096, 4096), ("4096", 4096), ("4k", 4096), ("4K", 4096), ("1.5M", 1572864)]
)
def test_sizes(text: object, value: int) -> None:
    assert parse_size(text) == value


@pytest.mark.parametrize("text", ["4x", "", "k", "-1", "1.0001k", True, None])
def test_bad_sizes(text: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        parse_size(text)


def test_a_typo_raises_with_a_suggestion_from_all_classes() -> None:
    with pytest.raises(errors.UnknownOptionError, match="n_gpu_layers") as caught:
        build(ModelOptions, {"n_gpu_layer": 99})
    assert caught.value.asked == "n_gpu_layer"
    with pytest.raises(errors.UnknownOptionError, match="max_tokens"):
        split_keywords({"max_token": 3}, SamplingOptions, GenerationOptions)
    with pytest.raises(errors.UnknownOptionError, match="unknown keyword 'cache_type_k'"):
        build(ContextOptions, {"cache_type_k": "q8_0"})


@pytest.mark.parametrize(
    ("cls", "given"),
    [
        (SamplingOptions, {"top_p": 1.5}),
        (SamplingOptions, {"temperature": float("nan")}),
        (SamplingOptions, {"temperature": "warm"}),
        (SamplingOptions, {"top_k": 1.5}),
        (SamplingOptions, {"seed": 2**32}),
        (SamplingOptions, {"mirostat": 3}),
        (ContextOptions, {"n_ctx": -1}),
        (ContextOptions, {"n_batch": 0}),
        (ContextOptions, {"n_seq_max": 257}),
        (ContextOptions, {"flash_attn": "maybe"}),
        (ContextOptions, {"embeddings": "perhaps"}),
        (ModelOptions, {"n_gpu_layers": "some"}),
        (ModelOptions, {"n_gpu_layers": -2}),
        (ModelOptions, {"split_mode": "column"}),
        (GenerationOptions, {"max_tokens": -2}),
        (GenerationOptions, {"stop": ("",)}),
    ],
)
def test_bad_values_raise_with_what_was_asked(cls: type, given: dict[str, object]) -> None:
    with pytest.raises(errors.OptionError) as caught:
        build(cls, given)
    assert caught.value.asked == next(iter(given.values())) or caught.value.asked != caught.value.asked


@pytest.mark.parametrize(
    ("cls", "name", "given", "stored"),
    [
        (ModelOptions, "n_gpu_layers", "ALL", "all"),
        (ModelOptions, "n_gpu_layers", -1, "all"),
        (ModelOptions, "n_gpu_layers", "12", 12),
        (ModelOptions, "tensor_split", "3,1", (3.0, 1.0)),
        (ContextOptions, "flash_attn", True, "on"),
        (ContextOptions, "flash_attn", False, "off"),
        (ContextOptions, "n_ctx", "8k", 8192),
        (GenerationOptions, "stop", "END", ("END",)),
        (GenerationOptions, "stop", None, ()),
        (GenerationOptions, "max_tokens", None, None),
        (GenerationOptions, "max_tokens", -1, -1),
        (SamplingOptions, "samplers", "top_k;temperature", ("top_k", "temperature")),
        (SamplingOptions, "logit_bias", {5: -1}, ((5, -1.0),)),
    ],
)
def test_values_are_stored_in_one_form(cls: type, name: str, given: object, stored: object) -> None:
    assert getattr(build(cls, {name: given}), name) == stored
