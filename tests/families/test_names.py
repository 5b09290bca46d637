import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType
from fa_tune.families.sm80.config import FlashForwardKernelConfig, ProductOrder
from fa_tune.families.sm80.names import (
    parse_demangled,
    parse_demangled_typed,
    parse_kernel_name_into_config,
    parse_short_form,
    short_label,
)
from fa_tune.libraries import label_of_kernel
from tests.families.strategies import configs

KERNEL_NAMES = (
    (Path(__file__).parents[1] / "data" / "kernel_names.txt").read_text("utf-8").splitlines()
)

BEST = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"
BEST_CONFIG = FlashForwardKernelConfig(
    DType.FP16, 128, 64, 64, 4, True, True, True, 2, 2, 2, True, True
)
MOST = len(dataclasses.fields(FlashForwardKernelConfig))
PLAIN_CONFIG = FlashForwardKernelConfig(
    DType.BF16, 64, 128, 32, 8, False, False, False, 0, 2, 4, False, False
)


def values(config: FlashForwardKernelConfig) -> list[object]:
    return [getattr(config, f.name) for f in dataclasses.fields(config)]


def demangled(config: FlashForwardKernelConfig, *, words: bool = False) -> str:
    """As nvcc's demangler writes it: `1`/`0`, or `true`/`false` with `words`."""
    texts = [
        str(v).lower() if words and isinstance(v, bool) else str(int(v))  # type: ignore[call-overload]
        for v in values(config)
    ]
    return (
        "void flash::flash_forward_kernel<flash::StaticForwardKernelConfig<"
        f"{type(config).__name__}{{{', '.join(texts)}}}>>(flash::ForwardKernelArgs)"
    )


def typed(config: FlashForwardKernelConfig, dtype_name: str) -> str:
    casts = {DType: dtype_name, bool: "bool", int: "int", ProductOrder: "fa_tune::ProductOrder"}
    texts = [f"({casts[type(v)]}){int(v)}" for v in values(config)]  # type: ignore[call-overload]
    return f"void kernel<{type(config).__name__}{{{', '.join(texts)}}}>(Args)"


@given(configs)
@example(BEST_CONFIG)
@example(PLAIN_CONFIG)
def test_short_form_round_trip(config: FlashForwardKernelConfig) -> None:
    assert parse_short_form(config.short_form()) == config
    assert parse_kernel_name_into_config(config.short_form()) == config


@given(configs)
def test_short_form_without_spaces_or_d_head(config: FlashForwardKernelConfig) -> None:
    assert parse_short_form(config.short_form().replace(" ", "")) == config
    bare = config.short_form(include_d_head=False)
    assert parse_short_form(bare, d_head=config.d_head) == config


@given(configs, st.booleans())
def test_demangled_round_trip(config: FlashForwardKernelConfig, words: bool) -> None:
    name = demangled(config, words=words)
    assert parse_demangled(name) == config
    assert parse_kernel_name_into_config(name) == config


@given(configs, st.sampled_from(["DType", "c10::ScalarType", "(anonymous namespace)::DType"]))
def test_demangled_typed_round_trip(config: FlashForwardKernelConfig, dtype_name: str) -> None:
    name = typed(config, dtype_name)
    assert parse_demangled_typed(name) == config
    assert parse_kernel_name_into_config(name) == config


@given(configs)
def test_cpp_literal_round_trip(config: FlashForwardKernelConfig) -> None:
    assert parse_demangled(config.to_cpp_struct()) == config


THIRTEEN = "5, 128, 64, 64, 4, 1, 1, 1, 2, 2, 2, 1, 1"
NEW_VALUES = [
    ("", {}),
    (", 2", {"kv_stages": 2}),
    (", 2, 8", {"kv_stages": 2, "rescale_threshold": 8}),
    (", 1, 8, 1", {"rescale_threshold": 8, "interleaved_softmax": True}),
    (", 3, 8, 0, 1", {"kv_stages": 3, "rescale_threshold": 8, "ping_pong": True}),
    (", 1, 0, 0, 1, 2", {"ping_pong": True, "product_order": ProductOrder.FAR_AHEAD}),
    (
        ", 1, 0, 0, 1, fa_tune::ProductOrder::SHORT_RUNS",
        {"ping_pong": True, "product_order": ProductOrder.SHORT_RUNS},
    ),
]


