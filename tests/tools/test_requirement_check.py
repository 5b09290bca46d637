"""The offline stand-in for pip's judgement agrees with pip where this project needs it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from requirement_check import (
    Installed,
    installed_in,
    missing,
    read_constraints,
    read_project,
    satisfies,
    split,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("version", "clauses", "expected"),
    [
        ("2.13.0", "==2.13.0", True),
        ("2.13.0+cpu", "==2.13.0", True),
        ("2.13", "==2.13.0", True),
        ("2.13.1", "==2.13.0", False),
        ("2.11.0+cu130", ">=2.11,<2.14", True),
        ("2.14.0", ">=2.11,<2.14", False),
        ("12.9.4", ">=12.8,<13", True),
        ("13.0.3", ">=12.8,<13", False),
        ("10.0", ">=9.0", True),
        ("2.0.0rc1", ">=2.0", False),
        ("2.0.0.post1", ">=2.0", True),
        ("8.5.1", "", True),
        ("3.9.1", "~=3.8", True),
        ("4.0", "~=3.8", False),
        ("3.8.5", "==3.8.*", True),
        ("3.9", "!=3.9.*", False),
        ("1.5", ">1.5", False),
        ("nightly", ">=1", False),
    ],
)
def test_satisfies(version: str, clauses: str, expected: bool) -> None:
    assert satisfies(version, clauses) is expected


@given(st.lists(st.integers(0, 30), min_size=1, max_size=4), st.data())
def test_order_agrees_with_packaging(numbers: list[int], data: st.DataObject) -> None:
    specifiers = pytest.importorskip("packaging.specifiers")
    other = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=4))
    operator = data.draw(st.sampled_from([">=", "<=", ">", "<", "==", "!="]))
    version, bound = ".".join(map(str, numbers)), ".".join(map(str, other))
    expected = specifiers.SpecifierSet(operator + bound).contains(version)
    assert satisfies(version, operator + bound) is expected


@pytest.mark.parametrize(
    ("text", "name", "clauses"),
    [
        ("pandas>=2.2", "pandas", ">=2.2"),
        ("Jinja2 (>=3.1)", "jinja2", ">=3.1"),
        ("pydantic_core==2.50.4", "pydantic-core", "==2.50.4"),
        ("cuda-toolkit[nvrtc,cudart]==13.0.2", "cuda-toolkit", "==13.0.2"),
        ("ruff", "ruff", ""),
    ],
)
def test_split(text: str, name: str, clauses: str) -> None:
    assert split(text) == (name, clauses)


def _installed(**versions: str) -> dict[str, Installed]:
    return {name.replace("_", "-"): Installed(version) for name, version in versions.items()}


def test_missing_keeps_the_order_and_names_the_bounds() -> None:
    have = _installed(click="8.2", rich="12.0")
    wanted = ["click>=8.1", "rich>=13.7", "pandas>=2.2"]
    assert missing(wanted, have) == ["rich>=13.7", "pandas>=2.2"]


def test_constraints_narrow() -> None:
    have = _installed(ruff="0.17.5")
    assert missing(["ruff"], have) == []
    assert missing(["ruff"], have, constraints={"ruff": "==0.17.6"}) == ["ruff"]
    assert missing(["ruff"], have, constraints={"mypy": "==2.0"}) == []


def test_kept_packages_count_at_any_version() -> None:
    have = _installed(torch="2.6.0+cu124")
    assert missing(["torch>=2.11"], have) == ["torch>=2.11"]
    assert missing(["torch>=2.11"], have, keep=["torch"]) == []


def test_any_cupy_serves() -> None:
    assert missing(["cupy-cuda13x>=13.6"], _installed(cupy="14.0")) == []
    assert missing(["cupy-cuda13x>=13.6"], _installed(cupy_cuda12x="13.4")) == []
    assert missing(["cupy-cuda13x>=13.6"], {}) == ["cupy-cuda13x>=13.6"]


def test_needs_of_the_present_must_be_there_too() -> None:
    have = {
        "pydantic": Installed("2.14", ("pydantic-core==2.50.4", "email-validator; extra == 'e'")),
        "rich": Installed("15.0", ("pygments>=2.13",)),
        "pygments": Installed("1.0"),  # too old, but there: pip may have its reasons
    }
    assert missing(["pydantic>=2.7", "rich"], have) == ["pydantic-core==2.50.4"]


def test_circles_of_needs_end() -> None:
    have = {"a": Installed("1", ("b",)), "b": Installed("1", ("a",))}
    assert missing(["a"], have) == []


def test_unreadable_requirement_of_our_own_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot read"):
        missing(["x @ https://example.invalid/x.whl ; python_version > '3'"], {})


def test_project_requirements_are_merged_by_name() -> None:
    requirements = read_project(ROOT / "pyproject.toml", ["dev", "cpu"])
    names = [split(r)[0] for r in requirements]
    assert len(names) == len(set(names))
    assert "cuda-bindings>=12.8,<14,==13.0.3" in requirements
    assert {"pytest", "hypothesis", "ruff", "mypy"} <= set(names), "fa-tune[test] is expanded"
    assert "fa-tune" not in names


@pytest.mark.parametrize("extra", ["cuda12", "cuda13", "cpu", "reference", "test", "dev"])
def test_every_extra_is_understood(extra: str) -> None:
    assert missing(read_project(ROOT / "pyproject.toml", [extra]), {})


def test_without_a_gpu_nothing_asks_for_torch_or_cupy() -> None:
    names = {split(r)[0] for r in read_project(ROOT / "pyproject.toml", ["dev", "cpu"])}
    assert not names & {"torch", "cupy-cuda12x", "cupy-cuda13x"}


def test_development_tools_are_pinned() -> None:
    pins = read_constraints(ROOT / "tools" / "constraints.txt")
    for requirement in read_project(ROOT / "pyproject.toml", ["dev"]):
        name = split(requirement)[0]
        if not name.startswith("cuda"):
            assert pins[name].startswith("=="), name


def test_pins_meet_the_ranges() -> None:
    pins = read_constraints(ROOT / "tools" / "constraints.txt")
    for requirement in read_project(ROOT / "pyproject.toml", ["dev"]):
        name, clauses = split(requirement)
        if name in pins:
            assert satisfies(pins[name].removeprefix("=="), clauses), requirement


def test_installed_in_this_interpreter() -> None:
    found = installed_in(sys.executable)
    assert found["pytest"].version == pytest.__version__
