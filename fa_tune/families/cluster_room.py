"""How many clusters of CTAs run at a time, a CTA for a multiprocessor."""

from __future__ import annotations

# On 132 multiprocessors of an H200, whose CTAs must be neighbours
# (benchmarks/cluster_room_h200.tsv).
_MEASURED = {1: 132, 2: 66, 3: 36, 4: 30, 5: 22, 6: 16, 8: 15}
SIZES = tuple(_MEASURED)


def clusters_at_once(size: int, multiprocessors: int) -> int:
    """Clusters of up to 8 CTAs on a GPU with so many multiprocessors; at least 1."""
    measured = _MEASURED[min(n for n in SIZES if n >= size)]
    return max(1, measured * multiprocessors // _MEASURED[1])
