"""The flow: expand → reject → compile → verify → measure → decide → registry.

Each function takes frozen options and a Progress, and returns values; nothing here prints.

    context.py    the device, its limits, the stores; sets as configs; compiling
    checks.py     verification through workers, remembered
    measuring.py  which profiler; measuring behind the journal
    search.py     the search on one screen
    keeping.py    registry, CSV, recordings
    space_*.py    configs as points for strategies; recording a whole space
    board*.py     one GPU, wherever it is; several at work, each job on one of them
    spreading.py  workloads over boards; heats.py: one workload over boards
    carrying.py   what another board measured; calibrating.py: how far boards disagree
    ray_boards.py boards of a Ray cluster; remote.py: what their actors do
    single.py     profile, bench, run, build, verify
    doctor.py     is everything here that the commands need
"""

from __future__ import annotations

from fa_tune.pipeline.context import ready_workers
from fa_tune.pipeline.doctor import doctor
from fa_tune.pipeline.results import (
    BuildReport,
    Check,
    ProfileResult,
    RecordedSpace,
    SearchResult,
    VerifyReport,
    WorkloadResult,
)
from fa_tune.pipeline.search import search
from fa_tune.pipeline.single import bench, build, profile, run, verify
from fa_tune.pipeline.space_recording import record_space

__all__ = [
    "BuildReport",
    "Check",
    "ProfileResult",
    "RecordedSpace",
    "SearchResult",
    "VerifyReport",
    "WorkloadResult",
    "bench",
    "build",
    "doctor",
    "profile",
    "ready_workers",
    "record_space",
    "run",
    "search",
    "verify",
]
