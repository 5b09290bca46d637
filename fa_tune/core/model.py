"""The nouns of fa-tune, frozen, one word per thing.

A *workload* is a problem; a *config* is one point of a family's knobs; a *variant* is
family + config; an *artifact* is its cubin with resource facts; a *verdict* says whether
the result is right; a *measurement* says how long it took and how that was taken; an
*outcome* is how an attempt ended.  Times are seconds, sizes are bytes, everywhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from functools import total_ordering
from typing import TYPE_CHECKING, Any

from fa_tune.core.errors import InvalidConfig

if TYPE_CHECKING:
    import torch


class DType(IntEnum):
    """Element type of Q, K, V and O; the values are those of torch's ScalarType."""

    FP16 = 5
    BF16 = 15

    @classmethod
    def from_string(cls, text: str) -> DType:
        """Read `FP16`, `bf16`, `5` or `15`; raises InvalidConfig."""
        word = text.strip().upper()
        if word.lstrip("+-").isdigit():
            try:
                return cls(int(word))
            except ValueError:
                pass
        elif word in cls.__members__:
            return cls[word]
        allowed = ", ".join(f"{m.name} ({m.value})" for m in cls)
        raise InvalidConfig(f"unknown dtype {text.strip()!r}; allowed: {allowed}")

    def to_cpp_str(self) -> str:
        """The C++ (libtorch) spelling, `torch::kFloat16` or `torch::kBFloat16`."""
        return {DType.FP16: "torch::kFloat16", DType.BF16: "torch::kBFloat16"}[self]

    def to_torch_dtype(self) -> torch.dtype:
        """The torch dtype; imports torch."""
        import torch

        return {DType.FP16: torch.float16, DType.BF16: torch.bfloat16}[self]

    @property
    def size_bytes(self) -> int:
        """Bytes of one element."""
        return 2


_WORKLOAD_KEY = re.compile(
    r"b(?P<batch>\d+)_h(?P<heads>\d+)_kv(?P<kv_heads>\d+)_q(?P<seq_len_q>\d+)"
    r"_k(?P<seq_len_kv>\d+)_d(?P<d_head>\d+)_(?P<dtype>fp16|bf16)"
    r"_(?P<mask>full|causal_br|causal)(?P<lse>_lse)?(?:_scale(?P<scale>[-+.0-9e]+))?"
)
MASKS = ("full", "causal", "causal_br")
# The scale is multiplied in fp32, whose normal numbers it and its product with log2(e) must be.
LEAST_SCALE, LARGEST_SCALE = 1e-30, 1e30


