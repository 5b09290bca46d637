"""Labels of the kernels fa-tune is compared with, by every name they go under.

The FlashAttention 2 and cuDNN names are those of the recordings; the mangled FlashAttention 3
name was taken from a running program; the other mangled ones were made by a compiler from
templates of the same shape.
"""

from pathlib import Path

import pytest

from fa_tune.libraries import blocks_of_kernel, label_of_kernel
from fa_tune.profile.ncu.parse import read_profile

RECORDINGS = Path(__file__).parents[1] / "profile" / "ncu" / "data"

FA2_TRAITS = (
    "Flash_fwd_kernel_traits<128, 128, 64, 4, 0, 0, cutlass::half_t, "
    "Flash_kernel_traits<128, 128, 64, 4, cutlass::half_t>>"
)
FA3_TAIL = (
    "128, cutlass::bfloat16_t, float, cutlass::arch::Sm90, false>, "
    "flash::CollectiveEpilogueFwd<cute::tuple<cute::C<128>, cute::C<128>, cute::C<176> >>>>>"
)
CUDNN = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1"

NAMES: list[tuple[str, str | None, tuple[int, int] | None]] = [
    # FlashAttention 2
    (
        f"void pytorch_flash::flash_fwd_kernel<{FA2_TRAITS}, 0, 0>(Flash_fwd_params)",
        "fa2",
        (128, 64),
    ),
    (f"void flash_fwd_kernel<{FA2_TRAITS}, 1, 0>(Flash_fwd_params)", "fa2", (128, 64)),
    (
        "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<(int)64, (int)64, (int)256, "
        "(int)4, (bool)0, (bool)0>, (bool)0>(flash::Flash_fwd_params)",
        "fa2",
        (64, 256),
    ),
    (
        f"void flash::flash_fwd_splitkv_combine_kernel<{FA2_TRAITS}, 4, 1, true>(Params)",
        "fa2",
        None,
    ),
    ("flash_fwd_kernel", "fa2", None),
    (
        "_ZN13pytorch_flash16flash_fwd_kernelI23Flash_fwd_kernel_traitsILi128ELi128ELi64ELi4ELb0ELb"
        "0EN7cutlass6half_tE19Flash_kernel_traitsILi128ELi128ELi64ELi4ES3_EELb0ELb0ELb0ELb0ELb1ELb1"
        "ELb0ELb0EEEvNS_16Flash_fwd_paramsE",
        "fa2",
        (128, 64),
    ),
    # FlashAttention 3
    (
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::"
        "CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, cute::tuple"
        f"<cute::C<128>, cute::C<176>, cute::C<128> >, {FA3_TAIL}(T1::Params)",
        "fa3",
        (128, 176),
    ),
    (
        "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::"
        "CollectiveMainloopFwdSm90<(int)2, cute::tuple<cute::C<(int)2>, cute::C<(int)1>, "
        "cute::C<(int)1>>, cute::tuple<cute::C<(int)192>, cute::C<(int)128>, cute::C<(int)64>>, "
        f"(int)64, {FA3_TAIL}(T1::Params)",
        "fa3",
        (192, 128),
    ),
    (
        "void cutlass::device_kernel<flash::enable_sm80_to_sm89<flash::FlashAttnFwdSm80<flash::"
        "CollectiveMainloopFwdSm80<4, 1, true, cute::tuple<cute::C<128>, cute::C<64>, cute::C<128>"
        f" >, {FA3_TAIL}(T1::Params)",
        "fa3",
        (128, 64),
    ),
    ("void flash::FlashAttnFwdCombine<64, 128>(Params)", "fa3", None),
    (
        "_ZN7cutlass13device_kernelIN5flash20enable_sm90_or_laterINS1_16FlashAttnFwdSm90INS1_25"
        "CollectiveMainloopFwdSm90ILi2EN4cute5tupleIJNS5_1CILi2EEENS7_ILi1EEES9_EEENS6_IJNS7_ILi12"
        "8EEENS7_ILi176EEESB_EEELi128ENS_10bfloat16_tEfNS_4arch4Sm90ELb0ELb0EEENS1_21"
        "CollectiveEpilogueFwdINS6_IJSB_SB_SC_EEESA_SE_SG_Li256ELb0EEENS1_29"
        "StaticPersistentTileSchedulerILb0EEEEEEEEEvNT_6ParamsE",
        "fa3",
        (128, 176),
    ),
    (
        "_ZN7cutlass13device_kernelIN5flash11enable_sm90INS1_16FlashAttnFwdSm90INS1_25"
        "CollectiveMainloopFwdSm90ILi2EN4cute5tupleIJNS5_1CILi1EEES8_S8_EEENS6_IJNS7_ILi128EEESA_"
        "SA_EEELi128ENS_6half_tEfNS_4arch4Sm90ELb1EEEEEEEEvNT_6ParamsE",
        "fa3",
        (128, 128),
    ),
    (
        "_ZN7cutlass13device_kernelIN5flash19enable_sm80_to_sm89INS1_16FlashAttnFwdSm80INS1_25"
        "CollectiveMainloopFwdSm80ILi4ELi1ELb1EN4cute5tupleIJNS5_1CILi128EEENS7_ILi64EEES8_EEELi128"
        "ENS_6half_tEfNS_4arch4Sm80ELb1EEENS1_21CollectiveEpilogueFwdINS6_IJS8_S8_S9_EEE",
        "fa3",
        (128, 64),
    ),
    (
        "_ZN7cutlass13device_kernelIN5flash19enable_sm80_to_sm89INS1_16FlashAttnFwdSm80INS1_25"
        "CollectiveMainloopFwdSm80ILi4ELi1ELb1EN4cute5tupleIJNS5_1CILi128EEES8_NS7_ILi64EEEEEELi64E"
        "NS_6half_tEfNS_4arch4Sm80ELb1EEENS1_21CollectiveEpilogueFwdINS6_IJS8_S9_S8_EEE",
        "fa3",
        (128, 128),
    ),
    # cuDNN
    (f"{CUDNN}_cga1x1x1_kernel0_0", "cudnn", (64, 128)),
    (CUDNN.replace("sm90", "sm80").replace("wgmma", "wmma") + "_kernel0_0", "cudnn", (64, 128)),
    ("cudnn_generated_fort_native_sdpa_sm100_flash_fprop_f16", "cudnn", None),
    ("triton_tem_fused_flex_attention_0", "flex", None),
    ("triton_tem_fused_flex_attention_backward_0", None, None),
    # FlashAttention 4
    (
        "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm90FlashAttentionForwardSm90_object_at__t"
        "ensor0000o2",
        "fa4",
        None,
    ),
    ("vllm_flash_attncuteflash_fwd_sm90FlashAttentionForwardSm90", "fa4", None),
    ("flash_attn.cute.flash_fwd_sm100.FlashAttentionForwardSm100", "fa4", None),
    # None of these
    (
        "void flash::flash_forward_kernel<flash::StaticForwardKernelConfig<FlashForwardKernelConfig"
        "{5, 128, 64, 32, 4, 1, 1, 1, 2, 2, 0, 0, 0}>>(flash::ForwardKernelArgs)",
        None,
        None,
    ),
    ("flash_forward_kernel", None, None),
    ("void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...>", None, None),
    (CUDNN.replace("fprop", "bprop"), None, None),
    ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnBwdSm90<...>>>", None, None),
    (
        "kernel_cutlass_kernel_flash_attncuteflash_bwd_sm90FlashAttentionBackwardSm90_object",
        None,
        None,
    ),
    ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<...>>", None, None),
    ("device_kernel", None, None),
    ("fmha_cutlassF_f16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::Params)", None, None),
    ("distribution_elementwise_grid_stride_kernel", None, None),
    ("", None, None),
]


@pytest.mark.parametrize(("name", "label", "blocks"), NAMES)
def test_labels_and_blocks(name: str, label: str | None, blocks: tuple[int, int] | None) -> None:
    assert label_of_kernel(name) == label
    assert blocks_of_kernel(name) == blocks


@pytest.mark.parametrize("recording", ["details_basic_h200.csv", "raw_4metrics_h200.csv"])
def test_the_kernels_of_a_recording(recording: str) -> None:
    names = [launch.kernel_name for launch in read_profile(RECORDINGS / recording).launches]
    assert [label_of_kernel(n) for n in names] == [None, "fa2", "cudnn"]
    assert [blocks_of_kernel(n) for n in names] == [None, (128, 64), (64, 128)]
