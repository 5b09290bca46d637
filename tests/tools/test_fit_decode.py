"""Bounds of decoding's defaults are what a script makes of recordings."""

from __future__ import annotations

import itertools
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import fit_decode
from fa_tune.core.arch import limits
from fa_tune.core.workload import DType, Workload
from fa_tune.families.decode.bounds import PATH, Bounds, bounds_of
from fit_decode import Losses, Problem, default, fit, fit_from_afar, main, recorded
from tests.project_files import ROOT

_NOW = bounds_of((9, 0))
_RULE = replace(_NOW, early_ns=3.0 * _NOW.early_ns, many=_NOW.many / 1.5, most_ns=2e4)
_CHANGED = ["early_ns", "many", "most_ns"]
OTHERS = ROOT / "benchmarks" / "decode_other_heads"


def _pretended(
    gpu: str = "a",
    *,
    rule: Bounds = _RULE,
    multiprocessors: int = 132,
    batches: tuple[int, ...] = (4, 40),
    keys: tuple[int, ...] = (1000, 30_000),
) -> list[Problem]:
    """A GPU on which what a rule chooses is the fastest, all else that a rule might loses 10 %."""
    arch = limits((9, 0), multiprocessors=multiprocessors)
    found = []
    for batch, n in itertools.product(batches, keys):
        workload = Workload(batch, 64, 8, 1, n, 128, DType.BF16)
        problem = Problem(gpu, arch, workload, {})
        rules = [_NOW, _RULE, *(replace(_NOW, **{name: x}) for name, x in _changes())]
        losses = {default(problem, rule): 0.1 for rule in rules} | {default(problem, rule): 0.0}
        found.append(replace(problem, losses=losses))
    return found


def _changes() -> list[tuple[str, float]]:
    return [(name, getattr(_NOW, name) * by) for name in _CHANGED for by in (0.1, 0.3, 3.0, 10.0)]


def test_the_rule_of_a_recording_is_found() -> None:
    problems = _pretended(batches=(1, 4, 33, 45, 60), keys=(1000, 4000, 9000, 30_000))
    assert Losses.of(problems, _NOW).mean > 0.01
    bounds, _ = fit(problems, _NOW)
    assert [default(p, bounds) for p in problems] == [default(p, _RULE) for p in problems]


def test_what_recordings_cannot_tell_stays() -> None:
    problems = _pretended()
    bounds, found = fit(problems, _NOW)
    assert bounds.e4m3_cta_bytes_per_ns == _NOW.e4m3_cta_bytes_per_ns
    assert not any(found["e4m3_cta_bytes_per_ns"].others)
    assert fit(problems, bounds)[0] == bounds
    gains = _pretended("a", batches=(1, 4, 33, 45, 60))
    loses = _pretended("b", batches=(1, 4, 33, 45, 60), rule=_NOW)
    assert fit(gains, _NOW)[0] != _NOW
    assert fit([*gains, *loses], _NOW)[0] == _NOW


def test_no_default_is_left_for_one_that_was_not_recorded() -> None:
    problems = [replace(p, losses={default(p, _NOW): 0.1, "another": 0.0}) for p in _pretended()]
    assert fit(problems, _NOW)[0] == _NOW
    problems = [replace(p, losses={"another": 0.0}) for p in _pretended()]
    assert fit(problems, _NOW)[0] == _NOW


def test_bounds_that_were_fitted_to_one_gpu_are_right_on_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fit_decode, "NAMES", _CHANGED)
    keys = (500, 1000, 4000, 8000, 32_000)
    first = _pretended("a", batches=(1, 4, 8, 32, 36, 40, 64), keys=keys)
    second = _pretended("b", multiprocessors=100, batches=(3, 28, 50), keys=(1500, 12_000, 50_000))
    held_out = Losses.of(second, fit_from_afar(first, _NOW))
    assert held_out.mean < Losses.of(second, _NOW).mean / 2.0


def test_a_config_loses_against_the_fastest_that_was_recorded() -> None:
    problems = recorded([OTHERS / "nvidia_h200"])
    assert {p.gpu for p in problems} == {"NVIDIA H200"}
    for problem in problems:
        assert min(problem.losses.values()) == 0.0
        assert len(problem.losses) > 30
        assert not any(subject.startswith("ref:") for subject in problem.losses)


def test_the_file_is_written_from_the_recordings_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "decode_h64_kv8_q4_events_unfinished"
    for file in OTHERS.rglob(f"{name}.*"):
        own = tmp_path / "recordings" / file.parent.name
        own.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, own)
    monkeypatch.setattr(fit_decode, "PATH", tmp_path / "bounds.toml")
    monkeypatch.setattr(fit_decode, "STARTS", 1)
    done = CliRunner().invoke(main, [str(tmp_path / "recordings")], catch_exceptions=False)
    assert done.exit_code == 0
    assert {"NVIDIA H200", "NVIDIA H100 80GB HBM3"} <= {*done.output.splitlines()}
    (table,) = tomllib.loads(fit_decode.PATH.read_text())["fitted"]
    assert table["compute_capability"] == [9, 0]
    fitted = Bounds(**table["bounds"])
    problems = recorded([tmp_path / "recordings"])
    assert Losses.of(problems, fitted).mean <= Losses.of(problems, _NOW).mean


@pytest.mark.long
def test_the_bounds_are_those_of_the_recordings() -> None:
    before = PATH.read_bytes()
    assert CliRunner().invoke(main, ["--check"], catch_exceptions=False).exit_code == 0
    assert PATH.read_bytes() == before


def test_bounds_of_gpus_whose_recordings_are_not_named_are_not_lost(tmp_path: Path) -> None:
    before = PATH.read_bytes()
    assert CliRunner().invoke(main, [str(tmp_path)], catch_exceptions=False).exit_code == 2
    assert PATH.read_bytes() == before
