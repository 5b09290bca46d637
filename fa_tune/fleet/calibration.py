"""How far boards of one model disagree: the same pair of kernels, timed on each of them.

Boards of one model differ by a few per cent in time (power, heat, cooling), and far less in the
ratio of two kernels' times.  So ratios taken on one board are believed on all, and times are not
mixed; both figures are told, that a reader can judge.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fa_tune import families
from fa_tune.core.arch import ArchLimits
from fa_tune.core.jobs import KernelItem, PairItem, PairTimes
from fa_tune.core.model import Artifact, Workload
from fa_tune.ops import flops
from fa_tune.profile.stats import Ratio, median, paired_ratio

PAIR_FLOP = 1e12  # a kernel of milliseconds, which shows what a board's power limit does
RATIO_NOTABLE = 0.01  # from here on boards would not choose alike


@dataclass(frozen=True)
class Pair:
    """Two variants to time on one workload, by subject; the first is the default."""

    workload: Workload
    artifacts: tuple[Artifact, Artifact]

    def item(self) -> PairItem:
        """The worker's item."""
        first, second = (KernelItem.of(a.variant.key, a) for a in self.artifacts)
        return PairItem(self.workload.key, (first, second))


@dataclass(frozen=True)
class BoardTimes:
    """The pair on one board.  `ratio` is the second's time over the first's, round by round."""

    board: str  # label
    uuid: str
    first_s: float
    second_s: float
    ratio: Ratio
    sm_clock_hz: float | None
    power_w: float | None


@dataclass(frozen=True)
class Disagreement:
    """The pair on every board that timed it, in the order of the boards.

    `time` and `ratio` are how much more the largest is than the smallest, as fractions: of the
    first kernel's time, and of the pair's ratio.
    """

    workload: str
    pair: tuple[str, str]
    boards: tuple[BoardTimes, ...]

    @property
    def time(self) -> float:
        times = [b.first_s for b in self.boards]
        return max(times) / min(times) - 1.0

    @property
    def ratio(self) -> float:
        ratios = [b.ratio.value for b in self.boards]
        return max(ratios) / min(ratios) - 1.0

    @property
    def sentence(self) -> str:
        """For a reader."""
        text = (
            f"{len(self.boards)} boards timed the same pair of kernels: times differ by up to "
            f"{100 * self.time:.2f} %, their ratio by {100 * self.ratio:.2f} %"
        )
        if self.ratio >= RATIO_NOTABLE:
            text += "; boards so different may choose differently"
        return text


def choose_pair(
    workloads: Sequence[Workload],
    artifacts: Mapping[tuple[str, str], Artifact],
    limits: ArchLimits,
) -> Pair | None:
    """The default and another kernel, on the workload nearest to PAIR_FLOP for which both were
    compiled; `artifacts` by variant key and traits.  Another family's default comes before any
    other."""
    for workload in sorted(workloads, key=_far_from_the_pairs):
        defaults = [
            families.variant(config).key
            for config in families.defaults(workload.d_head, workload.dtype, limits)
        ]
        fitting = {
            subject: artifact
            for (subject, traits), artifact in artifacts.items()
            if traits == _traits(artifact, workload)
        }
        order = [s for s in defaults if s in fitting]
        order += [s for s in fitting if s not in order]
        if len(order) >= 2:
            return Pair(workload, (fitting[order[0]], fitting[order[1]]))
    return None


def _far_from_the_pairs(workload: Workload) -> float:
    return abs(math.log(flops.matmul_flop(workload) / PAIR_FLOP))


def _traits(artifact: Artifact, workload: Workload) -> str | None:
    """What a variant is compiled for on a workload; None where it is not for that at all."""
    family = families.get(artifact.variant.family)
    config = families.config_of(artifact.variant)
    if (config.dtype, config.d_head) != (workload.dtype, workload.d_head):
        return None
    return family.traits(config, workload)


def board_times(label: str, uuid: str, value: PairTimes) -> BoardTimes:
    """What a board's worker found."""
    first, second = value.samples_s
    return BoardTimes(
        board=label,
        uuid=uuid,
        first_s=median(first),
        second_s=median(second),
        ratio=paired_ratio(second, first),
        sm_clock_hz=value.sm_clock_hz,
        power_w=value.power_w,
    )
