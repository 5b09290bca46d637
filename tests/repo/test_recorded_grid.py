"""The tables of the grid: ratios within one run, winners by letter, what one config loses."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import recorded_grid as grid
from fa_tune import families
from fa_tune.core.model import Attempt, Measurement, Outcome
from fa_tune.core.workload import DType, Workload, benchmark_workload
from fa_tune.store.recordings import Decided, MeasuredBy, MeasuredOn, load, save
from recorded import FOLDER, Recorded
from tests.project_files import ROOT

SEQ_LENS = (512, 1024)
DATA = Recorded()


def subjects(d_head: int) -> dict[str, list[str]]:
    """Two configs of each family."""
    found = {}
    for name in ("sm80", "sm90"):
        configs = families.get(name).configs("fast", dtypes=[DType.FP16], d_head=d_head)[:2]
        found[name] = [families.variant(config).key for config in configs]
    return found


def recorded(workload: Workload, seconds: dict[str, float]) -> list[Attempt]:
    """Attempts of one workload with one sample each."""
    return [
        Attempt(
            subject,
            workload.key,
            Outcome.OK,
            measurement=Measurement(subject, workload.key, "events", (time,), {}),
        )
        for subject, time in seconds.items()
    ]


@pytest.fixture
def data(tmp_path: Path) -> Recorded:
    """d_head 128 in one recording, 64 in another one; per length another winner."""
    folder = Path(shutil.copytree(FOLDER, tmp_path / "gpu"))
    meta = DATA.recordings[f"{DATA.searched}_events"].meta
    for path in folder.glob("fast_*events.*"):  # fast_ncu has the best config of the ladder
        path.unlink()
    for d_head, name in ((128, "fast_events"), (64, "fast_d64_events")):
        attempts = []
        for causal in (False, True):
            for seq_len in SEQ_LENS:
                workload = benchmark_workload(seq_len, d_head, DType.FP16, causal=causal)
                (a, b), (c, d) = subjects(d_head).values()
                short = seq_len == SEQ_LENS[0]
                attempts += recorded(
                    workload,
                    {
                        "ref:fa2": 2e-3,
                        "ref:cudnn": 1e-3,
                        a: 1.0e-3 if short else 1.1e-3,
                        b: 1.02e-3 if short else 1.0e-3,
                        c: 0.5e-3,
                        d: 0.8e-3,
                    },
                )
        save(folder / f"{name}.csv", attempts, {}, replace(meta, note="", decided={}))
    return Recorded(folder)


def with_costs(data: Recorded, *, paired: set[int]) -> Recorded:
    """The same, and at d_head 128 what falling inputs cost each choice beside trained ones, on
    which it was made; of samples in the same rounds for `paired` lengths."""
    path = data.folder / "fast_events.csv"
    recording = load(path)
    decided = {}
    for workload in {Workload.from_key(a.workload) for a in recording.attempts}:
        chosen = subjects(128)["sm90"][0]
        known = workload.seq_len_q in paired
        # Medians of another clock each: 2.0 times, where paired samples say 1.2 / 0.8 = 1.5.
        figures = [
            MeasuredOn(name, seconds, to_own_inputs=ratio if known else None)
            for name, seconds, ratio in (
                ("trained", 0.7e-3, 1.0),
                ("normal", 0.5e-3, 0.8),
                ("falling", 1.0e-3, 1.2),
            )
        ]
        decided[workload.key] = Decided(0.01, None, chosen, {chosen: tuple(figures)})
    save(path, recording.attempts, {}, replace(recording.meta, decided=decided))
    return Recorded(data.folder)


@pytest.mark.parametrize(
    ("paired", "falling", "told"),
    [
        ({512, 1024}, "1.50, 1.50", "They are paired within rounds."),
        (set(), "2.00, 2.00", "These are not paired, "),
        ({512}, "1.75, 2.00", "Those of 2 workloads are not paired, "),
    ],
)
def test_what_inputs_cost_is_of_paired_samples_where_they_are_recorded(
    data: Recorded, paired: set[int], falling: str, told: str
) -> None:
    data = with_costs(data, paired=paired)
    last = grid.on_inputs(data, "sm90").splitlines()[-1]
    assert last.strip("|").split("|")[-1].strip() == falling
    assert grid.pairing(data, "sm90").startswith(told)


def test_best_against_the_library(data: Recorded) -> None:
    text = grid.against(data, "sm80", "fa2")
    lines = text.splitlines()
    assert lines[0] == "| d_head, mask, dtype | 512 | 1024 |"
    assert [line.split("|")[1].strip() for line in lines[2:]] == [
        "128, FP16",
        "128, causal, FP16",
        "64, FP16",
        "64, causal, FP16",
    ]
    assert all(line.count(", 2.00 |") == 2 for line in lines[2:])
    flop = 4 * 16 * 16 * 512**2 * 128
    assert f"| {flop / 1e-3 / 1e12:.0f}, 2.00 |" in lines[2]
    assert ", 2.00 |" in grid.against(data, "sm90", "cudnn")
    assert grid.against(data, "sm90", "fa4") == ""


def test_winners_have_letters(data: Recorded) -> None:
    text = grid.winners(data, "sm80")
    assert "| 128, FP16 | a | b |" in text or "| 128, FP16 | b | a |" in text
    assert all("FP16" not in line for line in text.splitlines() if line.startswith("- "))
    rows = [line for line in grid.winners(data, "sm90").splitlines() if "FP16 |" in line]
    assert all(len(set(line.split("|")[2:-1])) == 1 for line in rows), "one winner per d_head"


def test_what_one_config_loses(data: Recorded) -> None:
    workloads = grid.lines(data)[128, False, "FP16"]
    found = grid.one_config(data, "sm80", workloads)
    assert found is not None
    second = subjects(128)["sm80"][1]
    assert found[0] == second
    assert found[1] == pytest.approx([0.02, 0.0])
    text = grid.losses(data, "sm80")
    assert f"| 128, FP16 | `{second.partition(':')[2]}` | 1.0 | 2.0 |" in text
    assert "| 128, both masks, FP16 |" in text
    assert grid.one_config(data, "sm80", workloads[:1]) is None


def test_both_masks_are_named_where_both_were_recorded(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FOLDER, tmp_path / "gpu"))
    path = folder / "fast_d192_d256_events.csv"
    header, *rows = path.read_text(encoding="utf-8").splitlines(keepends=True)
    d_head, causal = (header.rstrip().split(",").index(name) for name in ("d_head", "causal"))
    kept = [r for r in csv.reader(rows) if r[d_head] == "192" or r[causal] == "false"]
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(header)
        csv.writer(file, lineterminator="\n").writerows(kept)
    meta = path.with_suffix(".meta.json")
    told = json.loads(meta.read_text(encoding="utf-8"))
    told["table_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    meta.write_text(json.dumps(told), encoding="utf-8")
    data = Recorded(folder)
    masks = {d: {c for other, c, _ in grid.lines(data) if other == d} for d in (64, 128, 192, 256)}
    assert masks == {d: {False, True} if d != 256 else {False} for d in masks}
    text = grid.losses(data, "sm80")
    for d, found in masks.items():
        assert (f"| {d}, both masks, FP16 |" in text) == (found == {False, True})


def test_lines_begin_with_the_usual_head_dimensions() -> None:
    d_heads = list(dict.fromkeys(d_head for d_head, _, _ in grid.lines(DATA)))
    assert d_heads == [128, 64, 192, 256]
    of_128 = [line[1:] for line in grid.lines(DATA) if line[0] == 128]
    assert of_128 == [(False, "FP16"), (False, "BF16"), (True, "FP16"), (True, "BF16")]


def test_reference_of_another_run_gives_no_ratio(data: Recorded) -> None:
    """The ladder's run, made the older one, has the very samples of FlashAttention 2."""
    workload = benchmark_workload(1024, 128, DType.FP16)
    meta = data.recordings["prog_events"].meta
    older = replace(meta.provenance, recorded_at="2001-01-01T00:00:00+00:00")
    attempts = recorded(workload, {"ref:fa2": 2e-3})
    save(data.folder / "prog_events.csv", attempts, {}, replace(meta, provenance=older))
    (line,) = [
        line
        for line in grid.against(Recorded(data.folder), "sm80", "fa2").splitlines()
        if line.startswith("| 128, FP16 |")
    ]
    assert [", –" in cell for cell in line.split("|")[2:4]] == [False, True]


