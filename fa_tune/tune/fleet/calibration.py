"""How far GPUs of one model disagree: the same pair of kernels, timed on each of them.

GPUs of one model differ by a few per cent in time (power, heat, cooling), and far less in the
ratio of two kernels' times.  So ratios taken on one GPU are believed on all, and times are not
mixed; both figures are told, that a reader can judge.
"""

from __future__ import annotations

from dataclasses import dataclass

from fa_tune.core.jobs import KernelItem, PairItem, PairTimes
from fa_tune.core.model import Artifact
from fa_tune.core.stats import Ratio, median, paired_ratio
from fa_tune.core.workload import Workload

RATIO_NOTABLE = 0.01  # from here on GPUs would not choose alike


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
class GpuTimes:
    """The pair on one GPU.  `ratio` is the second's time over the first's, round by round."""

    gpu: str  # label
    uuid: str
    first_s: float
    second_s: float
    ratio: Ratio
    sm_clock_hz: float | None
    power_w: float | None


@dataclass(frozen=True)
class Disagreement:
    """The pair on every GPU that timed it, in the order of the GPUs.

    `time` and `ratio` are how much more the largest is than the smallest, as fractions: of the
    first kernel's time, and of the pair's ratio.
    """

    workload: str
    pair: tuple[str, str]
    gpus: tuple[GpuTimes, ...]

    @property
    def time(self) -> float:
        times = [g.first_s for g in self.gpus]
        return max(times) / min(times) - 1.0

    @property
    def ratio(self) -> float:
        ratios = [g.ratio.value for g in self.gpus]
        return max(ratios) / min(ratios) - 1.0

    @property
    def sentence(self) -> str:
        """For a reader."""
        text = (
            f"{len(self.gpus)} GPUs timed the same pair of kernels: times differ by up to "
            f"{100 * self.time:.2f} %, their ratio by {100 * self.ratio:.2f} %"
        )
        if self.ratio >= RATIO_NOTABLE:
            text += "; GPUs so different may choose differently"
        return text


def gpu_times(label: str, uuid: str, value: PairTimes) -> GpuTimes:
    """What a GPU's worker found."""
    first, second = value.samples_s
    return GpuTimes(
        gpu=label,
        uuid=uuid,
        first_s=median(first),
        second_s=median(second),
        ratio=paired_ratio(second, first),
        sm_clock_hz=value.sm_clock_hz,
        power_w=value.power_w,
    )
