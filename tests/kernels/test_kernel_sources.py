"""Rules of the device code: where asm lives, and who includes whom."""

import re
from pathlib import PurePosixPath

import pytest

from fa_tune import families
from fa_tune.export.config_headers import generated_texts
from tests.project_files import ROOT, project_files

SUFFIXES = (".cu", ".cuh", ".h", ".hpp", ".cpp")

# Folder of kernels/ -> the folders its files may include, and compiler.cuh.
MAY_INCLUDE = {
    "compiler.cuh": {"compiler.cuh"},
    "ptx": {"ptx"},
    "common": {"common", "ptx"},
    "mma_sync": {"mma_sync", "common", "ptx"},
}
FAMILIES = {family.entry.partition("/")[0] for family in families.all_families()}
MAY_INCLUDE |= {folder: {folder, "mma_sync", "common", "ptx"} for folder in FAMILIES}

# Included by name, written by the program: never a file of kernels/.
GENERATED = set(generated_texts())

_COMMENT_OR_STRING = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"][^>"]+[>"])', re.MULTILINE)


def _sources(folder: str) -> list[str]:
    return [p for p in project_files() if p.startswith(f"{folder}/") and p.endswith(SUFFIXES)]


def _text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def code_only(source: str) -> str:
    """The source without comments and string contents."""
    return _COMMENT_OR_STRING.sub(lambda m: '""' if m[0].startswith('"') else " ", source)


def has_asm(source: str) -> bool:
    """Whether there is an inline-assembly statement, in any spelling."""
    return bool(re.search(r"\b(asm|__asm__|__asm)\b", code_only(source)))


def test_kernel_sources_exist() -> None:
    assert {PurePosixPath(p).parts[1] for p in _sources("kernels")} == set(MAY_INCLUDE)


@pytest.mark.parametrize("path", _sources("kernels"))
def test_asm_only_in_ptx(path: str) -> None:
    if not path.startswith(("kernels/ptx/", "kernels/compiler.cuh")):
        assert not has_asm(_text(path)), f"{path}: move the asm into a wrapper in kernels/ptx/"


@pytest.mark.parametrize("path", _sources("kernels"))
def test_includes_stay_below(path: str) -> None:
    folder = PurePosixPath(path).parts[1]
    for include in _INCLUDE.findall(_text(path)):
        assert include[0] == '"', f"{path} includes the host header {include}"
        name = include.strip('"')
        assert f"kernels/{name}" in {*GENERATED, *project_files()}, (
            f"{path} includes {name}, which is no path from kernels/"
        )
        target = PurePosixPath(name).parts[0]
        assert target in {*MAY_INCLUDE[folder], "compiler.cuh"}, (
            f"{path}: {folder}/ may not include {target}/"
        )


@pytest.mark.parametrize("path", [p for p in _sources("kernels") if p.endswith(".cuh")])
def test_headers_guard_themselves(path: str) -> None:
    assert "#pragma once" in _text(path)


@pytest.mark.parametrize("path", _sources("kernels"))
def test_static_asserts_speak(path: str) -> None:
    for found in re.finditer(r"static_assert\s*\((?P<rest>[^;]*);", _text(path)):
        assert '"' in found["rest"], f"{path}: a static_assert without text: {found[0]}"


@pytest.mark.parametrize("path", _sources("kernels") + _sources("csrc"))
def test_everything_is_in_the_namespace(path: str) -> None:
    """Or, in C, has its name before its own.  What is a program of its own may have any names."""
    programs = ("csrc/stub/", "csrc/bench/", "csrc/export/examples/")
    if not path.endswith(("entry.cu", ".cpp", ".c")) and not path.startswith(programs):
        named = r"^(namespace fa_tune(::\w+)* \{$|(typedef )?(struct|enum) fa_tune_|FA_TUNE_API )"
        assert re.search(named, _text(path), re.MULTILINE), path


def test_host_library_includes_no_kernels_file_but_parameters() -> None:
    """The structs that kernels are launched with are plain C++."""
    wrong = [
        f"{path}: {include}"
        for path in _sources("csrc")
        for include in _INCLUDE.findall(_text(path))
        if re.search(rf"kernels/|(?:^.)({'|'.join(MAY_INCLUDE)})/", include)
        and not include.strip('"').endswith("/params.cuh")
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('asm volatile("bar.sync 0;");', True),
        ('__asm__("x");', True),
        ("// asm is in ptx/\n/* asm */ int asmX;", False),
        ('const char* s = "asm";', False),
    ],
)
def test_asm_is_found(source: str, expected: bool) -> None:
    assert has_asm(source) is expected
