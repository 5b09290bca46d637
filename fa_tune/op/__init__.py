"""Attention as an operator of torch.

    from fa_tune.op import attention

    out = attention(q, k, v, causal=True)  # q: [batch, seq_len, heads, d_head] on the GPU

It has gradients, and a place in graphs that are compiled or captured.  Importing this makes no
call of CUDA; the first time on a machine it compiles the C++ operators.
"""

from fa_tune.op.api import attention, explain, prepare
from fa_tune.op.capturing.session import capture
from fa_tune.op.chooser import Choice
from fa_tune.op.fallback_warning import FallbackWarning
from fa_tune.op.flash_attn import flash_attn_func, flash_attn_varlen_func
from fa_tune.op.flash_kv_cache import flash_attn_with_kvcache
from fa_tune.op.sdpa import disable_sdpa, enable_sdpa
from fa_tune.op.transformers_attention import register_transformers

__all__ = [
    "Choice",
    "FallbackWarning",
    "attention",
    "capture",
    "disable_sdpa",
    "enable_sdpa",
    "explain",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "prepare",
    "register_transformers",
]
