"""Every allocation of a call fails once: an exception each time, the process lives, and a new context works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Probe = Callable[..., str]

# What is done before with all memory there, and what is done with an allocation that fails.
CALLS = {
    "a prompt": ("pass", "ctx.decode(ids)"),
    "a token": ("ctx.decode(ids)", "ctx.decode([9])"),
    "a context shift": ("ctx.decode(ids)", "ctx.seqs.discard_oldest(0, 4)"),
    "saving": ("ctx.decode(ids)", "state.get_bytes(ctx)"),
    "restoring": ("ctx.decode(ids); data = state.get_bytes(ctx)", "state.set_bytes(ctx, data)"),
    "loading": ("pass", "Model.open(path).close()"),
}
PROGRAM = """
import ctypes
fail = ctypes.CDLL(None)
fail.fail_alloc_host.restype = ctypes.c_long
fail.fail_alloc_arm.argtypes = [ctypes.c_long, ctypes.c_long]
ids = list(range(5, 105))

def once(n):
    'The call with its n-th allocation failing; how many it made, and the exception.'
    with model.context(256, kv="turbo3", n_threads=1, n_batch=64, k_center="off") as ctx:
        {before}
        error = None
        fail.fail_alloc_arm(n, 0)
        try:
            {call}
        except MemoryError as raised:
            error = raised
        made = fail.fail_alloc_host()
        fail.fail_alloc_arm(0, 0)
        try:  # goes on, or says that it was given up
            ctx.decode([7])
        except errors.DecodeError as raised:
            assert error is not None and "given up" in str(raised), (n, raised)
        return made, error

with Model.open(path) as model:
    once(0)
    made, error = once(0)
    assert error is None and made > 20, (made, error)
    tried = range(1, made + 1, max(1, made // 300))
    failed = sum(once(n)[1] is not None for n in tried)
    assert failed > 0.2 * len(tried), (failed, len(tried))
    assert once(0)[1] is None
print("lives")
"""


@pytest.mark.parametrize("name", CALLS)
def test_an_allocation_that_fails(
    probe: Probe, failing_malloc: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, call = CALLS[name]
    monkeypatch.setenv("LD_PRELOAD", str(failing_malloc))
    assert probe(PROGRAM.format(before=before, call=call)) == "lives"


@pytest.mark.parametrize("spare", [0, 4, 24])
def test_a_shift_that_finds_no_memory_is_made_up_for(probe: Probe, spare: int) -> None:
    # Turning keys needs more room than decoding: without it, what follows must not be computed from unturned keys. How
    # much memory there is decides which allocation fails.
    code = """
        import resource
        def run(limited):
            with model.context(32768, kv="turbo3", n_threads=1, n_batch=64, n_ubatch=64) as ctx:
                ctx.decode([4 + (7 * i * i) % 500 for i in range(200)])
                ctx.seqs.remove(0, 0, 100)
                if limited:
                    gc.collect()
                    now = int(open("/proc/self/statm").read().split()[0]) * 4096
                    resource.setrlimit(resource.RLIMIT_AS, (now + (SPARE << 20), resource.RLIM_INFINITY))
                    error = expect(errors.MemoryLimitError, ctx.seqs.shift, 0, 100, -1, -100)
                    assert "shift" in str(error) or "alloc" in str(error), error
                    expect(errors.MemoryLimitError, ctx.decode, [9])
                    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                else:
                    ctx.seqs.shift(0, 100, -1, -100)
                ctx.decode([9])
                return ctx.logits.copy()
        with Model.open(path) as model:
            assert np.array_equal(run(True), run(False))
        print("the same")
    """
    shape = {"n_embd": 512, "n_head": 8, "n_head_kv": 8, "head_dim": 64}
    assert probe(code.replace("SPARE", str(spare)), **shape) == "the same"
