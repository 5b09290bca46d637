"""Models of Transformers run the same with our attention as with their own, on the CPU twins."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if not TYPE_CHECKING:
    pytest.importorskip("transformers", reason="transformers is not installed: no models")

import torch
from transformers import DynamicCache

from fa_tune.core.errors import InvalidConfig, NoUsableVariant
from fa_tune.op import refusals, register_transformers, transformers_attention
from fa_tune.op.refusals import Asked, Refusals
from fa_tune.op.traits import Traits
from tests.op import tiny_models, twins

KINDS = ("llama", "mistral", "qwen", "gemma", "gpt-oss", "qwen-moe", "phimoe")
calls: list[tuple[int, int]] = []  # lengths of what ran by ours


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    ours = transformers_attention.attention

    def counted(q: Any, k: Any, v: Any, **problem: Any) -> Any:
        calls.append((q.shape[1], k.shape[1]))
        return ours(q, k, v, **problem)

    monkeypatch.setattr(transformers_attention, "_DEVICES", ("cpu",))
    monkeypatch.setattr(refusals, "HALF", (torch.float32,))
    monkeypatch.setattr(transformers_attention, "attention", counted)
    calls.clear()
    register_transformers()
    with twins.registered():
        yield


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("static", [False, True])
def test_the_same_tokens(kind: str, padded: bool, static: bool) -> None:
    model = tiny_models.make(kind)
    model.set_attn_implementation("eager")
    expected = tiny_models.generated(model, padded=padded, static=static)
    assert not calls
    model.set_attn_implementation("fa_tune")
    assert tiny_models.generated(model, padded=padded, static=static) == expected
    if not padded and not static:
        steps = [10] + [1] * (tiny_models.NEW_TOKENS - 1)
        queries = [n_q for n_q, _ in calls]
        assert queries == [n for n in steps for _ in range(2)], "prefill and decoding are ours"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("static", [False, True])
def test_a_prompt_in_two_parts(kind: str, static: bool) -> None:
    model = tiny_models.make(kind)
    model.set_attn_implementation("eager")
    expected = tiny_models.chunked(model, static=static)
    model.set_attn_implementation("fa_tune")
    assert torch.allclose(tiny_models.chunked(model, static=static), expected, atol=1e-4)
    if not static:
        assert 4 in [n_q for n_q, _ in calls]


@pytest.mark.parametrize("kind", ["doge", "nllb"])
def test_no_token_sees_a_later_one(kind: str) -> None:
    """The one lays its own mask over that of Transformers, the other's layers do not say that they
    are causal."""
    model = tiny_models.make(kind)
    tokens = tiny_models.prompts("cpu", padded=False)["input_ids"]
    others = tokens.clone()
    others[:, -1] = 2 + tokens[:, -1] % (tiny_models.SIZES["vocab_size"] - 2)
    encoded = {"input_ids": tokens} if kind == "nllb" else {}
    name = "decoder_input_ids" if encoded else "input_ids"

    def logits(implementation: str, given: torch.Tensor) -> torch.Tensor:
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            found: torch.Tensor = model(**encoded, **{name: given}).logits
        return found

    expected, found = logits("eager", tokens), logits("fa_tune", tokens)
    assert torch.allclose(found, expected, atol=1e-4)
    assert torch.allclose(logits("fa_tune", others)[:, :-1], found[:, :-1], atol=1e-5)
    assert bool(calls) == (kind == "nllb"), "a mask on top is not ours"


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_keys_that_the_mask_does_not_reach_are_hidden(kind: str) -> None:
    model = tiny_models.make(kind)
    given = tiny_models.prompts("cpu", padded=False)
    given["attention_mask"] = given["attention_mask"][:, :7]
    found = []
    for name in ("eager", "fa_tune"):
        model.set_attn_implementation(name)
        with torch.no_grad():
            cache = DynamicCache(config=model.config)
            found.append(model(**given, past_key_values=cache, use_cache=True).logits)
    assert torch.allclose(*found, atol=1e-4)


@pytest.mark.parametrize("kind", ["mistral", "nllb"])
def test_layers_compiled_one_by_one(kind: str) -> None:
    """The mask is made outside of what is compiled."""
    torch.compiler.reset()
    model = tiny_models.make(kind, num_hidden_layers=1, decoder_layers=1, encoder_layers=1)
    given = tiny_models.prompts("cpu", padded=False)
    if kind == "nllb":
        given["decoder_input_ids"] = given["input_ids"]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**given, use_cache=False).logits
        model.set_attn_implementation("fa_tune")
        for part in model.modules():
            if type(part).__name__.endswith("DecoderLayer"):
                part.compile(backend="aot_eager")
        found = model(**given, use_cache=False).logits
    assert torch.allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("scores", ["plain", "sinks", "softcap"])
@pytest.mark.parametrize("n_q", [1, 7, 9])
def test_torch_computes_the_same_in_our_place(
    window: int | None, scores: str, n_q: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no mask says what is seen."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, n, 16) for heads, n in ((4, n_q), (2, 9), (2, 9)))
    module = SimpleNamespace(is_causal=True, num_key_value_groups=2, training=False)
    asked: dict[str, Any] = {"sliding_window": window}
    if scores == "sinks":
        asked["s_aux"] = torch.randn(4)
    elif scores == "softcap":
        asked["softcap"] = 2.0
    ours, _ = transformers_attention.attend(module, q, k, v, None, **asked)
    assert calls
    calls.clear()
    monkeypatch.setattr(transformers_attention, "_DEVICES", ())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, _ = transformers_attention.attend(module, q, k, v, None, **asked)
    assert not calls
    assert torch.allclose(found, ours, atol=1e-5)


def refuse() -> None:
    raise NoUsableVariant("of others")


@pytest.mark.parametrize("padded", [False, True])
def test_no_graph_breaks(padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    known = Refusals()
    known.attempt(refuse, Asked(*(torch.ones(1, 1, 1, 8),) * 3, Traits(), lse=False))
    monkeypatch.setattr(transformers_attention, "_refusals", known)
    torch.compiler.reset()
    model = tiny_models.make("llama", num_hidden_layers=1)
    given = tiny_models.prompts("cpu", padded=padded)
    if not padded:
        del given["attention_mask"]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**given, use_cache=False).logits
        model.set_attn_implementation("fa_tune")
        run = torch.compile(model, fullgraph=True, backend="aot_eager")
        found = run(**given, use_cache=False).logits
    rows = tiny_models.prompts("cpu", padded=padded)["attention_mask"].bool()
    assert torch.allclose(found[rows], expected[rows], atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_the_weights(kind: str) -> None:
    model = tiny_models.make(kind)
    given = tiny_models.prompts("cpu", padded=False)
    grads = []
    for name in ("eager", "fa_tune"):
        model.set_attn_implementation(name)
        model.zero_grad()
        model(**given, labels=given["input_ids"]).loss.backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    for one, other in zip(*grads, strict=True):
        assert torch.allclose(one, other, atol=1e-4 * float(one.abs().max()) + 1e-6)


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma"])
def test_autocast_leaves_attention_ours(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rotary embedding in fp32 makes fp32 of queries and keys."""
    monkeypatch.setattr(refusals, "HALF", (torch.bfloat16,))
    model = tiny_models.make(kind)
    given = tiny_models.prompts("cpu", padded=False)
    found = []
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for name in ("eager", "fa_tune"):
            model.set_attn_implementation(name)
            found.append(model(**given).logits.float())
    assert len(calls) == 2
    assert torch.allclose(*found, atol=0.1 * float(found[0].abs().max()))


