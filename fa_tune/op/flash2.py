"""What torch's FlashAttention 2 takes, and which windows it reads as they are meant.

It takes a side of seq_len_kv keys or more for none, and beside a left side a right one that is none
for seq_len_kv keys.  Both are the same as none unless there are more queries than keys: the first
query then stands seq_len_q - seq_len_kv places before the first key.
"""

from __future__ import annotations

MOST_SEQUENCES = 2**16 - 1  # of a grid
MOST_D_HEAD = 256


def reads(left: int | None, right: int | None, seq_len_q: int, seq_len_kv: int) -> bool:
    """Whether it hides what a window hides that is aligned bottom-right; of a packed batch the
    longest lengths, and whether it does in each sequence.  None: all on that side."""
    if right is not None and right < seq_len_kv:
        return True
    if left is None or left >= seq_len_kv:
        return right is None or right >= seq_len_q - 1
    return seq_len_q <= seq_len_kv + 1
