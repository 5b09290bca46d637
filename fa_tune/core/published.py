"""The attention layers of public models, and the workloads that they are in use.

`profiles/models/NAME.toml` says what the model's public config does, from which everything here
follows; a scale of the scores is left out, since it costs no time.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from fa_tune.core import codec
from fa_tune.core.codec import FILLED, POSITIVE
from fa_tune.core.errors import InvalidConfig, ProfileFormatError
from fa_tune.core.paths import profiles_dir
from fa_tune.core.workload import BACKWARD, DType, Workload

Use = Literal["prefill", "training", "decoding", "encoding"]
USES: tuple[Use, ...] = get_args(Use)
ALL = "all"
SUFFIX = ".toml"
Count = Annotated[int, POSITIVE]

PREFILL = (512, 1024, 2048, 4096, 8192, 16384, 32768)  # queries, as many as keys
CHUNK, BEFORE = 2048, 16384  # queries at the end of so many keys
PREFILL_TOKENS, MOST_PROMPTS = 16384, 16
TRAINING_LENGTH, PACKED_SEQUENCES = 4096, 16
TRAINING_TOKENS = 32768
ENCODED_BATCHES = (1, 16, 64)
HOST_KNOWS = ((1, 2048), (1, 32768), (4, 8192), (16, 8192))  # queries, keys of one sequence
DEVICE_KNOWS = (  # queries, batch, keys of the longest sequence, keys of a page
    *((1, 16, 8192, 0), (1, 64, 2048, 0), (1, 64, 8192, 16), (1, 100, 700, 0)),
    *((2, 64, 4096, 16), (4, 16, 8192, 0), (8, 16, 4096, 16)),
)


@dataclass(frozen=True, kw_only=True)
class Layers:
    """`count` layers of one kind; fields that a `Workload` has as well are as there.  `context`:
    the most tokens of a sequence that the layer sees; encoders say which numbers in `seq_lens`
    instead.  `keys`: of cross-attention, whose keys are of another sequence."""

    count: Count
    heads: Count
    kv_heads: Count
    d_head: Count
    uses: Annotated[tuple[Use, ...], FILLED]
    d_head_v: int = 0
    causal: bool = False
    window_left: int | None = None
    window_right: int | None = None
    sink: bool = False
    softcap: float | None = None
    alibi: bool = False
    context: int = 0
    seq_lens: tuple[Count, ...] = ()
    keys: int = 0

    def __post_init__(self) -> None:
        if bool(self.context) == bool(self.seq_lens):
            raise ValueError("either context or seq_lens are needed")
        if not self.context and {*self.uses} & {"prefill", "decoding"}:
            raise ValueError("prefill and decoding need context")
        if not self.seq_lens and "encoding" in self.uses:
            raise ValueError("encoding needs seq_lens")

    def workloads(self, use: Use, dtype: DType) -> Iterator[Workload]:
        same = {n: getattr(self, n) for n in _SHARED} | {"dtype": dtype}
        sizes = {
            "prefill": self._prefill,
            "training": self._training,
            "decoding": self._decoding,
            "encoding": self._encoding,
        }
        for batch, n_queries, n_keys, others in sizes[use]():
            given = {"batch": batch, "seq_len_q": n_queries, "seq_len_kv": n_keys}
            yield Workload(**same | given | others)

    def _prefill(self) -> Iterator[_Sizes]:
        for n in PREFILL:
            if n <= self.context:
                yield max(1, min(MOST_PROMPTS, PREFILL_TOKENS // n)), n, n, {}
        if self.context >= BEFORE:
            yield 1, CHUNK, BEFORE, {"bottom_right": self.causal}

    def _training(self) -> Iterator[_Sizes]:
        for n in self.seq_lens or (min(self.context, TRAINING_LENGTH),):
            batch, n_keys = max(1, TRAINING_TOKENS // n), self.keys or n
            yield batch, n, n_keys, {"lse": True}
            yield batch, n, n_keys, {"op": BACKWARD}
            if self.context:
                packed = {"lengths": "lognormal-1-0"}
                yield PACKED_SEQUENCES, n, n, {"lse": True, **packed}
                yield PACKED_SEQUENCES, n, n, {"op": BACKWARD, **packed}

    def _decoding(self) -> Iterator[_Sizes]:
        for n_queries, n_keys in HOST_KNOWS:
            yield 1, n_queries, min(self.context, n_keys), {"bottom_right": self.causal}
        for n_queries, batch, longest, page_size in DEVICE_KNOWS:
            of_cache = {"cache_lengths": "uniform-0", "page_size": page_size}
            yield batch, n_queries, min(self.context, longest), of_cache

    def _encoding(self) -> Iterator[_Sizes]:
        for n in self.seq_lens:
            for batch in ENCODED_BATCHES:
                yield batch, n, self.keys or n, {}


_Sizes = tuple[int, int, int, dict[str, Any]]  # batch, queries, keys, what else a workload says
_FIELDS = {field.name for field in dataclasses.fields(Workload)}
_SHARED = tuple(f.name for f in dataclasses.fields(Layers) if f.name in _FIELDS)


@dataclass(frozen=True, kw_only=True)
class PublishedModel:
    """A file of `profiles/models`.  `source`: the public config that it was taken from."""

    source: Annotated[str, FILLED]
    dtype: Literal["fp16", "bf16"]
    layers: Annotated[tuple[Layers, ...], FILLED]

    def workloads(self, *uses: Use) -> tuple[Workload, ...]:
        """Each once, by layer and use; without `uses` all."""
        dtype = DType.from_string(self.dtype)
        wanted = ((layers, use) for layers in self.layers for use in layers.uses)
        found = (layers.workloads(u, dtype) for layers, u in wanted if not uses or u in uses)
        return tuple(dict.fromkeys(w for some in found for w in some))


def names() -> tuple[str, ...]:
    """The models that there are, sorted; raises ToolMissing without their folder."""
    return tuple(sorted(path.stem for path in _folder().glob(f"*{SUFFIX}")))


@cache
def load(name: str) -> PublishedModel:
    """A model; raises InvalidConfig for one that there is not, ProfileFormatError for a file that
    does not fit."""
    if name not in names():
        raise InvalidConfig(f"no model {name[:40]!r}; there are {', '.join(names())}, or {ALL}")
    path = _folder() / f"{name}{SUFFIX}"
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        found = codec.load(PublishedModel, raw)
        found.workloads()  # heads may not go with each other
    except (OSError, ValueError) as error:
        raise ProfileFormatError(f"{path}: {error}") from None
    return found


def workloads_of(text: str) -> tuple[Workload, ...]:
    """Those of `llama-3.1-8b`, of one use of it as `llama-3.1-8b:decoding`, or of `all` models;
    raises InvalidConfig as `load`, and for a use that the model has not."""
    name, colon, use = text.strip().lower().partition(":")
    if colon and use not in USES:
        raise InvalidConfig(f"no use {use[:40]!r}; there are {', '.join(USES)}")
    uses = [known for known in USES if known == use]
    wanted = names() if name == ALL else (name,)
    found = dict.fromkeys(w for model in wanted for w in load(model).workloads(*uses))
    if not found:
        raise InvalidConfig(f"{name} is not used for {use}; leave :{use} out")
    return tuple(found)


def _folder() -> Path:
    return profiles_dir() / "models"
