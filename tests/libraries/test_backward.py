"""Libraries compute the backward pass of the same problem as ours, or refuse in one line."""

import sys
from types import ModuleType
from typing import Any

import pytest

from fa_tune import libraries
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import Workload
from fa_tune.operations.base import CheckCase, Problem

pytest.importorskip("torch", reason="torch is not installed: nobody computes anything")

import torch

from fa_tune.operations.backward.torch_side import expected, inputs
from fa_tune.operations.torch_side import judge, outputs_of, results_of

EQUAL = "backward_b2_h6_kv6_q37_k37_d32_fp16_"
GROUPS = "backward_b2_h6_kv2_q37_k37_d32_fp16_"
FEWER_QUERIES = "backward_b2_h6_kv2_q37_k53_d32_fp16_"
MORE_QUERIES = "backward_b2_h6_kv6_q53_k37_d32_fp16_"
FLASH = ("fa2", "fa3", "fa4")


def by_hand(
    do: torch.Tensor,
    *given: torch.Tensor,
    scale: float | None,
    causal: bool,
    sides: tuple[int | None, int | None] = (None, None),
) -> tuple[torch.Tensor, ...]:
    """Gradients [batch, seq, heads, d_head] of Q, K and V by a log-sum-exp [batch, heads, seq],
    masks aligned bottom-right; groups are those of K and V.  The output is not read."""
    group = given[0].shape[2] // given[1].shape[2]
    q, k, v = (t.detach().double().requires_grad_() for t in given[:3])
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k.repeat_interleave(group, 2))
    scores = scores * (q.shape[-1] ** -0.5 if scale is None else scale)
    n_q, n_kv = scores.shape[-2:]
    place = torch.arange(n_kv)[None, :] - torch.arange(n_q)[:, None] - (n_kv - n_q)
    left, right = (None if n is None or n < 0 else n for n in sides)
    right = 0 if causal else right
    hidden = torch.zeros_like(place, dtype=torch.bool)
    hidden |= False if right is None else place > right
    hidden |= False if left is None else place < -left
    scores = scores.masked_fill(hidden, -torch.inf)
    lse = given[4].double()[..., None]
    assert not lse.isneginf().any(), "which the libraries' kernels do not take"
    weights = (scores - lse).exp()
    # What a sink takes is in the log-sum-exp, and so a constant part of the sum.
    mean = (given[3].double() * do.double()).sum(-1).transpose(1, 2)[..., None].detach()
    slopes = torch.einsum("bqhd,bkhd->bhqk", do.double(), v.repeat_interleave(group, 2))
    changes = (weights * (slopes - mean)).detach()
    out = torch.einsum("bhqk,bkhd->bqhd", weights.detach(), v.repeat_interleave(group, 2))
    finite = scores.masked_fill(hidden, 0.0)
    found = torch.autograd.grad((finite * changes).sum() + (out * do.double()).sum(), (q, k, v))
    return tuple(t.to(do.dtype) for t in found)


def aten_flash(*given: Any, scale: Any, window_size_left: Any, window_size_right: Any) -> Any:
    do, q, k, v, o, lse, cum_q, cum_kv, longest_q, longest_kv, dropout, causal, _, _ = given
    assert (cum_q, cum_kv, dropout) == (None, None, 0.0)
    assert (longest_q, longest_kv) == (q.shape[1], k.shape[1])
    sides = (window_size_left, window_size_right)
    return by_hand(do, q, k, v, o, lse, scale=scale, causal=causal, sides=sides)


def aten_cudnn(*given: Any, scale: Any) -> Any:
    *tensors, lse, _, _, bias, cum_q, cum_kv, _q, _kv, dropout, causal = given
    assert (bias, cum_q, cum_kv, dropout) == (None, None, None, 0.0)
    assert tensors[1].shape[1] == tensors[2].shape[1], "a head of K for each of Q"
    assert lse.shape[-1] == 1
    turned = (t.transpose(1, 2) for t in tensors)
    found = by_hand(*turned, lse[..., 0], scale=scale, causal=causal)
    return tuple(t.transpose(1, 2) for t in found)


def flash3(*given: Any, window_size_left: int = -1, window_size_right: int = -1) -> Any:
    *tensors, dq, dk, dv, scale, causal = given
    assert tensors[6:] == [None] * 6
    sides = (window_size_left, window_size_right)
    found = by_hand(*tensors[:6], scale=scale, causal=causal, sides=sides)
    for room, gradient in zip((dq, dk, dv), found, strict=True):
        room.copy_(gradient)


