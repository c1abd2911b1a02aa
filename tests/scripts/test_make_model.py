"""The generated models, read back with the `gguf` package: an implementation that shares nothing with our writer."""

from __future__ import annotations

from pathlib import Path

import make_model
import model_shapes
import numpy as np
import pytest
from gguf import GGUFReader

CASES = [
    {"head_dim": 64},
    {"head_dim": 128, "n_head": 4, "n_head_kv": 1},
    {"head_dim": 256, "n_head": 7, "n_head_kv": 1},
    {"head_dim": 64, "n_head": 2, "n_head_kv": 2},
    {"n_expert": 4},
    {"arch": "qwen2", "k_bias": 150.0},
    {"arch": "qwen3"},
    {"arch": "qwen3moe", "n_expert": 4},
    {"arch": "gemma3", "n_layer": 7},
    {"weight_type": "f32"},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(f"{k}={v}" for k, v in case.items()))
def test_file_reads_back(tmp_path: Path, case: dict[str, object]) -> None:
    reader = GGUFReader(make_model.write_model(tmp_path / "m.gguf", **case))  # type: ignore[arg-type]
    arch = case.get("arch", "llama")
    assert reader.fields["general.architecture"].contents() == arch
    assert reader.fields[f"{arch}.attention.key_length"].contents() == case.get("head_dim", 64)
    tensors = {t.name: t for t in reader.tensors}
    n_layer = case.get("n_layer", 2)
    assert sum(name.endswith("attn_k.weight") for name in tensors) == n_layer
    heads, dim = case.get("n_head_kv", 2), case.get("head_dim", 64)
    assert tensors["blk.0.attn_k.weight"].shape[1] == heads * dim  # type: ignore[operator]
    assert all(np.isfinite(t.data.astype(np.float32)).all() for t in reader.tensors)


def test_vocabulary_covers_every_byte_and_ascii(tmp_path: Path) -> None:
    reader = GGUFReader(make_model.write_model(tmp_path / "m.gguf", n_vocab=600))
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    assert len(tokens) == len(set(tokens)) == 600
    assert [f"<0x{b:02X}>" for b in range(256)] == tokens[3:259]
    assert {chr(c) for c in range(33, 127)} <= set(tokens)
    assert len(reader.fields["tokenizer.ggml.scores"].contents()) == 600


def test_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    one = make_model.write_model(tmp_path / "1.gguf", seed=3).read_bytes()
    assert one == make_model.write_model(tmp_path / "2.gguf", seed=3).read_bytes()
    assert one != make_model.write_model(tmp_path / "3.gguf", seed=4).read_bytes()


def test_k_bias_has_the_outliers_asked_for(tmp_path: Path) -> None:
    reader = GGUFReader(make_model.write_model(tmp_path / "m.gguf", arch="qwen2", k_bias=150.0))
    biases = {t.name: np.abs(t.data).max() for t in reader.tensors if t.name.endswith("attn_k.bias")}
    assert biases["blk.0.attn_k.bias"] == 150.0
    assert biases["blk.1.attn_k.bias"] < 5.0


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ({"arch": "mamba"}, "unknown architecture 'mamba'"),
        ({"n_head": 3, "n_head_kv": 2}, "3 query heads are no multiple of 2"),
        ({"head_dim": 63}, "odd"),
        ({"arch": "qwen2", "n_embd": 100}, "n_embd = n_head \\* head_dim"),
        ({"arch": "qwen3moe"}, "n_expert > 0"),
        ({"arch": "gemma3", "n_expert": 2}, "no expert layers"),
        ({"n_vocab": 100}, "below 354"),
    ],
)
def test_impossible_shapes_are_refused(tmp_path: Path, case: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_model.write_model(tmp_path / "m.gguf", **case)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", sorted(model_shapes.SHAPES))
def test_real_shapes(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {
        "n_embd": 128, "n_ff": 64, "n_ff_expert": 64, "n_vocab": 512, "n_expert": 4, "n_expert_used": 2, "n_layer": 7
    }  # fmt: skip
    shape = model_shapes.SHAPES[name]
    if shape.n_expert == 0:
        small |= {"n_expert": 0, "n_expert_used": 0}
    monkeypatch.setitem(model_shapes.SHAPES, name, model_shapes.replace(shape, **small))
    reader = GGUFReader(model_shapes.write_shape(tmp_path / "m.gguf", name, n_layer=6))
    tensors = {t.name: t for t in reader.tensors}
    assert tensors["blk.0.attn_k.weight"].tensor_type.name == "Q4_0"
    last = 5
    assert tensors[f"blk.{last}.attn_k.weight"].shape[1] == shape.n_head_kv * shape.head_dim
    if shape.swa_pattern:
        assert tensors["blk.0.attn_k.weight"].shape[1] == shape.swa_n_head_kv * shape.swa_head_dim
        assert "blk.5.attn_v.weight" not in tensors
    assert f"blk.{last + 1}.attn_k.weight" not in tensors


def test_q4_0_weights_have_unit_gain(tmp_path: Path) -> None:
    pool = model_shapes._Q4Pool(0)
    raw = np.frombuffer(b"".join(pool.chunks((1024, 512))()), np.uint8).reshape(512, 32, 18)
    scale = raw[:, :, :2].copy().view(np.float16).astype(np.float32)
    codes = np.concatenate([raw[:, :, 2:] & 15, raw[:, :, 2:] >> 4], axis=2).astype(np.float32) - 8
    weights = (scale * codes).reshape(512, 1024)
    x = np.random.default_rng(1).standard_normal(1024, dtype=np.float32)
    assert 0.9 < np.std(weights @ x) < 1.1


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "folder" / "m.gguf"
    assert make_model.main([str(path), "--head-dim", "128", "--n-layer", "1"]) == 0
    assert f"{path}: {path.stat().st_size:,} bytes" in capsys.readouterr().out
    assert make_model.main([str(path), "--shape", "nothing"]) == 1
    assert "qwen3moe-30b-a3b" in capsys.readouterr().err


def test_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gguf_writer._pad", lambda file: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        make_model.write_model(tmp_path / "m.gguf")
    assert list(tmp_path.iterdir()) == []
