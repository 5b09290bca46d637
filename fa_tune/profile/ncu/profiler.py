"""The `ncu` profiler: one Nsight Compute process per batch of variants, of one or several
workloads."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fa_tune.core.devices import pinned_to
from fa_tune.core.errors import NoUsableVariant, ProfileFormatError, ToolMissing
from fa_tune.core.files import save_file
from fa_tune.core.jobs import FIRST_LAUNCH, ProfileJob, WorkloadItem
from fa_tune.core.model import Attempt, Outcome, is_users, reference_name
from fa_tune.profile.base import (
    Capabilities,
    MeasurePlan,
    OnStep,
    ProfilerNotes,
)
from fa_tune.profile.ncu.ahead import Ahead, environment_in
from fa_tune.profile.ncu.command import (
    CACHE_CONTROL,
    NcuOptions,
    NcuVersion,
    find_ncu,
    import_arguments,
    ncu_arguments,
    parse_ncu_version,
    query_metrics_arguments,
)
from fa_tune.profile.ncu.diagnose import diagnose_log
from fa_tune.profile.ncu.launches import Launch
from fa_tune.profile.ncu.match_launches import assign_launches, measurement
from fa_tune.profile.ncu.metrics import DURATION, REQUESTS, parse_query_metrics, resolve_metrics
from fa_tune.profile.ncu.parse import read_profile
from fa_tune.workers.prefork import WaitingBelow
from fa_tune.workers.supervisor import ChildEnd, Event, EventKind, WorkerUnusable, run_child

LOG = "ncu.log"
BATCH = 96  # variants in one ncu process: a crash costs at most one batch's unfinished part
START_TIMEOUT_S = 180.0
QUESTION_TIMEOUT_S = 120.0  # for what ncu answers without profiling anything
EXIT_TIMEOUT_S = 300.0  # ncu evaluates and writes everything after the program has ended


class NcuProfiler:
    """Measures under ncu.  `metric_list` is rank, explain or full; `export` keeps the report.

    Raises ToolMissing when ncu cannot be found or is too old.
    """

    method = "ncu"
    cache_policy = f"flush {CACHE_CONTROL}"
    default_runs = 3
    # A launch costs a fifth of a second and stands alone; its counters need a permission.
    capabilities = Capabilities(
        independent_samples=True, samples_per_scout=1, may_be_refused=True, shares_process=True
    )
    warnings = property(lambda self: tuple(self.notes.warnings))

    def __init__(
        self,
        *,
        ncu: Path | None = None,
        metric_list: str = "rank",
        clock_control: str = "none",
        export: Path | None = None,
    ) -> None:
        self.notes = ProfilerNotes()
        self.settings = (ncu, metric_list, clock_control, export)
        self._ncu = ncu or find_ncu()
        # What a chip lacks stays among them: a search and its resumption ask for the same.
        self.metrics = self._requested = REQUESTS[metric_list]
        self._section_set = "full" if metric_list == "full" else None
        self._export = export
        self._clock_control = clock_control
        self._ahead = Ahead(self._command)
        self._next_is_sure = False  # whether another process will be needed after this one

    def __copy__(self) -> NcuProfiler:
        """Another that measures at the same time, with processes of its own."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._ahead = Ahead(other._command)
        return other

    @cached_property
    def _version(self) -> NcuVersion:
        return parse_ncu_version(self._run(["--version"]))

    @property
    def version(self) -> str:
        """ncu's release, `2025.3.1`."""
        return str(self._version)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The complete argument list, with placeholders for the files of one run."""
        return tuple(self._arguments(self._options(Path("LOG"))))

    @property
    def clock_policy(self) -> str:
        """`none`: clocks as they come; `base`: locked."""
        return f"{self._clock_control}, boost {self._options(Path('LOG')).boost_state}"

    def warm_up(self) -> None:
        if self._export is None:  # of two processes each would write the report
            with suppress(ToolMissing):  # measuring will say what is missing
                self._ahead.start()

    def get_ready(self, gpu: str, device: int) -> None:
        self._ahead.prepare(pinned_to(gpu), 0 if gpu else device)

    def measure_all(self, plans: Sequence[MeasurePlan], on_step: OnStep) -> Iterator[Attempt]:
        """Plans of the same conditions share processes."""
        batches = [(alike[0], batch) for alike in _alike(plans) for batch in _batches(alike)]
        for n, (plan, batch) in enumerate(batches, start=1):
            # After what is not adaptive no finalists come.
            self._next_is_sure = n < len(batches) or plan.adaptive
            yield from self._batch(plan, batch, on_step)

    def _batch(
        self, plan: MeasurePlan, batch: Mapping[str, _Item], on_step: OnStep
    ) -> Iterator[Attempt]:
        """Attempts of one batch under the conditions of `plan`, in as many ncu processes as it has
        failing items, plus one."""
        remaining = dict(batch)
        fruitless = 0
        retried: set[str] = set()
        while remaining:
            if not self._ahead.is_waiting:
                self.warm_up()
                self.get_ready(plan.gpu, plan.device)
            with self._ahead.place() as (folder, waiting):
                end, launches = self._process(plan, remaining, folder, on_step, waiting)
            before = len(remaining)
            # Nothing on a GPU sends SIGKILL: the item that it hit gets another try, once.
            hit = end.failed_item if end.was_killed and end.failed_item not in retried else None
            for name, attempt in self._attempts(plan, dict(remaining), end, launches):
                if name != hit:
                    remaining.pop(name)
                    yield attempt
            if hit is not None:
                retried.add(hit)
                continue
            fruitless = fruitless + 1 if len(remaining) == before else 0
            if fruitless > 1:
                if not _began(end):
                    raise WorkerUnusable(f"the worker below ncu cannot start: {end.reason}")
                for item in remaining.values():
                    text = f"ncu ended without a result: {end.reason or 'no launch was profiled'}"
                    yield Attempt(item.subject, item.plan.workload.key, Outcome.CRASHED, text)
                return

    def _process(
        self,
        plan: MeasurePlan,
        items: Mapping[str, _Item],
        folder: Path,
        on_step: OnStep,
        waiting: WaitingBelow | None = None,
    ) -> tuple[ChildEnd, list[Launch]]:
        """End of one ncu process, the one that waits in the folder if there is one, and its
        launches."""
        log = folder / LOG
        end = self._run_below(plan, items, folder, on_step, waiting)
        text = log.read_text(errors="replace") if log.exists() else ""
        found = diagnose_log(text, exit_code=None if end.timed_out else end.exit_code)
        if found is not None and found.name == "unknown-metric" and self._drop_unknown_metrics():
            return self._process(plan, items, folder / "again", on_step)
        if found is not None and not found.fatal:
            self.notes.warn(found.message)
        item_failed = any(r.outcome is not Outcome.OK for r in end.results.values())
        # What stops ncu before its first launch is no item's fault, though it may have ended the
        # program in the middle of one.
        hopeless = not any(event.kind is EventKind.PARTIAL for event in end.events)
        hopeless = hopeless and found is not None and issubclass(found.error, ToolMissing)
        if found is not None and found.fatal and (hopeless or not item_failed):
            if issubclass(found.error, NoUsableVariant) and not _began(end):
                return end, []  # no kernel, because the program did not get that far
            raise found.error(found.message)
        return end, self._launches(log, cut_off=item_failed or end.was_killed)

    def _run_below(
        self,
        plan: MeasurePlan,
        items: Mapping[str, _Item],
        folder: Path,
        on_step: OnStep,
        waiting: WaitingBelow | None,
    ) -> ChildEnd:
        """Measure below ncu, whose log is left in the folder."""

        def on_event(event: Event) -> None:
            if event.kind is EventKind.PARTIAL:
                on_step(items[event.item].subject)
            elif event.kind is EventKind.BEGIN and self._next_is_sure:
                self.warm_up()

        job = ProfileJob(
            items={name: one.item for name, one in items.items()},
            device=plan.worker_device,
            rounds=plan.runs,
            seed=plan.seed,
            inputs=str(plan.inputs),
        )
        return run_child(
            *job.request(),
            run_dir=folder,
            item_timeout_s=plan.item_timeout_s,
            start_timeout_s=START_TIMEOUT_S,
            exit_timeout_s=EXIT_TIMEOUT_S,
            wrapper=self._command(folder),
            waiting=waiting,
            env={**environment_in(folder), **plan.worker_env},
            on_event=on_event,
        )

    def _launches(self, log: Path, *, cut_off: bool) -> list[Launch]:
        """The launches of a process in their order, from its log or the report that it
        exported, which is kept; nothing of one that was `cut_off` before it wrote any.  Raises
        ProfileFormatError, and StorageError where the report cannot be kept."""
        export = self._options(log).export
        source = export or log
        if cut_off and not source.exists():
            return []
        if export is not None:
            source = log.with_name("imported.csv")
            self._run(import_arguments(export, self._version, log_file=source))
        try:
            profile = read_profile(source, decimal=".")
        except ProfileFormatError:
            if cut_off:
                return []
            raise
        if self._export is not None and export is not None:
            save_file(self._export, export.read_bytes())
        for warning in profile.warnings:
            self.notes.warn(warning)
        launches = [one for one in profile.launches if one.kernel_name != FIRST_LAUNCH]
        return sorted(launches, key=lambda launch: launch.launch_id)

    def _attempts(
        self,
        plan: MeasurePlan,
        items: Mapping[str, _Item],
        end: ChildEnd,
        launches: list[Launch],
    ) -> Iterator[tuple[str, Attempt]]:
        """Final attempts of one process, by the names of their items: failures first, then those
        with all their samples."""
        for name, result in end.results.items():
            if result.outcome is not Outcome.OK:
                workload = items[name].plan.workload
                yield (
                    name,
                    Attempt(items[name].subject, workload.key, result.outcome, result.reason),
                )
        order = [event.item for event in end.events if event.kind is EventKind.PARTIAL]
        variants = {name: one for name, one in items.items() if one.symbols}
        mine = assign_launches(
            order,
            {name: one.symbols for name, one in variants.items()},
            {n: reference_name(one.subject) for n, one in items.items() if n not in variants},
            launches,
            plan.workload.op,
        )
        conditions = {
            "clocks": self.clock_policy,
            "cache": self.cache_policy,
            "ncu": self.version,
            "replay": "kernel",
        }
        for name, one in items.items():
            if name in end.results and end.results[name].outcome is not Outcome.OK:
                continue
            if order.count(name) < plan.runs:
                continue  # not through yet: the next process measures it
            key = one.plan.workload.key
            taken = measurement(
                one.subject, key, mine.get(name, []), plan.runs, self.metrics, conditions
            )
            if taken is not None:
                done = end.results.get(name)
                taken = replace(taken, versions=done.value if done and done.value else {})
                yield name, Attempt(one.subject, key, Outcome.OK, "", taken)

    def _options(self, log: Path) -> NcuOptions:
        return NcuOptions(
            metrics=self._requested,
            section_set=self._section_set,
            clock_control=self._clock_control,
            export=self._export and log.with_name(f"report{self._export.suffix}"),
            log_file=log,
        )

    def _command(self, folder: Path) -> list[str]:
        """ncu's command line for a process that works in a folder."""
        return [str(self._ncu), *self._arguments(self._options(folder / LOG))]

    def _arguments(self, options: NcuOptions) -> list[str]:
        return ncu_arguments(options, self._version)

    def _drop_unknown_metrics(self) -> bool:
        """Ask ncu what this chip has and leave out the rest; False if nothing could be dropped."""
        available = parse_query_metrics(self._run(query_metrics_arguments()))
        kept, dropped = resolve_metrics(self._requested, available)
        if not dropped or DURATION not in kept:
            return False
        for note in dropped:
            self.notes.warn(note)
        self._requested = tuple(kept)
        return True

    def _run(self, arguments: list[str]) -> str:
        """ncu's stdout for a question that profiles nothing."""
        if shutil.which(str(self._ncu)) is None:
            raise ToolMissing(f"{self._ncu} is not a program; give ncu's path with --ncu")
        try:
            done = subprocess.run(
                [str(self._ncu), *arguments],
                capture_output=True,
                text=True,
                timeout=QUESTION_TIMEOUT_S,
                # The parsers expect decimal points and messages as in these.
                env={**os.environ, "LC_ALL": "C"},
                check=False,
            )
        except subprocess.TimeoutExpired:
            said = f"ncu {' '.join(arguments[:2])} gave no answer in {QUESTION_TIMEOUT_S:g} s"
            raise ToolMissing(f"{said}; another ncu may hold its lock") from None
        if done.returncode:
            lines = (done.stdout + done.stderr).strip().splitlines() or ["no output"]
            raise ToolMissing(f"ncu {' '.join(arguments[:2])} failed: {lines[-1]}")
        return done.stdout


