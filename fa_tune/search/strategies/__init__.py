"""Which points of a space to measure next.

A *strategy* proposes points and is told what became of them; given the same space, seed and
observations it proposes the same points.  `create` makes one by its name.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from fa_tune.core.errors import InvalidConfig
from fa_tune.search.strategies.base import Observation, Point, Space, Strategy

__all__ = [
    "DEFAULT",
    "FORMER",
    "STRATEGIES",
    "USES_FACTS",
    "USES_PRIORS",
    "Observation",
    "Point",
    "Space",
    "Strategy",
    "create",
]

DEFAULT = "exhaustive"

# Name -> class (its module is loaded when it is asked for), and one line for --help and the docs.
STRATEGIES: Mapping[str, tuple[str, str]] = {
    "exhaustive": ("baseline.InOrder", "every point, those no soft rule objects to first"),
    "random": ("baseline.InOrder", "points drawn without replacement"),
    "learned": ("surrogate.Surrogate", "a regression on knobs and static facts says where to look"),
    "optuna-tpe": ("optuna_samplers.OptunaSampler", "Optuna's tree-structured Parzen estimator"),
    "optuna-gp": (
        "optuna_samplers.OptunaSampler",
        "Optuna's Gaussian process (needs torch and SciPy)",
    ),
}
# Those that left, each with what takes its place: none was ahead of it on a recorded space.
FORMER: Mapping[str, str] = dict.fromkeys(("local", "optuna-ga"), "learned")

# Those that learn from what the compiler says: every config is compiled before the first choice.
USES_FACTS = frozenset({"learned"})
# Those that begin with what other workloads let one expect (`transfer`).
USES_PRIORS = frozenset({"learned"})


def create(name: str, space: Space, seed: int) -> Strategy:
    """The strategy of that name over `space`.

    Raises InvalidConfig for an unknown name and ToolMissing where its library is not installed.
    """
    if name not in STRATEGIES:
        raise InvalidConfig(f"unknown strategy {name!r}; there are {', '.join(STRATEGIES)}")
    module, named = STRATEGIES[name][0].split(".")
    kind = getattr(importlib.import_module(f"{__name__}.{module}"), named)
    made: Strategy = kind(space, seed, name)
    return made
