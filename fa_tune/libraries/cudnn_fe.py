"""cuDNN by its Python front end (`nvidia-cudnn-frontend`): a graph of the problem, with the plans
that its heuristics propose; where CUTLASS's DSL is installed, those of its open kernels are among
them.  The first plans are timed on the problem's own tensors, and the fastest is launched.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

from fa_tune.core.errors import first_line
from fa_tune.core.workload import BACKWARD, FORWARD
from fa_tune.libraries.base import (
    BASIC,
    CACHE,
    PACKED,
    TORCH,
    WINDOW,
    Library,
    Package,
    sides,
)
from fa_tune.libraries.cudnn import version_of
from fa_tune.libraries.fastest import fastest
from fa_tune.libraries.flash import PACKAGE_REFUSALS
from fa_tune.operations.base import Launch, Problem, Tensors

if TYPE_CHECKING:
    import torch

MODULE = "cudnn"
MOST_PLANS = 8
_TYPES = {"float16": "HALF", "bfloat16": "BFLOAT16", "float32": "FLOAT"}


class _Graph:
    """A graph of one node, and the tensors of its operands."""

    def __init__(self, problem: Problem) -> None:
        self.front_end = LIBRARY.function(MODULE)
        self.workload, self.inputs = problem.workload, problem.inputs
        self.bound: dict[int, torch.Tensor] = {}
        types = self.front_end.data_type
        self.graph = self.front_end.pygraph(
            handle=_handle(),
            io_data_type=self._type_of(self.inputs["q"]),
            intermediate_data_type=types.FLOAT,
            compute_data_type=types.FLOAT,
        )

    def _type_of(self, tensor: torch.Tensor) -> Any:
        word = str(tensor.dtype).removeprefix("torch.")
        return getattr(self.front_end.data_type, _TYPES.get(word, word.upper()))

    def operand(self, tensor: torch.Tensor, output: Any = None) -> Any:
        """An input of that shape, which has four dimensions, or an output, which it is given to."""
        dim, stride, kind = list(tensor.shape), list(tensor.stride()), self._type_of(tensor)
        if output is None:
            output = self.graph.tensor(dim=dim, stride=stride, data_type=kind)
        else:
            output.set_output(True).set_dim(dim).set_stride(stride).set_data_type(kind)
        self.bound[output.get_uid()] = tensor
        return output

    def rows(self, tensor: torch.Tensor, side: str, output: Any = None) -> Any:
        """The same of queries (`q`) or keys (`kv`) [batch, rows, heads, d]: in a packed batch each
        sequence begins where its offset says."""
        turned, workload = tensor.transpose(1, 2), self.workload
        found = self.operand(turned, output)
        if workload.packed:
            longest = workload.seq_len_q if side == "q" else workload.seq_len_kv
            step = tensor.stride(1)
            found.set_dim([workload.batch, turned.shape[1], longest, turned.shape[3]])
            found.set_stride([longest * step, *turned.stride()[1:]])
            beginnings = self.inputs[f"cu_seqlens_{side}"].long() * step
            found.set_ragged_offset(self._column(beginnings))
        return found

    def _column(self, vector: torch.Tensor) -> Any:
        return self.operand(vector.view(-1, 1, 1, 1))

    def attention(self) -> dict[str, Any]:
        """What both passes are told of Q, K, V, the mask and the lengths."""
        w, inputs = self.workload, self.inputs
        alignment = self.front_end.diagonal_alignment
        left, right = sides(w)
        told: dict[str, Any] = {
            "q": self.rows(inputs["q"], "q"),
            "k": self.rows(inputs["k"], "kv"),
            "v": self.rows(inputs["v"], "kv"),
            "attn_scale": w.scale,
            "diagonal_alignment": (
                alignment.BOTTOM_RIGHT if w.bottom_right or w.uneven else alignment.TOP_LEFT
            ),
            # The left one counts the key on the diagonal, too.
            "diagonal_band_left_bound": None if left is None else left + 1,
            "diagonal_band_right_bound": right,
        }
        if w.packed:
            lengths = [inputs[f"cu_seqlens_{side}"].diff() for side in ("q", "kv")]
        elif w.cached:
            keys = inputs["cache_seqlens"]
            lengths = [keys.new_full((w.batch,), w.seq_len_q), keys]
        else:
            return told
        told["use_padding_mask"] = True
        told["seq_len_q"], told["seq_len_kv"] = map(self._column, lengths)
        if w.page_size:
            pages = self.operand(inputs["page_table"][:, None, :, None])
            told |= {f"paged_attention_{t}_table": pages for t in "kv"}
            told["paged_attention_max_seq_len_kv"] = w.seq_len_kv
        return told

    def launch(self, results: Tensors) -> Launch:
        """That of the fastest plan, which writes the results."""
        modes = self.front_end.heur_mode
        refusals = (self.front_end.cudnnGraphNotSupportedError, RuntimeError, *PACKAGE_REFUSALS)
        try:
            self.graph.validate()
            self.graph.build_operation_graph()
            self.graph.create_execution_plans([modes.A, modes.FALLBACK])
            self.graph.check_support()
        except refusals as error:
            raise LIBRARY.refusal(first_line(error)) from error
        plans = range(min(MOST_PLANS, self.graph.get_execution_plan_count()))
        return fastest(LIBRARY, (partial(self._plan, n, results) for n in plans), refusals)

    def _plan(self, index: int, results: Tensors) -> Launch:
        import torch

        self.graph.build_plan_at_index(index)
        size = self.graph.get_workspace_size_plan_at_index(index)
        q = self.inputs["q"]
        workspace = torch.empty(max(1, size), dtype=torch.uint8, device=q.device)
        handle = _handle()

        def launch() -> Tensors:
            stream = torch.cuda.current_stream().cuda_stream
            self.front_end.set_stream(handle, stream)
            self.graph.execute_plan_at_index(self.bound, workspace, index, handle)
            return results

        return launch


@cache
def _handle() -> Any:
    return LIBRARY.function(MODULE, "create_handle")()


def _backend_version() -> str:
    return version_of(LIBRARY.function(MODULE, "backend_version")())


def forward(problem: Problem) -> Launch:
    """A launch; with `workload.lse` it computes the log-sum-exp as well."""
    made, workload, q = _Graph(problem), problem.workload, problem.inputs["q"]
    told = made.attention()
    if workload.sink:
        told["sink_token"] = made.operand(problem.inputs["sink"].view(1, -1, 1, 1))
    o, lse = made.graph.sdpa(generate_stats=workload.lse, **told)
    out = q.new_empty(*q.shape[:3], workload.d_v)
    made.rows(out, "q", o)
    if workload.lse:
        batch, rows, heads, _ = q.shape
        if workload.packed:
            made.rows(q.new_empty(batch, rows, heads, 1).float(), "q", lse)
        else:
            made.operand(q.new_empty(batch, heads, rows, 1).float(), lse)
    return made.launch({"o": out})


def backward(problem: Problem) -> Launch:
    """A launch, by the log-sum-exp that is given, in which a sink is."""
    made, inputs = _Graph(problem), problem.inputs
    lse = inputs["lse"].unsqueeze(-1)
    given = {"o": made.rows(inputs["o"], "q"), "dO": made.rows(inputs["do"], "q")}
    given["stats"] = made.operand(lse.abs().where(lse.isinf(), lse))
    found = made.graph.sdpa_backward(**given, **made.attention())
    results = {f"d{name}": inputs[name].new_empty(inputs[name].shape) for name in "qkv"}
    for output, tensor in zip(found, results.values(), strict=True):
        made.operand(tensor.transpose(1, 2), output)
    return made.launch(results)


LIBRARY = Library(
    name="cudnn-fe",
    label="cuDNN FE",
    full_name="cuDNN's front end",
    packages=(
        TORCH,
        Package(
            "cudnn-fe",
            ("nvidia-cudnn-frontend",),
            MODULE,
            "pip install 'nvidia-cudnn-frontend>=1.32'",
        ),
        Package(
            "cudnn",
            ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
            loaded=_backend_version,
        ),
    ),
    kernel_names=None,  # those of cuDNN in torch
    known=BASIC | WINDOW | PACKED | CACHE | {"sink"},
    known_by={BACKWARD: BASIC | WINDOW | {"sink"}},
    calls={FORWARD: forward, BACKWARD: backward},
    place=7,
)
