"""Saved state: complete files only, loaded only where they mean the same, and nothing touched before that is known."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_native import FakeLib

from pyllama_turbo import _state_file, errors, state
from pyllama_turbo.context import Context
from pyllama_turbo.model import Model


@pytest.fixture
def saved(ctx: Context, tmp_path: Path) -> Path:
    ctx.prefill([1, 2, 3])
    path = tmp_path / "s.state"
    assert state.save(ctx, path) == path.stat().st_size
    return path


def forge(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the header of a file and make its checksum right again."""
    magic, _, line, payload = path.read_bytes().split(b"\n", 3)
    header = json.loads(line)
    change(header)
    body = json.dumps(header).encode() + b"\n" + payload
    path.write_bytes(magic + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def untouched(lib: FakeLib, ctx: Context) -> None:
    """The sequence holds what it held, and the book-keeping says so."""
    assert lib.cells[0] == [0, 1, 2] and ctx.seqs.tokens() == (1, 2, 3)


def test_round_trip_restores_tokens_and_allows_reuse(lib: FakeLib, model: Model, saved: Path) -> None:
    lib.cells.clear()
    other = model.context(64, kv="turbo3", n_batch=16)
    assert state.load(other, saved) == 3
    assert other.seqs.tokens() == (1, 2, 3)
    assert other.prefill([1, 2, 3, 4]).n_reused == 3


def test_bytes_and_files_are_the_same(ctx: Context, saved: Path) -> None:
    assert state.get_bytes(ctx) == saved.read_bytes()
    assert state.set_bytes(ctx, saved.read_bytes()) == 3


def test_a_sequence_can_become_another(ctx: Context, saved: Path) -> None:
    state.load(ctx, saved, seq=1)
    assert ctx.seqs.tokens(1) == (1, 2, 3)
    with pytest.raises(errors.OptionError):
        state.load(ctx, saved, seq=7)


def test_no_partial_file_is_left(ctx: Context, tmp_path: Path) -> None:
    with pytest.raises(OSError):
        state.save(ctx, tmp_path / "missing" / "s.state")
    assert list(tmp_path.rglob("*")) == []


def test_what_a_killed_save_left_is_swept(ctx: Context, tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for name in (f"s.state.{dead.pid}.part", "s.state.x.part", f"other.{dead.pid}.part", "s.state.1.part"):
        (tmp_path / name).write_bytes(b"half")
    state.save(ctx, tmp_path / "s.state")
    assert sorted(os.listdir(tmp_path)) == sorted(
        ["s.state", "s.state.1.part", "s.state.x.part", f"other.{dead.pid}.part"]
    )


def test_another_kv_type_is_refused(lib: FakeLib, model: Model, saved: Path) -> None:
    with pytest.raises(errors.StateError, match=r"layers is .*turbo3.* there and .*turbo4.* here"):
        state.load(model.context(64, kv="turbo4"), saved)


FIELDS = (
    "model", "lora", "arch", "n_params", "layers", "kv_format", "codebook_hash", "key_center", "key_runs",
    "rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow",
    "yarn_orig_ctx", "n_stream", "rotated_k", "rotated_v", "transposed_v", "lora", "build",
)  # fmt: skip


def test_the_fields_are_all_of_the_identity(ctx: Context) -> None:
    assert set(FIELDS) == set(json.loads(json.dumps(state.fingerprint(ctx))))


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_is_compared_before_anything_is_touched(
    lib: FakeLib, ctx: Context, saved: Path, field: str
) -> None:
    forge(saved, lambda header: header["identity"].update({field: "another"}))
    with pytest.raises(errors.StateError, match=f"{field} is 'another' there and") as caught:
        state.load(ctx, saved)
    assert caught.value.asked == "another" and caught.value.limit == state.fingerprint(ctx)[field]
    untouched(lib, ctx)


def test_a_missing_field_is_a_difference(lib: FakeLib, ctx: Context, saved: Path) -> None:
    forge(saved, lambda header: header["identity"].pop("key_center"))
    with pytest.raises(errors.StateError, match="key_center is None there"):
        state.load(ctx, saved)
    untouched(lib, ctx)


def test_a_cache_that_is_too_small(lib: FakeLib, ctx: Context, saved: Path) -> None:
    forge(saved, lambda header: header["held"][0].update({"last": 64, "tokens": None}))
    with pytest.raises(errors.StateError, match="n_ctx is 'position 64' there and '64 tokens a sequence' here"):
        state.load(ctx, saved)
    untouched(lib, ctx)


def test_centred_keys_need_the_same_n_ctx(lib: FakeLib, ctx: Context, saved: Path) -> None:
    forge(saved, lambda header: header.update(n_ctx_seq=128))
    assert state.load(ctx, saved) == 3  # not centred: room is all that counts
    object.__setattr__(ctx.kv.centering, "hash", "c0ffee")
    state.save(ctx, saved)
    forge(saved, lambda header: header.update(n_ctx_seq=128))
    with pytest.raises(errors.StateError, match="n_ctx is 128 there and 64 here"):
        state.load(ctx, saved)
    untouched(lib, ctx)


def test_a_whole_context_is_no_sequence(lib: FakeLib, ctx: Context, saved: Path) -> None:
    with pytest.raises(errors.StateError, match="kind is 'sequence' there and 'context' here"):
        state.load(ctx, saved, seq=None)
    state.save(ctx, saved, seq=None)
    with pytest.raises(errors.StateError, match="kind is 'context' there and 'sequence' here"):
        state.load(ctx, saved)
    untouched(lib, ctx)
    assert state.load(ctx, saved, seq=None) == 3
    forge(saved, lambda header: header["held"].pop())
    with pytest.raises(errors.StateError, match="n_seq_max"):
        state.load(ctx, saved, seq=None)


def test_every_cut_is_refused(lib: FakeLib, ctx: Context, saved: Path) -> None:
    data = saved.read_bytes()
    for length in range(len(data)):
        with pytest.raises(errors.StateError):
            state.set_bytes(ctx, data[:length])
    untouched(lib, ctx)


def test_every_flipped_bit_is_refused(lib: FakeLib, ctx: Context, saved: Path) -> None:
    data = bytearray(saved.read_bytes())
    for at in range(8 * len(data)):
        data[at // 8] ^= 1 << at % 8
        with pytest.raises(errors.StateError):
            state.set_bytes(ctx, bytes(data))
        data[at // 8] ^= 1 << at % 8
    untouched(lib, ctx)


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h.pop("held"),
        lambda h: h.update(held=[]),
        lambda h: h.update(held=3),
        lambda h: h.update(kind="all"),
        lambda h: h.update(n_bytes=-1),
        lambda h: h.update(n_bytes=True),
        lambda h: h.update(identity=7),
        lambda h: h["held"][0].update(tokens=["a"]),
        lambda h: h["held"][0].update(tokens=[1]),
        lambda h: h["held"][0].update(last=2**70),
    ],
)
def test_a_header_that_makes_no_sense(
    lib: FakeLib, ctx: Context, saved: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    forge(saved, change)
    with pytest.raises(errors.StateError, match="header"):
        state.load(ctx, saved)
    untouched(lib, ctx)


def test_a_header_of_many_brackets(ctx: Context) -> None:
    line = b"[" * 200_000 + b"\n"
    data = _state_file.MAGIC + hashlib.sha256(line).hexdigest().encode() + b"\n" + line
    with pytest.raises(errors.StateError, match="header"):
        state.set_bytes(ctx, data)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"\0" * 1000, b"pyllama-turbo state 1\n{}\n"])
def test_foreign_files(ctx: Context, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(errors.StateError, match="no saved state of this version"):
        state.load(ctx, tmp_path / "x")


@pytest.mark.parametrize("make", [lambda p: p / "none", lambda p: p])
def test_a_missing_file_or_a_folder(ctx: Context, tmp_path: Path, make: object) -> None:
    with pytest.raises(errors.StateError, match="cannot be read"):
        state.load(ctx, make(tmp_path))  # type: ignore[operator]


def test_what_the_library_refuses_leaves_the_sequence_empty(lib: FakeLib, ctx: Context, saved: Path) -> None:
    lib.state = b"other"
    with pytest.raises(errors.StateError, match="gone"):
        state.load(ctx, saved)
    assert ctx.seqs.range() == (-1, -1)


def test_a_generating_context_is_not_replaced(ctx: Context, saved: Path) -> None:
    owner = object()
    ctx.claim(owner)
    with pytest.raises(errors.BusyError):
        state.load(ctx, saved)
    ctx.release(owner)
