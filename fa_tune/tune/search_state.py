"""What every stage of one search needs beside its own input."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fa_tune.build.compile import kernel_source_identity
from fa_tune.core.model import Artifact
from fa_tune.core.options import SearchOptions
from fa_tune.core.workload import Workload
from fa_tune.search.strategies.transfer import Prior
from fa_tune.tune.candidates import Defaults
from fa_tune.tune.decide import decide_one
from fa_tune.tune.measure import MeasuredWorkload, Sampling
from fa_tune.tune.outputs import Recorder
from fa_tune.tune.session import Session
from fa_tune.tune.tie_break import TieBreak


@dataclass(frozen=True)
class SearchState:
    """One search: what was asked for, where it runs, what it always measures, what it prefers in a
    tie, and where its results go."""

    options: SearchOptions
    session: Session
    defaults: Defaults
    tie_break: TieBreak
    registry: Path
    recorder: Recorder | None
    priors: Sequence[Prior] = ()  # that a strategy may begin with

    @property
    def tag(self) -> str:
        """The same for a search and its resumption, different for a search of another set, by
        another strategy, or of other kernel sources."""
        options = self.options
        sources = (f"{f.name} {kernel_source_identity(f.name)}" for f in self.defaults.chosen)
        parts = [options.kernels, *options.axes, *options.measure.references, *sources]
        if options.explores:  # whose final has other members, each time
            budget = options.measurements, options.seconds, options.audit
            parts += [options.strategy, *map(str, budget), str(options.measure.seed)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]

    def sampling(
        self,
        workload: Workload,
        artifacts: Mapping[str, Artifact],
        keep: tuple[str, ...],
    ) -> Sampling:
        """How these variants of a workload are compared; the first of `keep` is the default."""
        return Sampling(
            keep=keep,
            order=self.tie_break.order(workload, artifacts),
            margin=self.tie_break.margin(workload, next(iter(keep), None)),
            search=self.tag,
        )

    def record(self, measured: MeasuredWorkload) -> MeasuredWorkload:
        """One workload is measured: if that is recorded, it is from now on."""
        if self.recorder is not None:
            found = decide_one(measured, self.tie_break)
            self.recorder.add(found, measured.prepared.artifacts)
        return measured
