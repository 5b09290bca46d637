"""The pages that quote the recordings, the README among them, quote them right."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import ladder_page
from fa_tune.core.model import Measurement
from fa_tune.core.workload import Workload
from fa_tune.families.sm80.sets import get_kernel_configs
from fa_tune.store.recordings import save
from fa_tune.store.table.from_attempts import CYCLES
from recorded import FOLDER, LADDER, METHODS, SEARCHED, STEPS, Recorded, ms, ours, spearman
from recorded_tables import CHANGES, signed, table
from tests.project_files import ROOT

DATA = Recorded()
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
# What a measurement looks like: a decimal number, or any number with a unit.  Versions and
# numbers inside words are none.
MEASURED = re.compile(
    r"(?<![\w.,])[+−-]?"
    r"(?:\d[\d,]*\.\d+(?![\w.]*\.\d)|\d[\d,]*(?= ?(?:%|ms\b|times\b|million|GHz|TFLOP)))"
)


def _read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def unmarked(text: str, page: str) -> list[str]:
    """Figures in the sentences of a page that no comment ties to the recordings."""
    for name in ladder_page.TABLES[page]:
        text = re.sub(rf"<!-- {name} -->.*?<!-- /{name} -->", "", text, flags=re.DOTALL)
    text = re.sub(r"`[^`]*`", "", FENCE.sub("", text))
    return MEASURED.findall(ladder_page.FIGURE.sub("", text))


@pytest.mark.parametrize("page", [*ladder_page.TABLES, *ladder_page.PICTURES])
def test_page_is_up_to_date(page: str) -> None:
    assert ladder_page.made(page, DATA) == _read(page), "run: python tools/pages/ladder_page.py"


@pytest.mark.parametrize("page", ladder_page.TABLES)
def test_no_comment_is_misspelt(page: str) -> None:
    """A comment right behind a word ties a figure; one that is not understood would be skipped."""
    text = _read(page)
    tied = re.findall(r"\S<!-- [^>]*-->", text)
    assert len(tied) == len(ladder_page.FIGURE.findall(text))


def test_every_figure_on_the_ladder_is_tied_to_the_recordings() -> None:
    # "differences under 1 %" and the like are no measurements; the ladder has none.
    assert unmarked(_read("docs/ladder.md"), "docs/ladder.md") == []


def test_every_figure_that_the_recordings_taught_is_tied_to_them() -> None:
    page = "docs/measuring.md"
    section = _read(page).partition("## What the recordings taught")[2].partition("\n## ")[0]
    assert unmarked(section, page) == ["1"]  # "differences under 1 %", a rule of thumb


@pytest.mark.parametrize("text", ["took 6.4 ms", "3 % more", "1,122 million", "is 2 times as"])
def test_loose_figures_are_found(text: str) -> None:
    assert unmarked(text, "docs/ladder.md")


def test_wrong_figures_and_tables_are_put_right() -> None:
    page = "docs/ladder.md"
    text = _read(page)
    wrong = re.sub(r"\S+(?=<!-- ncu r2:r3 -->)", "+99.9", text)
    wrong = wrong.replace("| 2 | swizzle |", "| 2 | magic |")
    assert wrong.count("+99.9") == 1
    assert wrong != text
    assert ladder_page.filled(wrong, page, DATA) == text


def test_what_the_recordings_lack_is_an_error() -> None:
    page = "docs/measuring.md"
    with pytest.raises(KeyError):
        ladder_page.filled(_read(page) + "1<!-- ncu r8 -->", page, DATA)
    with pytest.raises(ValueError, match="0 blocks named offsets"):
        ladder_page.filled("no table", page, DATA)


def changes(before: str, after: str, metric: str = "") -> list[float]:
    """Relative change of time, or of a counter, in the two runs under ncu: ranking, counters."""

    def value(m: Measurement) -> float:
        return m.counters[metric].value if metric else ms(m)

    runs = [
        (DATA.timed(before, "ncu"), DATA.timed(after, "ncu")),
        (DATA.explained[DATA.subject(before)], DATA.explained[DATA.subject(after)]),
    ]
    return [value(b) / value(a) - 1 for a, b in runs]


def stalled(before: str, after: str, stall: str) -> float:
    """How many times as large a stall is."""
    return DATA.counter(after, stall) / DATA.counter(before, stall)


def stalls(name: str) -> dict[str, float]:
    """All stalls by reason; to be selected is none."""
    found = {}
    for metric, counter in DATA.explained[DATA.subject(name)].counters.items():
        reason = re.search(r"_issue_stalled_(\w+)_per_issue", metric)
        if reason and reason[1] != "selected":
            found[reason[1]] = counter.value
    return found


def test_the_order_that_the_prose_states() -> None:
    """Sentences do not follow new recordings by themselves; these are what the page rests on."""
    ncu = {name: DATA.time_ms(name, "ncu") for name in (*STEPS, "best", "fa2", "cudnn")}
    steps = sorted(STEPS, key=ncu.__getitem__)
    assert steps == ["r6", "r7", "r3", "r4", "r5", "r2", "r1"]
    assert ncu["cudnn"] < ncu["best"] < ncu["fa2"] < ncu["r6"]
    assert ncu["r5"] < ncu["r6"] * 1.03, "little happens after step 3"
    fastest = min(m.samples_s[0] for m in ours(DATA.found("ncu", LADDER)).values())
    assert ncu["best"] < fastest * 1e3 * 1.01


def test_what_the_prose_says_of_steps_3_and_4() -> None:
    assert max(map(abs, changes("r3", "r4"))) < DATA.repeat("time") / 100
    assert max(map(abs, changes("r3", "r4", CYCLES[0]))) < DATA.repeat("cycles") / 100
    for stall in ("short", "mio", "barrier"):
        assert DATA.counter("r3", stall) < DATA.counter("r4", stall)
    more_warps = DATA.counter("r4", "warps") / DATA.counter("r3", "warps")
    assert min(stalled("r3", "r4", stall) for stall in ("short", "mio", "barrier")) > more_warps
    more_issued = DATA.counter("r4", "issue") / DATA.counter("r3", "issue")
    more_to_issue = DATA.counter("r4", "instructions") / DATA.counter("r3", "instructions")
    assert more_issued == pytest.approx(more_to_issue, rel=0.01)
    assert more_to_issue > 1.01
    assert DATA.shared_busy("r3") < DATA.shared_busy("r4") < DATA.shared_busy("r1")
    assert DATA.counter("r4", "tensor") < DATA.counter("r3", "tensor")


def test_step_4_to_5_gains_nothing() -> None:
    first, second = changes("r4", "r5")
    assert second < 0 < first, "the two runs have different signs"
    assert min(changes("r4", "r5", CYCLES[0])) > DATA.repeat("cycles") / 100, (
        "both have more cycles"
    )
    assert DATA.counter("r4", "instructions") == DATA.counter("r5", "instructions")
    assert DATA.counter("r5", "short") == pytest.approx(DATA.counter("r4", "short"), rel=0.05)


def test_step_6_to_7_is_not_confirmed_by_the_other_run() -> None:
    first, second = changes("r6", "r7")
    assert second < 0 < first
    assert abs(changes("r6", "r7", CYCLES[0])[1]) < DATA.repeat("cycles") / 100
    fewer_warps = DATA.counter("r7", "warps") / DATA.counter("r6", "warps")
    assert max(stalled("r6", "r7", stall) for stall in ("short", "barrier")) < fewer_warps
    assert DATA.counter("r7", "tensor") == pytest.approx(DATA.counter("r6", "tensor"), rel=5e-3)


def test_what_the_prose_says_of_the_best() -> None:
    found = stalls("best")
    assert 2 * found["wait"] > sum(found.values())
    for name, more in (("math", False), ("short", False), ("barrier", True), ("tensor", True)):
        assert (DATA.counter("best", name) > DATA.counter("r3", name)) == more


@pytest.mark.parametrize(
    ("step", "largest"),
    [("r2", "long_scoreboard"), ("r5", "short_scoreboard"), ("r6", "short_scoreboard")],
)
def test_largest_stall_that_the_prose_names(step: str, largest: str) -> None:
    found = stalls(step)
    assert max(found, key=found.__getitem__) == largest


def test_of_two_pairs_one_gains_and_one_loses() -> None:
    loss, gain = sorted(DATA.effects("128x64", CHANGES["2 stages, not 1"]), reverse=True)
    assert gain < 0 < loss, "docs/why-this-wins.md says so"


def test_one_of_two_pairs_gains_by_interleave() -> None:
    little, gain = sorted(DATA.effects("128x64", CHANGES["interleave"]), key=abs)
    assert round(gain) == -6, "docs/why-this-wins.md says so"
    assert -1 < little < 0, "less than 1 %"


def test_events_do_not_tell_steps_3_to_7_apart() -> None:
    steps = [DATA.timed(f"r{i}", "events") for i in range(3, 8)]
    medians = [ms(m) for m in steps]
    apart = max(medians) - min(medians)
    assert all((max(m.samples_s) - min(m.samples_s)) * 1e3 > apart for m in steps)
    assert len(DATA.timed("r1", "events").samples_s) == 1


def test_no_recording_has_samples_of_an_older_one() -> None:
    for name, recording in DATA.recordings.items():
        for workload in {a.workload for a in recording.attempts}:
            assert DATA.carried_over(name, Workload.from_key(workload)) == set()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the recordings of the ladder and of the set that was searched with it.  Decoding
    has nothing of them and is left out of the pages."""
    for page, tables in ladder_page.TABLES.items():
        kept = {name: (lambda _: "") if name == "decoding" else t for name, t in tables.items()}
        monkeypatch.setitem(ladder_page.TABLES, page, kept)
    copy = Path(shutil.copytree(FOLDER, tmp_path / "gpu"))
    for name in set(SEARCHED) - {DATA.searched}:
        for path in copy.glob(f"{name}_*"):
            path.unlink()
    return copy


