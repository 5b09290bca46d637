"""cuDNN's front end and FlashInfer are told of the same problem as everybody, or refuse it.

Stand-ins with the parameters of the real packages compute what they are told by hand: from the
shapes, strides and beginnings of a graph's tensors, from the pages of a plan.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fa_tune import libraries
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import Workload
from fa_tune.libraries import cudnn_fe, fastest
from fa_tune.operations.base import CheckCase, Problem

pytest.importorskip("torch", reason="torch is not installed: nobody computes anything")

import torch

from fa_tune.operations.torch_side import judge, outputs_of, results_of, torch_side_of
from tests.libraries.test_backward import by_hand as gradients

NAMES = ("cudnn-fe", "flashinfer")
DENSE = "b2_h6_kv2_q37_k53_d32_fp16_"
EQUAL = "b2_h6_kv6_q80_k80_d32_fp16_"
ONE_QUERY = "b3_h6_kv2_q1_k53_d32_fp16_full"
CACHE = "b3_h6_kv2_q5_k48_d32_fp16_causal_br_cache48+7+33"
PACKED = "b3_h6_kv2_q9_k7_d32_fp16_causal_packed_tq14_tk16_len5+0+9x7+2+7"


def by_hand(q: Any, k: Any, v: Any, scale: float, left: int, right: int | None, sink: Any) -> Any:
    """O [heads, rows, d] of one sequence, whose query i sees keys i + left to i + right."""
    group = q.shape[0] // k.shape[0]
    scores = q.double() @ k.double().repeat_interleave(group, 0).transpose(1, 2) * scale
    place = torch.arange(k.shape[1])[None] - torch.arange(q.shape[1])[:, None]
    hidden = place < left
    if right is not None:
        hidden |= place > right
    scores = scores.masked_fill(hidden, -torch.inf)
    if sink is not None:
        scores = torch.cat((scores, sink.double()[:, None, None].expand(-1, q.shape[1], 1)), -1)
    weights = scores.softmax(-1).nan_to_num(0.0)[..., : k.shape[1]]
    return weights @ v.double().repeat_interleave(group, 0)


FAR = 1 << 20


class Tensor:
    """An operand of a graph: what is declared of it."""

    numbers = iter(range(1, 1 << 30))

    def __init__(self, dim: Any = None, stride: Any = None, data_type: Any = None) -> None:
        self.dim, self.stride, self.data_type = dim, stride, data_type
        self.number, self.offsets, self.output = next(self.numbers), None, False

    def get_uid(self) -> int:
        return self.number

    def set_output(self, output: bool) -> Tensor:
        self.output = output
        return self

    def set_dim(self, dim: Any) -> Tensor:
        self.dim = dim
        return self

    def set_stride(self, stride: Any) -> Tensor:
        self.stride = stride
        return self

    def set_data_type(self, data_type: Any) -> Tensor:
        self.data_type = data_type
        return self

    def set_ragged_offset(self, offsets: Tensor) -> Tensor:
        self.offsets = offsets
        return self

    def of(self, bound: Any, sequence: int, rows: int | None = None) -> torch.Tensor:
        """[heads, rows, d] of a sequence, by what is declared alone."""
        base = bound[self.number]
        start = sequence * self.stride[0]
        if self.offsets is not None:
            start = int(bound[self.offsets.number].flatten()[sequence])
        heads, longest, d = self.dim[1:]
        shape = (heads, longest if rows is None else rows, d)
        return base.as_strided(shape, self.stride[1:], base.storage_offset() + start)


class NotSupported(Exception):
    """As the front end's."""