@pytest.mark.parametrize(("more", "changes"), NEW_VALUES)
def test_a_name_with_thirteen_values_or_more_is_read(more: str, changes: dict[str, int]) -> None:
    """Names recorded before a knob was added mean its default."""
    expected = dataclasses.replace(BEST_CONFIG, **changes)
    name = f"void k<FlashForwardKernelConfig{{{THIRTEEN}{more}}}>(Args)"
    assert parse_demangled(name) == expected
    assert parse_kernel_name_into_config(name) == expected
    cast = "void k<FlashForwardKernelConfig{(DType)" + THIRTEEN + more + "}>"
    assert parse_demangled_typed(cast) == expected


@pytest.mark.parametrize(
    "text",
    [
        BEST,
        f"  {BEST}\n",
        BEST.replace(", ", ","),
        BEST.replace("FP16", "fp16"),
        BEST.replace("FP16", "5"),
        BEST.replace("(FP16, 128,", "( FP16 ,128 ,").replace(": ", "  :  ").replace("+", " + "),
        BEST.replace("(FP16, 128, ", "(FP16, "),
        "(FP16, 128, 64, 64, 4): opt_softmax+buffer+load_2_2_2_tiles+swizzled+eager+async",
        f'"{BEST}"',
        f"'{BEST}'",
        f"`{BEST}`",
        f"“{BEST}”",
        f"sm80:{BEST}",
        f"| {BEST} | 492,384 | 1.00 |",
        f"| 1024 | flash (128, 1, 1) | {BEST} |",
        f"│ 1 │ {BEST}   │ 3.1 ms │",
        f'1024,"{BEST}",0.492,168,"1,767"',
        f'"{BEST}",0.492',
        f'1024,"""{BEST}""",x',
        f"1024,{BEST},0.492,cold",
        f"{BEST}\t0.492\t168",
        f"{BEST};0,492;168",
        f"{BEST} | {BEST}",
    ],
)
def test_short_form_is_found(text: str) -> None:
    assert parse_short_form(text) == BEST_CONFIG
    assert parse_kernel_name_into_config(text) == BEST_CONFIG


def test_four_numbers_take_d_head_from_the_argument() -> None:
    text = "(BF16, 128, 32, 4): async+load_0_2_0_tiles"
    assert parse_short_form(text).d_head == 128
    config = parse_short_form(text, d_head=64)
    assert (config.dtype, config.d_head, config.B_r, config.B_c) == (DType.BF16, 64, 128, 32)
    assert parse_kernel_name_into_config(text, d_head=64) == config


SHORT_FORM_ERRORS = [
    ("", "no config"),
    ("void flash_forward_kernel(float *, int)", "no config"),
    ("(FP16, 128, 64, 64, 4)", "no ':'"),
    ("(FP16, 128, 64, 64, 4): async+swizzled", "no load_<Q>_<K>_<V>_tiles"),
    ("(FP16, 128, 64, 64, 4): foo+load_2_2_2_tiles", 'unknown word "foo"; known words: async,'),
    ("(FP16, 128, 64, 64, 4): asinc+load_2_2_2_tiles", '"asinc"; did you mean async?'),
    (
        "(FP16, 128, 64, 64, 4): load_2_2_2_tiles+far_ahead+few_ahead",
        '"few_ahead" is given a second',
    ),
    ("(FP16, 128, 64, 64, 4): load_2_2_tiles", '"load_2_2_tiles" has 2 numbers'),
    ("(FP16, 128, 64, 64, 4): load_2_2_2_tiles junk", 'unexpected "junk" after "load_2_2_2_tiles"'),
    ("(FP8, 128, 64, 64, 4): load_2_2_2_tiles", "unknown dtype 'FP8'; allowed: FP16 (5), BF16"),
    ("(FP16, 128, 6.4, 64, 4): load_2_2_2_tiles", "B_r must be a whole number of at most 9 digits"),
    (
        "(FP16, 64, 4): load_2_2_2_tiles",
        "3 values where 5 belong (dtype, d_head, B_r, B_c, n_warps",
    ),
    (f"{BEST} | {BEST.replace('2_2_2', '0_2_2')}", "more than one config"),
]


