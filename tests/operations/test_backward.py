"""The backward pass: its work and tensors by hand, and its gradients against autograd's."""

from dataclasses import replace

import pytest

from fa_tune import operations
from fa_tune.core.workload import Workload
from fa_tune.operations import flops
from fa_tune.operations.backward.spec import backward_of, forward_of
from fa_tune.operations.base import CheckCase, Problem
from fa_tune.operations.traits import Traits

pytest.importorskip("torch", reason="torch is not installed: there are no gradients")

import torch

from fa_tune.operations.forward.torch_side.scores import changed_scores, hidden_pairs
from fa_tune.operations.torch_side import judge, outputs_of, results_of, torch_side_of
from tests.gpu.score_hooks import WITH_DERIVATIVE
from tests.tensors import attention

KEY = "backward_b2_h6_kv{}_q{}_k{}_d{}_{}_{}"
GRADIENTS = ("dq", "dk", "dv")


def of_key(
    mask: str, *, kv_heads: int = 6, q: int = 37, k: int = 53, d: int = 32, dtype: str = "fp16"
) -> Workload:
    return Workload.from_key(KEY.format(kv_heads, q, k, d, dtype, mask))


def test_two_by_two_by_hand() -> None:
    # S = QK, dP = dO V, dV = P dO, dQ = dS K and dK = dS Q: five products of 2x2 matrices, each of
    # 8 multiplications and 8 additions.
    w = Workload.from_key("backward_b1_h1_kv1_q2_k2_d2_fp16_full")
    assert flops.matmul_flop(w) == 5 * 16
    # With V of four columns dP sums over four, and dV has four.
    assert flops.matmul_flop(replace(w, d_head_v=4)) == 3 * 16 + 2 * 32
    # Three pairs attend.
    causal = replace(w, causal=True)
    assert flops.matmul_flop(causal) == 5 * 12
    assert flops.total_flop(causal, 1, 1) * 4 > flops.total_flop(w, 1, 1) * 3
    assert flops.total_flop(causal, 2, 2) == flops.total_flop(w, 2, 2)


def test_the_work_that_is_quoted() -> None:
    w = Workload.from_key("backward_b4_h16_kv2_q8192_k8192_d128_bf16_full")
    assert flops.matmul_flop(w) == 4 * 16 * 10 * 8192**2 * 128
    assert 2 * flops.matmul_flop(w) == 5 * flops.matmul_flop(forward_of(w))


def test_it_takes_what_the_forward_pass_gives_and_makes_three_gradients() -> None:
    w = replace(of_key("causal", kv_heads=2, d=64), sink=True, d_head_v=32)
    specs = {spec.name: spec for spec in operations.get("backward").tensors(w)}
    inputs = {name: spec.shape for name, spec in specs.items() if not spec.output}
    assert inputs == {
        "q": (2, 37, 6, 64),
        "k": (2, 53, 2, 64),
        "v": (2, 53, 2, 32),
        "o": (2, 37, 6, 32),
        "do": (2, 37, 6, 32),
        "lse": (2, 6, 37),
        "sink": (6,),
    }
    outputs = {name: spec.shape for name, spec in specs.items() if spec.output}
    assert outputs == {"dq": inputs["q"], "dk": inputs["k"], "dv": inputs["v"]}
    assert {specs[name].dtype for name in outputs} == {w.dtype.element}


def test_the_log_sum_exp_may_have_a_gradient() -> None:
    w = replace(of_key("causal"), lse=True)
    specs = {spec.name: spec for spec in operations.get("backward").tensors(w)}
    assert (specs["dlse"].shape, specs["dlse"].output) == ((2, 6, 37), False)
    assert "dlse" not in {
        spec.name for spec in operations.get("backward").tensors(of_key("causal"))
    }


def test_a_pass_and_the_one_it_belongs_to() -> None:
    w = of_key("causal")
    assert forward_of(w).key == "b2_h6_kv6_q37_k53_d32_fp16_causal_lse"
    assert backward_of(forward_of(w)) == w


