"""Random problems through Python and through C++: run with the stub in place of the driver.

Arguments: the core's library, how many problems, a seed.  Prints how many were launched and how
many refused by both, by family, as JSON; fails at the first difference.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from fa_tune import families
from fa_tune.build.native.core import Core, CoreKernel, KernelImage
from fa_tune.core.arch import limits
from fa_tune.core.errors import FaTuneError, InvalidConfig
from fa_tune.core.workload import DType, Workload
from fa_tune.families.base import Config, KernelFamily
from fa_tune.families.fields import is_kv_e4m3
from fa_tune.families.launch import CacheArgs, LaunchArgs, LaunchDevice, LaunchStep, TensorArg
from tests.csrc.stub import Launched, Stub, image

DEVICE = LaunchDevice(multiprocessors=114, l2_bytes=50 << 20)
ARCH = limits((9, 0))
SYMBOL = "kernel"
WORKSPACE = 0x7E0000000100
COUNTERS = 0x7F0000000100  # what Python is told; C++ has an address of its own
D_HEADS = range(32, 257, 32)
SCALES = ("k_scale", "v_scale")


@dataclass(frozen=True)
class Case:
    family: KernelFamily
    config: Config
    workload: Workload
    args: LaunchArgs


@cache
def usable(family_name: str, key: str, d_head: int, d_head_v: int, dtype: DType) -> list[Config]:
    family = families.get(family_name)
    found = family.configs(key, dtypes=[dtype], d_head=d_head, d_head_v=d_head_v)
    found.append(family.default_config(d_head, dtype, d_head_v=d_head_v))
    return [config for config in found if family.constraints(config, ARCH) is None]


def some_config(dice: random.Random) -> tuple[KernelFamily, Config]:
    """Any config that runs, of any family and d_head."""
    while True:
        family = dice.choice(families.all_families())
        d_head, dtype = dice.choice(D_HEADS), dice.choice(list(DType))
        d_head_v = dice.choice((0, 0, dice.choice(D_HEADS)))
        keys = ("all", "fast", "e4m3") if family.name == "decode" else ("all", "fast")
        if configs := usable(family.name, dice.choice(keys), d_head, d_head_v, dtype):
            config = dice.choice(configs)
            if family.name == "decode" and dice.random() < 0.3:
                config = replace(config, dependent=True)
            return family, config


def some_length(dice: random.Random, block: int) -> int:
    lengths = (1, dice.randint(1, 5000), block * dice.randint(1, 40), dice.randint(1, 1 << 20))
    return dice.choice(lengths)


def some_workload(dice: random.Random, family: KernelFamily, config: Config) -> Workload:
    rows, keys = families.blocks(config)
    kv_heads = dice.choice((1, 1, 2, 3, 8, dice.randint(1, 40)))
    heads = kv_heads * dice.choice((1, 1, 2, 4, 7, dice.randint(1, 20)))
    batch = dice.choice((1, 2, dice.randint(1, 300)))
    if dice.random() < 0.03:  # beyond what a grid takes
        heads = kv_heads = dice.choice((65535, 65536, 1 << 20))
        batch = dice.choice((1, 65536))
    causal, alibi = dice.random() < 0.6, dice.random() < 0.2
    lengths = some_length(dice, rows), some_length(dice, keys)
    left, right = (some_side(dice, sum(lengths)) for _ in range(2))
    if family.name == "decode":
        alibi = False
    totals = {}
    if dice.random() < 0.3 and family.name != "decode":
        totals = {"packed": True, "total_q": some_length(dice, rows)}
        totals["total_kv"] = some_length(dice, keys)
    return Workload(
        *(batch, heads, kv_heads, *lengths),
        config.d_head,
        config.dtype,
        causal=causal,
        bottom_right=(causal or alibi or (left, right) != (None, None)) and dice.random() < 0.5,
        lse=dice.random() < 0.4,
        softmax_scale=dice.choice((None, None, 1.0, dice.uniform(0.01, 3))),
        d_head_v=config.d_head_v,
        window_left=left,
        window_right=right,
        sink=dice.random() < 0.2,
        softcap=dice.choice((None, None, None, 50.0, 1e3)),
        alibi=alibi,
        kv_e4m3=is_kv_e4m3(config),
        **totals,
    )


def some_side(dice: random.Random, longest: int) -> int | None:
    return None if dice.random() < 0.6 else dice.choice((0, dice.randint(0, longest), 1 << 40))


def some_tensor(
    dice: random.Random, number: int, lengths: tuple[int, int, int], d_head: int
) -> TensorArg:
    """A view of (batch, rows, heads) in any order and with gaps; seldom one that nothing reads."""
    batch, rows, heads = lengths
    order = dice.choice(((0, 1, 2), (0, 2, 1), (1, 0, 2), (2, 0, 1)))
    step, strides = d_head + 8 * dice.choice((0, 0, 1, 5)), [0, 0, 0]
    for i in reversed(order):
        strides[i] = step
        step *= (batch, rows, heads)[i] + dice.choice((0, 0, 1))
    if dice.random() < 0.1:
        strides[dice.randrange(3)] = 0  # expanded
    address = (1 << 40) + (number << 34) + 16 * dice.randrange(1 << 20)
    if dice.random() < 0.02:
        strides[dice.randrange(3)] += dice.choice((1, 4))
    if dice.random() < 0.01:
        address += dice.choice((2, 8))
    # The stride of an extent of 1 may be anything.
    used = [s if n > 1 else dice.choice((0, 3, s)) for s, n in zip(strides, lengths, strict=True)]
    return TensorArg(address, (used[0], used[1], used[2]))


def some_cache(dice: random.Random, w: Workload) -> CacheArgs | None:
    """Lengths, pages and new keys, some of which are refused."""
    if dice.random() < 0.4:
        return None
    cache = CacheArgs(lengths=4 << 36 if dice.random() < 0.9 else 0, added=dice.randint(-1, 5))
    if dice.random() < 0.5:
        size = dice.choice((16, 48, 256, 256, 0, 20))
        cache = replace(cache, pages=5 << 36, page_size=size, page_stride=dice.randint(1, 9999))
    if dice.random() < 0.5:
        lengths = (w.batch, cache.added, w.kv_heads)
        new = [some_tensor(dice, 8 + i, lengths, d) for i, d in enumerate((w.d_head, w.d_v))]
        cache = replace(cache, new_k=new[0])
        if dice.random() < 0.95:
            cache = replace(cache, new_v=new[1])
    return cache


def some_args(dice: random.Random, family: KernelFamily, w: Workload) -> LaunchArgs:
    batch, rows_q, rows_kv = w.rows
    queries, keys = (batch, rows_q, w.heads), (batch, rows_kv, w.kv_heads)
    four = [
        some_tensor(dice, i, lengths, d_head)
        for i, (lengths, d_head) in enumerate(
            ((queries, w.d_head), (keys, w.d_head), (keys, w.d_v), (queries, w.d_v))
        )
    ]
    lse = (1 << 45) + dice.choice((0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8)) if w.lse else 0
    if dice.random() < 0.02:
        lse = 0
    span = w.seq_len_q + w.seq_len_kv
    diagonal = dice.choice((None, None, dice.randint(-span, span), 1 << 40, -(1 << 70)))
    scale = dice.choice((None, None, None, 0.5, 1e-31, 0.0, float("nan"), 1e30))
    args = LaunchArgs.forward(
        *four,
        TensorArg(lse),
        sink=TensorArg((1 << 46) + 4 if w.sink and dice.random() < 0.98 else 0),
        alibi_slopes=some_slopes(dice, w),
        diagonal=diagonal
        if (w.causal or w.window_left is not None) and (not w.packed or dice.random() < 0.1)
        else None,
        softmax_scale=scale if dice.random() < 0.3 else None,
        scratch=COUNTERS,
        workspace=WORKSPACE,
    )
    if family.name == "decode":
        if w.kv_e4m3 and dice.random() < 0.7:
            strides = dice.choice(((w.kv_heads, 1, 0), (0, 0, 0)))
            names = dice.choice((SCALES, SCALES[:1], SCALES[1:]))
            scales = {n: TensorArg((1 << 48) + 4 * i, strides) for i, n in enumerate(names)}
            args = replace(args, tensors={**args.tensors, **scales})
        return replace(args, cache=some_cache(dice, w))
    if not w.packed:
        return args
    given = {name: 4 * dice.randrange(1, 1 << 40) for name in ("cu_seqlens_q", "cu_seqlens_kv")}
    if dice.random() < 0.3:
        given |= {name: 4 * dice.randrange(1, 1 << 40) for name in ("used_q", "used_kv")}
    if dice.random() < 0.03:
        del given["cu_seqlens_kv"]
    more = {name: TensorArg(address) for name, address in given.items()}
    return replace(args, tensors={**args.tensors, **more})


def some_slopes(dice: random.Random, w: Workload) -> TensorArg:
    if not w.alibi or dice.random() < 0.02:
        return TensorArg(0)
    return TensorArg((1 << 47) + 4, (dice.choice((0, w.heads, w.heads + 3)), 0, 0))


def some_case(dice: random.Random) -> Case:
    family, config = some_config(dice)
    workload = some_workload(dice, family, config)
    return Case(family, config, workload, some_args(dice, family, workload))


def by_python(case: Case) -> Sequence[LaunchStep]:
    """The launches, none if they are refused."""
    try:
        args = case.args
        if not case.family.workspace_bytes(case.config, case.workload, DEVICE):
            args = replace(args, workspace=0)
        return case.family.launches(case.config, case.workload, args, DEVICE)
    except InvalidConfig:
        return ()


class ByCpp:
    def __init__(self, core: Core, stub: Stub) -> None:
        self._core, self._stub = core, stub
        self._kernels: dict[Any, CoreKernel] = {}

    def __call__(self, case: Case, sizes: list[list[int]]) -> list[Launched]:
        """The launches of kernels with parameters of these sizes, none if they are refused."""
        traits = case.family.traits(case.config, case.workload)
        key = (case.config, traits)
        if key not in self._kernels:
            call = case.family.plan(case.config, traits, case.family.compile_arch(ARCH))
            symbols = tuple(f"{SYMBOL}{i}" for i in range(len(sizes)))
            made = KernelImage(
                str(case.config), call, symbols, image(zip(symbols, sizes, strict=True))
            )
            self._kernels[key] = self._core.kernel(made)
        try:
            needed = self._kernels[key].workspace_bytes(case.workload)
            assert needed == case.family.workspace_bytes(case.config, case.workload, DEVICE), case
            args = case.args if needed else replace(case.args, workspace=0)
            self._kernels[key].launch(case.workload, args)
        except InvalidConfig:
            assert not self._stub.launched()
            return []
        return self._stub.launched()


def sizes_of(case: Case) -> list[list[int]]:
    """Of the kernels' parameters, which do not depend on the problem."""
    c = case.config
    kinds = {"d_head_v": c.d_head_v, "kv_e4m3": is_kv_e4m3(c)}
    plain = Workload(1, 1, 1, 1, 1, c.d_head, c.dtype, **kinds)
    args = LaunchArgs.forward(*(TensorArg(4096 * i, (8, 8, 8)) for i in range(1, 5)))
    steps = case.family.launches(case.config, plain, args, DEVICE)
    return [[array.nbytes for array in step.args] for step in steps]


