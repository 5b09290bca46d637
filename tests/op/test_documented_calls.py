"""The calls on docs/use-in-torch.md do what the page says, on tensors of the CPU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from fa_tune import families, op
from fa_tune.build.cache import ArtifactStore
from fa_tune.build.compile import BuildRequest, build
from fa_tune.core.hooks import register
from fa_tune.core.model import Outcome
from fa_tune.core.workload import DType
from fa_tune.op.traits import Traits
from tests.op import twins
from tests.project_files import ROOT

PAGE = (ROOT / "docs" / "use-in-torch.md").read_text(encoding="utf-8")
# Without the lines that make tensors on a GPU.
_, CALLS, TRAITS, WITH_CACHE, HOOK = (
    re.sub(r'.*device="cuda".*\n', "", block)
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
)
_, BY_FOUR = re.findall(r"```cuda\n(.*?)```", PAGE, re.DOTALL)


pytestmark = pytest.mark.usefixtures("twins_on_the_cpu")


def run(text: str, **more: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    names: dict[str, Any] = {
        "q": torch.randn(2, 9, 4, 64).half(),
        **{name: torch.randn(2, 9, 2, 64).half() for name in "kv"},
        **more,
    }
    exec(text, names)
    return names


def test_the_function(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(op, "explain", lambda q, k, v, *, causal: "which, and why")
    found = run(CALLS)
    three = tuple(found[name] for name in "qkv")
    assert torch.equal(found["lse"], twins.fwd_lse(*three, True, True)[1])
    assert torch.equal(found["out"], twins.fwd(*three)), "written last, without a mask"
    assert capsys.readouterr().out == "which, and why\n"


def test_what_changes_scores() -> None:
    run(TRAITS, attention=op.attention, sinks=torch.randn(4), slopes=torch.rand(2, 4))
    found = run(HOOK)
    expected = twins.fwd(*(found[name] for name in "qkv"), *Traits(True, score_hook=found["hook"]))
    assert torch.equal(found["out"], expected)


def test_a_cache_in_pages() -> None:
    caches = [torch.randn(5, 16, 2, 64).half() for _ in range(2)]
    table, lengths = torch.tensor([[3, 0], [1, 4]]), torch.tensor([19, 7])
    q, k, v = (torch.randn(2, 1, heads, 64).half() for heads in (4, 2, 2))
    given = {"q": q, "k": k, "v": v, "k_cache": caches[0], "v_cache": caches[1]}
    found = run(WITH_CACHE, **given, lengths=lengths.int(), table=table.int())
    assert torch.equal(caches[0][0, 3], k[0, 0]), "behind 19 keys, in the second page"
    assert torch.equal(caches[1][1, 7], v[1, 0])
    for one, n in enumerate((20, 8)):
        keys, values = (c[table[one]].flatten(0, 1)[:n] for c in caches)
        expected = twins.fwd(q[one : one + 1], keys[None], values[None])
        assert torch.allclose(found["out"][one].float(), expected[0].float(), atol=2e-3)


def test_the_hooks_compile(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    variant = families.variant(families.get("sm80").default_config(64, DType.FP16))
    requests = [
        BuildRequest(variant, f"{traits}+hook_{hook}", "sm_80")
        for hook in (run(HOOK)["hook"], register(BY_FOUR))
        for traits in ("causal", "causal+ragged+lse+packed")
    ]
    for result in build(requests, ArtifactStore(tmp_path), jobs=1):
        assert result.outcome is Outcome.OK, result.reason
