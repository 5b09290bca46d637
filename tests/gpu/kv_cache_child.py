"""Attention to caches on a GPU beside fp64: every check that is named, in one process; see
`op_checks.main`."""

import random
import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch

from fa_tune import families
from fa_tune.build.cache import ArtifactStore
from fa_tune.core.arch import limits
from fa_tune.core.workload import Workload
from fa_tune.op import flash_attn_with_kvcache, state
from fa_tune.op.kv_cache import E4M3, Cache, attend
from fa_tune.op.traits import Traits
from tests.gpu.cases import compiled, request
from tests.gpu.op_checks import draw, int32, main, reference
from tests.gpu.oracle import same_bits

PROBLEMS, FEW_PROBLEMS = 72, 24
KINDS = 24  # of kernels among them: each is compiled


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as whole numbers, which can be indexed whatever the type."""
    return tensor.view(torch.uint8 if tensor.dtype == E4M3 else torch.int16)


@dataclass
class Drawn:
    """A cache whose keys beyond `lengths`, and those that are new, are NaN."""

    q: torch.Tensor
    keys: torch.Tensor  # [batch, most, kv_heads, d]: what there is with the new ones
    values: torch.Tensor
    scales: tuple[torch.Tensor, torch.Tensor] | None
    lengths: torch.Tensor  # with the new ones
    added: int
    page: int  # 0: in one piece

    def cached(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """The caches and their block table; what nobody owns is NaN."""
        old = self.lengths - self.added
        places = torch.arange(self.keys.shape[1], device="cuda")
        hidden = (places >= old[:, None])[..., None, None]
        found = [
            tensor.float().masked_fill(hidden, torch.nan).to(tensor.dtype)
            for tensor in (self.keys, self.values)
        ]
        if not self.page:
            return found[0], found[1], None
        batch, most = self.keys.shape[:2]
        each = -(-most // self.page)
        table = torch.randperm(batch * each + 3, device="cuda")[: batch * each].view(batch, each)
        pools = []
        for tensor in found:
            shape = (batch * each + 3, self.page, *tensor.shape[2:])
            pool = torch.full(shape, torch.nan, device="cuda").to(tensor.dtype)
            whole = torch.full((batch, each * self.page, *shape[2:]), torch.nan, device="cuda")
            whole[:, :most] = tensor.float()
            raw(pool)[table.view(-1)] = raw(whole.to(tensor.dtype)).reshape(-1, *pool.shape[1:])
            pools.append(pool)
        return pools[0], pools[1], table.int()

    def freed(self, table: torch.Tensor | None, left: int | None) -> torch.Tensor | None:
        """The same table, where a server has freed the pages that a window hides from all."""
        if table is None or left is None:
            return table
        first_seen = (self.lengths - self.q.shape[1] - left).clamp(min=0)
        pages = torch.arange(table.shape[1], device="cuda")
        return torch.where(pages < first_seen[:, None] // self.page, -1, table).int()

    def new(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The new keys and values."""
        if not self.added:
            return None
        rows = torch.arange(len(self.q), device="cuda")[:, None]
        places = (self.lengths - self.added)[:, None] + torch.arange(self.added, device="cuda")
        k, v = (raw(t)[rows, places.long()].view(t.dtype) for t in (self.keys, self.values))
        return k, v


def _draw(dice: random.Random, number: int) -> Drawn:
    kind = random.Random(number % KINDS)
    dtype = kind.choice((torch.float16, torch.bfloat16))
    d_head, d_v = ((64, 64), (128, 128), (192, 128), (256, 256))[number % 4]
    batch, kv_heads, group = dice.randint(1, 6), dice.randint(1, 3), kind.choice((1, 5, 8))
    n_q, most = dice.randint(1, 5), dice.choice((16, 100, 1500, 9000))
    narrow = number % 3 == 2
    keys, values = (draw(batch, most, kv_heads, d, dtype=dtype) for d in (d_head, d_v))
    scales = None
    if narrow:
        scales = (torch.rand(batch, kv_heads).cuda() + 0.5, torch.rand(()).cuda() + 0.5)
        keys, values = keys.to(E4M3), values.to(E4M3)
    added = dice.randint(1, n_q) if number % 2 else 0
    some = [dice.choice((added, most, dice.randint(added, most))) for _ in range(batch)]
    lengths = torch.tensor(some, device="cuda")
    page = kind.choice((0, 16, 48, 256))
    q = draw(batch, n_q, kv_heads * group, d_head, dtype=dtype)
    return Drawn(q, keys, values, scales, lengths.int(), added, page)


def _expected(drawn: Drawn, batch: int, traits: Traits, dtype: torch.dtype) -> torch.Tensor:
    """Of one sequence, [n_q, heads, d_v], with weights and result in `dtype`."""
    keys, values = (t[batch, : drawn.lengths[batch]].double() for t in (drawn.keys, drawn.values))
    if drawn.scales is not None:
        shape = (len(drawn.q), keys.shape[1])
        keys, values = (
            t * s.double().expand(shape)[batch][:, None]
            for t, s in zip((keys, values), drawn.scales, strict=True)
        )
    aligned = traits._replace(bottom_right=True)
    three = (drawn.q[[batch]].double(), keys[None], values[None])
    return reference(*three, aligned, weights=dtype)[0].to(dtype).double()


def _check(out: torch.Tensor, drawn: Drawn, traits: Traits, said: Any) -> None:
    for b, found in enumerate(out):
        right = _expected(drawn, b, traits, torch.float64)
        same = _expected(drawn, b, traits, drawn.q.dtype)
        limit = 2 * (same - right).abs().max() + 4e-3 * right.abs().max() + 1e-4
        assert (found - right).abs().max() <= limit, (said, b)


