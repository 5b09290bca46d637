from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from fa_tune.commands.views.verdicts import check_users
from fa_tune.core import hooks
from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.inputs import BUILT_IN
from fa_tune.core.model import Outcome, Rejected, Variant, Verdict
from fa_tune.tune.results import VerifyReport
from tests.commands import fakes
from tests.commands.console import Console
from tests.commands.fakes import Put, Stub
from tests.project_files import ROOT

pytestmark = pytest.mark.usefixtures("wide_terminal")

REJECTED = ((Variant("sm80", fakes.BROKEN), Rejected("smem_fits", "needs 246 KiB")),)


@pytest.fixture
def verify(stub: Put) -> Stub:
    return stub("fa_tune.tune.single.verify", fakes.verify_report())


def test_all_right_is_status_0(console: Console, verify: Stub) -> None:
    verify.result = VerifyReport({fakes.key(fakes.FAST): fakes.verdict()}, (), REJECTED)
    done = console("verify", "--d-head", "64,128", "--arch", "9.0")
    assert done.status == 0
    kernels, workloads, machine, _ = verify.calls[0]
    assert (kernels, workloads.d_heads, machine.arch) == ("fast", (64, 128), "sm_90")
    assert f"| ✓ | {fakes.FAST} " in done.out
    assert "1.00e-03 | 2.00e-03 |     50 %" in done.out
    assert "1 of 1 right; 1 cannot run on this GPU." in done.out
    assert f"not tried: {fakes.BROKEN}: smem_fits: needs 246 KiB" in done.lines


@pytest.mark.parametrize(
    ("words", "masks", "common"),
    [
        ((), ("full",), {}),
        (("--mask", "causal,full", "--lse"), ("causal", "full"), {"lse": True}),
        (("--mask", "causal_br"), ("causal_br",), {}),
        (
            ("--window-left", "127", "--sink", "--lengths", "equal", "--d-head-v", "64"),
            ("full",),
            {"window_left": 127, "sink": True, "lengths": "equal", "d_head_v": 64},
        ),
        (("--softcap", "50", "--alibi"), ("full",), {"softcap": 50.0, "alibi": True}),
    ],
)
def test_masks_and_features_are_asked_for(
    console: Console, verify: Stub, words: tuple[str, ...], masks: object, common: object
) -> None:
    console("verify", *words)
    workloads = verify.calls[0][1]
    assert (workloads.masks, workloads.common) == (masks, common)


def test_the_case_that_is_nearest_its_limit_is_shown_with_its_root_mean_square(
    console: Console, verify: Stub
) -> None:
    (case,) = fakes.verdict().cases[:1]
    case = dataclasses.replace(case, rms_error=1e-4, reference_rms_error=1e-4, rms_limit=1.2e-4)
    verify.result = VerifyReport({fakes.key(fakes.FAST): Verdict(True, (case,))}, (), ())
    assert "1.00e-04 |  1.20e-04 |      1.00e-03 | 2.00e-03 |     83 %" in console("verify").out
    shown = console("verify", "--json").json["verdicts"][0]["cases"][0]
    assert (shown["rms_error"], shown["rms_limit"], shown["inputs"]) == (1e-4, 1.2e-4, "normal")
    cases = (*fakes.verdict(1e-4).cases, *fakes.verdict(1.8e-3).cases, *fakes.verdict(5e-4).cases)
    verify.result = fakes.verify_report(**{fakes.key(fakes.FAST): Verdict(True, cases)})
    assert "90 %" in console("verify").out


