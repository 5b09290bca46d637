"""FlashAttention 3: the module `flash_attn_interface`, of PyTorch's wheel `flash-attn-3` or built
from the `hopper` folder of its project."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from fa_tune.core.workload import BACKWARD, FORWARD, Workload
from fa_tune.libraries import flash
from fa_tune.libraries.base import BASIC, TORCH, WINDOW, Attend, Library, Package, sides
from fa_tune.operations.base import Launch, Problem, Tensors

if TYPE_CHECKING:
    import torch

MODULE = "flash_attn_interface"

# cutlass::device_kernel<flash::enable_sm90[_or_later]<flash::FlashAttnFwdSm90<
# CollectiveMainloopFwdSm90<stages, cluster, tuple<C<B_r>, C<B_c>, C<d_head>>, …>>>, and a form for
# sm80 to sm89 whose mainloop has no cluster: <warps, stages, Q in registers, tuple<…>, …>.
_INT = r"(?:\((?:unsigned )?int\))?{}[uU]?"
_C = rf"(?:cute::)?C<\s*{_INT}\s*>"
_TUPLE = rf"(?:cute::)?tuple<\s*{_C}\s*,\s*{_C}\s*,\s*{_C}\s*>"
_N = r"\d+"
_CLUSTER = _TUPLE.format(_N, _N, _N)
_TILE = _TUPLE.format(r"(?P<rows>\d+)", r"(?P<keys>\d+)", _N)
# The same, mangled: each tuple opens with IJ, and the cluster's comes first.  A number that
# occurred before is written as a substitution (SA_); of B_r and B_c only B_c can be one, since
# the cluster's numbers are 1 and 2, and then it equals B_r.
_MANGLED = r"NS[0-9A-Z]*_(?:1C)?ILi(?P<{}>\d+)EEE?"
_MANGLED_TILE = rf"IJ{_MANGLED.format('rows')}(?:{_MANGLED.format('keys')}|S[0-9A-Z]*_)"


def forward(problem: Problem) -> Launch:
    """A launch, which always computes the log-sum-exp."""
    more: dict[str, Any] = {}
    if problem.workload.windowed:
        more["window_size"] = tuple(-1 if n is None else n for n in sides(problem.workload))
    attend = LIBRARY.function(MODULE, "flash_attn_func")
    return flash.call(LIBRARY, problem, attend, **more)


def attends(workload: Workload) -> Attend:
    """The function, told of a workload."""
    compute = LIBRARY.function(MODULE, "flash_attn_func")
    more: dict[str, Any] = {"causal": workload.causal}
    if workload.windowed:
        more["window_size"] = tuple(-1 if n is None else n for n in sides(workload))
    if workload.softcap is not None:
        more["softcap"] = workload.softcap

    def attend(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        found = compute(q, k, v, softmax_scale=scale, **more)
        out: torch.Tensor = found[0] if isinstance(found, tuple) else found
        return out

    return attend


def backward(problem: Problem) -> Launch:
    """A launch, by the log-sum-exp that is given, in which a sink is."""
    import torch

    workload = problem.workload
    done, _ = flash.forward_pass(LIBRARY, problem)
    more: dict[str, Any] = {}
    if workload.windowed:
        left, right = (-1 if n is None else n for n in sides(workload))
        more |= {"window_size_left": left, "window_size_right": right}
    if workload.softcap is not None:
        more["softcap"] = workload.softcap
    compute = LIBRARY.function(MODULE, "_flash_attn_backward")
    no_lengths = (None,) * 6

    def launch() -> Tensors:
        found = [torch.empty_like(t) for t in (done.q, done.k, done.v)]
        with flash.refusing(LIBRARY):
            # The name of the mask's argument is not that of earlier releases.
            compute(*done, *no_lengths, *found, workload.scale, workload.causal, **more)
        return flash.gradients(problem, found)

    return launch


LIBRARY = Library(
    name="fa3",
    label="FA3",
    full_name="FlashAttention 3",
    packages=(
        TORCH,
        Package(
            "fa3",
            ("flash_attn_3", "flash_attn_interface"),
            MODULE,
            "install PyTorch's wheel flash-attn-3, or build it from the hopper folder of the "
            "flash-attention project",
        ),
    ),
    kernel_names=re.compile(r"FlashAttnFwd(?:Sm\d+|Combine)|CollectiveMainloopFwdSm\d+"),
    backward_names=re.compile(r"FlashAttnBwd|CollectiveMainloopBwdSm\d+"),
    tiles=(
        re.compile(
            rf"CollectiveMainloopFwdSm90<\s*{_INT.format(_N)}\s*,\s*{_CLUSTER}\s*,\s*{_TILE}"
        ),
        re.compile(rf"CollectiveMainloopFwdSm80<[^<>]*?,\s*{_TILE}"),
        re.compile(rf"CollectiveMainloopFwdSm90ILi[^J]*IJ[^J]*{_MANGLED_TILE}"),
        re.compile(rf"CollectiveMainloopFwdSm80ILi[^J]*{_MANGLED_TILE}"),
    ),
    known=BASIC | WINDOW | {"softcap"},
    known_by={BACKWARD: BASIC | WINDOW | {"softcap", "sink"}},
    calls={FORWARD: forward, BACKWARD: backward},
    attends=attends,
    place=2,
)
