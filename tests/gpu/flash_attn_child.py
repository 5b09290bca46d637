"""FlashAttention 2's functions over the parameters of its own tests, beside fp64.

`python -m tests.gpu.flash_attn_child SHARD OF` runs every OF-th problem and prints JSON: how many,
the worst error in multiples of what is allowed, and those that are wrong.  An error may be twice
that of torch's operations in the same precision.
"""

import itertools
import json
import random
import sys
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from fa_tune.op import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from fa_tune.op.traits import Traits
from tests.gpu.op_checks import draw, reference, with_grads

LENGTHS = (
    *((113, 203), (128, 217), (113, 211), (108, 256), (256, 512), (512, 256)),
    *((1024, 1024), (1023, 1024), (1024, 1023), (2048, 2048)),
)
D_HEADS = (32, 40, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256)
MASKS = ("full", "causal", "local", "causal local")
SCORES = ("plain", "alibi", "softcap")
HEADS = 6
KV_HEADS = (6, 1, 3)
DROPOUT = 0.17
SOFTCAP = 15.0
TINY = 1e-5  # of an error, whatever torch's is


@dataclass(frozen=True)
class Case:
    """One problem.  `kind`: the function, dense, packed or cache."""

    kind: str
    lengths: tuple[int, int]
    d_head: int
    dtype: str
    mask: str
    scores: str = "plain"
    kv_heads: int = HEADS
    dropout: float = 0.0
    deterministic: bool = False
    seed: int = 0


def cases() -> list[Case]:
    """Every length with every d_head, the rest drawn; few kinds of kernels for each d_head."""
    dice, found = random.Random(15), list[Case]()
    for d_head in D_HEADS:
        dtype = dice.choice(("float16", "bfloat16"))
        scores = dice.choice(SCORES[1:])
        for i, lengths in enumerate(LENGTHS):
            kind = dice.choice(("dense", "packed"))
            given: dict[str, Any] = {"kind": kind, "lengths": lengths, "d_head": d_head}
            given |= {"dtype": dtype, "mask": dice.choice(MASKS)}
            given |= {"kv_heads": dice.choice(KV_HEADS), "deterministic": i % 4 == 0}
            given |= {"seed": len(found)}
            if i % 5 == 4:
                found.append(Case(**given, dropout=DROPOUT))
            elif i % 3 == 1:
                found.append(Case(**given, scores=scores))
            else:
                found.append(Case(**given))
        for lengths, mask in zip(((1, 339), (3, 1024), (64, 800)), MASKS, strict=False):
            found.append(Case("cache", lengths, d_head, dtype, mask, kv_heads=3, seed=len(found)))
    return found


def window_of(case: Case) -> tuple[int, int]:
    if "local" not in case.mask:
        return (-1, -1)
    dice = random.Random(case.seed)
    return dice.randrange(case.lengths[1]), dice.randrange(case.lengths[1])


def defined(case: Case, q: Any, k: Any, v: Any, slopes: torch.Tensor | None) -> torch.Tensor:
    """In the precision of the tensors, for one batch of sequences of equal lengths."""
    left, right = (None if n < 0 else n for n in window_of(case))
    causal, softcap = "causal" in case.mask, SOFTCAP if case.scores == "softcap" else None
    window = {"window_left": left, "window_right": None if causal else right}
    traits = Traits(causal, True, **window, softcap=softcap, alibi_slopes=slopes)
    return reference(q, k, v, traits)