def test_few_queries_are_no_decoding() -> None:
    w = of_key("full", q=1)
    assert forward_of(w).decode_shape
    assert not w.decode_shape


def test_cases_are_backward_passes_each_once() -> None:
    found = operations.get("backward").verification_cases(
        (64, 128), 64, of_key("full").dtype, Traits.parse("causal+ragged")
    )
    assert {case.workload.op for case in found} == {"backward"}
    assert not any(case.workload.lse for case in found)
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("traits", ["causal", "packed"])
def test_cases_have_the_head_dimension_of_v(traits: str) -> None:
    found = operations.get("backward").verification_cases(
        (64, 128), 192, of_key("full").dtype, Traits.parse(traits), d_head_v=128
    )
    assert {case.workload.d_v for case in found} == {128}


def autograd(
    w: Workload, given: dict[str, torch.Tensor], first: int = 0
) -> dict[str, torch.Tensor]:
    """By autograd through attention in fp64, of a packed batch sequence by sequence; hooks count
    elements from `first` on."""
    if w.packed:
        whole = {name: torch.zeros_like(given[name[1:]]).double() for name in GRADIENTS}
        q_end = kv_end = 0
        for number, (q, kv) in enumerate(w.members):
            q_end, kv_end = q_end + q, kv_end + kv
            if not (q and kv):
                continue
            rows, keys = slice(q_end - q, q_end), slice(kv_end - kv, kv_end)
            own = given | {name: given[name][:, rows] for name in ("q", "do")}
            own |= {name: given[name][:, keys] for name in ("k", "v")}
            if w.lse:
                own["dlse"] = given["dlse"][..., rows]
            if w.alibi:
                own["alibi_slopes"] = given["alibi_slopes"][number : number + 1]
            for name, found in autograd(w.dense(1, q, kv), own, number).items():
                whole[name][:, rows if name == "dq" else keys] = found
        return whole
    leaves = {name: given[name].detach().double().requires_grad_() for name in "qkv"}
    group = w.heads // w.kv_heads
    k, v = (leaves[name].repeat_interleave(group, 2) for name in "kv")
    scores = torch.einsum("bqhd,bkhd->bhqk", leaves["q"], k) * w.scale
    slopes = given["alibi_slopes"][..., None, None] if w.alibi else None
    places = torch.arange(w.batch).view(-1, 1, 1, 1), torch.arange(w.heads)[:, None, None]
    scores = changed_scores(scores, w, slopes, of=(places[0] + first, places[1]))
    hidden = hidden_pairs(w, scores.device)
    if hidden is None:
        hidden = torch.zeros(scores.shape[-2:], dtype=torch.bool)
    if w.sink:
        sink = given["sink"].double()[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, sink), -1)
        hidden = torch.nn.functional.pad(hidden, (0, 1), value=False)
    blind = hidden.all(-1, keepdim=True)
    seen = scores.masked_fill(hidden & ~blind, -torch.inf)
    weights = seen.softmax(-1).masked_fill(blind | hidden, 0.0)[..., : w.seq_len_kv]
    out = torch.einsum("bhqk,bkhd->bqhd", weights, v)
    results, slopes_of = [out], [given["do"].double()]
    if w.lse:
        results.append(seen.masked_fill(blind, 0.0).logsumexp(-1))
        slopes_of.append(given["dlse"].double().masked_fill(blind[..., 0], 0.0))
    found = torch.autograd.grad(results, list(leaves.values()), slopes_of)
    return dict(zip(GRADIENTS, found, strict=True))


