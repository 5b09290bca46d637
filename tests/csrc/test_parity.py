"""C++ launches what Python launches: grid, shared memory and every byte of the parameters."""

from __future__ import annotations

import json

from tests.csrc.conftest import RunWithStub

PROBLEMS = 2000


def test_random_problems_are_launched_and_refused_alike(run_with_stub: RunWithStub) -> None:
    done = run_with_stub("parity_child", str(PROBLEMS), "14")
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout)
    # What was drawn reaches everything: all families and both outcomes, all head dimensions.
    for family in ("sm80", "sm90", "decode"):
        assert seen[f"{family} launched"] > PROBLEMS / 10
        assert seen[f"{family} refused"] > PROBLEMS / 100
        assert PROBLEMS / 200 < seen[f"{family} with counters"] < seen[f"{family} launched"]
    assert seen["packed launched"] > PROBLEMS / 10
    assert seen["packed refused"] > PROBLEMS / 100
    assert all(seen[f"d_head {d}"] for d in range(32, 257, 32))
    assert all(seen[what] > 0 for what in ("d_head_v", "new keys", "e4m3"))
