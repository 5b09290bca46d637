"""A library that the registry names is called where it computes the same, and nowhere else."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fa_tune import libraries
from fa_tune.core.arch import limits
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.stats import Ratio
from fa_tune.core.workload import DType, Workload
from fa_tune.op import api, chooser, fallback_warning, state
from fa_tune.op.chooser import Chooser
from fa_tune.op.served import ServedCalls
from fa_tune.store.registry import file as registry_file
from fa_tune.store.registry.schema import Registry, Served
from tests.store.registry.conftest import MakeEntry, make_entry  # noqa: F401 - a fixture
from tests.tensors import attention as by_hand
from tests.tensors import qkv

HERE = "torch 2.11.0"
FA2 = Served("fa2", HERE, Ratio(0.9, None), 12)
EQUAL = Workload(2, 6, 6, 37, 37, 32, DType.FP16)
CAUSAL = dataclasses.replace(EQUAL, causal=True)


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "installed", lambda name: HERE)
    monkeypatch.setattr(fallback_warning, "_told", set())


def three(workload: Workload) -> list[torch.Tensor]:
    torch.manual_seed(1)
    rows = (workload.seq_len_q, workload.seq_len_kv, workload.seq_len_kv)
    heads = (workload.heads, workload.kv_heads, workload.kv_heads)
    shapes = zip(rows, heads, strict=True)
    return [torch.randn(workload.batch, n, h, workload.d_head).half() for n, h in shapes]


def flash(q: Any, k: Any, v: Any, *sizes: Any, scale: Any, **sides: Any) -> tuple[Any]:
    """The operator of FlashAttention 2, by hand."""
    cum_q, cum_kv, longest_q, longest_kv, dropout, causal, mask = sizes
    assert (cum_q, cum_kv, dropout, mask) == (None, None, 0.0, False)
    assert (longest_q, longest_kv) == (q.shape[1], k.shape[1])
    workload = Workload(
        *(q.shape[0], q.shape[2], k.shape[2], longest_q, longest_kv, q.shape[3], DType.FP16),
        causal=causal,
        bottom_right=causal and longest_q != longest_kv,
        softmax_scale=scale,
    )
    return (by_hand(qkv(q, k, v), workload),)


def cudnn(q: Any, k: Any, v: Any, *given: Any, scale: Any) -> tuple[Any]:
    assert given[:3] == (None, False, 0.0)
    turned = (t.transpose(1, 2) for t in (q, k, v))
    sizes = (None, None, q.shape[2], k.shape[2], 0.0, given[3], False)
    return (flash(*turned, *sizes, scale=scale)[0].transpose(1, 2),)


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> None:
    aten = torch.ops.aten
    for name, function in (
        ("_flash_attention_forward", flash),
        ("_scaled_dot_product_cudnn_attention", cudnn),
    ):
        monkeypatch.setattr(aten, name, SimpleNamespace(default=function))


@pytest.mark.parametrize("name", ["fa2", "cudnn"])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("workload", [EQUAL, CAUSAL])
def test_its_function_computes_o(
    operators: None, name: str, scale: float | None, workload: Workload
) -> None:
    q, k, v = three(workload)
    found = libraries.get(name).attend(workload)(q, k, v, scale)
    scaled = dataclasses.replace(workload, softmax_scale=scale)
    exact = by_hand(qkv(q, k, v), scaled, dtype=torch.float32)
    assert found.shape == q.shape
    assert float((found.float() - exact).abs().max()) < 4e-3


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fa2", {"lse": True}),
        ("fa2", {"seq_len_q": 20, "causal": True}),
        ("fa2", {"softcap": 20.0}),
        ("fa2", {"d_head_v": 64}),
        ("cudnn", {"window_left": 3}),
        ("cudnn", {"seq_len_q": 20, "causal": True, "bottom_right": True}),
        ("fa2", {"op": "backward"}),
        ("flex", {}),
    ],
)
def test_what_it_is_not_called_for_is_refused(name: str, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        libraries.get(name).attend(dataclasses.replace(EQUAL, **changes))


def test_calls_of_the_very_workload_get_it(operators: None) -> None:
    calls = ServedCalls(lambda _: {CAUSAL: FA2})
    q, k, v = three(CAUSAL)
    found = calls.find(q, k, v, (True, False, 0.3))
    assert found is not None
    assert calls.find(q, k, v, (True, False, 0.3)) is found
    assert calls.find(q, k, v, (False, False, None)) is None
    assert calls.find(q[:1], k[:1], v[:1], (True, False, None)) is None
    assert calls.find(q.bfloat16(), k, v, (True, False, None)) is None, "for our own to refuse"
    columns = q.transpose(1, 3).contiguous().transpose(1, 3)
    assert calls.find(columns, k, v, (True, False, None)) is None, "no rows in one piece"
    asked: list[int] = []
    calls = ServedCalls(lambda device: asked.append(device) or {})  # type: ignore[func-returns-value]
    for _ in range(3):
        assert calls.find(*three(EQUAL), (False, False, None)) is None
    assert len(asked) == 1


def chooser_with(path: Path, make_entry: MakeEntry, *served: Served | None) -> Chooser:  # noqa: F811
    methods = ("ncu", "events")
    entries = [
        dataclasses.replace(make_entry(method=method), served=one)
        for method, one in zip(methods, served, strict=False)
    ]
    registry_file.save(path, Registry.of(entries))
    return Chooser("NVIDIA H200", limits((9, 0)), path, cache_dir=path.parent)


def test_the_preferred_entry_says_which_library(tmp_path: Path, make_entry: MakeEntry) -> None:  # noqa: F811
    made = chooser_with(tmp_path / "r.json", make_entry, FA2, None)
    assert list(made.served.values()) == [FA2]
    assert chooser_with(tmp_path / "r.json", make_entry, None, FA2).served == {}


def test_another_version_is_ours_and_one_warning(
    tmp_path: Path,
    make_entry: MakeEntry,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for other in ("torch 2.12.0", ""):
        monkeypatch.setattr(libraries, "installed", lambda name, other=other: other)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for _ in range(2):
                assert chooser_with(tmp_path / "r.json", make_entry, FA2).served == {}
        assert len(told) <= 1
        assert all(HERE in str(one.message) for one in told)
    unknown = dataclasses.replace(FA2, library="fa9")
    assert chooser_with(tmp_path / "r.json", make_entry, unknown).served == {}


def test_explain_says_so(
    tmp_path: Path,
    make_entry: MakeEntry,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = SimpleNamespace(artifact="made", reason="")
    monkeypatch.setattr(chooser, "build", lambda *_, **__: [made])
    workload = make_entry().workload
    found = chooser_with(tmp_path / "r.json", make_entry, FA2).choose(workload)
    assert found.subject == "ref:fa2"
    assert "\n" not in str(found)
    assert all(part in str(found) for part in ("ref:fa2", HERE, found.variant.key))
    plain = chooser_with(tmp_path / "r.json", make_entry, None).choose(workload)
    assert (plain.subject, plain.attend) == (plain.variant.key, None)


def test_only_calls_for_o_alone_are_given_away(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def attend_of(q: Any, k: Any, v: Any, traits: Any) -> Any:
        asked.append(traits)
        return lambda q, k, v, scale: (q, scale)

    monkeypatch.setattr(state, "attend_of", attend_of)
    q, k, v = three(EQUAL)
    assert api.attention(q, k, v, causal=True, softmax_scale=0.3) == (q, 0.3)
    assert api.attention(q, k, v, window=(3, None)) == (q, None)
    assert asked == [(True, False, 0.3), (False, False, None, 3, None, None, None, None, False)]
    for more in (
        {"return_lse": True},
        {"out": torch.empty_like(q)},
        {"sink": torch.zeros(6)},
        {"alibi_slopes": torch.zeros(6)},
    ):
        with pytest.raises(InvalidConfig):  # ours, which wants a GPU
            api.attention(q, k, v, **more)
    with pytest.raises(InvalidConfig):
        api.attention(q.clone().requires_grad_(), k, v)
    assert len(asked) == 2
