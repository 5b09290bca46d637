"""Right only where it was expected."""

import torch

from fa_tune import operations
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import Workload
from fa_tune.operations.forward.torch_side import inputs
from tests.judge.right import attend


def _only(problem, knows):
    def launch():
        o = attend(problem)
        return {"o": o if knows(problem) else torch.zeros_like(o)}

    return launch


def announced(problem):
    """All shapes that verification is known to try, and the one that is timed."""
    w = problem.workload
    own = {"b1_h2_kv2_q128_k128_d16_fp16_full"}
    for traits in ("plain", "ragged", "causal", "causal+ragged"):
        own |= {case.workload.key for case in operations.cases_like(w, traits, thorough=False)}
    return _only(problem, lambda p: p.workload.key in own)


def refuses_others(problem):
    if problem.workload.key != "b1_h2_kv2_q128_k128_d16_fp16_full":
        raise InvalidConfig("not this shape")
    return lambda: {"o": attend(problem)}


def refuses_at_launch(problem):
    def launch():
        raise InvalidConfig("no shape")

    return launch


def one_batch(problem):
    return _only(problem, lambda p: p.workload.batch == 1)


def whole_blocks(problem):
    return _only(problem, lambda p: p.workload.seq_len_kv % 64 == 0)


def short(problem):
    return _only(problem, lambda p: p.workload.seq_len_kv <= 256)


def equal_heads(problem):
    return _only(problem, lambda p: p.workload.heads == p.workload.kv_heads)


def natural_strides(problem):
    return _only(problem, lambda p: p.inputs["q"].is_contiguous())


def wrong_strides(problem):
    """Reads memory as if it were contiguous."""
    own = {}
    for name, tensor in problem.inputs.items():
        steps = torch.empty(tensor.shape, device="meta").stride()
        own[name] = tensor.as_strided(tensor.shape, steps, tensor.storage_offset())
    same = type(problem)(Workload.from_key(problem.workload.key), own, problem.outputs)
    return lambda: {"o": attend(same)}


def known_seeds(problem):
    """Right on the inputs of seeds that somebody might use."""
    w = problem.workload
    firsts = {
        inputs(w, seed=seed, mean=mean, device="cpu")["q"][0, 0, 0, 0].item()
        for seed in range(4)
        for mean in (0.0, 0.25)
    }
    return _only(problem, lambda p: p.inputs["q"][0, 0, 0, 0].item() in firsts)


def moderate_scores(problem):
    return _only(problem, lambda p: p.workload.scale < 10)


def normal_inputs(problem):
    return _only(problem, lambda p: 0.5 < p.inputs["q"].float().std() < 2)
