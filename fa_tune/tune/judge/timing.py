"""Timing a target, each sample with contents of its own."""

from __future__ import annotations

import random
import shutil

from fa_tune.core.judged import NAN, Called, Calls, Case, Contents, Timing
from fa_tune.core.model import reference_subject
from fa_tune.core.workload import Workload
from fa_tune.tune.judge import rules
from fa_tune.tune.judge.draws import MOST_SEED
from fa_tune.tune.judge.trial import Trial

OUTSIDE_S = 0.4  # of launches that are held against the judge's clock
MOST_REPEATS = 4096
MORE_REPEATS = 8


def take_times(trial: Trial, workload: Workload, rng: random.Random) -> None:
    """Samples of the target and the references in turn, each with contents of its own; every
    result of a sample is judged."""
    case, bound = Case(workload.key), rng.randrange(MOST_SEED)
    quick = trial.machine.device is not None
    if not workload.uneven:
        _pass_nan(trial, case, bound, Contents(rng.randrange(MOST_SEED), NAN))
    samples, again = [], []
    others: dict[str, list[float]] = {name: [] for name in trial.options.references}
    for _ in range(trial.options.runs):
        warm, now = (Contents(rng.randrange(MOST_SEED)) for _ in range(2))
        contents = (warm, now, now)
        called, digests, folder = trial.call(case, bound, contents)
        trial.judged(case, contents, 1, folder, digests, quick=quick)
        shutil.rmtree(folder)
        trial.note_same(digests[1] == digests[2])
        samples.append(called.calls[1].seconds)
        again.append(called.calls[2].seconds)
        for name, seconds in others.items():
            asked = Calls(reference_subject(name), case, bound, (warm, now))
            answer = trial.ours.ask(asked, Called)
            seconds += [answer.calls[1].seconds] if answer.calls else []
    timing = Timing(
        *(workload.key, tuple(samples), tuple(again)),
        {name: tuple(seconds) for name, seconds in others.items() if seconds},
        rules.least_seconds(workload, trial.machine.device.name if trial.machine.device else ""),
        *_held_against_our_clock(trial, case, bound, rng),
    )
    trial.timings.append(timing)
    for found in rules.timed(timing):
        trial.refuse(*found, workload.key)
    trial.require()


def _held_against_our_clock(
    trial: Trial, case: Case, bound: int, rng: random.Random
) -> tuple[int, float, float]:
    """Repeats, more and more of them, and their seconds less those of one launch: by the
    process's own account, and by how long it took to answer."""

    def taken(repeats: int) -> tuple[float, float]:
        contents = (Contents(rng.randrange(MOST_SEED)),)
        called, digests, folder = trial.call(case, bound, contents, repeats=repeats)
        seconds = called.calls[0].seconds, trial.theirs.wall_s
        trial.judged(case, contents, 0, folder, digests, quick=trial.machine.device is not None)
        shutil.rmtree(folder)
        return seconds

    one = min(taken(1) for _ in range(3))
    repeats = MORE_REPEATS
    while True:
        inside, outside = (a - b for a, b in zip(taken(repeats), one, strict=True))
        if outside > OUTSIDE_S or repeats >= MOST_REPEATS:
            return repeats, inside, outside
        repeats *= MORE_REPEATS


def _pass_nan(trial: Trial, case: Case, bound: int, contents: Contents) -> None:
    _, digests, folder = trial.call(case, bound, (contents,))
    error = trial.judged(case, (contents,), 0, folder, digests)
    shutil.rmtree(folder)
    same = error is not None and error.ok
    trial.passes_nan_on = same and trial.passes_nan_on is not False
