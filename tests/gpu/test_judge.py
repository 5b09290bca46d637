"""A judge on a GPU: the examples are accepted, and what only a GPU makes possible is refused."""

from collections.abc import Iterator

import pytest

from fa_tune.core.devices import pinned_to
from fa_tune.core.judged import JudgeReport
from fa_tune.core.options import MachineOptions, Silent
from fa_tune.core.workload import Workload
from fa_tune.libraries.user import locate
from fa_tune.tune.judge.flow import report
from fa_tune.tune.judge.process import Limits, Process, started
from fa_tune.tune.judge.trial import JudgeOptions, Trial
from fa_tune.tune.session import Machine, open_machine
from tests.project_files import ROOT

pytestmark = pytest.mark.gpu

WORKLOAD = Workload.from_key("b2_h8_kv8_q1024_k1024_d64_fp16_full")
LIMITS = Limits(60.0)
CHEATS = {
    "another_stream": {"unwritten"},
    "another_stream_that_waits": {"unwritten"},
    "the_default_stream": {"unwritten"},
    "a_stream_left_current": {"unwritten"},
    "a_thread_behind_the_event": {"unwritten"},
    "a_graph_of_another_moment": {"wrong", "kept", "unwritten"},
    "kept_by_pointer": {"kept"},
    "kept_by_contents": {"kept"},
    "events_replaced": {"patched"},
    "inputs_changed": {"inputs"},
    "a_librarys_kernel": {"library"},
    "an_illegal_address": {"crashed"},
}


@pytest.fixture(scope="module")
def machine() -> Machine:
    return open_machine(MachineOptions(), Silent())


@pytest.fixture(scope="module")
def ours(machine: Machine) -> Iterator[Process]:
    with _process(machine, trusted=True) as process:
        yield process


def _process(machine: Machine, *, trusted: bool):
    (gpu, *_) = machine.pool.gpus
    return started(gpu.worker_device, pinned_to(gpu.device.uuid), LIMITS, trusted=trusted)


def _report(place: str, claim: str, machine: Machine, ours: Process) -> JudgeReport:
    options = JudgeOptions(workloads=(WORKLOAD,), claim=claim, seed=11, runs=7, limits=LIMITS)
    with _process(machine, trusted=False) as theirs:
        return report(Trial(locate(str(ROOT / place)), options, machine, ours, theirs), Silent())


@pytest.mark.parametrize(
    ("place", "claim"),
    [
        ("examples/torch_attention.py:attention", "library"),
        ("examples/row_attention.cu:rows", "kernel"),
    ],
)
def test_the_examples_are_accepted(place: str, claim: str, machine: Machine, ours: Process) -> None:
    report = _report(place, claim, machine, ours)
    assert report.accepted, report.refusals
    assert report.timings[0].samples_s


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_refused(name: str, machine: Machine, ours: Process) -> None:
    claim = "torch" if name == "a_librarys_kernel" else "library"
    report = _report(f"tests/judge/cheats/on_a_gpu.py:{name}", claim, machine, ours)
    assert {refusal.kind for refusal in report.refusals} & CHEATS[name], report.refusals
