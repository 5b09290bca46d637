"""The tests of what changed against main, for `./check quick`: a line each.

A changed test file is one. Of a changed `fa_tune/a/b.py` they are `tests/a/test_b.py` and all
test files that import it, as of a changed helper of tests; beside them the cheap checks of the
repository.  Commits and uncommitted changes count alike.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

REPOSITORY = ("tests/repo/test_docs.py", "tests/repo/test_imports.py")


def git(*arguments: str) -> list[str]:
    """The lines that git prints; none where it fails."""
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def module_of(path: str) -> str:
    """`fa_tune.store` of `fa_tune/store/__init__.py`."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def tests_of(changed: set[str], tests: dict[str, str]) -> set[str]:
    """Of these changed files, among test files by path with their text."""
    found = {path for path in changed if path in tests}
    for path in (path for path in changed if path.endswith(".py") and path not in tests):
        package, _, name = module_of(path).rpartition(".")
        imported = re.compile(
            rf"^\s*(?:from {re.escape(package)} import .*\b{name}\b"
            rf"|(?:from|import) {re.escape(module_of(path))}\b)",
            re.MULTILINE,
        )
        mirrored = f"{path.replace('fa_tune/', 'tests/').rpartition('/')[0]}/test_{name}.py"
        found |= {test for test, text in tests.items() if test == mirrored or imported.search(text)}
    return found | set(REPOSITORY) if changed - found else found


def test_files() -> dict[str, str]:
    """Text of every test file by its path, those of GPUs left out."""
    paths = (path for path in Path("tests").rglob("test_*.py") if path.parts[1] != "gpu")
    return {str(path): path.read_text(encoding="utf-8") for path in paths}


def main() -> None:
    """Print the test files."""
    bases = (git("merge-base", "HEAD", branch) for branch in ("main", "origin/main"))
    (base,) = next(filter(None, bases), ["HEAD"])
    changed = {*git("diff", "--name-only", base), *git("ls-files", "-o", "--exclude-standard")}
    print("\n".join(sorted(tests_of(changed, test_files()))))


if __name__ == "__main__":
    main()
