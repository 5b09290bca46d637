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
from collections.abc import Iterable, Mapping, Sequence
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
from fa_tune.gpu.runners import Runner
from fa_tune.tune.build import build_all, build_request
from fa_tune.tune.session import Machine, open_machine

ROUNDS, LEFT_OUT = 9, 2  # in all, and the first of them, while clocks settle
BEHIND = 1.2  # times the fastest in a round: too slow for another
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


def defaults(wanted: Sequence[Workload], machine: Machine) -> dict[Workload, Config]:
    """The default config of each problem; a problem without one is left out."""
    found = {}
    for workload in wanted:
        if configs := families.defaults_for(workload, machine.limits):
            found[workload] = configs[0]
        else:
            print(f"{workload.key}: no default", flush=True)
    return found


def compiled(
    wanted: Iterable[tuple[Workload, Config]], machine: Machine
) -> dict[tuple[Workload, Config], Artifact]:
    """The kernels of configs for problems, of those that compile."""
    requests = {
        (workload, config): build_request(
            config, families.of(config).traits(config, workload), machine
        )
        for workload, config in wanted
    }
    once = list(dict.fromkeys(requests.values()))
    built = {r.request: r.artifact for r in build_all(once, machine, Silent())}
    found = {}
    for (workload, config), request in requests.items():
        if (artifact := built[request]) is not None:
            found[workload, config] = artifact
        else:
            print(f"{workload.key}: {config} does not compile", flush=True)
    return found


def samples(
    workload: Workload,
    artifacts: Mapping[str, Artifact],
    names: Sequence[str],
    *,
    leave_out: bool = False,
) -> dict[str, list[float]]:
    """Seconds of kernels and libraries in each round that counts.  With `leave_out` kernels that
    are far behind after some rounds have no more."""
    dice = random.Random(workload.key)
    problems = problems_of(workload, str(DEFAULT), seed=dice.randrange(1 << 20))
    runners: dict[str, Runner] = {
        **{n: CompiledKernel(KernelItem.of(a.variant.key, a)) for n, a in artifacts.items()},
        **{name: libraries.get(name) for name in names},
    }
    subjects, estimates = {}, {}
    for name, runner in runners.items():
        try:
            subject = Subject(runner, problems)
            estimates[name] = subject.estimate()
            subjects[name] = subject
        except (InvalidConfig, torch.OutOfMemoryError) as error:
            print(f"{workload.key}: {name}: {first_line(error)}", flush=True)
    if (launches := graph_launches(estimates.values())) > 1:
        for subject in subjects.values():
            subject.capture(launches)
    rounds: dict[str, list[float]] = {name: [] for name in subjects}
    going = sorted(subjects)
    for number in range(ROUNDS):
        if leave_out and number > LEFT_OUT:
            last = {name: rounds[name][-1] for name in going}
            most = BEHIND * min(last.values())
            going = [name for name in going if last[name] <= most or name in names]
        for name in dice.sample(going, len(going)):
            rounds[name].append(subjects[name].sample())
    return {name: seconds[LEFT_OUT:] for name, seconds in rounds.items()}


def timed(
    workload: Workload, artifact: Artifact, names: Sequence[str]
) -> tuple[float, Mapping[str, float]]:
    """Median seconds of a kernel, and how many times as fast as each library it is."""
    found = samples(workload, {"": artifact}, names)
    mine = found.pop("")
    ratios = {
        name: statistics.median(theirs / own for theirs, own in zip(seconds, mine, strict=True))
        for name, seconds in found.items()
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
    configs = defaults([w for w in wanted if w.key not in done], machine)
    kernels = compiled(configs.items(), machine)
    print(f"{len(kernels)} problems, compiled after {time.monotonic() - began:.0f} s", flush=True)
    use_device(0)
    warm_up()
    with out.open("a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not done:
            writer.writerow([*FIELDS, *names])
        for (workload, config), artifact in kernels.items():
            if time.monotonic() - began > seconds:
                break
            try:
                took, ratios = timed(workload, artifact, names)
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
