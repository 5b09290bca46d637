"""Libraries compute the workload that they are measured on."""

from typing import Any

import pytest

from fa_tune.core.model import Outcome
from fa_tune.core.workload import Workload
from fa_tune.libraries.base import find
from fa_tune.workers.supervisor import run_items

DENSE = "b2_h8_kv2_q300_k433_d128_bf16_"
PACKED = (
    "b4_h8_kv2_q300_k433_d128_bf16_causal_packed_tq431_tk569_len300+1+0+130x433+5+1+130",
    "b4_h8_kv2_q300_k433_d128_bf16_full_packed_tq431_tk569_len300+1+0+130x433+5+1+130",
)
WINDOWS = (DENSE + "causal_br_left100", DENSE + "full_br_left50_right20")
DECODING = (
    "b3_h8_kv2_q1_k700_d128_bf16_full",
    "b3_h8_kv2_q1_k433_d128_bf16_full_cache433+1+200_page16",
    "b3_h8_kv2_q4_k433_d128_bf16_causal_br_cache433+5+200_page64",
)
CASES = {
    "fa2": (*WINDOWS, *PACKED, DENSE + "full_br_left50"),
    "flex": (*WINDOWS, DENSE + "causal", DENSE + "causal_softcap20.0", DENSE + "full_br_alibi"),
    "fa4": (
        *(*WINDOWS, *PACKED, DENSE + "causal", DENSE + "causal_br_left100_sink"),
        *(DENSE + "causal_br_softcap20.0", "b2_h8_kv8_q300_k300_d192_bf16_causal_dv128"),
    ),
    "cudnn-fe": (
        *(*WINDOWS, *PACKED, *DECODING, DENSE + "causal", DENSE + "full_br_left50"),
        "b2_h8_kv2_q300_k300_d128_bf16_causal_lse_left100_sink",
    ),
    "flashinfer": (
        *(*PACKED, *DECODING, WINDOWS[0], DENSE + "full_br_left50"),
        *(DENSE + "causal_br_softcap20.0", DENSE + "causal_br_left100_sink"),
    ),
}
MODULES = {"fa4": "flash_attn.cute", "cudnn-fe": "cudnn", "flashinfer": "flashinfer"}


@pytest.mark.gpu
@pytest.mark.parametrize("library", CASES)
def test_a_library_computes_the_workload(library: str) -> None:
    if library in MODULES and find(MODULES[library]) is None:
        pytest.skip(f"{library} is not installed")
    items: dict[str, dict[str, Any]] = {f"{library} {key}": {} for key in CASES[library]}
    found = run_items("tests.gpu.libraries_child:handle", {"device": 0}, items, item_timeout_s=600)
    said = {r.item: r.value if r.outcome is Outcome.OK else r.reason for r in found}
    wrong = {item: s for item, s in said.items() if not (isinstance(s, float) and s < 0.03)}
    assert not wrong
    assert said.keys() == items.keys()


def test_the_workloads_are_what_their_keys_say() -> None:
    assert all(Workload.from_key(key).key == key for keys in CASES.values() for key in keys)
