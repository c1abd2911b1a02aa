#!/usr/bin/env python3
"""Measure what the lever map is made of on a model of real shape: phases, launches, graphs x fused up+gate, batches.

    gpu_lab.py [--shape qwen3moe-30b-a3b,gemma4-26b-a4b] [--budget 180] [--out docs/results]

Weights are random: speed does not depend on their values. For each shape one file lab-SHAPE.jsonl is written, record by
record, so that what was measured survives an interruption:

* one token at depth 0 and at the largest depth, short batches (4 and 8 tokens) there, 512 tokens at 32,768, behind a
  cache that was computed: which experts many tokens choose, and so how long those take, depends on what they attend to
* the same greedy tokens with and without CUDA graphs and fused up+gate
* kernel launches, CUDA graph launches and fused expert matmuls, counted
* a phase table for every KV type and depth, through CUPTI, graphs on

Every combination of the switches is a process of its own, since the library reads them once. `--budget` bounds the
seconds of a shape: what there is no time for is recorded as skipped. Tables are printed as
Markdown at the end. Exit code 1 if a row failed or was skipped.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # the sibling module, also when loaded by path
from gpu_common import ROOT, Budget, Results, gpu_facts, model_file  # noqa: E402

if TYPE_CHECKING:
    from pyllama_turbo import Model

SHAPES = "qwen3moe-30b-a3b,gemma4-26b-a4b"
TYPES = "f16,q8_0,turbo3,turbo3_tcq"
DEPTHS = "0,131072"
TOKENS = 48
PREFILL_DEPTH = 32768
# What is switched off in each cell. The first is the shipping setting and measures everything.
CELLS: tuple[tuple[str, ...], ...] = ((), ("up_gate",), ("graphs",), ("graphs", "up_gate"), ("fused",))
ALL_CELLS = ",".join(map(str, range(len(CELLS))))
GRACE_S = 20.0  # a cell ends itself when its time is up; only one that hangs is ended from outside


class Cell:
    """The measurements of one process.

    Args:
        model: loaded.
        args: the command line.
        results: where records go.
        budget: time for them.
    """

    def __init__(self, model: Model, args: argparse.Namespace, results: Results, budget: Budget) -> None:
        from pyllama_turbo.bench import common_row, parse_pairs
        from pyllama_turbo.report.provenance import collect

        self.model, self.args, self.results, self.budget = model, args, results, budget
        self.pairs = parse_pairs([args.kv])
        self.depths = [int(d) for d in (args.depths or DEPTHS).split(",")]
        self.common = common_row(model, collect())
        self.context = {"k_center": args.k_center} if args.k_center else {}

    def run(self, full: bool) -> None:
        """Measure: the speed and launches of an empty cache, and with `full` everything else."""
        args, deepest = self.args, max(self.depths)
        n_gen = args.n_gen or TOKENS
        self._attempt("bench", f"tg{n_gen}", lambda: self._speed(0, n_gen, 0, args.repeats))
        self._attempt("greedy", "tokens", self._greedy)
        if full and deepest:
            self._attempt("bench", f"tg{n_gen} @ d{deepest}", lambda: self._speed(0, n_gen, deepest, args.repeats))
            for rows in (4, 8):
                self._attempt(
                    "bench",
                    f"pp{rows} @ d{deepest}",
                    lambda rows=rows: self._speed(rows, 0, deepest, args.batch_repeats),  # type: ignore[misc]
                )
            prefill = min(PREFILL_DEPTH, deepest)
            self._attempt(
                "bench",
                f"pp{args.prompt} @ d{prefill}",
                lambda: self._speed(args.prompt, 0, prefill, args.repeats, "prefill"),
            )
        for pair in self.pairs:
            name = "/".join(dict.fromkeys(pair))
            for depth in self.depths if full else (0,):
                self._attempt(
                    "profile" if full else "launches",
                    f"{name} @ d{depth}",
                    lambda pair=pair, depth=depth: self._profile(pair, depth, full),  # type: ignore[misc]
                )

    def _attempt(self, kind: str, what: str, work: Callable[[], None]) -> None:
        """Do a piece of work if there is time; a failure is a record, not the end."""
        from pyllama_turbo.errors import TurboError

        if self.budget.left <= 0:
            self.results.skip(kind, what, f"the budget of {self.budget.seconds:.0f} s was spent")
            return
        try:
            work()
        except TurboError as error:
            self.results.add({"kind": kind, "what": what, "status": "failed", "reason": error.message})
        self.budget.say(f"{kind} {what}")

    def _speed(self, n_prompt: int, n_gen: int, depth: int, repeats: int, fill: str = "synthetic") -> None:
        from pyllama_turbo.bench import BenchOptions, Matrix, Test, run_group

        matrix = Matrix((Test(n_prompt, n_gen),), (depth,), self.pairs)
        options = BenchOptions(repeats, fill_mode=fill if depth else "auto", context=self.context)
        for group in matrix.groups():
            for row in run_group(self.model, group, options, self.common):
                self.results.add(row.record())

    def _greedy(self) -> None:
        from pyllama_turbo.quality.identity import PROMPTS, greedy

        for pair in dict.fromkeys((self.pairs[0], self.pairs[-1])):
            with self.model.context(256, kv=pair, **self.context) as context:
                runs = greedy(context, PROMPTS[: self.args.prompts], self.args.greedy)
            self.results.add({**self._setting("greedy", pair), "tokens": [run.tokens for run in runs]})

    def _profile(self, pair: tuple[str, str], depth: int, full: bool) -> None:
        from pyllama_turbo.profile.capture import capture

        steps = self.args.steps if full else 4
        keywords = {"kv": pair, "fill_mode": "synthetic" if depth else "auto", **self.context}
        found = capture(self.model, depth=depth, steps=steps, **keywords)
        label = "/".join(dict.fromkeys(pair))
        counted = {"launches": found.launches.record(), "experts": found.experts and found.experts.record()}
        calls = {row.phase: row.calls_step for row in found.profile.phases}
        self.results.add({**self._setting("launches", pair), "depth": depth, **counted, "calls": calls})
        if full:
            self.results.add(found.record(**{**self._setting("profile", pair), "label": label, "depth": depth}))

    def _setting(self, kind: str, pair: tuple[str, str]) -> dict[str, Any]:
        row = self.common
        switches = {"graphs": row.graphs, "fused": row.fused, "moe_fused": row.moe_fused}
        names = {"model": row.model_filename, "model_type": row.model_type, "digest": row.digest}
        return {"kind": kind, **names, "type_k": pair[0], "type_v": pair[1], **switches}


def run_cell(args: argparse.Namespace) -> int:
    """The process of one cell: what it measures goes to the result file."""
    from pyllama_turbo import Model
    from pyllama_turbo.report.provenance import collect

    budget, results = Budget(args.budget), Results(args.results)
    with Model.open(args.model, n_gpu_layers=args.gpu_layers) as model:
        budget.say(f"{model.facts.description} is loaded")
        if args.cell == 0:
            results.add({**collect().record(), "command": args.asked})
        Cell(model, args, results, budget).run(full=args.cell == 0)
    return 0  # rows that failed are in the file; another code says that the process itself broke


def spawn_cell(number: int, model: Path, args: argparse.Namespace, results: Results, budget: Budget) -> None:
    """Run one cell in a process with its switches; a broken one leaves a record."""
    from pyllama_turbo.bench.flags import SWITCHES, switched

    off = CELLS[number]
    name = " and ".join(off) + " off" if off else "shipping setting"
    if budget.left <= 0:
        results.skip("cell", name, f"the budget of {budget.seconds:.0f} s was spent")
        return
    budget.say(f"cell: {name}")
    command = [sys.executable, str(Path(__file__).resolve()), "--cell", str(number), "--model", str(model)]
    command += ["--results", str(results.path), "--budget", f"{budget.left:.1f}", *forwarded(args)]
    command += ["--asked", args.asked]
    environment = switched({switch: switch not in off for switch in SWITCHES}, os.environ)
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    before = len(results.records())
    try:
        done = subprocess.run(command, env=environment, timeout=budget.left + GRACE_S, check=False)
        broken = f"the process ended with {done.returncode}" if done.returncode else ""
    except subprocess.TimeoutExpired:
        broken = "the process hung and was ended"
    for record in results.records()[before:]:
        if record.get("status", "ok") != "ok":
            results.failed.append(f"{name}: {record.get('what', record.get('kind'))}: {record.get('reason')}")
    if broken:
        results.add({"kind": "cell", "what": name, "status": "failed", "reason": broken})


def command_line() -> str:
    """This process's command line, without folders."""
    return " ".join(Path(part).name if Path(part).is_absolute() else part for part in ["python", *sys.argv])