def test_blocks_name_what_they_show(data: Recorded) -> None:
    page = grid.section(data, "sm90")
    assert "of the fast set" in page
    assert "as fast as cuDNN (2.00 to 2.00), by" in page
    assert "FlashAttention 4" not in page
    assert "as fast as FlashAttention 2 (" in grid.section(data, "sm80")


def test_ratios_are_paired_within_rounds() -> None:
    """The clock halves between the rounds; the one that took part in both is no slower for it."""

    def taken(subject: str, *samples_s: float) -> Measurement:
        return Measurement(subject, "", "events", samples_s, {})

    measured = {"a": taken("a", 1.0, 2.0, 2.0), "b": taken("b", 1.0)}
    assert grid.ratio(measured, "a", "b") == 1.0


def test_what_the_search_chose_is_shown() -> None:
    """Not the fastest of those that it could not tell apart."""
    cells = grid.cells(DATA)
    chosen = {w: subject for w, subject in grid.choices(DATA).items() if w in cells}
    assert set(chosen) == set(cells)
    shown = {w: grid.shown(DATA, w, "sm90") for w in chosen}
    assert shown == chosen
    assert any(grid.fastest(grid.cells(DATA)[w], "sm90") != s for w, s in shown.items())


def test_the_small_table_has_the_fastest_library() -> None:
    text = grid.small_table(DATA)
    (row,) = [line for line in text.splitlines() if line.startswith("| 128, full |")]
    w = benchmark_workload(1024, 128, DType.FP16)
    measured, subject = grid.cells(DATA)[w], grid.choices(DATA)[w]
    times = [grid.ratio(measured, s, subject) for s in measured if s.startswith("ref:")]
    assert f", {min(times):.2f}×" in row.split("|")[3]


