"""What the tests of the ncu profiler measure with: a program that plays ncu, and plans."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fa_tune.core.errors import FaTuneError
from fa_tune.core.model import Artifact, Attempt, Outcome, Resources, Variant
from fa_tune.core.workload import DType, Workload
from fa_tune.profile.base import MeasurePlan
from fa_tune.profile.ncu.metrics import DURATION
from fa_tune.profile.ncu.profiler import NcuProfiler
from tests.profile.ncu.ncu_text import PREAMBLE, identity, raw

HERE = Path(__file__).parent
FAILURES = HERE / "data" / "failures"
WORKLOAD = Workload(1, 2, 2, 128, 128, 64, DType.FP16)
BOTH = ("fa2", "cudnn")
SILENCE_S = 0.6  # the time limit of a hanging item; ample for a report on a busy machine
NS = 1e-9


class FakeNcu:
    """The stand-in's path, its behaviour, and what it was asked."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = folder / "ncu"
        self.path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{HERE}/fake_ncu.py" "$@"\n')
        self.path.chmod(0o755)
        self._calls = folder / "calls.jsonl"
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("FAKE_NCU_CALLS", str(self._calls))
        self.behave()

    def behave(self, **behaviour: Any) -> None:
        self._monkeypatch.setenv("FAKE_NCU", json.dumps(behaviour))

    @property
    def calls(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._calls.read_text().splitlines()]

    @property
    def profiled(self) -> list[dict[str, Any]]:
        """The calls that ran a program."""
        return [call for call in self.calls if call["program"]]


def artifact(name: str, behaviour: str) -> Artifact:
    resources = Resources(168, 0, 0, 0, 0, 49152, 128, 2)
    variant = Variant("sm80", name)
    return Artifact(variant, "plain", "sm_90", behaviour, f"_Z{len(name)}{name}", resources)


def plan(*behaviours: str, references: tuple[str, ...] = (), **changes: Any) -> MeasurePlan:
    """Variants a, b, c, … with these behaviours."""
    made = [artifact(name, b) for name, b in zip("abcdefgh", behaviours, strict=False)]
    artifacts = {a.variant.key: a for a in made}
    return MeasurePlan(WORKLOAD, artifacts, references, item_timeout_s=30.0, **changes)


def hanging(*behaviours: str, **changes: Any) -> MeasurePlan:
    """A plan whose patience is short."""
    return replace(plan(*behaviours, **changes), item_timeout_s=SILENCE_S)


def measure(profiler: NcuProfiler, wanted: MeasurePlan) -> dict[str, Attempt]:
    """Attempts by subject; every subject of the plan must have exactly one."""
    attempts = list(profiler.measure_all([wanted], lambda _: None))
    assert sorted(a.subject for a in attempts) == sorted(wanted.subjects)
    return {a.subject: a for a in attempts}


def samples_ns(attempt: Attempt) -> list[int]:
    assert attempt.outcome is Outcome.OK, attempt.reason
    assert attempt.measurement is not None
    return [round(s / NS) for s in attempt.measurement.samples_s]


def outcomes(attempts: dict[str, Attempt]) -> dict[str, Outcome]:
    return {subject.removeprefix("sm80:"): a.outcome for subject, a in attempts.items()}


def refused(profiler: NcuProfiler, wanted: MeasurePlan) -> FaTuneError:
    with pytest.raises(FaTuneError) as caught:
        list(profiler.measure_all([wanted], lambda _: None))
    assert "\n" not in str(caught.value)
    return caught.value


def fake_log(kernel: str, duration: object) -> str:
    return PREAMBLE + raw([(DURATION, "ns")], (identity(kernel=kernel), [str(duration)]))
