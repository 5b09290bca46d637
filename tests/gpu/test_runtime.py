"""A program's attention: right, by what the registry holds, and by the default without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("gpu")]

# Given: a folder for registry and cache.  torch stays out of the test's own process.
PROGRAM = """
import dataclasses, sys
from pathlib import Path

import torch

from fa_tune import families
from fa_tune.core.arch import limits
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import Provenance, Variant
from fa_tune.core.workload import DType
from fa_tune.store.registry import file as registry_file
from fa_tune.store.registry.schema import Entry, Gpu, Registry
from fa_tune.runtime import Attention, workload_of

folder = Path(sys.argv[1])


def expected(q, k, v, causal):
    k, v = (t.repeat_interleave(q.shape[2] // k.shape[2], 2).double() for t in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k) / q.shape[3] ** 0.5
    if causal:
        scores.masked_fill_(torch.ones(scores.shape[-2:], device="cuda").triu(1).bool(), -torch.inf)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v), scores.logsumexp(-1)


def check(run, q, k, v, causal=False):
    lse = torch.empty(q.shape[0], q.shape[2], q.shape[1], device="cuda")
    out = run(q, k, v, causal=causal, lse=lse)
    right, right_lse = expected(q, k, v, causal)
    assert (out - right).abs().max() < 4e-3
    assert (lse - right_lse).abs().max() < 1e-3
    plain = run(q, k, v, causal=causal)
    assert (plain - right).abs().max() < 4e-3


def draw(heads, seq_len, dtype=torch.float16):
    return torch.randn(2, seq_len, heads, 128, device="cuda", dtype=dtype)


torch.manual_seed(0)
q, k, v = draw(4, 320), draw(2, 320), draw(2, 320)
empty = Attention(folder / "none.json", cache_dir=folder)
check(empty, q, k, v)
check(empty, q, k, v, causal=True)
workload = workload_of(q, k, v)
found = empty.chosen(workload)
here = limits(torch.cuda.get_device_capability())
assert not found.from_registry
assert found.variant == families.variant(families.defaults(128, DType.FP16, here)[0])

family = families.get("sm80")
other = families.named_configs("tune", [family], dtypes=[DType.FP16], d_head=128)[3]
name = torch.cuda.get_device_name()
provenance = Provenance(
    name, "1", "13.0", "13.0", "events", "", (), "unlocked", "cold", "ab" * 32,
    recorded_at="2026-01-02T03:04:05+00:00", fa_tune_version="0",
)
entry = Entry(
    Gpu(name, torch.cuda.get_device_capability()), workload, "events", "normal", "measured", None,
    families.variant(other), "plain", "because", 1e-3, None, 1, 1.0, None, None, {}, (), (), None,
    None, {}, provenance,
)
registry_file.save(folder / "one.json", Registry.of([entry]))
tuned = Attention(folder / "one.json", cache_dir=folder)
check(tuned, q, k, v)
found = tuned.chosen(workload)
assert found.from_registry and found.variant == entry.chosen
assert "other kernel sources" in found.why
# The nearest entry serves another length; nothing there serves another dtype.
near = tuned.chosen(dataclasses.replace(workload, seq_len_q=500, seq_len_kv=500))
assert near.variant == entry.chosen and "nearest" in near.why
bf16 = [t.bfloat16() for t in (q, k, v)]
assert not tuned.chosen(workload_of(*bf16)).from_registry

for wrong in (
    lambda: tuned(q, k[:, :, :, :64], v[:, :, :, :64]),
    lambda: tuned(q.float(), k.float(), v.float()),
    lambda: tuned(q, k, v, out=torch.empty_like(k)),
    lambda: tuned(q.cpu(), k.cpu(), v.cpu()),
    lambda: tuned(q, k, v, lse=torch.empty(3, device="cuda")),
):
    try:
        wrong()
    except InvalidConfig:
        continue
    raise AssertionError("not refused")
print("right")
"""


def test_attention_by_the_registry_and_without(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "right"
