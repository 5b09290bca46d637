"""Every cheat is refused, for its reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fa_tune.tune.judge.process import Process
from fa_tune.tune.judge.trial import JudgeOptions
from tests.judge.court import BF16, CAUSAL, HERE, OPTIONS, verdict

pytest.importorskip("torch", reason="torch is not installed: nobody computes anything")
pytestmark = pytest.mark.xdist_group("cheats")  # one import of torch serves all

# By file: the word of the refusal, and the functions.
CHEATS = {
    "kept": {
        "kept": "once by_pointer by_sum by_some_keys by_contents "
        "by_contents_without_torch by_version",
        "wrong": "when_bound cast_when_bound keys_when_bound one_behind found_in_memory tired",
    },
    "elsewhere": {
        "unwritten": "thread pool alarm process at_exit after_the_clock a_method_of_its_own "
        "at_collection",
        "form": "lazy_tensor lazy_mapping",
        "forged": "written_again",
        "timer": "a_later_start",
        "patched": "another_clock a_mode_left_on an_operator_of_its_own a_method_of_the_judge "
        "a_default_left",
    },
    "inputs": {
        "inputs": "scaled centred emptied one_bit",
        "aliased": "in_place_of_q a_view_of_q in_the_storage_of_k",
    },
    "numbers": {
        "wrong": "bf16_operands bf16_weights half_sums no_last_key clamped small_weights_dropped "
        "a_percent_more noisy short_series own_scale other_kv_heads rows_of_others half_scores",
        "unwritten": "no_maximum rows_left_out last_row_left_out nothing",
    },
    "forms": {
        "form": "wider other_half heads_first one_row_more elsewhere one_memory sparse "
        "parameter array other_name bare",
        "crashed": "no_launch",
    },
    "patches": {
        "patched": "clock events event_class synchronize allclose equality copies random_numbers "
        "numpys_numbers numpys_comparison files profiler answers library_loader whole_module "
        "the_judges_method the_judges_code the_judges_clock when_loaded",
    },
    "borrowed": {
        "library": "sdpa sdpa_by_another_name sdpa_by_its_operator sdpa_for_some",
        "crashed": "the_judges_reference",
    },
    "processes": {
        "hung": "hangs spins hangs_when_bound",
        "crashed": "leaves exits raises faults aborts is_killed recurses takes_all_memory "
        "closes_everything",
        "forged": "says_nonsense answers_itself",
    },
    "shapes": {
        "wrong": "announced one_batch whole_blocks short equal_heads natural_strides known_seeds "
        "moderate_scores normal_inputs wrong_strides",
        "shapes": "refuses_others refuses_at_launch",
    },
}
# With other options.
SPECIAL: dict[str, tuple[str, JudgeOptions]] = {
    "numbers.py:uninitialised": ("wrong unwritten", OPTIONS),  # by what is in that memory
    "numbers.py:no_mask": ("wrong", replace(OPTIONS, workloads=(CAUSAL,))),
    "numbers.py:mask_from_the_first_key": ("wrong", replace(OPTIONS, workloads=(CAUSAL,))),
    "numbers.py:half_sums": ("wrong", replace(OPTIONS, workloads=(BF16,))),
    "numbers.py:chance": ("nondeterministic", replace(OPTIONS, required=("deterministic",))),
    "numbers.py:no_nan": ("nan", replace(OPTIONS, required=("nan",))),
    "borrowed.py:operators_for_a_kernel": ("library", replace(OPTIONS, claim="kernel")),
}
QUICK = replace(OPTIONS.limits, timeout_s=1.0)
CASES = [
    (f"{file}.py:{name}", word, OPTIONS)
    for file, words in CHEATS.items()
    for word, names in words.items()
    for name in names.split()
] + [(place, word, options) for place, (word, options) in SPECIAL.items()]


@pytest.mark.parametrize(
    ("place", "word", "options"), CASES, ids=[f"{one[0]}-{n}" for n, one in enumerate(CASES)]
)
def test_it_is_refused(place: str, word: str, options: JudgeOptions, ours: Process) -> None:
    if word == "hung":
        options = replace(options, limits=QUICK)
    report = verdict(f"cheats/{place}", ours, options)
    assert not report.accepted
    assert {refusal.kind for refusal in report.refusals} & set(word.split()), report.refusals


def test_a_file_that_changes_itself_is_refused(tmp_path: Path, ours: Process) -> None:
    changing = tmp_path / "changing.py"
    changing.write_text((HERE / "cheats" / "patches.py").read_text(encoding="utf-8"))
    report = verdict(f"{changing}:own_file", ours)
    assert {refusal.kind for refusal in report.refusals} == {"patched"}
