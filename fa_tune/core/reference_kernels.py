"""Short labels for the kernels that fa-tune is measured against.

A profile of a program that also ran FlashAttention 2, 3 or 4 or cuDNN shows their kernels under
long names, demangled or mangled, from several builds.  Only forward kernels are labelled: ours,
backward kernels and everything else a program launches have none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

BARE_READ = "read"  # no attention: K and V are read, and nothing is made of them
# The names of references (the part after `ref:` in a subject) and what people call them.
REFERENCE_LABELS: Mapping[str, str] = {
    "fa2": "FA2",
    "fa3": "FA3",
    "fa4": "FA4",
    "cudnn": "cuDNN",
    "flex": "FlexAttention",
    "read": "bare read",
}

_INT = r"(?:\((?:unsigned )?int\))?(\d+)[uU]?"  # 128, (int)128, 128u

# FlashAttention 2: flash_fwd_kernel<Flash_fwd_kernel_traits<d_head, B_r, B_c, warps, …>, …>,
# in any namespace (torch builds it as pytorch_flash); the split-KV variants and their combine
# step belong to one call.
_FA2 = re.compile(r"flash_fwd(?:_splitkv)?(?:_mla)?(?:_combine)?_kernel")
_FA2_TRAITS = (
    re.compile(rf"Flash_fwd_kernel_traits<\s*{_INT}\s*,\s*{_INT}\s*,\s*{_INT}\s*,"),
    re.compile(r"Flash_fwd_kernel_traitsILi(\d+)ELi(\d+)ELi(\d+)E"),
)

# FlashAttention 3: cutlass::device_kernel<flash::enable_sm90[_or_later]<flash::FlashAttnFwdSm90<
# CollectiveMainloopFwdSm90<stages, cluster, tuple<C<B_r>, C<B_c>, C<d_head>>, …>>>, and a form
# for sm80 to sm89 whose mainloop has no cluster: <warps, stages, Q in registers, tuple<…>, …>.
_FA3 = re.compile(r"FlashAttnFwd(?:Sm\d+|Combine)|CollectiveMainloopFwdSm\d+")
_C = rf"(?:cute::)?C<\s*{_INT}\s*>"
_TUPLE = rf"(?:cute::)?tuple<\s*{_C}\s*,\s*{_C}\s*,\s*{_C}\s*>"
_FA3_TILES = (
    re.compile(rf"CollectiveMainloopFwdSm90<\s*{_INT}\s*,\s*{_TUPLE}\s*,\s*{_TUPLE}"),
    re.compile(rf"CollectiveMainloopFwdSm80<[^<>]*?,\s*{_TUPLE}"),
)
# The same, mangled: each tuple opens with IJ, and the cluster's comes first.  A number that
# occurred before is written as a substitution (SA_); of B_r and B_c only B_c can be one, since
# the cluster's numbers are 1 and 2, and then it equals B_r.
_NUMBER = r"NS[0-9A-Z]*_(?:1C)?ILi(\d+)EEE?"
_FA3_MANGLED = (
    re.compile(rf"CollectiveMainloopFwdSm90ILi[^J]*IJ[^J]*IJ{_NUMBER}(?:{_NUMBER}|S[0-9A-Z]*_)"),
    re.compile(rf"CollectiveMainloopFwdSm80ILi[^J]*IJ{_NUMBER}(?:{_NUMBER}|S[0-9A-Z]*_)"),
)

# cuDNN generates its kernels; forward ones say fprop (the fort_native engine) or name the
# fused attention outright.
_CUDNN = re.compile(
    r"cudnn_generated_fort_native_sdpa_\w*fprop|cudnn\w*sdpa\w*fprop|cudnn\w*flash_fprop"
    r"|cudnn\w*fmha\w*fprop|cudnn::\w*(?:sdpa|fmha)\w*(?:fwd|fprop|forward)",
    re.IGNORECASE,
)
_CUDNN_TILE = re.compile(r"fprop_\w*?_(\d+)x(\d+)x(\d+)_\d+x\d+x\d+")

# FlashAttention 4 is written in CuTe's Python; its symbols contain the class and, flattened,
# the module: kernel_cutlass_kernel_flash_attncuteflash_fwd_sm90FlashAttentionForwardSm90_….
_FA4 = re.compile(
    r"FlashAttention(?:MLA)?Forward(?:Sm\d+|Base|Combine)|flash_attn\W?cute\W?flash_fwd"
)

# torch's compiler names a kernel made from a template after what it computes.
_FLEX = re.compile(r"triton_tem_\w*flex_attention")

_READ = re.compile(r"^bare_read$")

_BACKWARD = re.compile(r"bwd|bprop|backward", re.IGNORECASE)


def reference_label(kernel_name: str) -> str | None:
    """`fa2`, `fa3`, `fa4`, `cudnn` or `flex` for a forward kernel of that library, by its
    demangled, mangled or plain name, and `read` for the bare read; None for any other."""
    if _BACKWARD.search(kernel_name):
        return None
    patterns = {"fa4": _FA4, "fa3": _FA3, "cudnn": _CUDNN, "fa2": _FA2, "flex": _FLEX}
    patterns[BARE_READ] = _READ
    for label, pattern in patterns.items():
        if pattern.search(kernel_name):
            return label
    return None


def reference_blocks(kernel_name: str) -> tuple[int, int] | None:
    """(B_r, B_c) where the name shows them: in full names of FlashAttention 2 and 3, and in
    cuDNN's generated names, whose first figure is the rows of one warp group.  None otherwise,
    and for the step that combines split results, which works on no tile."""
    label = reference_label(kernel_name)
    if label is None or "combine" in kernel_name.lower():
        return None
    if label == "fa2":
        for pattern in _FA2_TRAITS:
            if traits := pattern.search(kernel_name):
                return int(traits[2]), int(traits[3])
    elif label == "fa3":
        if tile := _FA3_TILES[0].search(kernel_name):
            return int(tile[5]), int(tile[6])  # after the stages and the cluster's three
        if tile := _FA3_TILES[1].search(kernel_name):
            return int(tile[1]), int(tile[2])
        for pattern in _FA3_MANGLED:
            if tile := pattern.search(kernel_name):
                return int(tile[1]), int(tile[2] or tile[1])
    elif label == "cudnn" and (tile := _CUDNN_TILE.search(kernel_name)):
        return int(tile[1]), int(tile[2])
    return None
