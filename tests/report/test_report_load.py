"""What `load_report_source` makes of each kind of path."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fa_tune.core.errors import FaTuneError, ProfileFormatError, StorageError
from fa_tune.core.workload import DType
from fa_tune.report.load import load_report_source
from fa_tune.store.table.partial_workload import PartialWorkload as Stated
from fa_tune.store.table.rows import Row
from fa_tune.store.table.write_csv import write_csv
from tests.project_files import ROOT

DATA = Path(__file__).parent / "data"
CLASSIC = (
    "Kernel Name,Dur (ms),% inv Dur (ms),Cycles,% inv Cycles,Regs,L2 Hit %,TFLOP/s,"
    "Attn TFLOP/s,d_head,seq_len\n"
    '"(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles",2.438304,17,4399470,17,168,84.5,57.0,56.9,'
    "128,1024\n"
    "V2,0.417728,100,736994,100,255,79.8,333.0,332.9,128,1024\n"
)


def test_our_csv_of_an_ncu_file_is_the_same_report(tmp_path: Path) -> None:
    rows = load_report_source(DATA / "details_h200_seq1024.csv")
    path = tmp_path / "autotune.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        write_csv(rows, stream)
    again = load_report_source(path)
    assert [(r.kernel, r.group, r.n, r.cycles, r.registers) for r in again] == [
        (r.kernel, r.group, r.n, r.cycles, r.registers) for r in rows
    ]
    for old, new in zip(rows, again, strict=True):
        assert new.duration_s == pytest.approx(old.duration_s, rel=1e-11)
        assert new.matmul_tflops == pytest.approx(old.matmul_tflops, rel=1e-11)


def test_classic_csv(tmp_path: Path) -> None:
    path = tmp_path / "classic.csv"
    path.write_text(CLASSIC)
    fa2, ours = load_report_source(path)
    assert (fa2.kernel, fa2.tflops) == ("FA2", 333.0)
    assert ours.duration_percent_of_baseline == pytest.approx(100 * 0.417728 / 2.438304)
    assert ours.tflops == 57.0  # the file's
    assert ours.matmul_tflops is None  # batch and heads are not in the file
    _, ours = load_report_source(path, Stated(batch=16, heads=16))
    assert ours.matmul_tflops == pytest.approx(56.4, abs=0.06)


def test_options_select_rows_of_files_that_state_them(tmp_path: Path) -> None:
    """They never make other measurements of those."""
    path = ROOT / "profiles" / "nvidia_h200" / "fast_d192_d256_events.csv"
    rows = load_report_source(path)
    assert {row.d_head for row in rows} == {192, 256}
    assert load_report_source(path, Stated(softcap=5.0)) == []
    assert load_report_source(path, Stated(seq_len=2048)) == []
    masked = len(load_report_source(path, Stated(causal=True)))
    assert 0 < masked < len(rows) == len(load_report_source(path, Stated(dtype=DType.FP16)))
    (d_head,) = {r.d_head for r in load_report_source(path, Stated(d_head=192, d_head_v=192))}
    assert d_head == 192
    classic = tmp_path / "classic.csv"
    classic.write_text(CLASSIC)
    assert load_report_source(classic, Stated(seq_len=512)) == []
    assert len(load_report_source(classic, Stated(seq_len=1024, softcap=5.0))) == 2


def test_options_that_select_no_row_are_named_beside_what_the_rows_have() -> None:
    path = ROOT / "profiles" / "nvidia_h200" / "fast_d192_d256_events.csv"

    def told(**given: object) -> str:
        notes: list[str] = []
        assert load_report_source(path, Stated(**given), on_note=notes.append) == []
        (note,) = notes
        return note.partition(": ")[2]

    lengths = {row.seq_len for row in load_report_source(path)}
    assert 2048 not in lengths
    assert all(str(length) in told(seq_len=2048, d_head=192) for length in lengths)
    assert "d_head" not in told(seq_len=2048, d_head=192)  # of which there are rows
    assert "softcap" in told(softcap=5.0)


def test_options_each_of_which_selects_some_rows_are_named_together(tmp_path: Path) -> None:
    path = tmp_path / "two.csv"
    path.write_text(CLASSIC + CLASSIC.splitlines()[2].replace("128,1024", "64,2048") + "\n")
    notes: list[str] = []
    assert load_report_source(path, Stated(d_head=64, seq_len=1024), on_note=notes.append) == []
    assert all(option in notes[-1] for option in ("seq_len 1024", "d_head 64"))


def test_an_option_that_selects_a_row_gives_it_no_other_name(tmp_path: Path) -> None:
    path = ROOT / "profiles" / "nvidia_h200" / "fast_mixture_events.csv"
    rows = [row for row in load_report_source(path) if row.d_head == 128]
    assert load_report_source(path, Stated(d_head_v=128)) == rows
    plain = ROOT / "profiles" / "nvidia_h200" / "fast_events.csv"
    selected = load_report_source(plain, Stated(seq_len=1024))
    assert selected
    longer = Stated(seq_len=1024, d_head_v=128, sink=False)
    assert load_report_source(plain, longer) == selected


def test_what_a_file_lacks_is_the_same_problem_by_any_name(tmp_path: Path) -> None:
    """`--d-head-v` as `--d-head` changes nothing, nor does a window of all keys."""
    classic = tmp_path / "classic.csv"
    classic.write_text(CLASSIC)
    sizes = {"batch": 16, "heads": 16, "seq_len": 1024, "d_head": 128}
    longer = Stated(**sizes, d_head_v=128)
    for path in (classic, DATA / "details_h200_seq1024.csv"):
        names = {str(row.group) for row in load_report_source(path, Stated(**sizes))}
        assert {str(row.group) for row in load_report_source(path, longer)} == names
    whole = Stated(**sizes, dtype=DType.FP16, causal=False)
    longer = replace(whole, window_left=1023)
    (name,) = {str(row.group) for row in load_report_source(classic, whole)}
    assert {str(row.group) for row in load_report_source(classic, longer)} == {name}


def test_folder_compares_each_file_in_itself(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(CLASSIC)
    (tmp_path / "b.csv").write_text(CLASSIC.replace("0.417728", "0.5"))
    (tmp_path / "a.meta.json").write_text("{}")
    rows = load_report_source(tmp_path)
    assert [row.source for row in rows] == ["a.csv"] * 2 + ["b.csv"] * 2
    assert rows[3].duration_percent_of_baseline == pytest.approx(100 * 0.5 / 2.438304)


def test_folder_of_folders_is_not_mixed(tmp_path: Path) -> None:
    (tmp_path / "nvidia_h200").mkdir()
    (tmp_path / "nvidia_h200" / "a.csv").write_text(CLASSIC)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "a.csv").touch()
    with pytest.raises(StorageError, match=r"no \.csv file in .*name one of .*nvidia_h200") as told:
        load_report_source(tmp_path)
    assert ".venv" not in str(told.value)


@pytest.mark.parametrize(
    ("name", "content", "hint"),
    [
        ("registry.json", b'{"schema": 1}', "fa-tune registry show"),
        ("registry.csv", b'\xef\xbb\xbf\n{"schema": 1}', "fa-tune registry show"),
        ("a.meta.json", b"{}", r"a\.csv beside it"),
        ("a.ncu-rep", b"NVR\0" + bytes(60), ""),
        ("notes.txt", b"hello\n", ""),
        ("empty.csv", b"", ""),
        ("noise.csv", bytes(range(256)), ""),
    ],
)
def test_other_files_are_refused_with_one_line(
    tmp_path: Path, name: str, content: bytes, hint: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ProfileFormatError, match=hint or ".") as caught:
        load_report_source(path)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def _read_or_refused(path: Path) -> list[Row] | str:
    try:
        return load_report_source(path)
    except FaTuneError as error:
        return str(error)


def test_a_cut_ncu_file_is_read_as_far_as_it_goes_or_refused(tmp_path: Path) -> None:
    whole = (DATA / "raw_h200_seq4096.csv").read_bytes()
    path = tmp_path / "cut.csv"
    for size in range(0, len(whole), 997):
        path.write_bytes(whole[:size])
        read = _read_or_refused(path)
        if isinstance(read, str):
            assert "\n" not in read
        else:
            assert all(row.duration_s is None or row.duration_s > 1e-4 for row in read)