def renamed(folder: Path, set_name: str) -> None:
    """Pretend that the searched set was another one."""
    for path in sorted(folder.glob(f"{DATA.searched}_*")):
        path.rename(folder / path.name.replace(DATA.searched, set_name, 1))


def renamed_back(folder: Path, set_name: str) -> None:
    """Undo `renamed`."""
    for path in sorted(folder.glob(f"{set_name}_*")):
        path.rename(folder / path.name.replace(set_name, DATA.searched, 1))


def without_files(text: str) -> str:
    """A page that names no recording of a searched set."""
    return re.sub(rf"`(?:{'|'.join(SEARCHED)})_(\w*events.csv)`", r"\1", text)


@pytest.mark.long
@pytest.mark.parametrize("name", SEARCHED)
def test_pages_can_be_filled_from_a_search_of_either_set(folder: Path, name: str) -> None:
    renamed(folder, name)
    data = Recorded(folder)
    assert data.searched == name
    before = Recorded(folder.parent / "before")
    shutil.copytree(folder, before.folder)
    renamed_back(before.folder, name)
    for page in ladder_page.TABLES:
        text = ladder_page.filled(_read(page), page, before)
        again = ladder_page.filled(text, page, data)
        text = text.replace(f"the {DATA.searched} set", f"the {name} set")
        assert without_files(again) == without_files(text)


