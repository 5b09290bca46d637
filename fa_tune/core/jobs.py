"""What a worker is asked to do on a GPU: a dataclass for each kind of job, its items and results.

    TimeJob(...).request()  ->  handler, shared, items as JSON  ->  TimeJob.read(shared, items)
    supervisor                                                      worker

`handler` names the function that does the job in the worker, as `module:function`.  It stands here
and nowhere else: who sends a job never imports `gpu`.  The encoding is that of
`core.codec`, of results too.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from fa_tune.core import codec, inputs
from fa_tune.core.codec import Figure
from fa_tune.core.model import Artifact, is_reference

NORMAL = str(inputs.NORMAL)
PARTIALS = "_partials"  # beside an item: what workers that died since have reported of it
Json = dict[str, Any]


# Items -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KernelItem:
    """A subject and its kernel: a cubin file, the symbol of each launch in it, and the traits and
    the architecture that it was compiled for.  A library's kernel (`ref:fa2`) has none of these."""

    subject: str
    cubin: str = ""
    symbols: tuple[str, ...] = ()
    traits: str = ""
    arch: str = ""

    @classmethod
    def of(cls, subject: str, artifact: Artifact | None, **more: Any) -> Self:
        """The item of a subject; `artifact` is None for a library's kernel."""
        if artifact is None:
            return cls(subject, **more)
        a = artifact
        return cls(subject, a.cubin, a.symbols, a.traits, a.arch, **more)


@dataclass(frozen=True)
class WorkloadItem(KernelItem):
    """A subject to launch on a workload, or to verify on that beside the cases of its traits; by
    its key."""

    workload: str = ""


@dataclass(frozen=True)
class ABTestItem:
    """A choice against the default; the item's name is the workload's key.

    `registry` is a file that holds the choice alone, `defaults` one that holds nothing of the
    workload, or the default where that is not the device's own.  `chosen` and `default` are the
    variants that these must lead to, by key.
    """

    registry: str
    defaults: str
    chosen: str
    default: str


@dataclass(frozen=True)
class InputsItem:
    """Kernels to compare on a workload (its key) with such inputs (their text); the first is what
    the others are compared with.  `own_inputs`: those of the search, on which the first is timed
    in the same rounds; empty where `inputs` are these."""

    workload: str
    inputs: str
    kernels: tuple[KernelItem, ...]
    own_inputs: str = ""


@dataclass(frozen=True)
class ProbeItem:
    """Nothing but a sign of life."""


