"""The backward pass: dQ, dK and dV from Q, K, V, O, dO and the log-sum-exp."""

from __future__ import annotations

from dataclasses import replace

from fa_tune.core.workload import BACKWARD, FORWARD, DType, Workload
from fa_tune.operations.base import CheckCase, TensorSpec
from fa_tune.operations.forward.spec import Forward, sequences
from fa_tune.operations.traits import Traits

ELEMENTWISE = 6  # operations on each score: scale, exponential, two of dS, two roundings


class Backward(Forward):
    """The operation's side of `operations.base.Operation`.  Masks, pairs and tiles are those of
    the forward pass; the log-sum-exp is always given, and a sink is part of it.  A workload's `lse`
    says that it has a gradient."""

    name = BACKWARD

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """Those of the forward pass, O and the log-sum-exp as inputs; dO, the gradient of the
        log-sum-exp if it has one, and the three gradients, each like what it is the gradient of."""
        given = super().tensors(forward_of(workload))
        by_name = {spec.name: spec for spec in given}
        inputs = [replace(spec, output=False, tolerance=None) for spec in given]
        outputs = [
            replace(by_name[name[1:]], name=name, output=True) for name in ("dq", "dk", "dv")
        ]
        names = ("do", "dlse") if workload.lse else ("do",)
        more = [replace(by_name[n[1:]], name=n, output=False, tolerance=None) for n in names]
        return (*inputs, *more, *outputs)

    def matmul_flop(self, workload: Workload) -> int:
        """Five products, of which three have columns of d_head and two of d_v: 2.5 times those of
        the forward pass where both are equal."""
        w = workload
        products = 3 * w.d_head + 2 * w.d_v
        return super().matmul_flop(w) * products // (w.d_head + w.d_v)

    def total_flop(self, workload: Workload, B_r: int, B_c: int) -> int:
        """All tiles that a kernel of one pass computes, and the sums over columns of O dO.  Raises
        InvalidConfig for blocks that do not divide the lengths."""
        w = workload
        if w.uneven:
            return sum(self.total_flop(one, B_r, B_c) for one in sequences(w))
        super().total_flop(w, B_r, B_c)  # the blocks
        tile = B_r * B_c * (2 * (3 * w.d_head + 2 * w.d_v) + ELEMENTWISE)
        per_head = self.visited_tiles(w, B_r, B_c) * tile + 2 * w.seq_len_q * w.d_v
        return w.batch * w.heads * per_head

    def traits(self, workload: Workload, blocks: tuple[int, int], *, lse: bool = False) -> Traits:
        """Those of the forward pass, by the workload's own `lse`."""
        return super().traits(workload, blocks)

    def verification_cases(
        self,
        blocks: tuple[int, int],
        d_head: int,
        dtype: DType,
        traits: Traits,
        *,
        d_head_v: int = 0,
        thorough: bool = False,
    ) -> tuple[CheckCase, ...]:
        """Those of the forward pass.  Sequences of a packed batch are about as long as blocks of
        keys, and so are those of queries there, whatever number of these is a whole one."""
        if traits.packed:
            blocks = (max(blocks), max(blocks))
        cases = super().verification_cases(
            blocks,
            d_head,
            dtype,
            traits,
            d_head_v=d_head_v,
            thorough=thorough,
        )
        found = (replace(c, workload=replace(c.workload, op=BACKWARD)) for c in cases)
        return tuple(dict.fromkeys(found))


OPERATION = Backward()


def forward_of(workload: Workload) -> Workload:
    """The forward pass that leaves what the backward pass needs."""
    return replace(workload, op=FORWARD, lse=True)


def backward_of(workload: Workload) -> Workload:
    """The backward pass of a forward pass."""
    return replace(workload, op=BACKWARD, lse=False)
