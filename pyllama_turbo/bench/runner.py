"""Running a matrix: warm-up, repeats in turns over the KV pairs, rows with ratios.

Timed: the decode calls and waiting for their logits. Not timed: making contexts, filling the cache to its depth,
choosing tokens (random ones, as llama-bench does) and sampling.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..errors import TurboError, UnsupportedError
from ..report.provenance import Provenance
from .cases import Case, Matrix
from .compare import paired_ratio
from .fill import fill, random_tokens
from .flags import SWITCHES, is_on
from .rows import Row, from_samples

if TYPE_CHECKING:
    from ..context import Context
    from ..model import Model

__all__ = ["BenchOptions", "Subject", "failed_row", "run_group", "run_matrix"]

MIN_REPEATS = 5
_WARMUP_TOKENS = 4  # enough for a CUDA graph to be captured and replayed
_ENVIRONMENT = (*(variable for variable, _ in SWITCHES.values()), "OMP_NUM_THREADS")

Report = Callable[[str], None]


@dataclass(frozen=True)
class BenchOptions:
    """How a matrix is run.

    Attributes:
        repeats: samples of each case.
        warm_up: run each case once before it is timed.
        interleave: repeats of the KV pairs in turns, all their contexts open at once; otherwise one after the other,
            and no ratios.
        fill_mode: see `fill`.
        context: further keywords of every context.
    """

    repeats: int = MIN_REPEATS
    warm_up: bool = True
    interleave: bool = True
    fill_mode: str = "auto"
    context: dict[str, Any] | None = None


class Subject:
    """A context set up for one case: filled to its depth, timed again and again."""

    def __init__(self, model: Model, case: Case, options: BenchOptions) -> None:
        self.case = case
        self.samples: list[int] = []
        # Room for a warm-up longer than the test itself.
        keywords: dict[str, Any] = {
            "n_ctx": max(case.n_ctx, case.depth + _WARMUP_TOKENS),
            "n_batch": case.n_batch,
            "n_ubatch": case.n_ubatch,
            "n_threads": case.n_threads,
            "flash_attn": case.flash_attn,
            "kv": case.kv,
        }
        self.context: Context = model.context(**{**keywords, **(options.context or {})})
        try:
            self._mode = options.fill_mode
            self.depth_fill = fill(self.context, case.depth, options.fill_mode)
            n_vocab = model.facts.n_vocab
            self._prompt = random_tokens(n_vocab, case.test.n_prompt, seed=1)
            self._next = random_tokens(n_vocab, max(case.test.n_gen, _WARMUP_TOKENS), seed=2)
        except BaseException:
            self.context.close()
            raise

    def close(self) -> None:
        """Free the context."""
        self.context.close()

    def warm_up(self) -> None:
        """Run the test untimed: all of a prompt, a few tokens of a generation."""
        self._run(self.case.test.n_prompt, min(self.case.test.n_gen, _WARMUP_TOKENS))
        self._rewind()

    def sample(self) -> None:
        """Time the test once and put the cache back."""
        self.samples.append(self._run(self.case.test.n_prompt, self.case.test.n_gen))
        self._rewind()

    def _run(self, n_prompt: int, n_gen: int) -> int:
        context, position = self.context, self.case.depth
        start = time.perf_counter_ns()
        if n_prompt:
            context.decode(self._prompt[:n_prompt], pos=position)
            _ = context.logits  # waits for the device
            position += n_prompt
        for token in self._next[:n_gen]:
            context.decode_one(token, position)
            _ = context.logits
            position += 1
        return time.perf_counter_ns() - start

    def _rewind(self) -> None:
        if not self.case.depth:
            self.context.seqs.clear()
            return
        try:
            self.context.seqs.remove(0, self.case.depth)
        except UnsupportedError:  # a recurrent state cannot be cut back: make it again
            self.context.seqs.clear()
            fill(self.context, self.case.depth, self._mode)

    def row(self, common: Row) -> Row:
        """The measured row."""
        facts, report = self.context.facts, self.context.kv
        return replace(
            common,
            n_threads=facts.n_threads,
            flash_attn=facts.flash_attn,
            no_kv_offload=not self.context.options.offload_kqv,
            kv_bits=report.bits,
            kv_bytes=report.bytes,
            effective_k=_count(layer.type_k for layer in report.effective),
            effective_v=_count(layer.type_v for layer in report.effective),
            depth_fill=self.depth_fill,
            **from_samples(self.case.test.n_prompt + self.case.test.n_gen, self.samples),
        )


def _count(names: Iterator[str]) -> str:
    """One name, or each with its number of layers."""
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    if len(counts) < 2:
        return next(iter(counts), "")
    return " ".join(f"{name}:{n}" for name, n in counts.items())


def common_row(model: Model, provenance: Provenance) -> Row:
    """The fields that all rows of a model share."""
    cuda = provenance.backend == "cuda"
    return Row(
        build_commit=provenance.upstream_commit,
        cpu_info=provenance.cpu,
        gpu_info=", ".join(provenance.gpus),
        backends=provenance.backend.upper(),
        model_filename=model.path.name,
        model_type=model.facts.description,
        model_size=model.facts.size_bytes,
        model_n_params=model.facts.n_params,
        n_gpu_layers=int(model.options.n_gpu_layers),
        load_mode=model.options.load_mode,
        graphs=_graphs() if cuda else None,
        fused=is_on("fused", os.environ) if cuda else None,
        moe_fused=is_on("up_gate", os.environ) and is_on("fused", os.environ) if cuda else None,
        digest=provenance.digest,
        driver=provenance.driver,
        environment={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
    )


def _graphs() -> bool:
    from ..buildinfo import build_info

    return bool(build_info().get("cuda_graphs")) and is_on("graphs", os.environ)


def _case_fields(case: Case) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "type_k": case.kv[0],
        "type_v": case.kv[1],
        "n_prompt": case.test.n_prompt,
        "n_gen": case.test.n_gen,
        "n_depth": case.depth,
        "n_batch": case.n_batch,
        "n_ubatch": case.n_ubatch,
        "n_threads": case.n_threads,
        "test_time": now,
    }


def failed_row(common: Row, case: Case, error: BaseException) -> Row:
    """The row of a case that could not be measured, with the reason."""
    reason = getattr(error, "message", "") or str(error) or type(error).__name__
    return replace(common, **_case_fields(case), status="failed", reason=reason)


def _open(model: Model, cases: list[Case], options: BenchOptions, common: Row, out: dict[Case, Row]) -> list[Subject]:
    subjects = []
    try:
        for case in cases:
            try:
                subjects.append(Subject(model, case, options))
            except TurboError as error:
                out[case] = failed_row(common, case, error)
    except BaseException:
        _close(subjects)
        raise
    return subjects


def _close(subjects: list[Subject]) -> None:
    for subject in subjects:
        subject.close()


def _measure(subjects: list[Subject], options: BenchOptions, common: Row, out: dict[Case, Row], report: Report) -> None:
    """Sample all subjects in turns; one that fails drops out with its reason."""
    rounds = ["warm-up"] * options.warm_up + [f"{i + 1}/{options.repeats}" for i in range(options.repeats)]
    for label in rounds:
        for subject in subjects:
            if subject.case in out:
                continue
            report(f"{subject.case.name} {'/'.join(subject.case.kv)} {label}")
            try:
                if label == "warm-up":
                    subject.warm_up()
                else:
                    subject.sample()
            except TurboError as error:
                out[subject.case] = failed_row(common, subject.case, error)
    for subject in subjects:
        if subject.case not in out:
            out[subject.case] = subject.row(replace(common, **_case_fields(subject.case)))


def _add_ratios(cases: list[Case], rows: dict[Case, Row]) -> list[Row]:
    """Ratios against the first pair that was measured."""
    good = [case for case in cases if rows[case].status == "ok"]
    if len(good) < 2:
        return [rows[case] for case in cases]
    base = rows[good[0]]
    for case in good:
        ratio = paired_ratio(base.samples_ns, rows[case].samples_ns)
        name = "" if case is good[0] else f"{base.type_k}/{base.type_v}"
        rows[case] = replace(rows[case], baseline=name, ratio=ratio.median, ratio_low=ratio.low, ratio_high=ratio.high)
    return [rows[case] for case in cases]


def run_group(
    model: Model, cases: list[Case], options: BenchOptions, common: Row, report: Report = lambda _: None
) -> list[Row]:
    """Measure cases that differ in the KV pair only; one row each, in their order. Never raises for a single case."""
    rows: dict[Case, Row] = {}
    for batch in [cases] if options.interleave else [[case] for case in cases]:
        subjects = _open(model, batch, options, common, rows)
        try:
            _measure(subjects, options, common, rows, report)
        finally:
            _close(subjects)
    return _add_ratios(cases, rows) if options.interleave else [rows[case] for case in cases]


def run_matrix(
    model: Model, matrix: Matrix, options: BenchOptions, provenance: Provenance, report: Report = lambda _: None
) -> Iterator[list[Row]]:
    """Rows of the matrix, group by group."""
    common = common_row(model, provenance)
    for group in matrix.groups():
        yield run_group(model, group, options, common, report)
