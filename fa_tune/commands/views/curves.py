"""How close to the best, after how many measurements: a picture per space."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fa_tune.lab.kernel_tuner import PREFIX
from fa_tune.lab.replay import MEDIAN, UNLUCKY, Score
from fa_tune.report.page import picture
from fa_tune.report.page.figures import Records

OTHERS = "Kernel Tuner"
QUANTILES = {MEDIAN: "median", UNLUCKY: "unluckiest tenth"}


def save(path: Path, spaces: Sequence[Sequence[Score]]) -> None:
    """One panel per space: the share of the best at the median and for all but the unluckiest
    tenth of the seeds, over measurements.  Kernel Tuner's strategies are one colour, and only
    their medians are drawn.

    Raises InvalidConfig for a file that is no picture's, and StorageError.
    """
    from fa_tune.report.page import charts  # late: altair is slow to load

    picture.save(path, charts.curves(records(spaces), OTHERS))


def records(spaces: Sequence[Sequence[Score]]) -> Records:
    """The corners of each curve."""
    return [
        {
            "space": score.space,
            "strategy": OTHERS if _is_other(score) else score.strategy,
            "line": f"{score.strategy} {name}",
            "quantile": name,
            "measurements": measurements,
            "share": share,
        }
        for scores in spaces
        for score in sorted(scores, key=_is_other, reverse=True)  # theirs below ours
        for quantile, name in QUANTILES.items()
        if quantile == MEDIAN or not _is_other(score)
        for measurements, share in _corners(score.curve[quantile])
    ]


def _is_other(score: Score) -> bool:
    return score.strategy.startswith(PREFIX)


def _corners(curve: Sequence[float]) -> list[tuple[int, float]]:
    """Where the curve rises, and its end."""
    return [
        (n, share)
        for n, share in enumerate(curve, 1)
        if n == 1 or share != curve[n - 2] or n == len(curve)
    ]
