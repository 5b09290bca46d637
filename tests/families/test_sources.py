"""What of kernel sources is code, and which sources are equal."""

import json
from pathlib import Path

import pytest

from fa_tune import families
from fa_tune.build.compile import kernel_source_identity, kernel_source_sha256
from fa_tune.core.errors import ProfileFormatError
from fa_tune.core.paths import profiles_dir
from fa_tune.core.workload import Workload
from fa_tune.families import equal_sources
from fa_tune.families.equal_sources import (
    Kind,
    Proof,
    equal,
    groups,
    kind_of,
    load,
    representative,
    save,
)
from fa_tune.families.sources import code_sha256, flattened
from fa_tune.store.recordings import Recording, families_in, load_all
from fa_tune.store.recordings import kernel_source_sha256 as recorded_sources

ENTRY = '#include "a/b.cuh"\nint main() { return f(1, 2); }\n'
HEADER = "// Adds.\n#pragma once\n\nint f(int a, int b) { return a + b; }  // yes\n"
FILES = {"k.cu": ENTRY, "a/b.cuh": HEADER}


def test_the_flattened_unit_has_code_alone() -> None:
    text = "int f(int a,int b){return a + b;}int main(){return f(1,2);}"
    assert flattened(FILES, "k.cu") == text


@pytest.mark.parametrize(
    "same",
    [
        {"k.cu": ENTRY.replace("a/b", "c"), "c.cuh": HEADER},
        {"k.cu": ENTRY, "a/b.cuh": HEADER.replace("// Adds.", "/* Adds\n two */")},
        {"k.cu": ENTRY, "a/b.cuh": HEADER.replace("a + b", "a  +\n    b")},
        {"k.cu": ENTRY.replace("f(1, 2)", "f(1,\\\n 2)"), "a/b.cuh": HEADER},
        {"k.cu": '#include "x.cuh"\n' + ENTRY, "x.cuh": HEADER[9:], "a/b.cuh": "#pragma once\n"},
        {"k.cu": ENTRY + '#include "a/b.cuh"\n', "a/b.cuh": HEADER},
        {"k.cu": '#  include   "a/b.cuh"' + ENTRY[18:], "a/b.cuh": HEADER},
    ],
)
def test_names_comments_and_white_space_are_not_hashed(same: dict[str, str]) -> None:
    assert code_sha256(same) == code_sha256(FILES)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("int a = 1;", "int a = 2;"),
        ('f("a  b");', 'f("a b");'),
        ('f("// a");', 'f("// b");'),
        ('f("a, b");', 'f("a,b");'),
        ('f(R"(a\n // b)");', 'f(R"(a\n // c)");'),
        ('f(R"x(a\\\nb)x");', 'f(R"x(ab)x");'),
        ("a + +b;", "a ++b;"),
        ("#define F(x) x", "#define F (x) x"),
        ("#define A 1\nint a;", "#define A 1 int a;"),
        ("#pragma unroll\nfor (;;) a();", "#pragma unroll for (;;) a();"),
        ("#include <a>", "#include <b>"),
        ("#define A \\\n 1\n2", "#define A\n 1\n2"),
        ("// a \\\nint b;\nint c;", "// a\nint b;\nint c;"),
        ("int a = '\"'; // \"", 'int a = \'"\'; ""'),
        ("int a = 1'000; // '", "int a = 1'000; f('x');"),
    ],
)
def test_what_the_compiler_sees_is_hashed(one: str, other: str) -> None:
    assert code_sha256({"k.cu": one}) != code_sha256({"k.cu": other})


def test_a_header_without_guard_counts_as_often_as_it_is_included() -> None:
    twice = '#include "x.def"\n#include "x.def"\n'
    assert flattened({"k.cu": twice, "x.def": "X(1)\n"}, "k.cu") == "X(1)X(1)"


def test_the_order_of_included_code_is_hashed() -> None:
    files = {"x.cuh": "#pragma once\nint x;", "y.cuh": "#pragma once\nint y;"}
    one = {"k.cu": '#include "x.cuh"\n#include "y.cuh"\n', **files}
    other = {"k.cu": '#include "y.cuh"\n#include "x.cuh"\n', **files}
    assert code_sha256(one) != code_sha256(other)


