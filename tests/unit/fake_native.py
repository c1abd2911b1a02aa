"""A native library in Python, for tests without a build.

Memory is real cffi memory laid out by native/cdef; behaviour is what the tests need: a vocabulary of bytes (token =
byte, 256 = end of generation), a cache that knows positions, and a sampler that follows a script.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from cffi import FFI

from pyllama_turbo._native import Binding
from pyllama_turbo.model import Model
from pyllama_turbo.options import ModelOptions
from pyllama_turbo.shape import LayerKV, ModelShape

CDEF = Path(__file__).resolve().parents[2] / "native" / "cdef"
EOG = 256
N_VOCAB = 257
_STATUS = (
    "OK", "E_ARGUMENT", "E_LOAD", "E_MEMORY", "E_UNSUPPORTED", "E_ABORTED", "E_NO_SLOT", "E_DECODE", "E_STATE",
    "E_INTERNAL",
)  # fmt: skip
_KV = [  # name, family, block values, block bytes, ours
    ("f16", "f16", 1, 2, False),
    ("q8_0", "q8_0", 32, 34, False),
    ("turbo3", "turbo3", 128, 50, True),
    ("turbo3_64", "turbo3", 64, 26, True),
    ("turbo4", "turbo4", 128, 66, True),
    ("turbo4_64", "turbo4", 64, 34, True),
]


def declared_text() -> str:
    """The cdef files as one text without comments."""
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(CDEF.glob("*.h")))
    return re.sub(r"//[^\n]*", "", text)


def make_ffi() -> FFI:
    """An in-line FFI with the types of the cdef: partial parts are filled with plain ones."""
    text = declared_text()
    text = re.sub(r'extern "Python"[^;]*;', "", text)
    text = re.sub(r"#define \w+ \.\.\.\n", "", text)
    text = re.sub(r"\n\s*\.\.\.;?", "", text)
    text = text.replace("[...]", "[128]")
    ffi = FFI()
    ffi.cdef(text)
    return ffi


def _put(ffi: Any, field: Any, text: str) -> None:
    ffi.memmove(field, text.encode() + b"\0", len(text.encode()) + 1)


class FakeLib:
    """The functions of the library that the Python layer calls."""

    TURBO_ABI = 1
    TURBO_STEP_NOT_RUN, TURBO_STEP_NOT_CHOSEN = -2, -1

    def __init__(self, ffi: Any) -> None:
        self.ffi = ffi
        for value, name in enumerate(_STATUS):
            setattr(self, f"TURBO_{name}", -value)
        for value, name in enumerate(("NONE", "LAST", "ALL")):
            setattr(self, f"TURBO_OUTPUT_{name}", value)
        self.turbo_py_progress = ffi.cast("turbo_progress_fn", 0)
        self.turbo_py_poll = ffi.cast("turbo_poll_fn", 0)
        self.error = ffi.new("char[]", b"")
        self.log: list[tuple[int, str]] = []
        self.freed: list[str] = []
        self.calls: list[tuple[Any, ...]] = []
        self.script: Iterable[int] = ()
        self.cells: dict[int, list[int]] = {}  # sequence -> positions held
        self.n_ctx = 64
        self.n_batch = 16
        self.can_shift = True
        self.can_cut = True
        self.fail_decode: Callable[[int], int] = lambda n: 0
        self.abort = 0
        self.state = b"state"
        self.types = ["turbo3_64", "turbo3_64"]
        self._logits = ffi.new("float[]", N_VOCAB * 64)
        self._rows = 0
        self._texts: list[Any] = []

    def fail(self, status: int, text: str) -> int:
        self.error = self.ffi.new("char[]", text.encode())
        return status

    # -- library
    def turbo_last_error(self) -> Any:
        return self.error

    def turbo_log_pop(self, buffer: Any, size: int) -> int:
        if not self.log:
            return 0
        level, text = self.log.pop(0)
        self.ffi.memmove(buffer, text.encode() + b"\0", len(text) + 1)
        return level

    def turbo_device_count(self) -> int:
        return 1

    def turbo_device_get(self, index: int, row: Any) -> int:
        _put(self.ffi, row.name, "CPU")
        _put(self.ffi, row.description, "fake")
        row.kind, row.free_bytes, row.total_bytes = 0, 1 << 30, 1 << 31
        return 0

    def turbo_build_info(self) -> Any:
        return self.give('{"kv_format":1,"codebook_hash":"00","upstream_commit":"x","digest":"d"}')

    def give(self, text: str) -> Any:
        self._texts.append(self.ffi.new("char[]", text.encode()))
        return self._texts[-1]

    def turbo_string_free(self, text: Any) -> None:
        self.freed.append("string")

    # -- KV types
    def turbo_kv_type_count(self) -> int:
        return len(_KV)

    def _fill_type(self, row: Any, entry: tuple[str, str, int, int, bool]) -> None:
        name, family, row.block_values, row.block_bytes, row.is_turbo = entry
        _put(self.ffi, row.name, name)
        _put(self.ffi, row.family, family)

    def turbo_kv_type_get(self, index: int, row: Any) -> int:
        self._fill_type(row, _KV[index])
        return 0

    def turbo_kv_select(self, model: Any, k: bytes, v: bytes, row_k: Any, row_v: Any) -> int:
        for name, row in ((k, row_k), (v, row_v)):
            entries = [e for e in _KV if e[1] == name.decode()]
            self._fill_type(row, min(entries, key=lambda e: e[2]))
        return 0

    def turbo_kv_layers(self, ctx: Any, rows: Any, cap: int) -> int:
        for i in range(min(cap, 2)):
            row = rows[i]
            row.layer, row.part, row.n_cells, row.n_stream = i, 0, self.n_ctx, 1
            row.k_values = row.v_values = 128 * self.n_ctx
            row.k_center_cells = 0
            row.k_bytes = row.v_bytes = 52 * self.n_ctx
            for field, text in (
                ("type_k", self.types[0]),
                ("type_v", self.types[1]),
                ("buffer_k", "CPU"),
                ("buffer_v", "CPU"),
            ):
                _put(self.ffi, getattr(row, field), text)
        return 2

    def turbo_keys_refusal(self, model: Any) -> Any:
        return self.give("the fake library does not centre keys")

    # -- model and vocabulary
    def turbo_model_get_facts(self, model: Any, row: Any) -> int:
        row.n_layer, row.n_embd, row.n_head, row.n_head_kv, row.n_ctx_train, row.n_vocab = 2, 128, 4, 2, 128, N_VOCAB
        _put(self.ffi, row.arch, "llama")
        _put(self.ffi, row.description, "fake model")
        return 0

    def turbo_model_get_layer(self, model: Any, index: int, row: Any) -> int:
        if index >= 2:
            return self.fail(-1, f"layer {index} of 2")
        row.has_kv, row.n_head_kv, row.head_dim_k, row.head_dim_v = True, 2, 64, 64
        _put(self.ffi, row.device, "CPU")
        return 0

    def turbo_model_free(self, model: Any) -> None:
        self.freed.append("model")

    def turbo_vocab_get_facts(self, model: Any, row: Any) -> int:
        row.n_tokens, row.type, row.bos, row.eos, row.eot, row.nl, row.pad = N_VOCAB, 2, -1, EOG, -1, 10, -1
        return 0

    def turbo_vocab_is_eog(self, model: Any, token: int) -> int:
        return int(token == EOG)

    def turbo_tokenize(
        self, model: Any, text: bytes, n: int, out: Any, cap: int, add: bool, special: bool, count: Any
    ) -> int:
        count[0] = n
        for i, byte in enumerate(text[: min(n, cap)]):
            out[i] = byte
        return 0

    def turbo_token_piece(self, model: Any, token: int, buffer: Any, cap: int, special: bool) -> int:
        if not 0 <= token < N_VOCAB:
            return self.fail(-1, f"token {token} is outside the vocabulary of {N_VOCAB}")
        buffer[0] = bytes([token % 256])
        return 0 if token == EOG else 1

    def turbo_detokenize(
        self, model: Any, tokens: Any, n: int, buffer: Any, cap: int, remove: bool, unparse: bool, count: Any
    ) -> int:
        count[0] = n
        self.ffi.memmove(buffer, bytes(tokens[i] for i in range(n)), n)
        return 0

    # -- context
    def turbo_context_params_init(self, params: Any) -> None:
        pass

    def turbo_context_new(self, model: Any, params: Any, out: Any) -> int:
        out[0] = self.ffi.cast("turbo_context *", 2)
        self.n_batch = params.n_batch
        names = [self.ffi.string(name).decode() for name in (params.type_k, params.type_v)]
        self.types = [f"{name}_64" if name.startswith("turbo") else name for name in names]
        return 0

    def turbo_context_free(self, ctx: Any) -> None:
        self.freed.append("context")

    def turbo_context_get_facts(self, ctx: Any, row: Any) -> int:
        row.n_ctx = row.n_ctx_seq = self.n_ctx
        row.n_batch, row.n_ubatch, row.n_seq_max, row.n_embd_out = self.n_batch, self.n_batch, 4, 128
        row.can_shift, row.has_memory = self.can_shift, True
        return 0

    def turbo_abort_set(self, ctx: Any, value: int) -> None:
        self.abort = value

    def turbo_context_decode(self, ctx: Any, tokens: Any, n: int, pos: int, seq: int, outputs: int) -> int:
        ids = [tokens[i] for i in range(n)]
        self.calls.append(("decode", ids, pos, seq, outputs))
        if self.abort:
            return self.fail(-5, "aborted before the batch was run")
        if n > self.n_batch or any(not 0 <= t < N_VOCAB for t in ids):
            return self.fail(-1, "a token is outside the vocabulary, or the batch is too long")
        status = self.fail_decode(n)
        if status:
            return self.fail(status, "scripted failure")
        self.cells.setdefault(seq, []).extend(range(pos, pos + n))
        self._rows = {0: 0, 1: 1, 2: n}[outputs]
        return 0

    def turbo_logits(self, ctx: Any, rows: Any) -> Any:
        rows[0] = self._rows
        return self._logits if self._rows else self.ffi.NULL

    def turbo_seq_range(self, ctx: Any, seq: int, first: Any, last: Any) -> int:
        held = self.cells.get(seq, [])
        first[0], last[0] = (min(held), max(held)) if held else (-1, -1)
        return 0 if 0 <= seq < 4 else self.fail(-1, f"sequence {seq}, this context has 0 to 3")

    def turbo_seq_rm(self, ctx: Any, seq: int, p0: int, p1: int) -> int:
        held = self.cells.get(seq, [])
        if not self.can_cut and not (p0 <= 0 and p1 < 0):
            return self.fail(-4, "this model's memory cannot drop a part")
        self.cells[seq] = [p for p in held if p < p0 or (p1 >= 0 and p >= p1)]
        self.calls.append(("rm", seq, p0, p1))
        return 0

    def turbo_seq_add(self, ctx: Any, seq: int, p0: int, p1: int, delta: int) -> int:
        if not self.can_shift:
            return self.fail(-4, "the positions of this cache cannot be shifted")
        inside = [p0 <= p and (p1 < 0 or p < p1) for p in self.cells[seq]]
        self.cells[seq] = [p + delta if move else p for p, move in zip(self.cells[seq], inside)]
        return 0

    def turbo_seq_cp(self, ctx: Any, src: int, dst: int, p0: int, p1: int) -> int:
        self.cells[dst] = list(self.cells.get(src, []))
        return 0

    def turbo_seq_keep(self, ctx: Any, seq: int) -> int:
        self.cells = {seq: self.cells.get(seq, [])}
        return 0

    def turbo_memory_clear(self, ctx: Any) -> int:
        self.cells.clear()
        return 0

    def turbo_kv_get_identity(self, ctx: Any, row: Any) -> int:
        row.rope_freq_base, row.n_stream = 10000.0, 1
        return 0

    def turbo_state_size(self, ctx: Any, seq: int) -> int:
        return len(self.state)

    def turbo_state_get(self, ctx: Any, seq: int, target: Any, size: int) -> int:
        self.ffi.memmove(target, self.state, len(self.state))
        return len(self.state)

    def turbo_state_set(self, ctx: Any, seq: int, source: Any, size: int) -> int:
        if bytes(self.ffi.buffer(source, size)) != self.state:
            return self.fail(-8, "state_set: not what was saved")
        self.cells[seq] = [0, 1, 2]
        return size

    # -- sampler
    def turbo_sampler_params_init(self, params: Any) -> None:
        pass

    def turbo_sampler_new(self, model: Any, params: Any, out: Any) -> int:
        if params.grammar != self.ffi.NULL and self.ffi.string(params.grammar) == b"":
            return self.fail(-1, "the grammar is empty: it would constrain nothing")
        self.calls.append(
            ("sampler", round(params.temperature, 6), params.seed, self.ffi.string(params.order).decode())
        )
        self._script = iter(self.script)
        out[0] = self.ffi.cast("turbo_sampler *", 3)
        return 0

    def turbo_sampler_free(self, sampler: Any) -> None:
        self.freed.append("sampler")

    def turbo_sampler_reset(self, sampler: Any) -> int:
        return 0

    def turbo_sampler_accept(self, sampler: Any, token: int, generated: bool) -> int:
        self.calls.append(("accept", token))
        return 0

    def turbo_sampler_step(self, sampler: Any, ctx: Any, token: int, pos: int, seq: int, next_: Any) -> int:
        next_[0] = self.TURBO_STEP_NOT_RUN
        status = self.turbo_context_decode(ctx, [token], 1, pos, seq, 1)
        return status or self.turbo_sampler_next(sampler, ctx, -1, next_)

    def turbo_sampler_complete(self, sampler: Any) -> int:
        return 0

    def turbo_sampler_next(self, sampler: Any, ctx: Any, row: int, token: Any) -> int:
        if not self._rows:
            return self.fail(-1, "logit row -1, the last decode has 0")
        token[0] = next(self._script)
        return 0


def fake_shape() -> ModelShape:
    """The shape that belongs to the fake model."""
    return ModelShape(
        arch="llama", name="fake", n_layer=2, n_embd=128, n_head=(4, 4), n_ctx_train=128, n_vocab=N_VOCAB, n_ff=256,
        n_expert=0, n_expert_used=0, layers=(LayerKV(0, 2, 64, 64, 0), LayerKV(1, 2, 64, 64, 0)), n_shared=0,
        n_recurrent=0, recurrent_bytes=0, mla=False, softcap=False, weights_bytes=1000, n_weights=500, weight_types={},
    )  # fmt: skip


def fake_model(binding: Binding) -> Model:
    """A model of the fake library."""
    return Model(binding, binding.ffi.cast("turbo_model *", 1), Path("fake.gguf"), ModelOptions(), fake_shape())
