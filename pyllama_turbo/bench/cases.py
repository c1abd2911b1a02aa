"""What is measured: lists and ranges as llama-bench writes them, and the matrix they span."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .._option_spec import parse_size
from ..errors import OptionError

__all__ = ["Case", "Matrix", "Test", "parse_numbers", "parse_pairs", "parse_tests"]

_RANGE = re.compile(r"^(\d+[kKmM]?)-(\d+[kKmM]?)(?:([+*])(\d+[kKmM]?))?$")
MAX_VALUES = 1000


@dataclass(frozen=True)
class Test:
    """Tokens of prompt and tokens generated, timed together; one of the two is usually 0."""

    __test__ = False  # to pytest: not a test case

    n_prompt: int
    n_gen: int

    @property
    def name(self) -> str:
        """llama-bench's name: pp512, tg128, pp512+tg128."""
        parts = [f"{tag}{n}" for tag, n in (("pp", self.n_prompt), ("tg", self.n_gen)) if n]
        return "+".join(parts)


@dataclass(frozen=True)
class Case:
    """One row of the table: a test in one setting.

    Attributes:
        test: what is timed.
        depth: tokens in the cache before it.
        kv: names of the K and V type.
        n_batch, n_ubatch: tokens of a decode call, tokens computed at once.
        n_threads: 0 = the library's choice.
        flash_attn: "on", "off" or "auto".
    """

    test: Test
    depth: int
    kv: tuple[str, str]
    n_batch: int = 2048
    n_ubatch: int = 512
    n_threads: int = 0
    flash_attn: str = "auto"

    @property
    def name(self) -> str:
        """Test and depth as llama-bench prints them: pp512, tg128 @ d4096."""
        return self.test.name + (f" @ d{self.depth}" if self.depth else "")

    @property
    def n_ctx(self) -> int:
        """Tokens the context needs."""
        return self.depth + self.test.n_prompt + self.test.n_gen


@dataclass(frozen=True)
class Matrix:
    """All combinations of the values; the KV pairs vary fastest, so that they can be interleaved."""

    tests: tuple[Test, ...]
    depths: tuple[int, ...]
    pairs: tuple[tuple[str, str], ...]
    n_batch: tuple[int, ...] = (2048,)
    n_ubatch: tuple[int, ...] = (512,)
    n_threads: tuple[int, ...] = (0,)
    flash_attn: tuple[str, ...] = ("auto",)

    def groups(self) -> list[list[Case]]:
        """Cases that differ in the KV pair only, group by group."""
        rest = itertools.product(self.flash_attn, self.n_threads, self.n_batch, self.n_ubatch, self.depths, self.tests)
        return [
            [Case(test, depth, kv, batch, min(ubatch, batch), threads, flash) for kv in self.pairs]
            for flash, threads, batch, ubatch, depth, test in rest
        ]

    def __len__(self) -> int:
        return sum(len(group) for group in self.groups())


def parse_numbers(text: str | Iterable[str]) -> tuple[int, ...]:
    """Numbers of a list such as "512,1k", "0-4096+1024" (steps) or "1k-32k*2" (multiples), in the order written.

    Raises:
        OptionError: something else, or more than 1000 values.
    """
    values: list[int] = []
    items = text.split(",") if isinstance(text, str) else [part for item in text for part in item.split(",")]
    for item in (item.strip() for item in items):
        values += _range(item)
        if len(values) > MAX_VALUES:
            raise OptionError(f"{item!r} makes more than {MAX_VALUES} values", asked=item, limit=MAX_VALUES)
    return tuple(dict.fromkeys(values))


def _range(item: str) -> list[int]:
    match = _RANGE.match(item)
    try:
        if match is None:
            return [parse_size(item)]
        first, last, step = parse_size(match[1]), parse_size(match[2]), parse_size(match[4] or "1")
    except ValueError as error:
        raise OptionError(str(error), asked=item, hint="write 512, 512,1024, 0-4096+1024 or 1k-32k*2") from None
    multiply = match[3] == "*"
    if step < (2 if multiply else 1) or (multiply and first == 0) or last < first:
        raise OptionError(f"the range {item!r} does not end", asked=item, hint="FIRST-LAST+STEP or FIRST-LAST*FACTOR")
    if multiply:
        return list(itertools.takewhile(lambda n: n <= last, (first * step**i for i in range(64))))
    return list(range(first, last + 1, step)) if (last - first) // step <= MAX_VALUES else list(range(MAX_VALUES + 1))


def parse_pairs(
    pairs: Sequence[str], keys: Sequence[str] = (), values: Sequence[str] = ()
) -> tuple[tuple[str, str], ...]:
    """KV pairs from texts such as "f16,turbo3,q8_0/turbo3", and all combinations of key and value types.

    Names are checked when the library is asked for them. Nothing given means f16.
    """
    found = []
    for item in (part.strip() for text in pairs for part in text.split(",")):
        key, _, value = item.partition("/")
        found.append((key.strip(), (value or key).strip()))
    if keys or values:
        of_k, of_v = ([n.strip() for text in side or ("f16",) for n in text.split(",")] for side in (keys, values))
        found += [(k, v) for k in of_k for v in of_v]
    return tuple(dict.fromkeys(found)) or (("f16", "f16"),)


def parse_tests(prompts: Sequence[int], gens: Sequence[int], both: Sequence[str] = ()) -> tuple[Test, ...]:
    """Tests from prompt lengths, generation lengths and "PROMPT,GEN" pairs that are timed together.

    Raises:
        OptionError: nothing is left to do, or a pair is none.
    """
    tests = [Test(n, 0) for n in prompts if n] + [Test(0, n) for n in gens if n]
    for text in both:
        numbers = parse_numbers(text)
        if len(numbers) != 2 or 0 in numbers:
            raise OptionError(f"{text!r} is no pair of prompt and generation length", asked=text, hint="write 512,128")
        tests.append(Test(*numbers))
    if not tests:
        raise OptionError("there is nothing to measure", hint="give a prompt length (-p) or a generation length (-n)")
    return tuple(dict.fromkeys(tests))
