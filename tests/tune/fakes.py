"""What a search stands on, without GPU and compiler: a device, a profiler, kernels."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fa_tune import families
from fa_tune.build.cache import ArtifactStore
from fa_tune.build.compile import BuildRequest, BuildResult
from fa_tune.core.arch import parse_arch
from fa_tune.core.model import (
    Artifact,
    Attempt,
    CaseError,
    DeviceInfo,
    Measurement,
    Outcome,
    Quantity,
    Resources,
    Variant,
    Verdict,
)
from fa_tune.core.options import MachineOptions, MeasureOptions, Progress, Silent
from fa_tune.core.workload import DType, Workload
from fa_tune.families.sm80.config import FlashForwardKernelConfig
from fa_tune.families.sm80.sets import get_kernel_configs
from fa_tune.profile.base import Capabilities, MeasurePlan, OneByOne, OnStep
from fa_tune.profile.events import EventsProfiler
from fa_tune.profile.ncu.profiler import NcuProfiler
from fa_tune.store.journal import Journal
from fa_tune.tune.fleet.gpu import WorkerGpu
from fa_tune.tune.fleet.pool import Pool
from fa_tune.tune.session import JOURNAL, Machine, ProfilerSelection, Session

H200 = DeviceInfo("NVIDIA H200", (9, 0), "580.65.06", memory_bytes=150_000_000_000)
CASE = CaseError("b1_h1_kv1_q64_k64_d128_fp16_full", 1e-3, 6e-4, 2.2e-3, True)
RIGHT = Verdict(True, (CASE,))
WRONG = Verdict(False, (CASE,), "error 0.5 exceeds 0.0022")

Time = Callable[[str, Workload], float]


def default_config(dtype: DType = DType.FP16, **knobs: int) -> FlashForwardKernelConfig:
    """The family's default for d_head 128, with other knobs."""
    config: FlashForwardKernelConfig = families.get("sm80").default_config(128, dtype)
    return dataclasses.replace(config, **knobs)  # type: ignore[arg-type]


def configs(n: int, dtype: DType = DType.FP16) -> list[str]:
    """Short forms: the default and n - 1 others, all of d_head 128."""
    default = default_config(dtype).short_form()
    others = [c.short_form() for c in get_kernel_configs("tune", dtypes=[dtype])]
    return [default, *(c for c in others if c != default)][:n]


def keys(n: int, dtype: DType = DType.FP16) -> list[str]:
    """The subjects of `configs`."""
    return [Variant("sm80", c).key for c in configs(n, dtype)]


def resources(smem_bytes: int = 49152, registers: int = 168) -> Resources:
    return Resources(registers, 0, 0, 0, 0, smem_bytes, 128, 2)


def artifact(subject: str, traits: str = "plain") -> Artifact:
    """A kernel that was never compiled."""
    variant = Variant.from_key(subject)
    return Artifact(variant, traits, "sm_90", "/nowhere.cubin", f"_Z{subject}", resources())


def artifacts(n: int, dtype: DType = DType.FP16) -> dict[str, Artifact]:
    return {key: artifact(key) for key in keys(n, dtype)}


def by_hash(subject: str, workload: Workload) -> float:
    """A time in seconds that looks measured and is always the same: 1 to 2 ms."""
    digest = hashlib.sha256(f"{subject} {workload.key}".encode()).digest()
    return 1e-3 * (1 + int.from_bytes(digest[:4], "big") / 2**32)


