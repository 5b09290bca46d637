"""Kernels and problems that a campaign draws: the same from the same number, with the kernel's
traits, right as they are, and not once a result is spoilt."""

from __future__ import annotations

import dataclasses
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from tests.kernels.emulated.campaign import main
from tests.kernels.emulated.drawing import draw_kernel, draw_trial
from tests.kernels.emulated.emulation import build, schedules
from tests.kernels.emulated.hard_scores import PATTERNS
from tests.kernels.emulated.problems import GUARD

KINDS = (("sm90", "dense"), ("sm90", "packed"), ("sm80", "data"), ("decode", "decode"))
# Kernels with a log-sum-exp that compile quickly, of which one has masks.
SMALL = (("sm80", "packed", "2"), ("decode", "decode", "31"), ("sm80", "data", "2"))


@pytest.mark.parametrize(("family", "kind"), KINDS)
def test_a_number_says_a_kernel_and_its_problems(family: str, kind: str) -> None:
    kernels = [draw_kernel(family, kind, f"{n}") for n in range(3)]
    assert kernels == [draw_kernel(family, kind, f"{n}") for n in range(3)]
    assert len({kernel.request for kernel in kernels}) > 1
    for kernel in kernels:
        names = [draw_trial(kernel, f"{n}").name for n in range(2)]
        assert names == [draw_trial(kernel, f"{n}").name for n in range(2)]


def test_problems_of_data_have_all_patterns() -> None:
    kernel = draw_kernel("sm90", "data", "0")
    names = [draw_trial(kernel, f"{n}").name for n in range(200)]
    assert all(any(f" {pattern} " in name for name in names) for pattern in PATTERNS)


@pytest.mark.parametrize(("family", "kind", "number"), SMALL)
def test_what_is_wrong_is_said(family: str, kind: str, number: str, libraries: Path) -> None:
    drawn = draw_kernel(family, kind, number)
    assert drawn.lse
    kernel = build(drawn.request, libraries)
    for schedule, n in zip(islice(schedules(0), 2), range(2), strict=True):
        trial = draw_trial(drawn, f"{n}")
        result = trial.run(kernel, schedule)
        assert not trial.judge(result).faults
        assert trial.judge(dataclasses.replace(result, wrote_elsewhere=True)).faults
        for where in (0, GUARD + int(np.flatnonzero(np.isfinite(result.lse[GUARD:]))[0])):
            lse = result.lse.copy()
            lse[where] = 0.5 + (0.0 if where == 0 else lse[where])
            assert trial.judge(dataclasses.replace(result, lse=lse)).faults
        result.out.inside[...] ^= 0x40  # a bit in the upper half of a fraction
        assert trial.judge(result).faults


def test_a_campaign_of_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["--family", "decode", "--draw", "packed"])
    assert refused.value.code == 2
    assert "decode" in capsys.readouterr().err
