"""Mutate one module and name the changes that no test notices, for `./check mutants`.

    mutants.py fa_tune/a/b.py [TESTS…]      by mutmut, in a copy of the checkout
    mutants.py csrc/core/x.cpp              operators, one by one, against tests/csrc

tests/mutants.toml has, by module, the tests, the score and the survivors that are accepted, each
with its reason; one that is accepted and does not survive fails, as does one that survives and is
not.  TESTS default to those named there, else to those that mirror or import the module.  Changed
words are no mutants: tests do not assert them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import changed_tests

ACCEPTED = Path("tests/mutants.toml")
COPIED = ("benchmarks", "csrc", "docs", "examples", "kernels", "profiles", "tools", "README.md")
OPERATORS = (
    *((" <= ", " < "), (" < ", " <= "), (" >= ", " > "), (" > ", " >= "), (" == ", " != ")),
    *((" + ", " - "), (" - ", " + "), (" * ", " + "), (" / ", " * "), (" % ", " / ")),
    *((" && ", " || "), (" || ", " && ")),
)
Change = tuple[str, str]  # lines before and after, without their indentation


def said(*command: str | Path, cwd: Path) -> str:
    """What a command prints; ends the program with it where the command fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit((done.stdout + done.stderr)[-3000:])
    return done.stdout


def is_of_words(change: Change) -> bool:
    """Whether a mutant changes nothing but a text."""
    before, after = change
    return before.lower() == after.lower() or re.search(r"XX.*XX", after) is not None


def change_of(diff: str) -> Change:
    """The lines that a diff takes away and adds."""
    sides = (re.findall(rf"^{sign} *(\S.*)$", diff, re.MULTILINE) for sign in (r"\-", r"\+"))
    before, after = (
        " ⏎ ".join(line for line in side if line[:2] not in ("--", "++")) for side in sides
    )
    return before, after


def of_python(module: str, tests: Sequence[str], copy: Path) -> tuple[int, list[Change]]:
    """How many mutants mutmut makes of a module in a copy of the checkout, and the survivors."""
    settings = {
        "source_paths": ["fa_tune"],
        "only_mutate": [module],
        "also_copy": list(COPIED),
        "pytest_add_cli_args": ["-p", "no:cacheprovider", "--hypothesis-profile=quick"],
        "pytest_add_cli_args_test_selection": list(tests),
    }
    with (copy / "pyproject.toml").open("a", encoding="utf-8") as file:
        lines = (f"{name} = {value!r}\n" for name, value in settings.items())
        file.write("\n[tool.mutmut]\ntrack_dependencies = false\n" + "".join(lines))
    mutmut = Path(sys.executable).with_name("mutmut")
    said(mutmut, "run", cwd=copy)
    results = re.findall(r"^ *(\S+): (.*)$", said(mutmut, "results", "--all", "1", cwd=copy), re.M)
    alive = [name for name, status in results if status in ("survived", "no tests")]
    return len(results), [change_of(said(mutmut, "show", name, cwd=copy)) for name in alive]


def changes_of(text: str) -> Iterator[tuple[int, Change]]:
    """The number of each line of C++ with an operator, and its change."""
    for number, line in enumerate(text.splitlines()):
        if line.lstrip().startswith(("//", "#", "*", "template")):
            continue
        for operator, other in OPERATORS:
            if operator in line:
                yield number, (line, line.replace(operator, other, 1))


def of_cpp(source: str, copy: Path) -> tuple[int, list[Change]]:
    """How many mutants there are of a file of the core, and those with which its tests pass."""
    path, build = copy / source, copy / "build"
    text = path.read_text(encoding="utf-8")
    said("cmake", "-S", copy / "tests/csrc", "-B", build, "-G", "Ninja", cwd=copy)
    run = f"cmake --build {build} && ctest --test-dir {build} --timeout 60 --stop-on-failure"
    said("sh", "-c", run, cwd=copy)  # as it is, they pass
    found, alive = list(changes_of(text)), []
    for number, (before, after) in found:
        lines = text.splitlines()
        lines[number] = after
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        if not subprocess.run(run, shell=True, capture_output=True, check=False).returncode:
            alive.append((before.strip(), after.strip()))
    return len(found), alive


def tests_for(module: str) -> list[str]:
    """The test files that mirror or import a module, and need no GPU.  Exercises run in another
    interpreter, in which mutmut cannot count."""
    found = changed_tests.tests_of({module}, changed_tests.test_files())
    found -= set(changed_tests.REPOSITORY)
    return sorted(path for path in found if not path.startswith("tests/exercises/"))


def main(arguments: Sequence[str]) -> int:
    """Print the score and what is to be done; the exit status is 1 if something is."""
    if not arguments or not Path(arguments[0]).is_file():
        print("usage: ./check mutants FILE [TESTS…], a file of fa_tune/ or csrc/core/")
        return 2
    module, *tests = arguments
    known = tomllib.loads(ACCEPTED.read_text(encoding="utf-8")).get(module, {})
    tests = tests or known.get("tests", "").split() or tests_for(module)
    with tempfile.TemporaryDirectory() as folder:
        for path in changed_tests.git("ls-files", "-co", "--exclude-standard"):
            if Path(path).is_file():
                Path(folder, path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, Path(folder, path))
        if module.endswith(".py"):
            total, alive = of_python(module, tests, Path(folder))
        else:
            total, alive = of_cpp(module, Path(folder))
    alive = [change for change in alive if not is_of_words(change)]
    accepted = {(one["before"], one["after"]) for one in known.get("accepted", ())}
    print(f"{module}: {total - len(alive)} of {total} mutants are noticed")
    for title, changes in (
        ("survives", [change for change in alive if change not in accepted]),
        (f"is accepted in {ACCEPTED} and does not survive", accepted - set(alive)),
    ):
        for before, after in changes:
            print(f"{title}:\n  - {before}\n  + {after}")
    return int(set(alive) != accepted)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