@pytest.mark.parametrize("hidden", [False, True])
def test_sinks_of_each_query_and_a_bias(hidden: bool) -> None:
    """As Inkling 2 has them."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, 9, 16) for heads in (4, 2, 2))
    module = SimpleNamespace(is_causal=True, num_key_value_groups=2, training=False)
    seen = torch.ones(9, 9).tril().bool().expand(2, 1, 9, 9)
    if hidden:
        seen = seen.clone()
        seen[1, ..., :3] = False
        seen[1, ..., range(3), range(3)] = True
    asked: dict[str, Any] = {
        "scaling": 0.25,
        "sinks": torch.randn(2, 4, 9, 1),
        "position_bias": torch.randn(2, 4, 9, 9),
    }
    keys, values = (t.repeat_interleave(2, 1) for t in (k, v))
    scores = (0.25 * q @ keys.transpose(2, 3) + asked["position_bias"]).masked_fill(~seen, -1e30)
    weights = torch.cat((scores, asked["sinks"]), -1).softmax(-1)[..., :-1]
    expected = (weights @ values).transpose(1, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = seen if hidden else None
        found, _ = transformers_attention.attend(module, q, k, v, given, **asked)
    assert torch.allclose(found, expected, atol=1e-5)
    assert not calls


def test_keys_that_are_hidden_without_a_mask_are_refused() -> None:
    q = torch.randn(2, 4, 9, 16)
    module = SimpleNamespace(is_causal=True, num_key_value_groups=1, training=False)
    blocks = torch.zeros(2, 1, 9, 1, dtype=torch.long)
    with pytest.raises(InvalidConfig):
        transformers_attention.attend(module, q, q, q, None, block_indices=blocks)
    for name in ("my_flash", "sdpa", "eager", "paged|x"):
        with pytest.raises(InvalidConfig, match="a meaning of its own"):
            register_transformers(name)


def test_while_a_graph_is_captured_nothing_is_read_from_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would end the capture, which Transformers' own attention survives with a static cache."""

    def read(*_: Any) -> Any:
        raise AssertionError("read")

    offset, given = torch.tensor(3), torch.ones(1, 8, dtype=torch.bool)
    expected = torch.arange(8) <= 3
    monkeypatch.setattr(transformers_attention, "is_capturing", lambda: True)
    for name in ("__int__", "__bool__", "__index__", "item"):
        monkeypatch.setattr(torch.Tensor, name, read)
    found = transformers_attention.mask(1, 1, 8, q_offset=offset)
    padded = transformers_attention.mask(1, 1, 8, q_offset=7, attention_mask=given)
    monkeypatch.undo()
    assert found is not None
    assert padded is not None
    assert torch.equal(found[0, 0, 0], expected)
    assert padded.all()