def compare(case: Case, python: LaunchStep, cpp: Launched) -> bool:
    """Fails where they differ; whether the launch has counters."""
    told = f"{case}:\n{python}\n{cpp}"
    geometry = python.geometry
    assert cpp.grid == geometry.grid, told
    assert cpp.block == geometry.block, told
    assert cpp.cluster == geometry.cluster, told
    assert cpp.shared_bytes == geometry.dynamic_smem_bytes, told
    assert cpp.dependent == geometry.dependent, told
    *maps, params = python.args
    field = next(n for n in params.dtype.names if n.startswith("counters"))
    offset = sum(m.nbytes for m in maps) + params.dtype.fields[field][1]
    counters = int.from_bytes(cpp.params[offset : offset + 8], "little")
    params = params.copy()
    if case.family.scratch_bytes(case.config):
        assert counters > 0, told
        assert counters % 128 == 0, told
        params[field] = counters
    else:
        params[field] = 0
    assert cpp.params == b"".join(a.tobytes() for a in (*maps, params)), told
    return counters > 0


def main(library: str, count: str, seed: str) -> None:
    stub = Stub()
    stub.set_device("NVIDIA H100", 90, DEVICE.multiprocessors, DEVICE.l2_bytes)
    by_cpp = ByCpp(Core(Path(library)), stub)
    dice = random.Random(int(seed))
    seen: Counter[str] = Counter()
    for _ in range(int(count)):
        case = some_case(dice)
        python, cpp = by_python(case), by_cpp(case, sizes_of(case))
        assert len(python) == len(cpp), f"{case}: {python}, {cpp}"
        seen[f"{case.family.name} {'launched' if cpp else 'refused'}"] += 1
        seen[f"d_head {case.config.d_head}"] += 1
        seen["d_head_v"] += bool(case.config.d_head_v)
        seen["new keys"] += bool(cpp and case.args.cache and case.args.cache.new_k.address)
        seen["e4m3"] += bool(cpp and case.workload.kv_e4m3)
        if case.workload.packed:
            seen[f"packed {'launched' if cpp else 'refused'}"] += 1
        counters = [compare(case, *both) for both in zip(python, cpp, strict=True)]
        seen[f"{case.family.name} with counters"] += any(counters)
    print(json.dumps(seen))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except FaTuneError as error:
        sys.exit(f"{type(error).__name__}: {error}")
