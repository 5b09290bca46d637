"""Jobs cross to a worker and back as JSON, and name handlers that there are."""

import ast
import itertools
import json
from dataclasses import replace
from typing import Any

import pytest

from fa_tune.core import codec
from fa_tune.core.jobs import (
    PARTIALS,
    WARM_UP_MODULES,
    ABTestItem,
    ABTestJob,
    ABTestResult,
    CompareInputsJob,
    InputsItem,
    InputsResult,
    KernelItem,
    ProbeItem,
    ProbeJob,
    ProfileJob,
    Reading,
    Round,
    TimeJob,
    TimeResult,
    VerifyJob,
    WorkloadItem,
)
from fa_tune.core.model import is_reference
from fa_tune.tune.fleet.ray_actor import files_of
from tests.project_files import ROOT

KERNEL = KernelItem("sm80:a", "a.cubin", ("kernel_a",), "plain", "sm_80")
VERIFY = WorkloadItem("sm80:a", "a.cubin", ("kernel_a", "combine_a"), "causal", "sm_80")
WORKLOAD = "b1_h1_kv1_q64_k64_d64_fp16_full"
PROFILED = WorkloadItem("sm80:a", "a.cubin", ("kernel_a",), workload=WORKLOAD)
TIME = TimeJob(
    items={"sm80:a": KERNEL, "ref:fa2": KernelItem("ref:fa2")},
    device=1,
    workload=WORKLOAD,
    runs=5,
    seed=3,
    keep=("sm80:a",),
    baseline="sm80:a",
    adaptive=True,
    order=(),
    margin=0.01,
    check=False,
)
JOBS: list[Any] = [
    VerifyJob(items={"x": VERIFY}, device=0, seed=1, item_timeout_s=9.0),
    VerifyJob(items={"x": VERIFY}, device=0, seed=1),
    TIME,
    ProfileJob(items={"sm80:a": PROFILED}, device=0, rounds=3, seed=0),
    VerifyJob(items={"x": VERIFY}, device=0, seed=0, thorough=True, inputs=("sink", "peaked")),
    ABTestJob(items={WORKLOAD: ABTestItem("a", "b", "x", "y")}, device=0, seed=0, cache_dir="/c"),
    CompareInputsJob(
        items={
            "x": InputsItem(WORKLOAD, "falling", (KERNEL, KERNEL), "trained"),
            "y": InputsItem(WORKLOAD, "trained", (KERNEL, KERNEL)),
        },
        device=0,
        seed=0,
    ),
    ProbeJob(items={"probe": ProbeItem()}, device=0),
]
RESULTS: list[Any] = [
    TimeResult(
        samples_s=(1e-3, 2e-3),
        relative=(0.9, 1.1),
        sm_clock_hz=None,
        host_s=2e-5,
        sets=3,
        launches_per_sample=1,
        stop_reason="the choice was decided",
        flagged={"1": "hot"},
        rounds=(Round(1, 1e-3, None, Reading(1.8e9, reasons=("hot",)), ("hot",)),),
    ),
    ABTestResult((1e-3,), (2e-3,)),
    InputsResult(((1e-3,), (2e-3,)), ((1.0,), (2.0,))),
    InputsResult(((1e-3,), (2e-3,)), ((1.0,), (2.0,)), (1.1,)),
]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: type(job).__name__)
def test_a_job_reaches_the_worker_as_it_was(job: Any) -> None:
    _, shared, items = json.loads(json.dumps(job.request()))
    assert type(job).read(shared, items) == replace(job, partials=dict.fromkeys(job.items, ()))


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: type(result).__name__)
def test_a_result_comes_back_as_it_was(result: Any) -> None:
    assert codec.load(type(result), json.loads(json.dumps(codec.dump(result)))) == result


def test_partials_stand_beside_their_item() -> None:
    _, shared, items = TIME.request()
    items["sm80:a"][PARTIALS] = [[1e-3, None], [2e-3, 0.9]]
    job = TimeJob.read(shared, items)
    assert job.partials == {"sm80:a": ((1e-3, None), (2e-3, 0.9)), "ref:fa2": ()}


def test_a_librarys_kernel_has_no_files() -> None:
    """Whoever sends files along would look for them."""
    _, _, items = TIME.request()
    assert list(files_of(items)) == ["a.cubin"]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: type(job).__name__)
def test_the_handler_is_there(job: Any) -> None:
    """Not imported: it needs torch."""
    module, _, function = job.handler.partition(":")
    source = (ROOT / f"{module.replace('.', '/')}.py").read_text()
    found = [n.name for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)]
    assert function in found


def test_what_is_imported_before_there_is_work_are_handlers() -> None:
    assert set(WARM_UP_MODULES) <= {job.handler.partition(":")[0] for job in JOBS}


@pytest.mark.parametrize("seed", range(8))
def test_a_library_does_not_follow_itself_from_workload_to_workload(seed: int) -> None:
    subjects = {f"w {s}": s for s in ("ref:fa2", "ref:cudnn", "sm80:a")}
    items = {name: WorkloadItem(s, workload=WORKLOAD) for name, s in subjects.items()}
    job = ProfileJob(items=items, device=0, rounds=1, seed=seed)
    free, bound = job.order(0, list(items)), job.order(0, list(items), last="ref:fa2")
    assert sorted(bound) == sorted(free) == sorted(items)
    assert bound[-1] == "w ref:fa2"
    assert job.order(0, list(items), last="sm80:a") == free, "its symbol tells it"


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("n", [3, 4, 20])
def test_one_of_ours_follows_each_library(seed: int, n: int) -> None:
    """By its symbol the library's launches can be told from those of the next."""
    subjects = ["ref:fa2", "ref:cudnn", "ref:flex", *(f"sm80:{i}" for i in range(n))]
    items = {s: WorkloadItem(s, workload=WORKLOAD) for s in subjects}
    job = ProfileJob(items=items, device=0, rounds=2, seed=seed)
    rounds = [job.order(i, subjects) for i in (0, 1)]
    assert all(sorted(order) == sorted(subjects) for order in rounds)
    assert n < 20 or rounds[0] != rounds[1]
    launched = [is_reference(s) for order in rounds for s in order]
    assert not any(pair == (True, True) for pair in itertools.pairwise(launched))


def test_with_few_of_ours_all_are_launched() -> None:
    subjects = ["ref:fa2", "ref:cudnn", "ref:flex", "sm80:a"]
    items = {s: WorkloadItem(s, workload=WORKLOAD) for s in subjects}
    order = ProfileJob(items=items, device=0, rounds=1, seed=0).order(0, subjects)
    assert sorted(order) == sorted(subjects)
