"""What takes a process of its own, whose driver is the stub."""

import json
from pathlib import Path

import pytest

from tests.csrc.conftest import RunWithStub
from tests.project_files import ROOT

ENTRY = ROOT / "tests" / "store" / "registry" / "data" / "schema-2.json"
HOWS = ("exact", "nearest", "passed over", "default", "default of few", "none")


@pytest.mark.parametrize("child", ["native_child", "adopted_child"])
def test_kernels_and_tables(run_with_stub: RunWithStub, tmp_path: Path, child: str) -> None:
    """As Python's objects, and as a job has them, with a CuPy that only writes down."""
    if child == "adopted_child":
        pytest.importorskip("torch", reason="torch is not installed: no tensors to launch on")
    done = run_with_stub(child, str(tmp_path))
    assert (done.stdout, done.stderr) == ("right\n", "")


@pytest.mark.parametrize(
    ("child", "given", "least"),
    [
        ("sized_child", (), dict.fromkeys(("found", "none"), 400)),
        (
            "lookup_child",
            (str(ENTRY),),
            dict.fromkeys((*HOWS, "packed", "e4m3", "cached", "special"), 40)
            | dict.fromkeys(("of other rows", "afar"), 0),
        ),
    ],
)
def test_random_tables_of_the_core_choose_as_python_does(
    run_with_stub: RunWithStub, child: str, given: tuple[str, ...], least: dict[str, int]
) -> None:
    """Defaults by size, and registries."""
    done = run_with_stub(child, *given, "40", "14")
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout)
    assert all(seen[how] > number for how, number in least.items()), seen
