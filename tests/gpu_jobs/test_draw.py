"""Drawn inputs have the scores that their names promise."""

import math
from pathlib import Path

import pytest

from fa_tune.core.inputs import FAR_KEYS, HEADS, RANK, ROW_SPREAD, TEMPERATURES, InputSpec
from fa_tune.core.workload import DType, Workload

pytest.importorskip("torch", reason="torch is not installed: nothing to draw with")

import torch
from safetensors.torch import save_file

from fa_tune.operations.base import Tensors
from fa_tune.operations.forward.torch_side import inputs as make_inputs
from fa_tune.operations.forward.torch_side.draw import draw

WORKLOADS = (
    Workload(1, 8, 8, 256, 512, 128, DType.FP16),
    Workload(1, 8, 2, 256, 512, 64, DType.BF16),
    Workload(2, 4, 4, 256, 512, 64, DType.FP16, softmax_scale=1e-3),
    Workload(2, 4, 4, 256, 512, 64, DType.FP16, softmax_scale=30.0),
    Workload(2, 4, 4, 256, 512, 256, DType.BF16, softmax_scale=1e-6),
)


def inputs(spec: str, workload: Workload, seed: int = 3) -> Tensors:
    return make_inputs(workload, spec, seed=seed, device="cpu")


def scores(given: Tensors, w: Workload) -> torch.Tensor:
    """[batch, heads, seq_len_q, seq_len_kv], in nats."""
    q, k = (t.transpose(1, 2).double() for t in (given["q"], given["k"]))
    return q @ k.repeat_interleave(w.heads // w.kv_heads, dim=1).transpose(-1, -2) * w.scale


@pytest.mark.parametrize("w", WORKLOADS, ids=lambda w: w.key)
@pytest.mark.parametrize("sigma", [1.0, 3.0, 6.0, 12.0])
def test_peaked_scores_have_their_standard_deviation(w: Workload, sigma: float) -> None:
    found = scores(inputs(f"peaked:{sigma}", w), w)
    assert float(found.std()) == pytest.approx(sigma, rel=0.05)
    assert abs(float(found.mean())) < 0.05 * sigma


@pytest.mark.parametrize("w", WORKLOADS, ids=lambda w: w.key)
def test_key_0_of_a_sink_is_12_nats_above(w: Workload) -> None:
    found = scores(inputs("sink", w), w)
    gap = found[..., 0].mean() - found[..., 1:].mean()
    assert float(gap) == pytest.approx(12.0, abs=0.25)
    assert float(found[..., 1:].std()) == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize(("spec", "nats"), [("falling", 12.0), ("falling:6", 6.0)])
@pytest.mark.parametrize("w", WORKLOADS, ids=lambda w: w.key)
def test_each_block_of_falling_inputs_is_above_the_one_after_it(
    w: Workload, spec: str, nats: float
) -> None:
    found = scores(inputs(spec, w), w)
    blocks = found.unflatten(-1, (-1, 128)).mean(-1)
    steps = blocks[..., :-1] - blocks[..., 1:]
    assert steps.shape[-1] == 3
    assert float(steps.mean()) == pytest.approx(nats, abs=0.1)
    assert float(found[..., :128].std(-1).mean()) == pytest.approx(1.0, rel=0.05)
    # So whoever goes from the last block to the first meets a new maximum in each.
    highest = found.unflatten(-1, (-1, 128)).amax(-1)
    assert float((highest[..., :-1] > highest[..., 1:]).double().mean()) > 0.97


FAR = (
    *WORKLOADS,
    Workload(2, 4, 2, 256, 512, 64, DType.BF16, causal=True, bottom_right=True),
    Workload(1, 2, 2, 256, 256, 128, DType.FP16, causal=True),
    Workload(3, 8, 2, 1, 700, 128, DType.BF16),
    Workload(2, 8, 2, 4, 40, 64, DType.FP16),  # fewer keys than there are far ones
)


@pytest.mark.parametrize("w", FAR, ids=lambda w: w.key)
def test_every_query_has_one_key_about_20_nats_above_the_others(w: Workload) -> None:
    found = scores(inputs("far_keys", w), w)
    sees = torch.ones(w.seq_len_q, w.seq_len_kv, dtype=torch.bool)
    found = found.masked_fill(~(sees.tril(w.diagonal) if w.causal else sees), -math.inf)
    first, second = found.topk(2).values.unbind(-1)
    far = found.argmax(-1)
    # Of a mask's first rows, which may see no such key, and of few, nothing is asked.
    judged = torch.arange(w.seq_len_q) + w.diagonal >= (64 if w.causal else 0)
    gap = (first - second)[:, :, judged]
    assert float(first[:, :, judged].mean()) == pytest.approx(20.0, abs=0.5)
    assert float((gap > 8.0).double().mean()) > 0.97
    seen = found[:, :, judged]
    ordinary = seen.where(seen.isfinite(), torch.nan).nanmedian(-1).values
    assert float((first[:, :, judged] - ordinary).mean()) == pytest.approx(20.0, abs=1.0)
    for of_head in far.flatten(0, 1):  # anywhere, and not more than there are
        assert len(set(of_head.tolist())) <= FAR_KEYS
    if w.seq_len_q >= 256:
        assert int(far.amax() - far[:, :, judged].amin()) > w.seq_len_kv // 2


def test_each_sequence_of_a_packed_batch_has_far_keys_of_its_own() -> None:
    w = Workload(3, 4, 2, 200, 200, 64, DType.FP16, lengths="200+0+90")
    given = inputs("far_keys", w)
    q, k = (given[name].flatten(0, -3) for name in ("q", "k"))
    for rows in (slice(0, 200), slice(200, 290)):
        one = {"q": q[None, rows], "k": k[None, rows]}
        found = scores(one, Workload(1, 4, 2, 90, 90, 64, DType.FP16))
        assert float(found.amax(-1).mean()) == pytest.approx(20.0, abs=0.5)


def test_a_cache_has_far_keys_within_each_sequence() -> None:
    w = Workload(2, 4, 2, 1, 300, 64, DType.BF16, cache_lengths="300+70")
    dense = draw(InputSpec.parse("far_keys"), w, seed=3, device="cpu")
    for number, keys in enumerate((300, 70)):
        one = {"q": dense[0][number : number + 1], "k": dense[1][number : number + 1, :keys]}
        found = scores(one, Workload(1, 4, 2, 1, keys, 64, DType.BF16))
        assert float(found.amax(-1).min()) > 14.0


@pytest.mark.parametrize("w", WORKLOADS, ids=lambda w: w.key)
def test_scores_of_low_rank_have_that_rank_and_3_nats(w: Workload) -> None:
    exact = draw(InputSpec.parse("low_rank"), w, seed=3, device="cpu")
    found = scores(dict(zip("qkv", exact, strict=True)), w)
    values = torch.linalg.svdvals(found[0, 0])
    assert float(values[RANK - 1]) > 0.1 * float(values[0])
    assert float(values[RANK]) < 1e-4 * float(values[0])
    rounded = scores(inputs("low_rank", w), w)
    assert float(rounded.std()) == pytest.approx(3.0, rel=0.2)
    assert float(found[0, 0, 0].std() / found[0, 0].std()) != pytest.approx(1.0, rel=0.01)


def test_heads_and_queries_have_temperatures_of_their_own() -> None:
    w = Workload(1, len(TEMPERATURES), 2, 512, 512, 128, DType.BF16)
    found = scores(inputs("temperatures", w), w)
    of_rows = found.std(-1)  # [1, heads, seq_len_q]
    logarithms = of_rows[0].log()
    assert logarithms.mean(-1).exp().tolist() == pytest.approx(TEMPERATURES, rel=0.1)
    assert logarithms.std(-1).tolist() == pytest.approx([ROW_SPREAD] * w.heads, rel=0.15)


@pytest.mark.parametrize("dtype", DType)
def test_even_the_last_of_a_thousand_falling_blocks_is_12_nats_below(dtype: DType) -> None:
    w = Workload(1, 1, 1, 1, 1024 * 128, 16, dtype)
    given = inputs("falling", w)
    raised = given["q"][..., :2].double() @ given["k"][0, ::128, 0, :2].double().T * w.scale
    steps = raised.flatten()[:-1] - raised.flatten()[1:]
    assert float(steps.min()) > 11.9
    assert float(steps.max()) < 12.1
    assert bool(given["q"].isfinite().all())
    assert bool(given["k"].isfinite().all())


@pytest.mark.parametrize("w", WORKLOADS[:2], ids=lambda w: w.key)
def test_heads_of_trained_inputs_differ(w: Workload) -> None:
    found = scores(inputs("trained", w), w)
    for head, (sigma, sink) in enumerate(HEADS):
        rest = found[:, head, :, 1:]
        assert float(rest.std()) == pytest.approx(sigma, rel=0.08)
        above = float(found[:, head, :, 0].mean() - rest.mean())
        assert above == pytest.approx(12.0 if sink else 0.0, abs=0.15 * sigma + 0.1)


def test_with_one_head_batches_differ() -> None:
    w = Workload(len(HEADS), 1, 1, 256, 256, 64, DType.FP16)
    found = scores(inputs("trained", w), w)
    sigmas = [float(found[b, 0, :, 1:].std()) for b in range(w.batch)]
    assert sigmas == pytest.approx([sigma for sigma, _ in HEADS], rel=0.1)


def test_normal_inputs_are_as_they_always_were() -> None:
    w = WORKLOADS[1]
    generator = torch.Generator().manual_seed(5)
    shapes = [(1, 256, 8, 64), (1, 512, 2, 64), (1, 512, 2, 64)]
    wanted = [torch.randn(s, generator=generator).to(torch.bfloat16) for s in shapes]
    found = make_inputs(w, seed=5, device="cpu")
    for tensor, expected in zip((found["q"], found["k"], found["v"]), wanted, strict=True):
        assert torch.equal(tensor, expected)


@pytest.mark.parametrize(
    "spec",
    ["normal", "peaked", "sink", "falling", "far_keys", "low_rank", "temperatures", "trained"],
)
def test_a_seed_gives_the_same_again_and_strides_that_are_not_natural(spec: str) -> None:
    w = WORKLOADS[1]
    one, same = (make_inputs(w, spec, seed=1, device="cpu") for _ in range(2))
    assert torch.equal(one["q"], same["q"])
    assert not torch.equal(one["q"], inputs(spec, w, seed=2)["q"])
    cut = make_inputs(w, spec, seed=1, device="cpu", extra_heads=1)
    assert cut["q"].shape == one["q"].shape
    assert not cut["q"].is_contiguous()


def test_a_file_is_repeated_and_cut(tmp_path: Path) -> None:
    path = tmp_path / "qkv.safetensors"
    shapes = {"q": (2, 300, 4, 64), "k": (2, 600, 2, 64), "v": (2, 600, 2, 64)}
    held = {name: torch.randn(shape) for name, shape in shapes.items()}
    save_file(held, path)
    w = Workload(3, 6, 3, 256, 512, 64, DType.BF16)
    found = inputs(f"file:{path}", w)
    q, k, v = (held[name].to(torch.bfloat16) for name in "qkv")
    assert found["q"].shape == (3, 256, 6, 64)
    assert found["k"].shape == found["v"].shape == (3, 512, 3, 64)
    assert torch.equal(found["q"][2, :, 5], q[0, :256, 1])
    assert torch.equal(found["k"][1, :, 2], k[1, :512, 0])
    assert torch.equal(found["v"][1, :, 1], v[1, :512, 1])
    (cut, _, _) = draw(InputSpec.parse(f"file:{path}"), w, seed=0, device="cpu", extra_heads=1)
    assert torch.equal(cut[0, :, 1:].to(torch.bfloat16)[:, 0], q[0, :256, 0])


def test_trained_scores_are_finite_in_fp16_at_usual_scales() -> None:
    w = Workload(1, 8, 8, 64, 64, 64, DType.FP16, softmax_scale=math.pi)
    given = make_inputs(w, "trained", seed=0, device="cpu")
    assert bool(given["q"].isfinite().all())
    assert bool(given["k"].isfinite().all())
