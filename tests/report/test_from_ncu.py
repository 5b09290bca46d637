"""Launches as rows: the workload from names and grids, several launches, missing values."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from fa_tune import families
from fa_tune.core.errors import InvalidConfig, ProfileFormatError
from fa_tune.core.model import Quantity
from fa_tune.core.workload import DType
from fa_tune.profile.ncu.launches import Launch, MetricValue, Missing
from fa_tune.report.from_ncu import rows_from_launches
from fa_tune.store.table.partial_workload import PartialWorkload
from fa_tune.store.table.rows import Row

TIME = "gpu__time_duration.sum"
DEVICE = "device__attribute_display_name"
OURS = "void flash_forward_kernel<FlashForwardKernelConfig{%s}, WorkloadTraits{%s}>(ForwardParams)"
VALUES = "(DType)15, 128, 64, 64, 4, true, true, true, 2, 2, 2, false, false"
BARE = "5, 128, 64, 64, 4, 1, 1, 1, 2, 2, 2, 0, 0"
FA2 = (
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, 0, 0, cutlass::bfloat16_t, "
    "Flash_kernel_traits<64, 128, 128, 4, cutlass::bfloat16_t>>, 0, {causal}, 0, 0, {even}, 1, 0, "
    "0>(Flash_fwd_params)"
)
CUDNN = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1"
_next = iter(range(10**6))


def _launch(
    name: str, grid: tuple[int, int, int] | None, us: float | None = 100, **extra: MetricValue
) -> Launch:
    time: MetricValue = Missing("no data") if us is None else Quantity(us / 1e6, "s")
    block = (128, 1, 1)
    return Launch(1, next(_next), name, block, grid, "0", "9.0", {TIME: time, **extra}, "here")


def _only(rows: list[Row]) -> Row:
    (row,) = rows
    return row


def test_our_kernel_tells_its_workload() -> None:
    row = _only(rows_from_launches([_launch(OURS % (VALUES, "true, false, true"), (8, 4, 2))]))
    assert row.kernel == "(BF16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles"
    w = row.workload
    assert w is not None
    assert (w.seq_len_q, w.heads, w.batch, w.dtype, w.causal) == (512, 4, 2, DType.BF16, True)
    assert row.tflops is not None
    assert row.matmul_tflops is not None
    assert row.tflops > row.matmul_tflops, "tiles on the diagonal are computed whole"
    launch = _launch(OURS % (BARE, "0, 0, 0"), (8, 4, 2))
    assert rows_from_launches([replace(launch, block=(32, 4, 1))])[0].n == 1
    for block in ((256, 1, 1), (64, 1, 1)):
        with pytest.raises(ProfileFormatError, match=f"{block[0]} threads a block"):
            rows_from_launches([launch, replace(launch, block=block)])


def test_ragged_length_is_not_in_the_grid() -> None:
    notes: list[str] = []
    launch = _launch(OURS % (BARE, "0, 1, 0"), (8, 4, 2))
    row = _only(rows_from_launches([launch], on_note=notes.append))
    assert row.seq_len is None
    assert row.matmul_tflops is None
    assert row.reason.startswith("unknown batch, heads")
    assert len(notes) == 1
    options = ("--batch", "--heads", "--kv-heads", "--seq-len", "--seq-len-kv")
    assert set(re.findall(r"--[a-z-]+", notes[0])) == set(options)
    given = PartialWorkload(seq_len=500, batch=2, heads=4)
    row = _only(rows_from_launches([launch], given=given, on_note=notes.append))
    assert (row.seq_len, row.seq_len_kv, row.kv_heads, row.reason) == (500, 500, 4, "")
    assert row.matmul_tflops is not None
    assert not any("have no TFLOP/s" in note for note in notes[1:])
    launch = _launch(OURS % (BARE, "0, 1, 0"), (8, 4, 2))
    for given in (
        PartialWorkload(seq_len=700, batch=2, heads=4),
        PartialWorkload(seq_len=500, batch=2, heads=8),
    ):
        with pytest.raises(InvalidConfig, match="another grid"):
            rows_from_launches([launch], given=given)


@pytest.mark.parametrize(("causal", "even"), [("0", "1"), ("1", "1"), ("(bool)1", "true")])
def test_fa2_tells_its_workload(causal: str, even: str) -> None:
    row = _only(rows_from_launches([_launch(FA2.format(causal=causal, even=even), (4, 3, 16))]))
    w = row.workload
    assert w is not None
    assert (w.seq_len_q, w.batch, w.heads, w.d_head, w.dtype) == (512, 3, 16, 64, DType.BF16)
    assert w.causal == (causal != "0")


def test_fa2_with_a_partial_block_does_not() -> None:
    row = _only(rows_from_launches([_launch(FA2.format(causal=0, even=0), (4, 3, 16))]))
    assert row.seq_len is None
    assert row.d_head == 64


def test_parts_of_a_split_call_are_no_baseline() -> None:
    name = FA2.format(causal=0, even=1)
    rows = rows_from_launches(
        [
            _launch(name.replace("fwd_kernel<", "fwd_splitkv_combine_kernel<", 1), (4, 1, 1), 5),
            _launch(OURS % (BARE, "0, 0, 0"), (8, 4, 2), 100),
        ]
    )
    assert [row.kernel for row in rows if row.is_reference] == ["FA2 combine"]


@pytest.mark.parametrize(
    ("others", "given", "found"),
    [
        ((BARE,), None, (512, DType.FP16)),
        ((VALUES,), None, (512, DType.BF16)),
        ((BARE, VALUES), None, (None, None)),
        ((), DType.BF16, (512, DType.BF16)),
        ((), DType.FP16, (512, DType.FP16)),
        ((), None, (512, None)),
    ],
)
def test_cudnn_has_the_type_of_the_options_or_of_the_files_other_kernels(
    others: tuple[str, ...], given: DType | None, found: tuple[int | None, DType | None]
) -> None:
    """Its name says f16 whatever the type was."""
    launches = [_launch(OURS % (values, "0, 0, 0"), (8, 4, 2)) for values in others]
    sizes = {} if others else {"seq_len": 512, "batch": 2, "heads": 4, "d_head": 128}
    stated = PartialWorkload(dtype=given, causal=False, **sizes)
    rows = rows_from_launches([*launches, _launch(CUDNN, (132, 1, 1))], given=stated)
    cudnn = next(row for row in rows if row.kernel == "cuDNN")
    assert (cudnn.seq_len, cudnn.dtype) == found
    assert (cudnn.matmul_tflops is None) == (None in found)


def _decode(**switches: int) -> Launch:
    return _launch(_switched(even_MN=0, **switches), (1, 32, 8))


def test_fa2_makes_queries_of_grouped_heads_where_there_is_one_query() -> None:
    """torch's grid is then (1, batch, heads of keys)."""
    one = PartialWorkload(seq_len=1, seq_len_kv=4096, batch=32, heads=64, kv_heads=8)
    row = _only(rows_from_launches([_decode()], given=one))
    assert row.reason == ""
    assert row.workload is not None
    assert (row.workload.heads, row.workload.kv_heads, row.workload.batch) == (64, 8, 32)
    # 2·2·batch·heads·keys·d over 100 us, by hand.
    assert row.matmul_tflops == pytest.approx(4 * 32 * 64 * 4096 * 64 / 100e-6 / 1e12)
    # 128 heads over one of keys fill a block of 128, which is no sequence of 128 queries then.
    many = _launch(_switched(), (1, 32, 1))
    row = _only(rows_from_launches([many], given=replace(one, heads=128, kv_heads=1)))
    assert (row.seq_len, row.heads, row.kv_heads) == (1, 128, 1)
    for other in (
        replace(one, kv_heads=16),
        replace(one, kv_heads=64),
        replace(one, batch=8),
        replace(one, seq_len=2),
    ):
        with pytest.raises(InvalidConfig, match="another grid"):
            rows_from_launches([_decode()], given=other)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"device": "1"}, ("device 0", "device 1")),
        ({"host": "there"}, ("here", "there")),
        ({"compute_capability": "8.0"}, ("CC 9.0", "CC 8.0")),
        ({"metrics": {TIME: Quantity(4e-4, "s"), DEVICE: "NVIDIA A100"}}, ("", "NVIDIA A100")),
    ],
)
def test_launches_of_two_gpus_are_never_put_together(
    change: dict[str, Any], names: tuple[str, str]
) -> None:
    """Not in a mean, not in a ratio, and no workload is taken from the other's."""
    ours = _launch(OURS % (BARE, "0, 0, 0"), (8, 4, 2), 100)
    other = replace(ours, **{"metrics": {TIME: Quantity(4e-4, "s")}, **change})
    cudnn = replace(_launch(CUDNN, (132, 1, 1), 50), **change)
    notes: list[str] = []
    rows = rows_from_launches([ours, ours, other], on_note=notes.append)
    assert {(row.source, row.median_s, row.n) for row in rows} == {
        (names[0], 1e-4, 2),
        (names[1], 4e-4, 1),
    }
    assert {row.duration_percent_of_baseline for row in rows} == {100.0}
    assert any(note.startswith("2 GPUs") for note in notes)
    assert len(notes) == len(set(notes))
    rows = rows_from_launches([ours, cudnn])
    assert next(row for row in rows if row.kernel == "cuDNN").seq_len is None
    assert [row.source for row in rows_from_launches([ours, ours])] == [""]


