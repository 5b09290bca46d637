"""The scripts that record what comes with the project ask for what the pages need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click

from fa_tune.cli import cli
from fa_tune.commands.bench import command
from fa_tune.families.sm80.names import parse_short_form
from fa_tune.families.sm80.sets import PROGRESSION, get_kernel_configs
from tests.project_files import ROOT

PROFILES = ROOT / "tools" / "record_profiles.sh"
LADDER = ROOT / "tools" / "record_ladder.sh"
DECODE = ROOT / "tools" / "record_decode.sh"

# Notes what it is asked for, and leaves what the script goes on with.
PRETENDED = """
import json, pathlib, sys
folder = pathlib.Path({folder!r})
with open(folder / "calls.jsonl", "a") as calls:
    print(json.dumps(sys.argv[1:]), file=calls)
if sys.argv[1] == "profile":
    if {fails!r}:
        raise SystemExit(3)
    print('{{"measurements": []}}')
else:
    (folder / "nvidia_x").mkdir(exist_ok=True)
    (folder / "nvidia_x" / "prog_events.csv").touch()
"""


def recorded(folder: Path, *, fails: bool = False) -> tuple[int, list[list[str]]]:
    """Exit status of the ladder's script, and what it asked for, call by call."""
    program = folder / "pretended.py"
    program.write_text(PRETENDED.format(folder=str(folder), fails=fails))
    env = {**os.environ, "FA_TUNE": f"{sys.executable} {program}", "TMPDIR": str(folder)}
    done = subprocess.run([LADDER, folder], env=env, capture_output=True, check=False)
    calls = (folder / "calls.jsonl").read_text().splitlines()
    return done.returncode, [json.loads(call) for call in calls]


# Leaves a recording; the step that has the word `hangs` among its options hangs half-way.
RECORDS = """
import json, pathlib, sys, time
folder, args = pathlib.Path({folder!r}), sys.argv[1:]
with open(folder / "calls.jsonl", "a") as calls:
    print(json.dumps(args), file=calls)
into = pathlib.Path(args[args.index("--record") + 1]) / "nvidia_x"
into.mkdir(parents=True)
hangs = {hangs!r} and {hangs!r} in args
inputs = args[args.index("--inputs") + 1] if "--inputs" in args else "trained"
told = "" if inputs == "normal" else f"_{{inputs}}"
for end in ("csv", "meta.json"):
    (into / f"fast{{told}}_events{{'_unfinished' if hangs else ''}}.{{end}}").touch()
if hangs:
    time.sleep(60)
"""


def profiled(
    tmp_path: Path,
    script: Path = PROFILES,
    *,
    hangs: str = "",
    limit_s: int = 60,
    **environment: str,
) -> tuple[int, list[str], list[list[str]]]:
    """Exit status of a script of many steps, the files that it leaves, and what it asked for."""
    command, env, folder = _command(tmp_path, script, hangs, limit_s)
    done = subprocess.run(command, env=env | environment, capture_output=True, check=False)
    return done.returncode, _left(folder), _calls(tmp_path)


def _command(
    tmp_path: Path, script: Path, hangs: str = "", limit_s: int = 60
) -> tuple[list[str], dict[str, str], Path]:
    program, folder = tmp_path / "pretended.py", tmp_path / "profiles"
    program.write_text(RECORDS.format(folder=str(tmp_path), hangs=hangs))
    env = {**os.environ, "FA_TUNE": f"{sys.executable} {program}", "TMPDIR": str(tmp_path)}
    return ["timeout", str(limit_s), str(script), str(folder)], env, folder


