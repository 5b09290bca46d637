"""A worker that calls `fa_tune.runtime` as programs do: odd shapes and strides, masks, fewer kv
heads, log-sum-exp, the default kernel of each head dimension and type; and what it must refuse."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType, Workload
from fa_tune.gpu.guard import guarded, use_device
from fa_tune.runtime.dispatch import Attention
from fa_tune.workers.main import Report
from tests.gpu.oracle import inputs_for, room
from tests.gpu.runtime_problems import problems
from tests.gpu.wide import why


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """Items: d_head, dtype.  Value: what is wrong."""
    use_device(int(shared["device"]))
    folder = Path(shared["folder"])
    run = Attention(folder / "none.json", cache_dir=Path(shared["cache_dir"]))
    for name, item in items.items():
        report.begin(name)
        found = guarded(report, name, partial(check_all, run, int(item["d_head"]), item["dtype"]))
        if found is not None:
            report.done(name, found if isinstance(found, list) else [])


def check_all(run: Attention, d_head: int, dtype: str) -> list[str]:
    """What is wrong with any call."""
    kind = DType.from_string(dtype)
    wrong = [
        text
        for seed, (w, layout) in enumerate(problems(d_head, kind))
        for text in check(run, w, layout, seed)
    ]
    return wrong + refusals(run, d_head, kind)


def check(run: Attention, w: Workload, layout: str, seed: int) -> list[str]:
    """Twice, with `out` given and without: the same bits, and right."""
    given = inputs_for(w, layout, seed, "cuda")
    lse = torch.full((w.batch, w.heads, w.seq_len_q), math.nan, device="cuda") if w.lse else None
    place = room(tuple(given["q"].shape), "strided", given["q"].dtype, "cuda")
    call = partial(
        *(run, given["q"], given["k"], given["v"]),
        lse=lse,
        causal=w.causal,
        bottom_right=w.bottom_right,
        softmax_scale=w.softmax_scale,
    )
    out = call(out=place.inside)
    again = call()
    torch.cuda.synchronize()
    wrong = [] if torch.equal(out, again) else [f"{layout} {w.key}: two calls differ"]
    if not place.is_clean_outside():
        wrong.append(f"{layout} {w.key}: it wrote beside out")
    return wrong + why(layout, w, given, out, lse)


def refusals(run: Attention, d_head: int, dtype: DType) -> list[str]:
    """Calls that must be refused before the launch; a right one comes after them."""
    w = Workload(1, 2, 2, 64, 64, d_head, dtype)
    given = inputs_for(w, "plain", 1, "cuda")
    q, k, v = given["q"], given["k"], given["v"]
    whole = torch.zeros(q.numel() + 8, dtype=q.dtype, device="cuda")
    moved = whole[4 : 4 + q.numel()].view(q.shape)  # 8 bytes off
    turned = q.transpose(1, 3).contiguous().transpose(1, 3)
    calls: dict[str, Callable[[], torch.Tensor]] = {
        "Q 8 bytes off": lambda: run(moved, k, v),
        "K 8 bytes off": lambda: run(q, moved, v),
        "V 8 bytes off": lambda: run(q, k, moved),
        "out 8 bytes off": lambda: run(q, k, v, out=moved),
        "d_head not contiguous": lambda: run(turned, k, v),
        "scale 0": lambda: run(q, k, v, softmax_scale=0.0),
        "scale NaN": lambda: run(q, k, v, softmax_scale=math.nan),
        "scale beyond fp32": lambda: run(q, k, v, softmax_scale=1e31),
        "heads that kv heads do not divide": lambda: run(q, k[:, :, :1].repeat(1, 1, 3, 1), v),
        "fp32": lambda: run(q.float(), k.float(), v.float()),
    }
    wrong = []
    for name, call in calls.items():
        try:
            call()
        except InvalidConfig as error:
            if "\n" in str(error):
                wrong.append(f"{w.key}: {name}: not one line")
        else:
            wrong.append(f"{w.key}: {name}: not refused")
    return wrong + check(run, w, "plain", 2)