def test_ragged_kernel_takes_only_a_workload_of_its_grid() -> None:
    wide = "5, 128, 128, 64, 4, 1, 1, 1, 2, 2, 2, 0, 0"
    for blocks, seq_len in ((9, 1088), (8, None)):
        rows = rows_from_launches(
            [
                _launch(OURS % (BARE, "0, 0, 0"), (17, 4, 2)),
                _launch(OURS % (wide, "0, 1, 0"), (blocks, 4, 2)),
            ]
        )
        ragged = next(row for row in rows if "128, 128, 64" in row.kernel)
        assert ragged.seq_len == seq_len


def test_cudnn_between_two_workloads_is_left_open_launch_by_launch() -> None:
    rows = rows_from_launches(
        [
            _launch(OURS % (BARE, "0, 0, 0"), (8, 4, 2)),
            _launch(OURS % (BARE, "0, 0, 0"), (16, 4, 2)),
            _launch(CUDNN, (132, 1, 1), 50),
            _launch(CUDNN, (132, 1, 1), 200),
        ]
    )
    cudnn = [row for row in rows if row.kernel == "cuDNN"]
    assert [row.duration_s for row in cudnn] == [50 / 1e6, 200 / 1e6]
    assert all(row.seq_len is None and row.attn_tflops is None for row in cudnn)