class Graph:
    """A graph of one node.  Its second plan is the fastest, the third cannot be built."""

    def __init__(self, *, handle: Any, io_data_type: Any, **types: Any) -> None:
        assert types == {"intermediate_data_type": "FLOAT", "compute_data_type": "FLOAT"}
        self.done: list[str] = []

    def tensor(self, *, dim: Any, stride: Any, data_type: Any) -> Tensor:
        return Tensor(dim, stride, data_type)

    def sdpa(self, *, generate_stats: bool, **node: Any) -> tuple[Tensor, Tensor | None]:
        self.node, self.outputs = node, (Tensor(), Tensor() if generate_stats else None)
        return self.outputs

    def sdpa_backward(self, **node: Any) -> tuple[Tensor, ...]:
        self.node, self.outputs = node, (Tensor(), Tensor(), Tensor())
        return self.outputs

    def _step(self, name: str) -> Any:
        return lambda *_: self.done.append(name)

    def __getattr__(self, name: str) -> Any:
        order = ("validate", "build_operation_graph", "create_execution_plans", "check_support")
        if name not in order:
            raise AttributeError(name)
        assert tuple(self.done) == order[: order.index(name)]
        return self._step(name)

    def get_execution_plan_count(self) -> int:
        return 3

    def build_plan_at_index(self, index: int) -> None:
        assert len(self.done) == 4
        if index == 2:
            raise NotSupported("no such engine")

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        return 7 * index

    def execute_plan_at_index(self, bound: Any, workspace: Any, index: int, handle: Any) -> None:
        assert workspace.numel() >= 7 * index
        clock.now += (5, 1)[index]
        clock.plans.append(index)
        (self._forward if len(self.outputs) == 2 else self._backward)(bound)

    def _backward(self, bound: Any) -> None:
        node = self.node
        names = ("dO", "q", "k", "v", "o", "stats")
        given = [bound[node[name].number].transpose(1, 2) for name in names]
        given[-1] = given[-1].transpose(1, 2)[..., 0]
        left = node["diagonal_band_left_bound"]
        right = node["diagonal_band_right_bound"]
        sides = (None if left is None else left - 1, right)
        found = gradients(*given, scale=node["attn_scale"], causal=False, sides=sides)
        for output, gradient in zip(self.outputs, found, strict=True):
            assert output.output
            bound[output.number].copy_(gradient.transpose(1, 2))

    def _forward(self, bound: Any) -> None:
        node, (out, stats) = self.node, self.outputs
        assert stats is None or (stats.data_type == "FLOAT" and stats.output)
        q, k, v = (node[name] for name in "qkv")
        for i in range(q.dim[0]):
            n_q, n_kv = q.dim[2], k.dim[2]
            if node.get("use_padding_mask"):
                n_q, n_kv = (
                    int(bound[node[f"seq_len_{s}"].number].flatten()[i]) for s in ("q", "kv")
                )
            if (table := node.get("paged_attention_k_table")) is not None:
                assert node["paged_attention_v_table"] is table
                pages = bound[table.number][i, 0, :, 0].tolist()
                keys, values = (
                    torch.cat([t.of(bound, page) for page in pages], 1)[:, :n_kv] for t in (k, v)
                )
            else:
                keys, values = (t.of(bound, i, n_kv) for t in (k, v))
            moved = n_kv - n_q if node["diagonal_alignment"] == "BOTTOM_RIGHT" else 0
            left, right = (node[f"diagonal_band_{side}_bound"] for side in ("left", "right"))
            sink = node.get("sink_token")
            made = by_hand(
                *(q.of(bound, i, n_q), keys, values, node["attn_scale"]),
                -FAR if left is None else moved - left + 1,
                None if right is None else right + moved,
                None if sink is None else bound[sink.number].flatten(),
            )
            out.of(bound, i, n_q).copy_(made)


class Wrapper:
    """A wrapper of FlashInfer's; what is planned stays until it runs."""

    def __init__(self, workspace: torch.Tensor, layout: str, **how: Any) -> None:
        assert (workspace.dtype, layout) == (torch.uint8, "NHD")
        self.how = how

    def _planned(self, **told: Any) -> None:
        assert told["q_data_type"] == told["kv_data_type"] == torch.float16
        self.told = told

    def _run(self, q: torch.Tensor, of: Any, begin: torch.Tensor, n: int, sink: Any = None) -> Any:
        out, told = q.new_zeros(*q.shape), self.told
        for i in range(n):
            rows = slice(int(begin[i]), int(begin[i + 1]))
            k, v = (t.transpose(0, 1) for t in of(i))
            one = q[rows].transpose(0, 1)
            moved = k.shape[1] - one.shape[1]
            left = told["window_left"]
            made = by_hand(
                *(one, k, v, told["sm_scale"], -FAR if left < 0 else moved - left),
                *(moved if told.get("causal") else None, sink),
            )
            out[rows] = made.transpose(0, 1).to(q.dtype)
        return out


