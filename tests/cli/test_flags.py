"""Flags that hands know from llama.cpp's tools: each works or is refused with a sentence; each can come from the
environment."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from cli_result import Run

from pyllama_turbo.cli import familiar
from pyllama_turbo.cli.group import COMMANDS, cli
from pyllama_turbo.cli.prompt import unescaped
from pyllama_turbo.cli.refused import REFUSED

Models = dict[str, Path]
GREEDY = ("--temp", "0", "-n", "8", "-c", "256")

# What llama.cpp's completion and chat tools take, as people type it: flag and a value, or None for a switch.
_TYPED = """
-m -p -f -n:8 --predict:8 --n-predict:8 -c:256 --ctx-size:256 -b:64 --batch-size:64 -ub:64 --ubatch-size:64 -t:1
--threads:1 -tb:1 --threads-batch:1 -ngl:0 --gpu-layers:0 --n-gpu-layers:0 -sm:layer --split-mode:layer -ts:1
--tensor-split:1 -mg:0 --main-gpu:0 -fa:on --flash-attn:auto -ctk:q8_0 -ctv:q8_0 --cache-type-k:q8_0
--cache-type-v:q8_0 -s:1 --seed:1 --temp:0.5 --temperature:0.5 --top-k:5 --top-p:0.9 --min-p:0.1 --typical:1
--typical-p:1 --top-nsigma:1 --top-n-sigma:1 --xtc-probability:0.1 --xtc-threshold:0.1 --repeat-last-n:8
--repeat-penalty:1.1 --presence-penalty:0.1 --frequency-penalty:0.1 --dry-multiplier:0.1 --dry-base:1.5
--dry-allowed-length:2 --dry-penalty-last-n:8 --dry-sequence-breaker:x --dynatemp-range:0.1 --dynatemp-exp:1
--mirostat:2 --mirostat-lr:0.1 --mirostat-ent:5 --adaptive-target:0.5 --adaptive-decay:0.5 -l:5+1 --logit-bias:5-1.5
--ignore-eos --samplers:top_k;temperature -r:zzz --reverse-prompt:zzz -sp --special --keep:2 --context-shift
--no-context-shift --swa-full -kvu --kv-unified -no-kvu -np:1 --parallel:1 --rope-scaling:none --rope-scale:2
--rope-freq-base:10000 --rope-freq-scale:1 --yarn-orig-ctx:512 --yarn-ext-factor:0 --yarn-attn-factor:1
--yarn-beta-slow:1 --yarn-beta-fast:32 -kvo --kv-offload -nkvo --no-kv-offload --repack --no-repack --mlock --no-mmap
-lm:mmap --load-mode:none -ot:x=CPU --override-tensor:x=CPU -cmoe --cpu-moe -ncmoe:1 --n-cpu-moe:1 --check-tensors
--op-offload --no-op-offload --no-warmup -e --escape --no-escape --no-perf -no-cnv --no-conversation --display-prompt
--no-display-prompt --cache-prompt --no-cache-prompt
"""
_CHAT_TYPED = """
-sys:x --system-prompt:x --jinja --chat-template:chatml --chat-template-kwargs:{"a":1} -rea:off --reasoning:on -st
--single-turn
"""
TYPED, CHAT_TYPED = _TYPED.split(), _CHAT_TYPED.split()


def options_of(name: str) -> dict[str, click.Option]:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return {f: p for p in command.params if isinstance(p, click.Option) for f in (*p.opts, *p.secondary_opts)}


@pytest.mark.parametrize("typed", TYPED)
def test_flags_that_work(run: Run, models: Models, typed: str) -> None:
    flag, _, value = typed.partition(":")
    if flag in ("-m", "-p", "-f"):
        assert flag in options_of("run")
        return
    result = run("run", "-m", models["hd128"], "-p", "hello", "-q", "-n", "2", flag, *filter(None, [value]))
    assert result.code == 0, result.err


@pytest.mark.parametrize("typed", CHAT_TYPED)
def test_flags_of_conversations_that_work(run: Run, models: Models, typed: str) -> None:
    flag, _, value = typed.partition(":")
    result = run("chat", "-m", models["hd128"], "-n", "2", flag, *filter(None, [value]), stdin="hello")
    assert result.code == 0, result.err


@pytest.mark.parametrize("flag", sorted(REFUSED))
def test_flags_that_are_refused(run: Run, models: Models, flag: str) -> None:
    command = "run" if flag not in options_of("run") else "chat"
    assert flag not in options_of(command)
    result = run(command, "-m", models["hd128"], flag, "1", stdin="x")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"error: {flag} is not offered: {REFUSED[flag]}\n")


@pytest.mark.parametrize(
    "flag", ["--spec-ngram-size-n", "--tts-lang", "--prio-draft", "--cors-origins", "--log-tokens"]
)
def test_families_of_flags_that_are_refused(run: Run, models: Models, flag: str) -> None:
    result = run("run", "-m", models["hd128"], flag, "1", "-p", "x")
    assert result.code == 2
    assert result.err.startswith(f"error: {flag} is not offered: ")


def test_the_value_of_a_flag_is_not_taken_for_a_flag(run: Run, models: Models) -> None:
    assert run("run", "-m", models["hd128"], "-p", "--mtp", "-n", "1").code == 0
    assert run("run", "-m", models["hd128"], "-n", "1", "--prompt=--mtp").code == 0
    assert run("run", "-m", models["hd128"], "-n", "1", "--stop", "--host", "-p", "x").code == 0


def _options() -> Iterator[tuple[str, click.Option]]:
    for name in COMMANDS:
        for option in dict.fromkeys(options_of(name).values()):
            yield name, option


def test_every_flag_has_an_environment_variable() -> None:
    import make_cli_reference

    page = make_cli_reference.PAGE.read_text(encoding="utf-8")
    for name, option in _options():
        variable = make_cli_reference._environment(option, f"pyllama-turbo {name}")
        assert re.fullmatch(r"`PYLLAMA_TURBO_[A-Z0-9_]+`", variable), (name, option.name)
        assert variable in page


def test_the_environment_sets_a_commands_own_flags(run: Run, models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYLLAMA_TURBO_MODEL", str(models["hd128"]))
    monkeypatch.setenv("PYLLAMA_TURBO_RUN_PROMPT", "hello")
    monkeypatch.setenv("PYLLAMA_TURBO_RUN_QUIET", "1")
    result = run("run", "-n", "2")
    assert (result.code, result.err) == (0, "")
    monkeypatch.setenv("PYLLAMA_TURBO_MLOCK", "1")
    monkeypatch.setenv("PYLLAMA_TURBO_LOAD_MODE", "none")
    assert run("run", "-n", "2").code == 2


def test_flags_that_say_the_same_in_other_words() -> None:
    def translated(**given: Any) -> dict[str, Any]:
        return familiar.translate({f"familiar_{name}": value for name, value in given.items()})

    assert translated(mlock=True) == {"load_mode": "mmap+mlock"}
    assert translated(mlock=True, no_mmap=True) == {"load_mode": "mlock"}
    assert translated(no_mmap=True) == {"load_mode": "none"}
    assert translated(rope_scale=4.0) == {"rope_freq_scale": 0.25}
    assert translated(lora_scaled=("a.gguf:0.5,b.gguf:2",)) == {"lora": ("a.gguf:0.5", "b.gguf:2")}
    assert translated(no_warmup=True) == {}
    (all_experts,) = translated(cpu_moe=True).values()
    assert re.search(all_experts.removesuffix("=CPU"), "blk.11.ffn_gate_exps.weight")
    two = translated(n_cpu_moe=2)["override_tensor"].split(",")
    patterns = [entry.removesuffix("=CPU") for entry in two]
    for layer, moved in ((0, True), (1, True), (2, False), (11, False)):
        assert any(re.search(p, f"blk.{layer}.ffn_down_exps.weight") for p in patterns) is moved
        assert not any(re.search(p, f"blk.{layer}.ffn_down.weight") for p in patterns)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--mlock", "--load-mode", "none"), "--mlock or --no-mmap and --load-mode say the same thing"),
        (("--rope-scale", "2", "--rope-freq-scale", "1"), "--rope-scale and --rope-freq-scale say the same thing"),
        (("--rope-scale", "0"), "--rope-scale"),
        (("--grammar", 'root ::= "a"', "--grammar-file", "x"), "x"),
        (("--grammar-file", "nothing.gbnf"), "nothing.gbnf"),
        (("--lora-scaled", "a.gguf"), "write FILE:SCALE"),
        (("--lora", "nothing.gguf"), "nothing.gguf"),
        (("-l", "many"), "is no token id with a bias"),
        (("-l", "99999+1"), "99999"),
    ],
)
def test_wrong_usage(run: Run, models: Models, args: tuple[str, ...], message: str) -> None:
    result = run("run", "-m", models["hd128"], "-p", "x", *args)
    assert result.code in (1, 2)
    assert result.out == ""
    assert message in result.err


def test_grammars_and_schemas_from_files(run: Run, models: Models, tmp_path: Path) -> None:
    (tmp_path / "a.gbnf").write_text('root ::= "yes" | "no"\n')
    (tmp_path / "a.json").write_text('{"enum": ["red", "blue"]}')
    base = ("run", "-m", models["hd128"], "-p", "hello", "-q", *GREEDY)
    assert run(*base, "--grammar-file", tmp_path / "a.gbnf").out.strip() in ("yes", "no")
    assert run(*base, "--json-schema-file", tmp_path / "a.json").out.strip() in ('"red"', '"blue"')
    assert run(*base, "-j", '{"const": 7}').out.strip() == "7"


def test_a_bias_decides(run: Run, models: Models) -> None:
    (token,) = json.loads(run("tokenize", "-m", models["hd128"], "-p", "z", "--no-bos", "--json").out)[-1:]
    base = ("run", "-m", models["hd128"], "-p", "hello", "-q", *GREEDY)
    assert set(run(*base, "-l", f"{token['id']}+1000").out.strip()) <= {"z", " "}
    assert "z" not in run(*base, "-l", f"{token['id']}-inf").out


def test_escapes(run: Run, models: Models) -> None:
    assert unescaped(r"a\nb\t\"c\" \\n \x41 \q") == 'a\nb\t"c" \\n A \\q'
    base = ("run", "-m", models["hd128"], "--echo", "-q", *GREEDY)
    assert run(*base, "-p", r"a\nb").out.lstrip().startswith(r"a\nb")
    assert run(*base, "-e", "-p", r"a\nb").out.lstrip().startswith("a\nb")


def test_last_newline_of_a_file_is_not_part_of_the_prompt(run: Run, models: Models, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello\n")
    base = ("run", "-m", models["hd128"], "-q", *GREEDY)
    wanted = run(*base, "-p", "hello").out
    assert run(*base, "-f", tmp_path / "a.txt").out == wanted
    assert run(*base, stdin="hello\n").out == wanted
    assert run(*base, stdin="hello\n\n").out != wanted


def test_prompt_cache(run: Run, models: Models, tmp_path: Path) -> None:
    file = tmp_path / "cache"
    prompt = "a long beginning that two runs share, and "
    base = ("run", "-m", models["hd128"], "--json", "--kv", "turbo3", "--prompt-cache", file, *GREEDY)
    first = json.loads(run(*base, "-p", prompt + "one").out)
    assert first["n_reused"] == 0
    size = file.stat().st_size
    second = json.loads(run(*base, "-p", prompt + "two").out)
    assert second["n_reused"] > 10
    plain = ("run", "-m", models["hd128"], "--json", "--kv", "turbo3", *GREEDY)
    assert second["text"] == json.loads(run(*plain, "-p", prompt + "two").out)["text"]
    before = file.read_bytes()
    assert json.loads(run(*base, "--prompt-cache-ro", "-p", "other").out)["text"]
    assert file.read_bytes() == before
    run(*base, "--prompt-cache-all", "-p", prompt + "one")
    assert file.stat().st_size > size
    refused = run("run", "-m", models["hd128"], "--prompt-cache", file, "-p", "x", *GREEDY)
    assert refused.code == 1
    assert "another configuration" in refused.err