def test_several_launches_are_one_row() -> None:
    name = OURS % (BARE, "0, 0, 0")
    row = _only(
        rows_from_launches(
            [
                _launch(name, (8, 4, 2), us, **{"sm__cycles_elapsed.max": Quantity(c, "cycle")})
                for us, c in ((100, 10.0), (110, 20.0), (150, 60.0))
            ]
        )
    )
    assert row.duration_s == pytest.approx(120e-6)  # mean
    assert row.median_s == pytest.approx(110e-6)
    assert (row.n, row.cycles) == (3, 30)
    assert row.min_s == pytest.approx(100e-6)


def test_strangers_are_kept_and_named() -> None:
    notes: list[str] = []
    rows = rows_from_launches(
        [_launch("void elementwise_kernel<4>(float *)", (9, 1, 1), 1)], on_note=notes.append
    )
    assert _only(rows).reason == "not a known attention kernel"
    assert "elementwise_kernel" in notes[0]
    row = _only(rows_from_launches([_launch(OURS % (BARE, "0, 0, 0"), None)]))
    assert (row.seq_len, row.d_head) == (None, 128)
    name = OURS % (BARE, "0, 0, 0")
    row = _only(rows_from_launches([_launch(name, (8, 4, 2)), _launch(name, (8, 4, 2), None)]))
    assert (row.duration_s, row.n) == (pytest.approx(100e-6), 1)
    row = _only(rows_from_launches([_launch(name, (8, 4, 2), None)]))
    assert (row.duration_s, row.n, row.tflops) == (None, None, None)
    assert row.reason == "no duration: no data"


def _switched(**on: int) -> str:
    names = ("dropout", "causal", "window", "alibi", "even_MN", "even_K", "softcap", "softmax")
    values = {"even_MN": 1, "even_K": 1} | on
    switches = ", ".join(str(values.get(name, 0)) for name in names)
    return FA2.partition(">>, ")[0] + f">>, {switches}>(Flash_fwd_params)"


@pytest.mark.parametrize("problem", ["window", "dropout", "alibi", "softcap"])
def test_fa2_that_solved_another_problem_is_no_baseline_and_has_no_rates(problem: str) -> None:
    launches = [
        _launch(FA2.format(causal=0, even=1), (4, 3, 16), 100),
        _launch(_switched(**{problem: 1}), (4, 3, 16), 50),
    ]
    rows = {row.kernel: row for row in rows_from_launches(launches)}
    assert rows.keys() > {"FA2"}
    (other,) = (row for name, row in rows.items() if name != "FA2")
    assert other.matmul_tflops is None
    assert other.seq_len is None
    assert rows["FA2"].matmul_tflops is not None


def test_a_padded_head_dimension_is_not_taken_for_the_tensors_own() -> None:
    row = _only(rows_from_launches([_launch(_switched(even_K=0), (4, 3, 16))]))
    assert row.d_head is None
    assert row.matmul_tflops is None
    assert "d_head" in row.reason
    given = PartialWorkload(d_head=56)
    row = _only(rows_from_launches([_launch(_switched(even_K=0), (4, 3, 16))], given=given))
    assert (row.d_head, row.seq_len, row.batch) == (56, 512, 3)


def test_what_rates_rest_on_is_said() -> None:
    notes: list[str] = []
    launches = [_launch(FA2.format(causal=0, even=1), (4, 3, 16)), _launch(CUDNN, (132, 1, 1))]
    rows_from_launches(launches, on_note=notes.append)
    assert any("cuDNN" in note for note in notes)
    assert any("--seq-len-kv" in note for note in notes)
    notes.clear()
    given = PartialWorkload(seq_len_kv=512, kv_heads=16)
    rows_from_launches(launches[:1], given=given, on_note=notes.append)
    assert not notes


@pytest.mark.parametrize(
    "family", [family for family in families.all_families() if hasattr(family, "name_expression")]
)
def test_base_names_are_refused_with_what_to_do(family: Any) -> None:
    config = family.default_config(128, DType.FP16)
    base = family.name_expression(config, "plain").partition("<")[0]
    with pytest.raises(ProfileFormatError, match="--print-kernel-base demangled"):
        rows_from_launches([_launch(CUDNN, (132, 1, 1)), _launch(base, (8, 4, 2))])
