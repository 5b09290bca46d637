"""The sm90 short form reads back, and nobody else's config is read as one."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_tune import families
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType
from fa_tune.families.fields import python_type
from fa_tune.families.sm90.config import Order, Rescale, Scheduler, Sm90Config
from fa_tune.families.sm90.names import FEWEST_VALUES, parse
from tests.families.strategies import configs as sm80_configs

_VALUES: dict[type, st.SearchStrategy[Any]] = {
    DType: st.sampled_from(DType),
    Rescale: st.sampled_from(Rescale),
    Scheduler: st.sampled_from(Scheduler),
    Order: st.sampled_from(Order),
    bool: st.booleans(),
    int: st.integers(0, 10**7 - 1),
}
configs = st.builds(
    Sm90Config, **{f.name: _VALUES[python_type(f)] for f in dataclasses.fields(Sm90Config)}
)
CONFIG = Sm90Config(DType.FP16, 128, 2, 176, 2, pingpong=True, overlap=True, early_test_wait=True)


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


@pytest.mark.parametrize(
    "text",
    [
        "sm90(FP16,128,128x176): stages_2+pingpong+overlap+early_test_wait",
        "sm90( FP16 , 128 , 128 x 176 ) : early_test_wait + overlap + stages_2 + pingpong",
        "| sm90(FP16, 128, 128x176): stages_2+pingpong+overlap+early_test_wait | 640.1 |",
        '"sm90(FP16, 128, 128x176): stages_2+pingpong+overlap+early_test_wait",1.5',
        "sm90(FP16, 128x176): stages_2+pingpong+overlap+early_test_wait",
        "sm90(FP16, 128, 128x176, 2): stages_2+pingpong+overlap+early_look",
    ],
)
def test_spaces_order_and_surroundings_do_not_matter(text: str) -> None:
    assert parse(text) == CONFIG


@pytest.mark.parametrize("count", range(FEWEST_VALUES, len(dataclasses.fields(Sm90Config)) + 1))
def test_a_struct_of_before_a_field_has_its_default(count: int) -> None:
    values = ", ".join(str(int(v)) for v in dataclasses.astuple(CONFIG)[:count])
    assert parse(f"void sm90_forward_kernel<Sm90Config{{{values}}}, …>(…)") == CONFIG


def test_d_head_may_be_left_to_the_caller() -> None:
    assert parse("sm90(FP16, 192x128): stages_2", d_head=64).d_head == 64


OLD_BEST = "stages_2+q_stages_2+pingpong+overlap+carry+trusting_rescale+dynamic+longest_first"
BEST = "stages_2+q_stages_2+pingpong+overlap+cross_tile_overlap+stale_max+dynamic+longest_first"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (f"sm90(FP16, 128, 128x128, 2): {OLD_BEST}", f"sm90(FP16, 128, 128x128): {BEST}"),
        # With these heads the older kernels went through one loop.
        (f"sm90(FP16, 64, 192x128, 3): {OLD_BEST}", f"sm90(FP16, 64, 192x128): {BEST}+single_loop"),
        (
            "sm90(BF16, 64, 64x96, 1): stages_2+overlap+lazy_rescale+ctas_3+early_look",
            "sm90(BF16, 64, 64x96): stages_2+overlap+thresholded_rescale+min_ctas_per_sm_3"
            "+early_test_wait",
        ),
        (
            "Sm90Config{5, 128, 128, 128, 2, 2, 2, 1, 1, 0, 0, 1, 3, 2, 1, 0, 1, 1, 1, 0, 0, 0}",
            f"sm90(FP16, 128, 128x128): {BEST}",
        ),
        (
            "Sm90Config{(DType)15, (int)64, (int)64, (int)96, (int)1, (int)2, (int)1, (bool)0, "
            "(bool)1, (bool)0, (bool)0, (bool)0, (Rescale)2, (Scheduler)0, (Order)0, (int)0, "
            "(int)1, (int)1, (int)3, (bool)0, (bool)1, (bool)0}",
            "sm90(BF16, 64, 64x96): stages_2+overlap+thresholded_rescale+min_ctas_per_sm_3"
            "+early_test_wait",
        ),
    ],
)
def test_older_words_give_the_same_config(old: str, new: str) -> None:
    assert str(parse(old)) == new
    assert parse(new) == parse(old)


@pytest.mark.parametrize(
    ("words", "knob"),
    [
        ("pin", "pin"),
        ("early_rescale", "BEFORE_PRODUCT"),
        ("static+paired", "PAIRED"),
        ("stagger", "stagger"),
    ],
)
def test_a_removed_knob_is_named(words: str, knob: str) -> None:
    with pytest.raises(InvalidConfig, match=rf"the knob .*{knob}.* was removed") as caught:
        parse(f"sm90(FP16, 128, 128x128, 2): stages_2+overlap+{words}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("sm90(FP16, 128, 128, 2): stages_2", "no sm90 config"),
        ("sm90(FP16, 128, 96x176): stages_2", "96 query rows"),
        ("sm90(FP16, 128, 128x176): pingpong", "no stages_<n>"),
        ("sm90(FP16, 128, 128x176): stages_2+ping", 'unknown word "ping"'),
        ("sm90(FP16, 128, 128x176): stage_2+pingpong", "did you mean stages_<n>"),
        ("sm90(FP16, 128, 128x176): stages_2 pingpong", 'unexpected "pingpong" after "stages_2"'),
        ("Sm90Config{5, 128, 2, 176, 2, 1, 7" + ", 0" * 8 + "}", "pingpong must be 0, 1"),
        ("Sm90Config{5, 128, 2, 176, 2" + ", 0" * 10 + "}+pingpong", "unexpected .* after"),
        ("sm90(FP16, 64, 64x16): stages_2 sm90(FP16, 64, 64x16): stages_2", "more than one"),
        ("Sm90Config{5, 128}", f"{len(dataclasses.fields(Sm90Config))} values, not the 2"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str, complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint) as caught:
        parse(text)
    assert "\n" not in str(caught.value)
