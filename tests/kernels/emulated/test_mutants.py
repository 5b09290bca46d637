"""Kernels from which something is taken that they need: the emulator must notice."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from fa_tune.core.workload import Workload
from tests.kernels.emulated.emulation import Emulated, build_changed
from tests.kernels.emulated.judging import judge_on

SM90 = (
    "sm90(FP16, 64, 128x64): stages_2+q_stages_2+pingpong+overlap+cross_tile_overlap+stale_max"
    "+dynamic+longest_first+early_test_wait+single_loop"
)
SKIPS = (  # several blocks of a tile
    "sm90(BF16, 64, 128x32): stages_2+q_stages_2+pingpong+overlap+stale_max+dynamic"
    "+longest_first+single_loop"
)
ROWS = (
    "sm90(FP16, 64, 128x64): stages_2+q_stages_2+pingpong+overlap+cross_tile_overlap+stale_max"
    "+dynamic+longest_first+rows_in_turn"
)
APART = (
    "sm90(FP16, 128, 128x32): stages_2+overlap+cross_tile_overlap+stale_max+dynamic+longest_first"
)
ADAPTIVE = f"{ROWS}+adaptive_max"
ONE = "sm90(FP16, 64, 64x64): stages_3+q_stages_2+overlap+cross_tile_overlap+dynamic"
# CTAs of a cluster divide the keys of a tile; one of them has none of a tile of few.
SPLITS = "sm90(FP16, 64, 128x64): stages_2+overlap+stale_max+splits_3"
TURNS = (
    "(FP16, 64, 256, 64, 8): async+eager+swizzled+load_1_1_1_tiles+opt_softmax+stages_3+rescale_8"
    "+pingpong"
)
RING = "(FP16, 64, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax+stages_2"
# The rows of a tile in two warps, keys in two groups; then a tile in two parts.
SHARED = "decode(FP16, 64, 32, 32, 4): row_warps_2+stages_2"
PARTS = f"{SHARED}+min_blocks_24"
CLUSTER = f"{SHARED}+cluster_2"
# More parts than there are CTAs at a time.
WHOLE = SHARED + "+whole_rounds"
SPLIT = "decode(BF16, 64, 16, 32, 2): stages_2+ctas_4"
EARLY = f"{SHARED}+dependent"
TOGETHER = "decode(BF16, 64, 16, 32, 2): stages_2+ctas_8+combine_all"
QUERIES = f"{SHARED}+shared_queries"
SCHEDULES = 60


@dataclass(frozen=True)
class Mutant:
    """In one file a pattern is replaced at its `places`.  `tells`: what the finding says."""

    short_form: str
    file: str
    pattern: str
    replacement: str
    tells: str
    places: int = 1
    queries: int | None = None  # None: two blocks of rows
    keys: int = 512
    softmax_scale: float | None = None
    limit_s: float = 600.0


HANG = r"nobody can go on|more arrivals in a phase"
ENDLESS = r"not done in"
MEETS = "threads that disagree on how many meet"
WRONG = r"error (nan|[\d.e+-]+) exceeds|other bits|two launches differ|not 0"
MUTANTS = {
    "lanes part before a block that is skipped is given back": Mutant(
        SKIPS, "sm90/fwd/consumer.cuh", r"__syncwarp\(\);", "", HANG, places=3
    ),
    "V is not waited for": Mutant(
        SM90, "sm90/fwd/consumer.cuh", r"v\.wait\(\);", "", HANG + "|" + WRONG, places=5
    ),
    "the scores are not waited for": Mutant(
        SM90, "sm90/fwd/consumer.cuh", r"wgmma_wait_group<1>\(\);\s*keep_registers\(products\.s\)",
        "wgmma_wait_group<2>()", WRONG,
    ),
    "V is given back before it is read": Mutant(
        SM90, "sm90/fwd/consumer.cuh",
        r"(ptx::wgmma_wait_group<0>\(\);\s*keep_registers\(products\.o\);)\s*v\.release\(lane\);"
        r"(\s*stale_max_softmax)",
        r"v.release(lane); \1 \2", WRONG,
    ),
    "O is not made visible to the bulk copy": Mutant(
        SM90, "sm90/fwd/epilogue.cuh", r"ptx::fence_proxy_async_shared\(\);", "",
        WRONG + "|no proxy fence",
    ),
    "Q is given back before O has left from there": Mutant(
        SM90, "sm90/fwd/epilogue.cuh",
        r"ptx::cp_async_bulk_wait_group_read\(\);(\s*ptx::mbarrier_arrive)", r"\1", WRONG,
    ),
    "Q is given back before the last scores": Mutant(
        APART, "sm90/fwd/consumer.cuh",
        r"(k\.release\(lane\);\s*if \(kGivesQBack && block == )0", r"\g<1>1", WRONG,
    ),
    "a panel of O is written before the last one has left": Mutant(
        APART, "sm90/fwd/epilogue.cuh", r"wait\(\);(\s*if \(panel == 0\) tell_corrections)", r"\1",
        WRONG,
    ),
    "parts of O are read before they are there": Mutant(
        SPLITS, "sm90/fwd/cluster_output.cuh", r"meet_cluster\(\);(\s*const float sink)", r"\1",
        MEETS,
    ),
    "a CTA of a cluster ends before others have read its part": Mutant(
        SPLITS, "sm90/fwd/cluster_output.cuh", r"(\}\s*)meet_cluster\(\);(\s*\}\s*private)",
        r"\1\2", MEETS,
    ),
    "a block of keys is nobody's": Mutant(
        SPLITS, "sm90/fwd/scheduler.cuh", r"blocks \* \(rank \+ 1\) / CFG\.splits",
        "(blocks - 1) * (rank + 1) / CFG.splits", WRONG,
    ),
    "a row's parts weigh alike": Mutant(
        SPLITS, "sm90/fwd/cluster_output.cuh",
        r"part\[i\]\[1\] \* ptx::ex2_approx\(part\[i\]\[0\] - most\)", "1.f", WRONG,
    ),
    "the next tile is not waited for": Mutant(
        ONE, "sm90/fwd/scheduler.cuh",
        r"ptx::mbarrier_wait\(smem\.work_tile_full\(ring\.stage\), ring\.parity\);", "",
        HANG + "|" + WRONG, queries=12 * 64, keys=64,
    ),
    "V of a block that a warp does not see is given back twice": Mutant(
        TURNS, "sm80/fwd/ping_pong_mainloop.cuh",
        r"ptx::mbarrier_wait\(barriers\.v_full\(now\.stage\), now\.parity\);\s*"
        r"(release\(barriers\.v_empty\(now\.stage\)\);)",
        r"\1", HANG + "|" + WRONG,
    ),
    "O is not waited for before its buffer is written again": Mutant(
        TURNS, "sm80/fwd/ping_pong_mainloop.cuh",
        r"(void write_output\(const WorkItem& item\) \{\s*)if \(ptx::elect_sync\(\)\) "
        r"ptx::cp_async_bulk_wait_group_read\(\);", r"\1", WRONG,
    ),
    "the threads of a CTA do not meet": Mutant(
        RING, "sm80/fwd/cp_async_mainloop.cuh",
        r"(cp_async_wait_group<kPending>\(\);\s*)__syncthreads\(\);", r"\1", WRONG,
    ),
    # With more queries than keys, of which the first see none.
    "Q is not waited for where there is no block": Mutant(
        RING, "sm80/fwd/cp_async_mainloop.cuh",
        r"if constexpr \(kMasked && CFG\.async_copy\) ptx::cp_async_wait_group<0>\(\);", "",
        "nobody has waited for", queries=384, keys=64,
    ),
    "O is in no group of bulk copies": Mutant(
        SM90, "sm90/fwd/epilogue.cuh", r"ptx::cp_async_bulk_commit_group\(\);", "", "in no group"
    ),
    # Exponents of more digits than fp32 has.
    "P is taken again until it fits": Mutant(
        SM90, "sm90/fwd/consumer.cuh", r"if \(overflowed\) refresh_max\(sums\);",
        "while (overflowed) { refresh_max(sums); overflowed = softmax.overflowed(sums); }",
        ENDLESS, softmax_scale=1e8, limit_s=5.0,
    ),
    # Scores so far apart that maxima come before the exponentials.
    "O is not brought to maxima that came first": Mutant(
        SM90, "sm90/fwd/consumer.cuh", r"(if \(refreshed\) \{\s*)products\.scale_output\(a\);",
        r"\1", WRONG, softmax_scale=4.0,
    ),
    "O is not brought to maxima of rows in turn": Mutant(
        ROWS, "sm90/fwd/consumer.cuh", r"(if \(refreshed\) \{\s*)products\.scale_output\(a\);",
        r"\1", WRONG, softmax_scale=4.0,
    ),
    "the second row's maximum comes after the first row's alone": Mutant(
        ROWS, "sm90/fwd/softmax.cuh",
        r"(2 \* i \+ 1\]\);\s*\}\s*)raise_max<kBf16>\(highest, a, i, final\);(\s*\}"
        r"\s*// P and the sum of row i anew)",
        r"\1a[i] = 1.f;\2", WRONG, softmax_scale=4.0,
    ),
    # All of them, for growth that is steady enough is rare here.
    "the maximum of a sample is taken for that of a block": Mutant(
        ADAPTIVE, "sm90/fwd/softmax.cuh", r"(?s)again = again \|\| sums\.row\[0\][^;]*;(.*?return "
        r"CFG\.adaptive_max && )max_first >= 2 \* kSteady", r"\1max_first > 0", WRONG,
        softmax_scale=4.0,
    ),
    "the exponent of a maximum is not 0": Mutant(
        SM90, "sm90/fwd/softmax.cuh", r"return fabsf\(row_max\[i\]\) >= kLargeMax",
        "return false", WRONG, softmax_scale=1e8,
    ),
    "the exponent of a maximum is not 0, by mma.sync": Mutant(
        RING, "mma_sync/online_softmax.cuh", r"most >= kLargeMax", "false", WRONG,
        softmax_scale=1e8,
    ),
    "the exponent of a maximum is not 0, by mma.sync in turns": Mutant(
        TURNS, "mma_sync/stale_max_softmax.cuh", r"any \|= fabsf[^;]*;", "", WRONG,
        softmax_scale=1e8,
    ),
    "a copy is not waited for": Mutant(
        RING, "sm80/fwd/cp_async_mainloop.cuh", r"(cp_async_wait_group<)kPending>",
        r"\1kPending + 1>", WRONG,
    ),
    "a group's K is read before it is there": Mutant(
        SHARED, "decode/warp_group.cuh", r"(kCopies\*\(CFG\.stages - 1\)) - 1>", r"\1>", WRONG,
        queries=9,
    ),
    "a group's V is read before it is there": Mutant(
        SHARED, "decode/warp_group.cuh", r"(kCopies\*\(CFG\.stages - 1\))>", r"\1 + 1>", WRONG,
        queries=9,
    ),
    "a slice is filled anew while the other warp reads it": Mutant(
        SHARED, "decode/warp_group.cuh", r"sync\(\);(  // the block is here)", r"\1", WRONG,
        queries=9,
    ),
    "V is read before the other warp has its part of it": Mutant(
        SHARED, "decode/warp_group.cuh", r"sync\(\);(  // V is here)", r"\1", WRONG, queries=9,
    ),
    "groups are combined before all are done": Mutant(
        SHARED, "decode/kernel.cuh", r"(warps\.store_sums\(rows\.count\);\s*)__syncthreads\(\);",
        r"\1", WRONG, queries=9,
    ),
    "rings are filled before the sums in their place are read": Mutant(
        SHARED, "decode/kernel.cuh", r"__syncthreads\(\);(  // before the rings)", r"\1", WRONG,
        queries=25,
    ),
    "rings are filled for a whole tile before the sums of another are read": Mutant(
        WHOLE, "decode/kernel.cuh", r"if \(tile != blockIdx\.x\) __syncthreads\(\);", "", WRONG,
        queries=25,
    ),
    "the counter of parts is left as it is": Mutant(
        PARTS, "decode/combine.cuh", r"if \(last\) \*counter = 0;", "", "scratch memory", queries=9,
    ),
    "parts are counted before they are there": Mutant(
        SPLIT, "decode/combine.cuh", r"(p\.counters \+ tile\.first_cta;\s*)__syncthreads\(\);",
        r"\1", WRONG, queries=9,
    ),
    "only the last CTA hears which is last": Mutant(
        SPLIT, "decode/combine.cuh", r"(ptx::st_shared\(smem \+ L::kWord, last\);)",
        r"if (last) \1", WRONG, queries=9,
    ),
    "a CTA makes its share before all parts are there": Mutant(
        TOGETHER, "decode/together.cuh", r"if \(\(ptx::ld_acquire\(first\) & kParts\) == parts\)",
        "", WRONG + "|scratch memory", queries=2,
    ),
    "the share of a CTA that has gone is nobody's": Mutant(
        TOGETHER, "decode/combine.cuh", r"if \(gone\) gone = words\.take\(share\);",
        "gone = false;", WRONG + "|scratch memory", queries=2,
    ),
    "a share is taken twice": Mutant(
        TOGETHER, "decode/together.cuh", r"return all && take\(rank\);", "return all;",
        "scratch memory", queries=2,
    ),
    "the count of parts stays": Mutant(
        TOGETHER, "decode/together.cuh",
        r"if \(known / kKnows \+ number == sharers\) ptx::red_and\(first, kGone\);", "",
        "scratch memory", queries=2,
    ),
    "the word of a CTA that has gone stays": Mutant(
        TOGETHER, "decode/together.cuh", r"ptx::atom_and_acq_rel\(first \+ rank, ~kGone\)",
        "ptx::ld_acquire(first + rank)", "scratch memory", queries=2,
    ),
    "a part is counted before all of it is there": Mutant(
        TOGETHER, "decode/combine.cuh",
        r"__syncthreads\(\);(\s*if \(threadIdx\.x == 0\) \{\s*last = words)", r"\1",
        WRONG, queries=2,
    ),
    "queries are taken before all are there": Mutant(
        QUERIES, "decode/warp_group.cuh",
        r"(queries\.share\(smem \+ L::kQueries\);\s*)__syncthreads\(\);", r"\1", WRONG, queries=9,
    ),
    "groups of threads are added up before all are done": Mutant(
        TOGETHER, "decode/together.cuh", r"__syncthreads\(\);(\s*const int step)", r"\1", WRONG,
        queries=2,
    ),
    "a dependent launch reads K before it has waited": Mutant(
        EARLY, "decode/kernel.cuh", r"await_earlier<CFG>\(\);(\s*if \(CFG)", r"\1", WRONG,
        queries=9,
    ),
    "parts of a cluster are combined before all are there": Mutant(
        CLUSTER, "decode/kernel.cuh", r"ptx::mbarrier_wait\(arrived, 0\);", "__syncthreads();",
        WRONG + "|a CTA that returns", queries=9,
    ),
    "a CTA of a cluster is written to before it has begun": Mutant(
        CLUSTER, "decode/kernel.cuh", r"ptx::cluster_wait\(\);", "", "not initialised", queries=9,
    ),
    "fewer bytes are waited for than arrive": Mutant(
        CLUSTER, "decode/kernel.cuh", r"L::kPartBytes \+ L::kSumBytes", "L::kPartBytes",
        WRONG + "|a CTA that returns|" + HANG, queries=9,
    ),
    "a part is made before all groups are done": Mutant(
        CLUSTER, "decode/kernel.cuh", r"__syncthreads\(\);(\s*combine_cluster)", r"\1", WRONG,
        queries=9,
    ),
}  # fmt: skip


def _made(short_form: str, folder: Path, mutant: Mutant | None = None) -> Emulated:
    traits = "causal+ragged" if short_form.startswith("decode") else "causal"
    if mutant is None:
        return build_changed(short_form, traits, folder)
    change = (mutant.file, mutant.pattern, mutant.replacement)
    return build_changed(short_form, traits, folder, *change, places=mutant.places)


def _workload(kernel: Emulated, mutant: Mutant) -> Workload:
    """Several tiles for each CTA, and blocks that the first rows do not see."""
    config = kernel.config
    rows = mutant.queries or 2 * config.B_r
    shape = (1, 4, 2, rows, mutant.keys, config.d_head, config.dtype)
    scale = mutant.softmax_scale
    return Workload(*shape, causal=True, bottom_right=True, softmax_scale=scale)


@pytest.mark.parametrize(
    "short_form",
    [SM90, SKIPS, ROWS, ADAPTIVE, ONE, TURNS, RING, SHARED, PARTS, SPLIT, CLUSTER, EARLY, TOGETHER],
)
def test_kernels_that_lack_nothing_are_right(short_form: str, libraries: Path) -> None:
    kernel = _made(short_form, libraries)
    mutants = [m for m in MUTANTS.values() if m.short_form == short_form]
    workloads = list(dict.fromkeys(_workload(kernel, m) for m in mutants))
    assert workloads
    assert not judge_on(kernel, workloads, repeats=4).findings


@pytest.mark.parametrize("name", MUTANTS)
def test_what_is_missing_is_noticed(name: str, libraries: Path) -> None:
    mutant = MUTANTS[name]
    kernel = _made(mutant.short_form, libraries, mutant)
    workloads = [_workload(kernel, mutant)]
    verdict = judge_on(kernel, workloads, repeats=SCHEDULES, limit_s=mutant.limit_s)
    assert re.search(mutant.tells, " ".join(verdict.findings))


def test_a_finding_can_be_repeated(libraries: Path) -> None:
    mutant = MUTANTS["V is not waited for"]
    kernel = _made(mutant.short_form, libraries, mutant)
    workloads = [_workload(kernel, mutant)]
    first, second = (judge_on(kernel, workloads, repeats=SCHEDULES) for _ in range(2))
    assert first.findings
    assert first == second