def random_caches() -> None:
    """Windows, sinks, soft caps, e4m3, other heads of V, new keys; twice to the bit."""
    _random_caches(PROBLEMS)


def any_config() -> None:
    """The same by configs that are nobody's default: any shares, clusters, ways to combine."""
    operators, dice = state.operators(), random.Random(3)
    here = limits(torch.cuda.get_device_capability())
    kernels: dict[Workload, Any] = {}

    def kernel_with_cache(workload: Workload, device: int) -> Any:
        if workload not in kernels:
            variant = families.variant(_any_config(workload, dice))
            (built,) = compiled([request(variant, workload, here)], ArtifactStore())
            kernels[workload] = operators.load(built)
            kernels[workload].prepare(device)
        return kernels[workload]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operators, "kernel_with_cache", kernel_with_cache)
        _random_caches(FEW_PROBLEMS)
    assert len(kernels) > FEW_PROBLEMS // 2


def _any_config(workload: Workload, dice: random.Random) -> Any:
    """A config of the family for a workload, by the roll of dice."""
    family, device = families.get("decode"), limits(torch.cuda.get_device_capability())
    usual = family.default_for(workload, device)
    kind = {"dtypes": [workload.dtype], "d_head": workload.d_head, "d_head_v": workload.d_head_v}
    pool = family.configs("tune", **kind)
    while True:
        found = replace(dice.choice(pool), kv_type=usual.kv_type, d_head_v=usual.d_head_v)
        knobs = {
            "cluster": (1, 2, 4, 8),
            "dependent": (False, True),
            "min_blocks": (1, 2, 8),
            "tile_keys": (0, 32, 128),
        }
        for knob, values in knobs.items():
            other = replace(found, **{knob: dice.choice(values)})
            found = found if family.constraints(other, device) else other
        if family.constraints(found, device) is None and families.fits(found, workload):
            return found


def _random_caches(problems: int) -> None:
    dice = random.Random(11)
    for number in range(problems):
        drawn = _draw(dice, number)
        kind = random.Random(KINDS + number % KINDS)
        causal, windowed = kind.random() < 0.5, kind.random() < 0.5
        left = dice.choice((0, 7, 100, 1000)) if windowed else None
        right = kind.choice((None, 0, 2)) if windowed and not causal else None
        traits = Traits(
            causal=causal,
            window_left=left,
            window_right=right,
            sink=torch.randn(drawn.q.shape[2]).cuda() if kind.random() < 0.4 else None,
            softcap=kind.choice((None, None, 20.0)),
        )
        said = (number, drawn.q.shape, drawn.keys.shape, drawn.keys.dtype, drawn.page, causal)
        twice, new = [], drawn.new()
        for _ in range(2):
            k, v, table = drawn.cached()
            freed = drawn.freed(table, left)
            twice.append(
                attend(
                    drawn.q,
                    Cache(k, v, drawn.lengths - drawn.added, new, freed, drawn.scales),
                    traits,
                    return_lse=True,
                )
            )
            if table is not None:
                k, v = (raw(t)[table.long()].flatten(1, 2).view(t.dtype) for t in (k, v))
            for cache, whole in ((k, drawn.keys), (v, drawn.values)):
                for b, n in enumerate(drawn.lengths.tolist()):
                    assert torch.equal(cache[b, :n].float(), whole[b, :n].float()), said
        assert same_bits(*twice), said
        out, lse = twice[0]
        for b in range(len(drawn.q)):
            if drawn.lengths[b] == 0 and traits.sink is None:
                assert lse[b].isneginf().all(), said
        _check(out, drawn, traits, said)


def through_the_drop_in() -> None:
    """flash_attn_with_kvcache takes them without falling back."""
    for number in range(24):
        drawn = _draw(random.Random(number), number)
        k, v, table = drawn.cached()
        new = drawn.new()
        given: dict[str, Any] = {}
        if drawn.scales is not None:
            given = {"k_descale": drawn.scales[0], "v_descale": drawn.scales[1]}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            out = flash_attn_with_kvcache(
                *(drawn.q, k, v, *((None, None) if new is None else new)),
                cache_seqlens=drawn.lengths - drawn.added,
                block_table=drawn.freed(table, 100),
                causal=True,
                window_size=(100, -1),
                **given,
            )
        traits = Traits(causal=True, window_left=100)
        _check(out, drawn, traits, number)


def combined_beside_other_kernels() -> None:
    """The same to the bit while products on another stream hold multiprocessors: CTAs of a tile
    that combine together run at a time, or do not."""
    side = torch.cuda.Stream()
    factor = torch.randn(4096, 4096, device="cuda").half()
    for queries, kv_heads in ((1, 1), (4, 1), (4, 2)):
        q = draw(1, queries, 8 * kv_heads, 128, dtype=torch.bfloat16)
        k, v = (draw(1, 32768, kv_heads, 128, dtype=torch.bfloat16) for _ in range(2))
        lengths = int32(32768)
        call = partial(attend, q, Cache(k, v, lengths, None, None, None), Traits(), return_lse=True)
        alone, _ = call()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            for _ in range(40):
                factor @ factor
        found = [call()[0] for _ in range(200)]
        torch.cuda.synchronize()
        assert all(torch.equal(one, alone) for one in found), (queries, kv_heads)


if __name__ == "__main__":
    main(globals())