# One that was made before it was known whether it would be wanted.
EARLY: ContextVar[NcuProfiler | None] = ContextVar("EARLY", default=None)


def ncu_profiler(**settings: Any) -> NcuProfiler:
    """The `NcuProfiler` of these settings, which may be the one that was made early."""
    made, early = NcuProfiler(**settings), EARLY.get()
    return early if early is not None and early.settings == made.settings else made


@dataclass(frozen=True)
class _Item:
    """A subject of a plan, as one item of a job."""

    plan: MeasurePlan
    subject: str

    @property
    def name(self) -> str:
        return f"{self.plan.workload.key} {self.subject}"

    @property
    def symbols(self) -> Sequence[str]:
        """The mangled names of its launches; none of a library's."""
        artifact = self.plan.artifacts.get(self.subject)
        return () if artifact is None else artifact.symbols

    @property
    def item(self) -> WorkloadItem:
        artifact = self.plan.artifacts.get(self.subject)
        return WorkloadItem.of(self.subject, artifact, workload=self.plan.workload.key)


def _alike(plans: Sequence[MeasurePlan]) -> list[list[MeasurePlan]]:
    """The plans that one process can measure, each list of them."""
    found: dict[tuple[object, ...], list[MeasurePlan]] = {}
    for plan in plans:
        how = (plan.runs, plan.seed, plan.inputs, plan.item_timeout_s)
        conditions = (plan.workload.op, *how, plan.device, plan.gpu)
        found.setdefault(conditions, []).append(plan)
    return list(found.values())


def _batches(plans: Sequence[MeasurePlan]) -> Iterator[dict[str, _Item]]:
    """The subjects of all plans, by their names, at most BATCH variants together; a plan is only
    cut where it is larger than that, and its references are with its first variants.  A user's
    kernels are alone, since nobody knows how many there are and what they are called."""
    batch: dict[str, _Item] = {}
    left = BATCH
    for plan in plans:
        others = [_Item(plan, s) for s in plan.subjects if s not in plan.artifacts]
        yield from ({one.name: one} for one in others if is_users(one.subject))
        references = [one.subject for one in others if not is_users(one.subject)]
        variants = tuple(plan.artifacts)
        for start in range(0, max(1, len(variants)), BATCH):
            part = variants[start : start + BATCH]
            if batch and len(part) > left:
                yield batch
                batch, left = {}, BATCH
            found = (_Item(plan, subject) for subject in (*references, *part))
            batch |= {one.name: one for one in found}
            left -= len(part)
            references = []
    if batch:
        yield batch


def _began(end: ChildEnd) -> bool:
    """Whether the program below ncu got as far as an item."""
    return any(event.kind is EventKind.BEGIN for event in end.events)
