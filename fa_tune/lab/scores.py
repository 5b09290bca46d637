"""Scores as JSON, and back: what took long to run can be shown beside what runs now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from fa_tune.core import codec
from fa_tune.core.codec import NOT_NEGATIVE
from fa_tune.core.errors import ProfileFormatError
from fa_tune.core.files import read_json
from fa_tune.lab.replay import MEDIAN, UNLUCKY, Score
from fa_tune.lab.space_table import RecordedWorkload
from fa_tune.lab.strategies import Comparison

SCHEMA: Literal["fa-tune-bench-search-1"] = "fa-tune-bench-search-1"
_DIGITS = 5  # of a share of the best
Count = Annotated[int, NOT_NEGATIVE]


@dataclass(frozen=True, kw_only=True)
class Needed:
    """Measurements until a share of the best was reached, of half and of nine tenths of the runs;
    null where so many did not get there."""

    median: int | None
    p90: int | None


@dataclass(frozen=True, kw_only=True)
class ScoreObject:
    """One strategy on one space."""

    strategy: str
    seeds: Count
    needed: Mapping[str, Needed]
    behind_random_at: tuple[int, ...]
    share_of_best: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, kw_only=True)
class Scored:
    """One space."""

    space: str
    workload: str
    configs: Count
    scores: tuple[ScoreObject, ...]


@dataclass(frozen=True, kw_only=True)
class BenchSearch:
    """`fa-tune bench-search --json`"""

    schema: Literal["fa-tune-bench-search-1"]
    plan: Comparison
    spaces: tuple[Scored, ...]


def document(
    plan: Comparison, scored: Sequence[tuple[RecordedWorkload, Sequence[Score]]]
) -> BenchSearch:
    """Everything that was compared."""
    spaces = (
        Scored(
            space=space.name,
            workload=space.rows[0].workload,
            configs=len(space.rows),
            scores=tuple(map(_object, scores)),
        )
        for space, scores in scored
    )
    return BenchSearch(schema=SCHEMA, plan=plan, spaces=tuple(spaces))


def read(path: Path, limit: int) -> dict[str, list[Score]]:
    """The scores in a document, by space.

    Raises ProfileFormatError for anything else, and for scores of another limit.
    """
    try:
        found = read_json(path)
        if found["schema"] != SCHEMA:
            raise ValueError(f"schema {found['schema']} is not {SCHEMA}")
        if found["plan"]["limit"] != limit:
            raise ValueError(f"it has a limit of {found['plan']['limit']}, not {limit}")
        spaces = codec.load(tuple[Scored, ...], found["spaces"])
        return {one.space: [_score(one, entry, limit) for entry in one.scores] for one in spaces}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ProfileFormatError(f"{path} is not a result of bench-search --json: {what}") from None


def _object(score: Score) -> ScoreObject:
    return ScoreObject(
        strategy=score.strategy,
        seeds=score.n_seeds,
        needed={f"{100 * k:.0f}%": Needed(median=a, p90=b) for k, (a, b) in score.needed.items()},
        behind_random_at=tuple(score.behind),
        share_of_best={
            f"p{100 * q:.0f}": tuple(round(share, _DIGITS) for share in c)
            for q, c in score.curve.items()
        },
    )


def _score(space: Scored, entry: ScoreObject, limit: int) -> Score:
    needed = {
        round(float(level.rstrip("%")) / 100, 6): (n.median, n.p90)
        for level, n in entry.needed.items()
    }
    return Score(
        *(space.space, entry.strategy, space.configs, entry.seeds, limit, needed),
        curve={q: entry.share_of_best[f"p{100 * q:.0f}"] for q in (MEDIAN, UNLUCKY)},
        behind=entry.behind_random_at,
    )