@total_ordering
@dataclass(frozen=True)
class Workload:
    """One attention problem: Q [batch, seq_len_q, heads, d_head], K and V
    [batch, seq_len_kv, kv_heads, d_head], O like Q.

    `causal` hides keys from the queries before them: query i sees key j when
    j ≤ i + `diagonal`.  The mask is aligned top-left, so that the first query sees the first
    key alone, or with `bottom_right` so that the last query sees every key; where the lengths
    are equal these are one mask, and the workload says top-left.  `lse`: the log-sum-exp of
    each row is wanted, fp32 [batch, heads, seq_len_q].  `softmax_scale` multiplies the scores;
    None: 1 / sqrt(d_head).

    Raises InvalidConfig for sizes below 1, heads that kv_heads does not divide, an alignment
    without a mask, or a scale that is not between 1e-30 and 1e30.
    """

    batch: int
    heads: int
    kv_heads: int
    seq_len_q: int
    seq_len_kv: int
    d_head: int
    dtype: DType
    causal: bool = False
    bottom_right: bool = False
    lse: bool = False
    softmax_scale: float | None = None

    def __post_init__(self) -> None:
        for name in ("batch", "heads", "kv_heads", "seq_len_q", "seq_len_kv", "d_head"):
            if getattr(self, name) < 1:
                raise InvalidConfig(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.heads % self.kv_heads:
            raise InvalidConfig(f"{self.kv_heads} kv heads do not divide {self.heads} heads")
        if self.bottom_right and not self.causal:
            raise InvalidConfig("bottom_right aligns a causal mask; this workload has no mask")
        if self.bottom_right and self.seq_len_q == self.seq_len_kv:
            object.__setattr__(self, "bottom_right", False)  # one problem, one key
        if self.softmax_scale is None:
            return
        if not LEAST_SCALE <= self.softmax_scale <= LARGEST_SCALE:  # false for NaN, too
            raise InvalidConfig(
                f"softmax_scale must be between {LEAST_SCALE:g} and {LARGEST_SCALE:g}, "
                f"not {self.softmax_scale:g}"
            )
        usual = self.softmax_scale == 1 / math.sqrt(self.d_head)
        object.__setattr__(self, "softmax_scale", None if usual else float(self.softmax_scale))

    def __lt__(self, other: Workload) -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[float, ...]:
        """The fields in their order; the usual scale comes before all others."""
        sizes = (self.batch, self.heads, self.kv_heads, self.seq_len_q, self.seq_len_kv)
        flags = (self.causal, self.bottom_right, self.lse)
        return (*sizes, self.d_head, self.dtype, *flags, self.softmax_scale or 0.0)

    @property
    def mask(self) -> str:
        """`full`, `causal` (aligned top-left) or `causal_br` (bottom-right)."""
        return MASKS[self.causal + self.bottom_right]

    @property
    def diagonal(self) -> int:
        """With a causal mask query i sees key j when j ≤ i + diagonal."""
        return self.seq_len_kv - self.seq_len_q if self.bottom_right else 0

    @property
    def scale(self) -> float:
        """What the scores are multiplied by."""
        return 1 / math.sqrt(self.d_head) if self.softmax_scale is None else self.softmax_scale

    @property
    def key(self) -> str:
        """`b16_h16_kv16_q4096_k4096_d128_fp16_full`, with `_lse` and `_scale0.125` behind it
        where they are asked for; `from_key` reads it back."""
        lse = "_lse" if self.lse else ""
        scale = "" if self.softmax_scale is None else f"_scale{self.softmax_scale!r}"
        return (
            f"b{self.batch}_h{self.heads}_kv{self.kv_heads}_q{self.seq_len_q}"
            f"_k{self.seq_len_kv}_d{self.d_head}_{self.dtype.name.lower()}_{self.mask}{lse}{scale}"
        )

    @classmethod
    def from_key(cls, key: str) -> Workload:
        """The workload of a key; raises InvalidConfig."""
        m = _WORKLOAD_KEY.fullmatch(key)
        if m is None:
            raise InvalidConfig(f"not a workload key: {key!r}")
        parts = m.groupdict()
        mask, scale = parts.pop("mask"), parts.pop("scale")
        lse = parts.pop("lse") is not None
        dtype = DType.from_string(parts.pop("dtype"))
        try:
            softmax_scale = None if scale is None else float(scale)
        except ValueError:
            raise InvalidConfig(f"not a workload key: {key!r}") from None
        return cls(
            **{k: int(v) for k, v in parts.items()},
            dtype=dtype,
            causal=mask != "full",
            bottom_right=mask == "causal_br",
            lse=lse,
            softmax_scale=softmax_scale,
        )


BENCHMARK_HEADS = 16


def benchmark_batch(seq_len: int) -> int:
    """Batch size of the benchmark shapes: 16 up to 4096, 8 at 8192, 4 at 16384.

    Other lengths keep batch·seq_len near the neighbouring shape's, never above 65536.
    Raises InvalidConfig for a length below 1.
    """
    if seq_len < 1:
        raise InvalidConfig(f"seq_len must be at least 1, not {seq_len}")
    return max(1, min(16, 65536 // seq_len))


def benchmark_workload(
    seq_len: int, d_head: int, dtype: DType, *, causal: bool = False
) -> Workload:
    """The benchmark shape of a sequence length: 16 heads, batch by `benchmark_batch`."""
    return Workload(
        batch=benchmark_batch(seq_len),
        heads=BENCHMARK_HEADS,
        kv_heads=BENCHMARK_HEADS,
        seq_len_q=seq_len,
        seq_len_kv=seq_len,
        d_head=d_head,
        dtype=dtype,
        causal=causal,
    )


@dataclass(frozen=True, order=True)
class Variant:
    """Family + config.  `config` is the family's short form, so a variant is plain text
    and crosses process and file boundaries as it is; `families.get(family).parse(config)`
    gives the config object back.
    """

    family: str
    config: str

    @property
    def key(self) -> str:
        """`sm80:(FP16, 128, 64, 64, 4): async+…`."""
        return f"{self.family}:{self.config}"

    @classmethod
    def from_key(cls, key: str) -> Variant:
        """The variant of a key; raises InvalidConfig."""
        family, colon, config = key.partition(":")
        if not colon or not family or not config:
            raise InvalidConfig(f"not a variant key: {key!r}")
        return cls(family, config)


REFERENCE_FAMILY = "ref"  # in place of a family's name: a library's kernel, `ref:fa2`


def is_reference(subject: str) -> bool:
    """Whether a subject is a library's kernel, measured for comparison."""
    return subject.startswith(f"{REFERENCE_FAMILY}:")


def reference_subject(name: str) -> str:
    """The subject of a library's kernel by its name: `ref:fa2`."""
    return f"{REFERENCE_FAMILY}:{name}"


def reference_name(subject: str) -> str:
    """`fa2` of `ref:fa2`; any other text as it is."""
    return subject.removeprefix(f"{REFERENCE_FAMILY}:")


class Outcome(StrEnum):
    """How an attempt at a variant ended."""

    OK = "ok"
    REJECTED = "rejected"
    COMPILE_FAILED = "compile_failed"
    WRONG_RESULT = "wrong_result"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    NOT_RECORDED = "not_recorded"  # replay only: no recording holds this variant


@dataclass(frozen=True)
class Rejected:
    """Why a config cannot run: the constraint's name and one sentence with the figures."""

    constraint: str
    reason: str


@dataclass(frozen=True)
class Resources:
    """What a compiled kernel uses, as ptxas and the launch geometry state it.

    Sizes are bytes; `registers` are per thread; spills are bytes per thread of local
    memory stores and loads in the code; `ctas_per_sm` is the theoretical occupancy.
    """

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    static_smem_bytes: int
    dynamic_smem_bytes: int
    threads: int
    ctas_per_sm: int


@dataclass(frozen=True)
class Artifact:
    """A cubin on disk: where it is, what to call in it, and what it uses.

    `symbol` is the mangled kernel name; `diagnostics` are the compiler's warnings about
    this very variant; `compile_s` is the time NVRTC took when it was first built.
    """

    variant: Variant
    traits: str
    arch: str
    cubin: str
    symbol: str
    resources: Resources
    diagnostics: tuple[str, ...] = ()
    compile_s: float = 0.0


@dataclass(frozen=True)
class CaseError:
    """One verification case: largest |O − fp32 reference| of the kernel, of the
    same-precision reference, and the limit (twice the latter plus a floor)."""

    workload: str
    max_abs_error: float
    reference_max_abs_error: float
    limit: float
    ok: bool


@dataclass(frozen=True)
class Verdict:
    """Correct or not, with the error figures of every case tried."""

    correct: bool
    cases: tuple[CaseError, ...]
    reason: str = ""


@dataclass(frozen=True)
class Quantity:
    """A number with its base unit (`s`, `hz`, `byte`, `byte/s`, `%`, or a count's own)."""

    value: float
    unit: str


@dataclass(frozen=True)
class Measurement:
    """Times and counters of one variant (or reference) on one workload.

    `samples_s` are the single durations in seconds in the order they were taken;
    `counters` hold the median of each collected metric; a metric that was not collected
    is absent, never zero.  `method` is `ncu` or `events`: results of different methods
    are never ranked together.  `conditions` say how it was taken, as text for a reader: no
    code asks for them.  What code asks for is a field:

    - `relative`: each sample over the mean of the baseline's samples right before and after
      it, so that a drifting clock cancels out; one per sample, or empty.
    - `preference`: the place in the order of the tie-break, from 0; None if not known.
    - `host_launch_s`: what one launch took the process that made it, in seconds.
    - `search`: the search it belongs to; empty outside a search.
    - `gpu_uuid`: the GPU that measured it; empty if not known.
    - `scaled_by`: the factor by which `samples_s` were multiplied afterwards; None: as measured.
    - `replayed_from`: the label of the recording it was read from; empty if measured now.
    - `default_s`: in an A/B test, the default's samples beside `samples_s`, in seconds.
    """

    subject: str  # a variant's key, or `ref:fa2`
    workload: str
    method: str
    samples_s: tuple[float, ...]
    counters: Mapping[str, Quantity] = field(default_factory=dict)
    conditions: Mapping[str, str] = field(default_factory=dict)
    relative: tuple[float, ...] = ()
    preference: int | None = None
    host_launch_s: float | None = None
    search: str = ""
    gpu_uuid: str = ""
    scaled_by: float | None = None
    replayed_from: str = ""
    default_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class Attempt:
    """One variant on one workload: how it ended, why, and what was measured if it ran."""

    subject: str
    workload: str
    outcome: Outcome
    reason: str = ""
    measurement: Measurement | None = None


@dataclass(frozen=True)
class DeviceInfo:
    """The GPU that measurements belong to.  `name` as the driver spells it; None: not known."""

    name: str
    compute_capability: tuple[int, int]
    driver: str
    memory_bytes: int | None = None
    uuid: str = ""

    @property
    def slug(self) -> str:
        """File-name form of the model: `nvidia_h200`."""
        return re.sub(r"[^a-z0-9]+", "_", self.name.lower()).strip("_")


@dataclass(frozen=True)
class Provenance:
    """Everything needed to repeat or distrust a result.

    `kernel_source_sha256` covers the kernel sources; `profiler_args` is the complete
    argument list of the profiler; `recorded_at` is UTC, ISO 8601.
    """

    gpu: str
    driver: str
    cuda: str
    nvrtc: str
    method: str
    profiler_version: str
    profiler_args: tuple[str, ...]
    clock_policy: str
    cache_policy: str
    kernel_source_sha256: str
    recorded_at: str
    fa_tune_version: str
    extra: Mapping[str, Any] = field(default_factory=dict)
