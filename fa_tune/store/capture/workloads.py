"""The workloads of a captured program: what our kernels would be asked for, and what to tune."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.roofline import ROOFS
from fa_tune.core.workload import EXACT, FAST, DType, Workload
from fa_tune.operations import flops
from fa_tune.store.capture import masks
from fa_tune.store.capture.schema import Capture, Problem, Usage
from fa_tune.store.registry.buckets import representative

MOST_LISTED = 256  # sequences whose lengths are written out
_DTYPES = {dtype.element.torch_name: dtype for dtype in DType}


def workload_of(problem: Problem) -> Workload:
    """The workload that a call of ours would be.  Raises InvalidConfig, in a few words, for what
    our kernels are never asked for."""
    p = problem
    refused = {
        "dropout": p.dropout,
        f"{p.dtype} is neither fp16 nor bf16": p.dtype not in _DTYPES,
        "a mask tensor": p.mask == "tensor",
        "functions of flex_attention": p.mask == "blocks" or p.score_mod,
    }
    for reason, is_so in refused.items():
        if is_so:
            raise InvalidConfig(reason)
    causal = p.mask.startswith(masks.CAUSAL)
    aligned = causal or (p.window_left, p.window_right) != (None, None)
    return Workload(
        batch=p.batch,
        heads=p.heads,
        kv_heads=p.kv_heads,
        seq_len_q=p.seq_len_q,
        seq_len_kv=p.seq_len_kv,
        d_head=p.d_head,
        dtype=_DTYPES[p.dtype],
        causal=causal,
        bottom_right=aligned and p.kind == "dense" and p.mask != masks.CAUSAL,
        lse=p.lse,
        softmax_scale=p.scale,
        window_left=p.window_left,
        window_right=p.window_right,
        sink=p.sink,
        softcap=p.softcap,
        alibi=p.alibi,
        d_head_v=p.d_head_v,
        packed=p.kind == "packed",
        total_q=p.total_q,
        total_kv=p.total_kv,
        cache_lengths="equal" if p.kind == "cached" else "",
        page_size=p.page_size,
        kv_e4m3=p.kv_dtype == "float8_e4m3fn",
        accuracy=EXACT if p.exact else FAST,
        op=p.op,
    )


def tuned_for(usage: Usage) -> Workload:
    """The workload to tune: the mask is what it is in truth, and lengths are those that were seen.
    Raises InvalidConfig as `workload_of`."""
    fields: dict[str, Any] = {}
    p = usage.problem
    if p.mask == "tensor":
        truth = usage.mask
        if truth.startswith(masks.WINDOW) and not truth.endswith(masks.PADDING):
            fields = {"window_left": int(truth.removeprefix(masks.WINDOW))}
            truth = masks.CAUSAL_BR
        if truth not in (masks.FULL, masks.CAUSAL, masks.CAUSAL_BR):
            raise InvalidConfig(f"a mask tensor, in truth {truth or 'not looked at'}")
        fields["mask"] = truth
    workload = workload_of(replace(p, **fields))
    if p.batch > MOST_LISTED or not workload.uneven:
        return workload
    of_kv = _listed(usage.lengths_kv, p.batch)
    if workload.cached and of_kv:
        return replace(workload, cache_lengths="+".join(map(str, of_kv)))
    of_q = _listed(usage.lengths_q, p.batch)
    if not (of_q and of_kv):
        return workload
    text = "x".join("+".join(map(str, lengths)) for lengths in (of_q, of_kv))
    return replace(workload, lengths=text, total_q=sum(of_q), total_kv=sum(of_kv))


def _listed(quantiles: Sequence[int], count: int) -> list[int]:
    """So many lengths with these quantiles, the longest among them."""
    if len(quantiles) < 2 or count < 1:
        return [*quantiles] * count
    places = [i / max(1, count - 1) * (len(quantiles) - 1) for i in range(count)]
    below = [min(int(place), len(quantiles) - 2) for place in places]
    return [
        round(quantiles[i] + (place - i) * (quantiles[i + 1] - quantiles[i]))
        for i, place in zip(below, places, strict=True)
    ]


@dataclass
class Wanted:
    """A workload to tune for all of its bucket: the costliest; `time_s` of all, of which `floor_s`
    is the least that any kernel takes."""

    workload: Workload
    time_s: float = 0.0
    floor_s: float = 0.0
    others: list[Workload] = field(default_factory=list)

    @property
    def gain_s(self) -> float:
        """What tuning can gain at most."""
        return max(0.0, self.time_s - self.floor_s)


@dataclass(frozen=True)
class Wishes:
    """What of a program may be tuned, what gains most first; `tuned_s` is the time of what has an
    exact entry, `refused_s` that of what our kernels do not run, by the reason."""

    wanted: tuple[Wanted, ...]
    attention_s: float
    tuned_s: float
    refused_s: Mapping[str, float]

    def left_s(self, done: int) -> float:
        """What tuning those after the first `done` can gain at most."""
        return math.fsum(one.gain_s for one in self.wanted[done:])


def wishes_of(capture: Capture) -> Wishes:
    """Workloads of one bucket (`store.registry.buckets`), by which the operator chooses where
    nothing was tuned, are tuned as one."""
    found: dict[Workload, Wanted] = {}
    refused: dict[str, float] = {}
    tuned_s = 0.0
    for usage in capture.usages:
        if usage.served.entry == "exact":
            tuned_s += usage.time_s
            continue
        try:
            workload = tuned_for(usage)
        except InvalidConfig as error:
            refused[str(error)] = refused.get(str(error), 0.0) + usage.time_s
            continue
        one = found.setdefault(representative(workload), Wanted(workload))
        if workload != one.workload:
            one.others.append(workload)
        one.time_s += usage.time_s
        one.floor_s += usage.runs * least_s(workload, usage.problem.device)
    ordered = sorted(found.values(), key=lambda one: -one.gain_s)
    return Wishes(tuple(ordered), capture.attention_s, tuned_s, refused)


def least_s(workload: Workload, gpu: str) -> float:
    """What a call takes at the peak rates of a GPU; 0 for one whose rates are not known."""
    roof = ROOFS.get(gpu)
    if roof is None:
        return 0.0
    products = flops.matmul_flop(workload) / (roof.tflops * 1e12)
    return max(products, flops.moved_bytes(workload) / roof.bytes_per_s)