@dataclass(frozen=True)
class Drawn:
    """Inputs of a problem, and how long each sequence is."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    seed: torch.Tensor
    slopes: torch.Tensor | None
    lengths: list[tuple[int, int]]


def drawn(case: Case) -> Drawn:
    torch.manual_seed(case.seed)
    dice, (n_q, n_kv) = random.Random(case.seed), case.lengths
    batch = 4 if n_q <= 512 else 2
    lengths = [(n_q, n_kv)] * batch
    if case.kind == "packed":
        lengths[1:] = [(dice.randint(1, n_q), dice.randint(1, n_kv)) for _ in lengths[1:]]
    shapes = [
        (sum(pair[i] for pair in lengths), heads) for i, heads in enumerate((HEADS, case.kv_heads))
    ]
    if case.kind == "dense":
        shapes = [(batch, n_q, HEADS), (batch, n_kv, case.kv_heads)]
    dtype = getattr(torch, case.dtype)
    q, k, v, seed = (draw(*shapes[i], case.d_head, dtype=dtype) for i in (0, 1, 1, 0))
    slopes = 0.3 * torch.rand(batch, HEADS, device="cuda") if case.scores == "alibi" else None
    return Drawn(q, k, v, seed, slopes, lengths)


def starts(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device="cuda")


def ours(case: Case, given: Drawn, q: Any, k: Any, v: Any) -> torch.Tensor:
    options: dict[str, Any] = {
        "causal": "causal" in case.mask,
        "window_size": window_of(case),
        "softcap": SOFTCAP if case.scores == "softcap" else 0.0,
        "alibi_slopes": given.slopes,
        "dropout_p": case.dropout,
        "deterministic": case.deterministic,
    }
    found: torch.Tensor
    if case.kind == "dense":
        found = flash_attn_func(q, k, v, **options)
    else:
        lengths_q, lengths_k = ([pair[i] for pair in given.lengths] for i in range(2))
        found = flash_attn_varlen_func(
            *(q, k, v, starts(lengths_q), starts(lengths_k), max(lengths_q), max(lengths_k)),
            **options,
        )
    return found


def by_definition(case: Case, given: Drawn, q: Any, k: Any, v: Any) -> torch.Tensor:
    if case.kind == "dense":
        return defined(case, q, k, v, given.slopes)
    outs, row, key = [], 0, 0
    for i, (n_q, n_kv) in enumerate(given.lengths):
        slopes = None if given.slopes is None else given.slopes[[i]]
        parts = (q[None, row : row + n_q], *(t[None, key : key + n_kv] for t in (k, v)))
        outs.append(defined(case, *parts, slopes)[0])
        row, key = row + n_q, key + n_kv
    return torch.cat(outs)


def judged(
    found: list[torch.Tensor], low: list[torch.Tensor], exact: list[torch.Tensor]
) -> dict[str, float]:
    """Errors in multiples of what is allowed."""
    ratios = {}
    assert len(found) == len(low) == len(exact)
    for name, a, b, c in zip(("out", "dq", "dk", "dv"), found, low, exact, strict=False):
        error, allowed = (a - c).abs().max().item(), 2 * (b - c).abs().max().item() + TINY
        ratios[name] = error / allowed if error == error else float("inf")
    return ratios


def check(case: Case) -> dict[str, float]:
    if case.kind == "cache":
        return check_cache(case)
    given = drawn(case)
    three = [given.q, given.k, given.v]

    def run(*t: Any) -> torch.Tensor:
        return ours(case, given, *t)

    def plain(*t: Any) -> torch.Tensor:
        return by_definition(case, given, *t)

    found = with_grads(run, three, given.seed)
    if case.dropout:
        return check_dropout(case, given, found)
    exact = with_grads(plain, [t.double() for t in three], given.seed)
    return judged(found, with_grads(plain, three, given.seed), exact)


def check_dropout(case: Case, given: Drawn, found: list[torch.Tensor]) -> dict[str, float]:
    """The result is linear in V, and of constant V the constant on average: both tell whether
    the backward pass drops what the forward pass dropped."""
    out, dq, _, dv = (t.double() for t in found)
    linear = (out * given.seed).sum(), (dv * given.v).sum()
    size = (out * given.seed).norm()
    with torch.no_grad():
        ones = ours(case, given, given.q, given.k, torch.ones_like(given.v)).double()
    seen = by_definition(case, given, given.q, given.k, torch.ones_like(given.v)).double()
    # Each row is 1 on average; few keys in a window make that noisy.
    rows = (seen[..., 0] > 0.5).sum()
    off = (ones - seen)[..., 0].sum().abs() / rows
    varied = float(dq.isfinite().all()) and (ones - seen).abs().max() > 1e-2
    return {
        "linear": float((linear[0] - linear[1]).abs() / (0.02 * size)),
        "mean": float(off / 0.05),
        "dropped": 0.0 if varied else float("inf"),
    }


def check_cache(case: Case) -> dict[str, float]:
    """A cache with new keys, its lengths a number, a tensor, and pages."""
    torch.manual_seed(case.seed)
    dice, (n_q, n_kv), dtype = random.Random(case.seed), case.lengths, getattr(torch, case.dtype)
    batch, page, ratios = 3, 256, dict[str, float]()
    q = draw(batch, n_q, HEADS, case.d_head, dtype=dtype)
    kv = partial(draw, dtype=dtype)
    options = {"causal": "causal" in case.mask, "window_size": window_of(case)}
    for way in ("number", "tensor", "pages"):
        room = -(-n_kv // page) * page
        keys, values = (kv(batch, room, case.kv_heads, case.d_head) for _ in range(2))
        new = [kv(batch, n_q, case.kv_heads, case.d_head) for _ in range(2)]
        before = [n_kv - n_q if way == "number" else dice.randint(0, n_kv - n_q) for _ in q]
        lengths: Any = torch.tensor(before, dtype=torch.int32, device="cuda")
        caches, table = [keys.clone(), values.clone()], None
        if way == "pages":
            order = torch.randperm(batch * room // page, device="cuda")
            pools = [torch.empty_like(c).view(-1, page, *c.shape[2:]) for c in caches]
            for pool, cache in zip(pools, caches, strict=True):
                pool[order] = cache.view(-1, page, *cache.shape[2:])
            caches, table = pools, order.view(batch, -1).int()
        found = flash_attn_with_kvcache(
            *(q, *caches, *new),
            cache_seqlens=before[0] if way == "number" else lengths,
            block_table=table,
            **options,
        )
        for i, n in enumerate(before):
            both = [
                torch.cat((old[i, :n], added[i]))[None]
                for old, added in zip((keys, values), new, strict=True)
            ]
            exact = defined(case, q[[i]].double(), *(t.double() for t in both), None)
            low = defined(case, q[[i]], *both, None)
            ratio = judged([found[[i]]], [low], [exact])["out"]
            ratios[way] = max(ratios.get(way, 0.0), ratio)
    return ratios


def results(shard: int, of: int) -> Iterator[tuple[Case, dict[str, float] | str]]:
    for case in cases()[shard::of]:
        try:
            yield case, check(case)
        except Exception:
            yield case, traceback.format_exc()[-1500:]


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    warnings.simplefilter("ignore")
    count, worst, wrong = 0, (0.0, ""), []
    for case, found in results(*map(int, sys.argv[1:3])):
        count += 1
        if isinstance(found, str):
            wrong.append({**asdict(case), "said": found})
            continue
        name, ratio = max(found.items(), key=lambda item: item[1])
        worst = max(worst, (ratio, f"{name} of {case}"))
        if ratio > 1:
            wrong.append({**asdict(case), "said": found})
    print(json.dumps({"count": count, "worst": worst, "wrong": wrong}))


if __name__ == "__main__":
    main()
