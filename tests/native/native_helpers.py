"""Constants shared by the tests of this folder."""

from __future__ import annotations

PROMPT = "the quick brown fox jumps over the lazy dog and runs away"
