"""Streaming text: whole characters only, and stop texts never shown in part."""

from __future__ import annotations

import itertools
import random

import pytest

from pyllama_turbo.tokenizer import StopMatcher, TextStream

TEXT = "naïve 🦙 漢字 \U0001f1e9\U0001f1ea end"


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize("seed", range(20))
def test_text_split_anywhere_comes_out_whole(seed: int) -> None:
    data = TEXT.encode()
    pieces = split(data, random.Random(seed).sample(range(len(data)), 12))
    stream = TextStream()
    parts = [stream.feed(p) for p in pieces]
    assert "".join(parts) + stream.finish() == TEXT
    assert not any("\ufffd" in p for p in parts)


def test_a_character_that_never_ends_becomes_one_replacement() -> None:
    stream = TextStream()
    assert stream.feed("🦙".encode()[:3]) == ""
    assert stream.finish() == "\ufffd"


@pytest.mark.parametrize("seed", range(30))
def test_no_part_of_a_stop_text_is_ever_shown(seed: int) -> None:
    rng = random.Random(seed)
    text, stop = "one two STOPPED three", "STOPPED"
    cuts = sorted(rng.sample(range(len(text)), 8))
    matcher = StopMatcher(("XX", stop))
    shown = ""
    for piece in split(text.encode(), cuts):
        shown += matcher.feed(piece.decode())
        assert "S" not in shown
    assert (shown + matcher.finish(), matcher.matched) == ("one two ", stop)


def test_held_text_comes_out_when_it_was_no_stop_text() -> None:
    matcher = StopMatcher(("abc",))
    assert matcher.feed("xxab") == "xx"
    assert matcher.feed("x") == "abx"
    assert matcher.feed("ab") == ""
    assert matcher.finish() == "ab"


def test_the_first_of_several_stop_texts_wins() -> None:
    matcher = StopMatcher(("late", "ear"))
    assert matcher.feed("so early, so late") == "so "
    assert matcher.matched == "ear"
    assert matcher.feed("more") == ""


def test_without_stop_texts_nothing_is_held() -> None:
    matcher = StopMatcher(())
    assert matcher.feed("abc") == "abc"
    assert matcher.matched is None
