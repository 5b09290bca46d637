"""The default sm80 kernel on a program's own tensors: packed QKV, with the log-sum-exp.

python examples/one_kernel.py      needs a GPU, torch and CuPy
"""

import sys

from fa_tune import families
from fa_tune.build.cache import ArtifactStore
from fa_tune.build.compile import BuildRequest, build
from fa_tune.core.arch import limits
from fa_tune.core.devices import find_device
from fa_tune.core.jobs import KernelItem
from fa_tune.core.workload import DType, Workload
from fa_tune.operations.base import Problem

try:
    import torch

    from fa_tune.gpu.launch import CompiledKernel  # which imports CuPy
except ImportError as error:
    sys.exit(f"error: this needs torch and CuPy: {error}")
if not torch.cuda.is_available():
    sys.exit("error: this needs a CUDA GPU")

qkv = torch.randn(2, 1000, 3, 16, 128, device="cuda", dtype=torch.float16)  # packed
q, k, v = qkv.unbind(2)  # [batch, seq_len, heads, d_head], any strides of the first three
out = torch.empty(2, 1000, 16, 128, device="cuda", dtype=torch.float16)
lse = torch.empty(2, 16, 1000, device="cuda")  # fp32, [batch, heads, seq_len_q]

workload = Workload(2, 16, 16, 1000, 1000, 128, DType.FP16, causal=True, lse=True)
family = families.get("sm80")
config = family.default_config(128, DType.FP16)  # or what the registry has chosen
arch = limits(find_device().compute_capability).arch
request = BuildRequest(families.variant_of(family, config), family.traits(config, workload), arch)
(built,) = build([request], ArtifactStore())  # compiled once, then from the cache
kernel = CompiledKernel(KernelItem.of(built.artifact.variant.key, built.artifact))

launch = kernel.bind(Problem(workload, {"q": q, "k": k, "v": v}, {"o": out, "lse": lse}))
launch()  # on torch's current stream
