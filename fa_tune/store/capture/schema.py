"""What `fa-tune capture` writes: the attention problems that a program ran.  Start with `Usage`.

The dataclasses are the schema, read strictly as a registry's is.  There are no tensors
in it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from fa_tune.core import codec
from fa_tune.core.codec import FILLED, NOT_NEGATIVE, POSITIVE
from fa_tune.core.errors import ProfileFormatError, StorageError, one_line
from fa_tune.core.files import read_bytes
from fa_tune.core.model import parse_time
from fa_tune.store.capture.masks import OTHER

Text = Annotated[str, FILLED]
Count = Annotated[int, NOT_NEGATIVE]
Seconds = Annotated[float, NOT_NEGATIVE]
Lengths = tuple[Count, ...]

SCHEMA: Literal["fa-tune-capture-1"] = "fa-tune-capture-1"


@dataclass(frozen=True)
class Problem:
    """What was asked for.

    `api` is who was called: `sdpa`, `flash_attn`, `flex_attention`, `fa_tune` or `torch` (its
    FlashAttention 2 as an operator); `kind`: K and V are sequences, `packed` one after another, or
    a cache whose lengths the device knows.  Of a packed batch the lengths are the longest, 0 where
    nobody says.  `dtype` is torch's name, `layout` how Q, K and V lie in memory,
    `mixed` for tensors of the first two.  `mask`: `tensor`
    for one that was given, of the type and shape in `mask_tensor`; `blocks` of flex_attention.
    `page_size` 0: no pages; `kv_dtype` empty: as Q's.  `device` is the GPU model, or `cpu`.
    """

    op: Literal["forward", "backward"]
    api: Literal["sdpa", "flash_attn", "flex_attention", "fa_tune", "torch"]
    kind: Literal["dense", "packed", "cached"]
    device: Text
    batch: Count
    heads: Count
    kv_heads: Count
    seq_len_q: Count
    seq_len_kv: Count
    d_head: Count
    d_head_v: Count
    dtype: Text
    layout: Literal["bhsd", "bshd", "mixed", "packed_qkv", "other"]
    mask: Literal["full", "causal", "causal_br", "tensor", "blocks"] = "full"
    mask_tensor: str = ""
    window_left: Count | None = None
    window_right: Count | None = None
    scale: float | None = None
    dropout: bool = False
    softcap: float | None = None
    alibi: bool = False
    sink: bool = False
    score_mod: bool = False
    exact: bool = False
    lse: bool = False
    total_q: Count = 0
    total_kv: Count = 0
    page_size: Count = 0
    kv_dtype: str = ""


@dataclass(frozen=True)
class Served:
    """What computed it: `by` is `fa_tune`, a backend of torch (`cudnn`, `flash`, `efficient`,
    `math`, `cpu`, `flex_attention`, `products` for matrix products), or `flash_attn`.  Of ours
    `kernel` is the variant and `entry` where it came from: the registry's entry for the very
    workload, a near one's, or none.  `why`: the entry's provenance; of others, why it was not ours.
    """

    by: Text
    kernel: str = ""
    entry: Literal["exact", "near", "default", ""] = ""
    why: str = ""


@dataclass(frozen=True)
class Usage:
    """A problem as one kernel served it.

    `calls` ran one by one, `captured` were recorded into CUDA graphs, whose replays ran them
    `replayed` times.  `call_s` is the median time of a call, of `timed` that were; None where none
    was.  Device time on a GPU, wall time on the CPU.  `masks`: how many mask tensors, of those
    looked at, were what in truth (`store.capture.masks`).  `lengths_q` and `lengths_kv` are the
    quantiles of the sequences' lengths in steps of an eighth, of `looked_at` batches; empty where
    all are equal.  `inputs` are kept tensors, for `--inputs file:PATH`.
    """

    problem: Problem
    served: Served
    calls: Count
    captured: Count = 0
    replayed: Count = 0
    timed: Count = 0
    call_s: Annotated[float, POSITIVE] | None = None
    masks: Mapping[str, Count] = field(default_factory=dict)
    lengths_q: Lengths = ()
    lengths_kv: Lengths = ()
    looked_at: Count = 0
    inputs: tuple[Text, ...] = ()

    @property
    def runs(self) -> int:
        """How often it was computed."""
        return self.calls + self.replayed

    @property
    def time_s(self) -> float:
        """The time of all runs; 0 where none was timed."""
        return (self.call_s or 0.0) * self.runs

    @property
    def mask(self) -> str:
        """What is hidden in truth; of tensors what all were that were looked at."""
        if self.problem.mask != "tensor":
            return self.problem.mask
        return next(iter(self.masks)) if len(self.masks) == 1 else OTHER


@dataclass(frozen=True)
class Process:
    """One process of the program.  `ended`: it wrote all it had; else it was killed, and what
    it ran since its last flush is lost.  `dropped` calls were of more problems than are kept
    apart."""

    pid: Count
    torch: Text
    ended: bool
    dropped: Count = 0


@dataclass(frozen=True)
class Capture:
    """The attention of a program, the problem that cost most first.  `exit_status` is the
    program's, negative for a signal, None within a context.  `notes`: what could not be seen."""

    schema: Literal["fa-tune-capture-1"]
    command: tuple[str, ...]
    started: Text
    wall_s: Seconds
    exit_status: int | None
    processes: tuple[Process, ...]
    usages: tuple[Usage, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        parse_time(self.started)

    @property
    def attention_s(self) -> float:
        """The time of all attention."""
        return math.fsum(usage.time_s for usage in self.usages)


def load(path: Path) -> Capture:
    """The capture in a file.  Raises StorageError for one that cannot be read, ProfileFormatError,
    one line, for one that does not fit the schema."""
    try:
        raw = codec.parse(read_bytes(path, "capture").decode())
        codec.check_printable(raw)
        if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
            raise ValueError(f'its "schema" is not "{SCHEMA}"')
        found = codec.load(Capture, raw)
        if codec.dump(found) != raw:
            raise ValueError("a field is missing, which could have another value than the usual")
        return found
    except FileNotFoundError as error:
        raise StorageError(f"cannot read capture {path}: {error.strerror}") from None
    except ValueError as error:
        raise ProfileFormatError(
            f"{path} is no capture: {one_line(str(error))}; capture the program again"
        ) from None


def to_json(capture: Capture) -> str:
    """The file's text."""
    return json.dumps(codec.dump(capture), indent=1, ensure_ascii=False) + "\n"


def merged(usages: Iterable[Usage]) -> tuple[Usage, ...]:
    """One usage for each problem and what served it, the costliest first."""
    found: dict[tuple[Problem, Served], Usage] = {}
    for usage in usages:
        key = usage.problem, usage.served
        found[key] = _both(found[key], usage) if key in found else usage
    return tuple(sorted(found.values(), key=lambda usage: (-usage.time_s, -usage.runs)))


def _both(a: Usage, b: Usage) -> Usage:
    timed = a.timed + b.timed
    spent = a.timed * (a.call_s or 0.0) + b.timed * (b.call_s or 0.0)
    most = max(a, b, key=lambda usage: usage.looked_at)
    return replace(
        a,
        calls=a.calls + b.calls,
        captured=a.captured + b.captured,
        replayed=a.replayed + b.replayed,
        timed=timed,
        call_s=spent / timed if timed else None,
        masks=dict(Counter(a.masks) + Counter(b.masks)),
        lengths_q=most.lengths_q,
        lengths_kv=most.lengths_kv,
        looked_at=a.looked_at + b.looked_at,
        inputs=(*a.inputs, *b.inputs),
    )
