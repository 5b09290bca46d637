"""torch's SDPA, held to one back end or by the one that torch chooses."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from fa_tune.core.workload import BACKWARD, FORWARD
from fa_tune.libraries.base import BASIC, TORCH, Library
from fa_tune.libraries.flash import TOP_LEFT
from fa_tune.operations.base import Launch, Problem, Tensors

if TYPE_CHECKING:
    from torch.nn.attention.bias import CausalBias

REFUSALS = ("No available kernel", "No viable backend")  # however else its sentence goes


def call(library: Library, problem: Problem, backend: str = "") -> Launch:
    """A launch by the back end of that name in `SDPBackend`, or the one that torch chooses; with
    `workload.lse` it computes the log-sum-exp as well."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    workload, inputs = problem.workload, problem.inputs
    q, k, v = (inputs[name].transpose(1, 2) for name in "qkv")
    mask: CausalBias | None = None
    if workload.causal and workload.seq_len_q != workload.seq_len_kv:
        # is_causal is aligned top-left, which the libraries take for equal lengths alone.
        if workload.bottom_right:
            mask = _lower_right(library, problem)
        elif workload.seq_len_q > workload.seq_len_kv:
            raise library.refusal(TOP_LEFT)
        else:  # keys beyond the last query are hidden from all
            k, v = (t[:, :, : workload.seq_len_q] for t in (k, v))
    if workload.lse:  # which SDPA computes for the backward pass, and only for that
        q, k, v = (t.detach().requires_grad_() for t in (q, k, v))

    def run() -> Tensors:
        with sdpa_kernel(getattr(SDPBackend, backend)) if backend else nullcontext():
            out = scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask,
                is_causal=workload.causal and mask is None,
                scale=workload.softmax_scale,
                enable_gqa=workload.kv_heads != workload.heads,
            )
        return {"o": out.transpose(1, 2)}

    def launch() -> Tensors:
        try:
            return run()
        except RuntimeError as error:
            if not any(words in str(error) for words in REFUSALS):
                raise
        # torch gives its reasons as warnings, so the call is made once more to catch them.
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                return run()
            except RuntimeError:
                raise library.refusal(_reason(said)) from None

    return launch


def _lower_right(library: Library, problem: Problem) -> CausalBias:
    if library.name == "cudnn":
        raise library.refusal("no causal mask aligned bottom-right")
    # Loads half of torch's compiler: seconds, which no other workload should wait for.
    from torch.nn.attention.bias import causal_lower_right

    with warnings.catch_warnings():
        # of NaN in rows that see nothing; FlashAttention gives 0 there
        warnings.simplefilter("ignore")
        return causal_lower_right(problem.workload.seq_len_q, problem.workload.seq_len_kv)


def _reason(said: list[warnings.WarningMessage]) -> str:
    """What torch warned of beside the back ends that were not asked."""
    texts = [str(w.message).partition(" (Triggered internally")[0].strip() for w in said]
    own = [t for t in texts if not t.endswith((":", "because:")) and "runtime disabled" not in t]
    return own[0] if own else "it gives no reason"


def forward(problem: Problem) -> Launch:
    """A launch by the back end that torch chooses."""
    return call(LIBRARY, problem)


def backward(problem: Problem) -> Launch:
    """The backward pass of a forward pass that is done here, once, by itself.  Raises InvalidConfig
    where it is more than one operator, which autograd would run on a stream of its own."""
    inputs = {name: problem.inputs[name].detach().requires_grad_() for name in "qkv"}
    found = forward(Problem(replace(problem.workload, op=FORWARD), inputs, {}))()
    assert found is not None
    kept, do = found["o"], problem.inputs["do"].transpose(1, 2)
    node = kept.grad_fn.next_functions[0][0]  # before the transposition
    shapes = [t.transpose(1, 2).shape for t in inputs.values()]
    gradients = node(do)[:3] if node.name().startswith("ScaledDotProduct") else ()
    if [t.shape for t in gradients] != shapes:
        raise LIBRARY.refusal(f"its backward pass is not one operator: {node.name()}")

    def launch(_: object = kept) -> Tensors:
        dq, dk, dv = (t.transpose(1, 2) for t in node(do)[:3])
        return {"dq": dq, "dk": dk, "dv": dv}

    return launch


LIBRARY = Library(
    name="sdpa",
    label="SDPA",
    full_name="torch's SDPA",
    packages=(TORCH,),
    kernel_names=None,  # those of the back ends, whose libraries they are
    known=BASIC,
    calls={FORWARD: forward, BACKWARD: backward},
    place=6,
)
