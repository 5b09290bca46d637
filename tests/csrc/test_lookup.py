"""Tables of the core choose as the registry's lookup does."""

from __future__ import annotations

import json

from tests.csrc.conftest import RunWithStub
from tests.project_files import ROOT

ENTRY = ROOT / "tests" / "store" / "registry" / "data" / "schema-2.json"


def test_random_defaults_by_size_are_read_alike(run_with_stub: RunWithStub) -> None:
    done = run_with_stub("sized_child", "40", "14")
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout)
    assert seen["found"] > 400
    assert seen["none"] > 400


def test_random_registries_are_read_alike(run_with_stub: RunWithStub) -> None:
    done = run_with_stub("lookup_child", str(ENTRY), "40", "14")
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout)
    hows = ("exact", "nearest", "passed over", "default", "default of few", "none")
    assert all(seen[how] > 40 for how in (*hows, "packed", "e4m3", "cached", "special"))
    assert seen["of other rows"] > 0
    assert seen["afar"] > 0
