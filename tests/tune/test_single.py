"""profile, bench, run, build and verify: what they measure, and what they leave alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fa_tune.core.errors import NoUsableVariant, StorageError, ToolMissing
from fa_tune.core.inputs import NORMAL, InputSpec
from fa_tune.core.model import Outcome
from fa_tune.core.options import MeasureOptions, Progress, SearchOptions, WorkloadOptions
from fa_tune.core.workload import DType
from fa_tune.families.selection import choose_configs
from fa_tune.store import recordings
from fa_tune.tune import single
from fa_tune.tune.results import ProfileResult
from fa_tune.tune.session import ProfilerSelection
from fa_tune.tune.single import bench, build, profile, run, verify
from tests.tune import fakes
from tests.tune.conftest import World
from tests.tune.fakes import FakeProfiler

FP16 = fakes.configs(2)
BF16 = fakes.configs(2, DType.BF16)


def subjects(result: ProfileResult) -> list[str]:
    return [a.subject for a in result.attempts]


# profile ----------------------------------------------------------------------------------------


def test_profile_measures_each_config_with_the_references_beside_it(world: World) -> None:
    result = profile(FP16, world.options(1024), world.progress)
    assert subjects(result) == ["ref:fa2", "ref:cudnn", *fakes.keys(2)]
    assert {len(a.measurement.samples_s) for a in result.attempts if a.measurement} == {3}
    assert set(result.resources) == set(fakes.keys(2))
    (plan,) = world.profiler.plans
    assert not plan.adaptive, "exactly what was asked for"
    assert result.export is None


def test_profile_takes_dtype_and_head_dimension_from_the_config(world: World) -> None:
    world.options(1024)
    result = profile([FP16[0], BF16[0]], world.options(512, 1024), world.progress)
    workloads = list(dict.fromkeys(a.workload for a in result.attempts))
    assert [w.partition("_q")[2] for w in workloads] == [
        "512_k512_d128_fp16_full",
        "1024_k1024_d128_fp16_full",
        "512_k512_d128_bf16_full",
        "1024_k1024_d128_bf16_full",
    ]
    own = {
        (a.subject, a.workload.split("_")[-2]) for a in result.attempts if "ref" not in a.subject
    }
    assert own == {(fakes.keys(1)[0], "fp16"), (fakes.keys(1, DType.BF16)[0], "bf16")}


def test_profile_keeps_no_journal_of_measurements_and_no_registry(world: World) -> None:
    profile(FP16, world.options(1024), world.progress)
    world.profiler = FakeProfiler()
    profile(FP16, world.options(1024), world.progress)
    assert world.profiler.measured != [], "what is asked for is run"
    assert not world.registry.exists()
    assert all(not hasattr(r, "attempt") for r in world.journal.records())


def test_profile_keeps_the_report_it_was_asked_for(world: World) -> None:
    report = world.folder / "kept.ncu-rep"
    assert profile(FP16, world.options(), world.progress, export=report).export == report
    report = world.folder / "kept.ncu-rep"
    report.touch()
    world.profiler = FakeProfiler(method="events")
    assert profile(FP16, world.options(), world.progress, export=report).export is None


def test_profile_of_a_wrong_kernel_is_an_error_with_its_reason(world: World) -> None:
    world.verifier.wrong = set(fakes.keys(2))
    with pytest.raises(NoUsableVariant, match=r"no config was measured: error 0.5") as caught:
        profile(FP16, world.options(), world.progress)
    assert caught.value.exit_status == 4


def test_profile_of_a_config_that_cannot_run_says_why(world: World) -> None:
    too_big = fakes.default_config(B_c=512).short_form()
    with pytest.raises(NoUsableVariant, match=r"needs .* KiB of shared memory"):
        profile([too_big], world.options(), world.progress)
    assert any("smem_fits" in warning for warning in world.progress.warnings)
    too_big = fakes.default_config(B_c=512).short_form()
    result = profile([too_big, FP16[0]], world.options(references=()), world.progress)
    assert subjects(result) == [fakes.keys(1)[0]]


# bench and run ----------------------------------------------------------------------------------


def test_bench_times_with_events_whatever_was_asked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[MeasureOptions] = []

    def choose(options: MeasureOptions, *_: object, **__: object) -> ProfilerSelection:
        asked.append(options)
        return fakes.selected(world.profiler)

    monkeypatch.setattr(single, "choose_profiler", choose)
    world.configs = FP16
    result = bench(world.options(1024, profiler="ncu", runs=7), world.progress)
    assert [(o.profiler, o.runs) for o in asked] == [("events", 7)]
    assert subjects(result)[2:] == fakes.keys(2)


def test_bench_makes_a_recording_of_each_kind_of_inputs(world: World) -> None:
    world.configs = FP16
    folder = world.folder / "profiles"
    specs = (NORMAL, InputSpec.parse("falling"))
    bench(world.options(1024, record=folder), world.progress, specs)
    found = recordings.load_all(folder)
    assert {r.path.name for r in found} == {"tune_ncu.csv", "tune_falling_ncu.csv"}
    for recording in found:
        taken = {a.measurement.inputs for a in recording.attempts if a.measurement}
        assert taken == {recording.meta.inputs}
        assert {a.subject for a in recording.attempts} == {"ref:fa2", "ref:cudnn", *fakes.keys(2)}
        assert recording.meta.decided == {}


def test_bench_looks_first_whether_it_can_record(world: World) -> None:
    taken = world.folder / "file"
    taken.touch()
    with pytest.raises(StorageError):
        bench(world.options(1024, record=taken / "profiles"), world.progress)
    assert world.compiler.requests == []


@pytest.mark.parametrize(
    "command",
    [
        lambda options, progress: bench(options, progress),
        lambda options, progress: verify("tune", WorkloadOptions(), options.machine, progress),
        lambda options, progress: run(FP16[0], options, 5, progress),
    ],
    ids=["bench", "verify", "run"],
)
def test_what_needs_a_gpu_says_so_before_compiling(
    world: World, command: Callable[[SearchOptions, Progress], object]
) -> None:
    world.device = None
    with pytest.raises(ToolMissing, match="no GPU found") as caught:
        command(world.options(), world.progress)
    assert caught.value.exit_status == 3
    assert world.compiler.requests == []


def test_run_verifies_and_then_times_as_often_as_asked(world: World) -> None:
    world.configs = FP16[:1]
    result, report = run(FP16[0], world.options(1024), 11, world.progress)
    assert len(report.verdicts) == 2, "whole blocks and ragged lengths"
    assert all(v.correct for v in report.verdicts.values())
    times = {a.subject: a.measurement for a in result.attempts}
    assert set(times) == {"ref:fa2", "ref:cudnn", fakes.keys(1)[0]}
    assert {len(m.samples_s) for m in times.values() if m} == {11}


def test_run_does_not_time_what_is_wrong(world: World) -> None:
    world.configs = FP16[:1]
    world.verifier.wrong = {fakes.keys(1)[0]}
    result, report = run(FP16[0], world.options(), 5, world.progress)
    assert not any(v.correct for v in report.verdicts.values())
    assert result.attempts == ()
    assert world.profiler.plans == []


def test_run_of_a_kernel_that_crashes_is_an_error_with_its_reason(world: World) -> None:
    world.configs = FP16[:1]
    world.verifier.crashing = {fakes.keys(1)[0]: (Outcome.CRASHED, "an illegal address")}
    with pytest.raises(NoUsableVariant, match="an illegal address"):
        run(FP16[0], world.options(), 5, world.progress)


# build and verify -------------------------------------------------------------------------------


def test_build_needs_no_gpu(world: World) -> None:
    world.device = None
    world.compiler.refused = {fakes.keys(2)[1]: "ptxas ran out of registers"}
    machine = world.options(arch="sm_80").machine
    report = build("tune", (), machine, world.progress)
    assert report.arch == "sm_80"
    assert [r.outcome for r in report.results] == [
        Outcome.OK, Outcome.COMPILE_FAILED, Outcome.OK, Outcome.OK,
    ]  # fmt: skip
    assert {r.request.traits for r in report.results} == {"plain"}
    assert report.nvrtc
    assert world.verifier.verified == []


def test_build_lists_what_cannot_run(world: World) -> None:
    world.configs = [FP16[0], fakes.default_config(B_c=256).short_form()]
    report = build("tune", (), world.options(arch="sm_86").machine, world.progress)
    assert [variant.config for variant, _ in report.rejected][-1] == world.configs[1]
    assert all(reason.constraint == "smem_fits" for _, reason in report.rejected)


@pytest.mark.parametrize(
    ("kernels", "dtypes"), [("tune", {"FP16", "BF16"}), ("prog", {"FP16"}), ("prog-all", {"FP16"})]
)
def test_sets_bring_their_dtypes(
    world: World, monkeypatch: pytest.MonkeyPatch, kernels: str, dtypes: set[str]
) -> None:
    monkeypatch.setattr(single, "choose_configs", choose_configs)
    machine = world.options().machine
    report = build(kernels, (64, 128), machine, world.progress)
    assert {r.request.variant.config[1:5] for r in report.results} == dtypes
    assert all(r.request.traits == "plain" for r in report.results)
    assert len({r.request for r in report.results}) == len(report.results)


def test_verify_takes_every_verdict_anew_with_and_without_ragged_lengths(world: World) -> None:
    world.configs = FP16
    machine = world.options().machine
    for _ in range(2):
        world.verifier.verified.clear()
        report = verify("tune", WorkloadOptions(), machine, world.progress)
        assert world.verifier.verified == [
            f"{key} @ {traits}" for key in fakes.keys(2) for traits in ("plain", "ragged")
        ]
    assert list(report.verdicts) == world.verifier.verified
    assert report.failures == ()


def test_verify_reports_what_gave_no_verdict(world: World) -> None:
    first, second, third, fourth = fakes.keys(4)
    world.compiler.refused = {first: "no"}
    world.verifier.crashing = {second: (Outcome.TIMED_OUT, "silent for 60 s")}
    world.verifier.wrong = {third}
    report = verify("tune", WorkloadOptions(), world.options().machine, world.progress)
    ends = [(a.subject.partition(" @ ")[0], a.outcome) for a in report.failures]
    assert ends == [(first, Outcome.COMPILE_FAILED)] * 2 + [(second, Outcome.TIMED_OUT)] * 2
    assert {k for k, v in report.verdicts.items() if not v.correct} == {
        f"{third} @ plain",
        f"{third} @ ragged",
    }
    assert f"{fourth} @ plain" in report.verdicts
