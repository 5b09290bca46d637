"""Kernel Tuner's strategies on a recorded space, by its simulation mode.

Each run gets a process of its own: Kernel Tuner draws from global random generators and keeps
state in its modules.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import io
import json
import random
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from fa_tune.core.errors import InvalidConfig, ToolMissing
from fa_tune.lab.processes import mapped
from fa_tune.lab.replay import Order
from fa_tune.lab.space_table import RecordedWorkload
from fa_tune.lab.t4 import to_kernel_tuner

# Runs over everything in order, and takes no limit.
NO_SEARCH = frozenset({"brute_force"})
PREFIX = "KT "
# Some strategies go round in circles once a small space has nothing new for them.
RUN_LIMIT_S = 20.0


def require() -> None:
    """Raise ToolMissing unless Kernel Tuner is installed."""
    if importlib.util.find_spec("kernel_tuner") is None:
        raise ToolMissing("Kernel Tuner is not installed: pip install kernel-tuner")


def version() -> str:
    """Version of the Kernel Tuner that is installed.  Raises ToolMissing."""
    require()
    return importlib.metadata.version("kernel_tuner")


def all_strategies() -> tuple[str, ...]:
    """Every search strategy that the installed Kernel Tuner has, by its own names; some need
    packages beyond it.  Raises ToolMissing."""
    require()
    from kernel_tuner.interface import strategy_map  # late: optional

    return tuple(name for name in strategy_map if name not in NO_SEARCH)


def replay(
    recorded: RecordedWorkload,
    strategies: Sequence[str],
    *,
    seeds: int,
    limit: int,
    jobs: int,
    on_order: Callable[[], object] = lambda: None,
    on_refusal: Callable[[str], object] | None = None,
) -> dict[str, list[Order]]:
    """The orders in which Kernel Tuner's strategies visit the space, one per seed.

    A strategy that Kernel Tuner does not get to run is left out and told to `on_refusal`.
    Raises ToolMissing without Kernel Tuner and, without `on_refusal`, InvalidConfig for a
    strategy that does not run.
    """
    require()
    document = to_kernel_tuner(recorded, "recorded")
    index = {key: i for i, key in enumerate(document["cache"])}
    orders: dict[str, list[Order]] = {}
    refused: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="fa-tune-") as folder:
        path = Path(folder) / "space.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        tasks = [(str(path), name, seed, limit) for name in strategies for seed in range(seeds)]
        with contextlib.closing(mapped(_visited, tasks, jobs=jobs, chunk=4)) as visits:
            for task, found in zip(tasks, visits, strict=True):
                on_order()
                if isinstance(found, str):
                    refused.setdefault(task[1], f"Kernel Tuner's {task[1]} does not run: {found}")
                    continue
                orders.setdefault(f"{PREFIX}{task[1]}", []).append([index[key] for key in found])
    for name, why in refused.items():
        if on_refusal is None:
            raise InvalidConfig(why)
        on_refusal(why)
        orders.pop(f"{PREFIX}{name}", None)
    return orders


def _visited(task: tuple[str, str, int, int]) -> list[str] | str:
    """In a child: the keys of the points one run visited, each once; or why it did not run."""
    path, strategy, seed, limit = task
    # Late: optional, and each of these processes has its own.
    import kernel_tuner
    import numpy as np
    from constraint import FunctionConstraint

    random.seed(seed)
    np.random.seed(seed)
    document = json.loads(Path(path).read_text(encoding="utf-8"))
    names: list[str] = document["tune_params_keys"]
    known = {tuple(entry[n] for n in names) for entry in document["cache"].values()}
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            results, _ = kernel_tuner.tune_kernel(
                document["kernel_name"],
                "",
                tuple(document["problem_size"]),
                [],
                document["tune_params"],
                # Points that fail stay in: finding out costs a measurement, as it does here.
                restrictions=[FunctionConstraint(lambda *values: values in known)],
                cache=path,
                simulation_mode=True,
                strategy=strategy,
                strategy_options={"max_fevals": limit, "time_limit": RUN_LIMIT_S},
                quiet=True,
            )
    except Exception as error:  # whatever a strategy raises says that it cannot be compared
        return f"{type(error).__name__}: {error}".splitlines()[0]
    visited = (",".join(str(result[n]) for n in names) for result in results)
    return list(dict.fromkeys(visited))[:limit]
