"""Of 32 variants one crashes, one hangs, one is wrong and one compiles for minutes: a search
measures the 28 others, names the four with their reasons, and takes less than twice the time
that it takes where nothing is wrong with any."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

from fa_tune import families
from fa_tune.build import nvrtc
from fa_tune.build.compile import BuildRequest, BuildResult
from fa_tune.core.model import Outcome
from fa_tune.core.options import (
    COMPILE_TIMEOUT_S,
    MachineOptions,
    MeasureOptions,
    Progress,
    SearchOptions,
    Silent,
    WorkloadOptions,
)
from fa_tune.core.workload import DType
from fa_tune.families.sm80.family import Sm80Family
from fa_tune.families.sm80.sets import get_kernel_configs
from fa_tune.tune.results import SearchResult
from fa_tune.tune.session import Machine, ready_workers
from tests.gpu.faulty_kernels import SLOW_TO_COMPILE, compile_faulty, disguised

BUILD = import_module("fa_tune.tune.build")
SEARCH = import_module("fa_tune.tune.flow")

N = 32
CONFIGS = [
    c
    for c in get_kernel_configs("tune", dtypes=[DType.FP16], d_head=128)
    if c != families.get("sm80").default_config(128, DType.FP16)
][:N]
FAULTS = {"illegal_address": 5, "endless": 11, "wrong_numbers": 19, "slow": 27}
ENDS = {
    "illegal_address": (Outcome.CRASHED, "CUDA error"),
    "endless": (Outcome.TIMED_OUT, "s"),
    "wrong_numbers": (Outcome.WRONG_RESULT, "error"),
    "slow": (
        Outcome.TIMED_OUT,
        f"many times as long as for the others, of {COMPILE_TIMEOUT_S:g} s",
    ),
}


@dataclass
class Searched:
    result: SearchResult
    took_s: float


def search(folder: Path) -> Searched:
    """As `fa-tune search` would, with everything at its default but what makes it short."""
    options = SearchOptions(
        workloads=WorkloadOptions(seq_lens=(1024,), dtypes=(DType.FP16,)),
        kernels="tune",
        families=("sm80",),
        measure=MeasureOptions(),
        machine=MachineOptions(cache_dir=folder / "cache"),
        registry=folder / "registry.json",
    )
    start = time.monotonic()
    with ready_workers(options.machine):  # as the command does
        result = SEARCH.search(options, Silent(), CONFIGS)
    return Searched(result, time.monotonic() - start)


def spoil(monkeypatch: pytest.MonkeyPatch, cubin: Path) -> dict[str, str]:
    """Give four configs their faults; returns their subjects by fault."""
    failing = {name: families.variant(CONFIGS[place]).key for name, place in FAULTS.items()}
    slow = families.parse(failing["slow"].partition(":")[2])
    plain_source, plain_build = Sm80Family.entry_source, BUILD.build_all

    def entry_source(self: Sm80Family, config: object, traits: str) -> str:
        text = plain_source(self, config, traits)  # type: ignore[arg-type]
        return text + SLOW_TO_COMPILE if config == slow else text

    kinds = {subject: name for name, subject in failing.items() if name != "slow"}

    def spoilt(result: BuildResult) -> BuildResult:
        name = kinds.get(result.request.variant.key)
        if name is None or result.artifact is None:
            return result
        artifact = disguised(result.artifact, cubin, name)
        return BuildResult(result.request, Outcome.OK, artifact, "", False)

    def build_all(
        requests: Sequence[BuildRequest],
        machine: Machine,
        progress: Progress,
        meanwhile: Callable[[Sequence[BuildResult]], None],
    ) -> list[BuildResult]:
        def on_idle(done: Sequence[BuildResult]) -> None:
            meanwhile([spoilt(result) for result in done])

        return [spoilt(result) for result in plain_build(requests, machine, progress, on_idle)]

    monkeypatch.setattr(Sm80Family, "entry_source", entry_source)
    monkeypatch.setattr(BUILD, "build_all", build_all)
    return failing


@pytest.mark.gpu
def test_four_faults_cost_four_variants_and_less_than_the_time_again(
    tmp_path: Path, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = search(tmp_path / "clean")
    outcomes = {a.subject: a.outcome for a in clean.result.attempts}
    assert [outcomes[families.variant(c).key] for c in CONFIGS] == [Outcome.OK] * N

    failing = spoil(monkeypatch, compile_faulty(tmp_path, arch, 128))
    faulty = search(tmp_path / "faulty")
    found = {a.subject: a for a in faulty.result.attempts}
    for name, subject in failing.items():
        outcome, reason = ENDS[name]
        assert found[subject].outcome is outcome, (name, found[subject])
        assert reason in found[subject].reason, (name, found[subject])
    good = {families.variant(c).key for c in CONFIGS} - set(failing.values())
    assert len(good) == N - len(FAULTS) == 28
    assert {found[s].outcome for s in good} == {Outcome.OK}
    assert all(found[s].measurement is not None for s in good)
    (one,) = faulty.result.results
    assert one.decision.chosen.subject not in failing.values()
    print(f"clean {clean.took_s:.1f} s, with four faults {faulty.took_s:.1f} s")
    assert faulty.took_s < 2 * clean.took_s

    # Remembered: nobody crashes, hangs or compiles for minutes a second time.
    again = search(tmp_path / "faulty")
    assert again.result.measured == 0
    assert {a.subject: a.outcome for a in again.result.attempts} == {
        s: a.outcome for s, a in found.items()
    }
    assert again.took_s < 10


def test_the_slow_one_is_slow() -> None:
    """Needs no GPU: with fewer statements it compiles, so it is slow and not wrong."""
    small = SLOW_TO_COMPILE.replace("FA_TUNE_SLOW_TIMES(R4, ", "FA_TUNE_SLOW_TIMES(R1, ")
    assert small != SLOW_TO_COMPILE
    options = ("--gpu-architecture=sm_90", "-std=c++20")
    assert nvrtc.compile_source(small, "slow.cu", {}, options, ()).image
