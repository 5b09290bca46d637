import dataclasses
import random
from dataclasses import MISSING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_tune.core.arch import parse_arch
from fa_tune.core.errors import InvalidConfig
from fa_tune.families import variant
from fa_tune.families.axes import expand
from fa_tune.families.sm80.config import FlashForwardKernelConfig
from fa_tune.families.sm80.constraints import constraints
from fa_tune.tune.candidates import prune_configs

_FIELDS = dataclasses.fields(FlashForwardKernelConfig)
FIRST = [f.name for f in _FIELDS if f.default is MISSING]
# The fields after these have defaults and may be left out.
ONE_POINT = dict(
    zip(FIRST, [(v,) for v in (5, 128, 64, 64, 4, 1, 1, 1, 2, 2, 2, 1, 1)], strict=True)
)


def test_a_field_with_a_default_may_be_left_out_or_varied() -> None:
    (config,) = expand(FlashForwardKernelConfig, ONE_POINT)
    assert (config.kv_stages, config.rescale_threshold) == (1, 0)
    axes = ONE_POINT | {"kv_stages": (1, 2), "ping_pong": (False, True)}
    found = [(c.kv_stages, c.ping_pong) for c in expand(FlashForwardKernelConfig, axes)]
    assert found == [(1, False), (1, True), (2, False), (2, True)]


@given(st.randoms(use_true_random=False))
def test_order_is_that_of_the_fields(rng: random.Random) -> None:
    axes = ONE_POINT | {"B_c": (64, 32), "swizzled": (True, False), "B_r": (128, 64)}
    names = list(axes)
    rng.shuffle(names)
    shuffled = {name: axes[name] for name in names}
    assert [(c.B_r, c.B_c, c.swizzled) for c in expand(FlashForwardKernelConfig, shuffled)] == [
        (128, 64, True), (128, 64, False), (128, 32, True), (128, 32, False),
        (64, 64, True), (64, 64, False), (64, 32, True), (64, 32, False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("axes", "complaint"),
    [
        (ONE_POINT | {"n_warp": (4,)}, "no config field named 'n_warp'; did you mean n_warps?"),
        (ONE_POINT | {"splits": (4,)}, "no config field named 'splits'; fields: dtype, d_head"),
        (ONE_POINT | {"stages": (4,)}, "no config field named 'stages'; did you mean kv_stages?"),
        (ONE_POINT | {"B_r": ()}, "axis B_r has no values"),
        ({"dtype": (5,)}, "no values given for d_head, B_r"),
    ],
)
def test_bad_axes_are_refused_at_once(axes: dict[str, tuple[int, ...]], complaint: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        expand(FlashForwardKernelConfig, axes)
    assert str(caught.value).startswith(complaint)


def test_prune_keeps_or_explains_every_config() -> None:
    axes = ONE_POINT | {"B_r": (32, 64, 128), "B_c": (64, 512), "Q_mma_load_K_tiles": (2, 3)}
    configs = list(expand(FlashForwardKernelConfig, axes))
    kept, rejected = prune_configs(configs, parse_arch("sm_86"))
    assert len(kept) + len(rejected) == len(configs) == 12
    assert [(c.B_r, c.B_c, c.Q_mma_load_K_tiles) for c in kept] == [(64, 64, 2), (128, 64, 2)]
    others = [config for config in configs if config not in kept]
    assert rejected == tuple((variant(c), constraints(c, parse_arch("sm_86"))) for c in others)
