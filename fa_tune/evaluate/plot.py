"""How close to the best, after how many measurements: a picture per space."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from fa_tune.core.errors import InvalidConfig, StorageError, ToolMissing
from fa_tune.evaluate.kernel_tuner import PREFIX
from fa_tune.evaluate.replay import LEVELS, MEDIAN, RANDOM, UNLUCKY, Score

SUFFIXES = (".svg", ".png", ".pdf")
_INCHES = (7.0, 3.6)  # of one space


def require(path: Path) -> None:
    """Raise InvalidConfig for a file that is no plot's, ToolMissing without matplotlib: to be asked
    before anything is computed."""
    if path.suffix not in SUFFIXES:
        raise InvalidConfig(f"{path}: a plot is {', '.join(SUFFIXES)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise ToolMissing("matplotlib is not installed: pip install matplotlib")


def save(path: Path, spaces: Sequence[Sequence[Score]]) -> None:
    """One panel per space: the share of the best at the median (solid) and for all but the
    unluckiest tenth of the seeds (dotted), over measurements.  Kernel Tuner's strategies are
    grey, and only their medians are drawn.

    Raises what `require` does, and StorageError.
    """
    require(path)
    import matplotlib  # late: optional, and slow to load

    matplotlib.use("agg")
    from matplotlib import pyplot

    # Without a date and with fixed names inside, the same scores give the same file.
    with matplotlib.rc_context({"svg.hashsalt": "fa-tune", "svg.fonttype": "none"}):
        columns = min(2, len(spaces))
        rows = -(-len(spaces) // columns)
        width, height = _INCHES[0] * columns, _INCHES[1] * rows
        figure, axes = pyplot.subplots(
            rows, columns, figsize=(width, height), squeeze=False, layout="constrained"
        )
        for ax in axes.flat[len(spaces) :]:
            ax.set_axis_off()
        for ax, scores in zip(axes.flat, spaces, strict=False):
            others = [score for score in scores if score.strategy.startswith(PREFIX)]
            for number, score in enumerate(others):
                x = range(1, len(score.curve[MEDIAN]) + 1)
                label = "" if number else f"Kernel Tuner's {len(others)}, median"
                ax.plot(x, score.curve[MEDIAN], color="0.75", linewidth=0.8, label=label)
            ours = [score for score in scores if score not in others]
            for number, score in enumerate(ours):
                colour = "black" if score.strategy == RANDOM else f"C{(number - 1) % 10}"
                x = range(1, len(score.curve[MEDIAN]) + 1)
                ax.plot(x, score.curve[MEDIAN], color=colour, label=score.strategy)
                ax.plot(x, score.curve[UNLUCKY], color=colour, linestyle=":")
            for level in LEVELS:
                ax.axhline(level, color="grey", linewidth=0.5)
            ax.set(
                title=scores[0].space,
                xlabel="measurements",
                ylabel="share of the best",
                ylim=(0.7, 1.003),
            )
            ax.legend(fontsize="x-small", loc="lower right")
        try:
            # A date is the one thing that would differ from run to run; PNG has none to leave out.
            metadata = None if path.suffix == ".png" else {_DATE[path.suffix]: None}
            figure.savefig(path, metadata=metadata)
        except OSError as error:
            raise StorageError(f"cannot write {path}: {error.strerror or error}") from None
        finally:
            pyplot.close(figure)


_DATE = {".svg": "Date", ".pdf": "CreationDate"}
