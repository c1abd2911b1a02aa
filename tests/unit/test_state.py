"""Saved state: complete files only, loaded only where they mean the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_native import FakeLib

from pyllama_turbo import errors, state
from pyllama_turbo.context import Context
from pyllama_turbo.model import Model


@pytest.fixture
def saved(ctx: Context, tmp_path: Path) -> Path:
    ctx.prefill([1, 2, 3])
    path = tmp_path / "s.state"
    assert state.save(ctx, path) == path.stat().st_size
    return path


def test_round_trip_restores_tokens_and_allows_reuse(lib: FakeLib, model: Model, saved: Path) -> None:
    lib.cells.clear()
    other = model.context(64, kv="turbo3", n_batch=16)
    assert state.load(other, saved) == 3
    assert other.seqs.tokens() == (1, 2, 3)
    assert other.prefill([1, 2, 3, 4]).n_reused == 3


def test_no_partial_file_is_left(ctx: Context, tmp_path: Path) -> None:
    with pytest.raises(OSError):
        state.save(ctx, tmp_path / "missing" / "s.state")
    assert list(tmp_path.rglob("*")) == []


def test_another_kv_type_is_refused(model: Model, saved: Path) -> None:
    with pytest.raises(errors.StateError, match="kv"):
        state.load(model.context(64, kv="turbo4"), saved)


@pytest.mark.parametrize("cut", [0.0, 0.01, 0.5, 0.99])
def test_truncated_files(ctx: Context, saved: Path, cut: float) -> None:
    data = saved.read_bytes()
    saved.write_bytes(data[: int(len(data) * cut)])
    with pytest.raises(errors.StateError):
        state.load(ctx, saved)


def test_a_changed_byte(ctx: Context, saved: Path) -> None:
    data = bytearray(saved.read_bytes())
    data[-1] ^= 1
    saved.write_bytes(data)
    with pytest.raises(errors.StateError, match="checksum"):
        state.load(ctx, saved)


@pytest.mark.parametrize("line", [b"[]\n", b"{}\n", b"{nonsense\n", b'{"bytes":1,"sha256":"","fingerprint":3}\n'])
def test_a_damaged_header(ctx: Context, saved: Path, line: bytes) -> None:
    saved.write_bytes(state.MAGIC + line)
    with pytest.raises(errors.StateError, match="header"):
        state.load(ctx, saved)


@pytest.mark.parametrize("make", [lambda p: p / "none", lambda p: p])
def test_a_missing_file_or_a_folder(ctx: Context, tmp_path: Path, make: object) -> None:
    with pytest.raises(errors.StateError, match="cannot be read"):
        state.load(ctx, make(tmp_path))  # type: ignore[operator]


def test_what_the_library_refuses_leaves_the_sequence_empty(lib: FakeLib, ctx: Context, saved: Path) -> None:
    lib.state = b"other"
    with pytest.raises(errors.StateError):
        state.load(ctx, saved)
    assert ctx.seqs.range() == (-1, -1)


def test_the_fingerprint_is_plain_json(ctx: Context) -> None:
    assert json.loads(json.dumps(state.fingerprint(ctx)))["kv"] == ["turbo3", "turbo3"]
