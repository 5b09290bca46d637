"""The one interface of all profilers: subjects of one workload in, attempts out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fa_tune.core.devices import pinned_to
from fa_tune.core.inputs import NORMAL, InputSpec
from fa_tune.core.model import Artifact, Attempt, reference_subject
from fa_tune.core.stats import MARGIN
from fa_tune.core.workload import Workload


@dataclass(frozen=True)
class MeasurePlan:
    """Subjects to measure on one workload, and how.

    `artifacts` by subject (variant key); `references` are library kernels by name (`fa2`)
    that run in the same process; `runs` samples of each; `seed` draws `inputs` and the order;
    `gpu` is the UUID of the only GPU that the worker is to see (empty: the one that CUDA
    counts as `device`);
    `keep` are subjects that are measured as often as the leader whatever their time.  A plan
    that is not `adaptive` wants exactly `runs` samples of every subject.  `order` names the
    subjects as a tie prefers them and `margin` is what the first of `keep` has to be beaten by:
    what the choice does not hang on need not be measured again and again.
    """

    workload: Workload
    artifacts: Mapping[str, Artifact]
    references: tuple[str, ...] = ()
    runs: int = 1
    seed: int = 0
    keep: tuple[str, ...] = ()
    item_timeout_s: float = 60.0
    device: int = 0
    adaptive: bool = True
    gpu: str = ""
    order: tuple[str, ...] = ()
    margin: float = MARGIN
    inputs: InputSpec = NORMAL

    @property
    def subjects(self) -> tuple[str, ...]:
        """Every subject: references first, then variants."""
        return tuple(reference_subject(r) for r in self.references) + tuple(self.artifacts)

    @property
    def baseline(self) -> str:
        """The subject that opens and closes every round: the first to keep that is measured here
        (the default may have failed its check); none without."""
        return next((subject for subject in self.keep if subject in self.artifacts), "")

    @property
    def worker_device(self) -> int:
        """The GPU's number in the worker."""
        return 0 if self.gpu else self.device

    @property
    def worker_env(self) -> dict[str, str]:
        """Variables of the worker's environment that say which GPU it sees."""
        return pinned_to(self.gpu)


@dataclass
class ProfilerNotes:
    """Warnings of a profiler, beside its attempts."""

    warnings: list[str] = field(default_factory=list)

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)


@dataclass(frozen=True)
class Capabilities:
    """Abilities of a profiler, so that nobody asks which one it is.

    - `needs_device`: it runs kernels on a GPU.
    - `measures_anew`: its attempts are new, and belong into the journal; else they are recorded.
    - `checks_results`: it compares each output with the reference, after timing.
    - `adaptive`: within one plan it takes more samples of those that may still win.
    - `independent_samples`: a sample depends on no other of its process, so that a few samples
      taken alone may stand beside those of a larger round.
    - `samples_per_scout`: how many samples tell whether a config is worth more of them.
    - `may_be_refused`: whether it is allowed to measure shows only when it does.
    - `shares_process`: several plans at once cost it less than one after another.
    """

    needs_device: bool = True
    measures_anew: bool = True
    checks_results: bool = False
    adaptive: bool = False
    independent_samples: bool = False
    samples_per_scout: int = 3
    may_be_refused: bool = False
    shares_process: bool = False


OnStep = Callable[[str], None]


class Profiler(Protocol):
    """A way to measure.  Results of different methods are never ranked together."""

    @property
    def method(self) -> str:
        """`ncu` or `events`."""

    @property
    def version(self) -> str:
        """The profiler's own version; empty where there is none."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """Its complete argument list."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics it collects, by ncu's identifiers."""

    @property
    def clock_policy(self) -> str:
        """Whether and how clocks are held."""

    @property
    def cache_policy(self) -> str:
        """Contents of the caches when a sample begins."""

    @property
    def default_runs(self) -> int:
        """Samples of each subject when the user does not say."""

    @property
    def capabilities(self) -> Capabilities:
        """Its abilities."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the attempts so far."""

    def warm_up(self) -> None:
        """Hint that there will soon be something to measure."""

    def get_ready(self, gpu: str, device: int) -> None:
        """Hint that a GPU on which nothing is measured yet will be measured on: the one with that
        UUID, or where it is empty the one that CUDA counts as `device`."""

    def measure_all(self, plans: Sequence[MeasurePlan], on_step: OnStep) -> Iterator[Attempt]:
        """Measure every subject of the plans, each of another workload; one attempt each, as soon
        as it is final.

        `on_step` hears of every launch.  Raises ToolMissing when measuring is impossible here.
        """


class OneByOne:
    """For profilers that gain nothing from several plans at once, nor from a context that is made
    early."""

    def get_ready(self, gpu: str, device: int) -> None:
        """See `Profiler`."""

    def measure(self, plan: MeasurePlan, on_step: OnStep) -> Iterator[Attempt]:
        """`measure_all` of one plan."""
        raise NotImplementedError

    def measure_all(self, plans: Sequence[MeasurePlan], on_step: OnStep) -> Iterator[Attempt]:
        for plan in plans:
            yield from self.measure(plan, on_step)
