"""Kernel sources of different text that were proven to compile to the same machine code.

`profiles/equal_sources.json` has a line for each proof.  What was measured, verified or built
with one of two equal sources holds for the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from fa_tune.core import paths
from fa_tune.core.errors import ProfileFormatError

FILE = "equal_sources.json"


@dataclass(frozen=True)
class Proof:
    """That kernels of `family` made from sources with the hash `newer` are those made from
    `older`.  `kernels`: how many were compared, 0 where the files were the same and only the
    way of hashing changed.  `d_heads`: the head dimensions of Q and K whose kernels they are;
    empty: all kernels of the family."""

    family: str
    older: str
    newer: str
    how: str
    date: str
    nvrtc: str = ""
    kernels: int = 0
    d_heads: tuple[int, ...] = ()

    def conflicts_with(self, other: Proof) -> bool:
        """Whether both say which sources are before the same ones."""
        apart = self.d_heads and other.d_heads and not {*self.d_heads} & {*other.d_heads}
        return (self.family, self.newer) == (other.family, other.newer) and not apart


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
        proofs = TypeAdapter(tuple[Proof, ...]).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ProfileFormatError(f"{path}: {where}: {first['msg']}") from None
    for one, other in itertools.combinations(proofs, 2):
        if one.conflicts_with(other):
            raise ProfileFormatError(
                f"{path}: two proofs lead to {one.newer} of {one.family}, and one would be lost; "
                "let one of them lead to the older hash of the other"
            )
    return proofs


def oldest_equal(family: str, sha256: str) -> str:
    """The hash that stands for all sources of a family that equal those of `sha256`: that of
    the oldest.  Two hashes are of equal sources if and only if it is the same for both."""
    return oldest(_shipped(family), sha256)


def equal(family: str, one: str, other: str, d_heads: Collection[int] = ()) -> bool:
    """Whether what was made from sources of either hash holds for both: kernels of these head
    dimensions, or all where none is named."""
    proofs = [_shipped(family, d_head) for d_head in d_heads or (None,)]
    return all(oldest(known, one) == oldest(known, other) for known in proofs)


def oldest(proofs: Mapping[str, str], sha256: str) -> str:
    """The start of the chain of `proofs`, newer -> older, that ends in `sha256`."""
    seen = {sha256}
    while sha256 in proofs and proofs[sha256] not in seen:
        sha256 = proofs[sha256]
        seen.add(sha256)
    return sha256


@cache
def _shipped(family: str, d_head: int | None = None) -> Mapping[str, str]:
    return {
        proof.newer: proof.older
        for proof in load()
        if proof.family == family and (not proof.d_heads or d_head in proof.d_heads)
    }
