"""K and V as a cache: as many keys of each sequence as the device says, in one piece or in pages.

What no sequence owns is NaN, which spoils every result that it comes into.
"""

from __future__ import annotations

import torch

from fa_tune.core.workload import Workload
from fa_tune.operations.forward.spec import cache_extents, pages_of


def of_sequences(
    k: torch.Tensor, v: torch.Tensor, workload: Workload, *, seed: int
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """The caches of K and V [batch, seq_len_kv, heads, d], and what the device knows of them:
    `cache_seqlens`, and with pages `page_table`.  Pages are in random order."""
    keys = [kv for _, kv in workload.members]
    for tensor in (k, v):
        for sequence, n in zip(tensor, keys, strict=True):
            sequence[n:] = torch.nan
    known = {"cache_seqlens": torch.tensor(keys, dtype=torch.int32, device=k.device)}
    if not workload.page_size:
        return k, v, known
    table = _table(workload, keys, seed=seed)
    known["page_table"] = table.to(k.device)
    return _in_pages(k, workload, table), _in_pages(v, workload, table), known


def sequence(
    tensor: torch.Tensor, table: torch.Tensor | None, number: int, keys: int
) -> torch.Tensor:
    """The first `keys` keys of one sequence of a cache, [1, keys, heads, d]."""
    if table is None:
        return tensor[number : number + 1, :keys]
    n_pages = -(-keys // tensor.shape[1])
    return tensor[table[number, :n_pages].long()].flatten(0, 1)[None, :keys]


def _table(workload: Workload, keys: list[int], *, seed: int) -> torch.Tensor:
    """The page of each part of each sequence, int32 on the host; beyond a sequence one of those
    that nobody owns."""
    n_pages, _ = cache_extents(workload)
    order = torch.randperm(n_pages, generator=torch.Generator().manual_seed(seed))
    free = iter(order.tolist())
    owned = [[next(free) for _ in range(pages_of(workload, n))] for n in keys]
    nobodys = next(free)
    columns = pages_of(workload, workload.seq_len_kv)
    rows = [row + [nobodys] * (columns - len(row)) for row in owned]
    return torch.tensor(rows, dtype=torch.int32)


def _in_pages(tensor: torch.Tensor, workload: Workload, table: torch.Tensor) -> torch.Tensor:
    """A tensor of sequences as pages."""
    n_pages, page_size = cache_extents(workload)
    pool = tensor.new_full((n_pages, page_size, *tensor.shape[2:]), torch.nan)
    for number, (_, n) in enumerate(workload.members):
        whole = n // page_size
        keys = tensor[number, : whole * page_size].unflatten(0, (-1, page_size))
        pool[table[number, :whole].long().to(pool.device)] = keys
        if rest := n % page_size:
            pool[table[number, whole], :rest] = tensor[number, n - rest : n]
    return pool
