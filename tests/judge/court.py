"""A small court: one timed problem, few cases, and a trusted process for all targets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fa_tune.core.judged import JudgeReport
from fa_tune.core.options import MachineOptions, Silent
from fa_tune.core.workload import Workload
from fa_tune.libraries.user import locate
from fa_tune.tune.fleet.pool import Pool
from fa_tune.tune.judge.flow import CPU, ONE_THREAD, report
from fa_tune.tune.judge.process import Limits, Process, started
from fa_tune.tune.judge.trial import JudgeOptions, Trial
from fa_tune.tune.session import open_machine
from tests.judge.copies import REMEMBERING

HERE = Path(__file__).parent
FULL = Workload.from_key("b1_h2_kv2_q128_k128_d16_fp16_full")
CAUSAL = replace(FULL, causal=True)
BF16 = Workload.from_key("b2_h4_kv2_q128_k192_d16_bf16_full")
# Small cases come first with this seed, and soon one that was drawn: most cheats show in them.
OPTIONS = JudgeOptions(
    workloads=(FULL,), claim="torch", seed=19, runs=5, limits=Limits(120.0, 4 << 30)
)

NO_GPU = replace(open_machine(MachineOptions(), Silent()), pool=Pool(()))


@contextmanager
def trusted() -> Iterator[Process]:
    """A process that knows what must come out."""
    with started(CPU, ONE_THREAD | REMEMBERING, Limits(), trusted=True) as process:
        yield process


def verdict(place: str, ours: Process, options: JudgeOptions = OPTIONS) -> JudgeReport:
    """The report about a target of this folder."""
    with started(CPU, ONE_THREAD, options.limits, trusted=False) as theirs:
        target = locate(str(HERE / place))
        return report(Trial(target, options, NO_GPU, ours, theirs), Silent())
