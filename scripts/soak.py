#!/usr/bin/env python3
"""Hours in minutes: random work on long-lived models and contexts, each piece repeated in a fresh process and compared.

    soak.py [--seconds N] [--seed S] [--record FILE]

An episode is decided by its number alone: a tiny model, KV types, then prompts (greedy and sampled), context shifts,
sequence copies, state saved and restored in memory and on disk, and generations that go on after all that. Between its
steps the long-lived process also does what leaves no output: generations cancelled from another thread, contexts opened
and closed, calls that are refused. The tokens of every step must be those of a process that ran this one episode on a
new model and context. Memory is read from /proc once an episode: after the first quarter it may not grow beyond
`GROWTH`. One thread computes.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from make_model import write_model  # noqa: E402

from pyllama_turbo import Context, Model, errors, state  # noqa: E402

N_CTX = 256
POOL = 6  # contexts kept open
GROWTH = 0.05  # of memory, after the first quarter of the time
SLACK_MIB = 8.0
MODELS = {
    "llama": {"head_dim": 64},
    "wide": {"head_dim": 128, "n_head": 2, "n_head_kv": 1},
    "qwen2": {"arch": "qwen2", "head_dim": 64, "k_bias": 40.0},
    "gemma3": {"arch": "gemma3", "n_layer": 6, "head_dim": 64},
    "qwen3moe": {"arch": "qwen3moe", "n_expert": 4, "head_dim": 64},
}
K_TYPES = ("f16", "q8_0", "q4_0", "turbo2", "turbo3", "turbo4", "turbo2_tcq", "turbo3_tcq", "turbo4_tcq")
WORDS = (
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "and",
    "runs",
    "away",
    "from",
    "its",
    "own",
    "small",
    "shadow",
    "into",
    "night",
)


@dataclass
class World:
    """Models and contexts that stay open, the least recently used context being closed when there are too many."""

    folder: Path
    models: dict[str, Model] = field(default_factory=dict)
    contexts: OrderedDict[tuple[str, str, str], Context] = field(default_factory=OrderedDict)

    def model(self, name: str) -> Model:
        """A model by its name in `MODELS`."""
        if name not in self.models:
            path = self.folder / f"{name}.gguf"
            if not path.exists():
                write_model(path, **MODELS[name])
            self.models[name] = Model.open(path)
        return self.models[name]

    def context(self, name: str, type_k: str, type_v: str) -> Context:
        """An emptied context of two sequences."""
        key = (name, type_k, type_v)
        if key not in self.contexts:
            if len(self.contexts) >= POOL:
                self.contexts.popitem(last=False)[1].close()
            made = self.model(name).context(N_CTX, type_k=type_k, type_v=type_v, n_seq_max=2, n_batch=64, n_threads=1)
            self.contexts[key] = made
        self.contexts.move_to_end(key)
        self.contexts[key].seqs.clear()
        return self.contexts[key]

    def close(self) -> None:
        """Close everything."""
        for handle in [*self.contexts.values(), *self.models.values()]:
            handle.close()


def _prompt(rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(3, 40)))


def _run(context: Context, prompt: Any, n: int, rng: random.Random, seq: int = 0) -> list[int]:
    """Generate up to `n` tokens, greedily or with a seed."""
    how = rng.choice(
        ({"temperature": 0.0}, {"temperature": 0.8, "top_k": 40}, {"temperature": 1.0, "repeat_penalty": 1.1})
    )
    with context.generate(prompt, max_tokens=n, seed=rng.randrange(1 << 30), seq=seq, ignore_eos=True, **how) as run:
        return [event.token for event in run if event.token is not None]


def _go_on(context: Context, n: int, seq: int = 0) -> list[int]:
    """Greedy tokens behind what a sequence holds, without generate's prefix bookkeeping."""
    token, out = 5, []
    for _ in range(n):
        context.decode([token], seq=seq)
        token = int(context.logits[-1].argmax())
        out.append(token)
    return out


def _shift(context: Context, rng: random.Random) -> list[int]:
    if context.facts.can_shift and context.seqs.next_position(0) > 24:
        context.seqs.discard_oldest(0, rng.randint(1, 6))
    return _go_on(context, 6)


def _copy(context: Context, rng: random.Random) -> list[int]:
    context.seqs.copy(0, 1)
    return _go_on(context, 5, seq=1) + _run(context, _prompt(rng), 5, rng, seq=1) + _go_on(context, 4)


def _save_bytes(context: Context, rng: random.Random) -> list[int]:
    data = state.get_bytes(context, 0)
    context.seqs.clear()
    state.set_bytes(context, data, 0)
    return _go_on(context, 5)


def _save_file(context: Context, rng: random.Random) -> list[int]:
    with tempfile.TemporaryDirectory() as folder:
        state.save(context, Path(folder) / "a.state")
        _run(context, _prompt(rng), 4, rng)
        state.load(context, Path(folder) / "a.state")
    return _go_on(context, 5)


