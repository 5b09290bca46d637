"""What the command line shows of several families, and how one is chosen."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from fa_tune.core.model import Variant
from fa_tune.search.decide import decide
from fa_tune.store.registry import file as registry_file
from fa_tune.store.registry.schema import Registry
from fa_tune.tune.flow import family_standings
from fa_tune.tune.results import WorkloadResult
from tests.commands import fakes
from tests.commands.console import Console, words
from tests.commands.test_registry import entry
from tests.commands.test_space import space
from tests.families.wave import WaveFamily, register

WAVE = "wave(FP16, 128, 128x176, 2): pingpong"
WAVE_DEFAULT = "wave(FP16, 128, 128x128, 2): "


@pytest.fixture(autouse=True)
def wave(only_sm80: None, monkeypatch: pytest.MonkeyPatch) -> WaveFamily:
    return register(monkeypatch)


# --family ---------------------------------------------------------------------------------------


def test_a_set_is_listed_of_every_family_that_runs_there(console: Console) -> None:
    listed = space(console, "--kernels", "tune", "--arch", "sm_90", "--dtype", "fp16")
    assert sum(config.startswith("wave(") for config in listed["kept"]) == 3
    assert len(listed["kept"]) == 43
    assert listed["counts"]["rejected"] == {"smem_fits": 2}
    before = space(console, "--kernels", "tune", "--arch", "sm_80", "--dtype", "fp16")
    assert not any(config.startswith("wave(") for config in before["kept"])
    assert before["rejected"] == [], "wave has no part in it"


@pytest.mark.parametrize(("names", "kept"), [("wave", 3), ("WAVE,sm80", 43), ("all", 43)])
def test_families_are_chosen_by_name(console: Console, names: str, kept: int) -> None:
    asked = ("--kernels", "tune", "--arch", "sm_90", "--dtype", "fp16")
    assert len(space(console, "--family", names, *asked)["kept"]) == kept


def test_a_family_without_the_set_or_that_cannot_run_says_so(console: Console) -> None:
    listed = space(console, "--arch", "sm_90", "--dtype", "fp16")
    assert len(listed["kept"]) == 10
    assert not any(config.startswith("wave(") for config in listed["kept"])
    done = console("space", "--family", "wave", "--arch", "sm_90")
    assert done.status == 2
    assert done.err.startswith("error: unknown kernel set 'fast'; allowed: tune")
    done = console("space", *words("--family wave --arch sm_86 --kernels tune"))
    assert done.status == 4
    assert "compute_capability: needs sm_90, the device is sm_86" in done.lines[-1]


def test_a_short_form_of_another_family_is_refused(console: Console) -> None:
    done = console("space", "--family", "sm80", "--kernels", WAVE)
    assert done.status == 2
    assert "the config is of family wave, but sm80 is asked for" in done.lines[-1]
    assert space(console, "--kernels", WAVE, "--arch", "sm_90")["kept"] == [WAVE]


# --axis -----------------------------------------------------------------------------------------


def test_axes_are_of_the_families_that_have_them(console: Console) -> None:
    own = space(console, *words("--axis B_c=128,176 --axis pingpong=on --dtype fp16 --arch sm_90"))
    assert own["kept"] == [
        "wave(FP16, 128, 128x128, 2): pingpong",
        "wave(FP16, 128, 128x176, 2): pingpong",
    ]
    assert own["not_in_tune"][0]["name"] == "pingpong_wants_keys"
    theirs = space(console, *words("--axis n_warps=4,8 --dtype fp16 --arch sm_90"))
    assert len(theirs["kept"]) == 2
    both = space(console, *words("--axis d_head=64,128 --dtype fp16 --arch sm_90"))
    assert [config.partition("(")[0] for config in both["kept"]] == ["wave", "wave", "", ""]
    done = console("space", *words("--axis ping-pong=on"))
    assert done.status == 2
    assert "did you mean pingpong" in done.err, "wave's, and not the preferred family's nearest"
    done = console("space", *words("--axis warpgroups=2 --axis n_warps=4"))
    assert done.status == 2
    assert "warpgroups of wave" in done.err
    assert "n_warps of sm80" in done.err


# What is shown ----------------------------------------------------------------------------------


@pytest.fixture
def searched(stub: fakes.Put) -> Callable[..., None]:
    """A search in which wave takes 4 ms (default 5 ms) and sm80 8 ms (default 9 ms)."""

    def pretend(**changes: float) -> None:
        w = fakes.workload()
        taken = {
            Variant("wave", WAVE).key: changes.get("wave", 4.0),
            Variant("wave", WAVE_DEFAULT).key: 5.0,
            fakes.key(fakes.FAST): 8.0,
            fakes.key(fakes.SLOW): 9.0,
        }
        found = tuple(fakes.attempt(s, (t, t * 1.001, t * 0.999), w) for s, t in taken.items())
        defaults = (Variant("wave", WAVE_DEFAULT).key, fakes.key(fakes.SLOW))
        decision = decide([a.measurement for a in found if a.measurement], defaults[0])
        standings = family_standings(decision, defaults)
        one = WorkloadResult(w, found, decision, families=standings)
        stub("fa_tune.tune.flow.search", fakes.search_result([one]))

    return pretend


def test_the_summary_tells_the_winner_and_each_familys_best(
    console: Console, searched: Callable[..., None]
) -> None:
    searched()
    out = console("search", "--wide").out
    assert f"{WAVE} is the fastest" in out
    assert (
        f"The best of sm80, {fakes.FAST}, takes 2.00x its time and 0.89x that of sm80's default"
        in out
    )
    assert "20.00 % less time than the default" in out
    assert "wave:wave" not in out
    (row,) = (line for line in out.splitlines() if line.startswith("|") and "*" in line)
    assert [cell.strip() for cell in row.split("|")][1:4] == ["*", WAVE, "wave"]
    searched(wave=10.0)
    w = console("search", "--json").json["workloads"][0]
    assert [f["family"] for f in w["families"]] == ["wave", "sm80"]
    assert w["families"][1]["ratio_to_default"] == pytest.approx(8 / 9)


def test_the_registry_shows_the_family_and_whose_default_is_meant(
    console: Console, tmp_path: Path
) -> None:
    path = tmp_path / "kept.json"
    kept = dataclasses.replace(entry(), chosen=Variant("wave", WAVE))
    registry_file.save(path, Registry.of([kept]))
    done = console("registry", "show", "--wide", "--registry", str(path))
    (row,) = [line for line in done.out.splitlines() if WAVE in line]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[3:5] == ["wave", WAVE]
    assert "2.00 (sm80)" in cells
