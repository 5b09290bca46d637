"""Tensor maps, made by a driver library that only notes down what it is asked."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from fa_tune import families
from fa_tune.core.errors import InvalidConfig, ToolMissing
from fa_tune.core.workload import DType, Workload
from fa_tune.families import tensor_maps
from fa_tune.families.launch import LaunchArgs, TensorArg
from fa_tune.families.sm80.names import parse_short_form
from fa_tune.families.tensor_maps import MAP_ALIGNMENT, MAP_BYTES, tensor_map
from tests.families.contract import DEVICE

WORKLOAD = Workload(2, 6, 3, 500, 700, 128, DType.FP16)
PLAIN = TensorArg(1 << 20, (500 * 6 * 128, 6 * 128, 128))
TURNS = parse_short_form(
    "(FP16, 128, 256, 64, 8): async+eager+swizzled+load_1_1_1_tiles+stages_3+pingpong"
)


@dataclass
class FakeDriver:
    """In place of libcuda; fills a map with a byte that counts the calls."""

    status: int = 0
    calls: list[dict[str, Any]] = field(default_factory=list)

    def cuTensorMapEncodeTiled(
        self,
        target: ctypes.c_void_p,
        dtype: int,
        rank: int,
        address: ctypes.c_void_p,
        dimensions: Any,
        strides: Any,
        box: Any,
        element_strides: Any,
        *modes: int,
    ) -> int:
        assert target.value is not None
        self.calls.append(
            {
                "target": target.value,
                "dtype": dtype,
                "rank": rank,
                "address": address.value,
                "dimensions": list(dimensions),
                "strides": list(strides),
                "box": list(box),
                "element_strides": list(element_strides),
                "modes": modes,
            }
        )
        ctypes.memset(target.value, len(self.calls), MAP_BYTES)
        return self.status


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    driver = FakeDriver()
    tensor_maps._encoded.cache_clear()
    monkeypatch.setattr(tensor_maps, "_driver", lambda: driver)
    yield driver
    tensor_maps._encoded.cache_clear()


def test_a_map_is_of_the_whole_tensor_innermost_dimension_first(driver: FakeDriver) -> None:
    made = tensor_map(PLAIN, WORKLOAD, queries=True, box_rows=128)
    (call,) = driver.calls
    assert call["rank"] == 4
    assert call["address"] == 1 << 20
    assert call["dimensions"] == [128, 500, 6, 2]
    assert call["strides"] == [2 * 6 * 128, 2 * 128, 2 * 500 * 6 * 128]  # bytes: row, head, batch
    assert call["box"] == [64, 128, 1, 1]
    assert call["element_strides"] == [1, 1, 1, 1]
    # No interleaving, 128-byte swizzle, promotion to 128 bytes in L2, zeros beyond the tensor.
    assert call["modes"] == (0, 3, 2, 0)
    assert (made.dtype, made.shape) == ("V128", (1,)), "one element: what a launch passes by value"
    assert made.tobytes() == b"\1" * MAP_BYTES


def test_keys_have_the_heads_and_the_length_of_keys(driver: FakeDriver) -> None:
    tensor_map(PLAIN, WORKLOAD, queries=False, box_rows=64)
    assert driver.calls[0]["dimensions"] == [128, 700, 3, 2]
    assert driver.calls[0]["box"] == [64, 64, 1, 1]


def test_values_have_a_head_dimension_of_their_own(driver: FakeDriver) -> None:
    workload = replace(WORKLOAD, d_head_v=96)
    for queries, values in ((True, False), (False, True), (True, True)):
        tensor_map(PLAIN, workload, queries=queries, box_rows=64, values=values)
    found = [call["dimensions"] for call in driver.calls]
    assert found == [[128, 500, 6, 2], [96, 700, 3, 2], [96, 500, 6, 2]]


@pytest.mark.parametrize(("dtype", "number"), [(DType.FP16, 6), (DType.BF16, 9)])
def test_the_element_type(driver: FakeDriver, dtype: DType, number: int) -> None:
    tensor_map(PLAIN, replace(WORKLOAD, dtype=dtype), queries=True, box_rows=128)
    assert driver.calls[0]["dtype"] == number


def test_the_driver_gets_aligned_memory_and_the_result_keeps_none_of_it(
    driver: FakeDriver,
) -> None:
    made = [
        tensor_map(replace(PLAIN, address=256 * i), WORKLOAD, queries=True, box_rows=128)
        for i in range(1, 20)
    ]
    assert all(call["target"] % MAP_ALIGNMENT == 0 for call in driver.calls)
    assert [m.tobytes() for m in made] == [bytes([i]) * MAP_BYTES for i in range(1, 20)]
    assert all(m.base is None for m in made)


@pytest.mark.parametrize(
    ("changes", "strides", "expected"),
    [
        # One head: its stride is what the view happens to say.
        ({"heads": 1, "kv_heads": 1}, (500 * 128, 128, 3), [256, 16, 2 * 500 * 128]),
        ({"batch": 1}, (5, 6 * 128, 128), [2 * 6 * 128, 256, 16]),
        ({"seq_len_q": 1}, (6 * 128, 7, 128), [16, 256, 2 * 6 * 128]),
        ({"batch": 1, "seq_len_q": 1}, (0, 0, 128), [16, 256, 16]),
    ],
)
def test_the_stride_of_an_extent_of_one_does_not_matter(
    driver: FakeDriver,
    changes: dict[str, int],
    strides: tuple[int, int, int],
    expected: list[int],
) -> None:
    workload = replace(WORKLOAD, **changes)
    tensor_map(replace(PLAIN, strides=strides), workload, queries=True, box_rows=128)
    assert driver.calls[0]["strides"] == expected


def test_an_expanded_dimension_keeps_its_stride_of_0(driver: FakeDriver) -> None:
    """One K and V for several heads or for the whole batch: the extent stays, since kernels step
    along it, and every step leads to the same place."""
    tensor_map(replace(PLAIN, strides=(0, 128, 0)), WORKLOAD, queries=False, box_rows=64)
    assert driver.calls[0]["dimensions"] == [128, 700, 3, 2]
    assert driver.calls[0]["strides"] == [256, 0, 0]


def test_the_same_tensor_is_asked_for_once(driver: FakeDriver) -> None:
    first = tensor_map(PLAIN, WORKLOAD, queries=True, box_rows=128)
    again = tensor_map(TensorArg(1 << 20, PLAIN.strides), WORKLOAD, queries=True, box_rows=128)
    assert again is first
    assert len(driver.calls) == 1
    for other in (
        tensor_map(replace(PLAIN, address=1 << 21), WORKLOAD, queries=True, box_rows=128),
        tensor_map(PLAIN, WORKLOAD, queries=True, box_rows=64),
        tensor_map(PLAIN, WORKLOAD, queries=False, box_rows=128),
        tensor_map(PLAIN, replace(WORKLOAD, batch=3), queries=True, box_rows=128),
        tensor_map(PLAIN, replace(WORKLOAD, dtype=DType.BF16), queries=True, box_rows=128),
    ):
        assert other is not first
    assert len(driver.calls) == 6
    # What a map does not depend on makes no new one.
    causal = replace(WORKLOAD, causal=True, softmax_scale=0.5)
    assert tensor_map(PLAIN, causal, queries=True, box_rows=128) is first


@pytest.mark.parametrize(
    "tensor",
    [
        replace(PLAIN, address=(1 << 20) + 8),
        replace(PLAIN, strides=(500 * 6 * 128, 6 * 128 + 4, 128)),
        replace(PLAIN, strides=(500 * 6 * 128, 6 * 128, 100)),
        replace(PLAIN, strides=(3, 6 * 128, 128)),
    ],
    ids=["address", "row", "head", "batch"],
)
def test_what_is_no_multiple_of_16_bytes_is_refused(driver: FakeDriver, tensor: TensorArg) -> None:
    with pytest.raises(InvalidConfig) as caught:
        tensor_map(tensor, WORKLOAD, queries=True, box_rows=128)
    assert str(caught.value) == (
        "bulk tensor copies need an address and strides that are multiples of 16 bytes "
        f"(8 elements); strides of (batch, seq, head) are {tensor.strides}"
    )
    assert driver.calls == []


def test_what_the_driver_refuses_is_one_line(driver: FakeDriver) -> None:
    driver.status = 1
    for _ in range(2):  # nothing of a failure is kept
        with pytest.raises(InvalidConfig) as caught:
            tensor_map(PLAIN, WORKLOAD, queries=True, box_rows=300)
        assert str(caught.value) == (
            "the driver made no tensor map (error 1) of dimensions (128, 500, 6, 2) with "
            "strides of [1536, 256, 768000] bytes and boxes of 300 rows"
        )
    assert len(driver.calls) == 2


def test_without_a_driver_a_map_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.undo()
    monkeypatch.setattr(ctypes, "CDLL", missing)
    tensor_maps._driver.cache_clear()
    with pytest.raises(ToolMissing, match=r"^no CUDA driver found: libcuda\.so\.1 cannot be load"):
        tensor_map(PLAIN, WORKLOAD, queries=True, box_rows=128)


def test_a_launch_with_turns_passes_four_maps_and_the_parameters(driver: FakeDriver) -> None:
    tensors = (replace(PLAIN, address=i << 20) for i in (1, 2, 3, 4))
    arguments = LaunchArgs.forward(*tensors, scratch=7 << 20)
    family = families.get("sm80")
    passed = family.kernel_args(TURNS, WORKLOAD, arguments, DEVICE)
    assert [len(a) for a in passed] == [1, 1, 1, 1, 1]
    assert [a.dtype for a in passed[:4]] == ["V128"] * 4
    assert [call["address"] for call in driver.calls] == [1 << 20, 2 << 20, 3 << 20, 4 << 20]
    # A box of Q or O is the rows of one warp; one of K or V a whole block.
    assert [call["box"][1] for call in driver.calls] == [32, 64, 64, 32]
    assert [call["dimensions"][1] for call in driver.calls] == [500, 700, 700, 500]
    (params,) = passed[4]
    ordinary = replace(TURNS, ping_pong=False)
    ((plain,),) = family.kernel_args(ordinary, WORKLOAD, arguments, DEVICE)
    different = {n for n in params.dtype.names if params[n] != plain[n]}
    assert different == {"l2_head_group"}
    assert params["counters_address"] == 7 << 20
    assert len(driver.calls) == 4, "without turns there are no maps"


def test_twelve_warps_have_boxes_of_a_twelfth() -> None:
    twelve = replace(TURNS, B_r=192, n_warps=12)
    fake = FakeDriver()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_maps, "_driver", lambda: fake)
        arguments = LaunchArgs.forward(*(replace(PLAIN, address=i << 22) for i in (1, 2, 3, 4)))
        families.get("sm80").kernel_args(twelve, WORKLOAD, arguments, DEVICE)
    assert fake.calls[0]["box"] == fake.calls[3]["box"] == [64, 16, 1, 1]