class Ragged(Wrapper):
    def plan(self, qo_indptr: Any, kv_indptr: Any, *heads: int, head_dim_vo: int, **t: Any) -> None:
        self._planned(begin=(qo_indptr, kv_indptr), heads=heads, **t)

    def run(self, q: Any, k: Any, v: Any, *, return_lse: bool) -> Any:
        begin_q, begin = self.told["begin"]
        of = lambda i: (t[begin[i] : begin[i + 1]] for t in (k, v))  # noqa: E731
        out = self._run(q, of, begin_q, len(begin) - 1)
        return (out, None) if return_lse else out


class Paged(Wrapper):
    def plan(
        self,
        qo_indptr: Any,
        paged_kv_indptr: Any,
        paged_kv_indices: Any,
        paged_kv_last_page_len: Any,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        **told: Any,
    ) -> None:
        pages = paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len
        assert len(paged_kv_indices) == paged_kv_indptr[-1]
        assert all(t.dtype == torch.int32 for t in (qo_indptr, *pages))
        self._planned(begin=qo_indptr, pages=pages, size=page_size, **told)

    def run(self, q: Any, caches: Any, *more: Any, return_lse: bool) -> Any:
        begin, indices, last = self.told["pages"]

        def of(i: int) -> Iterator[torch.Tensor]:
            own = indices[begin[i] : begin[i + 1]].long()
            n = (len(own) - 1) * self.told["size"] + int(last[i])
            return (t[own].flatten(0, 1)[:n] for t in caches)

        if more:
            assert more[1] == self.told["sm_scale"]
            assert self.how["head_dim_qk"] == q.shape[-1]
        out = self._run(q, of, self.told["begin"], len(last), more[0] if more else None)
        return (out, None) if return_lse else out


class Decode(Paged):
    def plan(self, indptr: Any, *rest: Any, **told: Any) -> None:
        super().plan(torch.arange(len(indptr), dtype=torch.int32), indptr, *rest, **told)

    def run(self, *given: Any, **how: Any) -> Any:
        clock.now += 1 if self.how["use_tensor_cores"] else 5
        return super().run(*given, **how)


clock = SimpleNamespace(now=0, plans=[])


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    front_end, infer = ModuleType("cudnn"), ModuleType("flashinfer")
    words = ("HALF", "BFLOAT16", "FLOAT", "INT32", "INT64")
    members: dict[str, Any] = {
        "data_type": SimpleNamespace(**{word: word for word in words}),
        "diagonal_alignment": SimpleNamespace(TOP_LEFT="TOP_LEFT", BOTTOM_RIGHT="BOTTOM_RIGHT"),
        "heur_mode": SimpleNamespace(A="A", FALLBACK="FALLBACK"),
        "cudnnGraphNotSupportedError": NotSupported,
        "pygraph": Graph,
        "create_handle": lambda: "handle",
        "set_stream": lambda handle, stream: None,
        "backend_version": lambda: 92100,
    }
    vars(front_end).update(members)
    infer.BatchPrefillWithRaggedKVCacheWrapper = Ragged  # type: ignore[attr-defined]
    infer.BatchPrefillWithPagedKVCacheWrapper = Paged  # type: ignore[attr-defined]
    infer.BatchAttentionWithAttentionSinkWrapper = Paged  # type: ignore[attr-defined]
    infer.BatchDecodeWithPagedKVCacheWrapper = Decode  # type: ignore[attr-defined]
    for module in (front_end, infer):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(fastest, "_milliseconds", _counted)
    cudnn_fe._handle.cache_clear()
    clock.now, clock.plans = 0, []


def _counted(launch: Any) -> float:
    before = clock.now
    launch()
    return float(clock.now - before)


def problem_of(key: str) -> Problem:
    workload = Workload.from_key(key)
    given = torch_side_of(workload).inputs(workload, seed=3, device="cpu")
    return Problem(workload, given, outputs_of(workload, fill=float("nan"), device="cpu"))


