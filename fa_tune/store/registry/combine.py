"""What a search's entry does to the entry that is there: nothing that was found out is lost.

A choice takes the place of another only where the two were measured beside one another.  A search
of few configs does not undo one of many: what they know of other configs is kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fa_tune import families
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import Variant
from fa_tune.core.stats import Ratio
from fa_tune.families.equal_sources import equal, kind_of
from fa_tune.store.registry.schema import Entry, RunnerUp


@dataclass(frozen=True)
class FoundEntry:
    """A search's entry and all that its choice was made among: `others` are the variants that were
    measured, each with its time over the chosen one's, `failed` those that gave no time."""

    entry: Entry
    others: Mapping[Variant, RunnerUp]
    failed: Collection[Variant] = ()

    @property
    def measured(self) -> set[Variant]:
        """The chosen variant and those that it was chosen among."""
        return {self.entry.chosen, *self.others}


def combined(present: Entry | None, found: FoundEntry) -> tuple[Entry, str | None]:
    """The entry to keep, and a sentence where it is not the search's own choice."""
    new = found.entry
    if present is None:
        return new, None
    where = f"{new.key.workload} on {new.gpu.name}"
    what = f"kept the entry for {where}"
    if (present.source, new.source) == ("measured", "replay"):
        return present, f"kept the measured entry for {where}: a replay does not replace it"
    if not _met(present, found):
        return present, (
            f"{what}: its choice, {present.chosen.config}, was not measured in this search; "
            "use another --registry to start afresh"
        )
    unmeasured = _known(present).keys() - found.measured - set(found.failed)
    if not unmeasured or present.inputs != new.inputs or not of_same_sources(present, new):
        return new, None
    if present.chosen == new.chosen:
        return _widened(new, present, unmeasured, 1.0), None
    if present.chosen in new.tie_set:
        return _with_news_of(present, found), (
            f"{what}: {present.chosen.config} was chosen among more configs, and "
            f"{new.chosen.config} is not faster beyond doubt"
        )
    behind = found.others.get(present.chosen)
    return _widened(new, present, unmeasured, behind.ratio.value if behind else None), None


def _met(present: Entry, found: FoundEntry) -> bool:
    """Whether the present choice was measured beside the new one, or no longer can be."""
    if present.chosen in found.measured or present.chosen in found.failed:
        return True
    try:
        families.config_of(present.chosen)
    except InvalidConfig:
        return True
    return False


def of_same_sources(a: Entry, b: Entry) -> bool:
    """Whether what was chosen is of equal kernel sources, as far as both are of one family."""
    if a.chosen.family != b.chosen.family:
        return True  # each is of its own family's sources
    hashes = a.provenance.kernel_source_sha256, b.provenance.kernel_source_sha256
    return equal(a.chosen.family, *hashes, [kind_of(a.workload)])


def _known(entry: Entry) -> dict[Variant, RunnerUp | None]:
    """Every variant that an entry tells something of."""
    tied: dict[Variant, RunnerUp | None] = dict.fromkeys((entry.chosen, *entry.tie_set))
    return tied | {runner.variant: runner for runner in entry.runners_up}


def _widened(
    new: Entry, present: Entry, unmeasured: Collection[Variant], behind: float | None
) -> Entry:
    """The new entry with what only the present one knows.  `behind`: the present choice's time over
    the new one's; None where it gave none, and nothing can be carried over."""
    if behind is None:
        return new
    runners = list(new.runners_up)
    for runner in present.runners_up:
        if runner.variant in unmeasured:
            ratio = runner.ratio if behind == 1.0 else Ratio(runner.ratio.value * behind, None)
            runners.append(dataclasses.replace(runner, ratio=ratio))
    tied = list(new.tie_set)
    if present.chosen == new.chosen:
        tied += [v for v in present.tie_set if v in unmeasured]
    return dataclasses.replace(new, runners_up=_in_order(runners), tie_set=tuple(tied))


def _with_news_of(present: Entry, found: FoundEntry) -> Entry:
    """The present entry with what only the search knows."""
    behind = found.others[present.chosen].ratio.value
    known = _known(present)
    runners = list(present.runners_up)
    for variant, runner in found.others.items():
        if variant not in known:
            ratio = Ratio(runner.ratio.value / behind, None)
            runners.append(dataclasses.replace(runner, ratio=ratio))
    if found.entry.chosen not in known:
        new = found.entry
        runners.append(RunnerUp(new.chosen, new.median_s, Ratio(1.0 / behind, None)))
    tied = [*present.tie_set, *(v for v in found.entry.tie_set if v not in present.tie_set)]
    return dataclasses.replace(present, runners_up=_in_order(runners), tie_set=tuple(tied))


def _in_order(runners: list[RunnerUp]) -> tuple[RunnerUp, ...]:
    return tuple(sorted(runners, key=lambda r: (r.ratio.value, r.variant.key)))