def pretended_search(folder: Path) -> dict[str, str]:
    """Recordings of `fast` in place of all of the searched set, with times by the text of each
    config; returns the subject that is the fastest of each dtype."""
    best = {}
    for path in folder.glob(f"{DATA.searched}_*"):
        path.unlink()
    for method in METHODS:
        old = DATA.recordings[f"{DATA.searched}_{method}"]
        ours_before = {a.workload: a for a in old.attempts if a.subject.startswith("sm80:")}
        attempts = [a for a in old.attempts if a.subject.startswith("ref:")]
        for workload, model in ours_before.items():
            w = Workload.from_key(workload)
            assert model.measurement is not None
            for i, config in enumerate(get_kernel_configs("fast", dtypes=[w.dtype])):
                subject = f"sm80:{config}"
                seconds = w.seq_len_q**2 * w.batch * (50 - i - 9 * (w.seq_len_q > 1024)) * 1e-12
                measured = replace(
                    model.measurement,
                    subject=subject,
                    samples_s=(seconds,),
                    relative=(),
                    held_out_s=(),
                    held_out_relative=(),
                )
                attempts.append(replace(model, subject=subject, measurement=measured))
                best[w.dtype.name] = subject
        save(folder / f"fast_{method}.csv", attempts, {}, replace(old.meta, decided={}))
    explain = folder / "ladder_explain.json"
    text = explain.read_text("utf-8")
    explain.write_text(text.replace(DATA.subject("best"), best["FP16"]), "utf-8")
    return best