def test_many_letters() -> None:
    assert [grid._letters(i) for i in (0, 25, 26, 27, 52)] == ["a", "z", "aa", "ab", "ba"]


def test_range_in_prose_is_that_of_the_recordings() -> None:
    words = f"{grid.span(DATA, 'sm90', 'cudnn')} times as fast as cuDNN"
    assert words in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def _apart(subject: str, workload: Workload, raced_s: float, held_out_s: float) -> Attempt:
    """One attempt that took other times in the race than afterwards."""
    measurement = Measurement(
        subject, workload.key, "events", (raced_s,) * 5, held_out_s=(held_out_s,) * 3
    )
    return Attempt(subject, workload.key, Outcome.OK, measurement=measurement)


def test_the_choice_is_shown_by_samples_that_it_was_not_made_by(data: Recorded) -> None:
    w = benchmark_workload(1024, 128, DType.FP16)
    a, b = subjects(128)["sm90"]
    attempts = [
        _apart("ref:fa2", w, 2e-3, 2e-3),
        _apart("ref:cudnn", w, 1e-3, 0.9e-3),
        _apart(a, w, 0.5e-3, 0.6e-3),
        _apart(b, w, 0.49e-3, 0.7e-3),
    ]
    meta = DATA.recordings[f"{DATA.searched}_events"].meta
    decided = {w.key: Decided(0.01, chosen=a)}  # the fastest of the race is another one
    save(data.folder / "fast_events.csv", attempts, {}, replace(meta, decided=decided))
    found = Recorded(data.folder)
    assert grid.choices(found)[w] == grid.shown(found, w, "sm90") == a
    text = grid.against(found, "sm90", "cudnn")
    assert f"| {4 * 16 * 16 * 1024**2 * 128 / 0.6e-3 / 1e12:.0f}, 1.50 |" in text
    assert grid.fastest(grid.cells(found)[w], "sm90") == b, "the race is what is picked by"


