"""The core's C ABI in ctypes: its structs, functions and statuses.

`csrc/core/fa_tune_types.h` is generated from the structs and enums here and in
`fa_tune.families.plan`: every field is declared once, with the line that the header says of it.
"""

from __future__ import annotations

import ctypes
import dataclasses
from ctypes import (
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import Any, ClassVar

from fa_tune.core.errors import ToolMissing
from fa_tune.families.plan import LaunchPlan, Plan, TensorRole

ABI_VERSION = 8
MAPS, DIMENSIONS, PARAMS_WORDS = 6, 5, 128


class Status(IntEnum):
    """What a function of the core says.

    INVALID: a problem, tensor, plan or name that means nothing, or that the kernel does not
    compute.
    NOT_FOUND: nothing that is there computes it, or a config that is not there.
    NO_DRIVER: no CUDA driver, one that is too old, or no device.
    DRIVER_ERROR: the driver refused or failed; the text has its name for the error.
    CAPTURING: not loaded yet, which a stream that is being captured does not allow:
    fa_tune_prepare.
    NO_MEMORY: no host memory.
    """

    OK = 0
    INVALID = 1
    NOT_FOUND = 2
    NO_DRIVER = 3
    DRIVER_ERROR = 4
    CAPTURING = 5
    NO_MEMORY = 6


class Mask(IntEnum):
    """Which keys a query sees.

    CAUSAL: aligned top-left: query i sees key j when j <= i.
    CAUSAL_BR: aligned bottom-right: j <= i + seq_len_kv - seq_len_q.
    DIAGONAL: j <= i + diagonal.
    FULL_DIAGONAL: all, but what windows and ALiBi count from is i + diagonal.
    """

    FULL = 0
    CAUSAL = 1
    CAUSAL_BR = 2
    DIAGONAL = 3
    FULL_DIAGONAL = 4


class Window(IntFlag):
    """Sides of a window; both: their sum.

    LEFT: query i sees key j when j >= i + diagonal - window_left.
    RIGHT: query i sees key j when j <= i + diagonal + window_right; without a causal mask only.
    """

    NONE = 0
    LEFT = 1
    RIGHT = 2


class ConstPointer(ctypes.c_void_p):
    """`const void*`."""


class Struct(ctypes.Structure):
    """A struct of the ABI; its docstring is the header's comment, `DOCS` has those of fields."""

    DOCS: ClassVar[dict[str, str]] = {}


def _declared(*fields: tuple[str, Any] | tuple[str, Any, str]) -> tuple[Any, dict[str, str]]:
    """The fields as ctypes has them, and what the header says of each."""
    return tuple(f[:2] for f in fields), {f[0]: f[2] for f in fields if len(f) == 3}


class Problem(Struct):
    """O = softmax(scores) V, scores = softmax_scale * Q K^T, changed by softcap, then by alibi,
    then by a hook.  The diagonal is 0, or as the mask says."""

    _fields_, DOCS = _declared(
        ("operation", c_int32, "fa_tune_operation"),
        ("dtype", c_int32, "fa_tune_dtype, of Q, K, V and O"),
        ("batch", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64, "divides heads"),
        ("seq_len_q", c_int64),
        ("seq_len_kv", c_int64),
        ("d_head", c_int32),
        ("mask", c_int32, "fa_tune_mask"),
        (
            *("diagonal", c_int64),
            "with FA_TUNE_MASK_DIAGONAL and FA_TUNE_MASK_FULL_DIAGONAL only",
        ),
        ("lse", c_int32, "1: the log-sum-exp of each row is wanted"),
        ("window", c_int32, "fa_tune_window"),
        ("softmax_scale", c_double, "1e-30 to 1e30; 0: the usual one, 1 / sqrt(d_head)"),
        ("window_left", c_int64, "at least 0; 0 without that side of a window"),
        ("window_right", c_int64, "the same"),
        (
            *("softcap", c_double),
            "scores s become softcap * tanh(s / softcap), 1e-3 to 1e3; 0: none",
        ),
        ("sink", c_int32, "1: each row's sum has another exponential, of the tensor of this role"),
        ("alibi", c_int32, "1: less the head's slope times the distance |i + diagonal - j|"),
        ("d_head_v", c_int32, "head dimension of V and O; 0: d_head"),
        ("packed", c_int32, "1: sequences of any lengths one after another, see fa_tune_tensors"),
        (
            *("total_q", c_int64),
            "Of a packed batch: the rows of Q in all.  seq_len_q and seq_len_kv are the longest "
            "then, and a causal mask, whichever, is aligned bottom-right in each sequence.",
        ),
        ("total_kv", c_int64, "the rows of K in all"),
        ("kv_e4m3", c_int32, "1: K and V are e4m3, see fa_tune_tensors"),
        (
            *("cached", c_int32),
            "1: the device says how many keys each sequence has, or where they are.  It decides "
            "the choice of a kernel alone: what is fastest where all are as long as one another "
            "may be slow where one is much longer.",
        ),
        (
            *("score_hook", c_int32),
            "1: scores go through the function that the kernel was compiled with",
        ),
        ("exact", c_int32, "1: only kernels whose largest weight is exactly 1; 0: any"),
    )


class Tensor(Struct):
    """A tensor in device memory, whose last dimension is contiguous; address NULL: not given.
    The stride of an extent of 1 may be anything."""

    _fields_, DOCS = _declared(
        ("address", c_void_p),
        ("batch_stride", c_int64, "in elements, as all strides"),
        ("seq_stride", c_int64),
        ("head_stride", c_int64),
    )


class Tensors(Struct):
    """The tensors of a call by their roles.

    Q [batch, seq_len_q, heads, d_head], K [batch, seq_len_kv, kv_heads, d_head], V and O like K
    and Q with d_head_v: the address and the strides in bytes are multiples of 16.
    LSE: fp32 [batch, heads, seq_len_q], contiguous, a multiple of 16; of a packed batch [heads,
    total_q].  SINK: fp32 [heads].  ALIBI_SLOPES: fp32 [batch, heads], heads contiguous; batch
    stride 0: the same slopes for the whole batch.  These are needed where the problem has them.

    A backward pass reads O and LSE as the forward pass left them (natural
    logarithms, a sink among them, -inf for rows that see no key) and DO, like O, and no SINK; where
    the problem has lse 1 also DLSE, like LSE, the gradient of that.  It writes all of DQ, like Q,
    of DK, like K, and of DV, like V.

    Of a packed batch Q and O are [total_q, heads, d_head], K and V [total_kv, kv_heads, d_head].
    CU_SEQLENS_Q, CU_SEQLENS_KV: int32 [batch + 1], sequence i is rows cu_seqlens[i] to
    cu_seqlens[i + 1].  USED_Q, USED_KV: int32 [batch], how many of them count; not given: all.

    What is known of K and V on the device alone is for kernels whose CTAs share blocks of keys
    (fa_tune_launch_plan); the others refuse it.
    CACHE_SEQLENS: int32 [batch]: sequence b has cache_seqlens[b] + added keys, seq_len_kv of the
    problem at most, and none if the sum is negative or beyond 2^31 - 1; a causal mask is then
    aligned bottom-right.  Not given: all have seq_len_kv.
    PAGE_TABLE: int32 [batch, pages of a sequence]: the page of each page_size keys.  K and V are
    then [pages, page_size, kv_heads, d_head].  Entries of pages that no query sees, behind a
    sequence's end or in front of a window, may be anything.  Not given: a sequence lies in one
    piece.
    NEW_K, NEW_V: [batch, added, kv_heads, ...], with CACHE_SEQLENS only: the last `added` keys and
    values of every sequence, which the call writes to their places in K and V.  Not given: they
    are there.  A window to the left must see all of them.

    NEW_K and NEW_V are of the type of K and V.  K_SCALE, V_SCALE: fp32 [batch, kv_heads], with the
    same strides, what numbers in e4m3 are multiplied with; not given: 1.
    """

    _fields_, DOCS = _declared(
        ("of", Tensor * len(TensorRole)),
        (
            *("workspace", c_void_p),
            "fa_tune_workspace_bytes of device memory, a multiple of 16; NULL where these are 0.  "
            "Other calls may use it once this one is done, and it may hold anything.",
        ),
        ("added", c_int32, "keys of a sequence beside CACHE_SEQLENS"),
        ("page_size", c_int32, "a multiple of 16, with PAGE_TABLE"),
    )


def _integers(kind: type[Any]) -> tuple[Any, dict[str, str]]:
    fields = dataclasses.fields(kind)
    return _declared(
        *((f.name, c_char_p if f.type == "str" else c_int32, f.metadata["doc"]) for f in fields)
    )


class LaunchPlanStruct(Struct):
    """`LaunchPlan`."""

    _fields_, DOCS = _integers(LaunchPlan)


class PlanStruct(Struct):
    """`Plan`."""

    _fields_, DOCS = _integers(Plan)


LaunchPlanStruct.__doc__, PlanStruct.__doc__ = LaunchPlan.__doc__, Plan.__doc__


class KernelInfo(Struct):
    """A compiled variant."""

    _fields_, DOCS = _declared(
        (
            *("config", c_char_p),
            "Its name, which need not be unique, since one config may be compiled for several "
            "kinds of problems and devices.",
        ),
        ("plan", PlanStruct),
        ("launches", ctypes.POINTER(LaunchPlanStruct), "one for each launch, plan.launches"),
        ("symbols", ctypes.POINTER(c_char_p), "one for each launch"),
        (
            *("image", ConstPointer),
            "A cubin, or PTX with a final zero; it is not copied and must stay as it is until the "
            "kernel is destroyed.",
        ),
        ("image_bytes", c_size_t),
    )


class Entry(Struct):
    """A workload that was tuned on a GPU model, and the config that was chosen for it."""

    _fields_, DOCS = _declared(
        ("gpu", c_char_p, 'as the driver spells it: "NVIDIA H200"'),
        ("problem", Problem),
        ("config", c_char_p),
    )


class SizedDefault(Struct):
    """What runs problems of few queries that are like this one, if nobody tuned them, on GPUs of
    this compute capability (ten times the major version and the minor) and on later ones."""

    _fields_, DOCS = _declared(
        ("compute_capability", c_int32),
        ("problem", Problem),
        ("config", c_char_p),
    )


class TableInfo(Struct):
    """`entries` that serve equally well are taken in their order.  `defaults`: configs for what
    nobody tuned, the one to prefer first; `sized_defaults` come before them where they serve."""

    _fields_, DOCS = _declared(
        ("kernels", ctypes.POINTER(KernelInfo)),
        ("kernel_count", c_size_t),
        ("entries", ctypes.POINTER(Entry)),
        ("entry_count", c_size_t),
        ("defaults", ctypes.POINTER(c_char_p)),
        ("default_count", c_size_t),
        ("sized_defaults", ctypes.POINTER(SizedDefault)),
        ("sized_default_count", c_size_t),
    )


class DeviceFacts(Struct):
    """What a launch depends on beside its problem and tensors."""

    _fields_, DOCS = _declared(
        ("multiprocessors", c_int32),
        ("unused", c_int32, "0"),
        ("l2_bytes", c_int64),
        ("counters", c_void_p, "device memory of zeros, counter_bytes of the launch's plan"),
    )


class TensorMap(Struct):
    """What the driver's cuTensorMapEncodeTiled is told of a tensor, innermost dimension first; what
    its rank leaves unused is 0.  A box has 64 columns, `box_rows` rows and one of all else."""

    _fields_, DOCS = _declared(
        ("address", c_uint64),
        ("dimensions", c_uint64 * DIMENSIONS),
        ("strides", c_uint64 * (DIMENSIONS - 1), "in bytes, of all dimensions but the innermost"),
        ("data_type", c_uint32, "CUtensorMapDataType"),
        ("rank", c_uint32),
        ("box_rows", c_uint32),
        ("unused", c_uint32, "0"),
    )


class Description(Struct):
    """One launch: what its kernel takes are the tensor maps, and then the struct of parameters."""

    _fields_, DOCS = _declared(
        ("grid", c_uint32 * 3),
        ("block", c_uint32 * 3),
        ("cluster", c_uint32 * 3, "as it was compiled; 1, 1, 1 is none"),
        ("shared_bytes", c_uint32, "dynamic shared memory of a CTA"),
        ("dependent", c_int32, "1: it may begin before the launch in front of it is done"),
        ("map_count", c_uint32),
        ("params_bytes", c_uint32),
        ("unused", c_uint32),
        ("workspace_bytes", c_uint64, "of the call, whether or not it is given"),
        ("maps", TensorMap * MAPS),
        ("params", c_uint64 * PARAMS_WORDS, "params_bytes of it"),
    )


# Of the header, each behind those that it needs.
STRUCTS: tuple[type[Struct], ...] = (
    *(LaunchPlanStruct, PlanStruct, Problem, Tensor, Tensors, KernelInfo, Entry, SizedDefault),
    *(TableInfo, DeviceFacts, TensorMap, Description),
)
_POINTER = ctypes.POINTER
_TO_PROBLEM, _TO_HANDLE = _POINTER(Problem), _POINTER(c_void_p)
_CALL = (c_void_p, _TO_PROBLEM, _POINTER(Tensors))
_LOOKUP = (_TO_PROBLEM, c_int, _TO_HANDLE)
# Name -> parameters.
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "fa_tune_abi_version": (),
    "fa_tune_last_error": (),
    "fa_tune_init": (),
    "fa_tune_kernel_create": (_POINTER(KernelInfo), _TO_HANDLE),
    "fa_tune_kernel_adopt": (_POINTER(KernelInfo), _TO_HANDLE, c_int, c_int, _TO_HANDLE),
    "fa_tune_kernel_destroy": (c_void_p,),
    "fa_tune_kernel_config": (c_void_p,),
    "fa_tune_kernel_plan": (c_void_p,),
    "fa_tune_prepare": (c_void_p, c_int),
    "fa_tune_workspace_bytes": (c_void_p, _TO_PROBLEM, c_int, _POINTER(c_size_t)),
    "fa_tune_launch": (*_CALL, c_int, c_void_p),
    "fa_tune_describe": (*_CALL, _POINTER(DeviceFacts), c_int, _POINTER(Description)),
    "fa_tune_table_create": (_POINTER(TableInfo), _TO_HANDLE),
    "fa_tune_table_destroy": (c_void_p,),
    "fa_tune_find": (c_void_p, *_LOOKUP),
    "fa_tune_find_config": (c_void_p, c_char_p, *_LOOKUP),
    "fa_tune_why": (c_void_p, _TO_PROBLEM, c_int, c_char_p, c_size_t),
    "fa_tune_table_prepare": (c_void_p, c_int),
}
# What the others give is a status.
_RESULTS: dict[str, Any] = {
    "fa_tune_last_error": c_char_p,
    "fa_tune_kernel_destroy": None,
    "fa_tune_kernel_config": c_char_p,
    "fa_tune_kernel_plan": _POINTER(PlanStruct),
    "fa_tune_table_destroy": None,
}


def load(path: Path) -> ctypes.CDLL:
    """The library at `path` with its functions declared.  Raises ToolMissing if it cannot be
    loaded or has another ABI."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ToolMissing(f"the C++ core cannot be loaded: {error}") from None
    for name, parameters in FUNCTIONS.items():
        function = getattr(library, name, None)
        if function is None:
            raise ToolMissing(f"{path} has no {name}: it is not the C++ core of this version")
        function.restype, function.argtypes = _RESULTS.get(name, c_int), parameters
    version = library.fa_tune_abi_version()
    if version != ABI_VERSION:
        raise ToolMissing(f"{path} has version {version} of the ABI; {ABI_VERSION} is needed")
    return library
