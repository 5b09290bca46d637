"""Pairs whose difference is known are explained by the right counter, measured here."""

from pathlib import Path

import pytest

from fa_tune.profile import profile_json
from tests.gpu.conftest import fa_tune, run_program
from tests.gpu.explained_pairs import PAIRS, WORKLOAD_ARGUMENTS, Pair, check

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The counters of all of them, as `fa-tune profile --metrics explain --json` writes them."""
    configs = list(dict.fromkeys(text for pair in PAIRS for text in (pair.slow, pair.fast)))
    words = [*configs, *WORKLOAD_ARGUMENTS, "--metrics", "explain", "--ref", "none", "--json"]
    done = run_program("profile", *words)
    if done.returncode == 3:
        pytest.skip(f"ncu cannot measure here: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    path = tmp_path_factory.mktemp("pairs") / f"pairs{profile_json.SUFFIX}"
    path.write_text(done.stdout)
    return path


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_the_pair_is_explained_by_the_right_counter(counted: Path, pair: Pair) -> None:
    check(pair, profile_json.load(counted))


def test_the_command_says_so(counted: Path) -> None:
    pair = PAIRS[0]
    found = fa_tune("explain", pair.slow, pair.fast, "--from", str(counted))
    (one,) = found["explanations"]
    assert any("ank conflicts" in sentence for sentence in one["sentences"])
