"""Backward kernels from which something is taken that they need: the emulator must notice.

All of a kernel's mutants are one library, which is told of what it is lacking.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from fa_tune.core.workload import DType, Workload
from fa_tune.families.sm80_bwd.config import Sm80BackwardConfig
from tests.kernels.emulated.backward import judge
from tests.kernels.emulated.backward_kernels import Kernel
from tests.kernels.emulated.backward_problems import BackwardProblem, make_problem, with_gradient
from tests.kernels.emulated.backward_sm80 import Sm80Kernel
from tests.kernels.emulated.emulation import replaced
from tests.kernels.emulated.packed_problems import PackedProblem

# Several tiles a CTA.  Neither turns nor a short ring keep ONE from going ahead; TURNS leaves out
# steps.
ONE = Kernel(DType.FP16, 64, q_stages=3, dynamic=True, turns=False, traits="causal+ragged")
TURNS = Kernel(DType.FP16, 128, dynamic=True, traits="causal+ragged")
TWO = Kernel(DType.BF16, 64, two_pass=True, dynamic=True, traits="causal+ragged")
PACKED = Kernel(DType.FP16, 64, two_pass=True, dynamic=True, traits="causal+ragged+packed")
# Halves of a tile; without turns, so that warpgroups wait for what they hand over alone.
WIDE = Kernel(DType.FP16, 192, 3, False, True, dq_keys=64, d_head_v=128, traits="causal+ragged")
# Warps share rows, and with two stages of Q; each has rows of its own, and one stage.
SHARED = Sm80Kernel(Sm80BackwardConfig(DType.FP16, 64, 64, 64, 4, 2, 2), "causal+ragged")
OWN = Sm80Kernel(Sm80BackwardConfig(DType.BF16, 64, 64, 64, 4), "causal+ragged")
PASS = "sm80/bwd/pass.cuh"
SCORES = Kernel(DType.FP16, 128, q_stages=3, traits="causal+ragged+lse+softcap+alibi")
# With two stages of Q no block of dO is loaded before Q of two steps before it is done with.
SAME = Kernel(DType.BF16, 128, 3, turns=False, dynamic=True, same_step=True, traits="causal+ragged")
# Four CTAs divide the steps of a tile.
CLUSTER = Kernel(DType.FP16, 64, 3, turns=False, cluster=4, traits="causal+ragged")
WIDE_CLUSTERS = dataclasses.replace(WIDE, d_head_v=0, cluster=3, dq_cluster=2, B_c=64)
KEY_ROWS = "sm90/bwd/key_rows.cuh"
CONSUMER, PRODUCER = "sm90/bwd/consumer.cuh", "sm90/bwd/producer.cuh"
DQ_CONSUMER, DQ_PRODUCER = "sm90/bwd/dq_consumer.cuh", "sm90/bwd/dq_producer.cuh"
WIDE_CONSUMER, WIDE_PRODUCER = "sm90/bwd/wide_consumer.cuh", "sm90/bwd/wide_producer.cuh"


@dataclass(frozen=True)
class Mutant:
    """In one file a pattern is replaced at its `places`.  In what replaces it, HAS is before what
    the mutant lacks, LACKS before what it alone has, and NUMBER is its own; `tells`: what the
    finding says."""

    kernel: Kernel | Sm80Kernel
    file: str
    pattern: str
    replacement: str
    tells: str
    places: int = 1

    def applied(self, headers: Mapping[str, str]) -> dict[str, str]:
        """The sources with it."""
        number = list(MUTANTS.values()).index(self) + 1
        by = self.replacement.replace("HAS", f"if (lacking != {number})")
        by = by.replace("LACKS", f"if (lacking == {number})").replace("NUMBER", str(number))
        return replaced(dict(headers), self.file, self.pattern, by, self.places)


HANG = r"nobody can go on|more arrivals in a phase"
WRONG = r"error (nan|[\d.e+-]+) exceeds|other bits|not 0"
EITHER = f"{HANG}|{WRONG}"
MUTANTS = {
    "dS is not made visible to dQ's product": Mutant(
        ONE, CONSUMER, r"(ptx::fence_proxy_async_shared\(\);\s*arrive\(smem\.ds_full)", r"HAS \1",
        WRONG,
    ),
    "dS of the other warpgroup is not waited for": Mutant(
        ONE, CONSUMER, r"(constexpr \(kMakesDq\)) (ptx::mbarrier_wait\(smem\.ds_full)",
        r"\1 HAS \2", EITHER,
    ),
    "dS is written where dQ's product still reads": Mutant(
        ONE, CONSUMER, r"(ptx::mbarrier_wait\(smem\.ds_empty\(stage\))", r"HAS \1", EITHER,
        places=2,
    ),
    "dQ is not waited for": Mutant(
        ONE, CONSUMER, r"(ptx::wgmma_wait_group<1 \+ !kLast>\(\);)", r"HAS \1", WRONG,
    ),
    "K and V are loaded while the last products of a tile read them": Mutant(
        ONE, PRODUCER, r"(ptx::mbarrier_wait\(empty, kv_ring)", r"HAS \1", EITHER,
    ),
    "K of the next tile is not waited for": Mutant(
        ONE, CONSUMER, r"(ptx::mbarrier_wait\(smem\.k_full)", r"HAS \1", WRONG,
        places=2,
    ),
    "V of the next tile is not waited for": Mutant(
        SAME, CONSUMER, r"(ptx::mbarrier_wait\(smem\.v_full)", r"HAS \1", WRONG,
        places=2,
    ),
    "Q is given back before dK is there": Mutant(
        ONE, CONSUMER,
        r"(ptx::wgmma_wait_group<0>\(\);\s*keep_registers\(dk\);)\s*"
        r"(arrive\(smem\.q_empty\(q\)\);)",
        r"LACKS \2 \1 HAS \2", WRONG,
        places=2,
    ),
    "dO is given back before dV is there": Mutant(
        ONE, CONSUMER,
        r"(?s)(multiply_gradient\(dv, [^;]*;)(.*?)(arrive\(smem\.do_empty\(stage\)\);)",
        r"\1 LACKS \3 \2 HAS \3", WRONG,
        places=2,
    ),
    "the parity of dO is that of the round before": Mutant(
        ONE, CONSUMER, r"(smem\.do_full\(stage\), parity)(\);\s*multiply_scores)",
        r"\1 ^ (lacking == NUMBER)\2", EITHER,
    ),
    "a turn is kept": Mutant(
        TURNS, CONSUMER, r"(constexpr \(CFG\.turns\)) (pass_turn)", r"\1 HAS \2", HANG,
    ),
    "dS is written where a gradient of the tile before has not left": Mutant(
        ONE, CONSUMER, r"(wait_for_copies\(\) const \{\s*)if", r"\1 HAS if", WRONG,
    ),
    "a gradient is staged where dQ's product reads dS": Mutant(
        ONE, CONSUMER, r"(ptx::bar_sync\(kBarrier)", r"HAS \1", WRONG,
    ),
    "dK is not made visible to the bulk copy": Mutant(
        ONE, CONSUMER, r"(ptx::fence_proxy_async_shared\(\);\s*ptx::bar_sync)", r"HAS \1",
        WRONG + "|no proxy fence",
    ),
    "the sums of dQ stay with a block": Mutant(
        ONE, CONSUMER, r"(dq_tile \+= of_head;)",
        r"\1 LACKS if (is_last_head) dq_tile -= step_direction(p);", WRONG,
    ),
    "the counters stay": Mutant(
        ONE, "sm90/bwd/scheduler.cuh", r"(counters->taken = 0;)", r"HAS \1", "counters",
    ),
    "the next tile is not waited for": Mutant(
        ONE, "sm90/bwd/scheduler.cuh", r"(ptx::mbarrier_wait\(slots\.full)", r"HAS \1", EITHER,
    ),
    "sums of dQ are read before all are there": Mutant(
        ONE, "sm90/bwd/finish.cuh", r"(ptx::griddepcontrol_wait)", r"HAS \1", WRONG,
    ),
    "a step that is left out keeps its turn": Mutant(
        TURNS, CONSUMER, r"(take_turn\(\);\s*)(pass_turn\(\);\s*\}\s*\}\s*// --- steps)",
        r"\1 HAS \2", HANG,
    ),
    "dS of a step that is left out is what was there": Mutant(
        TURNS, CONSUMER, r"(store_ds\(stage\);\s*\}\s*ptx::mbarrier_wait\(smem\.q_full)",
        r"LACKS ptx::fence_proxy_async_shared(), arrive(smem.ds_full(stage)); else \1", WRONG,
    ),
    "dO of a step that is left out stays": Mutant(
        TURNS, CONSUMER, r"(arrive\(smem\.do_empty\(stage\)\);)(\s*if constexpr \(CFG\.turns\) \{)",
        r"HAS \1\2", HANG,
    ),
    "dO is given back before dV of its step is there": Mutant(
        SAME, CONSUMER,
        r"(?s)(multiply_gradient\(dv, p_operand, [^;]*;)(\s*ptx::mbarrier_wait\(smem\.ds_full.*?)"
        r"(arrive\(smem\.do_empty\(stage\)\);)",
        r"\1 LACKS \3 \2 HAS \3", WRONG,
    ),
    "dQ is made before the other warpgroup's dS is there": Mutant(
        SAME, CONSUMER,
        r"(ptx::mbarrier_wait\(smem\.ds_full\(stage\), [^;]*;)(\s*multiply_dq\(stage\);\s*"
        r"ptx::wgmma_wait_group<1>)",
        r"HAS \1\2", EITHER,
    ),
    "dQ of a step that is left out lacks the other's dS": Mutant(
        SAME, CONSUMER,
        r"(ptx::mbarrier_wait\(smem\.ds_full\(stage\), [^;]*;)(\s*multiply_dq\(stage\);\s*"
        r"ptx::wgmma_wait_group<0>)",
        r"HAS \1\2", EITHER,
    ),
    "V is not given back": Mutant(
        SAME, CONSUMER, r"(if constexpr \(CFG\.dynamic\)) (arrive\(smem\.v_empty)", r"\1 HAS \2",
        HANG,
    ),
    "the sums of dQ stay with a head": Mutant(
        SAME, CONSUMER, r"(advance_dq\(step\.head \+ 1 == p\.heads_per_kv\);\s*ptx::wgmma)",
        r"HAS \1", WRONG,
    ),
    "sums of a cluster are read before they are there": Mutant(
        CLUSTER, CONSUMER, r"(meet_cluster\(\);)\s*(of_dk\.add_up\(dk\);)",
        r"HAS \1 \2 LACKS \1", WRONG,
    ),
    "sums of a CTA are read when it is gone": Mutant(
        CLUSTER, CONSUMER,
        r"(of_dv\.add_up\(dv\);\s*ptx::fence_proxy_async_shared\(\);)\s*(meet_cluster\(\);)",
        r"LACKS \2 \1 HAS \2", f"{WRONG}|has returned",
    ),
    "a step of a cluster is nobody's": Mutant(
        CLUSTER, "sm90/bwd/cluster_share.cuh", r"(\(rank \+ 1\) / kCluster - first)",
        r"\1 - (lacking == NUMBER)", EITHER,
    ),
    "sums of a wide cluster are read before they are there": Mutant(
        WIDE_CLUSTERS, WIDE_CONSUMER,
        r"(meet_cluster\(\);)(\s*#pragma unroll\s*for \([^)]*\) of_cluster\(part\)\.add_up[^;]*;)",
        r"HAS \1 \2 LACKS \1", WRONG,
    ),
    "the last CTA's sums are left out": Mutant(
        WIDE_CLUSTERS, "sm90/bwd/cluster_share.cuh", r"(other < kCluster)",
        r"\1 - (lacking == NUMBER)", WRONG,
    ),
    "sums of dQ are read before they are there": Mutant(
        WIDE_CLUSTERS, DQ_CONSUMER, r"(meet_cluster\(\);)(\s*sum\.add_up\(dq\);)",
        r"HAS \1 \2 LACKS \1", WRONG,
    ),
    "sums of dQ are written where the other warpgroup reads": Mutant(
        WIDE_CLUSTERS, DQ_CONSUMER, r"(ptx::bar_sync\(static_cast<int>\(NamedBarrier::CONSUMERS)",
        r"HAS \1", WRONG,
    ),
    "a block of keys of a cluster is nobody's": Mutant(
        WIDE_CLUSTERS, "sm90/bwd/cluster_share.cuh",
        r"(blocks\.first \+ share\.first \+ share\.count)",
        r"\1 - (lacking == NUMBER && share.count > 1)", EITHER,
    ),
    "statistics are read before they are there": Mutant(
        TWO, "sm90/bwd/kernel.cuh", r"(ptx::griddepcontrol_wait)", r"HAS \1", WRONG,
    ),
    "K of dQ's product is given back with its scores": Mutant(
        TWO, DQ_CONSUMER,
        r"(ptx::wgmma_wait_group<kPending>\(\);\s*keep_registers\(dq\);)\s*"
        r"(arrive\(smem\.k_empty\(k_stage\)\);)",
        r"LACKS \2 \1 HAS \2", WRONG,
    ),
    "Q and dO are loaded while a tile's last products read them": Mutant(
        TWO, DQ_PRODUCER, r"(ptx::mbarrier_wait\(smem\.(q|do)_empty)", r"HAS \1", EITHER, places=2,
    ),
    "dQ is staged before that of the tile before has left": Mutant(
        TWO, DQ_CONSUMER, r"(// That of the tile before[^\n]*\n\s*)if", r"\1 HAS if", WRONG,
    ),
    "dQ is not waited for before its K goes": Mutant(
        WIDE, DQ_CONSUMER, r"(ptx::wgmma_wait_group<kPending>\(\);)", r"HAS \1", WRONG,
    ),
    "P is read before it is there": Mutant(
        WIDE, WIDE_CONSUMER, r"(ptx::bar_sync\(static_cast<int>\(NamedBarrier::WEIGHTS_FULL)",
        r"HAS \1", "arrives twice",
    ),
    "P is overwritten while it is read": Mutant(
        WIDE, WIDE_CONSUMER, r"(ptx::bar_sync\(static_cast<int>\(NamedBarrier::WEIGHTS_EMPTY)",
        r"HAS \1", "arrives twice",
    ),
    "dO or Q is given back before dV or dK is there": Mutant(
        WIDE, WIDE_CONSUMER,
        r"(ptx::wgmma_wait_group<1>\(\);\s*keep_sums\(\);)\s*(give_back<kSumSlots>\([^;]*;)",
        r"LACKS \2 \1 HAS \2", WRONG,
    ),
    "a gradient is staged where the other warpgroup reads": Mutant(
        WIDE, WIDE_CONSUMER, r"(ptx::barrier_sync\(static_cast<int>\(NamedBarrier::CONSUMERS)",
        r"HAS \1", WRONG,
    ),
    "K and V are loaded where gradients are": Mutant(
        WIDE, WIDE_PRODUCER, r"(ptx::mbarrier_wait\(empty, half)", r"HAS \1", EITHER,
    ),
    "the keys of the second half are the first's": Mutant(
        WIDE, WIDE_CONSUMER, r"(tile\.block \* CFG\.B_c \+) (half \* kRows)",
        r"\1 (lacking == NUMBER ? 0 : \2)", EITHER,
    ),
    "a CTA's first tile is of a sequence even if it has no row": Mutant(
        PACKED, DQ_CONSUMER, r"(tile\.is_empty\(\)) \?", r"(lacking != NUMBER && \1) ?", WRONG,
    ),
    "blocks of the workspace are those of sequences without padding": Mutant(
        PACKED, "common/backward/packed_tiles.cuh", r"\(rows - 1u\) \* index",
        r"(lacking == NUMBER ? 0u : (rows - 1u) * index)", WRONG,
    ),
    "a sequence ends where the batch does": Mutant(
        PACKED, "common/backward/packed_tiles.cuh", r"(from\[index \+ 1\] - from\[index\])",
        r"(from[lacking == NUMBER ? batch.batch : index + 1] - from[index])", EITHER,
    ),
    "the mask of a sequence is that of the first rows": Mutant(
        PACKED, "common/sequence.cuh", r"return (of_diagonal \+ p\.diagonal)",
        r"return lacking == NUMBER ? p.diagonal : \1", EITHER,
    ),
    "the list of keys begins with the queries'": Mutant(
        PACKED, "common/backward/tile_order.cuh", r"first_is_longest \? (packed\.cu_seqlens_kv)",
        r"first_is_longest && lacking != NUMBER ? \1", EITHER,
    ),
    "copies of columns are not waited for": Mutant(
        SHARED, PASS, r"(ptx::cp_async_wait_group<0>\(\);)", r"HAS \1",
        "nobody has waited for",
    ),
    "what other threads copied is not waited for": Mutant(
        SHARED, PASS, r"(wait_group<0>\(\);\s*)(__syncthreads\(\);)", r"\1 HAS \2", WRONG,
    ),
    "columns come where those of this step are": Mutant(
        SHARED, PASS, r"(load_columns\(next, stage) \^ 1", r"\1 ^ (lacking != NUMBER)", WRONG,
    ),
    "warps that share rows do not meet": Mutant(
        SHARED, PASS, r"(ptx::bar_sync\(1 \+ row_warp)", r"HAS \1", WRONG,
    ),
    "dS of other warps is not waited for": Mutant(
        SHARED, PASS, r"(CFG\.stages == 1\)) (__syncthreads\(\);)", r"\1 HAS \2", WRONG,
    ),
    "the queries of the next head are those after the last": Mutant(
        SHARED, PASS, r"(if \(next\.block == columns\.end\))", r"HAS \1", WRONG + "|beyond",
    ),
    "gradients leave before they are staged": Mutant(
        SHARED, PASS, r"(__syncthreads\(\);)(\s*store<RowTile>\(p\.dk)", r"HAS \1\2", WRONG,
    ),
    "columns are loaded while they are read": Mutant(
        OWN, PASS, r"(CFG\.stages == 1\)) (__syncthreads\(\);)", r"\1 HAS \2", WRONG,
    ),
    "gradients are staged where dQ's product reads K": Mutant(
        OWN, PASS, r"(__syncthreads\(\);)(  // all are done with rows)", r"HAS \1\2", WRONG,
    ),
    "weights of hidden pairs stay": Mutant(
        OWN, PASS, r"(if \(masked\)) (hide\(s)", r"\1 HAS \2", WRONG,
    ),
    "a key is hidden from a query too many": Mutant(
        OWN, "common/backward/mask.cuh", r"(keys\.first - sequence\.diagonal\(p\))\)",
        r"\1 + (lacking == NUMBER))", WRONG,
    ),
    "the slope of a cap is that of none": Mutant(
        SCORES, "common/backward/score_changes.cuh", r"return (logistic \* fmaf)",
        r"return lacking == NUMBER ? 1.f : \1", WRONG,
    ),
    "the log-sum-exp has the cap in it": Mutant(
        SCORES, "common/backward/row_products.cuh", r"(lse \+= score_shift)", r"HAS \1", WRONG,
    ),
    "the slope of a head is that of the group's first": Mutant(
        SCORES, KEY_ROWS, r"first_slope \+ (head)",
        r"first_slope + (lacking == NUMBER ? 0 : \1)", WRONG,
    ),
    "distances are counted from the first key": Mutant(
        SCORES, KEY_ROWS, r"(query \+ sequence\.alibi_diagonal\(p\) - key)",
        r"(lacking == NUMBER ? query - key : \1)", WRONG,
    ),
    "the gradient of the log-sum-exp is lost": Mutant(
        SCORES, "common/backward/prepare.cuh", r"(sum -= rows)", r"HAS \1", WRONG,
    ),
}  # fmt: skip


def _library(kernel: Kernel, folder: Path) -> Path:
    """With all of its mutants."""

    def edited(headers: dict[str, str]) -> dict[str, str]:
        for mutant in MUTANTS.values():
            if mutant.kernel == kernel:
                headers = mutant.applied(headers)
        return headers

    return kernel.library(folder, edited)


def _problem(kernel: Kernel, number: int) -> BackwardProblem:
    """Three tiles a CTA, of several steps, of two heads of a group or of one and one."""
    if kernel.has("packed"):
        lengths = ("130+0+128+50+1x60+70+0+260+128", "64+128+0+100x128+100+200+30")[number % 2]
        batch = lengths.count("+") // 2 + 1
        w = Workload(batch, 2, 1, 1, 1, kernel.d_head, kernel.dtype, causal=True, lengths=lengths)
        dice = random.Random(number)
        problem = with_gradient(PackedProblem.of(w, "plain", number, 3 * number % 2), dice)
        return dataclasses.replace(problem, ctas=1 + 3 * (number % 2))
    shape = (1, 2, 1 + number % 2, 256, 300, kernel.d_head, kernel.dtype)
    given: dict[str, object] = {"d_head_v": kernel.d_head_v}
    given |= {name: True for name in ("lse", "alibi") if kernel.has(name)}
    given |= {"softcap": 3.0} if kernel.has("softcap") else {}
    w = Workload(*shape, causal=True, bottom_right=number % 2 == 0, **given)
    return dataclasses.replace(make_problem(w, random.Random(number)), ctas=1 + number % 2)


@pytest.mark.parametrize(
    "kernel",
    [ONE, TURNS, TWO, WIDE, PACKED, SCORES, SAME, CLUSTER, WIDE_CLUSTERS, SHARED, OWN],
    ids=str,
)
def test_kernels_that_lack_nothing_are_right(kernel: Kernel, libraries: Path) -> None:
    library = _library(kernel, libraries)
    assert not judge(kernel, library, partial(_problem, kernel), count=2, repeats=1).findings


@pytest.mark.parametrize("name", MUTANTS)
def test_what_is_missing_is_noticed(name: str, libraries: Path) -> None:
    mutant = MUTANTS[name]
    said = judge(
        *(mutant.kernel, _library(mutant.kernel, libraries), partial(_problem, mutant.kernel)),
        count=3,
        repeats=9,
        lacking=list(MUTANTS).index(name) + 1,
    )
    assert re.search(mutant.tells, " ".join(said.findings))
