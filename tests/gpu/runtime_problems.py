"""What programs may ask of attention: odd shapes, strides, masks, fewer kv heads, scales."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from fa_tune.core.workload import DType, Workload

# (batch, heads, kv_heads, seq_len_q, seq_len_kv)
SHAPES = (
    (2, 4, 2, 320, 320),
    (1, 6, 1, 113, 203),
    (3, 3, 3, 1, 1),
    (1, 20, 4, 257, 1023),
    (1, 4, 4, 1023, 257),
    (2, 4, 4, 512, 512),
    (5, 2, 1, 1, 3001),
    (1, 1, 1, 4097, 65),
)
LAYOUTS = ("plain", "strided", "transposed", "expanded")  # packed where lengths are equal
MASKS = ((False, False), (True, False), (True, True))  # causal, bottom_right
SCALES = (None, 0.3, None, 1e-6, None, 1e4, None)


def problems(d_head: int, dtype: DType) -> Iterator[tuple[Workload, str]]:
    """Workloads, and how their tensors lie."""
    layouts, scales = itertools.cycle(LAYOUTS), itertools.cycle(SCALES)
    for number, (shape, (causal, bottom_right)) in enumerate(itertools.product(SHAPES, MASKS)):
        w = Workload(
            *(*shape, d_head, dtype),
            causal=causal,
            bottom_right=bottom_right,
            lse=number % 2 == 0,
            softmax_scale=next(scales),
        )
        layout = next(layouts)
        packed = w.seq_len_q == w.seq_len_kv and not causal
        yield w, "packed" if packed else layout
