"""Our rates against llama.cpp's llama-bench, in turns: what the Python layer costs, and whether the numbers agree."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import TurboError
from .cases import Case
from .compare import Ratio, paired_ratio
from .runner import BenchOptions, Subject

if TYPE_CHECKING:
    from ..model import Model

__all__ = ["Agreement", "against_llama_bench", "llama_bench_command", "llama_bench_samples"]

Run = Callable[[Sequence[str]], str]


@dataclass(frozen=True)
class Agreement:
    """One test measured by both.

    Attributes:
        case: what was measured.
        ours, theirs: nanoseconds of each round.
        ratio: our rate over theirs, round by round.
    """

    case: Case
    ours: tuple[int, ...]
    theirs: tuple[int, ...]
    ratio: Ratio

    @property
    def n_tokens(self) -> int:
        """Tokens of a sample."""
        return self.case.test.n_prompt + self.case.test.n_gen

    @property
    def rates(self) -> tuple[float, float]:
        """Median tokens per second, ours and theirs."""
        return tuple(1e9 * self.n_tokens / statistics.median(x) for x in (self.ours, self.theirs))  # type: ignore[return-value]

    @property
    def agrees(self) -> bool:
        """Whether the two medians are no further apart than the rounds of either scatter."""
        return min(self.ours) <= max(self.theirs) and min(self.theirs) <= max(self.ours)

    def record(self) -> dict[str, Any]:
        """As a record of a result file."""
        ours, theirs = self.rates
        numbers = {"ours_ts": ours, "theirs_ts": theirs, "agrees": self.agrees, "ratio": self.ratio.median}
        spread = {"ratio_low": self.ratio.low, "ratio_high": self.ratio.high}
        samples = {"ours_ns": self.ours, "theirs_ns": self.theirs}
        return {"kind": "agreement", **asdict(self.case), "test": self.case.name, **numbers, **spread, **samples}


def llama_bench_command(program: Path, model: Path, case: Case, n_threads: int, n_gpu_layers: int) -> list[str]:
    """The llama-bench call for one sample of a case, its own warm-up before it."""
    flash = {"on": "1", "off": "0"}.get(case.flash_attn, case.flash_attn)
    options = {
        "-m": str(model),
        "-p": str(case.test.n_prompt if not case.test.n_gen else 0),
        "-n": str(case.test.n_gen if not case.test.n_prompt else 0),
        "-d": str(case.depth),
        "-ctk": case.kv[0],
        "-ctv": case.kv[1],
        "-b": str(case.n_batch),
        "-ub": str(case.n_ubatch),
        "-t": str(n_threads),
        "-ngl": str(n_gpu_layers),
        "-fa": flash,
        "-r": "1",
        "-o": "jsonl",
    }
    if case.test.n_prompt and case.test.n_gen:
        options["-pg"] = f"{case.test.n_prompt},{case.test.n_gen}"
    return [str(program), *(part for pair in options.items() for part in pair)]


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise TurboError(f"{command[0]} does not start: {error}", asked=command[0]) from None
    if done.returncode != 0:
        reason = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no message"]
        raise TurboError(f"{command[0]} ended with {done.returncode}: {reason[0]}", asked=list(command))
    return done.stdout


def llama_bench_samples(answer: str) -> list[int]:
    """Nanoseconds of the samples in llama-bench's JSON lines.

    Raises:
        TurboError: there are none.
    """
    rows = [json.loads(line) for line in answer.splitlines() if line.startswith("{")]
    samples = [int(ns) for row in rows for ns in row.get("samples_ns", ())]
    if not samples:
        raise TurboError("llama-bench printed no samples", hint="it needs the option -o jsonl; use a recent build")
    return samples


def against_llama_bench(
    model: Model,
    case: Case,
    program: Path,
    options: BenchOptions,
    run: Run = _run,
) -> Agreement:
    """Measure a case with both, round by round, each first in every other round.

    Both time the same work of the same random tokens: decode calls and waiting for them, nothing of sampling. Ours
    stays loaded; llama-bench loads the model anew for every round, outside its timer.

    Args:
        model: a loaded model.
        case: what is measured; a thread count of 0 is replaced by the context's.
        program: llama-bench.
        options: repeats are the rounds.
        run: runs a command and returns what it printed.

    Raises:
        TurboError: llama-bench cannot be run, or ours cannot.
    """
    subject = Subject(model, case, options)
    theirs: list[int] = []
    try:
        threads = subject.context.facts.n_threads
        command = llama_bench_command(program, model.path, case, threads, int(model.options.n_gpu_layers))

        def their_sample() -> None:
            theirs.append(llama_bench_samples(run(command))[0])

        subject.warm_up()
        for number in range(options.repeats):
            for sample in (subject.sample, their_sample) if number % 2 else (their_sample, subject.sample):
                sample()
        ours = tuple(subject.samples)
    finally:
        subject.close()
    return Agreement(case, ours, tuple(theirs), paired_ratio(theirs, ours))
