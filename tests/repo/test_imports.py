"""Who may import whom: the table below is the architecture.

Imports inside functions and under TYPE_CHECKING count as well, for circles too: a dependency is
a dependency.
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

# Package (or module) under fa_tune -> the others it may import.  A line needs only those above it.
MAY_IMPORT: dict[str, set[str]] = {
    # Vocabulary.
    "core": set(),
    "operations": {"core"},
    "libraries": {"core", "operations"},
    "families": {"core", "operations", "libraries"},
    # A config becomes a kernel.
    "build": {"core", "families"},
    # Work that may crash: the supervisor's side.
    "workers": {"core"},
    "profile": {"core", "operations", "libraries", "workers"},
    # Numbers become a decision.
    "search": {"core", "operations", "families"},
    "store": {"core", "operations", "libraries", "families"},
    # What other programs use.
    "op": {"core", "libraries", "families", "build", "store"},
    # What runs on a GPU.
    "gpu": {"core", "operations", "libraries", "families", "build", "workers", "op"},
    "report": {"core", "profile", "store"},
    "tune": {
        *("core", "operations", "libraries", "families", "build", "workers"),
        *("profile", "search", "store"),
    },
    "export": {"core", "operations", "families", "build", "store"},
    "kernel_configs": {"core", "operations", "families"},
    # Around the flow.
    "lab": {"core", "families", "search", "store", "tune"},
    "commands": {
        *("core", "libraries", "families", "profile", "search", "store"),
        *("report", "tune", "export", "lab"),
    },
    "cli": {"core", "commands"},
    "__main__": {"cli"},
}

# A name or an arrow more makes the order harder to see: put it in the place of another one.
MOST_NAMES, MOST_ARROWS = 19, 70

# Package -> the modules that may import it, in any way but for type checkers.
CHILD = {"fa_tune.gpu"}
TORCH_SIDE = {
    "fa_tune.operations.torch_side",
    *(f"fa_tune.operations.{name}.torch_side" for name in ("forward", "backward")),
}
DRAWING = {"fa_tune.report.page.charts", "fa_tune.report.page.sections"}  # imported late
OPERATOR = "fa_tune.op"  # of other programs' processes; never CuPy
ONLY_IN: dict[str, set[str]] = {
    "cuda": {
        "fa_tune.build.nvrtc",
        "fa_tune.gpu.context",  # beside loading the rest, and before it
    },
    "cupy": {*CHILD, *TORCH_SIDE, "fa_tune.core.streams", "fa_tune.libraries"},
    "torch": {*CHILD, *TORCH_SIDE, OPERATOR, "fa_tune.core.dtypes", "fa_tune.libraries"},
    "pynvml": {*CHILD, "fa_tune.core.devices"},
    "click": {"fa_tune.cli", "fa_tune.commands"},
    "ray": {"fa_tune.tune.fleet.ray_cluster"},
    "rich": {"fa_tune.cli", "fa_tune.commands"},
    "prettytable": {"fa_tune.commands", "fa_tune.report"},
    "pandas": {"fa_tune.report.frames"},
    "altair": {"fa_tune.report.page"},
    "jinja2": {"fa_tune.report.page"},
    "vl_convert": {"fa_tune.report.page"},
}

# What is one family's own: everybody else asks `fa_tune.families` and the protocol.
FAMILIES = sorted(p.parent.name for p in (ROOT / "fa_tune/families").glob("*/__init__.py"))
OF_ONE_FAMILY = re.compile(rf"fa_tune\.families\.({'|'.join(FAMILIES)})\b")
KNOWS_A_FAMILY = {"fa_tune.families", "fa_tune.kernel_configs", "fa_tune.export"}

# Loaded by those who need them, when they need them.
HEAVY = (
    *("torch", "cupy", "pandas", "cuda", "scipy", "triton", "optuna", "ray"),
    *("altair", "jinja2", "pyarrow", "vl_convert"),
)


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


def _top(module: str) -> str:
    """`search` of `fa_tune.search.decide`; empty for the package itself."""
    return module.partition(".")[2].partition(".")[0]


def _arrows() -> dict[tuple[str, str], Import]:
    """An import for each pair of different names at the top of the package."""
    return {
        (_top(found.module), _top(found.target)): found
        for found in _all_imports()
        if found.target.startswith("fa_tune.") and _top(found.module) != _top(found.target)
    }


def _is_in(module: str, names: set[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def test_the_table_is_complete_and_has_an_order() -> None:
    assert set(MAY_IMPORT) == {_top(module) for module in _modules() if module != "fa_tune"}
    above: set[str] = set()
    for name, others in MAY_IMPORT.items():
        assert others <= above, f"{name} may import {others - above}, which stand below it"
        above.add(name)
    allowed = {(module, target) for module, others in MAY_IMPORT.items() for target in others}
    assert not allowed - set(_arrows())
    assert len(MAY_IMPORT) <= MOST_NAMES
    assert len(_arrows()) <= MOST_ARROWS


def test_imports_go_one_way() -> None:
    wrong = [
        f"{found} ({module} may not import {target})"
        for (module, target), found in _arrows().items()
        if target not in MAY_IMPORT[module]
    ]
    assert not wrong, "\n".join(wrong)


def test_only_one_module_of_tune_reads_a_searchs_options() -> None:
    """The flow takes them, and hands on one plan of what is to be done."""

    def reads(path: str) -> bool:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        return any(
            isinstance(node, ast.Attribute)
            and ast.unparse(node.value) in ("options", "self.options")
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef)
            and any("SearchOptions" in ast.unparse(a) for a in function.args.args if a.annotation)
            for node in ast.walk(function)
        )

    modules = {m: p for m, p in _modules().items() if _top(m) == "tune"}
    assert [m for m, path in modules.items() if reads(path)] == ["fa_tune.tune.plan"]


def test_no_import_circles_between_modules() -> None:
    graph: dict[str, set[str]] = {module: set() for module in _modules()}
    for found in _all_imports():
        if found.target in graph and found.target != found.module:
            graph[found.module].add(found.target)
    while free := [module for module, targets in graph.items() if not targets & set(graph)]:
        for module in free:
            del graph[module]
    # What is left imports a circle or is in one; those nobody in it imports are not in one.
    while loose := set(graph) - {target for targets in graph.values() for target in targets}:
        for module in loose:
            del graph[module]
    assert not graph, f"import circle among {sorted(graph)}"


def test_families_are_independent() -> None:
    wrong = [
        str(found)
        for found in _all_imports()
        if (ours := OF_ONE_FAMILY.match(found.module))
        and (theirs := OF_ONE_FAMILY.match(found.target))
        and ours[1] != theirs[1]
    ]
    assert not wrong, "what families share is in fa_tune/families itself:\n" + "\n".join(wrong)


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
        if OF_ONE_FAMILY.match(found.target) and not _is_in(found.module, KNOWS_A_FAMILY)
    ]
    assert not wrong, "ask families.of(config) or families.get(name):\n" + "\n".join(wrong)
    assert any(OF_ONE_FAMILY.match(found.target) for found in _all_imports())


def test_nobody_names_a_family_but_the_families() -> None:
    """Nor by its name as text: `families.get("sm80")` is an import in disguise."""
    names = set(FAMILIES)
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


def test_no_module_but_the_childs_loads_heavy_packages() -> None:
    apart = {*CHILD, *TORCH_SIDE, *DRAWING, OPERATOR, "fa_tune.__main__"}
    light = [m for m in _modules() if not _is_in(m, apart)]
    heavy = _loaded_after("".join(f"import {m}\n" for m in light)) & set(HEAVY)
    assert not heavy, f"loaded by some module at import: {sorted(heavy)}"


@pytest.mark.parametrize(
    ("source", "targets"),
    [
        ("import torch.nn as nn", ["torch.nn"]),
        ("def f():\n    from cuda.bindings import nvrtc", ["cuda.bindings"]),
        ("from fa_tune.core import arch, errors", ["fa_tune.core.arch", "fa_tune.core.errors"]),
        ("from . import cli", ["fa_tune.cli"]),
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
