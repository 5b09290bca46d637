"""Our CSV there and back, the classic one, and files that are neither."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from statistics import fmean, median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_tune.core.errors import ProfileFormatError
from fa_tune.core.model import Outcome
from fa_tune.core.workload import DType
from fa_tune.store.table.checks import METHODS, implausible
from fa_tune.store.table.columns import CLASSIC_COLUMNS, COLUMNS
from fa_tune.store.table.read_csv import parse_rows, text_of
from fa_tune.store.table.rows import Row, completed
from fa_tune.store.table.write_csv import write_csv

CONFIG = "(FP16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax"


def _csv(rows: list[Row]) -> str:
    stream = io.StringIO(newline="")
    write_csv(rows, stream)
    return stream.getvalue()


def _read_or_refused(text: str, on_note: Callable[[str], None] | None = None) -> list[Row] | str:
    """The rows, or the message of the one error that reading may end in."""
    try:
        return parse_rows(text, "x.csv", on_note=on_note)
    except ProfileFormatError as error:
        return str(error)


def test_cells_as_written() -> None:
    row = Row(CONFIG, 0.00039824, cycles=704075.0, sm_clock_hz=1.76106148303e9, causal=False)
    line = _csv([row]).splitlines()[1]
    assert line == f'"{CONFIG}",0.39824,,704075,,,,,,,,,,,,,,false,,,,,,,,,,,1.76106148303,ok,,,'


# Twelve significant digits are what a file holds.
def _numbers(low: int, high: int) -> st.SearchStrategy[float]:
    return st.builds(
        lambda digits, power: float(f"{digits}e{power}"),
        st.integers(1, 10**12 - 1),
        st.integers(low, high),
    )


_SIZE = st.none() | st.integers(1, 10**9)
_TIME = st.none() | _numbers(-20, -8)
_RATE = st.none() | _numbers(-11, -5)
_NAME = attrgetter("kernel")


def _digits(value: float) -> float:
    return float(f"{value:.12g}")


def _consistent(row: Row) -> Row:
    """The row with what follows from its samples."""
    samples, held_out = row.samples_s or (), row.held_out_s or ()
    row = replace(
        row,
        relative=(row.relative or ())[:1] * len(samples) or None,
        held_out_relative=(row.held_out_relative or ())[:1] * len(held_out) or None,
    )
    if not samples:
        known = [n for n in ("min_s", "median_s", "duration_s", "max_s") if getattr(row, n)]
        return replace(row, **dict(zip(known, sorted(getattr(row, n) for n in known), strict=True)))
    figures = {"median_s": median, "duration_s": fmean, "min_s": min, "max_s": max}
    found = {name: _digits(of(samples)) for name, of in figures.items()}
    return replace(row, n=len(samples), **found)  # type: ignore[arg-type]


ROWS = st.builds(
    Row,
    kernel=st.text(min_size=1),
    duration_s=_TIME,
    duration_percent_of_baseline=_RATE,
    cycles=st.none() | _numbers(-2, 3),
    cycles_percent_of_baseline=_RATE,
    registers=_SIZE,
    l2_hit_percent=st.just(0.0) | _RATE,
    tflops=_RATE,
    attn_tflops=_RATE,
    samples_s=st.none() | st.lists(_numbers(-20, -8), min_size=1).map(tuple),
    relative=st.none() | st.lists(_numbers(-2, 1), min_size=1).map(tuple),
    preference=st.none() | st.integers(0, 2000),
    held_out_s=st.none() | st.lists(_numbers(-20, -8), min_size=1).map(tuple),
    held_out_relative=st.none() | st.lists(_numbers(-2, 1), min_size=1).map(tuple),
    d_head=_SIZE,
    seq_len=_SIZE,
    family=st.text(),
    dtype=st.none() | st.sampled_from(DType),
    batch=_SIZE,
    heads=_SIZE,
    kv_heads=_SIZE,
    seq_len_kv=_SIZE,
    causal=st.none() | st.booleans(),
    bottom_right=st.none() | st.booleans(),
    lse=st.none() | st.booleans(),
    softmax_scale=st.none() | st.floats(1e-30, 1e30),
    op=st.none() | st.just("backward"),
    method=st.sampled_from(["", *METHODS]),
    n=_SIZE,
    median_s=_TIME,
    min_s=_TIME,
    max_s=_TIME,
    matmul_tflops=_RATE,
    sm_clock_hz=st.none() | _numbers(-3, 3),
    outcome=st.sampled_from(Outcome),
    reason=st.text(),
).map(_consistent)


@settings(deadline=None)  # the first call imports the families
@given(st.lists(ROWS, max_size=5, unique_by=_NAME))
def test_round_trip(rows: list[Row]) -> None:
    assert parse_rows(_csv(rows), "x.csv") == rows


@settings(deadline=None)  # the first call imports the families
@given(st.lists(ROWS, max_size=4, unique_by=_NAME), st.data())
def test_columns_in_any_order_give_the_same_rows(rows: list[Row], data: st.DataObject) -> None:
    table = list(csv.reader(io.StringIO(_csv(rows), newline="")))
    order = data.draw(st.permutations(range(len(table[0]))))
    stream = io.StringIO(newline="")
    csv.writer(stream, quoting=csv.QUOTE_ALL).writerows([[r[i] for i in order] for r in table])
    assert parse_rows(stream.getvalue(), "x.csv") == rows


@settings(deadline=None)  # the first call imports the families
@given(st.lists(ROWS, min_size=1, max_size=3, unique_by=_NAME), st.data())
def test_a_cut_file_is_refused_or_said_to_be_cut(rows: list[Row], data: st.DataObject) -> None:
    text = _csv(rows)
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    notes: list[str] = []
    read = _read_or_refused(cut, notes.append)
    if isinstance(read, str):
        assert read.startswith("x.csv")
    else:
        whole = read == rows[: len(read)] and cut.endswith("\n")
        assert whole or any("may have been cut" in note for note in notes)


CLASSIC = (
    "Kernel Name,Dur (ms),% inv Dur (ms),Cycles,% inv Cycles,Regs,L2 Hit %,TFLOP/s,"
    "Attn TFLOP/s,d_head,seq_len\n"
    "V2,0.42,100.00,736994,100.00,255,79.80,333.0,332.9,128,1024\n"
    f'"{CONFIG}",0.40,104.89,704075,104.68,255,74.57,349.3,349.2,128,1024\n'
)


def test_classic_file_gets_family_dtype_and_labels_from_names() -> None:
    fa2, ours = parse_rows(CLASSIC, "autotune.csv")
    assert (fa2.kernel, fa2.family, fa2.dtype, fa2.causal) == ("FA2", "ref", DType.FP16, False)
    assert (ours.kernel, ours.family, ours.dtype) == (CONFIG, "sm80", DType.FP16)
    assert ours.tflops == 349.3
    assert ours.duration_percent_of_baseline == 104.89
    assert ours.batch is None
    assert ours.group == fa2.group
    assert ours.outcome is Outcome.OK
    text = CLASSIC + f'"{CONFIG.replace("FP16", "BF16")}",0.41,102,,,,,,,128,1024\n'
    assert parse_rows(text, "autotune.csv")[0].dtype is None


@pytest.mark.parametrize(
    ("label", "kernel"),
    [("V2", "FA2"), ("V3", "FA3"), ("Reference", "FA2"), ("cudnn", "cuDNN"), ("FA4", "FA4")],
)
def test_reference_labels(label: str, kernel: str) -> None:
    (row,) = parse_rows(f"Kernel Name,Dur (ms)\n{label},1.5\n", "x.csv")
    assert (row.kernel, row.family, row.duration_s) == (kernel, "ref", 0.0015)


def test_zero_is_no_measurement_and_digits_are_grouped_in_counts_only() -> None:
    notes: list[str] = []
    text = CLASSIC.replace("736994", "0.0").replace("79.80", "0")
    fa2 = parse_rows(text, "a.csv", on_note=notes.append)[0]
    assert fa2.cycles is None
    assert fa2.l2_hit_percent == 0  # a hit rate can be
    assert notes == ["a.csv: line 2: 0 in column 'Cycles' read as not measured"]
    text = 'Kernel Name,Dur (ms),Cycles\nx,1.5,"736,994"\n'
    assert parse_rows(text, "a.csv")[0].cycles == 736994
    with pytest.raises(ProfileFormatError, match=r"'Dur \(ms\)' holds '1,500'"):
        parse_rows('Kernel Name,Dur (ms)\nx,"1,500"\n', "a.csv")


BAD: list[tuple[str, Callable[[str], str], str]] = [
    ("short", lambda t: t.replace(",128,1024\n", "\n", 1), "line 2: 9 cells .* 'Attn TFLOP/s'"),
    ("cut", lambda t: t[:-60], "line 3: .* may be cut"),
    ("twice", lambda t: t.replace("seq_len", "d_head"), "line 1: column 'd_head' appears twice"),
    ("other table", lambda t: t.replace("Dur (ms)", "Time"), r"line 1: no column 'Dur \(ms\)'"),
    ("empty", lambda t: "", "is empty"),
]


@pytest.mark.parametrize(("spoil", "message"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_files_are_refused_with_the_place(spoil: Callable[[str], str], message: str) -> None:
    with pytest.raises(ProfileFormatError, match=message) as caught:
        parse_rows(spoil(CLASSIC), "autotune.csv")
    assert str(caught.value).startswith("autotune.csv")
    assert "\n" not in str(caught.value)


def test_bad_cells_of_our_columns() -> None:
    for heading, cell, expected in (
        ("dtype", "FP8", "FP16 or BF16"),
        ("causal", "perhaps", "true or false"),
        ("outcome", "fine", "one of ok, "),
    ):
        with pytest.raises(ProfileFormatError, match=f"line 2: column '{heading}'.*{expected}"):
            parse_rows(f"Kernel Name,Dur (ms),{heading}\nx,1,{cell}\n", "a.csv")
    text = 'Kernel Name,Dur (ms),reason\nx,1,"two\nlines"\n\ny,oops,\n'
    with pytest.raises(ProfileFormatError, match="line 5: column 'Dur"):
        parse_rows(text, "a.csv")


def test_unknown_columns_are_named() -> None:
    notes: list[str] = []
    parse_rows("Kernel Name,Dur (ms),colour\nx,1,red\n", "a.csv", on_note=notes.append)
    assert notes == ["a.csv: unknown columns ignored: 'colour'"]


def test_files_are_utf_8_with_any_newlines() -> None:
    marked = b"\xef\xbb\xbf" + CLASSIC.replace("\n", "\r\n").encode()
    assert parse_rows(text_of(marked, "a.csv"), "a.csv") == parse_rows(CLASSIC, "a.csv")
    with pytest.raises(ProfileFormatError, match=r"a\.csv is not UTF-8 text"):
        text_of(CLASSIC.encode("utf-16"), "a.csv")


def test_classic_columns_are_a_prefix() -> None:
    assert COLUMNS[: len(CLASSIC_COLUMNS)] == CLASSIC_COLUMNS
    assert len({c.heading for c in COLUMNS}) == len({c.field for c in COLUMNS}) == len(COLUMNS)


@pytest.mark.parametrize(
    "text", ["=cmd|'/c calc'!A1", "+1", "-1", "@x", "\tx", "'=1", "''-1", "'s"]
)
def test_no_cell_is_a_formula_and_every_text_comes_back(text: str) -> None:
    written = _csv([Row(text, 1e-3, family=text, method="ncu", reason=text)])
    cells = next(csv.DictReader(io.StringIO(written, newline="")))
    for heading in ("Kernel Name", "family", "reason"):
        assert cells[heading][0] not in "=+-@\t\r"
    (row,) = parse_rows(written, "x.csv")
    assert (row.kernel, row.family, row.reason) == (text, text, text)


# Rows that cannot be true ------------------------------------------------------------------------

SOUND = Row(
    CONFIG, 2e-3, family="sm80", method="events", n=3, median_s=2e-3, samples_s=(1e-3, 2e-3, 3e-3)
)
WHOLE = {"batch": 2, "heads": 4, "kv_heads": 4, "seq_len": 512, "seq_len_kv": 512, "causal": False}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"median_s": 1.5e-3}, "median"),
        ({"duration_s": 1.5e-3}, "mean"),
        ({"n": 4}, "n is 4"),
        ({"method": "guessed"}, "'guessed'"),
        ({"relative": (1.0,)}, "1 ratios"),
        ({"relative": (1.0, 0.0, 1.0)}, "is 0"),
        ({"held_out_s": (1e-3, 0.0), "held_out_relative": (1.0, 1.0)}, "is 0"),
        ({"min_s": 0.9e-3}, "min is not"),
        ({"max_s": 2e-3}, "max is not"),
        ({"samples_s": None, "min_s": 3e-3, "max_s": 1e-3}, "between"),
        ({"samples_s": None, "min_s": 2.1e-3}, "between"),
        ({"samples_s": None, "max_s": 1.9e-3}, "between"),
    ],
)
def test_a_row_that_contradicts_itself_is_refused_by_its_line(
    wrong: dict[str, Any], said: str
) -> None:
    found = _read_or_refused(_csv([SOUND, replace(SOUND, **wrong)]))
    assert isinstance(found, str)
    assert "line 3" in found
    assert said in found
    assert "\n" not in found


def test_a_row_that_is_there_twice_is_refused() -> None:
    row = replace(SOUND, dtype=DType.FP16, d_head=128, **WHOLE)  # type: ignore[arg-type]
    found = _read_or_refused(_csv([row, row]))
    assert isinstance(found, str)
    assert "line 2 has it already" in found
    library = replace(row, family="ref", kernel="cuDNN")
    assert "line 2 has it already" in _read_or_refused(_csv([library, library]))
    other = replace(row, seq_len=1024)
    failed = replace(row, outcome=Outcome.CRASHED)
    assert len(_read_or_refused(_csv([row, other, failed]))) == 3
    # Two launches of which nobody knows the problem may be of two.
    assert len(_read_or_refused(_csv([SOUND, SOUND]))) == 2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, None),
        ({"kernel": "(FP16, 128, 128, 64, 4): banana"}, "banana"),
        ({"d_head": 64}, "d_head is 64"),
        ({"dtype": DType.BF16}, "dtype is BF16"),
        ({"matmul_tflops": 900.0}, "do not follow"),
        ({"tflops": 900.0}, "do not follow"),
    ],
)
def test_what_is_of_no_config_or_does_not_follow_is_implausible(
    wrong: dict[str, Any], said: str | None
) -> None:
    row = replace(SOUND, dtype=DType.FP16, d_head=128, **WHOLE)  # type: ignore[arg-type]
    (row,) = completed([row])
    assert row.matmul_tflops is not None
    by_hand = replace(row, samples_s=None)  # a table's times may have three digits
    assert implausible(replace(by_hand, matmul_tflops=row.matmul_tflops * 1.04)) is None
    assert implausible(replace(by_hand, matmul_tflops=row.matmul_tflops * 1.06)) is not None
    found = implausible(replace(row, **wrong))
    assert found is None if said is None else said in str(found)
