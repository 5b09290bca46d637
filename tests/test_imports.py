"""Who may import whom.  The tables below are the architecture; a module without a room fails.

Imports inside functions and under TYPE_CHECKING count as well: a dependency is a dependency.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.project_files import ROOT, project_files

# Room -> its modules and packages under fa_tune; the longest matching name decides.
ROOMS: dict[str, set[str]] = {
    "leaves": {"arch", "errors", "flops", "model", "paths", "units"},
    "options": {"options"},
    "families": {"families"},
    # What several stages stand on.  Records: ncu's arguments, its text to values, statistics.
    "records": {"profile"},
    "compiler": {"compiler_log", "nvrtc"},
    "artifacts": {"artifacts"},
    "jobs": {"jobs", "job_child", "job_protocol", "job_spare"},
    "device": {"device"},
    # The stages: none imports another.
    "search": {"search"},
    "compile": {"compile", "compile_pool", "compile_worker"},
    "verify": {"verify"},
    "profilers": {"profile.events", "profile.ncu", "profile.replay"},
    "registry": {"registry"},
    "report": {"report"},
    # The child's side: loaded by the worker process alone.
    "launch": {"launch"},
    "child": {"handlers", "libraries", "packages", "reference", "worker"},
    # A recording is a report's table with its provenance.
    "recordings": {"recordings"},
    # Recorded spaces, on which the strategies of the search are compared.
    "spaces": {"spaces"},
    "pipeline": {"pipeline"},
    "command line": {"cli", "commands"},
    # What other programs import.
    "seed API": {"kernel_configs"},
    "runtime": {"runtime"},
}

_SHARED = {"records", "compiler", "artifacts", "jobs", "device"}
_STAGES = {"search", "compile", "verify", "profilers", "registry", "report"}

# Room -> the other rooms it may import.
MAY_IMPORT: dict[str, set[str]] = {
    "leaves": set(),
    "options": {"leaves"},
    "families": {"leaves"},
    "records": {"leaves", "families", "device"},
    "compiler": {"leaves"},
    "artifacts": {"leaves", "families", "compiler"},
    "jobs": {"leaves"},
    "device": {"leaves"},
    "launch": {"leaves", "families"},
    "search": {"leaves", "families", "records"},
    "compile": {"leaves", "families", "artifacts", "compiler"},
    "verify": {"leaves", "families", "jobs"},
    "profilers": {"leaves", "families", "records", "artifacts", "jobs"},
    "registry": {"leaves", "families"},
    "report": {"leaves", "families", "records"},
    "child": {"leaves", "families", "records", "artifacts", "jobs", "verify", "runtime", "launch"},
    "recordings": {"leaves", "report"},
    "spaces": {"leaves", "families", "records", "search"},
    "pipeline": {"leaves", "options", "families", "recordings", "spaces", *_SHARED, *_STAGES},
    # The commands that show one stage by itself (space, registry, report) call it directly.
    "command line": {
        *("leaves", "options", "families", "device", "records"),
        *("search", "spaces", "registry", "pipeline", "report"),
    },
    "seed API": {"leaves", "families", "search"},
    "runtime": {"leaves", "families", "artifacts", "compile", "registry", "launch"},
}

# Package -> the modules that may import it, in any way but for type checkers.
CHILD = {
    *("fa_tune.handlers", "fa_tune.launch", "fa_tune.libraries", "fa_tune.packages"),
    *("fa_tune.reference", "fa_tune.worker"),
}
ONLY_IN: dict[str, set[str]] = {
    "cuda": {"fa_tune.nvrtc"},
    "cupy": CHILD,
    "torch": {*CHILD, "fa_tune.runtime", "fa_tune.model"},  # model: DType.to_torch_dtype
    "pynvml": {*CHILD, "fa_tune.device"},
    "click": {"fa_tune.cli", "fa_tune.commands"},
    "ray": {"fa_tune.pipeline.ray_boards"},
    "rich": {"fa_tune.cli", "fa_tune.commands"},
    "prettytable": {"fa_tune.commands", "fa_tune.report"},
}

# What is one family's own: everybody else asks `fa_tune.families` and the protocol.  `names`
# parses the configs of the seed API.
OF_ONE_FAMILY = re.compile(r"fa_tune\.families\.(sm\d+\w*|names)")
KNOWS_A_FAMILY = {"fa_tune.families", "fa_tune.kernel_configs"}

# Loaded by those who need them, when they need them.
HEAVY = ("torch", "cupy", "pandas", "cuda", "scipy", "triton", "optuna", "matplotlib", "ray")


@dataclass(frozen=True)
class Import:
    """`module` imports `target` (a dotted name) in `line`."""

    module: str
    target: str
    line: int
    for_types: bool = False
    in_function: bool = False

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


def _module_name(path: str) -> str:
    parts = list(Path(path).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def _modules() -> dict[str, str]:
    """Module name -> path of every module of the package."""
    python = [p for p in project_files() if p.startswith("fa_tune/") and p.endswith(".py")]
    return {_module_name(p): p for p in python}


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _nodes(
    node: ast.AST, for_types: bool = False, in_function: bool = False
) -> Iterator[tuple[ast.AST, bool, bool]]:
    for_types = for_types or _is_type_checking(node)
    in_function = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    for child in ast.iter_child_nodes(node):
        yield child, for_types, in_function
        yield from _nodes(child, for_types, in_function)


def imports_of(module: str, source: str, is_package: bool = False) -> list[Import]:
    """Every import of a module, relative ones resolved, `from p import m` as `p.m` if a module."""
    out = []
    for node, for_types, in_function in _nodes(ast.parse(source)):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module if is_package else module.rpartition(".")[0]
                base = importlib.util.resolve_name("." * node.level + base, package)
            targets = [
                name if (name := f"{base}.{alias.name}") in _modules() else base
                for alias in node.names
            ]
        else:
            continue
        out += [
            Import(module, target, node.lineno, for_types, in_function)
            for target in dict.fromkeys(targets)
        ]
    return out


@cache
def _all_imports() -> tuple[Import, ...]:
    return tuple(
        found
        for module, path in _modules().items()
        for found in imports_of(
            module, (ROOT / path).read_text(encoding="utf-8"), path.endswith("__init__.py")
        )
    )


def _room(module: str) -> str | None:
    parts = module.split(".")[1:]
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if room := next((room for room, names in ROOMS.items() if name in names), None):
            return room
    return None


def _is_in(module: str, names: set[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def test_tables_are_complete() -> None:
    assert set(ROOMS) == set(MAY_IMPORT)
    homeless = [m for m in _modules() if m not in ("fa_tune", "fa_tune.__main__") and not _room(m)]
    assert not homeless, f"give these modules a room in ROOMS: {homeless}"


def test_rooms_have_an_order() -> None:
    """Rooms can be sorted so that each imports only earlier ones."""
    left = dict(MAY_IMPORT)
    while left:
        free = [room for room, others in left.items() if not others & set(left)]
        assert free, f"these rooms import each other in a circle: {sorted(left)}"
        for room in free:
            del left[room]


def test_imports_go_one_way() -> None:
    wrong = []
    for found in _all_imports():
        if not found.target.startswith("fa_tune.") or found.module == "fa_tune.__main__":
            continue
        room, target = _room(found.module), _room(found.target)
        if room is not None and target != room and target not in MAY_IMPORT[room]:
            wrong.append(f"{found} ({room} may not import {target})")
    assert not wrong, "\n".join(wrong)


def test_no_import_circles_between_modules() -> None:
    """Not even inside a room; a late import inside a function is no circle."""
    graph: dict[str, set[str]] = {module: set() for module in _modules()}
    for found in _all_imports():
        late = found.for_types or found.in_function
        if found.target in graph and found.target != found.module and not late:
            graph[found.module].add(found.target)
    while free := [module for module, targets in graph.items() if not targets & set(graph)]:
        for module in free:
            del graph[module]
    # What is left imports a circle or is in one; those nobody in it imports are not in one.
    while loose := set(graph) - {target for targets in graph.values() for target in targets}:
        for module in loose:
            del graph[module]
    assert not graph, f"import circle among {sorted(graph)}"


@pytest.mark.parametrize("package", ONLY_IN)
def test_package_is_imported_only_in(package: str) -> None:
    wrong = [
        str(found)
        for found in _all_imports()
        if _is_in(found.target, {package})
        and not found.for_types
        and not _is_in(found.module, ONLY_IN[package])
    ]
    assert not wrong, f"{package} belongs in {sorted(ONLY_IN[package])}:\n" + "\n".join(wrong)


def test_nobody_knows_a_family_but_the_families_and_the_seed_api() -> None:
    wrong = [
        str(found)
        for found in _all_imports()  # for type checkers as well
        if OF_ONE_FAMILY.fullmatch(found.target) and not _is_in(found.module, KNOWS_A_FAMILY)
    ]
    assert not wrong, "ask families.of(config) or families.get(name):\n" + "\n".join(wrong)
    assert any(OF_ONE_FAMILY.fullmatch(found.target) for found in _all_imports())


def test_nobody_names_a_family_but_the_families() -> None:
    """Nor by its name as text: `families.get("sm80")` is an import in disguise."""
    names = {"sm80", "sm90"}
    wrong = [
        f"{module}:{node.lineno}"
        for module, path in _modules().items()
        if not _is_in(module, KNOWS_A_FAMILY)
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert not wrong, f"a family by its name in {wrong}"


def _loaded_after(statement: str) -> set[str]:
    script = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr.splitlines()[-1]
    return {name.split(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


@pytest.mark.parametrize("module", ["fa_tune.cli", "fa_tune.pipeline", "fa_tune.kernel_configs"])
def test_heavy_packages_stay_unloaded(module: str) -> None:
    if module not in _modules():
        pytest.skip(f"{module} does not exist yet")
    heavy = _loaded_after(f"import {module}") & set(HEAVY)
    assert not heavy, f"import {module} loads {sorted(heavy)}"


def test_no_module_but_the_childs_loads_heavy_packages() -> None:
    apart = {*CHILD, "fa_tune.runtime", "fa_tune.__main__"}
    light = [m for m in _modules() if not _is_in(m, apart)]
    heavy = _loaded_after("".join(f"import {m}\n" for m in light)) & set(HEAVY)
    assert not heavy, f"loaded by some module at import: {sorted(heavy)}"


@pytest.mark.parametrize(
    ("source", "targets"),
    [
        ("import torch.nn as nn", ["torch.nn"]),
        ("def f():\n    from cuda.bindings import nvrtc", ["cuda.bindings"]),
        ("from fa_tune import arch, errors", ["fa_tune.arch", "fa_tune.errors"]),
        ("from . import units", ["fa_tune.units"]),
        ("from .model import DType", ["fa_tune.model"]),
        ("try:\n    import a\nexcept ImportError:\n    import b", ["a", "b"]),
    ],
)
def test_imports_are_found(source: str, targets: list[str]) -> None:
    assert [found.target for found in imports_of("fa_tune.x", source)] == targets


def test_type_checking_imports_are_told_apart() -> None:
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\nimport re"
    kinds = {found.target: found.for_types for found in imports_of("fa_tune.x", source)}
    assert kinds == {"typing": False, "torch": True, "re": False}
