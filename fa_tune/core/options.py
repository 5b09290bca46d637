"""What a user asked for, gathered once by the command line and passed on unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.inputs import DEFAULT, InputSpec
from fa_tune.core.workload import (
    BENCHMARK_HEADS,
    EXACT,
    FAST,
    FIELDS,
    FORWARD,
    MASKS,
    OPTIONAL,
    DType,
    Workload,
    benchmark_batch,
)

REFERENCES = ("fa2", "cudnn")  # measured where a user does not say
PROFILERS = ("auto", "ncu", "events", "replay")
REGIMES = ("isolated", "sustained")  # launches with a cold L2; back to back for a second
BOTH = "both"  # for a search: forward as training needs it, and backward
CANDIDATES = ("own", "all")  # our kernels; libraries as well
METRIC_LISTS = ("rank", "explain", "full")
COMPILE_TIMEOUT_S = 30.0  # the slowest kernel known takes 2 s on one core
DEFAULT_KERNELS = "fast"  # the set that is meant where none is named
# The fields that all workloads of a grid share: those with an option, and no part of the mask.
COMMON_FIELDS = tuple(n for n in OPTIONAL if FIELDS[n].help and not FIELDS[n].told_by)


@dataclass(frozen=True)
class WorkloadOptions:
    """The grid of workloads: every combination of the sequences.  Batches and heads default to
    the benchmark shapes (16 heads; batch 16 up to 4096, then 65536 / the longer length).
    `kv_heads` None: as many as heads; fewer: grouped (1: multi-query) attention.  `masks` are
    of MASKS.  `seq_lens_kv` empty: each length of `seq_lens` for keys as well.  `common` are
    the values of COMMON_FIELDS that are not usual, such as `lse`.

    `listed` are workloads that take the grid's place, as far as they are of its operation; see
    `of`."""

    seq_lens: tuple[int, ...] = (4096,)
    d_heads: tuple[int, ...] = (128,)
    dtypes: tuple[DType, ...] = (DType.FP16, DType.BF16)
    batches: tuple[int, ...] = ()
    heads: int = BENCHMARK_HEADS
    kv_heads: int | None = None
    masks: tuple[str, ...] = ("full",)
    seq_lens_kv: tuple[int, ...] = ()
    common: Mapping[str, Any] = field(default_factory=dict)
    listed: tuple[Workload, ...] | None = None

    @classmethod
    def of(cls, listed: Sequence[Workload], op: str = FORWARD) -> WorkloadOptions:
        """These workloads, as far as they are of an operation."""
        dtypes, d_heads = ({getattr(w, name) for w in listed} for name in ("dtype", "d_head"))
        found = cls(dtypes=(*sorted(dtypes),), d_heads=(*sorted(d_heads),), listed=(*listed,))
        return found.with_op(op)

    @property
    def head_dims(self) -> tuple[tuple[int, int], ...]:
        """Head dimensions of Q and K, each with that of V; 0: as that of Q and K."""
        if self.listed is not None:
            return tuple(sorted({(w.d_head, w.d_head_v) for w in self.listed}))
        return tuple((d_head, self.d_head_v) for d_head in self.d_heads)

    @property
    def d_head_v(self) -> int:
        """The head dimension of V in all workloads; 0: as that of Q and K."""
        return int(self.common.get("d_head_v", 0))

    @property
    def op(self) -> str:
        return str(self.common.get("op", FORWARD))

    @property
    def accuracy(self) -> str:
        if any(w.accuracy == EXACT for w in self.listed or ()):
            return EXACT
        return str(self.common.get("accuracy", FAST))

    def with_op(self, op: str) -> WorkloadOptions:
        others = {name: value for name, value in self.common.items() if name != "op"}
        return replace(self, common=others if op == FORWARD else {**others, "op": op})

    def with_kind(self, dtype: DType, d_head: int, d_v: int, op: str) -> WorkloadOptions:
        """The same for one operation, one dtype and these head dimensions alone."""
        common = {name: value for name, value in self.common.items() if name != "d_head_v"}
        if d_v != d_head:
            common["d_head_v"] = d_v
        of_kind = replace(self, dtypes=(dtype,), d_heads=(d_head,), common=common).with_op(op)
        if self.listed is None:
            return of_kind
        kind = dtype, d_head, d_v
        found = tuple(w for w in self.listed if (w.dtype, w.d_head, w.d_v) == kind)
        return replace(of_kind, listed=found)

    def workloads(self) -> tuple[Workload, ...]:
        """Mask slowest, then dtype, d_head, seq_len of queries and of keys, batch, each problem
        once; or those that are listed.  Raises InvalidConfig for what no workload can be."""
        if self.listed is not None:
            return tuple(w for w in self.listed if w.op == self.op)
        return tuple(
            dict.fromkeys(
                self._checked(
                    Workload(
                        batch=batch or benchmark_batch(max(seq_len_q, seq_len_kv)),
                        heads=self.heads,
                        kv_heads=self.kv_heads or self.heads,
                        seq_len_q=seq_len_q,
                        seq_len_kv=seq_len_kv,
                        d_head=d_head,
                        dtype=dtype,
                        causal=mask != MASKS[0],
                        bottom_right=mask == MASKS[2],
                        **self.common,
                    ),
                    (batch, seq_len_q, seq_len_kv),
                )
                for mask in self.masks
                for dtype in self.dtypes
                for d_head in self.d_heads
                for seq_len_q in self.seq_lens
                for seq_len_kv in self.seq_lens_kv or (seq_len_q,)
                for batch in self.batches or (None,)
            )
        )

    def _check_window(self, made: Workload) -> None:
        """Aligned at the first key, few queries after many keys are not far from any key that they
        see; aligned at the last one they are."""
        left = self.common.get("window_left")
        if left is None or made.window_left is not None or made.seq_len_q >= made.seq_len_kv:
            return
        if not made.bottom_right and left < made.seq_len_kv - 1:
            raise InvalidConfig(
                f"--window-left {left} hides no key of {made.key}, where it counts from the first "
                f"keys; with --mask {MASKS[2]} it counts from the last"
            )

    def _checked(self, made: Workload, asked: tuple[int | None, int, int]) -> Workload:
        """Raise InvalidConfig where listed lengths say another size than was asked for, and for a
        window that would do nothing."""
        if not made.uneven:
            self._check_window(made)
            return made
        batch, seq_len_q, seq_len_kv = asked
        stated = {"--batch": (batch, made.batch, "sequences")}
        if made.packed and self.seq_lens != WorkloadOptions.seq_lens:
            stated["--seq-lens"] = (seq_len_q, made.seq_len_q, "queries at most")
        if self.seq_lens_kv:
            stated["--seq-lens-kv"] = (seq_len_kv, made.seq_len_kv, "keys at most")
        for option, (wanted, listed, what) in stated.items():
            if wanted not in (None, listed):
                text = made.lengths or made.cache_lengths
                raise InvalidConfig(
                    f"lengths {text} are {listed} {what}, {option} says {wanted}: leave it out"
                )
        return made


@dataclass(frozen=True)
class MachineOptions:
    """Where things are and which device is meant.

    `cache_dir` holds cubins and the journal (None: the user cache folder); `arch` is the
    architecture to compile for (None: the device's, or sm_90 without a device);
    `jobs` compiler processes (None: one per core); `compile_timeout_s` the longest that one
    kernel may take to compile; `ncu` the profiler's path (None: search).
    `devices` are several GPUs to use at the same time, by number, or all; none: `device` alone.
    `ray` is the address of a Ray cluster whose GPUs are used instead, or auto.  `typed` are the
    names of the fields that the user gave on the command line.
    """

    cache_dir: Path | None = None
    arch: str | None = None
    jobs: int | None = None
    device: int = 0
    ncu: Path | None = None
    compile_timeout_s: float = COMPILE_TIMEOUT_S
    recordings: Path | None = None  # folder for replay; None: the shipped profiles/
    devices: tuple[int, ...] | Literal["all"] = ()
    ray: str | None = None
    typed: frozenset[str] = field(default=frozenset(), compare=False)


@dataclass(frozen=True)
class MeasureOptions:
    """How to measure.  `profiler` is one of PROFILERS; auto takes ncu, then events where ncu
    or its permission is missing, then replay without a GPU.  `runs` samples (None: the
    profiler's own number); a search takes more of those that may still win.  `seed` draws
    `inputs` and the order.  `regime` is one of REGIMES, for events.  `typed` are the names of the
    fields that the user gave on the command line."""

    profiler: str = "auto"
    runs: int | None = None
    references: tuple[str, ...] = REFERENCES
    metrics: str = "rank"
    clock_control: str = "none"
    seed: int = 0
    item_timeout_s: float = 60.0
    inputs: InputSpec = DEFAULT
    regime: str = REGIMES[0]
    typed: frozenset[str] = field(default=frozenset(), compare=False)


@dataclass(frozen=True)
class KernelOptions:
    """Kernels to measure.  `kernels` is a set's key (fast, wide, tune, …) or one config's short
    form; `families` the names of those to take the set from (none: all that run on the device)."""

    workloads: WorkloadOptions
    kernels: str = DEFAULT_KERNELS
    families: tuple[str, ...] = ()
    measure: MeasureOptions = MeasureOptions()
    machine: MachineOptions = MachineOptions()
    csv: Path | None = None  # where to write the table besides showing it
    record: Path | None = None  # folder for a recording (CSV + .meta.json), named by GPU
    resume: bool = True  # take finished attempts from the journal


@dataclass(frozen=True)
class SearchOptions(KernelOptions):
    """One search.  `axes` is how the set was made where it has no key.  A `strategy` other than
    exhaustive, or a budget of `measurements` or `seconds` of measuring, leaves configs out; `audit`
    of those are measured to see what was missed.  `confirm`: on a GPU, compare each choice with the
    default once more, as a program would run them.  `candidates` is one of CANDIDATES: kernels of
    ours, or libraries as well.  `step`: search also the forward passes before the backward passes
    that are named."""

    registry: Path | None = None  # None: the user's registry
    axes: tuple[str, ...] = ()
    strategy: str = "exhaustive"
    measurements: int | None = None
    seconds: float | None = None
    audit: int = 0
    confirm: bool = True
    candidates: str = CANDIDATES[0]
    step: bool = False

    @property
    def explores(self) -> bool:
        """Whether a strategy decides what is measured."""
        limits = self.measurements, self.seconds
        return self.strategy != "exhaustive" or limits != (None, None)


class Progress:
    """Whoever watches the work; by itself it shows nothing.  Every method may be called from the
    working thread only."""

    def stage(self, name: str, total: int) -> None:
        """A stage of `total` steps, 0 if unknown, begins; the one before is over."""

    def advance(self, text: str = "") -> None:
        """One step is done; `text` says which."""

    def leader(self, text: str) -> None:
        """The leader so far."""

    def note(self, text: str) -> None:
        """Something worth knowing."""

    def warn(self, text: str) -> None:
        """Something that needs attention."""

    def lane(self, name: str) -> Progress:
        """The progress of one of several that work at the same time; the stage before is over."""
        return self


class Silent(Progress):
    """Progress that nobody watches; keeps what was said."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)
