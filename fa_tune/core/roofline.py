"""What GPUs can do at most, as their makers state: the roof of a roofline model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Roof:
    """Dense 16-bit products, in TFLOP/s, and memory, in bytes per second."""

    tflops: float
    bytes_per_s: float


# By the names that drivers give; from the data sheets, without sparsity.
ROOFS: Mapping[str, Roof] = {
    "NVIDIA H200": Roof(989.4, 4.8e12),
    "NVIDIA H100 80GB HBM3": Roof(989.4, 3.35e12),
    "NVIDIA H100 PCIe": Roof(756.0, 2.0e12),
    "NVIDIA H100 NVL": Roof(835.5, 3.9e12),
    "NVIDIA H200 NVL": Roof(835.5, 4.8e12),
    "NVIDIA GH200 480GB": Roof(989.4, 4.0e12),
    "NVIDIA H20": Roof(148.0, 4.0e12),
    "NVIDIA A100-SXM4-80GB": Roof(312.0, 2.039e12),
    "NVIDIA A100-SXM4-40GB": Roof(312.0, 1.555e12),
}
