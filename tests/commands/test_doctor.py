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


def test_fine_is_status_0(console: Console, checks: list[Check]) -> None:
    done = console("doctor")
    assert done.status == 0
    assert done.out.splitlines() == ["✓ Python  3.11.7", "– GPU     none found; search replays"]
    assert not done.err


def test_a_missing_thing_shows_its_fix_and_is_status_3(
    console: Console, checks: list[Check]
) -> None:
    checks.append(BAD)
    done = console("doctor")
    assert done.status == 3
    assert done.out.splitlines()[-2:] == [
        "✗ ncu     not found",
        "          fix: install Nsight Compute",
    ]
    assert done.lines == ["error: needs attention: ncu"]


def test_json(console: Console, checks: list[Check]) -> None:
    checks.append(BAD)
    document = console("doctor", "--json").json
    assert document["ok"] is False
    assert [c["ok"] for c in document["checks"]] == [True, None, False]
    assert document["checks"][2]["fix"] == "install Nsight Compute"
