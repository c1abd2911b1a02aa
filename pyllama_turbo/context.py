"""A context: the KV cache, running tokens through the model, and reading logits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from . import _callbacks, _native, errors, kv, logs
from ._claim import Claim
from ._context_params import as_ids, check_memory, flash_hint, native_params, outputs_max
from ._lifetime import Handle
from ._views import float_view
from .centers import install, plan_centering
from .context_facts import MemoryRow, Perf, Prefill, read_facts, read_kv_layers, read_memory, read_perf
from .lora import apply_scales
from .options import ContextOptions
from .sequences import Sequences

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .batch import Batch
    from .embedding import Embeddings
    from .generate import Generation
    from .model import Model
    from .sampling import Sampler

__all__ = ["Context"]

_OUTPUTS = {"none": 0, "last": 1, "all": 2}


class Context(Handle):
    """Made by `Model.context`. One thread at a time runs it; `cancel` may come from any.

    Attributes:
        model: the model it belongs to.
        options: how it was made.
        facts: see `ContextFacts`.
        kv: requested and effective KV cache types, with bytes read back from the tensors.
        seqs: the sequences in the cache (remove, copy, shift, position range).
        lora_scales: weights of the model's LoRA adapters here.
        n_outputs_max: rows of logits one decode call gives at most.
    """

    _what = "context"

    def __init__(
        self, model: Model, options: ContextOptions, progress: Callable[[float], bool | None] | None = None
    ) -> None:
        b = model._binding
        model.files.check()
        asked = kv.parse(options.kv, options.type_k, options.type_v)
        n_ctx = options.n_ctx or model.facts.n_ctx_train
        types = model.kv_types(asked)
        if asked != (kv.DEFAULT, kv.DEFAULT) and not any(layer.has_kv for layer in model.layers):
            raise errors.UnsupportedError(
                f"this model has no KV cache, only a recurrent state: {'/'.join(asked)} would do nothing",
                asked=asked,
                hint="leave kv at f16",
            )
        if options.check_memory:
            check_memory(model, options, n_ctx, types)
        means, centering = plan_centering(model, options, types[0], progress)
        params, keep = native_params(b, options, n_ctx, asked, dict.fromkeys(centering.q8_layers, "q8_0"))
        out = b.ffi.new("turbo_context **")
        logs.forget()
        self._claim = Claim()
        with model.lock:  # until the context counts as the model's child, nothing may free the model
            status = b.lib.turbo_context_new(model.pointer(), params, out)
            del keep
            _native.check(b, status, asked=asked, hint=flash_hint(options))
            super().__init__(b, out[0], b.lib.turbo_context_free, model)
        logs.drain(b.ffi, b.lib)
        if means is not None:
            install(b, out[0], means)
        self.model = model
        self.options = options
        self.facts = read_facts(b, out[0])
        self.kv = kv.KVReport(asked, read_kv_layers(b, out[0]), centering)
        self.seqs = Sequences(self)
        self._n_vocab = model.facts.n_vocab
        self.n_outputs_max = outputs_max(options)
        self._one = b.ffi.new("int32_t[1]")
        self._rows = b.ffi.new("int32_t *")
        self.lora_scales: tuple[float, ...] = ()
        if model.lora or options.lora_scales:
            scales = options.lora_scales
            self.set_lora([a.scale for a in model.lora] if scales is None else scales)

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def n_ctx(self) -> int:
        """Tokens the context holds, all sequences together."""
        return self.facts.n_ctx

    def memory(self) -> tuple[MemoryRow, ...]:
        """Bytes by kind of buffer, as allocated."""
        with self.lock:
            return read_memory(self._binding, self.pointer())

    def perf(self) -> Perf:
        """Native timings."""
        with self.lock:
            return read_perf(self._binding, self.pointer())

    def reset_perf(self) -> None:
        """Start the native timings anew."""
        with self.lock:
            self._binding.lib.turbo_perf_reset(self.pointer())

    def set_threads(self, n_threads: int, n_threads_batch: int | None = None) -> None:
        """Change the number of threads for one token and for several. Raises OptionError outside 1 to 512."""
        with self.lock:
            status = self._binding.lib.turbo_context_set_threads(
                self.pointer(), n_threads, n_threads_batch or n_threads
            )
            _native.check(self._binding, status, asked=n_threads)

    def set_lora(self, scales: Sequence[float]) -> None:
        """Set the weights of the model's LoRA adapters, one each; 0 leaves an adapter out.

        What the cache holds was computed with the old weights, so it is not reused.

        Raises:
            OptionError: another number of scales than adapters, or one that is not finite.
        """
        with self.lock:
            before, self.lora_scales = self.lora_scales, apply_scales(self, scales)
            if before != self.lora_scales:
                self.seqs.forget_all()

    def embed(
        self, texts: str | Sequence[str | Sequence[int]], *, normalize: int | bool = 2, truncate: bool = False
    ) -> Embeddings:
        """Embeddings of texts; arguments and errors as `pyllama_turbo.embedding.embed`."""
        from .embedding import embed

        return embed(self, texts, normalize=normalize, truncate=truncate)

    # -- running -------------------------------------------------------------------------------------------------

    def decode(self, tokens: Sequence[int], *, pos: int | None = None, seq: int = 0, outputs: str = "last") -> int:
        """Run tokens of one sequence, in as many batches as needed.

        Args:
            tokens: ids, at least one.
            pos: position of the first; default: behind what the sequence holds.
            seq: the sequence.
            outputs: "last" (logits of the last token), "all" (of every token; at most `n_outputs_max`) or "none".

        Returns:
            The position behind the last token.

        Raises:
            OptionError: no tokens, an id outside the vocabulary, a position that does not continue the sequence.
            ContextFullError: they do not fit; `asked` and `limit` are token counts.
            AbortedError: `cancel` was called; `seqs.range` says how far it got.
        """
        if outputs not in _OUTPUTS:
            raise errors.OptionError(f"outputs is {outputs!r}", asked=outputs, hint="one of none, last, all")
        ids = as_ids(tokens)
        if outputs == "all" and len(ids) > min(self.n_outputs_max, self.facts.n_batch):
            raise errors.OptionError(
                f"logits of {len(ids)} tokens at once, this context gives {self.n_outputs_max}",
                asked=len(ids),
                limit=self.n_outputs_max,
                hint="make the context with logits_all=True, or use iter_logits",
            )
        with self.lock:
            start = self.seqs.next_position(seq) if pos is None else pos
            self.check_room(len(ids), start)
            step = self.facts.n_batch if self.facts.has_memory else len(ids)
            for first in range(0, len(ids), step):
                part = ids[first : first + step]
                mode = outputs if outputs != "last" or first + step >= len(ids) else "none"
                self._decode_part(part, start + first, seq, _OUTPUTS[mode])
        return start + len(ids)

    def decode_one(self, token: int, pos: int, seq: int = 0) -> None:
        """Run one token and make its logits available: `decode` without the checks of a list, for token loops."""
        one = self._one
        with self.lock:
            one[0] = token
            status = self._binding.lib.turbo_context_decode(self.pointer(), one, 1, pos, seq, 1)
            if status != 0:
                self._decode_failed(status, [token], seq)
            self.seqs.note_one(seq, pos, token)

    def step(self, sampler: Sampler, token: int, pos: int, seq: int = 0) -> int:
        """`decode_one`, and the sampler's next choice, in one native call. Not for samplers with logits processors.

        Raises:
            As `decode` and `Sampler.next`.
        """
        b, one = self._binding, self._one
        with self.lock, sampler.lock:
            status = b.lib.turbo_sampler_step(sampler.pointer(), self.pointer(), token, pos, seq, one)
            if status != 0 and one[0] == b.lib.TURBO_STEP_NOT_RUN:
                self._decode_failed(status, [token], seq)
            self.seqs.note_one(seq, pos, token)
            if status != 0:
                _native.check(b, status)
            chosen: int = one[0]
            return chosen

    def _decode_part(self, part: list[int], pos: int, seq: int, mode: int) -> None:
        b = self._binding
        try:
            batch = b.ffi.new("int32_t[]", part)
        except (OverflowError, TypeError) as error:
            raise errors.OptionError(f"tokens must be whole numbers within 32 bits: {error}") from None
        status = b.lib.turbo_context_decode(self.pointer(), batch, len(part), pos, seq, mode)
        if status != 0:
            self._decode_failed(status, part, seq)
        self.seqs.note(seq, pos, part)
        _callbacks.raise_parked()

    def _decode_failed(self, status: int, part: list[int], seq: int) -> None:
        """Bring the book-keeping in line with what the cache holds, then raise."""
        b = self._binding
        b.lib.turbo_abort_set(self.pointer(), 0)
        try:
            _native.check(b, status, asked=len(part), limit=self.facts.n_ctx_seq)
        finally:
            self.seqs.resync(seq, part)

    def check_room(self, n: int, start: int = 0) -> None:
        """Raise ContextFullError if `n` tokens from position `start` on do not fit into a sequence."""
        if start + n > self.facts.n_ctx_seq and self.facts.has_memory:
            raise errors.ContextFullError(
                f"{n} tokens at position {start} make {start + n}, the context holds {self.facts.n_ctx_seq} a sequence",
                asked=start + n,
                limit=self.facts.n_ctx_seq,
                hint="shorten the prompt, make n_ctx larger, or use a smaller KV type to afford it",
            )

    def decode_batch(
        self, tokens: Sequence[int], positions: Sequence[int], seqs: Sequence[int], outputs: Sequence[bool]
    ) -> None:
        """Run one batch of tokens, each with its own position and sequence: equally many of each, n_batch at most.

        Raises:
            OptionError: lengths differ, the batch is too long, or an entry is out of range.
            ContextFullError: the cache has no room.
        """
        n = len(tokens)
        if not len(positions) == len(seqs) == len(outputs) == n:
            raise errors.OptionError("tokens, positions, seqs and outputs differ in length", asked=n)
        b = self._binding
        ids, places, homes = as_ids(tokens), as_ids(positions), as_ids(seqs)
        arrays = [b.ffi.new("int32_t[]", values) for values in (ids, places, homes)]
        flags = b.ffi.new("int8_t[]", [int(bool(v)) for v in outputs])
        with self.lock:
            status = b.lib.turbo_context_decode_batch(self.pointer(), *arrays, flags, n)
            if status != 0:
                b.lib.turbo_abort_set(self.pointer(), 0)
                if status != b.lib.TURBO_E_NO_SLOT:  # which leaves the cache as it was
                    for seq in set(homes):
                        self.seqs.resync(seq, [t for t, home in zip(ids, homes) if home == seq])
                _native.check(b, status, asked=n, limit=self.facts.n_batch)
            self.seqs.note_batch(ids, places, homes)

    def prefill(self, tokens: Sequence[int], *, seq: int = 0, reuse: bool = True, outputs: str = "last") -> Prefill:
        """Make a sequence hold exactly these tokens, computing only what the cache does not hold already.

        The last token is always computed, for its logits. Where the cache cannot be cut back (recurrent state, a
        sliding window that moved on), everything is computed.

        Raises:
            As `decode`, and ModelLoadError if the mapped model file was cut or overwritten.
        """
        ids = as_ids(tokens)
        self.model.files.check()
        with self.lock:
            self.check_room(len(ids))
            kept = self.seqs.keep_prefix(seq, ids) if reuse else self.seqs.keep_prefix(seq, [])
            self.decode(ids[kept:], pos=kept, seq=seq, outputs=outputs)
        return Prefill(kept, len(ids) - kept)

    def cancel(self, user: object | None = None) -> None:
        """Stop the decode that runs, from any thread: it raises AbortedError. Without one, the next decode does.

        With a `user`, only what runs for it is stopped (see `claim`).
        """
        self._claim.interrupt(user, self._set_abort)

    def _set_abort(self, value: int) -> None:
        if not self.closed:
            self._binding.lib.turbo_abort_set(self.pointer(), value)

    def _before_close(self) -> None:
        self.cancel()

    # -- reading -------------------------------------------------------------------------------------------------

    @property
    def logits(self) -> NDArray[np.float32]:
        """Logits of the last decode, shape (rows, n_vocab), float32, read-only and without a copy.

        The memory belongs to the context: it changes with the next decode and is gone after `close`. Copy what has to
        last longer.

        Raises:
            OptionError: the last decode had no outputs.
        """
        return self._logits(writable=False)

    def _logits(self, *, writable: bool) -> NDArray[np.float32]:
        b = self._binding
        with self.lock:
            pointer = b.lib.turbo_logits(self.pointer(), self._rows)
            if pointer == b.ffi.NULL:
                _native.check(b, b.lib.TURBO_E_ARGUMENT, hint="decode with outputs='last' or 'all' first")
        return float_view(b.ffi, pointer, (self._rows[0], self._n_vocab), owner=self, writable=writable)

    def iter_logits(self, tokens: Sequence[int], *, seq: int = 0) -> Iterator[NDArray[np.float32]]:
        """Run tokens and give the logits of every one, as read-only views (rows, n_vocab) of successive parts.

        Each view is valid until the next one is taken.
        """
        ids = as_ids(tokens)
        step = min(self.n_outputs_max, self.facts.n_batch)
        for first in range(0, len(ids), step):
            self.decode(ids[first : first + step], seq=seq, outputs="all")
            yield self.logits

    def embedding(self, *, seq: int | None = None, index: int = -1) -> NDArray[np.float32]:
        """A copy of one embedding, float32 [n_embd_out]: of a sequence (pooled) or of a token of the last batch.

        Raises:
            UnsupportedError: the context was made without `embeddings=True`.
            OptionError: there is none for that sequence or index.
        """
        b = self._binding
        with self.lock:
            pointer = b.lib.turbo_embedding(self.pointer(), -1 if seq is None else seq, index)
            if pointer == b.ffi.NULL:
                made = self.options.embeddings
                _native.check(b, b.lib.TURBO_E_ARGUMENT if made else b.lib.TURBO_E_UNSUPPORTED, asked=seq)
            vector: NDArray[np.float32] = float_view(b.ffi, pointer, (self.facts.n_embd_out,), owner=self).copy()
            return vector

    # -- generating ----------------------------------------------------------------------------------------------

    def generate(self, prompt: str | Sequence[int], **keywords: Any) -> Generation:
        """Generate from a prompt: an iterator of events. Arguments and errors as `pyllama_turbo.generate.generate`."""
        from .generate import generate

        return generate(self, prompt, **keywords)

    def complete(self, prompt: str | Sequence[int], **keywords: Any) -> str:
        """Generate to the end and return the text. Arguments and errors as `generate`."""
        from .generate import complete

        return complete(self, prompt, **keywords)[0]

    def batch(self) -> Batch:
        """An empty batch: add prompts to it, and take the events of all of them. See `pyllama_turbo.batch`."""
        from .batch import Batch

        return Batch(self)

    def generate_many(self, prompts: Iterable[str | Sequence[int]], **keywords: Any) -> Batch:
        """Generate from several prompts together: a batch with all of them, job 0 the first. Arguments as `generate`.

        With one fixed `seed` every job draws the same random numbers; give them apart with `Batch.add`.
        """
        batch = self.batch()
        try:
            for prompt in prompts:
                batch.add(prompt, **keywords)
        except BaseException:
            batch.close()
            raise
        return batch

    # -- generation's claim --------------------------------------------------------------------------------------

    def claim(self, user: object) -> None:
        """Reserve the context for one generation. Raises BusyError while another one runs."""
        with self.lock:
            self._claim.take(user)

    @property
    def user(self) -> object:
        """The generation the context is reserved for, or None."""
        return self._claim.user

    def release(self, user: object) -> None:
        """Give back what `claim` reserved, its unheard `cancel` included; does nothing for anyone else."""
        with self.lock:
            self._claim.give_back(user, self._set_abort)

    def __repr__(self) -> str:
        k, v = self.kv.requested
        return f"<Context n_ctx={self.facts.n_ctx} kv={k}/{v}{' closed' if self.closed else ''}>"
