"""Kernel sources of different text that were proven to compile to the same machine code.

`profiles/equal_sources.json` is a list of proofs, in any number and order, each of them with the
hashes that it found equal.  Hashes that proofs join, directly or through others, are a group.
What was measured, verified or built with one source of a group holds for all of it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fa_tune.core import codec, paths
from fa_tune.core.errors import ProfileFormatError
from fa_tune.core.files import replace_file
from fa_tune.core.workload import Workload

FILE = "equal_sources.json"


class Kind(NamedTuple):
    """What kernels of a workload are, as far as proofs tell them apart: the head dimension of Q and
    K, the type (`FP16`), and whether the device alone knows how many keys there are."""

    d_head: int
    dtype: str
    cached: bool = False


def kind_of(workload: Workload) -> Kind:
    """The kind of a workload's kernels."""
    return Kind(workload.d_head, workload.dtype.name, workload.cached)


@dataclass(frozen=True)
class Proof:
    """Proof that kernels of `family` are the same from sources of any of the hashes `sources`, the
    oldest first.  `kernels`: how many were compared, 0 where the files were the same and only
    the way of hashing changed.  `d_heads` and `dtypes`: the head dimensions of Q and K and the
    types (`FP16`) whose kernels they are; empty: all.  `known_lengths`: only those of workloads
    whose lengths the host knows."""

    family: str
    sources: tuple[str, ...]
    how: str
    date: str
    nvrtc: str = ""
    kernels: int = 0
    d_heads: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ()
    known_lengths: bool = False

    def is_of(self, family: str, kind: Kind | None) -> bool:
        """Whether it holds for kernels of such workloads; None: for all of the family."""
        if family != self.family:
            return False
        if kind is None:
            return not (self.d_heads or self.dtypes or self.known_lengths)
        if kind.cached and self.known_lengths:
            return False
        right_d_head = kind.d_head in (self.d_heads or (kind.d_head,))
        return right_d_head and kind.dtype in (self.dtypes or (kind.dtype,))


def load(path: Path | None = None) -> tuple[Proof, ...]:
    """The proofs in a file, the shipped one if None; none if it is not there.  Raises
    ProfileFormatError."""
    path = path or paths.profiles_dir() / FILE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileFormatError(f"{path} cannot be read: {error}") from None
    try:
        return codec.load(tuple[Proof, ...], codec.parse(text))
    except ValueError as error:
        raise ProfileFormatError(f"{path}: {error}") from None


def save(proofs: Iterable[Proof], path: Path) -> None:
    """Write a file that `load` reads, whole or not at all: what a proof does not say is left out.
    Raises OSError."""
    rows = [{name: held for name, held in asdict(p).items() if held} for p in proofs]
    replace_file(path, (json.dumps(rows, indent=1) + "\n").encode())


def groups(proofs: Iterable[Proof]) -> Mapping[str, tuple[str, ...]]:
    """Each hash that proofs of one family name, with its group in the order of the proofs."""
    found: dict[str, tuple[str, ...]] = {}
    for proof in proofs:
        joined = (member for sha256 in proof.sources for member in found.get(sha256, (sha256,)))
        group = tuple(dict.fromkeys(joined))
        found |= dict.fromkeys(group, group)
    return found


def representative(family: str, sha256: str) -> str:
    """The hash that stands for the whole group of `sha256`: the one a proof named first.  Two
    hashes are of equal sources, for all kernels, if and only if theirs is the same."""
    return _group(family, sha256)[0]


def equal(family: str, one: str, other: str, kinds: Collection[Kind] = ()) -> bool:
    """Whether what was made from sources of either hash holds for both: kernels of these kinds, or
    all where none is named."""
    return all(other in _group(family, one, kind) for kind in kinds or (None,))


def _group(family: str, sha256: str, kind: Kind | None = None) -> tuple[str, ...]:
    return _shipped(family, kind).get(sha256, (sha256,))


@cache
def _shipped(family: str, kind: Kind | None) -> Mapping[str, tuple[str, ...]]:
    """The groups of a family's kernels of one kind; None: of all kernels."""
    return groups(proof for proof in load() if proof.is_of(family, kind))
