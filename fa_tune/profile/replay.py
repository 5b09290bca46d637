"""The `replay` profiler: recorded attempts through the ordinary interface, without a GPU."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from fa_tune.core.model import Attempt, Outcome
from fa_tune.core.workload import Effect, Workload, labels
from fa_tune.profile.base import Capabilities, MeasurePlan, OneByOne, OnStep

NAMED = 2  # recordings that are named where nothing answers


def answering(
    recorded: Mapping[str, Collection[tuple[str, str]]], workload: str, subjects: Iterable[str]
) -> dict[str, str]:
    """The label of the recording that answers for each subject on a workload (its key); subjects
    that no recording holds are left out.  `recorded`: what each recording holds, by its label,
    newest first.  The one that holds most of the subjects answers, since only times of one run
    compare exactly; the others fill its gaps."""
    keys = {subject: (workload, subject) for subject in subjects}

    def held(label: str) -> int:
        return sum(key in recorded[label] for key in keys.values())

    labels = sorted(recorded, key=held, reverse=True)  # stable: newest first on a tie
    found = {s: next((n for n in labels if key in recorded[n]), None) for s, key in keys.items()}
    return {subject: label for subject, label in found.items() if label is not None}


class ReplayProfiler(OneByOne):
    """Answers from `recorded`, attempts by (workload key, subject) for each recording by its
    label, all taken with `method`.

    For each plan the recording that holds most of its subjects answers (see `answering`).  The
    attempts come out as they were measured, under their own method: a replay is none.
    """

    metrics: tuple[str, ...] = ()
    default_runs = 1
    capabilities = Capabilities(
        needs_device=False, measures_anew=False, adaptive=True, independent_samples=True
    )
    warnings: tuple[str, ...] = ()

    def __init__(
        self,
        recorded: Mapping[str, Mapping[tuple[str, str], Attempt]],
        *,
        method: str,
        version: str,
        arguments: tuple[str, ...],
        clock_policy: str,
        cache_policy: str,
    ) -> None:
        self.method = method
        self.version = version
        self.arguments = arguments
        self.clock_policy = clock_policy
        self.cache_policy = cache_policy
        self._recorded = recorded

    def warm_up(self) -> None:
        """See `profile.base.Profiler`."""

    def measure(self, plan: MeasurePlan, on_step: OnStep) -> Iterator[Attempt]:
        """A subject without a recording is NOT_RECORDED."""
        answers = answering(self._recorded, plan.workload.key, plan.subjects)
        for subject in plan.subjects:
            on_step(subject)
            key, label = (plan.workload.key, subject), answers.get(subject)
            if label is None:
                text = f"no {self.method} measurement of it in {self._inventory(plan.workload)}"
                yield Attempt(subject, plan.workload.key, Outcome.NOT_RECORDED, text)
                continue
            attempt = self._recorded[label][key]
            measured = attempt.measurement
            if measured is not None:
                attempt = replace(attempt, measurement=replace(measured, replayed_from=label))
            yield attempt

    def _inventory(self, workload: Workload) -> str:
        """The recordings, and the sequence lengths they hold for workloads like this one."""
        keys = {key for recording in self._recorded.values() for key, _ in recording}
        held = [Workload.from_key(key) for key in keys]
        alike = Effect.KIND, Effect.DETAIL, Effect.NONE
        kind_of = workload.values(*alike)
        lengths = sorted({w.seq_len_q for w in held if w.values(*alike) == kind_of})
        listed = ", ".join(map(str, lengths)) or "none"
        mask = f" {workload.mask}" if workload.causal else ""
        kind = f"d_head {workload.d_head} {workload.dtype.name}{mask}"
        kind = ", ".join((kind, *labels(workload)))
        names = list(self._recorded)
        more = f" and {len(names) - NAMED} more recordings" if len(names) > NAMED else ""
        return f"{', '.join(names[:NAMED])}{more}; recorded lengths for {kind}: {listed}"