def test_shapes_off_the_grid_stay_out_of_its_tables(data: Recorded) -> None:
    before = grid.against(data, "sm90", "cudnn")
    assert grid.off_grid(data) == ""
    w = Workload(3, 20, 4, 1000, 1000, 64, DType.FP16, causal=True)
    taken = recorded(w, {"ref:cudnn": 1e-3, subjects(64)["sm90"][0]: 0.5e-3})
    meta = DATA.recordings[f"{DATA.searched}_events"].meta
    decided = {w.key: Decided(0.01, chosen=subjects(64)["sm90"][0])}
    save(data.folder / "fast_off_grid_events.csv", taken, {}, replace(meta, decided=decided))
    found = Recorded(data.folder)
    assert grid.against(found, "sm90", "cudnn") == before
    (row,) = grid.off_grid(found).splitlines()[2:]
    rate = 4 * 64 * (1000 * 1001 / 2) * 3 * 20 / 0.5e-3 / 1e12
    assert row == f"| 1000, causal | FP16 | 64 | 3 | 20 (4 kv) | {rate:.0f} |  | 2.00 |  |"
    assert grid.off_grid(found) in grid.section(found, "sm90")


def test_other_masks_have_a_table_of_their_own(data: Recorded) -> None:
    assert grid.more_kinds(data) == ""
    w = Workload(2, 64, 8, 4096, 4096, 64, DType.BF16, causal=True, window_left=127, sink=True)
    subject = "sm90:sm90(BF16, 64, 192x128): stages_2"
    taken = recorded(w, {"ref:fa4": 1e-3, subject: 0.5e-3})
    meta = DATA.recordings[f"{DATA.searched}_events"].meta
    decided = {w.key: Decided(0.01, chosen=subject)}
    save(data.folder / "fast_gpt_oss_128_events.csv", taken, {}, replace(meta, decided=decided))
    found = Recorded(data.folder)
    assert grid.off_grid(found) == ""
    (row,) = grid.more_kinds(found).splitlines()[2:]
    pairs = 128 * 4096 - 127 * 128 / 2
    rate = 4 * 64 * pairs * 2 * 64 / 0.5e-3 / 1e12
    about = "4096, causal, left 127, sink"
    assert row == f"| {about} | BF16 | 64 | 2 | 64 (8 kv) | {rate:.0f} |  |  | 2.00 |"
    assert grid.more_kinds(found) in grid.section(found, "sm90")


def test_a_part_of_the_workloads_recorded_anew_goes_before_the_older(data: Recorded) -> None:
    """Its measurements, its choice and its date; the others are the older recording's."""
    again, other = (benchmark_workload(n, 128, DType.FP16) for n in SEQ_LENS)
    before = grid.held(data)
    subject = subjects(128)["sm90"][1]
    taken = recorded(again, {"ref:cudnn": 3e-3, subject: 1e-3})
    meta = before[again].meta
    later = replace(
        meta,
        provenance=replace(meta.provenance, recorded_at="2099-01-01T00:00:00+00:00"),
        decided={again.key: Decided(0.01, chosen=subject)},
    )
    save(data.folder / "fast_d128_events.csv", taken, {}, later)
    found = Recorded(data.folder)
    assert set(grid.everything(found)[again]) == {"ref:cudnn", subject}
    assert grid.choices(found)[again] == subject
    assert grid.held(found)[other] == before[other]
    assert grid.grid_conditions(found).endswith("to 2099-01-01")
    assert ", 3.00 |" in grid.against(found, "sm90", "cudnn")


def test_a_table_is_of_one_kind_of_inputs(data: Recorded) -> None:
    found = load(data.folder / "fast_events.csv")
    faster = [
        replace(a, measurement=replace(a.measurement, samples_s=(1e-9,), inputs="trained"))
        for a in found.attempts
        if a.measurement is not None
    ]
    path = data.folder / "fast_d32_trained_events.csv"
    save(path, faster, {}, replace(found.meta, inputs="trained"))
    other = Recorded(data.folder)
    assert grid.everything(other) == grid.everything(data)
    assert grid.grid_conditions(other).startswith("normal inputs, ")


def test_what_measured_is_told_above_the_table(data: Recorded) -> None:
    path = data.folder / "fast_events.csv"
    found = load(path)
    by = MeasuredBy(("GPU-1",), {"torch": ("2.11.0",), "cudnn": ("9.13.0",), "fa4": ("4.0.0",)})
    save(path, found.attempts, {}, replace(found.meta, measured_by=by))
    told = grid.grid_conditions(Recorded(data.folder))
    assert ", torch 2.11.0, FA4 4.0.0, cuDNN 9.13.0; recorded" in told
