"""Seconds until attention is there in a new process, as JSON, with an idle GPU and a context."""

import json
import time

import torch

q = torch.randn(1, 64, 2, 128, device="cuda", dtype=torch.float16)
torch.cuda.synchronize()
began = time.perf_counter()

from fa_tune.op import attention  # noqa: E402

imported = time.perf_counter()
attention(q, q, q, causal=True)
torch.cuda.synchronize()
first = time.perf_counter()
attention(q, q, q)  # another kernel
torch.cuda.synchronize()
second = time.perf_counter()
names = ("import_s", "first_call_s", "other_kernel_s")
times = (imported - began, first - imported, second - first)
print(json.dumps({name: round(s, 4) for name, s in zip(names, times, strict=True)}))