def flash4(q: Any, k: Any, v: Any, o: Any, do: Any, lse: Any, **given: Any) -> Any:
    sides = (given.get("window_size_left"), given.get("window_size_right"))
    scale, causal = given["softmax_scale"], given["causal"]
    return by_hand(do, q, k, v, o, lse, scale=scale, causal=causal, sides=sides)


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries that compute by hand, with the parameters of the real ones."""
    names = ("flash_attn_interface", "flash_attn", "flash_attn.cute", "flash_attn.cute.interface")
    modules = {name: ModuleType(name) for name in names}
    modules[names[0]]._flash_attn_backward = flash3  # type: ignore[attr-defined]
    modules[names[3]]._flash_attn_bwd = flash4  # type: ignore[attr-defined]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    aten = torch.ops.aten
    monkeypatch.setattr(aten, "_flash_attention_backward", aten_flash)
    name = "_scaled_dot_product_cudnn_attention_backward"
    monkeypatch.setattr(aten, name, aten_cudnn)


def problem_of(key: str) -> Problem:
    workload = Workload.from_key(key)
    given = inputs(workload, seed=3, device="cpu")
    return Problem(workload, given, outputs_of(workload, fill=float("nan"), device="cpu"))


@pytest.mark.parametrize(
    ("key", "names"),
    [
        (EQUAL + "full", (*FLASH, "cudnn", "sdpa")),
        (EQUAL + "causal_scale0.3", (*FLASH, "cudnn", "sdpa")),
        (GROUPS + "causal_sink", (*FLASH, "cudnn")),
        (GROUPS + "causal_left5", FLASH),
        (EQUAL + "full_left5_right3", FLASH),
        (FEWER_QUERIES + "full", (*FLASH, "cudnn")),
        (FEWER_QUERIES + "causal_br", FLASH),
        (MORE_QUERIES + "causal_br", FLASH),  # some queries see no key
    ],
)
def test_its_gradients_are_right(key: str, names: tuple[str, ...]) -> None:
    problem = problem_of(key)
    wanted = expected(problem.workload, problem.inputs)
    for name in names:
        found = results_of(problem, libraries.get(name).bind(problem))
        judged = judge(CheckCase(problem.workload), wanted, found)
        assert judged.ok, (name, judged)


def test_a_second_launch_gives_the_same() -> None:
    """SDPA's graph is kept for the next launch."""
    problem = problem_of(EQUAL + "causal")
    launch = libraries.get("sdpa").bind(problem)
    first, second = (results_of(problem, launch) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in ("dq", "dk", "dv"))


@pytest.mark.parametrize(
    ("name", "key", "why"),
    [
        ("cudnn", EQUAL + "causal_left5", "window_left"),
        ("cudnn", FEWER_QUERIES + "causal_br", "lengths that differ"),
        ("sdpa", EQUAL + "full_sink", "sink"),
        ("fa2", EQUAL + "full_softcap30.0", "softcap"),
        ("fa2", EQUAL + "full_dv64", "head dimension of V"),
        ("fa3", FEWER_QUERIES + "causal", "hides from all queries"),
        ("fa4", MORE_QUERIES + "causal", "aligned top-left"),
        ("flex", EQUAL + "full", "backward pass"),
        ("read", EQUAL + "full", "backward pass"),
    ],
)
def test_what_it_does_not_compute_is_refused_in_a_sentence(name: str, key: str, why: str) -> None:
    problem = problem_of(key)
    with pytest.raises(InvalidConfig, match=why) as caught:
        libraries.get(name).bind(problem)
    assert "\n" not in str(caught.value)


def test_what_a_package_refuses_is_its_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def earlier(*_: Any, window_size: Any = (-1, -1)) -> None:
        raise AssertionError("unreachable")

    module = sys.modules["flash_attn_interface"]
    monkeypatch.setattr(module, "_flash_attn_backward", earlier)
    problem = problem_of(EQUAL + "causal_left5")
    with pytest.raises(InvalidConfig, match="FlashAttention 3 does not take this workload"):
        libraries.get("fa3").bind(problem)()


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<…>(…)", "fa2"),
        ("flash_bwd_dot_do_o_kernel", "fa2"),
        ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnBwdSm90<…>>>", "fa3"),
        ("kernel_cutlass_kernel_flash_attncuteflash_bwd_sm90FlashAttentionBackwardSm90_x", "fa4"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_7", "cudnn"),
        ("flash_fwd_kernel", None),
        ("vectorized_elementwise_kernel", None),
    ],
)
def test_backward_kernels_are_told_by_their_names(kernel: str, name: str | None) -> None:
    assert libraries.label_of_kernel(kernel, "backward") == name
    if name is not None:
        assert libraries.label_of_kernel(kernel) is None, "no forward kernel"
