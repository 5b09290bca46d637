"""Replays of recordings that are older than the default."""

import dataclasses

import pytest

from fa_tune import families
from fa_tune.core.arch import parse_arch
from fa_tune.core.workload import DType, Workload
from fa_tune.families.former import former_defaults
from fa_tune.tune.candidates import Defaults, default_keys


@pytest.mark.parametrize(
    "workload",
    [
        Workload(1, 4, 4, 512, 512, 128, DType.FP16),
        Workload(16, 16, 16, 512, 512, 64, DType.BF16),
        Workload(2, 8, 8, 4096, 4096, 64, DType.BF16, causal=True, window_left=127),
        Workload(1, 4, 4, 512, 512, 192, DType.FP16),
        Workload(1, 4, 4, 512, 512, 256, DType.FP16),
    ],
)
def test_a_recording_without_todays_default_has_the_one_of_its_time(workload: Workload) -> None:
    able = tuple(families.all_families())
    measured = Defaults(parse_arch("sm_90a"), able, able)
    today = next(c for c in measured.of(workload) if families.of(c).name == "sm90")
    others = [c for c in measured.of(workload) if c != today]
    *_, former = former_defaults(families.of(today), today)
    subject = families.variant(former).key
    assert subject in default_keys(workload, measured.limits, {subject})
    for taken, expected in (({subject}, former), ({subject, families.variant(today).key}, today)):
        replayed = dataclasses.replace(measured, recorded={workload.key: taken}).of(workload)
        assert expected in replayed
        assert [c for c in replayed if c != expected] == others
    elsewhere = dataclasses.replace(measured, recorded={"another": {subject}})
    assert elsewhere.of(workload) == measured.of(workload)
