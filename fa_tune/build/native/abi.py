"""`csrc/core/fa_tune.h` in ctypes: its structs, functions and statuses."""

from __future__ import annotations

import ctypes
import dataclasses
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import Any

from fa_tune.core.errors import ToolMissing
from fa_tune.families.plan import LaunchPlan, Plan

ABI_VERSION = 5


class Status(IntEnum):
    """fa_tune_status."""

    OK = 0
    INVALID = 1
    NOT_FOUND = 2
    NO_DRIVER = 3
    DRIVER_ERROR = 4
    CAPTURING = 5
    NO_MEMORY = 6


class Mask(IntEnum):
    """fa_tune_mask."""

    FULL = 0
    CAUSAL = 1
    CAUSAL_BR = 2
    DIAGONAL = 3
    FULL_DIAGONAL = 4


class Window(IntFlag):
    """fa_tune_window."""

    NONE = 0
    LEFT = 1
    RIGHT = 2


class Problem(ctypes.Structure):
    """fa_tune_problem."""

    _fields_ = (
        ("operation", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("batch", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("seq_len_q", ctypes.c_int64),
        ("seq_len_kv", ctypes.c_int64),
        ("d_head", ctypes.c_int32),
        ("mask", ctypes.c_int32),
        ("diagonal", ctypes.c_int64),
        ("lse", ctypes.c_int32),
        ("window", ctypes.c_int32),
        ("softmax_scale", ctypes.c_double),
        ("window_left", ctypes.c_int64),
        ("window_right", ctypes.c_int64),
        ("softcap", ctypes.c_double),
        ("sink", ctypes.c_int32),
        ("alibi", ctypes.c_int32),
        ("d_head_v", ctypes.c_int32),
        ("packed", ctypes.c_int32),
        ("total_q", ctypes.c_int64),
        ("total_kv", ctypes.c_int64),
        ("kv_e4m3", ctypes.c_int32),
        ("cached", ctypes.c_int32),
    )


class Tensor(ctypes.Structure):
    """fa_tune_tensor."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("batch_stride", ctypes.c_int64),
        ("seq_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
    )


class Cache(ctypes.Structure):
    """fa_tune_cache."""

    _fields_ = (
        ("lengths", ctypes.c_void_p),
        ("pages", ctypes.c_void_p),
        ("added", ctypes.c_int32),
        ("page_size", ctypes.c_int32),
        ("page_stride", ctypes.c_int64),
        ("new_k", Tensor),
        ("new_v", Tensor),
    )


class Tensors(ctypes.Structure):
    """fa_tune_tensors."""

    _fields_ = (
        *((name, Tensor) for name in ("q", "k", "v", "o")),
        ("lse", ctypes.c_void_p),
        ("sink", ctypes.c_void_p),
        ("alibi_slopes", ctypes.c_void_p),
        ("alibi_batch_stride", ctypes.c_int64),
        *((n, ctypes.c_void_p) for n in ("cu_seqlens_q", "cu_seqlens_kv", "used_q", "used_kv")),
        ("workspace", ctypes.c_void_p),
        ("cache", Cache),
        *((name, ctypes.c_void_p) for name in ("k_scale", "v_scale")),
        *((name, ctypes.c_int64) for name in ("scale_batch_stride", "scale_head_stride")),
    )


def _integers(kind: type[Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((f.name, ctypes.c_int32) for f in dataclasses.fields(kind))


class CLaunchPlan(ctypes.Structure):
    """fa_tune_launch_plan."""

    _fields_ = _integers(LaunchPlan)


class CPlan(ctypes.Structure):
    """fa_tune_plan."""

    _fields_ = _integers(Plan)


class KernelInfo(ctypes.Structure):
    """fa_tune_kernel_info."""

    _fields_ = (
        ("config", ctypes.c_char_p),
        ("plan", CPlan),
        ("launches", ctypes.POINTER(CLaunchPlan)),
        ("symbols", ctypes.POINTER(ctypes.c_char_p)),
        ("image", ctypes.c_void_p),
        ("image_bytes", ctypes.c_size_t),
    )


class Entry(ctypes.Structure):
    """fa_tune_entry."""

    _fields_ = (("gpu", ctypes.c_char_p), ("problem", Problem), ("config", ctypes.c_char_p))


class SizedDefault(ctypes.Structure):
    """fa_tune_sized_default."""

    _fields_ = (
        ("compute_capability", ctypes.c_int32),
        ("problem", Problem),
        ("config", ctypes.c_char_p),
    )


class TableInfo(ctypes.Structure):
    """fa_tune_table_info."""

    _fields_ = (
        ("kernels", ctypes.POINTER(KernelInfo)),
        ("kernel_count", ctypes.c_size_t),
        ("entries", ctypes.POINTER(Entry)),
        ("entry_count", ctypes.c_size_t),
        ("defaults", ctypes.POINTER(ctypes.c_char_p)),
        ("default_count", ctypes.c_size_t),
        ("sized_defaults", ctypes.POINTER(SizedDefault)),
        ("sized_default_count", ctypes.c_size_t),
    )


_HANDLE = ctypes.c_void_p
_PROBLEM, _TENSORS = ctypes.POINTER(Problem), ctypes.POINTER(Tensors)
_HANDLE_OUT = ctypes.POINTER(ctypes.c_void_p)
# Name -> result, parameters.
FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "fa_tune_abi_version": (ctypes.c_int, ()),
    "fa_tune_last_error": (ctypes.c_char_p, ()),
    "fa_tune_init": (ctypes.c_int, ()),
    "fa_tune_kernel_create": (ctypes.c_int, (ctypes.POINTER(KernelInfo), _HANDLE_OUT)),
    "fa_tune_kernel_destroy": (None, (_HANDLE,)),
    "fa_tune_kernel_config": (ctypes.c_char_p, (_HANDLE,)),
    "fa_tune_kernel_plan": (ctypes.POINTER(CPlan), (_HANDLE,)),
    "fa_tune_prepare": (ctypes.c_int, (_HANDLE, ctypes.c_int)),
    "fa_tune_workspace_bytes": (
        ctypes.c_int,
        (_HANDLE, _PROBLEM, ctypes.c_int, ctypes.POINTER(ctypes.c_size_t)),
    ),
    "fa_tune_launch": (ctypes.c_int, (_HANDLE, _PROBLEM, _TENSORS, ctypes.c_int, ctypes.c_void_p)),
    "fa_tune_table_create": (ctypes.c_int, (ctypes.POINTER(TableInfo), _HANDLE_OUT)),
    "fa_tune_table_destroy": (None, (_HANDLE,)),
    "fa_tune_find": (ctypes.c_int, (_HANDLE, _PROBLEM, ctypes.c_int, _HANDLE_OUT)),
    "fa_tune_find_config": (
        ctypes.c_int,
        (_HANDLE, ctypes.c_char_p, _PROBLEM, ctypes.c_int, _HANDLE_OUT),
    ),
    "fa_tune_why": (
        ctypes.c_int,
        (_HANDLE, _PROBLEM, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t),
    ),
    "fa_tune_table_prepare": (ctypes.c_int, (_HANDLE, ctypes.c_int)),
}


def load(path: Path) -> ctypes.CDLL:
    """The library at `path` with its functions declared.  Raises ToolMissing if it cannot be
    loaded or has another ABI."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ToolMissing(f"the C++ core cannot be loaded: {error}") from None
    for name, (result, parameters) in FUNCTIONS.items():
        function = getattr(library, name, None)
        if function is None:
            raise ToolMissing(f"{path} has no {name}: it is not the C++ core of this version")
        function.restype, function.argtypes = result, parameters
    version = library.fa_tune_abi_version()
    if version != ABI_VERSION:
        raise ToolMissing(f"{path} has version {version} of the ABI; {ABI_VERSION} is needed")
    return library
