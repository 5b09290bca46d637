"""A workload, declared once: each field says how keys, tables, options and lookups treat it.

Everything that goes through the fields of a workload asks `FIELDS`.  What a field means is said by
its operation (`fa_tune.operations`) and by the kernels.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from functools import cache, cached_property, lru_cache, total_ordering
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from fa_tune.core import dtypes
from fa_tune.core.codec import Keyed
from fa_tune.core.dtypes import ElementType
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.lengths import Lengths, lengths_of

if TYPE_CHECKING:
    import torch


class DType(IntEnum):
    """Element type of Q, K, V and O; the values are those of torch's ScalarType."""

    FP16 = dtypes.FP16.number
    BF16 = dtypes.BF16.number

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

    @property
    def element(self) -> ElementType:
        """The row of the table of types."""
        return dtypes.ALL[self.name]

    def to_torch_dtype(self) -> torch.dtype:
        """The torch dtype; imports torch."""
        return self.element.to_torch_dtype()

    @property
    def size_bytes(self) -> int:
        """Bytes of one element."""
        return self.element.size_bytes


class Effect(Enum):
    """What a difference in a field means for the choice of a kernel."""

    KIND = auto()  # other kernels: no result carries over
    SIZE = auto()  # more or less work: results carry over to what is near, in doublings
    DETAIL = auto()  # results carry over; of two equally near workloads the equal one is taken
    NONE = auto()  # costs no time


@dataclass(frozen=True)
class FieldSpec:
    """How the program treats a field of `Workload`.

    `type`          int, bool, float, str or DType, as it is annotated
    `key`           the letters before its value in a key; of a flag, the letters themselves
    `words`         of a flag that every key states: what stands for false and for true
    `column`        its name in tables, if not its own
    `always_column` tables have its column even where no row differs from the usual value
    `label`         how titles say a value that is not the usual one; `short`, how a table does,
                    None: by its key
    `told_by`       the property that says the value in a comparison, if not the field
    `help`          of its command line option, which a field without it has not
    `off`           the option's word for false, if not `no-…`
    `usual_text`    how the option's help says the usual value, if not by itself
    `special`       whether it is a window or changes scores or their sum
    `limits`        the least and the largest value of the option, None where there is no such
    `allowed`       the words that a text is one of
    `examples`      of other values than the usual one, with which kernels are verified that were
                    compiled for it
    """

    type: type
    effect: Effect = Effect.DETAIL
    key: str = ""
    words: tuple[str, str] | None = None
    column: str = ""
    always_column: bool = False
    label: str = ""
    short: str | None = None
    told_by: str = ""
    help: str = ""
    off: str = ""
    usual_text: str = ""
    special: bool = False
    limits: tuple[float | None, float | None] = (None, None)
    allowed: tuple[str, ...] = ()
    examples: tuple[Any, ...] = (True,)


_REQUIRED: Any = dataclasses.MISSING


def _size(key: str, **spec: Any) -> Any:
    """A size, which tables do not say beside its column."""
    return _field(effect=Effect.SIZE, key=key, short="", **spec)


def _field(*, default: Any = _REQUIRED, **spec: Any) -> Any:
    """A field that is declared with `FieldSpec(**spec)`."""
    spec.setdefault("always_column", default is _REQUIRED)
    return dataclasses.field(default=default, metadata=spec)


