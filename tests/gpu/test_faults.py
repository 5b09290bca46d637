"""A kernel that crashes, hangs or is wrong costs only itself, whoever runs it."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from fa_tune import families
from fa_tune.build.compile import BuildRequest
from fa_tune.core.errors import ToolMissing
from fa_tune.core.model import Artifact, Attempt, Outcome
from fa_tune.core.options import MachineOptions, MeasureOptions, Silent
from fa_tune.core.workload import DType, Workload
from fa_tune.families.sm80.sets import get_kernel_configs
from fa_tune.profile.base import MeasurePlan, Profiler
from fa_tune.profile.events import EventsProfiler
from fa_tune.profile.ncu.profiler import NcuProfiler
from fa_tune.tune.profilers import choose_profiler
from fa_tune.tune.session import open_machine, open_session
from fa_tune.tune.verify import verdict_key, verify_all
from tests.gpu.conftest import Built
from tests.gpu.faulty_kernels import compile_faulty, disguised

pytestmark = pytest.mark.gpu

N_GOOD = 28
PATIENCE_S = 15.0  # the first item of a worker also loads torch's libraries
WORKLOAD = Workload(2, 4, 4, 512, 512, 128, DType.FP16)


@pytest.fixture(scope="module")
def artifacts(built: Built, arch: str) -> list[Artifact]:
    """The good ones and as many to be replaced."""
    configs = get_kernel_configs("tune", dtypes=[DType.FP16], d_head=128)
    family = families.get("sm80")
    variants = [families.variant_of(family, config) for config in configs]
    return built([BuildRequest(variant, "plain", arch) for variant in variants])


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory, arch: str) -> Path:
    return compile_faulty(tmp_path_factory.mktemp("faulty"), arch, 128)


def mixed(
    artifacts: Sequence[Artifact], cubin: Path, names: Sequence[str]
) -> tuple[list[Artifact], dict[str, str]]:
    """Good artifacts with failing ones spread among them, and their subjects by name."""
    assert len(artifacts) >= N_GOOD + len(names)
    found = list(artifacts[: N_GOOD + len(names)])
    failing = {}
    for number, name in enumerate(names):
        place = 5 + 8 * number
        found[place] = disguised(found[place], cubin, name)
        failing[name] = found[place].variant.key
    return found, failing


def test_verification_names_every_failing_kernel(
    artifacts: list[Artifact], faulty: Path, tmp_path: Path
) -> None:
    names = ("illegal_address", "endless", "wrong_numbers")
    everyone, failing = mixed(artifacts, faulty, names)
    machine = open_machine(MachineOptions(cache_dir=tmp_path), Silent())
    measure = MeasureOptions(profiler="events", references=(), item_timeout_s=PATIENCE_S)
    selection = choose_profiler(measure, machine, Silent())
    session = open_session(machine, selection, measure, Silent())

    def verify() -> tuple[dict[str, bool], dict[str, Attempt]]:
        found = verify_all(session, everyone)
        return {key: v.correct for key, v in found.verdicts.items()}, dict(found.failures)

    verdicts, failures = verify()
    keys = {name: f"{subject} @ plain" for name, subject in failing.items()}
    assert {key: a.outcome for key, a in failures.items()} == {
        keys["illegal_address"]: Outcome.CRASHED,
        keys["endless"]: Outcome.TIMED_OUT,
    }
    assert "CUDA error" in failures[keys["illegal_address"]].reason
    assert len(verdicts) == N_GOOD + 1
    assert [key for key, correct in verdicts.items() if not correct] == [keys["wrong_numbers"]]
    assert {verdict_key(a) for a in everyone} == {*verdicts, *failures}
    # Remembered: nothing runs a second time.
    assert verify() == (verdicts, failures)


def outcomes(
    profiler: Profiler,
    artifacts: Sequence[Artifact],
    *,
    runs: int = 1,
    references: tuple[str, ...] = (),
) -> dict[str, Outcome]:
    """Measures; whoever is well must have all its samples."""
    plan = MeasurePlan(
        WORKLOAD,
        {a.variant.key: a for a in artifacts},
        references,
        runs=runs,
        adaptive=False,
        item_timeout_s=PATIENCE_S,
    )
    attempts = list(profiler.measure_all([plan], lambda _: None))
    assert sorted(a.subject for a in attempts) == sorted(plan.subjects)
    for attempt in attempts:
        assert (attempt.measurement is not None) == (attempt.outcome is Outcome.OK)
        if attempt.measurement is not None:
            assert len(attempt.measurement.samples_s) == runs
            assert all(0 < s < 1 for s in attempt.measurement.samples_s)
    return {a.subject: a.outcome for a in attempts}


def test_events_names_every_failing_kernel(artifacts: list[Artifact], faulty: Path) -> None:
    names = ("illegal_address", "endless", "wrong_numbers")
    everyone, failing = mixed(artifacts, faulty, names)
    found = outcomes(EventsProfiler(), everyone, runs=2, references=("fa2",))
    assert found.pop("ref:fa2") is Outcome.OK
    assert {name: found.pop(subject) for name, subject in failing.items()} == {
        "illegal_address": Outcome.CRASHED,
        "endless": Outcome.TIMED_OUT,
        "wrong_numbers": Outcome.WRONG_RESULT,
    }
    assert list(found.values()) == [Outcome.OK] * N_GOOD


@pytest.mark.parametrize(
    ("names", "ends"),
    [
        (("illegal_address", "endless"), (Outcome.CRASHED, Outcome.TIMED_OUT)),
        # These begin only when ncu is looking.
        (("illegal_address_later",), (Outcome.CRASHED,)),
        (("endless_later",), (Outcome.TIMED_OUT,)),
    ],
    ids=["before the window", "crash inside the window", "hang inside the window"],
)
def test_ncu_names_every_failing_kernel(
    artifacts: list[Artifact], faulty: Path, names: tuple[str, ...], ends: tuple[Outcome, ...]
) -> None:
    everyone, failing = mixed(artifacts, faulty, names)
    try:
        found = outcomes(NcuProfiler(), everyone, references=("fa2",))
    except ToolMissing as error:
        pytest.skip(f"ncu cannot measure here: {error}")
    assert found.pop("ref:fa2") is Outcome.OK
    assert tuple(found.pop(failing[name]) for name in names) == ends
    assert list(found.values()) == [Outcome.OK] * N_GOOD
