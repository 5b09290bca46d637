"""A worker that runs kernels on packed batches with rows of NaN behind every sequence."""

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from fa_tune import families
from fa_tune.core.model import Variant
from fa_tune.core.workload import Workload
from fa_tune.gpu.launch import CompiledKernel
from fa_tune.operations.base import CheckCase
from fa_tune.operations.forward.torch_side import expected
from fa_tune.operations.forward.torch_side import inputs as make_inputs
from fa_tune.operations.torch_side import judge, outputs_of
from fa_tune.operations.traits import Traits
from tests.gpu import score_hooks  # noqa: F401  (registers the hooks)
from tests.gpu.items import enqueue, handler

UNUSED = 7  # rows behind each sequence
MEAN = 0.25  # off zero, so that a row that is lost or counted twice shows
MIXTURES = 6  # of each kernel: 360 and more of each family
MOST_PAIRS = 2**28  # of queries and keys in all heads, unless one head has more
LEFTS = (0, 3, 17, 64, 127, 200)  # windows that hide keys of every mixture
RIGHTS = (1, 5, 33)
SOFTCAPS = (5.0, 20.0, 50.0)


def check_all(kernel: CompiledKernel, item: Mapping[str, Any]) -> list[str]:
    """What is wrong with any of some random mixtures of lengths; items have traits."""
    dice = random.Random(str(item["subject"]))
    traits = Traits.parse(item["traits"])
    found = (mixture(dice, kernel, traits, number) for number in range(MIXTURES))
    return [text for number, w in enumerate(found) for text in faults(kernel, w, number)]


def mixture(dice: random.Random, kernel: CompiledKernel, traits: Traits, number: int) -> Workload:
    """A few sequences or hundreds, with as many keys or others, grouped heads or not."""
    config = families.config_of(Variant.from_key(kernel.subject))
    batch, longest = dice.choice(
        ((1, 3000), (3, 16384), (17, 1500), (40, 400), (150, 90), (270, 60))
    )
    kv_heads = dice.choice((1, 2, 4))
    sigma, keys = dice.choice((0.5, 1, 2)), dice.choice((longest, longest // 2 + 1))
    lengths = f"lognormal-{sigma}-{number}"
    if number % 4 == 0:
        edges = (0, 0, 1, 2, 63, 64, 65, 127, 128, 129, 500)
        sides = ([5, *(dice.choice(edges) for _ in range(12))] for _ in range(2))
        lengths = "x".join("+".join(map(str, side)) for side in sides)
    left = dice.choice(LEFTS) if traits.window else None
    right = dice.choice(RIGHTS) if traits.window and traits.causal and number % 2 else None
    w = Workload(
        *(batch, kv_heads * dice.choice((1, 3)), kv_heads, longest, keys),
        config.d_head,
        config.dtype,
        causal=traits.causal and right is None,
        lse=traits.lse,
        window_left=left,
        window_right=right,
        sink=traits.sink,
        softcap=dice.choice(SOFTCAPS) if traits.softcap else None,
        alibi=traits.alibi,
        score_hook=traits.hook or None,
        lengths=lengths,
    )
    pairs = sum(q * k for q, k in w.members)
    return w if pairs * w.heads <= MOST_PAIRS else replace(w, heads=1, kv_heads=1)


def faults(kernel: CompiledKernel, w: Workload, seed: int) -> list[str]:
    """What is wrong with a launch on the sequences of `w` with NaN between them."""
    inputs = make_inputs(w, seed=seed, mean=MEAN)
    lengths = torch.tensor(w.members, dtype=torch.int32, device="cuda")
    used_q, used_kv = lengths.T.contiguous()
    rows, keys = places(used_q), places(used_kv)
    total_q, total_kv = (int((n + UNUSED).sum()) for n in (used_q, used_kv))
    spread = replace(w, lengths="", total_q=total_q, total_kv=total_kv)
    outputs = outputs_of(spread, fill=float("nan"))
    tensors = {
        "q": among_nan(inputs["q"], rows, total_q),
        "k": among_nan(inputs["k"], keys, total_kv),
        "v": among_nan(inputs["v"], keys, total_kv),
        "cu_seqlens_q": beginnings(used_q),
        "cu_seqlens_kv": beginnings(used_kv),
        "used_q": used_q,
        "used_kv": used_kv,
        **{name: inputs[name] for name in ("sink", "alibi_slopes") if name in inputs},
    }
    enqueue(kernel, spread, {**tensors, **outputs})
    torch.cuda.synchronize()
    unused = torch.ones(total_q, dtype=torch.bool, device="cuda")
    unused[rows] = False
    found = {"o": outputs["o"][:, rows]}
    clean = outputs["o"][:, unused].isnan().all()
    if "lse" in outputs:
        found["lse"] = outputs["lse"][..., rows]
        clean &= outputs["lse"][..., unused].isnan().all()
    case = judge(CheckCase(w), expected(w, inputs), found)
    said = [] if case.ok else [f"{w.key}: error {case.max_abs_error} of {case.limit}"]
    return said + ([] if clean else [f"{w.key}: it wrote rows of no sequence"])


def places(used: torch.Tensor) -> torch.Tensor:
    """The rows of the sequences among the unused ones."""
    first = beginnings(used)[:-1].tolist()
    spans = zip(first, used.tolist(), strict=True)
    return torch.cat([torch.arange(a, a + n, device="cuda") for a, n in spans])


def beginnings(used: torch.Tensor) -> torch.Tensor:
    """Where each sequence begins, and the end."""
    ends = (used + UNUSED).cumsum(0, dtype=torch.int32)
    return torch.cat((torch.zeros(1, dtype=torch.int32, device="cuda"), ends))


def among_nan(tensor: torch.Tensor, rows: torch.Tensor, total: int) -> torch.Tensor:
    """The tensor's rows at these places, NaN elsewhere."""
    shape = (1, total, *tensor.shape[2:])
    whole = torch.full(shape, float("nan"), dtype=tensor.dtype, device="cuda")
    whole[:, rows] = tensor
    return whole


handle = handler(check_all)
