"""One target for a few seconds without coverage: `fuzz_slice.py TARGET SECONDS SEED FILE`; prints figures as JSON.

The corpus and the target's seeds come first, whole, then changes of them. FILE always holds the input at work, so a
process that dies leaves what killed it. One input that takes longer than `MAX_SECONDS` ends the process.
"""

from __future__ import annotations

import faulthandler
import json
import resource
import sys
import time
from collections import Counter
from pathlib import Path

from mutate import Mutator
from targets import TARGETS, attempt, clean_up, corpus

MAX_SECONDS = 20


def peak_mib() -> float:
    """Peak resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(name: str, seconds: float, seed: int, file: Path) -> None:
    """Run, then print: inputs by outcome, and peak memory after the seeds and at the end."""
    target = TARGETS[name]
    outcomes: Counter[str] = Counter()

    def one(data: bytes) -> None:
        file.write_bytes(data)
        faulthandler.dump_traceback_later(MAX_SECONDS, exit=True)
        outcomes[attempt(target, data)] += 1
        faulthandler.cancel_dump_traceback_later()

    seeds = target.seeds()
    for data in seeds:
        one(data)
    accepted, settled = outcomes["accepted"], peak_mib()
    replayed = [path.read_bytes() for path in corpus(name)]
    for data in replayed:
        one(data)
    mutator = Mutator([*seeds, *replayed], target.words, target.max_bytes, seed)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        one(mutator.next())
    clean_up()
    figures = {"seeds": len(seeds), "seeds_accepted": accepted, "replayed": len(replayed), "outcomes": outcomes}
    print(json.dumps({**figures, "settled_mib": settled, "peak_mib": peak_mib()}))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
