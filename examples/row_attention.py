"""The launcher of row_attention.cu."""

import numpy as np

from fa_tune.core.errors import InvalidConfig


def launch(problem, function):
    """Enqueue one call on CuPy's current stream; the result is in the problem's outputs."""
    w = problem.workload
    tensors = [problem.inputs["q"], problem.inputs["k"], problem.inputs["v"], problem.outputs["o"]]
    known = not set(w.unusual) - {"softmax_scale"} and w.d_head in (32, 64, 128, 256)
    if w.dtype.name != "FP16" or not known or not all(t.is_contiguous() for t in tensors):
        raise InvalidConfig("fp16, contiguous, d_head 32 to 256, full or causal from the first key")
    sizes = (w.seq_len_q, w.seq_len_kv, w.heads, w.kv_heads, w.d_head)
    function(
        (w.seq_len_q, w.heads, w.batch),
        (32,),
        (
            *(tensor.data_ptr() for tensor in tensors),
            *(np.int32(size) for size in sizes),
            np.float32(w.scale),
            np.int32(w.causal),
        ),
    )
