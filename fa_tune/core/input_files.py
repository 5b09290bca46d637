"""The safetensors files of `file:PATH` inputs: what is asked of them, without reading the tensors.

A file holds `q`, `k` and `v`, each [batch, seq_len, heads, d_head]; d_head of `v` may be another.
Any batch and number of heads will do: they are repeated, or cut.  Of longer sequences the beginning
is taken.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fa_tune.core.errors import InvalidConfig, ProfileFormatError, StorageError
from fa_tune.core.files import storage_errors
from fa_tune.core.inputs import InputSpec, Kind
from fa_tune.core.workload import Workload

NAMES = ("q", "k", "v")
DTYPES = ("F16", "BF16", "F32", "F64")
LAYOUT = "[batch, seq_len, heads, d_head]"

Shape = tuple[int, ...]


@dataclass(frozen=True)
class InputFile:
    """The shapes of a file's tensors."""

    path: str
    q: Shape
    k: Shape
    v: Shape

    def check(self, workload: Workload) -> None:
        """Raise InvalidConfig if the file's tensors do not make up a workload's."""
        w = workload
        if self.q[3] != w.d_head:
            raise InvalidConfig(f"{self.path}: d_head is {self.q[3]}, where {w.d_head} is wanted")
        if self.v[3] != w.d_v:
            raise InvalidConfig(f"{self.path}: d_head_v is {self.v[3]}, where {w.d_v} is wanted")
        for name, length, wanted in (
            ("q", self.q[1], w.seq_len_q),
            ("k and v", self.k[1], w.seq_len_kv),
        ):
            if length < wanted:
                raise InvalidConfig(
                    f"{self.path}: {name} of {length} tokens cannot fill a sequence of {wanted}"
                )


def read(path: str) -> InputFile:
    """The shapes of a file's tensors; raises StorageError for a file that cannot be read, and
    ProfileFormatError for one that is damaged or does not hold q, k and v."""
    from safetensors import SafetensorError, safe_open  # only who gives a file waits for it

    if not Path(path).is_file():
        why = "not a file" if Path(path).exists() else "no such file"
        raise StorageError(f"cannot read {path}: {why}")
    try:
        with open(path, "rb"):  # for a refusal in the system's words
            pass
        with safe_open(path, framework="numpy") as file:
            held = set(file.keys())
            for name in NAMES:
                if name not in held:
                    raise ProfileFormatError(f"{path}: no tensor {name!r}; q, k and v are needed")
            slices = {name: file.get_slice(name) for name in NAMES}
            shapes = {name: tuple(slices[name].get_shape()) for name in NAMES}
            dtypes = {name: str(slices[name].get_dtype()) for name in NAMES}
    except SafetensorError as error:
        raise ProfileFormatError(f"{path} is not a valid safetensors file: {error}") from None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from None
    for name in NAMES:
        if len(shapes[name]) != 4 or not all(shapes[name]):
            raise ProfileFormatError(f"{path}: {name} is {list(shapes[name])}, not {LAYOUT}")
        if dtypes[name] not in DTYPES:
            raise ProfileFormatError(
                f"{path}: {name} is of {dtypes[name]}, not one of {', '.join(DTYPES)}"
            )
    if shapes["k"][:3] != shapes["v"][:3]:
        raise ProfileFormatError(f"{path}: k and v differ in batch, length or heads")
    if (shapes["q"][0], shapes["q"][3]) != (shapes["k"][0], shapes["k"][3]):
        raise ProfileFormatError(f"{path}: q and k differ in batch or d_head")
    if shapes["q"][2] % shapes["k"][2]:
        raise ProfileFormatError(f"{path}: the heads of q are not a multiple of those of k")
    return InputFile(path, shapes["q"], shapes["k"], shapes["v"])


def check(spec: InputSpec, workload: Workload) -> None:
    """Raise InvalidConfig if such inputs cannot be had for a workload, and what `read` raises."""
    if spec.kind is Kind.FILE:
        read(spec.path).check(workload)
    else:
        spec.check(workload)


def identity(spec: InputSpec) -> str:
    """The text form; of a file, with a hash of what it holds.  Raises StorageError."""
    if spec.kind is not Kind.FILE:
        return str(spec)
    with storage_errors(f"cannot read {spec.path}"), open(spec.path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{spec} sha256 {digest[:16]}"
