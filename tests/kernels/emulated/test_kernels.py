"""Kernels of both families on the host: right, the same to the bit and done whatever the schedule.

A few of them; `python -m tests.kernels.emulated.campaign` has all code paths and many more
schedules.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fa_tune import families
from fa_tune.build.compile import BuildRequest
from tests.kernels.emulated.emulation import build
from tests.kernels.emulated.judging import judge

# Each with the traits that lead to most of its code.  Together: every scheduler, order and
# rescale policy of sm90, turns and not, products across tiles, masked blocks in both loops, several
# CTAs per multiprocessor, blocks that are skipped; of sm80 turns in every order, rings, one
# stage, loads through registers.
KERNELS = (
    ("sm90(BF16, 64, 128x64): stages_2+q_stages_2+pingpong+overlap+cross_tile_overlap+stale_max"
     "+dynamic+longest_first+early_test_wait+single_loop", "causal+ragged+lse"),
    ("sm90(FP16, 128, 128x128): stages_2+q_stages_2+pingpong+overlap+cross_tile_overlap+stale_max"
     "+dynamic+longest_first", "ragged+lse"),
    ("sm90(FP16, 64, 128x64): stages_2+q_stages_2+pingpong+overlap+cross_tile_overlap+stale_max"
     "+dynamic+longest_first+rows_in_turn", "causal+ragged+lse"),
    ("sm90(FP16, 64, 128x64): stages_2+q_stages_2+pingpong+overlap+cross_tile_overlap+stale_max"
     "+dynamic+longest_first+rows_in_turn+adaptive_max", "causal+ragged+lse"),
    ("sm90(BF16, 64, 192x48): stages_2+pingpong+overlap+stale_max+dynamic+longest_first"
     "+single_loop+adaptive_max", "causal+ragged"),
    ("sm90(FP16, 64, 128x64): stages_2+q_stages_2+pingpong+overlap+cross_tile_overlap+exact_max"
     "+dynamic+longest_first+rows_in_turn", "causal+ragged+lse"),
    ("sm90(BF16, 64, 192x64): stages_2+pingpong+overlap+exact_max+dynamic+single_loop",
     "causal+ragged"),
    ("sm90(BF16, 64, 64x48): stages_2+exact_max", "ragged+lse"),
    ("sm90(FP16, 64, 128x64): stages_2+q_stages_2+pingpong+overlap+cross_tile_overlap+watched_max"
     "+dynamic+longest_first+rows_in_turn+adaptive_max", "causal+ragged+lse"),
    ("sm90(BF16, 64, 192x64): stages_2+pingpong+overlap+watched_max+dynamic+single_loop",
     "causal+ragged"),
    ("sm90(BF16, 64, 192x64): stages_3+q_stages_2+pingpong+overlap+cross_tile_overlap+dynamic"
     "+longest_first+early_test_wait", "ragged"),
    ("sm90(FP16, 64, 128x32): stages_3+overlap+thresholded_rescale+static", "causal+lse"),
    ("sm90(BF16, 64, 64x48): stages_2+overlap+stale_max+min_ctas_per_sm_2", "causal+ragged"),
    ("sm90(FP16, 256, 64x32): stages_1+dynamic", "causal+ragged+lse"),
    ("(FP16, 64, 128, 64, 8): async+eager+swizzled+load_1_1_1_tiles+opt_softmax+stages_3+rescale_8"
     "+pingpong", "causal+ragged+lse"),
    ("(BF16, 64, 128, 32, 8): async+eager+swizzled+load_1_1_1_tiles+opt_softmax+stages_2+rescale_8"
     "+pingpong+shared_maxima", "causal+ragged"),
    ("(FP16, 32, 192, 64, 12): async+eager+swizzled+load_0_1_1_tiles+opt_softmax+stages_2+rescale_8"
     "+pingpong+short_runs", "causal+lse"),
    ("(BF16, 64, 128, 16, 8): async+eager+swizzled+load_1_1_1_tiles+stages_3+pingpong+far_ahead",
     "ragged"),
    ("(BF16, 96, 64, 32, 4): async+eager+swizzled+load_0_2_2_tiles+buffer+opt_softmax+stages_2"
     "+rescale_8+interleave", "causal+ragged"),
    ("(FP16, 64, 64, 64, 4): async+swizzled+load_2_2_2_tiles", "ragged+lse"),
    # One tile of Q, which the next one follows before O is there; O leaves panel by panel.
    ("sm90(BF16, 80, 128x32): stages_2+pingpong+overlap+cross_tile_overlap+stale_max+dynamic"
     "+longest_first+d_head_v_128", "causal+ragged+lse"),
    ("sm90(FP16, 128, 192x32): stages_1+overlap+cross_tile_overlap+thresholded_rescale+static",
     "ragged+lse+window"),
    # V with fewer columns than Q and K, and with more: O's rows are shorter or longer than Q's.
    ("sm90(FP16, 192, 128x32): stages_2+pingpong+overlap+stale_max+dynamic+longest_first"
     "+d_head_v_128", "causal+ragged+lse"),
    ("sm90(BF16, 80, 64x48): stages_2+q_stages_2+overlap+cross_tile_overlap+dynamic+d_head_v_144",
     "causal+ragged"),
    ("sm90(FP16, 64, 64x32): stages_1+d_head_v_16", "ragged+lse"),
    ("(BF16, 192, 128, 32, 8): async+eager+swizzled+load_1_1_1_tiles+opt_softmax+stages_2+rescale_8"
     "+pingpong+d_head_v_128", "causal+ragged+lse"),
    ("(FP16, 96, 64, 32, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax+stages_2+rescale_8"
     "+interleave+d_head_v_64", "causal+ragged+lse"),
    ("(BF16, 96, 64, 32, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax+d_head_v_128",
     "causal+ragged"),
    ("(FP16, 32, 64, 64, 4): load_2_2_2_tiles+d_head_v_128", "ragged"),
    ("(BF16, 32, 32, 64, 2): load_0_0_0_tiles+opt_softmax", "causal+lse"),
    # Rows that are no whole k-steps, or no whole groups of chunks.
    ("sm90(BF16, 72, 128x64): stages_2+q_stages_2+pingpong+overlap+cross_tile_overlap+stale_max"
     "+dynamic+longest_first+early_test_wait", "causal+ragged+lse"),
    ("sm90(FP16, 104, 64x48): stages_2+overlap+stale_max+d_head_v_24", "ragged+lse"),
    ("sm90(FP16, 32, 192x64): stages_2+q_stages_2+pingpong+overlap+cross_tile_overlap+stale_max"
     "+dynamic+longest_first+adaptive_max", "causal+ragged+lse"),
    ("sm90(BF16, 40, 128x64): stages_2+q_stages_2+pingpong+overlap+cross_tile_overlap+stale_max"
     "+dynamic+longest_first", "ragged+lse"),
    ("sm90(FP16, 56, 64x48): stages_1+overlap+stale_max+d_head_v_72", "causal+ragged"),
    ("(BF16, 80, 64, 32, 4): async+eager+swizzled+load_1_1_2_tiles+opt_softmax+rescale_8"
     "+interleave", "causal+ragged+lse"),
    ("(FP16, 112, 64, 64, 4): load_1_1_1_tiles+d_head_v_48", "ragged"),
    ("(FP16, 80, 128, 32, 8): async+eager+swizzled+load_1_1_1_tiles+opt_softmax+stages_2+rescale_8"
     "+pingpong+d_head_v_112", "causal+ragged+lse"),
    # CTAs of a cluster divide the keys, of which some have none.
    ("sm90(BF16, 64, 128x64): stages_2+pingpong+overlap+stale_max+adaptive_max+splits_2",
     "causal+ragged+lse"),
    ("sm90(FP16, 72, 64x48): stages_2+overlap+stale_max+splits_4", "ragged+lse+sink"),
    ("sm90(BF16, 64, 192x64): stages_3+pingpong+overlap+exact_max+single_loop+splits_3",
     "causal+ragged+window+lse"),
    ("sm90(FP16, 128, 64x32): stages_4+splits_8", "causal+ragged+lse+softcap"),
    ("sm90(FP16, 64, 128x32): stages_6+overlap+thresholded_rescale+d_head_v_128+splits_2",
     "plain"),
)  # fmt: skip


@pytest.mark.parametrize(("short_form", "traits"), KERNELS)
def test_no_schedule_changes_a_result(short_form: str, traits: str, libraries: Path) -> None:
    family = families.get("sm90" if short_form.startswith("sm90") else "sm80")
    variant = families.variant(family.parse(short_form))
    kernel = build(BuildRequest(variant, traits, "sm_90a"), libraries)
    verdict = judge(kernel, repeats=4)
    assert not verdict.findings
    assert verdict.launches >= 12
