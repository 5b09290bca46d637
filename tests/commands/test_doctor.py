from __future__ import annotations

import pytest

from fa_tune.tune.results import Check
from tests.commands.console import Console
from tests.commands.fakes import Put

FINE = Check("Python", True, "3.11.7")
ABSENT = Check("GPU", None, "none found;\nsearch replays")
BAD = Check("ncu", False, "not found", "install Nsight Compute")


@pytest.fixture
def checks(stub: Put) -> list[Check]:
    found = [FINE, ABSENT]
    stub("fa_tune.tune.machine_check.doctor", found)
    return found


def test_a_missing_thing_shows_its_fix_and_is_status_3(
    console: Console, checks: list[Check]
) -> None:
    fine = console("doctor")
    assert (fine.status, fine.err) == (0, "")
    assert fine.out.splitlines() == ["✓ Python  3.11.7", "– GPU     none found; search replays"]
    checks.append(BAD)
    done = console("doctor")
    assert (done.status, done.lines) == (3, ["error: needs attention: ncu"])
    assert done.out.splitlines()[-1].endswith("fix: install Nsight Compute")
    document = console("doctor", "--json").json
    assert document["ok"] is False
    assert [c["ok"] for c in document["checks"]] == [True, None, False]
    assert document["checks"][2]["fix"] == "install Nsight Compute"
