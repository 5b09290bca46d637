"""A mask that nobody looks into costs nothing; one that somebody does is an ordinary tensor."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from fa_tune.op.lazy_mask import LazyMask, Rule

RULE = Rule(3, 5, None)
made: list[torch.Tensor] = []


def make() -> torch.Tensor:
    made.append(torch.ones(2, 1, 3, 5).tril(2).bool())
    return made[-1]


@pytest.fixture
def mask() -> LazyMask:
    made.clear()
    return LazyMask(2, RULE, "cpu", make)


def test_what_models_ask_of_every_mask_makes_none(mask: LazyMask) -> None:
    assert (mask.shape, mask.dtype, mask.ndim) == ((2, 1, 3, 5), torch.bool, 4)
    assert mask.device == torch.device("cpu")
    whole = mask[:, :, :, :9]
    elsewhere = mask.to("meta")
    for same in (whole, mask.detach(), mask.to("cpu"), elsewhere):
        assert isinstance(same, LazyMask)
        assert same.rule == RULE
    assert elsewhere.device.type == "meta"
    assert not made


def test_operations_get_the_tensor(mask: LazyMask) -> None:
    expected = torch.ones(2, 1, 3, 5).tril(2).bool()
    assert torch.equal(mask[..., :4], expected[..., :4])
    assert torch.equal(~mask, ~expected)
    assert torch.equal(mask.to(torch.float32), expected.float())
    assert torch.equal(torch.zeros(3, 5).masked_fill(mask, 1.0), expected.float())
    assert len(made) == 1


def test_a_change_stays_and_is_told(mask: LazyMask) -> None:
    alias, copied = mask.detach(), mask.to("cpu", copy=True)
    mask[..., 0] = False
    for changed in (mask, alias):
        assert not changed.tensor[..., 0].any()
        assert changed.rule is None, "it is no longer what the rule says"
    assert isinstance(copied, LazyMask)
    assert copied.rule == RULE
    assert copied.tensor[..., 0].all()


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints_hand_it_on(mask: LazyMask, use_reentrant: bool) -> None:
    seen = []

    def layer(x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        seen.append(isinstance(given, LazyMask) and given.rule == RULE)
        return x.exp()

    x = torch.ones(3, requires_grad=True)
    checkpoint(layer, x, mask, use_reentrant=use_reentrant).sum().backward()
    assert seen == [True, True]
