"""dQ, dK and dV of attention."""

from fa_tune.core.dtypes import FP32
from fa_tune.operations.base import CheckCase, TensorSpec
from fa_tune.operations.forward.spec import Forward


class Backward(Forward):
    """Its masks and blocks are those of the forward pass."""

    name = "toy"

    def tensors(self, workload):
        w = workload
        q, k, v, o = super().tensors(w)[:4]
        of_results = FP32 if w.wide_sums else w.dtype.element
        given = [q, k, v, TensorSpec("do", o.shape, o.dtype)]
        results = zip(("dq", "dk", "dv"), (q, k, v), strict=True)
        return (*given, *(TensorSpec(n, t.shape, of_results, output=True) for n, t in results))

    def matmul_flop(self, workload):
        return 5 * super().matmul_flop(workload) // 2

    def verification_cases(self, blocks, d_head, dtype, traits, *, d_head_v=0, thorough=False):
        from fa_tune.core.workload import Workload

        for wide in (False, True):
            yield CheckCase(Workload(2, 2, 2, 37, 53, d_head, dtype, op=self.name, wide_sums=wide))


OPERATION = Backward()