def _left(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def _calls(tmp_path: Path) -> list[list[str]]:
    return [json.loads(call) for call in (tmp_path / "calls.jsonl").read_text().splitlines()]


def test_the_whole_grid_is_recorded_step_by_step(tmp_path: Path) -> None:
    status, files, calls = profiled(tmp_path)
    assert status == 0
    names = ["bf16_", "d192_d256_", "", "off_grid_batch_1_", "off_grid_", "gpt_oss_128_"]
    names += [
        "gpt_oss_1024_",
        "mistral_",
        "gemma_1024_",
        "gemma_4096_",
        "d_v_128_",
        "mixture_",
        "backward_",
    ]
    assert files == sorted(
        f"nvidia_x/fast_{n}events.{end}" for n in names for end in ("csv", "meta.json")
    )
    assert {call[call.index("--ref") + 1] for call in calls} == {"fa2,cudnn,fa4"}
    assert {call[call.index("--profiler") + 1] for call in calls} == {"events"}


def test_each_kind_of_inputs_is_a_recording_of_its_own(tmp_path: Path) -> None:
    status, files, calls = profiled(tmp_path, STEPS="bf16", INPUTS="normal trained")
    assert status == 0
    assert [f for f in files if f.endswith(".csv")] == [
        "nvidia_x/fast_bf16_events.csv",
        "nvidia_x/fast_bf16_trained_events.csv",
    ]
    registries = {call[call.index("--registry") + 1] for call in calls}
    assert len(registries) == 2, "what is chosen on one does not compete on the other"


def test_sustained_times_are_recorded_by_bench(tmp_path: Path) -> None:
    status, _, (call,) = profiled(tmp_path, STEPS="sustained", DEVICES="0,1")
    assert status == 0
    assert call[0] == "bench"
    assert call[call.index("--regime") + 1] == "sustained"
    command.make_context("bench", call[1:])  # it knows all that is asked for


def test_scripts_may_run_at_the_same_time(tmp_path: Path) -> None:
    """One GPU each: both leave what they have recorded, and share no registry."""
    command, env, folder = _command(tmp_path, PROFILES)
    steps = ("bf16 one", "large off")
    running = [subprocess.Popen(command, env={**env, "STEPS": own}) for own in steps]
    assert [one.wait() for one in running] == [0, 0]
    assert [f.removeprefix("nvidia_x/fast_") for f in _left(folder) if f.endswith(".csv")] == [
        f"{name}_events.csv" for name in ("bf16", "d192_d256", "off_grid_batch_1", "off_grid")
    ]
    assert len({call[call.index("--registry") + 1] for call in _calls(tmp_path)}) == 2
    assert [path.name for path in folder.iterdir()] == ["nvidia_x"]


def test_decoding_is_recorded_with_fixed_splits_beside(tmp_path: Path) -> None:
    status, files, calls = profiled(tmp_path, DECODE, STEPS="grid splits", HEADS="64/8")
    assert status == 0
    assert [f.removeprefix("nvidia_x/decode_h64_kv8_") for f in files if f.endswith(".csv")] == [
        f"{name}_events.csv" for name in ("q1_batches", "q1", "splits")
    ]
    assert len({call[call.index("--registry") + 1] for call in calls}) == 1, (
        "what the grid chose competes with the fixed ones"
    )
    for call in calls:  # it knows all that is asked for
        cli.resolve_command(click.Context(cli), call)[1].make_context("search", call[1:])


def test_what_decides_the_defaults_is_recorded_of_one_kind_of_heads(tmp_path: Path) -> None:
    status, files, calls = profiled(tmp_path, DECODE, STEPS="bounds")
    assert status == 0
    names = [f for f in files if f.endswith(".csv")]
    assert len(names) == len(calls)
    assert all(name.startswith("nvidia_x/decode_h64_kv8_") for name in names)
    for call in calls:
        cli.resolve_command(click.Context(cli), call)[1].make_context("search", call[1:])
    assert {call[call.index("--kernels") + 1] for call in calls} == {"fast", "e4m3"}


def test_more_options_go_to_every_step(tmp_path: Path) -> None:
    _, _, calls = profiled(tmp_path, STEPS="off one", OPTIONS="--no-confirm --runs 2")
    assert [call[-3:] for call in calls] == [["--no-confirm", "--runs", "2"]] * 2


def test_what_is_cut_off_leaves_what_was_finished(tmp_path: Path) -> None:
    status, files, calls = profiled(tmp_path, hangs="bf16", limit_s=6)
    assert status == 124
    assert len(calls) == 2
    assert [f for f in files if f.endswith(".csv")] == [
        "nvidia_x/fast_bf16_events_unfinished.csv",
        "nvidia_x/fast_events.csv",
    ]
    status, files, _ = profiled(tmp_path, STEPS="bf16")
    assert status == 0
    assert [f for f in files if "bf16" in f] == [
        f"nvidia_x/fast_bf16_events.{end}" for end in ("csv", "meta.json")
    ]


def test_the_profiled_configs_are_the_ladder_and_one_of_the_fast_set(tmp_path: Path) -> None:
    status, (*_, profile) = recorded(tmp_path)
    assert status == 0
    forms = [word for word in profile if word.startswith("(")]
    assert tuple(forms[:-1]) == PROGRESSION
    assert parse_short_form(forms[-1]) in get_kernel_configs("fast")
    assert "explain" in profile
    kept = tmp_path / "nvidia_x" / "ladder_explain.json"
    assert json.loads(kept.read_text()) == {"measurements": []}


def test_counters_that_were_not_taken_replace_none(tmp_path: Path) -> None:
    (tmp_path / "nvidia_x").mkdir()
    old = tmp_path / "nvidia_x" / "ladder_explain.json"
    old.write_text("old")
    status, _ = recorded(tmp_path, fails=True)
    assert status == 3
    assert old.read_text() == "old"
