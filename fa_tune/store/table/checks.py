"""What in a row of a table of measurements cannot be true, by the row and its table alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean, median

from fa_tune import families
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import Outcome, Variant
from fa_tune.store.table.rows import Row, with_rates

METHODS = ("ncu", "events", "sustained")
_RATES = ("tflops", "attn_tflops", "matmul_tflops")
_EXACT = 1e-9
_ROUNDED = 1e-6  # figures that were written with fewer digits
_BY_HAND = 0.05  # those of tables without samples, whose times may have three digits


def named(row: Row, what: str) -> str:
    """What is said of a row, in one line that begins with its kernel."""
    return f"{' '.join(row.kernel.split())}: {what}"


def contradiction(row: Row) -> str | None:
    """What in a row cannot be true; None if nothing."""
    return next(_contradictions(row), None)


def _contradictions(row: Row) -> Iterator[str]:
    samples = row.samples_s or ()
    if row.method and row.method not in METHODS:
        yield f"the method is {row.method!r}, not {' or '.join(METHODS)}"
    if samples and row.n not in (None, len(samples)):
        yield f"n is {row.n}, but there are {len(samples)} samples"
    if samples and row.median_s is not None and not _close(row.median_s, median(samples)):
        yield "the median is not that of the samples"
    if 0 in (samples + (row.held_out_s or ()) + (row.relative or ())):
        yield "a sample, or its ratio to the baseline, is 0"
    if samples and row.duration_s is not None and not _close(row.duration_s, fmean(samples)):
        yield "the duration is not the mean of the samples"
    for name, of_samples in (("min_s", min), ("max_s", max)):
        value = getattr(row, name)
        if samples and value is not None and not _close(value, of_samples(samples)):
            yield f"the {name[:3]} is not that of the samples"
    for name in ("duration_s", "median_s"):
        least, value, most = row.min_s or 0, getattr(row, name), row.max_s or math.inf
        if value is not None and not least * (1 - _EXACT) <= value <= most * (1 + _EXACT):
            yield "mean or median is not between min and max"
    for ratios, of in ((row.relative, samples), (row.held_out_relative, row.held_out_s or ())):
        if ratios and len(ratios) != len(of):
            yield f"{len(ratios)} ratios to the baseline for {len(of)} samples"


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=_EXACT)


def _wrong_rates(row: Row) -> Iterator[str]:
    if row.outcome is not Outcome.OK or all(getattr(row, name) is None for name in _RATES):
        return
    right = with_rates(replace(row, tflops=None, attn_tflops=None, matmul_tflops=None))
    tolerance = _ROUNDED if row.samples_s else _BY_HAND
    for name in _RATES:
        said, follows = getattr(row, name), getattr(right, name)
        if None not in (said, follows) and not math.isclose(said, follows, rel_tol=tolerance):
            yield f"{said:.4g} TFLOP/s do not follow from time and workload, but {follows:.4g}"


def implausible(row: Row) -> str | None:
    """What in a row that does not contradict itself is of no config that anybody can read, or does
    not follow from config, workload and times; None if nothing."""
    if row.is_variant:
        try:
            config = families.config_of(Variant(row.family, row.kernel))
        except InvalidConfig as error:
            return str(error)
        dtype, d_head, *_ = families.kind_of(config)
        if row.d_head not in (None, d_head):
            return f"d_head is {row.d_head}, but the config's {d_head}"
        if row.dtype not in (None, dtype):
            return f"dtype is {row.dtype.name}, but the config's {dtype.name}"
    return next(_wrong_rates(row), None)
