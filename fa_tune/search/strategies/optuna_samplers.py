"""Optuna's samplers over a list of points.

A sampler draws every knob by itself and so may draw what is no point of the space; the
nearest point that is still free is proposed in its place, and the sampler is told of that
point.  It learns of a failure as of a value that is worse than any seen.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from typing import Any

from fa_tune.core.errors import ToolMissing
from fa_tune.search.strategies.base import Observation, Space, StrategyMemory

FAILED_TIMES = 2.0  # a failure counts as this many times the slowest time


class OptunaSampler(StrategyMemory):
    """`optuna-tpe` or `optuna-gp`; start points come first.  Raises ToolMissing where a library is
    not installed."""

    def __init__(self, space: Space, seed: int, name: str) -> None:
        super().__init__(space, seed, name)
        for package in ("scipy", "torch") if name == "optuna-gp" else ():
            if importlib.util.find_spec(package) is None:
                raise ToolMissing(f"{name} needs {package}, which is not installed")
        optuna = _optuna()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # experimental options
            if name == "optuna-gp":
                sampler = optuna.samplers.GPSampler(seed=seed, deterministic_objective=True)
            else:
                sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True)
            self._study = optuna.create_study(sampler=sampler)
        self._distributions: dict[str, Any] = {
            knob: optuna.distributions.IntDistribution(0, len(values) - 1)
            if _ordered(values)
            else optuna.distributions.CategoricalDistribution(tuple(range(len(values))))
            for knob, values in space.values.items()
        }

    def propose(self, n: int) -> list[int]:
        """The free points nearest to what the sampler draws."""
        chosen: list[int] = []
        while len(chosen) < n and len(self.proposed) < len(self.space):
            start = self.free(self.space.start)
            chosen += self.take(start[:1] or [self._drawn()])
        return chosen

    def observe(self, observations: Sequence[Observation]) -> None:
        """Tell the sampler of the points themselves, whatever it had drawn."""
        optuna = _optuna()
        super().observe(observations)
        worst = FAILED_TIMES * max(self.times.values(), default=1.0)
        for observation in observations:
            value = worst if observation.time_s is None else observation.time_s
            self._study.add_trial(
                optuna.trial.create_trial(
                    params=dict(
                        zip(self._distributions, self.space.vectors[observation.index], strict=True)
                    ),
                    distributions=self._distributions,
                    value=value,
                )
            )

    def _drawn(self) -> int:
        optuna = _optuna()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trial = self._study.ask(self._distributions)
        drawn = tuple(trial.params[knob] for knob in self._distributions)
        # What the sampler should learn from is the point that is measured, not this draw.
        self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return min(self.free(), key=lambda i: (self._distance(drawn, i), i))

    def _distance(self, drawn: Sequence[int], index: int) -> float:
        """How far a point is: 1 for another word or switch, less for a number not far off."""
        total = 0.0
        vector = self.space.vectors[index]
        for (_, values), a, b in zip(self.space.values.items(), drawn, vector, strict=True):
            if a != b:
                total += abs(a - b) / (len(values) - 1) if _ordered(values) else 1.0
        return total


def _ordered(values: Sequence[Any]) -> bool:
    return not isinstance(values[-1], bool | str)


def _optuna() -> Any:
    try:
        import optuna  # late: optional, and slow to load
    except ImportError:
        raise ToolMissing("Optuna is not installed: pip install optuna") from None
    return optuna
