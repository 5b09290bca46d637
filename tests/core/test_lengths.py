"""The lengths of packed batches as text, and workloads that have them."""

import pytest

from fa_tune import operations
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.lengths import lengths_of
from fa_tune.core.workload import DType, Workload
from fa_tune.operations.forward.spec import sequences

SHAPE = (4, 8, 2, 100, 60, 64, DType.FP16)  # batch, heads, kv heads, longest, d_head


def test_listed_lengths_are_those() -> None:
    assert lengths_of("5+0+7", 1, 1, 1) == ((5, 5), (0, 0), (7, 7))
    assert lengths_of("5+0x9+3", 1, 1, 1) == ((5, 9), (0, 3))


@pytest.mark.parametrize("text", ["equal", "uniform", "uniform-3", "lognormal", "lognormal-0.5-2"])
def test_drawn_lengths_have_the_longest_and_no_zero(text: str) -> None:
    found = lengths_of(text, 50, 1000, 500)
    assert len(found) == 50
    assert max(q for q, _ in found) == 1000
    assert max(kv for _, kv in found) == 500
    assert min(min(pair) for pair in found) >= 1
    assert found == lengths_of(text, 50, 1000, 500)


@pytest.mark.parametrize("text", ["uniform-5", "lognormal-1-5"])
def test_a_hundred_thousand_lengths_take_no_minutes(text: str) -> None:
    """The longest is looked for once: done for each sequence this would take most of an hour."""
    found = lengths_of(text, 100_000, 1, 977)
    assert (len(found), max(found)[1]) == (100_000, 977)


def test_a_seed_draws_others() -> None:
    assert lengths_of("uniform-1", 20, 1000, 1000) != lengths_of("uniform-2", 20, 1000, 1000)


HUGE = "9" * 5000


@pytest.mark.parametrize(
    "text",
    [
        *("5+", "5+1x2", "normal", "uniform-1-2", "equal-1", "x3", "\u0661"),
        *(HUGE, f"5+{HUGE}", f"uniform-{HUGE}", f"lognormal-{HUGE}", f"lognormal-1-{HUGE}"),
    ],
    ids=lambda text: text[:20],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="lengths"):
        lengths_of(text, 4, 10, 10)


def test_a_workload_with_lengths_knows_its_sizes() -> None:
    workload = Workload(*SHAPE, lengths="5+0+7x9+3+0", causal=True, bottom_right=True)
    assert workload.packed
    assert (workload.batch, workload.seq_len_q, workload.seq_len_kv) == (3, 7, 9)
    assert workload.rows == (1, 12, 12)
    assert not workload.bottom_right, "a packed batch has one alignment"
    assert Workload.from_key(workload.key) == workload
    # The last of 5 queries sees 9 keys, the first 5; 7 queries have no keys.
    assert operations.get("forward").unmasked_pairs(workload) == 5 + 6 + 7 + 8 + 9


def test_only_the_device_may_know_the_lengths() -> None:
    workload = Workload(*SHAPE, packed=True, total_q=150, total_kv=90)
    assert workload.members == ((38, 23),) * 4
    assert Workload.from_key(workload.key) == workload


@pytest.mark.parametrize(
    "fields",
    [
        {"total_q": 5},
        {"packed": True, "total_q": 5},
        {"packed": True, "total_q": 9, "total_kv": 9, "lengths": "5+5"},
        {"lengths": "50+50", "window_left": -3},
    ],
)
def test_what_makes_no_packed_batch_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig):
        Workload(*SHAPE, **fields)  # type: ignore[arg-type]


def test_a_window_of_a_packed_batch_is_aligned_with_every_end() -> None:
    workload = Workload(*SHAPE, lengths="5+0+3x9+3+1", window_left=2, window_right=1)
    assert Workload.from_key(workload.key) == workload
    # Query i of 5 is at key i + 4 of 9 and sees keys i + 2 to i + 5; of 3, keys i - 4 to i - 1.
    assert operations.get("forward").unmasked_pairs(workload) == 4 + 4 + 4 + 4 + 3 + 0 + 1 + 1
    assert sequences(workload)[0].diagonal == 4


def test_sides_of_a_window_that_hide_nothing_of_any_sequence_are_left_out() -> None:
    widest = Workload(*SHAPE, lengths="5+3x9+4", window_left=8, window_right=4)
    assert (widest.window_left, widest.window_right) == (None, None)
    narrower = Workload(*SHAPE, lengths="5+3x9+4", window_left=7, window_right=3)
    assert (narrower.window_left, narrower.window_right) == (7, 3)
    assert Workload(*SHAPE, lengths="5+3x9+4", window_right=0).causal
