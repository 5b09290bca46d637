"""Damaged short forms are read as what they say, or refused: never as something else."""

import dataclasses
import random

import pytest

from fa_tune import families
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType
from tests.fuzz import short_form_reader
from tests.fuzz.mutations import mutants

MUTANTS = 700  # of each form

FORMS = (
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax",
    "(BF16,64,128,32,8):load_0_2_4_tiles",
    "(FP16, 128, 64, 4): async+eager+swizzled+load_0_1_1_tiles+stages_2+rescale_8+pingpong",
    '"(FP16, 128, 128, 64, 8): async+load_0_0_0_tiles+interleave"',
    "sm80:(FP16, 256, 64, 64, 4): eager+load_2_2_2_tiles+opt_softmax",
    "(FP16, 128, 256, 64, 8): async+eager+swizzled+load_0_1_1_tiles+stages_2+pingpong+far_ahead",
    "sm90(FP16, 128, 128x128): stages_2+q_stages_2+pingpong+overlap+stale_max+dynamic",
    "sm90(BF16, 64, 192x96): stages_3+overlap+cross_tile_overlap+static+longest_first",
    "sm90(FP16, 128, 128x128, 2): stages_2+carry+trusting_rescale+ctas_2+early_look",
    "sm90(BF16, 192, 128x96): stages_2+pingpong+overlap+d_head_v_128",
    "(BF16, 192, 128, 64, 4): async+eager+load_1_1_1_tiles+d_head_v_128",
    "sm90(FP16, 192x128): stages_2+thresholded_rescale+early_test_wait",
    " `sm90(FP16, 64, 64x16) : stages_2 + min_ctas_per_sm_3` ",
)
WORDS = (
    *("async", "eager", "buffer", "pingpong", "overlap", "stages_3", "stages_2"),
    *("load_0_0_0_tiles", "load_1_1_1_tiles"),
    *("single_loop", "stale_max", "trusting_rescale", "dynamic", "q_stages_1", "+buffer", "pin"),
    *("few_ahead", "+shared_maxima", "+d_head_v_192", "d_head_v_64"),
    *("sm90", "sm80:", "(FP16, 128", "): ", "async+eager", ", 64", "-1", "\u0662"),
)  # fmt: skip


def _said(text: str) -> dict[str, int] | None:
    """What the program reads, in the words of the short form."""
    try:
        config = families.parse(text, d_head=192)
    except InvalidConfig:
        return None
    said = {f.name: int(getattr(config, f.name)) for f in dataclasses.fields(config)}
    names = {f.name: f.metadata["word"] for f in dataclasses.fields(config) if "word" in f.metadata}
    renamed = {
        **names,
        **{f"{t}_mma_load_K_tiles": t for t in "QKV"},
        "mma_warpgroups": "warpgroups",
    }
    return {renamed.get(name, name): value for name, value in said.items()}


@pytest.mark.parametrize("form", FORMS)
def test_no_damaged_form_is_misread(form: str) -> None:
    expected = short_form_reader.read(form, 192)
    assert expected is not None
    assert _said(form) == expected
    rng = random.Random(form)
    for text in mutants(form, MUTANTS, rng, pieces=WORDS):
        assert _said(text) in (None, short_form_reader.read(text, 192)), text


@pytest.mark.parametrize("separator", ["+ ", ";", "|", "\t", "/", "-", " ", ", ", "++", "\n", "│"])
def test_words_beside_others_are_not_dropped(separator: str) -> None:
    for form, word in (
        ("sm90(FP16, 128, 128x128, 2): stages_2", "pingpong"),
        ("(FP16, 128, 64, 64, 4): load_2_2_2_tiles", "buffer"),
    ):
        for text in (form + separator + word, form + "+" + separator + word):
            assert _said(text) in (None, short_form_reader.read(text, 192)), text
        for parse in (families.get("sm80").parse, families.get("sm90").parse):
            if separator.strip("+ "):
                with pytest.raises(InvalidConfig):
                    parse(form + separator + word)


def test_the_dtype_of_a_reader_is_the_programs() -> None:
    assert {d.name: d.value for d in DType} == {"FP16": 5, "BF16": 15}