def test_wrong_and_crashed_come_first_and_are_status_4(console: Console, verify: Stub) -> None:
    verify.result = VerifyReport(
        {
            fakes.key(fakes.FAST): fakes.verdict(),
            fakes.key(fakes.SLOW): fakes.verdict(error=float("nan")),
        },
        (fakes.failed(fakes.key(fakes.BROKEN), Outcome.CRASHED, "an illegal\naddress"),),
        (),
    )
    done = console("verify")
    assert done.status == 4
    rows = [line for line in done.out.splitlines() if line.startswith(("| ✓", "| ✗"))]
    order = (fakes.SLOW, fakes.BROKEN, fakes.FAST)
    assert all(name in row for row, name in zip(rows, order, strict=True))
    assert ["✓" in row for row in rows] == [False, False, True]
    assert "inf %" in rows[0]
    assert "crashed: an illegal address" in rows[1]
    assert done.lines == ["error: 1 of 3 right, 1 wrong, 1 without a verdict"]


def test_json_has_names_for_what_json_lacks(console: Console, verify: Stub) -> None:
    wrong = Verdict(False, fakes.verdict(error=float("nan")).cases, "NaN in the result")
    verify.result = VerifyReport({fakes.key(fakes.SLOW): wrong}, (), REJECTED)
    done = console("verify", "--json")
    assert done.status == 4
    document = done.json
    assert document["verdicts"][0]["cases"][0]["max_abs_error"] == "nan"
    assert document["rejected"][0]["constraint"] == "smem_fits"
    verify.result = VerifyReport({}, (), REJECTED)
    done = console("verify")
    assert done.status == 4
    assert not done.out


def test_inputs_beside_its_own(console: Console, verify: Stub) -> None:
    console("verify")
    console("verify", "--inputs", "all", "--thorough")
    console("verify", "--inputs", "sink, peaked:3", "--inputs", "sink", "--inputs", "file:/a,b")
    own, every, some = (call["inputs"] for call in verify.named)
    assert (own, every) == ((), BUILT_IN)
    assert list(map(str, some)) == ["sink", "peaked:3", "file:/a,b"]
    assert [call["thorough"] for call in verify.named] == [False, True, False]


def test_a_score_hook_is_given_by_its_file(
    console: Console, verify: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(hooks.FILES, "")
    file = tmp_path / "hook.cuh"
    file.write_text("__device__ float score_hook(float s, int, int, int, int) { return -s; }")
    console("verify", "--score-hook", str(file))
    digest = hooks.register(file)
    assert verify.calls[0][1].common == {"score_hook": digest}
    assert str(file) in os.environ[hooks.FILES]
    file.write_text("nothing")
    assert console("verify", "--score-hook", str(file)).status == 2
    assert console("verify", "--score-hook", str(tmp_path / "absent")).status == 3
    assert len(verify.calls) == 1


def test_a_users_kernel_is_verified_too(console: Console, verify: Stub) -> None:
    place = str(ROOT / "examples/torch_attention.py:attention")
    assert console("verify", "--with", place).status == 0
    assert verify.named[0]["users"] == [place]
    assert console("verify", "--with", "nothing.py:f").status == 3


def test_an_interruption_leaves_the_verdicts_that_are_finished(
    console: Console, verify: Stub
) -> None:
    verify.result = dataclasses.replace(fakes.verify_report(), interrupted=True)
    done = console("verify")
    assert (done.status, done.lines[-1]) == (130, "interrupted")
    assert "1 of 1 right" in done.out


@pytest.mark.parametrize(
    ("outcome", "says"),
    [
        (Outcome.COMPILE_FAILED, "does not compile on"),
        (Outcome.CRASHED, "crashed on"),
        (Outcome.REJECTED, ""),
        (Outcome.OK, ""),
    ],
)
def test_a_users_kernel_that_fails_is_named(outcome: Outcome, says: str) -> None:
    theirs = [fakes.failed("user:mine.cu:k", outcome, "why")]
    theirs.append(fakes.failed(fakes.key(fakes.FAST), Outcome.CRASHED, "ours is no user's"))
    if not says:
        check_users(theirs)
        return
    with pytest.raises(NoUsableVariant, match=f"--with mine.cu:k: {says} .*: why"):
        check_users(theirs)
