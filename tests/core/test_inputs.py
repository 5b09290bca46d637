"""What inputs are called, and what is asked of a file of them."""

import contextlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from fa_tune.core import input_files
from fa_tune.core.errors import InvalidConfig, ProfileFormatError, StorageError
from fa_tune.core.inputs import (
    BUILT_IN,
    MAX_NATS,
    MIN_NATS,
    NORMAL,
    TRAINED,
    USUAL_NATS,
    InputSpec,
    Kind,
)
from fa_tune.core.workload import DType, Workload

WORKLOAD = Workload(1, 4, 2, 64, 128, 32, DType.FP16)

PLAIN = st.sampled_from([k for k in Kind if k not in USUAL_NATS and k is not Kind.FILE])
PATHS = st.text(min_size=1).filter(lambda text: text == text.strip())
SPECS = (
    PLAIN.map(InputSpec)
    | st.builds(InputSpec, st.sampled_from(list(USUAL_NATS)), st.floats(MIN_NATS, MAX_NATS))
    | PATHS.map(lambda path: InputSpec(Kind.FILE, path=path))
)


@given(SPECS)
def test_a_text_form_reads_back_as_what_it_was(spec: InputSpec) -> None:
    assert InputSpec.parse(str(spec)) == spec


@given(st.text())
def test_any_text_is_a_form_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidConfig):
        spec = InputSpec.parse(text)
        assert InputSpec.parse(str(spec)) == spec


def test_the_usual_sigma_goes_unsaid() -> None:
    assert InputSpec.parse("peaked") == InputSpec(Kind.PEAKED, 6.0)
    assert str(InputSpec.parse("peaked:6")) == "peaked"
    assert str(InputSpec.parse("peaked:4.50")) == "peaked:4.5"
    assert str(InputSpec.parse("peaked:12")) == "peaked:12"
    assert str(InputSpec.parse("falling:12.0")) == "falling"
    assert str(InputSpec.parse("falling:6")) == "falling:6"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("flat", "names no inputs; known are normal, peaked:SIGMA, sink, falling:NATS"),
        ("", "names no inputs"),
        ("peaked:", "needs a number of nats, like peaked:3"),
        ("peaked:nan", "needs a number of nats"),
        ("peaked:-1", "needs a number of nats"),
        ("peaked:0", "peaked takes 0.01 to 100 nats, not 0"),
        ("falling:1e9", "falling takes 0.01 to 100 nats, not 1e"),
        ("sink:3", "sink takes nothing after it"),
        ("file:", "needs a path after it"),
    ],
)
def test_what_means_nothing_is_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        InputSpec.parse(text)


@pytest.mark.parametrize("spec", BUILT_IN, ids=str)
@pytest.mark.parametrize("dtype", DType)
def test_a_softmax_scale_beyond_a_dtype_is_refused(spec: InputSpec, dtype: DType) -> None:
    for scale in (1e-3, 1.0, 1e3):
        spec.check(Workload(1, 1, 1, 64, 64, 64, dtype, softmax_scale=scale))
    if spec != NORMAL:
        with pytest.raises(InvalidConfig, match="cannot be made for the softmax scale 1e-25"):
            spec.check(Workload(1, 1, 1, 64, 64, 64, dtype, softmax_scale=1e-25))


def saved(path: Path, **tensors: np.ndarray[Any, Any]) -> Path:
    save_file(tensors, path)
    return path


def qkv(
    q: tuple[int, ...] = (1, 128, 4, 32),
    k: tuple[int, ...] = (1, 128, 2, 32),
    v: tuple[int, ...] | None = None,
    dtype: str = "float16",
) -> Mapping[str, np.ndarray[Any, Any]]:
    shapes = {"q": q, "k": k, "v": v or k}
    return {name: np.zeros(shape, dtype) for name, shape in shapes.items()}


def check(path: Path, workload: Workload = WORKLOAD) -> None:
    input_files.check(InputSpec(Kind.FILE, path=str(path)), workload)


def test_a_file_that_fits_passes(tmp_path: Path) -> None:
    check(saved(tmp_path / "a.safetensors", **qkv()))
    check(saved(tmp_path / "b.safetensors", **qkv((3, 999, 6, 32), (3, 500, 3, 32))))


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        (qkv((1, 128, 4, 64), (1, 128, 2, 64)), "d_head is 64, where 32 is wanted"),
        (qkv((1, 63, 4, 32)), "q of 63 tokens cannot fill a sequence of 64"),
        (qkv(k=(1, 127, 2, 32)), "k and v of 127 tokens cannot fill a sequence of 128"),
    ],
)
def test_a_file_that_does_not_fit_the_workload(
    tmp_path: Path, tensors: Mapping[str, Any], says: str
) -> None:
    with pytest.raises(InvalidConfig, match=says):
        check(saved(tmp_path / "x.safetensors", **tensors))


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"q": np.zeros((1, 128, 4, 32), "float16")}, "no tensor 'k'"),
        (qkv((128, 4, 32)), r"q is \[128, 4, 32\], not \[batch, seq_len, heads, d_head\]"),
        (qkv((0, 128, 4, 32)), "q is"),
        (qkv(dtype="int32"), "q is of I32, not one of F16, BF16, F32, F64"),
        (qkv(v=(1, 64, 2, 32)), "k and v differ in batch, length or heads"),
        (qkv((2, 128, 4, 32)), "q and k differ in batch or d_head"),
        (qkv((1, 128, 3, 32)), "the heads of q are not a multiple of those of k"),
    ],
)
def test_a_file_that_holds_something_else(
    tmp_path: Path, tensors: Mapping[str, Any], says: str
) -> None:
    with pytest.raises(ProfileFormatError, match=says):
        check(saved(tmp_path / "x.safetensors", **tensors))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such file"):
        check(tmp_path / "x.safetensors")


@given(st.data())
def test_a_damaged_file_is_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Cut anywhere, or with a header that says something else."""
    folder = tmp_path_factory.getbasetemp()
    whole = saved(folder / "whole.safetensors", **qkv()).read_bytes()
    size = struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8 : 8 + size])
    cut = data.draw(st.integers(0, len(whole) - 1) | st.integers(0, size + 9))
    damaged = data.draw(
        st.sampled_from(
            [
                whole[:cut],
                b"\xff" * 8 + whole[8:],
                whole[:8] + b"x" + whole[9:],
                _with_header(header | {"q": header["q"] | {"shape": [1, 1, 1, 1]}}, whole, size),
                _with_header(header | {"q": header["q"] | {"dtype": "F17"}}, whole, size),
            ]
        )
    )
    path = folder / "damaged.safetensors"
    path.write_bytes(damaged)
    with pytest.raises(ProfileFormatError) as found:
        check(path)
    assert "\n" not in str(found.value)


def _with_header(header: Mapping[str, Any], whole: bytes, size: int) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + whole[8 + size :]


def test_a_files_identity_changes_with_what_it_holds(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.safetensors", **qkv())
    spec = InputSpec(Kind.FILE, path=str(path))
    before = input_files.identity(spec)
    assert input_files.identity(spec) == before
    saved(path, **qkv(dtype="float32"))
    assert input_files.identity(spec) != before
    assert input_files.identity(TRAINED) == "trained"
