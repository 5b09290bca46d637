"""Time what runs without tuning beside the libraries, on every problem of the public models.

    python tools/record_models.py OUT.csv [--shard 0/2] [--seconds 500] [--ref fa2,cudnn] [USE…]

A line for each problem of `profiles/models` (of these uses; all if not given): the default config,
its median time, and how many times as fast as each library it is: medians of ratios within rounds
of single launches or graphs, cold L2, trained inputs, in random order.  A library that does not
take a problem has an empty cell.  Problems come in random order, those that OUT has are left out,
and none begins after so many seconds.
"""

from __future__ import annotations

import csv
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import torch

from fa_tune import families, libraries
from fa_tune.core import published
from fa_tune.core.errors import InvalidConfig, first_line
from fa_tune.core.inputs import DEFAULT
from fa_tune.core.jobs import KernelItem
from fa_tune.core.model import Artifact
from fa_tune.core.options import MachineOptions, Silent
from fa_tune.core.workload import Workload
from fa_tune.families.base import Config
from fa_tune.gpu.guard import use_device
from fa_tune.gpu.jobs.time_events import Subject, graph_launches, problems_of, warm_up
from fa_tune.gpu.launch import CompiledKernel
from fa_tune.tune.build import build_all, build_request
from fa_tune.tune.session import Machine, open_machine

ROUNDS, LEFT_OUT = 9, 2  # in all, and the first of them, while clocks settle
FIELDS = ("workload", "use", "models", "config", "microseconds")
Found = dict[Workload, tuple[str, list[str]]]


def workloads_of(uses: Sequence[str]) -> Found:
    """Each problem, with its first use and the models that have it."""
    found: Found = {}
    for name in published.names():
        for use in published.USES:
            for workload in published.load(name).workloads(use) if use in uses else ():
                models = found.setdefault(workload, (use, []))[1]
                if name not in models:
                    models.append(name)
    return found


def compiled(
    wanted: Sequence[Workload], machine: Machine
) -> dict[Workload, tuple[Config, Artifact]]:
    """The default config of each problem and its kernel; a problem without one is left out."""
    requests = {}
    for workload in wanted:
        if not (configs := families.defaults_for(workload, machine.limits)):
            print(f"{workload.key}: no default", flush=True)
            continue
        config = configs[0]
        traits = families.of(config).traits(config, workload)
        requests[workload] = config, build_request(config, traits, machine)
    once = list(dict.fromkeys(request for _, request in requests.values()))
    built = {r.request: r.artifact for r in build_all(once, machine, Silent())}
    found = {}
    for workload, (config, request) in requests.items():
        if (artifact := built[request]) is not None:
            found[workload] = config, artifact
        else:
            print(f"{workload.key}: {config} does not compile", flush=True)
    return found


def timed(
    workload: Workload, artifact: Artifact, names: Sequence[str], dice: random.Random
) -> tuple[float, Mapping[str, float]]:
    """Median seconds of a kernel, and how many times as fast as each library it is."""
    problems = problems_of(workload, str(DEFAULT), seed=dice.randrange(1 << 20))
    ours = CompiledKernel(KernelItem.of(artifact.variant.key, artifact))
    subjects, estimates = {"": Subject(ours, problems)}, {}
    estimates[""] = subjects[""].estimate()
    for name in names:
        try:
            subject = Subject(libraries.get(name), problems)
            estimates[name] = subject.estimate()
            subjects[name] = subject
        except (InvalidConfig, torch.OutOfMemoryError) as error:
            print(f"{workload.key}: {name}: {first_line(error)}", flush=True)
    if (launches := graph_launches(estimates.values())) > 1:
        for subject in subjects.values():
            subject.capture(launches)
    rounds: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(ROUNDS):
        for name in dice.sample(sorted(subjects), len(subjects)):
            rounds[name].append(subjects[name].sample())
    kept = {name: seconds[LEFT_OUT:] for name, seconds in rounds.items()}
    mine = kept.pop("")
    ratios = {
        name: statistics.median(theirs / own for theirs, own in zip(seconds, mine, strict=True))
        for name, seconds in kept.items()
    }
    return statistics.median(mine), ratios


@click.command(help=__doc__)
@click.argument("out", type=click.Path(path_type=Path))
@click.argument("uses", nargs=-1, type=click.Choice(published.USES))
@click.option("--shard", default="0/1")
@click.option("--seconds", default=1e9)
@click.option("--ref", default="fa2,cudnn")
def main(out: Path, uses: Sequence[str], shard: str, seconds: float, ref: str) -> None:
    """See above."""
    began, names = time.monotonic(), ref.split(",")
    machine = open_machine(MachineOptions(), Silent())
    every = workloads_of(uses or published.USES)
    done = set()
    if out.exists():
        done = {row["workload"] for row in csv.DictReader(out.open(encoding="utf-8"))}
    place, of = map(int, shard.split("/"))
    wanted = random.Random(0).sample(sorted(every, key=lambda w: w.key), len(every))[place::of]
    kernels = compiled([w for w in wanted if w.key not in done], machine)
    print(f"{len(kernels)} problems, compiled after {time.monotonic() - began:.0f} s", flush=True)
    use_device(0)
    warm_up()
    with out.open("a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not done:
            writer.writerow([*FIELDS, *names])
        for workload, (config, artifact) in kernels.items():
            if time.monotonic() - began > seconds:
                break
            try:
                took, ratios = timed(workload, artifact, names, random.Random(workload.key))
            except (InvalidConfig, RuntimeError) as error:
                print(f"{workload.key}: {config}: {first_line(error)}", flush=True)
                continue
            use, models = every[workload]
            row = [workload.key, use, " ".join(models), str(config), f"{took * 1e6:.1f}"]
            writer.writerow(row + [f"{ratios[n]:.3f}" if n in ratios else "" for n in names])
            file.flush()
    print(f"ended after {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
