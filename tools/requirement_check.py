"""Which of a list of requirements an interpreter lacks, decided without pip and offline.

Only what this project's own pyproject.toml uses is understood: a name and version clauses
(`pandas>=2.2,<4`), and `fa-tune[extra]` for the project's own extras; no markers, no addresses.
"""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*\(?([^();]*)\)?\s*")
_CLAUSE = re.compile(r"(===|==|!=|>=|<=|~=|>|<)\s*([\w.!+*-]+)")

# Any of these serves where one of them is asked for, if it is there already.
CUPY = ("cupy-cuda12x", "cupy-cuda13x", "cupy")

# Listed by the interpreter itself: the first of a name on its path is the one it imports.
_LIST = """
import importlib.metadata, json
seen = {}
for d in importlib.metadata.distributions():
    name = d.metadata["Name"] if d.metadata else None
    if name and d.version:
        seen.setdefault(name, {"version": d.version, "requires": d.requires or []})
print(json.dumps(seen))
"""


@dataclass(frozen=True)
class Installed:
    """One distribution an interpreter can import."""

    version: str
    requires: tuple[str, ...] = ()


def normal_name(name: str) -> str:
    """`Jinja2` and `jinja_2` as package indexes compare them."""
    return re.sub(r"[-_.]+", "-", name).lower()


def split(requirement: str) -> tuple[str, str]:
    """(normal name, version clauses) of one requirement; raises ValueError."""
    found = _REQUIREMENT.fullmatch(requirement)
    if not found:
        raise ValueError(f"cannot read the requirement {requirement!r}")
    return normal_name(found[1]), found[2].strip()


def _key(version: str) -> tuple[tuple[int, ...], bool]:
    """Order of releases: numbers without trailing zeros, then pre-releases before the release.

    Local parts (`+cpu`) and post-releases count as the release itself.
    """
    found = re.match(r"v?(?:\d+!)?(\d+(?:\.\d+)*)(.*)", version)
    if not found:
        return (), False
    numbers = [int(n) for n in found[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    is_release = not re.match(r"[._-]?(a|b|c|rc|alpha|beta|pre|dev)", found[2])
    return tuple(numbers), is_release


def satisfies(version: str, clauses: str) -> bool:
    """Whether an installed version meets every clause, `2.13.0+cpu` meeting `==2.13.0`."""
    have = _key(version)
    for operator, bound in _CLAUSE.findall(clauses):
        want = _key(bound)
        if operator in ("==", "!=") and bound.endswith(".*"):
            prefix = [int(n) for n in bound[:-2].split(".")]
            padded = [*have[0], *[0] * len(prefix)][: len(prefix)]
            good = (padded == prefix) == (operator == "==")
        elif operator == "~=":
            series = [int(n) for n in bound.split(".")[:-1]]
            good = have >= want and [*have[0], *[0] * len(series)][: len(series)] == series
        else:
            good = {
                "==": have == want,
                "===": have == want,
                "!=": have != want,
                ">=": have >= want,
                "<=": have <= want,
                ">": have > want,
                "<": have < want,
            }[operator]
        if not good:
            return False
    return True


def missing(
    requirements: Iterable[str],
    installed: Mapping[str, Installed],
    *,
    constraints: Mapping[str, str] | None = None,
    keep: Iterable[str] = (),
) -> list[str]:
    """The requirements that `installed` (by normal name) does not meet, in their order.

    `constraints` (name -> clauses) narrow the requirements that name them.  A name in `keep`
    counts as met at whatever version it is there, and so does CuPy under another wheel's name.
    What the present ones need in turn must be there, at any version.
    """
    kept = {normal_name(name) for name in keep}
    narrow = constraints or {}
    out: list[str] = []
    checked: set[str] = set()

    def need(requirement: str, *, any_version: bool) -> None:
        try:
            name, clauses = split(requirement)
        except ValueError:
            if any_version:  # a dependency with a marker or an address: pip's business
                return
            raise
        found = installed.get(name)
        if found is None and name in CUPY and any(other in installed for other in CUPY):
            return
        narrowed = ",".join(filter(None, (clauses, narrow.get(name, ""))))
        loose = any_version or name in kept
        if found is None or not (loose or satisfies(found.version, narrowed)):
            if requirement not in out:
                out.append(requirement)
        elif name not in checked:
            checked.add(name)
            for dependency in found.requires:
                if ";" not in dependency:
                    need(dependency, any_version=True)

    for requirement in requirements:
        need(requirement, any_version=False)
    return out


def installed_in(python: Path | str) -> dict[str, Installed]:
    """Every distribution that `python` can import, by normal name."""
    done = subprocess.run([str(python), "-c", _LIST], capture_output=True, text=True, check=True)
    return {
        normal_name(name): Installed(entry["version"], tuple(entry["requires"]))
        for name, entry in json.loads(done.stdout).items()
    }


def read_project(pyproject: Path, extras: Iterable[str]) -> list[str]:
    """The project's dependencies and those of `extras`, one requirement for each name.

    Its own extras (`fa-tune[test]`) are expanded.
    """
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    clauses: dict[str, list[str]] = {}

    def add(lines: Iterable[str]) -> None:
        for line in lines:
            nested = re.fullmatch(re.escape(project["name"]) + r"\[([\w, -]+)\]", line)
            if nested:
                for extra in nested[1].split(","):
                    add(project["optional-dependencies"][extra.strip()])
            else:
                name, bounds = split(line)
                clauses.setdefault(name, []).extend(filter(None, [bounds]))

    add(project["dependencies"])
    for extra in extras:
        add(project["optional-dependencies"][extra])
    return [name + ",".join(bounds) for name, bounds in clauses.items()]


def read_constraints(path: Path) -> dict[str, str]:
    """Normal name -> clauses of a constraints file; comments and blank lines are skipped."""
    lines = (line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return dict(split(line) for line in lines if line)