STEPS = (_shift, _copy, _save_bytes, _save_file)


def _cancelled(context: Context, rng: random.Random) -> None:
    """A generation stopped from another thread at a moment nobody knows; nothing of it is compared."""
    context.seqs.clear()
    with context.generate(_prompt(rng), max_tokens=120, seed=1, ignore_eos=True) as run:
        timer = threading.Timer(rng.random() * 0.02, run.cancel)
        timer.start()
        for _ in run:
            pass
        timer.join()
    context.seqs.clear()


def _refused(context: Context, rng: random.Random) -> None:
    """Calls that must fail and change nothing."""
    for call in (
        lambda: context.decode([1] * (N_CTX + 1)),
        lambda: context.decode([1 << 20]),
        lambda: context.generate("a", grammar="root ::= ("),
        lambda: state.set_bytes(context, b"nothing of the kind", 1),
    ):
        try:
            call()
        except errors.TurboError:
            continue
        raise AssertionError("a call that must be refused was not")


def _churn(world: World, name: str) -> None:
    """A context that opens, runs and closes beside the others."""
    with world.model(name).context(64, kv="turbo3", n_threads=1) as other:
        other.decode([1, 2, 3])


def episode(world: World, number: int, *, disturb: bool) -> list[list[int]]:
    """The tokens of each step of episode `number`; `disturb` mixes in what must leave no trace."""
    rng, noise = random.Random(number), random.Random(number + 0.5)
    name = rng.choice(list(MODELS))
    context = world.context(name, rng.choice(K_TYPES), rng.choice(K_TYPES))
    if disturb and noise.random() < 0.5:
        _cancelled(context, noise)
    out = [_run(context, _prompt(rng), rng.randint(4, 24), rng)]
    for _ in range(rng.randint(2, 5)):
        if disturb and noise.random() < 0.3:
            noise.choice((lambda: _refused(context, noise), lambda: _churn(world, name)))()
        step = rng.choice(STEPS) if context.seqs.next_position(0) < N_CTX - 60 else _restart
        out.append(step(context, rng))
    return out


def _restart(context: Context, rng: random.Random) -> list[int]:
    """A prompt that shares its start with what the cache holds."""
    known = list(context.seqs.tokens(0) or [])[:20]
    return _run(context, known or _prompt(rng), 8, rng)


def fresh(folder: Path, number: int) -> list[list[int]]:
    """The same episode, alone in a new process."""
    command = [sys.executable, __file__, "--episode", str(number), "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or done.stderr:
        raise SystemExit(f"soak: episode {number} alone ended with {done.returncode}\n{done.stdout}{done.stderr}")
    answer: list[list[int]] = json.loads(done.stdout)
    return answer


def rss_mib() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def soak(seconds: float, seed: int, folder: Path) -> dict[str, Any]:
    """Run until the time is over. Raises SystemExit at the first difference."""
    world = World(folder)
    start, memory, steps, models = time.monotonic(), [], 0, Counter()
    number = seed
    while (passed := time.monotonic() - start) < seconds:
        mine = episode(world, number, disturb=True)
        alone = fresh(folder, number)
        if mine != alone:
            raise SystemExit(f"soak: episode {number} differs from a fresh process\n{mine}\n{alone}")
        gc.collect()
        memory.append((passed, rss_mib()))
        steps += len(mine)
        models[random.Random(number).choice(list(MODELS))] += 1
        number += 1
    world.close()
    settled = [mib for at, mib in memory if at >= seconds / 4] or [memory[-1][1]]
    return {
        "minutes": round((time.monotonic() - start) / 60, 2),
        "episodes": number - seed,
        "steps_equal": steps,
        "episodes_by_model": dict(models),
        "rss_mib": {"first": round(memory[0][1], 1), "settled": round(settled[0], 1), "last": round(settled[-1], 1),
                    "peak": round(max(mib for _, mib in memory), 1)},
        "flat": settled[-1] <= settled[0] * (1 + GROWTH) + SLACK_MIB,
    }  # fmt: skip


def main() -> int:
    """Command line: see the module's docstring."""
    parser = argparse.ArgumentParser(description="Random work compared with fresh processes.")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1, help="number of the first episode")
    parser.add_argument("--record", type=Path, help="JSON file for the figures")
    parser.add_argument("--episode", type=int, help="run one episode and print its tokens as JSON")
    parser.add_argument("--folder", type=Path, help="where the tiny models are")
    args = parser.parse_args()
    if args.episode is not None:
        world = World(args.folder)
        print(json.dumps(episode(world, args.episode, disturb=False)))
        world.close()
        return 0
    with tempfile.TemporaryDirectory(prefix="turbo-soak-") as folder:
        os.environ["PYLLAMA_TURBO_CACHE"] = folder  # what is measured about the tiny models goes away with them
        result = soak(args.seconds, args.seed, Path(folder))
    print(json.dumps(result, indent=1))
    if args.record:
        args.record.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if result["flat"] else 1


if __name__ == "__main__":
    sys.exit(main())
