"""The forward pass in torch: inputs, and what must come out of them.  Children import it alone."""

from fa_tune.operations.forward.torch_side.all_inputs import inputs
from fa_tune.operations.forward.torch_side.exact import expected

__all__ = ["expected", "inputs"]