class FakeProfiler(OneByOne):
    """Measures by formula; remembers every plan.

    `failures` are outcomes by subject; `interrupt_after` attempts a KeyboardInterrupt comes.
    """

    version = "2025.3.1"
    arguments = ("--page", "raw")
    metrics: tuple[str, ...] = ("gpu__time_duration.sum",)
    clock_policy = "none"
    cache_policy = "flush all"
    warnings: tuple[str, ...] = ()

    def __init__(
        self,
        time: Time = by_hash,
        *,
        method: str = "ncu",
        default_runs: int = 3,
        failures: Mapping[str, tuple[Outcome, str]] | None = None,
        error: Exception | None = None,
        interrupt_after: int | None = None,
    ) -> None:
        self.method = method
        self.default_runs = default_runs
        self.plans: list[MeasurePlan] = []
        self._time = time
        self._failures = dict(failures or {})
        self._error = error
        self._left = interrupt_after

    def warm_up(self) -> None:
        pass

    @property
    def capabilities(self) -> Capabilities:
        """Those of the profiler whose method it has."""
        return {"ncu": NcuProfiler, "events": EventsProfiler}[self.method].capabilities

    @property
    def measured(self) -> list[tuple[str, str, int]]:
        """(subject, workload, runs) of everything that was asked for."""
        return [(s, p.workload.key, p.runs) for p in self.plans for s in p.subjects]

    def measure(self, plan: MeasurePlan, on_step: OnStep) -> Iterator[Attempt]:
        self.plans.append(plan)
        if self._error is not None:
            raise self._error
        for subject in plan.subjects:
            if self._left is not None:
                if self._left == 0:
                    raise KeyboardInterrupt
                self._left -= 1
            for _ in range(plan.runs):
                on_step(subject)
            yield self.attempt(subject, plan)

    def attempt(self, subject: str, plan: MeasurePlan) -> Attempt:
        if subject in self._failures:
            return Attempt(subject, plan.workload.key, *self._failures[subject])
        time_s = self._time(subject, plan.workload)
        samples_s = tuple(time_s * (1 + 1e-4 * i) for i in range(plan.runs))
        measurement = Measurement(
            subject,
            plan.workload.key,
            self.method,
            samples_s,
            {"sm__cycles_elapsed.max": Quantity(round(time_s * 1.755e9), "cycle")},
            {"clocks": self.clock_policy},
        )
        return Attempt(subject, plan.workload.key, Outcome.OK, "", measurement)


def remeasured(attempt: Attempt, **fields: Any) -> Attempt:
    """The attempt with other fields of its measurement; as it is where it has none."""
    if attempt.measurement is None:
        return attempt
    measurement = dataclasses.replace(attempt.measurement, **fields)
    return dataclasses.replace(attempt, measurement=measurement)


def selected(profiler: FakeProfiler) -> ProfilerSelection:
    return ProfilerSelection(profiler, H200, f"measured on this machine's {H200.name}")


def machine(
    cache_dir: Path, *, device: DeviceInfo | None = H200, arch: str = "sm_90", **options: Any
) -> Machine:
    found = MachineOptions(cache_dir=cache_dir, arch=arch, **options)
    pool = Pool(() if device is None else (WorkerGpu("GPU 0", device),))
    return Machine(found, parse_arch(arch), ArtifactStore(cache_dir), cache_dir, pool)


def session(
    folder: Path,
    selection: ProfilerSelection | None = None,
    measure: MeasureOptions | None = None,
    progress: Progress | None = None,
    **changes: Any,
) -> Session:
    """A session on the pretended H200, its journal in the folder."""
    return Session(
        changes.pop("machine", machine(folder)),
        selection or selected(FakeProfiler()),
        Journal(folder / JOURNAL),
        measure or MeasureOptions(),
        progress or Silent(),
        **changes,
    )


class Stages(Silent):
    """Progress that remembers its stages, and the leaders it heard of."""

    def __init__(self) -> None:
        super().__init__()
        self.stages: list[tuple[str, int]] = []
        self.steps: list[str] = []
        self.leaders: list[str] = []

    def stage(self, name: str, total: int) -> None:
        self.stages.append((name, total))

    def advance(self, text: str = "") -> None:
        self.steps.append(text)

    def leader(self, text: str) -> None:
        self.leaders.append(text)


class FakeCompiler:
    """In place of `build_all`: kernels at once, but for those in `refused`."""

    def __init__(self, refused: Mapping[str, str] | None = None) -> None:
        self.refused = dict(refused or {})
        self.requests: list[BuildRequest] = []

    def __call__(
        self,
        requests: Sequence[BuildRequest],
        machine: Machine,
        progress: object,
        meanwhile: object = None,
    ) -> list[BuildResult]:
        self.requests += requests
        return [self._result(request) for request in requests]

    def _result(self, request: BuildRequest) -> BuildResult:
        why = self.refused.get(request.variant.key)
        if why is not None:
            return BuildResult(request, Outcome.COMPILE_FAILED, None, why, False)
        made = artifact(request.variant.key, request.traits)
        return BuildResult(request, Outcome.OK, made, "", False)


def parsed(short_forms: Sequence[str]) -> list[Any]:
    return [families.parse(text) for text in short_forms]
