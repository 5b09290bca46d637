"""Random configs: any values a config can hold, whether or not a kernel could run them."""

import dataclasses

from hypothesis import strategies as st

from fa_tune.core.workload import DType
from fa_tune.families.fields import python_type
from fa_tune.families.sm80.config import FlashForwardKernelConfig, ProductOrder

_VALUES = {
    DType: st.sampled_from(DType),
    bool: st.booleans(),
    int: st.integers(0, 10**9 - 1),
    ProductOrder: st.sampled_from(ProductOrder),
}

configs = st.builds(
    FlashForwardKernelConfig,
    **{f.name: _VALUES[python_type(f)] for f in dataclasses.fields(FlashForwardKernelConfig)},
)