MASKS = ("full", "causal", "causal_br")
ACCURACIES = FAST, EXACT = "fast", "exact"
FORWARD, BACKWARD = "forward", "backward"
# The scale is multiplied in fp32, whose normal numbers it and its product with log2(e) must be.
# The GPU tests reach both ends (tests/gpu/any_bits.py).
MIN_SCALE, MAX_SCALE = 1e-30, 1e30
# A score below a soft cap is off by up to 2^-23 of the cap.
MIN_SOFTCAP, MAX_SOFTCAP = 1e-3, 1e3
# See `Workload.decode_shape`.
FEW_ROWS = 32  # that share a head of K and V
MOST_TILE_ROWS = 64  # of those, that kernels for decoding have most often
FEW_QUERIES = 16
FEW_ROWS_IN_ALL, KEYS_OF_QUERY = 2560, 4  # about 20 rows for each multiprocessor of an H200
MOST = 2**63 - 1  # of any size: what C++ counts in, and no product of them is beyond a float
MOST_SEQUENCES = 1 << 20  # each of which is counted for itself
PAGE_KEYS = 16  # that a page of a cache has whole numbers of


@total_ordering
@dataclass(frozen=True)
class Workload(Keyed):
    """One attention problem: Q [batch, seq_len_q, heads, d_head], K and V
    [batch, seq_len_kv, kv_heads, d_head], O like Q.  `d_head_v`: the head dimension of V and O;
    0, as `d_head`, is what is said where it is the same.

    `causal` hides keys from the queries before them: query i sees key j when
    j ≤ i + `diagonal`.  The mask is aligned top-left, so that the first query sees the first
    key alone, or with `bottom_right` so that the last query sees every key; where the lengths
    are equal these are one mask, and the workload says top-left.  A window hides keys that are
    far from i + `diagonal`: those more than `window_left` before it, and more than `window_right`
    behind it.  A side that hides no key is None, and a mask that hides none is not there, as of one
    query aligned bottom-right; a right side of 0 is a causal mask.  `lse`: the log-sum-exp of each
    row is wanted, fp32 [batch, heads, seq_len_q].  `softmax_scale` multiplies the scores; None:
    1 / sqrt(d_head).  `op` is the operation, see `fa_tune.operations`.

    `softcap` c: scores s become c · tanh(s / c).  `alibi`: slope · |i + diagonal - j| is then taken
    from them, a slope for each head or for each head of each batch element.  `sink`: the sum of a
    row's exponentials has one more, of a score that every head has for itself, and whose value
    is 0; it is in the log-sum-exp.  `score_hook`: the digest of a function that scores go through
    after ALiBi, see `core.hooks`.

    A `packed` batch is sequences of any lengths, one after another: Q [total_q, heads, d_head],
    K and V [total_kv, kv_heads, d_head], the log-sum-exp [heads, total_q].  `seq_len_q` and
    `seq_len_kv` are the longest; masks and distances are aligned bottom-right in each sequence, and
    score hooks count batch elements by sequences, queries and keys from a sequence's first.
    `lengths` says which they are, see `core.lengths`; "": only the device knows.

    With `cache_lengths` K and V are a cache, of whose seq_len_kv keys each sequence has as many as
    an int32 tensor on the device says; the text says how many, as `lengths` does.  A mask is then
    aligned bottom-right in each sequence.  `page_size`: the cache is pages of so many keys, K and V
    [pages, page_size, kv_heads, d_head], and a table on the device says whose they are; 0: a
    sequence lies in one piece.

    `kv_e4m3`: K and V are e4m3 numbers, of which a scale for each head of each batch element makes
    what is computed with.

    `accuracy` is how near O must be to what must come out: `exact` asks for kernels in which the
    largest weight of a row is exactly 1, as in FlashAttention 2, `fast` for any.  Backward passes
    and caches have one accuracy: all their kernels are exact.

    Raises InvalidConfig for sizes below 1, heads that kv_heads does not divide, pages that are no
    multiples of 16 keys, an alignment of nothing, a scale that is not between 1e-30 and 1e30, a
    soft cap that is not between 1e-3 and 1e3, or a soft cap beside a hook.
    """

    batch: int = _size("b")
    heads: int = _size("h")
    kv_heads: int = _size("kv")
    seq_len_q: int = _size("q", column="seq_len")
    seq_len_kv: int = _size("k")
    d_head: int = _field(effect=Effect.KIND, key="d")
    dtype: DType = _field(effect=Effect.KIND)  # noqa: RUF009  it is a dataclass field
    causal: bool = _field(
        effect=Effect.KIND, default=False, words=MASKS[:2], told_by="mask", always_column=True
    )
    bottom_right: bool = _field(
        default=False,
        key="br",
        told_by="mask",
        always_column=True,
        help="Where a causal mask is aligned, if the lengths differ.",
        off="top-left",
    )
    lse: bool = _field(
        default=False,
        key="lse",
        always_column=True,
        label="with log-sum-exp",
        help="Also compute the log-sum-exp of every row.",
    )
    softmax_scale: float | None = _field(
        effect=Effect.NONE,
        default=None,
        key="scale",
        always_column=True,
        label="scale {:g}",
        help="Factor that multiplies the scores.",
        usual_text="1 / sqrt(d_head)",
        limits=(MIN_SCALE, MAX_SCALE),
    )
    window_left: int | None = _field(
        default=None,
        key="left",
        label="window of {} to the left",
        help="How many keys before its own position a query sees.",
        usual_text="all",
        limits=(0, None),
        special=True,
    )
    window_right: int | None = _field(
        default=None,
        key="right",
        label="window of {} to the right",
        help="How many keys after its own position a query sees; no effect with causal masks.",
        usual_text="all",
        limits=(0, None),
        special=True,
    )
    sink: bool = _field(
        default=False,
        key="sink",
        label="with a sink",
        help="Give every head a sink: one more score that is added to the sum of each row.",
        special=True,
    )
    softcap: float | None = _field(
        default=None,
        key="softcap",
        label="soft cap {:g}",
        help="Soft cap N of the scores s: they become N tanh(s / N).",
        usual_text="none",
        limits=(MIN_SOFTCAP, MAX_SOFTCAP),
        examples=(15.0, 50.0, 2.0),
        special=True,
    )
    alibi: bool = _field(
        default=False,
        key="alibi",
        label="with ALiBi slopes",
        help="ALiBi: subtract from each score a multiple of the distance of query and key.",
        special=True,
    )
    score_hook: str | None = _field(
        default=None,
        key="hook",
        label="score hook {}",
        help="Apply your own CUDA function to the scores: the file with its source.",
        usual_text="none",
        special=True,
    )
    d_head_v: int = _field(
        effect=Effect.KIND,
        default=0,
        key="dv",
        label="d_head_v {}",
        short="d_v {}",
        help="Head dimension of V and of the result.",
        usual_text="as --d-head",
        limits=(0, None),
    )
    packed: bool = _field(effect=Effect.KIND, default=False, key="packed", label="packed")
    total_q: int = _size("tq", default=0, label="{} queries in all")
    total_kv: int = _size("tk", default=0, label="{} keys in all")
    lengths: str = _field(
        default="",
        key="len",
        label="lengths {}",
        short="{}",
        help="Pack sequences of these lengths, the longest as in --seq-lens: equal, uniform-SEED, "
        "lognormal-SIGMA-SEED, or a list such as 5+0+7.",
        usual_text="not packed",
    )
    cache_lengths: str = _field(
        default="",
        key="cache",
        label="{} lengths on the device",
        help="Number of keys of each sequence, known to the device only, at most --seq-lens-kv: "
        "equal, uniform-SEED, lognormal-SIGMA-SEED, or a list such as 5+0+7.",
        usual_text="--seq-lens-kv, known to the host",
    )
    page_size: int = _field(
        default=0,
        key="page",
        label="pages of {}",
        help="Store K and V in pages of N keys, a multiple of 16, found through a table on the "
        "device.",
        usual_text="no pages",
        limits=(0, None),
    )
    kv_e4m3: bool = _field(
        effect=Effect.KIND,
        default=False,
        key="e4m3",
        label="K and V in e4m3",
        help="Store K and V as e4m3, with a scale for each head.",
    )
    accuracy: str = _field(
        effect=Effect.KIND,
        default=FAST,
        label="{}",
        short="{}",
        help="fast: any kernel that is right; exact: those whose largest weight is exactly 1, so "
        "that errors are FlashAttention 2's.",
        allowed=ACCURACIES,
    )
    op: str = _field(
        effect=Effect.KIND,
        default=FORWARD,
        label="{}",
        short="{}",
        help="What is computed: forward, or backward: the gradients of Q, K and V from the "
        "results of a forward pass and the gradient of its output.",
        allowed=(FORWARD, BACKWARD),
    )

    def __post_init__(self) -> None:
        for name, spec in FIELDS.items():
            if spec.type is int and (getattr(self, name) or 0) > MOST:
                raise InvalidConfig(f"{name} must be at most {MOST}")
        if (self.uneven or self.lengths) and self.batch > MOST_SEQUENCES:
            raise InvalidConfig(f"more than {MOST_SEQUENCES} sequences whose lengths may differ")
        if self.op == BACKWARD or self.cached:
            self._settle(accuracy=FAST)
        self._settle_lengths()
        self._settle_cache()
        for name in ("batch", "heads", "kv_heads", "seq_len_q", "seq_len_kv", "d_head"):
            if getattr(self, name) < 1:
                raise InvalidConfig(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.d_head_v < 0:
            raise InvalidConfig(f"d_head_v must be at least 1, or 0 as d_head, not {self.d_head_v}")
        if self.d_head_v == self.d_head:
            self._settle(d_head_v=0)  # one problem, one key
        if self.heads % self.kv_heads:
            raise InvalidConfig(f"{self.kv_heads} kv heads do not divide {self.heads} heads")
        if self.bottom_right and not self.aligned:
            raise InvalidConfig("bottom_right aligns a causal mask; this workload has no mask")
        for name in ("softmax_scale", "softcap"):
            value, (least, most) = getattr(self, name), FIELDS[name].limits
            if value is None:
                continue
            if not least <= value <= most:  # false for NaN, too
                raise InvalidConfig(f"{name} must be between {least:g} and {most:g}, not {value:g}")
            self._settle(**{name: float(value)})
        if self.softmax_scale == 1 / math.sqrt(self.d_head):
            self._settle(softmax_scale=None)
        if self.kv_e4m3 and self.packed:
            raise InvalidConfig("a packed batch has K and V in the type of Q")
        if self.score_hook is not None and self.softcap is not None:
            raise InvalidConfig("softcap and a score hook: write the cap into the hook")
        self._settle_mask()

    def _settle(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _settle_mask(self) -> None:
        """One problem, one key: a mask or a side of the window that hides nothing is not there."""
        for name in ("window_left", "window_right"):
            if (value := getattr(self, name)) is not None and value < 0:
                raise InvalidConfig(f"{name} must be at least 0, not {value}")
        left, right = self.window_left, self.window_right
        # Each sequence of a packed batch is aligned by its own end.
        diagonal = self.seq_len_kv - self.seq_len_q if self.packed else self.diagonal
        if left is not None and left >= self.seq_len_q - 1 + diagonal:
            self._settle(window_left=None)
        if right is not None and (self.causal or right >= self.seq_len_kv - 1 - diagonal):
            self._settle(window_right=None)
        elif right == 0:
            self._settle(causal=True, window_right=None)
        if self.causal and diagonal >= self.seq_len_kv - 1:
            self._settle(causal=False)
        if self.bottom_right and (self.seq_len_q == self.seq_len_kv or not self.aligned):
            self._settle(bottom_right=False)

    def _settle_cache(self) -> None:
        if self.page_size < 0 or self.page_size % PAGE_KEYS:
            raise InvalidConfig(
                f"page_size must be a multiple of {PAGE_KEYS}, or 0 for no pages, not "
                f"{self.page_size}"
            )
        if not self.cached:
            return
        if self.packed:
            raise InvalidConfig("a packed batch has no cache: give lengths or cache_lengths")
        if "x" in self.cache_lengths:
            raise InvalidConfig(
                f"cache_lengths {self.cache_lengths} are of keys; all sequences have seq_len_q "
                "queries"
            )
        self._settle(cache_lengths=self.cache_lengths or "equal")
        keys = [kv for _, kv in self._drawn()]
        # There is one alignment.
        self._settle(batch=len(keys), seq_len_kv=max(1, *keys), bottom_right=self.aligned)

    def _drawn(self) -> Lengths:
        text = self.lengths or self.cache_lengths
        return lengths_of(text, self.batch, self.seq_len_q, self.seq_len_kv)

    def _settle_lengths(self) -> None:
        if self.lengths:
            found = self._drawn()
            given = (self.total_q, self.total_kv)
            totals = (sum(q for q, _ in found), sum(kv for _, kv in found))
            if self.packed and any(given) and given != totals:
                raise InvalidConfig(
                    f"lengths {self.lengths} are {totals[0]} queries and {totals[1]} keys, not "
                    f"{given[0]} and {given[1]}"
                )
            self._settle(
                packed=True,
                batch=len(found),
                seq_len_q=max(1, *(q for q, _ in found)),
                seq_len_kv=max(1, *(kv for _, kv in found)),
                total_q=totals[0],
                total_kv=totals[1],
            )
        if not self.packed:
            if self.total_q or self.total_kv:
                raise InvalidConfig("total_q and total_kv are those of a packed batch")
            return
        for name in ("total_q", "total_kv"):
            if getattr(self, name) < 1:
                raise InvalidConfig(f"{name} must be at least 1, not {getattr(self, name)}")
        self._settle(bottom_right=False)  # there is one alignment

    @property
    def cached(self) -> bool:
        """Whether the device says how many keys each sequence has, or where they are."""
        return bool(self.cache_lengths or self.page_size)

    @property
    def uneven(self) -> bool:
        """Whether sequences may differ in length, see `members`."""
        return self.packed or self.cached

    @property
    def rows_of_kv_head(self) -> int:
        """Queries of all heads that share one of K and V, in a sequence."""
        return self.seq_len_q * (self.heads // self.kv_heads)

    @property
    def row_tiles(self) -> tuple[int, int]:
        """Tiles of up to MOST_TILE_ROWS rows of each head of K and V, and the rows of one."""
        number = -(-self.rows_of_kv_head // MOST_TILE_ROWS)
        return number, -(-self.rows_of_kv_head // number)

    @property
    def decode_shape(self) -> bool:
        """Whether reading K and V takes the time, so that kernels are fastest which read them once
        for all heads that share them, and divide the keys of a tile among multiprocessors.

        So it is with few rows for each head of K and V, or few queries, which fill no other tile;
        and with few rows in all, which make fewer tiles than there are multiprocessors, but not of
        a short prompt, whose tiles have few keys to divide."""
        if self.op != FORWARD or self.packed:
            return False
        few = self.rows_of_kv_head <= FEW_ROWS or self.seq_len_q <= FEW_QUERIES
        rows_in_all = self.batch * self.heads * self.seq_len_q
        long_keys = self.seq_len_kv >= KEYS_OF_QUERY * self.seq_len_q
        return few or (rows_in_all <= FEW_ROWS_IN_ALL and long_keys)

    @property
    def members(self) -> Lengths:
        """The queries and keys of each sequence; where only the device knows them, as many for
        each."""
        if self.cached:
            return tuple((self.seq_len_q, kv) for _, kv in self._drawn())
        if self.lengths:
            return self._drawn()
        if not self.packed:
            return ((self.seq_len_q, self.seq_len_kv),) * self.batch
        return ((-(-self.total_q // self.batch), -(-self.total_kv // self.batch)),) * self.batch

    @property
    def rows(self) -> tuple[int, int, int]:
        """Extents of the tensors: batch elements, and the rows of Q and of K and V in each."""
        if self.packed:
            return 1, self.total_q, self.total_kv
        return self.batch, self.seq_len_q, self.seq_len_kv

    def dense(self, batch: int, seq_len_q: int, seq_len_kv: int) -> Workload:
        """The same of a batch that is neither packed nor a cache; masks and distances are aligned
        bottom-right."""
        return dataclasses.replace(
            self,
            batch=batch,
            seq_len_q=seq_len_q,
            seq_len_kv=seq_len_kv,
            bottom_right=self.aligned,
            packed=False,
            total_q=0,
            total_kv=0,
            lengths="",
            cache_lengths="",
            page_size=0,
        )

    def __lt__(self, other: Workload) -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[tuple[bool, Any], ...]:
        """The operation, then the fields in their order; a usual value comes before all others."""
        return tuple(
            (optional and value != usual, 0 if value is None else value)
            for name, optional, usual in _ORDER
            for value in (getattr(self, name),)
        )

    @property
    def mask(self) -> str:
        """`full`, `causal` (aligned top-left) or `causal_br` (bottom-right), without the window."""
        return MASKS[self.causal + self.bottom_right] if self.causal else MASKS[0]

    @property
    def diagonal(self) -> int:
        """The key that windows and distances of query i are counted from is i + diagonal; with a
        causal mask it is the last one that the query sees."""
        return self.seq_len_kv - self.seq_len_q if self.bottom_right else 0

    @property
    def d_v(self) -> int:
        """The head dimension of V and O."""
        return self.d_head_v or self.d_head

    @property
    def windowed(self) -> bool:
        """Whether a window hides keys, on either side."""
        return self.window_left is not None or self.window_right is not None

    @property
    def aligned(self) -> bool:
        """Whether it matters how queries and keys are aligned."""
        return self.causal or self.windowed or self.alibi

    @property
    def is_plain(self) -> bool:
        """Whether it has neither a window nor anything else that changes scores or their sum."""
        return not any(FIELDS[name].special for name in self.unusual)

    @property
    def scale(self) -> float:
        """What the scores are multiplied by."""
        return 1 / math.sqrt(self.d_head) if self.softmax_scale is None else self.softmax_scale

    def values(self, *effects: Effect) -> tuple[Any, ...]:
        """The values of the fields with one of these effects: equal for workloads that differ in
        nothing else."""
        return tuple(getattr(self, name) for name, spec in FIELDS.items() if spec.effect in effects)

    @property
    def unusual(self) -> Mapping[str, Any]:
        """The fields with a usual value that have another one here."""
        return {name: v for name in OPTIONAL if (v := getattr(self, name)) != USUAL[name]}

    @cached_property
    def key(self) -> str:
        """`b16_h16_kv16_q4096_k4096_d128_fp16_full`, with `_lse` and `_scale0.125` behind it
        where they are asked for, and in front an operation that is not forward (`backward_b16…`);
        `from_key` reads it back."""
        parts = [] if self.op == FORWARD else [self.op]
        for name, spec in FIELDS.items():
            value = getattr(self, name)
            if name != "op" and (name not in OPTIONAL or value != USUAL[name]):
                parts.append(_key_part(spec, value))
        return "_".join(parts)

    @classmethod
    def from_key(cls, key: str) -> Workload:
        """The workload of a key; raises InvalidConfig."""
        return _parsed(key)


@lru_cache(maxsize=4096)  # a recording has thousands of attempts at a few workloads
def _parsed(key: str) -> Workload:
    found = _key_pattern().fullmatch(key)
    if found is None:
        raise InvalidConfig(f"not a workload key: {key[:120]!r}")
    given = {name: text for name, text in found.groupdict().items() if text is not None}
    try:
        return Workload(**{name: _key_value(FIELDS[name], text) for name, text in given.items()})
    except InvalidConfig as error:
        raise InvalidConfig(f"not a workload key: {key[:120]!r}: {error}") from None
    except ValueError:  # of float()
        raise InvalidConfig(f"not a workload key: {key[:120]!r}") from None


def _type_of(hint: Any) -> type:
    """Without None."""
    found: type = (get_args(hint) or (hint,))[0]
    return found


_HINTS = get_type_hints(Workload)
FIELDS: Mapping[str, FieldSpec] = {
    f.name: FieldSpec(_type_of(_HINTS[f.name]), **f.metadata) for f in dataclasses.fields(Workload)
}
# What has a usual value, which nobody needs to state.
USUAL: Mapping[str, Any] = {
    f.name: f.default for f in dataclasses.fields(Workload) if f.default is not dataclasses.MISSING
}
OPTIONAL = tuple(name for name in USUAL if FIELDS[name].words is None)
# The order in which people read: what the kernels are for, how large it is, and then the rest.
_READ_FIRST = ("d_head", "dtype", "causal", "seq_len_q", "seq_len_kv", "batch", "heads", "kv_heads")
READING_ORDER = (*_READ_FIRST, *(name for name in FIELDS if name not in _READ_FIRST))
_SORTED_BY = ("op", *(name for name in FIELDS if name != "op"))
_ORDER = tuple((name, name in OPTIONAL, USUAL.get(name)) for name in _SORTED_BY)


def column_of(name: str) -> str:
    """A field's name in tables."""
    return FIELDS[name].column or name


def labels(workload: Any, *, short: bool = False) -> tuple[str, ...]:
    """How people are told what is not usual: `with log-sum-exp`, `scale 0.5`."""
    return tuple(text for _, text in unusual_labels(workload, short=short))


def unusual_labels(workload: Any, *, short: bool = False) -> tuple[tuple[str, str], ...]:
    """`labels`, each with its field's name."""
    found = []
    for name in OPTIONAL:
        value, spec = getattr(workload, name), FIELDS[name]
        text = spec.label
        if short:
            text = _short(spec) if spec.short is None else spec.short
        if text and value is not None and value != USUAL[name]:
            found.append((name, text.format(value)))
    return tuple(found)


def _short(spec: FieldSpec) -> str:
    if not spec.label or spec.type is bool:
        return spec.key if spec.label else ""
    return f"{spec.key} {{:g}}" if spec.type is float else f"{spec.key} {{}}"


def _key_part(spec: FieldSpec, value: Any) -> str:
    if spec.words is not None:
        return spec.words[value]
    if spec.type is bool:
        return spec.key
    if isinstance(value, str):
        return spec.key + value
    return spec.key + (value.name.lower() if isinstance(value, DType) else repr(value))


def _key_value(spec: FieldSpec, text: str) -> Any:
    if spec.words is not None:
        return text == spec.words[1]
    if spec.type is bool:
        return True
    return DType.from_string(text) if spec.type is DType else spec.type(text)


@cache
def _key_pattern() -> re.Pattern[str]:
    """What `Workload.key` writes, a group for each field that is stated."""
    pattern = "(?:(?P<op>[a-z]+)_)?"
    for name, spec in FIELDS.items():
        if name == "op":
            continue
        if spec.words is not None:
            part = f"(?P<{name}>{'|'.join(spec.words)})"
        elif spec.type is DType:
            part = f"(?P<{name}>{'|'.join(d.name.lower() for d in DType)})"
        elif spec.type is bool:
            part = f"(?P<{name}>{spec.key})"
        else:
            written = {int: r"\d+", str: "[-+.0-9a-z]+"}.get(spec.type, "[-+.0-9e]+")
            written = "|".join(spec.allowed) or written
            part = f"{spec.key}(?P<{name}>{written})"
        separator = "" if name == next(iter(FIELDS)) else "_"
        pattern += f"(?:{separator}{part})?" if name in OPTIONAL else separator + part
    return re.compile(pattern)


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
