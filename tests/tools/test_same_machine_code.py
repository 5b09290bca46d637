"""Comparing the hashes of two trees, and the proofs that come of it; nothing is compiled."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import same_machine_code
from fa_tune.families.equal_sources import load

A, B = "a" * 64, "b" * 64


def _key(d_head: int, family: str = "sm90") -> str:
    return json.dumps({"config": f"(FP16, {d_head}, 64, 64, 4)", "family": family})


def _tree(sources: str, code: dict[int, str]) -> dict[str, Any]:
    told = {"sources": sources, "nvrtc": "13.0.88"}
    return {_key(d_head): {**told, "ptx": text, "code": text} for d_head, text in code.items()}


def _compare(
    folder: Path,
    before: dict[str, Any],
    after: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    *options: str,
) -> int:
    names = [str(folder / name) for name in ("before.json", "after.json", "equal_sources.json")]
    for name, tree in zip(names, (before, after), strict=False):
        Path(name).write_text(json.dumps(tree))
    arguments = ["compare", *names[:2], "--prove", "a flag", "--proofs", names[2], *options]
    monkeypatch.setattr(sys, "argv", ["same_machine_code.py", *arguments])
    return same_machine_code.main()


def test_equal_code_is_proven_for_all_head_dimensions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = dict.fromkeys(same_machine_code.HEAD_DIMS, "same")
    assert _compare(tmp_path, _tree(A, code), _tree(B, code), monkeypatch) == 0
    assert _compare(tmp_path, _tree(B, code), _tree(A, code), monkeypatch) == 0
    first, second = load(tmp_path / "equal_sources.json")
    assert (first.family, first.sources, first.kernels, first.d_heads) == ("sm90", (A, B), 4, ())
    assert first.nvrtc == "13.0.88"
    assert first.how.startswith("a flag; ")
    assert second.sources == (B, A), "added behind what is there"


@pytest.mark.parametrize("at_128", [{128: "other"}, {}])
def test_a_head_dimension_with_other_or_unknown_code_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_128: dict[int, str]
) -> None:
    before = _tree(A, {64: "same", 128: "same"})
    status = _compare(tmp_path, before, _tree(B, {64: "same", **at_128}), monkeypatch)
    assert status == bool(at_128)
    (proof,) = load(tmp_path / "equal_sources.json")
    assert proof.d_heads == (64,)


def test_kernels_for_lengths_on_the_device_may_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = (_tree(sources, {128: "same"}) for sources in (A, B))
    counting = _key(128, "decode").replace('4)"', '4): tile_keys_64"')
    for tree, code in ((before, "one"), (after, "other")):
        told = tree[_key(128)]
        tree[_key(128, "decode")] = told
        tree[counting] = {**told, "code": code, "ptx": code}
    del before[_key(128)], after[_key(128)]
    assert _compare(tmp_path, before, after, monkeypatch) == 1
    assert load(tmp_path / "equal_sources.json") == ()
    assert _compare(tmp_path, before, after, monkeypatch, "--known-lengths") == 0
    (proof,) = load(tmp_path / "equal_sources.json")
    assert (proof.known_lengths, proof.d_heads, proof.kernels) == (True, (128,), 1)


def test_unchanged_sources_need_no_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = {64: "same"}
    assert _compare(tmp_path, _tree(A, code), _tree(A, code), monkeypatch) == 0
    assert load(tmp_path / "equal_sources.json") == ()


def test_hashes_of_two_states_of_a_tree_prove_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted `hash` went on after an edit."""
    before = _tree(A, {64: "same", 128: "same"})
    after = _tree(A, {64: "same"}) | _tree(B, {128: "same"})
    with pytest.raises(SystemExit, match="several sources"):
        _compare(tmp_path, before, after, monkeypatch)


def test_ptx_alone_decides_where_nothing_else_was_hashed() -> None:
    outcome = same_machine_code.outcome
    assert outcome({"ptx": "p", "code": "c"}, {"ptx": "p"}) == same_machine_code.EQUAL
    assert outcome({"ptx": "p", "code": "c"}, {"ptx": "q", "code": "c"}) == same_machine_code.EQUAL
    assert outcome({"ptx": "p", "code": "c"}, {"ptx": "q"}) == same_machine_code.DIFFERENT
    assert outcome({"ptx": "p"}, {"code": "c"}) == same_machine_code.UNKNOWN
    assert outcome({"ptx": "p"}, {"gone": "no such flag"}) == same_machine_code.GONE


_KERNELS = [
    {"family": "sm90", "config": "sm90(FP16, 64, 128x128): stages_2", "traits": "plain"},
    {"family": "sm90", "config": "sm90(FP16, 128, 128x128): stages_2", "traits": "plain"},
    {"family": "decode", "config": "decode(FP16, 64, 16, 64, 4): stages_4", "traits": "plain"},
]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ([], _KERNELS),
        (["--family", "sm90"], _KERNELS[:2]),
        (["--family", "sm90,decode", "--d-head", "64"], [_KERNELS[0], _KERNELS[2]]),
    ],
)
def test_each_wanted_kernel_is_hashed_once(
    options: list[str],
    wanted: list[dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Sets and recordings name most kernels several times: the number to come counts each once."""
    child = tmp_path / "child.py"
    child.write_text(
        "import json, sys\n"
        f"kernels = {_KERNELS!r}\n"
        "if sys.argv[1] == 'list':\n"
        "    [print(json.dumps(k)) for k in kernels * 2]\n"
        "else:\n"
        "    [print(json.dumps({'code': k}), flush=True) for k in sys.stdin]\n"
    )
    monkeypatch.setattr(same_machine_code, "CHILD", child)
    out = tmp_path / "hashes.json"
    arguments = ["hash", str(tmp_path), "--out", str(out), "--jobs", "1", *options]
    monkeypatch.setattr(sys, "argv", ["same_machine_code.py", *arguments])
    assert same_machine_code.main() == 0
    hashed = [json.loads(key) for key in json.loads(out.read_text())]
    assert sorted(hashed, key=_KERNELS.index) == wanted
    assert f"{len(wanted)} of {len(wanted)} " in capsys.readouterr().err
