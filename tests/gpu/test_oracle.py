"""The GPU tests' judge passes what is right and finds what is wrong; needs no GPU."""

import pytest

from fa_tune.build.native.call import tensors_of
from fa_tune.core.model import Variant
from fa_tune.core.workload import Workload
from fa_tune.operations.base import Tensors

pytest.importorskip("torch", reason="torch is not installed: there is nothing to judge with")

import torch

from fa_tune.operations.forward.torch_side import expected
from tests.gpu.cases import LAYOUTS, Case
from tests.gpu.oracle import attention, check, inputs_for, room
from tests.gpu.tiled_kernel import FAULTS, TiledKernel
from tests.tensors import attention as definition

VARIANT = Variant("sm80", "any")
KEYS = (
    "b2_h4_kv2_q70_k70_d32_fp16_full_lse",
    "b1_h3_kv1_q37_k101_d32_bf16_causal_lse_scale0.5",
    "b2_h2_kv2_q37_k101_d64_fp16_causal_br_lse",
    "b1_h4_kv1_q101_k37_d32_fp16_causal_br_lse",
    "b1_h1_kv1_q2_k2_d32_bf16_causal",
)


def judged(key: str, layout: str, fault: str = "", *, strict: bool = False) -> list[str]:
    case = Case(VARIANT, Workload.from_key(key), layout, 5, strict)
    return check(case, TiledKernel(fault=fault), "cpu")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("key", KEYS)
def test_a_right_kernel_passes(key: str, layout: str) -> None:
    if layout == "packed" and "q70_k70" not in key and "q1_k1" not in key:
        layout = "strided"
    assert judged(key, layout) == []
    assert judged(key, layout, strict=True) == []


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("seed", [2, 3])
def test_scores_that_grow_are_summed_right_or_it_shows(key: str, seed: int) -> None:
    case = Case(VARIANT, Workload.from_key(key), "strided", seed)
    assert case.growth
    assert check(case, TiledKernel(), "cpu") == []
    found = check(case, TiledKernel(fault="never_rescales"), "cpu")
    if case.growth > 0:  # from the first key on, as that kernel goes
        assert bool(found) == (case.workload.seq_len_kv > TiledKernel().B_c)


def test_the_last_key_is_as_much_larger_as_asked() -> None:
    w = Workload.from_key(KEYS[1])
    for layout in ("plain", "transposed", "expanded"):
        even, grows = (inputs_for(w, layout, 1, "cpu", growth) for growth in (None, 8.0))
        assert torch.equal(even["q"], grows["q"])
        assert torch.equal(even["v"], grows["v"])
        assert torch.equal(even["k"][:, -1] * 8, grows["k"][:, -1])
        assert grows["k"][:, 0].abs().max() < even["k"][:, 0].abs().max()
        falls = inputs_for(w, layout, 1, "cpu", -8.0)
        assert torch.equal(even["k"][:, 0] * 8, falls["k"][:, 0])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_one_does_not(fault: str) -> None:
    found = [text for key in KEYS for text in judged(key, "strided", fault)]
    assert found
    wanted = {"writes_outside": "it wrote beside O", "lse_base_2": "log-sum-exp is off by"}
    assert any(wanted.get(fault, "exceeds") in text for text in found)
    assert all(text.startswith("sm80:any b") for text in found), "it says which case"
    assert all("strided seed 5: " in text for text in found)


def test_launches_that_differ_are_found() -> None:
    kernel, launches = TiledKernel(), iter(range(9))

    def fickle(w: Workload, inputs: Tensors, out: torch.Tensor, lse: torch.Tensor | None) -> None:
        kernel(w, inputs, out, lse)
        out[0, 0, 0, 0] *= 1 + next(launches) * 2**-9

    case = Case(VARIANT, Workload.from_key(KEYS[0]), "plain", 5)
    assert [t.partition(": ")[2] for t in check(case, fickle, "cpu")] == ["two launches differ"]


@pytest.mark.parametrize("key", KEYS)
def test_its_reference_is_the_products_which_is_torchs(key: str) -> None:
    w = Workload.from_key(key)
    given = inputs_for(w, "strided", 3, "cpu")
    exact, lse = attention(given, w, torch.float64)
    assert torch.allclose(exact, definition(given, w, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(lse, expected(w, given)["lse"].exact, atol=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_are_what_16_byte_copies_can_read(layout: str) -> None:
    w = Workload.from_key("b2_h4_kv2_q70_k70_d32_fp16_full")
    given = inputs_for(w, layout, 3, "cpu")
    for name, tensor in (("q", given["q"]), ("k", given["k"]), ("v", given["v"])):
        assert tensor.isfinite().all()
        assert tensors_of({name: tensor})
    contiguous = [t.is_contiguous() for t in (given["q"], given["k"], given["v"])]
    assert contiguous == {"plain": [True] * 3, "expanded": [True, False, False]}.get(
        layout, [False] * 3
    )
    again = inputs_for(w, layout, 3, "cpu")
    assert torch.equal(given["k"], again["k"])


@pytest.mark.parametrize("layout", ["plain", "strided", "transposed"])
def test_a_write_beside_the_tensor_shows(layout: str) -> None:
    made = room((2, 3, 4, 32), layout, torch.float16, "cpu")
    assert made.is_clean_outside()
    made.inside.fill_(1)
    assert made.is_clean_outside()
    outside = made.whole.isnan().nonzero()
    made.whole[tuple(outside[len(outside) // 2])] = 0
    assert not made.is_clean_outside()
    made.clear()
    assert made.whole.isnan().all()


def test_nan_is_no_small_error() -> None:
    case = Case(VARIANT, Workload.from_key(KEYS[0]), "plain", 5)
    found = check(case, TiledKernel(fault="forgets_a_row"), "cpu")
    assert any("error nan exceeds" in text for text in found)
