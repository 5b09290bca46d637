"""What is refused, as pure functions of what was observed."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Collection, Mapping, Sequence

from fa_tune import libraries
from fa_tune.core.judged import Timing
from fa_tune.core.model import CaseError
from fa_tune.core.roofline import ROOFS
from fa_tune.core.workload import Workload
from fa_tune.operations.flops import matmul_flop, read_bytes
from fa_tune.operations.verification import fault

Found = tuple[str, str]  # a word for the kind, and a sentence

# Operators that are a library's attention, whichever kernel they take.
_ATTENTION = re.compile(
    r"scaled_dot_product|_attention_(forward|math)|_mha|flex_attention|^(fa_tune|flash_attn|"
    r"flashinfer|xformers|vllm|sgl_kernel)\w*::"
)
# What a kernel of one's own has no need of torch for.
_PRODUCTS = re.compile(
    r"aten::(_?(log_)?softmax|_?safe_softmax|\w*mm|matmul|einsum|linear|tensordot|mv|dot|vdot|"
    r"inner|exp2?_?|logsumexp|cumsum)\b"
)
AGAIN = 0.6  # of the time with new contents: what is quicker than this was kept
REPEATED = 0.1  # of the time of a single launch, which finds nothing in L2
OF_OUTSIDE = 0.75  # of the time by the judge's clock that the events must show
OUTSIDE_SLACK_S = 0.05
FASTER_THAN_PEAK = 0.95  # of the least time; makers state peaks at one clock


def wrong(error: CaseError, digests: Sequence[str], now: str) -> Found:
    """What a wrong result is, given the digests of the results of calls before with other
    contents."""
    where = f"{error.workload} ({error.inputs})"
    if math.isnan(error.max_abs_error):
        return "unwritten", f"{fault(error)}, on {where}"
    if now in digests:
        return "kept", f"the result is that of an earlier call with other inputs, on {where}"
    return "wrong", f"{fault(error)}, on {where}"


def borrowed(claim: str, ran: Collection[str], own: str) -> Found | None:
    """What a target that claims to be a formulation in torch, or a kernel, leaves to others; `own`
    is the name of its kernel."""
    others = [name for name in ran if not own or own not in name]
    if claim != "library":
        for name in others:
            if _ATTENTION.search(name) or libraries.label_of_kernel(name):
                return "library", f"attention is computed by {name}; --claim library says so"
    if claim == "kernel":
        for name in others:
            if _PRODUCTS.search(name):
                return "library", f"{name} computes for it; --claim torch says so"
    return None


def remembered(first: Mapping[str, int], again: Mapping[str, int]) -> Found | None:
    """Whether a call with the same contents did something else than the one before."""
    if first == again:
        return None
    names = [n for n in {**first, **again} if first.get(n, 0) != again.get(n, 0)]
    what = f"{names[0]} {first.get(names[0], 0)} and {again.get(names[0], 0)} times"
    return "kept", f"the same contents again, and it ran {what}: results are kept by contents"


def timed(timing: Timing) -> list[Found]:
    """What is wrong with times."""
    found: list[Found] = []
    fresh, again = statistics.median(timing.samples_s), statistics.median(timing.again_s)
    if not min(timing.samples_s) > 0:
        found.append(("timer", f"a call took {min(timing.samples_s):g} s"))
    if timing.inside_s < OF_OUTSIDE * timing.outside_s - OUTSIDE_SLACK_S:
        found.append(
            (
                "timer",
                f"many launches took {timing.outside_s:.3g} s by the judge's clock, and "
                f"{timing.inside_s:.3g} s by the clock in the target's process",
            )
        )
    if timing.outside_s < REPEATED * timing.repeats * fresh:
        found.append(("kept", "launches repeated on the same inputs take next to no time"))
    if again < AGAIN * fresh and min(timing.again_s) < AGAIN * min(timing.samples_s):
        share = f"{again / fresh:.2f} of the time" if fresh else "no time"
        found.append(("kept", f"the same contents again take {share}: results are kept"))
    if timing.least_s is not None and fresh < FASTER_THAN_PEAK * timing.least_s:
        found.append(
            (
                "timer",
                f"{fresh:.3g} s are less than the {timing.least_s:.3g} s that this GPU needs at "
                "its peak rates: work was left out or not timed",
            )
        )
    return found


def least_seconds(workload: Workload, gpu: str) -> float | None:
    """What a GPU needs at its peak rates, with a cold L2; None for one that is not known."""
    if (roof := ROOFS.get(gpu)) is None:
        return None
    products = matmul_flop(workload) / (roof.tflops * 1e12)
    return max(products, read_bytes(workload) / roof.bytes_per_s)
