"""The fuzz targets: each takes bytes to a place where strangers' data enters, and lets nothing but our errors pass.

A target's function returns normally or raises a `TurboError` other than `InternalError`; everything else it raises, a
crash, a hang or memory beyond the bound is a finding. The same functions run under libFuzzer (`scripts/fuzz.py`), and
in the tests, which replay the corpus and mutate it without coverage.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from fuzz_models import ARCHS, write_runnable, write_vocabularies
from fuzz_texts import SCHEMAS, TEMPLATES, TOOLS

from pyllama_turbo import Context, Model, Sampler, _native, chat, errors, grammar, state
from pyllama_turbo.gguf import read_gguf
from pyllama_turbo.shape import model_shape

__all__ = ["TARGETS", "Target", "attempt"]

CORPUS = Path(__file__).resolve().parent / "corpus"
N_CTX = 256
TAIL = bytes.fromhex("0034009c0a2e002c") * (32 << 10)  # weights for headers without any: small half-precision numbers


@dataclass(frozen=True)
class Target:
    """One target: what it runs, inputs to begin with, words to mutate by, the longest input (bytes)."""

    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    words: tuple[str, ...] = ()
    max_bytes: int = 4096


def attempt(target: Target, data: bytes) -> str:
    """Run one input: "accepted", or the name of our error that refused it. A finding is raised."""
    try:
        target.run(data)
    except errors.InternalError:
        raise
    except errors.TurboError as error:
        return type(error).__name__
    return "accepted"


@cache
def folder() -> Path:
    """A folder of this process for the files that readers want."""
    return Path(tempfile.mkdtemp(prefix="turbo-fuzz-"))


@cache
def model() -> Model:
    """The tiny model behind the targets that need one."""
    return Model.open(write_runnable(folder() / "tiny.gguf"))


@cache
def context() -> Context:
    """A small compressed context whose last decode has logits."""
    made = model().context(N_CTX, kv="turbo3", k_center="off", n_seq_max=1, n_threads=1)
    made.decode(list(range(3, 11)))
    return made


def text(data: bytes) -> str:
    """Any bytes as a str, invalid UTF-8 as the lone surrogates that file names and arguments bring."""
    return data.decode("utf-8", "surrogateescape")


def _file(data: bytes, name: str) -> Path:
    path = folder() / name
    path.write_bytes(data)
    return path


# -- GGUF headers ---------------------------------------------------------------------------------------------------


def run_gguf(data: bytes) -> None:
    """Our header reader, and what is derived from a header before a model is loaded."""
    path = _file(data, "header.gguf")
    os.truncate(path, len(data) + len(TAIL))
    header = read_gguf(path)
    for tensor in header.tensors.values():
        if tensor.offset < header.data_offset or tensor.offset + tensor.n_bytes > header.size:
            raise AssertionError(f"{tensor} lies outside the file of {header.size} bytes")
    model_shape(path)


def seed_headers() -> list[bytes]:
    """Headers of small models: of every architecture the generator knows, and one with a vocabulary."""
    paths = [write_runnable(folder() / f"{arch}.gguf", arch, vocab=False) for arch in ARCHS]
    paths.append(write_runnable(folder() / "vocabulary.gguf"))
    return [path.read_bytes()[: read_gguf(path).data_offset] for path in paths]


# -- models ---------------------------------------------------------------------------------------------------------


def run_model(data: bytes) -> None:
    """What our reader passes goes to the native loader, gets a context and runs two tokens."""
    path = _file(data + TAIL, "model.gguf")
    with (
        Model.open(path, n_gpu_layers=0, load_mode="none") as opened,
        opened.context(32, kv="turbo3", k_center="off", n_batch=32, n_threads=1) as made,
    ):
        made.decode([0, min(1, opened.facts.n_vocab - 1)])


# -- saved state ----------------------------------------------------------------------------------------------------


def run_state(data: bytes) -> None:
    """A state file (first byte even), or the native bytes inside one, past every checksum (odd)."""
    made = context()
    try:
        if not data or data[0] % 2 == 0:
            state.load(made, _file(data[1:], "saved.state"))
        else:
            b = made._binding
            status = b.lib.turbo_state_set(made.pointer(), 0, b.ffi.from_buffer(data[1:]), len(data) - 1)
            made.seqs.forget(0)
            _native.check(b, status)
        made.decode([5])
    finally:
        made.seqs.clear()


def seed_states() -> list[bytes]:
    """A file and the native bytes of eight tokens."""
    made = context()
    made.seqs.clear()
    made.decode(list(range(3, 11)))
    path = folder() / "seed.state"
    state.save(made, path)
    b = made._binding
    buffer = bytearray(b.lib.turbo_state_size(made.pointer(), 0))
    n = b.lib.turbo_state_get(made.pointer(), 0, b.ffi.from_buffer(buffer, require_writable=True), len(buffer))
    return [b"\x00" + path.read_bytes(), b"\x01" + bytes(buffer[:n])]


# -- constraints ----------------------------------------------------------------------------------------------------


def _sample(rules: str) -> None:
    with Sampler(model(), grammar=rules, seed=1) as sampler:
        for _ in range(6):
            if model().tokenizer.is_eog(sampler.next(context())):
                return


def _logits() -> None:
    if context().seqs.range(0) == (-1, -1):
        context().decode([3])


def run_grammar(data: bytes) -> None:
    """A GBNF grammar: parsed, then followed for six tokens."""
    _logits()
    _sample(text(data))


def run_schema(data: bytes) -> None:
    """A JSON schema: made a grammar, then followed."""
    _logits()
    _sample(grammar.from_schema(text(data)))


# -- chats ----------------------------------------------------------------------------------------------------------

MESSAGES = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 2 + 2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "And 3?"},
)


def run_template(data: bytes) -> None:
    """A chat template, rendered plainly, with tools, or with a schema (by the first byte)."""
    kinds = ({}, {"tools": TOOLS}, {"json_schema": {"type": "object"}, "enable_thinking": False})
    chat.render(model(), MESSAGES, template=text(data[1:]), **kinds[data[0] % 3 if data else 0])


@cache
def _rendered(index: int) -> chat.Rendered:
    return chat.render(model(), MESSAGES, template=TEMPLATES[index], tools=TOOLS if index else None)


def run_answer(data: bytes) -> None:
    """A model's answer in one of several formats (first byte), complete or not."""
    first = data[0] if data else 0
    chat.parse(text(data[1:]), _rendered(first // 2 % len(TEMPLATES)), partial=bool(first % 2))


ANSWERS = (
    "four",
    '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2, "\\u00e9"]}}\n</tool_call>',
    "<think>\nhm\n</think>\n\nfour <tool_call>",
)


# -- tokens ---------------------------------------------------------------------------------------------------------


@cache
def _vocabularies() -> list[Model]:
    return [Model.open(path, vocab_only=True) for path in write_vocabularies(folder())]


def run_tokenizer(data: bytes) -> None:
    """Bytes that need not be UTF-8, through one of the vocabularies (first byte), and back."""
    first = data[0] if data else 0
    opened = _vocabularies()[first % len(_vocabularies())]
    ids = opened.tokenizer.encode(data[1:], parse_special=first >= 128)
    opened.tokenizer.decode(ids, skip_special=False)


def seed_tokens() -> list[bytes]:
    """A line with several scripts for every vocabulary."""
    line = " The 2nd\tword's end...\r\n\u00e9\u4f60\u597d \U0001f600 <s>[CLS]<|end|>\x00\xff".encode()
    return [bytes([i]) + line for i in range(len(write_vocabularies(folder())))]


JINJA = (
    "{{", "}}", "{%", "%}", "{%-", "{% if ", "{% endif %}", "{% for m in messages %}", "{% endfor %}", "{% set x = ",
    "{% macro f(a) %}", "{% endmacro %}", "messages", "tools", "loop.index", "namespace(", "range(", "|tojson",
    "|length", "|join(", "|upper", "is defined", "is string", " and ", " not ", " in ", "[1:]", ".items()",
    "raise_exception(", "~",
)  # fmt: skip
GBNF = (
    "::=",
    "root",
    "|",
    "(",
    ")",
    "[^",
    "[a-z]",
    "{1,3}",
    "{2000}",
    "*",
    "+",
    "?",
    "\\x41",
    "\\u4f60",
    '"a"',
    ".",
    "<",
    "#",
)
KEYS = (
    '{"', '":', "type", "object", "array", "string", "integer", "number", "properties", "required", "items", "anyOf",
    "oneOf", "allOf", "$ref", "#/$defs/a", "$defs", "enum", "const", "pattern", "format", "date-time", "minimum",
    "maxLength", "minItems", "additionalProperties", "^(a|b){1,9}$",
)  # fmt: skip

TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "gguf": Target(run_gguf, seed_headers, ("GGUF", "general.architecture", "split.count"), 16384),
        "model": Target(
            run_model, seed_headers, ("llama.", "block_count", "rope.scaling.type", "tokenizer.ggml."), 16384
        ),
        "state": Target(run_state, seed_states, ("pyllama-turbo state", '"fingerprint"', '"bytes"', '"tokens"'), 16384),
        "grammar": Target(run_grammar, lambda: [b'root ::= "a" b{1,3}\nb ::= [a-z]+ | "x"*'], GBNF),
        "schema": Target(run_schema, lambda: [s.encode() for s in SCHEMAS], KEYS),
        "template": Target(run_template, lambda: [b"\x01" + t.encode() for t in TEMPLATES], JINJA),
        "answer": Target(run_answer, lambda: [bytes([2 * i]) + a.encode() for i in (0, 1, 2) for a in ANSWERS]),
        "tokenizer": Target(run_tokenizer, seed_tokens, ("\u2581", "\u0120", "<0x", "<|end|>"), 2048),
    }
)


def corpus(name: str) -> list[Path]:
    """The committed inputs of a target."""
    return sorted(path for path in (CORPUS / name).glob("*") if path.is_file())


def clean_up() -> None:
    """Close what was opened and remove this process's files."""
    if folder.cache_info().currsize:
        for path in folder().iterdir():
            os.unlink(path)
        folder().rmdir()