def test_pages_can_be_filled_from_a_search_of_all_knobs(folder: Path) -> None:
    best = pretended_search(folder)
    data = Recorded(folder)
    assert data.searched == "fast"
    filled = {page: ladder_page.filled(_read(page), page, data) for page in ladder_page.TABLES}
    assert "the fast set" in filled["docs/results.md"]
    common = best["FP16"].removeprefix("sm80:").replace("FP16", "dtype")
    assert f"- a: `{common}`" in filled["docs/results.md"]
    assert "- b:" not in filled["docs/results.md"]
    ladder = filled["docs/ladder.md"]
    assert f"| best | of the fast set | `{best['FP16'].removeprefix('sm80:')}` |" in ladder
    for size in ("64x64", "128x64", "256x64 of 8"):
        assert f"| {size} |" in ladder
    for change in ("interleave", "2 stages, not 1", "3 stages, not 2"):
        assert f"| {change} |" in ladder
    for change in ("buffer", "Q in 1 k-tile, not whole"):
        assert f"\n| {change} |" not in ladder, "no pair of the fast set differs in it"


def test_the_fast_set_is_preferred(folder: Path) -> None:
    for path in sorted(folder.glob(f"{DATA.searched}_*")):
        for name in SEARCHED:
            if name != DATA.searched:
                shutil.copy(path, folder / path.name.replace(DATA.searched, name, 1))
    assert Recorded(folder).searched == "fast"


def test_a_folder_without_a_search_is_refused(folder: Path) -> None:
    for path in folder.glob(f"{DATA.searched}_events.*"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match="neither fast nor tune"):
        _ = Recorded(folder).recordings


def test_ratio_of_two_runs_is_not_shown(folder: Path) -> None:
    """Shared samples of two recordings are the older one's."""
    searched = DATA.searched
    for name in ("prog", searched):
        meta = folder / f"{name}_events.meta.json"
        text = meta.read_text(encoding="utf-8")
        day = {"prog": "2001-01-01", searched: "2001-01-02"}[name]
        new = re.sub(r'"recorded_at": "[^"]*"', f'"recorded_at": "{day}T00:00:00+00:00"', text)
        meta.write_text(new, encoding="utf-8")
    shutil.copy(folder / "prog_events.csv", folder / f"{searched}_events.csv")
    data = Recorded(folder)
    assert {"ref:fa2", "ref:cudnn"} <= data.carried_over(f"{searched}_events", LADDER)
    assert data.carried_over("prog_events", LADDER) == set()


def test_spearman() -> None:
    assert spearman([1, 2, 3], [10, 200, 3000]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert spearman([1, 2, 2, 3], [1, 3, 3, 9]) == pytest.approx(1)
    assert spearman([1, 2, 3], [5, 5, 5]) is None


def test_numbers_and_tables() -> None:
    assert [signed(v) for v in (4.24, -1.3, -0.04)] == ["+4.2", "−1.3", "0.0"]
    assert table(["a", "b"], [["x", "1"]]) == "| a | b |\n|---|---:|\n| x | 1 |"