# Results -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """NVML at one moment; None: not told.  `reasons` are those that hold the clock back."""

    sm_clock_hz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Round:
    """One round of samples: `number` from 0, the baseline's `opening` and `closing` sample in
    seconds (None without a baseline), and why it is flagged, if it is."""

    number: int
    opening_s: float | None
    closing_s: float | None
    reading: Reading
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class TimeResult:
    """What timing one subject gave.

    `relative` are the samples over the baseline's beside them, one each or none; `sm_clock_hz`
    and `host_s` (what a launch took the process) are medians; `stop_reason` says why there are
    no more samples, `flagged` which rounds are flagged (by number, as text) and why; `rounds`,
    of the baseline alone, what each round was taken under; `versions` of the packages that it ran
    with, by name; `held_out_s` and `held_out_relative` are of the rounds after the race, see
    `core.model.Measurement`; `no_graph`: why no sample is a graph, where it should have been one.
    """

    samples_s: tuple[float, ...]
    relative: tuple[float, ...]
    sm_clock_hz: Figure | None
    host_s: float
    sets: int
    launches_per_sample: int
    stop_reason: str
    flagged: Mapping[str, str]
    rounds: tuple[Round, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    held_out_s: tuple[float, ...] = ()
    held_out_relative: tuple[float, ...] = ()
    no_graph: str = ""


@dataclass(frozen=True)
class ABTestResult:
    """Of each pair of samples, the mean of the choice's two and of the default's two, in
    seconds."""

    chosen_s: tuple[float, ...]
    default_s: tuple[float, ...]


@dataclass(frozen=True)
class InputsResult:
    """For each kernel of an InputsItem its samples in seconds, and each over the mean of the first
    kernel's right before and after it.  `to_own_inputs`: such a mean of the first kernel's over
    its sample on the item's `own_inputs` between them; empty without these.  `errors`: each
    kernel's root mean square error over FlashAttention 2's; None where that has none."""

    samples_s: tuple[tuple[float, ...], ...]
    relative: tuple[tuple[float, ...], ...]
    to_own_inputs: tuple[float, ...] = ()
    errors: tuple[float | None, ...] = ()


# Jobs --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Job:
    """`items` are a kind of item each kind of job has; `device` is CUDA's number in the worker; a
    job's `inputs` are the text of an `inputs.InputSpec`; `partials` are filled in for the worker:
    what workers that died since have reported, by item."""

    handler: ClassVar[str]

    items: Mapping[str, Any]
    device: int
    partials: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def request(self) -> tuple[str, Json, dict[str, Json]]:
        """Handler, shared facts and items, as `workers.supervisor.run_items` takes them."""
        apart = "items", "partials"
        shared = {n: v for n, v in vars(self).items() if n not in apart and v is not None}
        return self.handler, codec.dump(shared), codec.dump(self.items)

    @classmethod
    def read(cls, shared: Mapping[str, Any], items: Mapping[str, Mapping[str, Any]]) -> Self:
        """The job as a worker gets it; raises ValueError for unknown or missing fields."""
        plain = {
            name: {k: v for k, v in item.items() if k != PARTIALS} for name, item in items.items()
        }
        partials = {name: item.get(PARTIALS, ()) for name, item in items.items()}
        return codec.load(cls, {**shared, "items": plain, "partials": partials})


@dataclass(frozen=True, kw_only=True)
class VerifyJob(_Job):
    """Compare every kernel with the reference.  Result: a Verdict.

    `item_timeout_s`: the items do much the same, so that one that takes many times as long as
    those before it hangs; none may take longer than this.  `inputs` are texts: each case is also
    tried with inputs of these.  `thorough`: on more cases.
    """

    handler = "fa_tune.gpu.jobs.verify:handle"
    items: Mapping[str, WorkloadItem]
    seed: int
    item_timeout_s: float | None = None
    thorough: bool = False
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TimeJob(_Job):
    """Time every subject with CUDA events.  Partials: (seconds, ratio to the baseline or None) of
    each sample.  Result: a TimeResult.

    `keep` are subjects measured to the end; `baseline` is the item measured first and last in
    every round, or empty; `order` names the subjects as a tie prefers them; `margin` is what the
    baseline has to be beaten by; `check`: compare each output with the fp32 result afterwards.
    `sustained_s` above 0: a sample is as many launches, back to back, as take so long at least.
    """

    handler = "fa_tune.gpu.jobs.time_events:handle"
    items: Mapping[str, KernelItem]
    partials: Mapping[str, tuple[tuple[float, float | None], ...]] = field(default_factory=dict)
    workload: str
    runs: int
    seed: int
    inputs: str = NORMAL
    keep: tuple[str, ...]
    baseline: str
    adaptive: bool
    order: tuple[str, ...]
    margin: float
    check: bool
    sustained_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class JudgeJob(_Job):
    """Answer requests of `core.judged` on the Unix socket `address` until it is closed; its items
    stand for nothing.  Device -1: the CPU, with at most `memory_bytes` of data.  Only a `trusted`
    process knows what must come out."""

    handler = "fa_tune.gpu.jobs.judge:handle"
    items: Mapping[str, KernelItem]
    address: str
    trusted: bool
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class ProfileJob(_Job):
    """Launch every subject once per round, under ncu, workload after workload.  Partials: the
    round, one per launch, in launch order.  Result: the versions of the packages it ran with; the
    rest is in what ncu writes."""

    handler = "fa_tune.gpu.jobs.ncu_target:handle"
    items: Mapping[str, WorkloadItem]
    rounds: int
    seed: int
    inputs: str = NORMAL

    def order(self, round_: int, names: Sequence[str], *, last: str = "") -> list[str]:
        """Items of a workload in the random order of a round.

        One of our kernels follows each library call, while there are any left: by its symbol the
        library's launches can be told from those of the next.  `last` is the subject that was
        launched last on the workload before: if it is a library's, it comes last here.
        """
        draw = random.Random(f"{self.seed}:{round_}")
        shuffled = list(names)
        draw.shuffle(shuffled)
        libraries = [name for name in shuffled if is_reference(self.items[name].subject)]
        ours = [name for name in shuffled if name not in libraries]
        followers = draw.sample(range(len(ours)), min(len(libraries), len(ours)))
        order = []
        for place, name in enumerate(ours):
            if place in followers:
                order.append(libraries.pop())
            order.append(name)
        order += libraries
        if is_reference(last):
            order.sort(key=lambda name: self.items[name].subject == last)  # stable
        return order


@dataclass(frozen=True, kw_only=True)
class ABTestJob(_Job):
    """Call the choice and the default as a program would, in pairs.  Result: an ABTestResult."""

    handler = "fa_tune.gpu.jobs.ab_test:handle"
    items: Mapping[str, ABTestItem]
    seed: int
    cache_dir: str
    inputs: str = NORMAL


@dataclass(frozen=True, kw_only=True)
class CompareInputsJob(_Job):
    """Time a few kernels beside the default on other inputs.  Result: an InputsResult."""

    handler = "fa_tune.gpu.jobs.compare_inputs:handle"
    items: Mapping[str, InputsItem]
    seed: int


@dataclass(frozen=True, kw_only=True)
class ProbeJob(_Job):
    """See whether the GPU computes at all.  Result: the device's name."""

    handler = "fa_tune.gpu.jobs.probe:handle"
    items: Mapping[str, ProbeItem]


# What a search on this machine will need first: imported by workers before there is work.
WARM_UP_MODULES = tuple(job.handler.partition(":")[0] for job in (VerifyJob, TimeJob, ABTestJob))

# What a waiting worker does meanwhile, on the GPU of that number; the second one below ncu, which
# profiles the kernel of that name then.
MAKE_CONTEXT = "fa_tune.gpu.context:make"
BEGIN_PROFILING = "fa_tune.gpu.context:begin_profiling"
FIRST_LAUNCH = "fa_tune_first_launch"