def cell_names() -> str:
    """The cells by number, for the help."""
    return ", ".join(f"{i} {'without ' + ' and '.join(off) if off else 'as shipped'}" for i, off in enumerate(CELLS))


def forwarded(args: argparse.Namespace) -> list[str]:
    """The options that a cell needs, written out again."""
    names = (
        "kv", "depths", "n_gen", "prompt", "repeats", "batch_repeats", "steps", "greedy", "prompts", "gpu_layers",
        "k_center",
    )  # fmt: skip
    return [part for name in names for part in ("--" + name.replace("_", "-"), str(getattr(args, name)))]


def run_shape(shape: str, model: Path, args: argparse.Namespace) -> list[str]:
    """All cells of one shape, and their tables on stdout; returns what failed."""
    from pyllama_turbo.report.page import markdown_page

    budget = Budget(args.budget)
    results = Results(args.out / f"lab-{shape}.jsonl", fresh=True)
    results.add(gpu_facts("before"))
    for number in map(int, args.cells.split(",")):
        spawn_cell(number, model, args, results, budget)
    results.add({**gpu_facts("after"), "seconds": budget.spent})
    print(markdown_page(results.records(), f"Levers of {shape}"), flush=True)
    return results.failed


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """The command line, also used by gpu_bench.py."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default=SHAPES, help=f"shapes of make_model.py [{SHAPES}]")
    parser.add_argument("--model", type=Path, help="a GGUF file instead of a written one; --shape then only names it")
    parser.add_argument(
        "--budget", type=float, default=180.0, metavar="SECONDS", help="time for the cells of a shape [180]"
    )
    parser.add_argument("--kv", default=TYPES, help=f"KV pairs [{TYPES}]")
    parser.add_argument("--depths", default=DEPTHS, help=f"depths of the phase tables [{DEPTHS}]")
    parser.add_argument("--n-gen", type=int, default=TOKENS, help=f"tokens of a sample [{TOKENS}]")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt at 32,768 [512]")
    parser.add_argument("--repeats", type=int, default=5, help="samples [5]")
    parser.add_argument("--batch-repeats", type=int, default=24, help="samples of short batches [24]")
    parser.add_argument("--steps", type=int, default=16, help="steps of a profile [16]")
    parser.add_argument("--greedy", type=int, default=24, help="greedy tokens of a prompt [24]")
    parser.add_argument("--prompts", type=int, default=4, help="prompts continued greedily [4]")
    parser.add_argument("--gpu-layers", default="all", help="layers on the GPU [all]")
    parser.add_argument("--k-center", default="auto", help="centring of keys [auto]")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()), help="where model files are written")
    parser.add_argument("--keep", action="store_true", help="keep the model files")
    parser.add_argument("--tiny", action="store_true", help="small models with the same heads, to try the script")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", help="where results go [docs/results]")
    parser.add_argument("--cells", default=ALL_CELLS, help=f"combinations of the switches: {cell_names()} [all]")
    parser.add_argument("--cell", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--asked", default="", help=argparse.SUPPRESS)  # the command line that a cell serves
    return parser


def run_lab(args: argparse.Namespace) -> int:
    """Every shape; says what failed on stderr."""
    failed: list[str] = []
    args.asked = command_line()
    for shape in args.shape.split(","):
        model = args.model or model_file(shape, args.work, tiny=args.tiny)
        failed += [f"{shape}: {text}" for text in run_shape(shape, model, args)]
        if args.model is None and not args.keep:
            model.unlink()
    for text in failed:
        print(f"FAILED {text}", file=sys.stderr)
    return int(bool(failed))


def main() -> int:
    """Command line entry."""
    args = make_parser(__doc__).parse_args()
    return run_lab(args) if args.cell is None else run_cell(args)


if __name__ == "__main__":
    sys.exit(main())
