"""What shares a process below ncu."""

from __future__ import annotations

from fa_tune.core.workload import Workload
from fa_tune.profile.base import MeasurePlan
from fa_tune.profile.ncu.match_launches import assign_launches
from fa_tune.profile.ncu.profiler import _batches
from tests.profile.ncu.test_match_launches import launch
from tests.tune import fakes

WORKLOAD = Workload.from_key("b1_h2_kv2_q64_k64_d64_fp16_full")


def test_a_users_kernel_is_alone_and_its_launches_are_its_own() -> None:
    plan = MeasurePlan(WORKLOAD, fakes.artifacts(2), ("fa2", "user:m:f"))
    alone, others = ([item.subject for item in batch.values()] for batch in _batches([plan]))
    assert alone == ["user:m:f"]
    assert others == ["ref:fa2", *fakes.keys(2)]
    names = ("flash_fwd_kernel", "mine", "flash_fwd_kernel", "mine")
    launches = [launch(name, number=n) for n, name in enumerate(names)]
    found = assign_launches(["m", "m"], {}, {"m": "user:m:f"}, launches)
    assert found == {"m": launches}
