"""Write how long kernels of few tiles take, `fa_tune/families/sm90/few_tiles.csv`.

    python tools/fit_few_tiles.py [--check] [FILE]

FILE is a recording of `tools/record_tiles.py few`, benchmarks/few_tiles_h200.tsv if not given.  For
each form and head dimension the table has the terms whose sum is nearest to the recorded times:
least squares of relative errors, of which large ones count less, and no term below 0.  `--check`
ends in status 1 where the table has others.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import numpy as np

from fa_tune import families
from fa_tune.core.arch import limits
from fa_tune.core.workload import Workload
from fa_tune.families.sm90 import defaults, few_tiles
from fa_tune.families.sm90.config import Sm90Config
from fa_tune.families.sm90.few_tiles import DECODE, PATH, PERSISTENT, Terms
from fit_many_tiles import read

RECORDING = Path(__file__).parents[1] / "benchmarks" / "few_tiles_h200.tsv"
LIBRARY = "fa2"
MULTIPROCESSORS = limits((9, 0)).multiprocessors
ROUNDS = 8  # of weighing errors
SMALL = 0.08  # an error that counts whole

Samples = dict[tuple[str, int], list[tuple[Terms, float]]]


def work_of(workload: Workload, column: str) -> tuple[str, Terms]:
    """The form of a column of a recording, and how often it has each term."""
    if column == PERSISTENT:
        return column, few_tiles.persistent_work(defaults.default_for(workload), workload)
    if column == DECODE:
        return column, few_tiles.decode_work(workload, MULTIPROCESSORS)
    config = families.parse(column)
    assert isinstance(config, Sm90Config)
    return few_tiles.form_of(config), few_tiles.work(config, workload)


def samples(path: Path) -> Samples:
    """Work and microseconds by form and head dimension."""
    found: Samples = {}
    for problem in read(path):
        for column, time in problem.times.items():
            if column != LIBRARY:
                form, work = work_of(problem.workload, column)
                found.setdefault((form, problem.workload.d_head), []).append((work, time))
    return found


def fitted(sampled: Sequence[tuple[Terms, float]]) -> Terms:
    """The terms whose sums are nearest to the times."""
    times = np.array([time for _, time in sampled])
    relative = np.array([work for work, _ in sampled], float) / times[:, None]
    used = [n for n in range(len(Terms._fields)) if relative[:, n].any()]
    found, weights = np.zeros(len(Terms._fields)), np.ones(len(times))
    while True:
        for _ in range(ROUNDS):
            weighed = relative[:, used] * weights[:, None]
            found[used] = np.linalg.lstsq(weighed, weights, rcond=None)[0]
            errors = np.abs(relative @ found - 1)
            weights = np.sqrt(1 / np.maximum(SMALL, errors))
        least = min(used, key=lambda n: found[n])
        if found[least] >= 0:
            return Terms(*(float(f"{term:.3g}") for term in found))
        used.remove(least)
        found[least] = 0


def written(terms: Mapping[tuple[str, int], Terms]) -> str:
    """The text of the table."""
    lines = [",".join(("form", "d_head", *(f"{name}_us" for name in Terms._fields)))]
    for (form, d_head), values in sorted(terms.items()):
        lines.append(",".join((form, str(d_head), *(f"{value:g}" for value in values))))
    return "\n".join(lines) + "\n"


@click.command(help=__doc__)
@click.argument("file", required=False, type=click.Path(exists=True, path_type=Path))
@click.option("--check", is_flag=True)
def main(file: Path | None, check: bool) -> None:
    """See above."""
    text = written({key: fitted(found) for key, found in samples(file or RECORDING).items()})
    if not check:
        PATH.write_text(text, encoding="utf-8")
    elif text != PATH.read_text(encoding="utf-8"):
        sys.exit(f"{PATH} has other terms; python tools/fit_few_tiles.py writes them")


if __name__ == "__main__":
    main()
