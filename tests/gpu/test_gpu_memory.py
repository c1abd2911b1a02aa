"""No memory on the device: a typed exception that says what was asked, the process lives, and with memory it works.

Once with the device really full (a driver allocation of everything that is left, in the same process or in another
one), once with each of the library's own device allocations failing, CUDA's error included.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Probe = Callable[..., str]
BIG = {"n_layer": 4, "n_embd": 1024, "n_ff": 4096, "head_dim": 128, "n_head": 8, "n_head_kv": 2}  # 130 MB
FILL = """
import ctypes

class Filled:
    'All memory of device 0 that can be had, taken and given back.'
    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
    def call(self, name, *arguments):
        status = getattr(self.cuda, name)(*arguments)
        assert status == 0, (name, status)
    def __enter__(self):
        self.held, size = [], 1 << 36
        while size >= 1 << 20:
            block = ctypes.c_uint64()
            if self.cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(size)) == 0:
                self.held.append(block)
            else:
                size //= 2
        return self
    def __exit__(self, *_):
        for block in self.held:
            self.call("cuMemFree_v2", block)
"""
WORK = """
ids = [4 + (11 * i * i + 5 * i) % 500 for i in range(512)]

def new_context(model, n_ctx=1024):
    return model.context(n_ctx, kv="turbo3", n_batch=512, n_ubatch=512, k_center="off", check_memory=False)

def outcome(ctx):
    'Logits of a long batch, and a short text, which CUDA graphs compute.'
    ctx.seqs.clear()
    ctx.decode(ids)
    logits = ctx.logits.copy()
    return logits, ctx.complete(ids[:20], max_tokens=24, temperature=0, ignore_eos=True)

def same(a, b):
    return np.array_equal(a[0], b[0]) and a[1] == b[1]
"""
ARM = """
import ctypes
fail = ctypes.CDLL(None)
fail.fail_alloc_device.restype = ctypes.c_long
fail.fail_alloc_arm.argtypes = [ctypes.c_long, ctypes.c_long]

def failing(n, call):
    'The call, with its device allocations failing from the n-th on; how many it made, and its exception.'
    fail.fail_alloc_arm(0, n)
    try:
        result, error = call(), None
    except errors.TurboError as raised:
        result, error = None, raised
    made = fail.fail_alloc_device()
    fail.fail_alloc_arm(0, 0)
    assert error is None or type(error) is errors.MemoryLimitError, repr(error)
    return made, result, error
"""


def test_a_full_device(probe: Probe) -> None:
    assert probe(FILL + WORK + """
with Model.open(path, n_gpu_layers="all") as model:
    with new_context(model) as ctx:
        expected = outcome(ctx)  # every kernel was launched once: loading them takes memory too
    ctx = new_context(model)
    with Filled():
        for _ in range(3):  # the first batch of a context needs scratch memory and a handle of cuBLAS
            error = expect(errors.MemoryLimitError, ctx.decode, ids)
            assert "512 tokens" in str(error) or "buffer" in str(error), error
            assert ctx.seqs.range() == (-1, -1)
        error = expect(errors.MemoryLimitError, new_context, model, 1 << 18)
        assert "alloc" in str(error), error
        error = expect(errors.MemoryLimitError, model.context, 1 << 18, kv="turbo3", k_center="off")
        assert error.asked > error.limit >= 0, error
        error = expect(errors.MemoryLimitError, Model.open, path, n_gpu_layers="all")
        assert "alloc" in str(error) or "memory" in str(error), error
        Model.open(path, n_gpu_layers=0).close()
    assert same(outcome(ctx), expected)
    ctx.close()
    with new_context(model, 1 << 18) as ctx, Model.open(path, n_gpu_layers="all") as other:
        assert same(outcome(ctx), expected)
        with new_context(other) as third:
            assert same(outcome(third), expected)
print("lives")
""", **BIG) == "lives"  # fmt: skip


def test_every_device_allocation_that_fails(
    probe: Probe, failing_malloc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", str(failing_malloc))
    found = probe(WORK + ARM + """
with Model.open(path, n_gpu_layers="all") as model:
    with new_context(model) as ctx:
        expected = outcome(ctx)
    counts = {}
    for name in ("batch", "text", "context", "model"):
        n = survived = 0
        while True:
            n += 1
            ctx = new_context(model)
            if name == "text":  # graphs are recorded, then a longer batch finds no memory
                ctx.complete(ids[:20], max_tokens=24, temperature=0, ignore_eos=True)
                ctx.seqs.clear()
            call = {
                "batch": lambda: ctx.decode(ids),
                "text": lambda: ctx.decode(ids),
                "context": lambda: new_context(model).close(),
                "model": lambda: Model.open(path, n_gpu_layers="all").close(),
            }[name]
            made, _, error = failing(n, call)
            assert same(outcome(ctx), expected), (name, n)
            ctx.close()
            if made < n:
                assert error is None, error
                break
            survived += error is not None
        counts[name] = survived
    assert all(counts[name] > 0 for name in ("batch", "context", "model")), counts
print(sum(counts.values()), "survived")
""", **BIG)  # fmt: skip
    assert int(found.split()[0]) >= 5 and found.endswith("survived")


def test_a_device_that_another_process_filled(probe: Probe) -> None:
    # Here CUDA cannot even begin in this process.
    filler = (
        FILL
        + """
import sys
with Filled():
    print("full", flush=True)
    sys.stdin.read()
"""
    )
    process = subprocess.Popen([sys.executable, "-c", filler], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "full\n"
        assert probe("""
            from pyllama_turbo.devices import devices
            assert {device.kind for device in devices()} >= {"cpu"}
            error = expect(errors.MemoryLimitError, Model.open, path, n_gpu_layers="all")
            assert "memory" in str(error), error
            expect(errors.MemoryLimitError, Model.open, path, n_gpu_layers="all")
            print("lives")
        """, **BIG) == "lives"  # fmt: skip
    finally:
        process.communicate()
    assert process.returncode == 0


def test_a_context_that_cannot_be_is_refused_with_the_arithmetic(probe: Probe) -> None:
    assert probe("""
        with Model.open(path, n_gpu_layers="all") as model:
            error = expect(errors.MemoryLimitError, model.context, 1 << 30, kv="f16")
            assert error.asked > error.limit > 0 and "GiB" in str(error), error
            error = expect(errors.MemoryLimitError, model.context, 1 << 30, kv="f16", check_memory=False)
            assert "alloc" in str(error), error
            with model.context(256, kv="turbo3") as ctx:
                ctx.decode([5, 6])
        print("lives")
    """, **BIG) == "lives"  # fmt: skip