@pytest.mark.parametrize(
    ("key", "names"),
    [
        (DENSE + "full", NAMES),
        (EQUAL + "causal_lse_scale0.3", NAMES),
        (EQUAL + "causal_left5_sink", NAMES),
        (DENSE + "causal_br_left5", NAMES),
        (DENSE + "causal", ("cudnn-fe",)),
        (DENSE + "full_br_left5_right7", ("cudnn-fe",)),
        (ONE_QUERY, NAMES),
        (ONE_QUERY + "_br_left9", NAMES),
        (CACHE, NAMES),
        (CACHE + "_page16", NAMES),
        (PACKED, NAMES),
        (PACKED.replace("_packed", "_lse_packed"), NAMES),
        ("backward_" + DENSE + "full", ("cudnn-fe",)),
        ("backward_" + EQUAL + "causal_left5_sink", ("cudnn-fe",)),
    ],
)
def test_it_is_told_of_this_problem(key: str, names: tuple[str, ...]) -> None:
    problem = problem_of(key)
    side = torch_side_of(problem.workload)
    wanted = side.expected(problem.workload, problem.inputs)
    for name in names:
        found = dict(results_of(problem, libraries.get(name).bind(problem)))
        found.pop("lse", None)
        judged = judge(CheckCase(problem.workload), wanted, found)
        assert judged.ok, (name, judged)


def test_the_fastest_plan_is_launched_and_one_that_is_not_there_left_out() -> None:
    launch = libraries.get("cudnn-fe").bind(problem_of(DENSE + "full"))
    assert set(clock.plans) == {0, 1}
    clock.plans.clear()
    launch()
    assert clock.plans == [1]


def test_without_any_plan_the_first_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Graph, index: int) -> None:
        raise NotSupported(f"engine {index} is not there\nand more")

    monkeypatch.setattr(Graph, "build_plan_at_index", refuse)
    with pytest.raises(InvalidConfig) as caught:
        libraries.get("cudnn-fe").bind(problem_of(DENSE + "full"))
    assert str(caught.value).endswith("does not take this workload: engine 0 is not there")


def test_the_faster_kind_of_kernel_decodes() -> None:
    launch = libraries.get("flashinfer").bind(problem_of(ONE_QUERY))
    before = clock.now
    launch()
    assert clock.now - before == 1


@pytest.mark.parametrize(
    ("name", "key", "why"),
    [
        ("flashinfer", DENSE + "full_br_left5_right7", "to the right"),
        ("flashinfer", DENSE + "causal", "top-left"),
        ("flashinfer", PACKED.replace("_packed", "_sink_packed"), "sinks"),
        ("flashinfer", ONE_QUERY + "_dv64", "head dimension of V"),
        ("flashinfer", DENSE + "full_br_alibi", "alibi"),
        ("flashinfer", "backward_" + EQUAL + "full", "backward pass"),
        ("cudnn-fe", DENSE + "full_softcap20.0", "softcap"),
    ],
)
def test_what_it_does_not_compute_is_refused_in_a_sentence(name: str, key: str, why: str) -> None:
    workload = Workload.from_key(key)
    with pytest.raises(InvalidConfig, match=why) as caught:
        libraries.get(name).bind(Problem(workload, problem_of(EQUAL + "full").inputs, {}))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_package_that_does_not_load_says_why(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for module in ("cudnn", "flashinfer"):
        monkeypatch.setitem(sys.modules, module, None)  # which makes importing it fail
    with pytest.raises(InvalidConfig, match="cannot be loaded"):
        libraries.get(name).bind(problem_of(DENSE + "full"))


def test_what_ran_is_told() -> None:
    assert libraries.get("cudnn-fe").versions["cudnn"] == "9.21.0"


def test_the_first_call_of_what_compiles_may_take_minutes() -> None:
    assert libraries.first_call_s("ref:flashinfer") > 600  # type: ignore[operator]
    for subject in ("ref:fa2", "user:a.py:b", "(FP16, 128, 64, 64, 4): async"):
        assert libraries.first_call_s(subject) is None


def test_only_kernels_of_a_name_of_their_own_tell_a_library() -> None:
    assert libraries.is_nameless("cudnn-fe")
    assert not libraries.is_nameless("flashinfer")
    name = "void flashinfer::BatchDecodeWithPagedKVCacheKernel<...>(T1)"
    assert libraries.label_of_kernel(name) == "flashinfer"