WORKLOADS = (
    of_key("full"),
    of_key("causal"),
    of_key("causal_br", kv_heads=2),
    of_key("causal_br", q=53, k=37, dtype="bf16"),  # some queries see no key
    of_key("full_left9_right4", kv_heads=1),
    of_key("causal_left9_sink", kv_heads=3, dtype="bf16"),
    of_key("full_scale0.5", q=1),
    of_key("full_dv64"),
    replace(of_key("causal"), batch=5, lengths="9+0+40+1+30x20+7+40+0+3"),
    replace(of_key("full_left9_sink", kv_heads=2), batch=3, lengths="20+33+5"),
    of_key("causal_br_sink_softcap5", kv_heads=2),
    of_key("full_softcap2_alibi", dtype="bf16"),
    of_key("causal_br_lse_sink", q=53, k=37),
    replace(of_key("causal_lse_alibi"), batch=3, lengths="20+33+5x9+40+5"),
    replace(of_key("causal_br_lse", kv_heads=2), score_hook=WITH_DERIVATIVE),
    replace(of_key("full_left9"), batch=3, lengths="20+33+5x9+0+5", score_hook=WITH_DERIVATIVE),
)


@pytest.mark.parametrize("w", WORKLOADS, ids=lambda w: w.key)
def test_what_must_come_out_is_what_autograd_gives(w: Workload) -> None:
    side = torch_side_of(w)
    given = dict(side.inputs(w, seed=5, mean=0.25, extra_heads=1, device="cpu"))
    wanted, found = autograd(w, given), side.expected(w, given)
    for name, gradient in wanted.items():
        assert torch.allclose(found[name].exact, gradient, rtol=1e-9, atol=1e-11), name
    rounded = {name: gradient.to(given["q"].dtype) for name, gradient in wanted.items()}
    assert judge(CheckCase(w), found, rounded).ok


def test_inputs_are_those_of_one_forward_pass() -> None:
    w = of_key("causal_br", kv_heads=2)
    given = torch_side_of(w).inputs(w, seed=5, device="cpu")
    out = attention(given, w, dtype=torch.float64).double()
    assert torch.allclose(given["o"].double(), out, atol=2e-3)
    assert given["do"].stride() == given["o"].stride()


FAULTS = {
    "a row of dQ twice": ("dq", lambda t: t[:, 3].mul_(2)),
    "a key of dK lost": ("dk", lambda t: t[:, 7].zero_()),
    "dV without its last bit": ("dv", lambda t: t.mul_(1.004)),
    "a head of dV that was not written": ("dv", lambda t: t[:, :, 1].fill_(float("nan"))),
    "dQ that has no scale": ("dq", lambda t: t.mul_(32**0.5)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_one_wrong_gradient_of_three_is_refused(fault: str) -> None:
    """The other two are right, and the figures are those of the wrong one."""
    w = of_key("causal", kv_heads=2, q=192, k=192, d=64)
    side = torch_side_of(w)
    given = side.inputs(w, seed=5, device="cpu")
    expected = side.expected(w, given)
    outputs = outputs_of(w, device="cpu")
    for name, judged in expected.items():
        outputs[name].copy_(judged.exact)
    right = judge(CheckCase(w), expected, outputs)
    assert right.ok
    name, damage = FAULTS[fault]
    damage(outputs[name])
    wrong = judge(CheckCase(w), expected, outputs)
    assert not wrong.ok
    alone = judge(CheckCase(w), expected, {name: outputs[name]})
    assert (wrong.limit, repr(wrong.max_abs_error)) == (alone.limit, repr(alone.max_abs_error))


def test_results_that_are_given_join_those_that_are_written() -> None:
    w = of_key("full")
    outputs = outputs_of(w, fill=0.0, device="cpu")
    dq = torch.ones_like(outputs["dq"])
    found = results_of(Problem(w, {}, outputs), lambda: {"dq": dq})
    assert set(found) == set(GRADIENTS)
    assert bool(found["dq"].eq(1).all())
    assert not found["dk"].any()
    with pytest.raises(ValueError, match="dk"):
        results_of(Problem(w, {}, outputs), lambda: {"dk": dq})