@pytest.mark.parametrize(("text", "complaint"), SHORT_FORM_ERRORS)
def test_short_form_refusals(text: str, complaint: str) -> None:
    for parse in (parse_short_form, parse_kernel_name_into_config):
        with pytest.raises(InvalidConfig, match=re.escape(complaint)) as caught:
            parse(text)
        assert "\n" not in str(caught.value)


STRUCT_ERRORS = [
    ("{5, 128, 64, 64, 4, 1, 1, 1, 2, 2, 2, 1}", f"12 values where 13 to {MOST} belong"),
    (
        "{5, 128, 64, 64, 4, 1, 1, 1, 2, 2, 2, 1, 1, 1, 0, 0, 0, 0, 0, 0}",
        f"{MOST + 1} values where 13 to {MOST} belong",
    ),
    ("{5, 128, 64, 64, 4, 1, 1, 1, 2, 2, 2, 1, 1, 2, 0, 0, 1, 5}", "product_order cannot be"),
    ("{5, 128, 64, 64, 4, 2, 1, 1, 2, 2, 2, 1, 1}", "async_copy must be 0, 1, true or false"),
    ("{5, 128, 64, 64, 4, 1, 1, 1, 2, 2, 2, 1, 1", "not closed"),
]


@pytest.mark.parametrize(("struct", "complaint"), STRUCT_ERRORS)
def test_demangled_refusals(struct: str, complaint: str) -> None:
    for parse in (parse_demangled, parse_kernel_name_into_config):
        with pytest.raises(InvalidConfig, match=re.escape(complaint)):
            parse(f"void k<FlashForwardKernelConfig{struct}>(Args)")


def test_typed_values_may_go_without_a_type() -> None:
    # g++'s demangler writes casts for enumerators only
    name = "k<FlashForwardKernelConfig{(DType)5, 128, 64, 64, 4, true, true, true, 2, 2, 2, 1, 1}>"
    assert parse_kernel_name_into_config(name) == BEST_CONFIG
    with pytest.raises(InvalidConfig, match="unknown dtype"):
        parse_kernel_name_into_config(name.replace("(DType)", "()"))


def test_every_recorded_kernel_name_is_understood() -> None:
    full = [n for n in KERNEL_NAMES if "StaticForwardKernelConfig" in n]
    read = {n: parse_kernel_name_into_config(n) for n in full}
    assert len(set(read.values())) == len(full) == 45
    for name, config in read.items():
        # They were recorded when there were thirteen; the others are at their defaults.
        assert demangled(config).replace(", 1, 0, 0, 0, 0, 0}", "}") == name
    toys = [n for n in KERNEL_NAMES if "(float *, int)" in n]
    assert len(toys) == 2
    for name in toys:
        with pytest.raises(InvalidConfig, match=f"7 values where 13 to {MOST} belong"):
            parse_kernel_name_into_config(name)
    references = [n for n in KERNEL_NAMES if n not in read and n not in toys]
    assert len(references) == 2
    for name in references:
        with pytest.raises(InvalidConfig, match="no "):
            parse_kernel_name_into_config(name)


def test_short_label() -> None:
    assert short_label(demangled(BEST_CONFIG)) == BEST
    assert short_label(BEST.replace(" ", "")) == BEST
    references = [n for n in KERNEL_NAMES if "FlashForwardKernelConfig" not in n]
    for name in references:
        assert short_label(name) == label_of_kernel(name) != name
    assert len(references) == 2
    for other in ("vectorized_elementwise_kernel", "k<FlashForwardKernelConfig{5, 128}>", ""):
        assert short_label(other) == other
