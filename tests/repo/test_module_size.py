"""A file over 500 lines is listed here with its reason, or split."""

from __future__ import annotations

from tests.project_files import ROOT, project_files

LIMIT = 500  # lines
SUFFIXES = (".py", ".cu", ".cuh", ".cpp", ".h", ".sh")

LONG_FOR_A_REASON: dict[str, str] = {
    "fa_tune/core/workload.py": "one class: every field of a workload, and what it settles",
    "kernels/decode/warp_group.cuh": "one class: a group's keys from memory to its sums of O",
    "kernels/sm90/bwd/consumer.cuh": "one class: a warpgroup's steps, in both orders of products",
    "kernels/sm90/fwd/consumer.cuh": "one class: a warpgroup's loops, whose order of waits is read "
    "in one place",
    "kernels/sm90/fwd/softmax.cuh": "one class: the policies of maxima share a row's state",
}


def _lines(path: str) -> int:
    return len((ROOT / path).read_text(encoding="utf-8").splitlines())


def test_long_files_have_a_reason() -> None:
    long = {p: n for p in project_files() if p.endswith(SUFFIXES) and (n := _lines(p)) > LIMIT}
    unlisted = {path: lines for path, lines in long.items() if path not in LONG_FOR_A_REASON}
    assert not unlisted, f"split these files, or list them with a reason: {unlisted}"
    stale = sorted(set(LONG_FOR_A_REASON) - set(long))
    assert not stale, f"take these files out of the list: {stale}"
    assert all(LONG_FOR_A_REASON.values())
