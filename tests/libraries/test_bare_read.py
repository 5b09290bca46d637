"""The bare read reads what kernels have to."""

import pytest

from fa_tune.core.workload import Workload
from fa_tune.libraries.bare_read import rows_read


@pytest.mark.parametrize(("mask", "keys"), [("full", 2 * 1024), ("full_br_left127", 2 * 128)])
def test_it_reads_the_rows_that_some_query_sees(mask: str, keys: int) -> None:
    assert rows_read(Workload.from_key(f"b2_h8_kv4_q1_k1024_d128_bf16_{mask}")) == 4 * keys