def test_a_damaged_file_of_proofs_is_told(tmp_path: Path) -> None:
    path = tmp_path / "equal_sources.json"
    assert load(path) == ()
    path.write_text('[{"family": 1}]')
    with pytest.raises(ProfileFormatError, match=r"equal_sources\.json: \[0\]"):
        load(path)


@pytest.mark.parametrize("family", families.family_names())
def test_the_newest_recordings_are_of_the_present_sources(family: str) -> None:
    """A change of the machine code takes new recordings; any other change of the code takes a
    proof in profiles/equal_sources.json, see tools/same_machine_code.py."""
    found = [r for r in load_all(profiles_dir()) if family in families_in(r)]
    if not found:
        pytest.skip(f"no recording holds kernels of {family}")
    recorded = recorded_sources(found[0], family)
    present = kernel_source_sha256(family)
    assert equal(family, recorded, present, _kinds(found[0], family))
    assert kernel_source_identity(family) == representative(family, present)


def _kinds(recording: Recording, family: str) -> set[Kind]:
    """Of the workloads whose kernels of a family a recording holds."""
    held = {a.workload for a in recording.attempts if a.subject.startswith(f"{family}:")}
    return {kind_of(Workload.from_key(key)) for key in held}


def test_a_proof_of_some_kernels_says_nothing_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "equal_sources.json"
    told = {"family": "sm90", "how": "compared", "date": "2026-01-02", "nvrtc": "13"}
    proofs = [
        {**told, "sources": ["a", "b"], "kernels": 2},
        {**told, "sources": ["b", "c"], "kernels": 1, "d_heads": [64]},
        {**told, "sources": ["c", "d"], "kernels": 1, "dtypes": ["FP16"]},
        {**told, "sources": ["d", "e"], "kernels": 1, "known_lengths": True},
    ]
    path.write_text(json.dumps(proofs))
    monkeypatch.setattr(equal_sources.paths, "profiles_dir", lambda: tmp_path)
    equal_sources._shipped.cache_clear()
    try:
        half, other, wide = Kind(64, "FP16"), Kind(64, "BF16"), Kind(128, "FP16")
        assert equal("sm90", "a", "c", {half, other})
        assert equal("sm90", "a", "b", {half, wide})
        assert not equal("sm90", "a", "c", {half, wide})
        assert not equal("sm80", "a", "c", {half})
        assert equal("sm90", "a", "d", {half})
        assert not equal("sm90", "a", "d", {half, other})
        assert not equal("sm90", "c", "d")
        assert equal("sm90", "a", "e", {half})
        assert not equal("sm90", "a", "e", {half._replace(cached=True)})
        assert not equal("sm90", "d", "e")
        assert representative("sm90", "c") == "c", "attempts of all head dimensions hang on it"
    finally:
        equal_sources._shipped.cache_clear()


def test_a_proof_says_how() -> None:
    for proof in load():
        assert proof.how
        assert proof.kernels == 0 or proof.nvrtc


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_proofs_join_sources_in_any_order(order: tuple[int, ...]) -> None:
    """Two may lead to the same sources, and one may join what two others did."""
    pairs = [("a", "c"), ("b", "c"), ("d", "e"), ("e", "a")]
    told = [Proof("sm90", pairs[i], how="compared", date="2026-01-02") for i in order]
    found = groups(told)
    assert {name: set(group) for name, group in found.items()} == {
        name: set("abcde") for name in "abcde"
    }
    assert len({group[0] for group in found.values()}) == 1


def test_proofs_of_nothing_in_common_stay_apart() -> None:
    told = [Proof("sm90", pair, how="compared", date="2026-01-02") for pair in ("ab", "cd")]
    assert groups(told) == {name: tuple("ab") if name in "ab" else tuple("cd") for name in "abcd"}


def test_saved_proofs_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "equal_sources.json"
    save(load(), path)
    assert path.read_text() == (profiles_dir() / equal_sources.FILE).read_text()
