"""The sm90 short form reads back, and nobody else's config is read as one."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_tune import families
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import DType
from fa_tune.families.fields import python_type
from fa_tune.families.sm90.config import Order, Rescale, Scheduler, Sm90Config
from fa_tune.families.sm90.names import parse
from fa_tune.families.sm90.sets import get_configs
from tests.families.strategies import configs as sm80_configs

_VALUES: dict[type, st.SearchStrategy[Any]] = {
    DType: st.sampled_from(DType),
    Rescale: st.sampled_from(Rescale),
    Scheduler: st.sampled_from(Scheduler),
    Order: st.sampled_from(Order),
    bool: st.booleans(),
    int: st.integers(0, 10**9 - 1),
}
configs = st.builds(
    Sm90Config, **{f.name: _VALUES[python_type(f)] for f in dataclasses.fields(Sm90Config)}
)
CONFIG = Sm90Config(
    DType.FP16, 128, 128, 176, 2, 2, pingpong=True, overlap=True, pin=True
)  # fmt: skip


@given(configs)
def test_the_short_form_reads_back(config: Sm90Config) -> None:
    assert parse(config.short_form()) == config
    assert families.parse(config.short_form()) == config


@given(configs)
def test_the_kernel_name_reads_back(config: Sm90Config) -> None:
    family = families.get("sm90")
    assert family.parse(family.name_expression(config, "causal+lse")) == config
    bare = ", ".join(str(int(v)) for v in dataclasses.astuple(config))
    assert parse(f"void sm90_forward_kernel<Sm90Config{{{bare}}}, …>(…)") == config
    typed = ", ".join(
        f"({python_type(f).__name__}){int(getattr(config, f.name))}"
        for f in dataclasses.fields(config)
    )
    assert parse(f"sm90_forward_kernel<Sm90Config{{{typed}}}, …>") == config


@given(configs, sm80_configs)
def test_a_family_knows_its_own(config: Sm90Config, other: object) -> None:
    sm80, sm90 = families.get("sm80"), families.get("sm90")
    assert not sm80.recognises(config.short_form())
    assert not sm90.recognises(str(other))


def test_the_short_form_is_readable() -> None:
    assert str(CONFIG) == "sm90(FP16, 128, 128x176, 2): stages_2+pingpong+overlap+pin"
    lazy = dataclasses.replace(
        CONFIG, pin=False, q_stages=2, carry=True, rescale=Rescale.LAZY,
        scheduler=Scheduler.DYNAMIC, order=Order.LONGEST_FIRST,
    )  # fmt: skip
    assert str(lazy) == (
        "sm90(FP16, 128, 128x176, 2): "
        "stages_2+q_stages_2+pingpong+overlap+carry+lazy_rescale+dynamic+longest_first"
    )
    trusting = dataclasses.replace(CONFIG, pin=False, rescale=Rescale.TRUST)
    assert str(trusting).endswith("+overlap+trusting_rescale")
    later = dataclasses.replace(CONFIG, v_stages=3, m_tiles=2, cluster=2, ctas=2)
    assert str(later).endswith("+pin+v_stages_3+m_tiles_2+cluster_2+ctas_2")


@pytest.mark.parametrize(
    "text",
    [
        "sm90(FP16,128,128x176,2): stages_2+pingpong+overlap+pin",
        "sm90( FP16 , 128 , 128 x 176 , 2 ) : pin + overlap + stages_2 + pingpong",
        "| sm90(FP16, 128, 128x176, 2): stages_2+pingpong+overlap+pin | 640.1 |",
        '"sm90(FP16, 128, 128x176, 2): stages_2+pingpong+overlap+pin",1.5',
        "sm90(FP16, 128x176, 2): stages_2+pingpong+overlap+pin",
    ],
)
def test_spaces_order_and_surroundings_do_not_matter(text: str) -> None:
    assert parse(text) == CONFIG


def test_d_head_may_be_left_to_the_caller() -> None:
    assert parse("sm90(FP16, 192x128, 3): stages_2", d_head=64).d_head == 64


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("sm90(FP16, 128, 128, 2): stages_2", "no sm90 config"),
        ("sm90(FP16, 128, 128x176, 2)", "no sm90 config"),
        ("sm90(FP32, 128, 128x176, 2): stages_2", "FP32"),
        ("sm90(FP16, 128, 128x176, 2): pingpong", "no stages_<n>"),
        ("sm90(FP16, 128, 128x176, 2): stages_2+ping", 'unknown word "ping"'),
        ("sm90(FP16, 128, 128x176, 2): stages_2+linear", 'unknown word "linear"'),
        ("sm90(FP16, 128, 128x176, 2): stages_2+stages_3", "says again"),
        ("sm90(FP16, 128, 128x176, 2): stages_2+static+dynamic", "says again"),
        ("sm90(FP16, 128, 128x176, 2): stages_99999999999", "unknown word"),
        ("sm90(FP16, 64, 8x8, 1): stages_2 sm90(FP16, 64, 8x8, 1): stages_2", "more than one"),
        ("Sm90Config{5, 128}", "22 values, not the 2"),
        ("Sm90Config{7, 128, 128, 176, 2" + ", 0" * 17 + "}", "dtype cannot be 7"),
        (
            "Sm90Config{5, 128, 128, 176, 2" + ", 0" * 8 + ", 9" + ", 0" * 8 + "}",
            "scheduler cannot be 9",
        ),
        ("Sm90Config{5, -1, 128, 176, 2" + ", 0" * 17 + "}", "d_head cannot be -1"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str, complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


def test_every_set_reads_back() -> None:
    for d_head in (64, 128, 192, 256):
        for config in get_configs("all", d_head=d_head):
            assert families.parse(str(config)) == config
