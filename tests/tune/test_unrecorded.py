"""What a replay cannot answer is told before anything is compiled."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fa_tune import families
from fa_tune.build.compile import BuildRequest
from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.model import Attempt, Measurement, Outcome, Quantity
from fa_tune.core.options import Silent
from fa_tune.core.workload import BACKWARD, DType, Workload, benchmark_workload
from fa_tune.families.decode.config import Combine
from fa_tune.profile.replay import ReplayProfiler
from fa_tune.store import recordings
from fa_tune.store.recordings import Meta, Recording
from fa_tune.store.table.columns import REGISTERS
from fa_tune.tune.build import _recorded_builds
from fa_tune.tune.session import ProfilerSelection
from fa_tune.tune.unrecorded import recorded_only
from tests.store.test_recordings import ORIGIN
from tests.tune.fakes import H200

HELD = benchmark_workload(4096, 128, DType.FP16)
SUBJECT = "ref:fa2"


def recording_of(workload: Workload) -> Recording:
    measured = Measurement(SUBJECT, workload.key, "ncu", (1.0,))
    attempt = Attempt(SUBJECT, workload.key, Outcome.OK, "", measured)
    return Recording(Path("a.csv"), Meta(recordings.SCHEMA, H200, ORIGIN), (attempt,))


def replaying() -> ProfilerSelection:
    recording = recording_of(HELD)
    profiler = ReplayProfiler(
        {"a": {}}, method="ncu", version="", arguments=(), clock_policy="", cache_policy=""
    )
    return ProfilerSelection(profiler, H200, "recorded", recording, (recording,))


def test_what_is_recorded_is_kept_and_the_rest_warned_of() -> None:
    progress = Silent()
    grouped = dataclasses.replace(HELD, kv_heads=4)
    assert recorded_only([HELD, grouped], replaying(), progress) == (HELD,)
    (warning,) = progress.warnings
    assert "--kv-heads 16" in warning
    assert grouped.key in warning


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kv_heads": 4}, "--kv-heads 16"),
        ({"seq_len_q": 1}, "--seq-lens 4096"),
        ({"dtype": DType.BF16}, "--dtype fp16"),
        ({"causal": True}, "--mask full"),
        ({"op": BACKWARD}, "--op forward"),
    ],
)
def test_the_part_that_is_missing_is_named(change: dict[str, object], said: str) -> None:
    wanted = dataclasses.replace(HELD, **change)  # type: ignore[arg-type]
    with pytest.raises(NoUsableVariant) as error:
        recorded_only([wanted], replaying(), Silent())
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_what_computes_the_same_is_nearer_than_what_differs_less() -> None:
    selection = replaying()
    backward = dataclasses.replace(HELD, op=BACKWARD, dtype=DType.BF16, batch=2)
    held = [recording_of(HELD), recording_of(backward)]
    selection = dataclasses.replace(selection, of_same_gpu=tuple(held))
    with pytest.raises(NoUsableVariant) as error:
        recorded_only([dataclasses.replace(HELD, op=BACKWARD)], selection, Silent())
    assert "--dtype bf16" in str(error.value)
    wanted = dataclasses.replace(HELD, seq_len_q=1, window_left=99, cache_lengths="equal")
    assert wanted.bottom_right
    with pytest.raises(NoUsableVariant) as error:
        recorded_only([wanted], replaying(), Silent())
    assert "--mask" not in str(error.value)
    assert "no --window-left" in str(error.value)


def test_the_nearest_head_dimension_is_named() -> None:
    held = tuple(recording_of(dataclasses.replace(HELD, d_head=d)) for d in (64, 128, 256))
    selection = dataclasses.replace(replaying(), of_same_gpu=held)
    for asked, nearest in ((40, 64), (120, 128), (224, 256)):
        with pytest.raises(NoUsableVariant, match=f"--d-head {nearest}:"):
            recorded_only([dataclasses.replace(HELD, d_head=asked)], selection, Silent())


@pytest.fixture
def _one_family() -> None:
    """All of them: one has calls of two launches."""


def test_a_kernel_of_a_replay_has_the_newest_count_and_the_memory_that_is_planned() -> None:
    """Of a call with a second launch, which needs none."""
    config: Any = families.parse("decode(FP16, 128, 16, 64, 4): ctas_2")
    config = dataclasses.replace(config, combine=Combine.KERNEL)
    subject, traits = families.variant(config).key, "plain"

    def recording(registers: int) -> Any:
        counters = {REGISTERS: Quantity(registers, "register/thread")}
        taken = Measurement(subject, HELD.key, "ncu", (1e-3,), counters)
        return SimpleNamespace(
            attempts=[Attempt(subject, HELD.key, Outcome.OK, "", taken)], label=str(registers)
        )

    selection: Any = SimpleNamespace(recordings=(recording(168), recording(200)))
    request = BuildRequest(families.variant(config), traits, "sm_90")
    found = _recorded_builds(selection, [HELD], [{(subject, traits): request}])
    artifact = found[subject, traits].artifact
    launches = families.of(config).plan(config, traits, "sm_90").launches
    assert sorted(launch.dynamic_smem_bytes for launch in launches) == [0, config.smem_bytes]
    used = artifact.resources
    assert (used.registers, used.dynamic_smem_bytes) == (168, config.smem_bytes)
