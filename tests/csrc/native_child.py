"""What `fa_tune.build.native` says and raises: run with the stub in place of the driver.

Arguments: the core's library, an empty folder.  Prints `right`.
"""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fa_tune import families
from fa_tune.build.native import abi
from fa_tune.build.native.call import problem_of, tensors_by_role
from fa_tune.build.native.core import Core, KernelImage
from fa_tune.core.errors import (
    DriverError,
    FaTuneError,
    InvalidConfig,
    NoUsableVariant,
    StorageError,
)
from fa_tune.core.model import Artifact, Resources
from fa_tune.core.workload import DType, Workload
from tests.csrc.stub import Stub, image
from tests.csrc.tables import CoreTable, entry

WORKLOAD = Workload(2, 4, 4, 512, 512, 128, DType.FP16)
NAMED = {n: abi.Tensor(i << 24, 512 * 512, 512, 128) for i, n in enumerate("qkvo", 1)}
CALL = problem_of(WORKLOAD), tensors_by_role(NAMED)
GPU = "NVIDIA H200"  # the stub's
SIZES = [128, 128, 128, 128, 56]


def refused(error: type[FaTuneError], part: str, call: Callable[..., Any], *arguments: Any) -> None:
    with pytest.raises(error) as caught:
        call(*arguments)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def artifact_in(folder: Path) -> Artifact:
    """As the compiler leaves it, but for the binary, which is the stub's."""
    family = families.get("sm90")
    config = family.default_config(128, DType.FP16)
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(image([("mangled", SIZES)]))
    return Artifact(
        families.variant_of(family, config),
        family.traits(config, WORKLOAD),
        "sm_90a",
        str(cubin),
        "mangled",
        Resources(0, 0, 0, 0, 0, 0, 0, 0),
    )


def main(library: str, folder: str) -> None:
    stub, core = Stub(), Core(Path(library))
    artifact = artifact_in(Path(folder))
    made = KernelImage.of(artifact)
    assert (made.config, made.symbols) == (artifact.variant.key, ("mangled",))
    gone = dataclasses.replace(artifact, cubin=str(Path(folder) / "gone.cubin"))
    refused(StorageError, "gone.cubin", KernelImage.of, gone)

    kernel = core.kernel(made)
    kernel.launch(*CALL)
    assert [one.symbol for one in stub.launched()] == ["mangled"]
    causal = dataclasses.replace(WORKLOAD, causal=True)
    refused(InvalidConfig, "does not compute", kernel.launch, problem_of(causal), CALL[1])
    refused(InvalidConfig, "no symbol", core.kernel, dataclasses.replace(made, symbols=("",)))
    broken = core.kernel(dataclasses.replace(made, symbols=("other",)))
    refused(DriverError, "CUDA_ERROR_NOT_FOUND", broken.prepare)
    other = dataclasses.replace(WORKLOAD, op="sideways")
    refused(InvalidConfig, "sideways", problem_of, other)

    table = CoreTable(core, [made], [entry(GPU, WORKLOAD, made.config)])
    table.prepare()
    table.launch(*CALL)
    assert [one.symbol for one in stub.launched()] == ["mangled"]
    assert table.find(WORKLOAD) == table.find_config(made.config, WORKLOAD) == made.config
    assert table.why(WORKLOAD) == f"{made.config}: measured on {WORKLOAD.key}"
    refused(NoUsableVariant, f"computes {causal.key} on {GPU}", table.find, causal)
    refused(NoUsableVariant, f"there is: {made.config}", table.find_config, "sm90(x)", WORKLOAD)
    refused(InvalidConfig, "names nothing", CoreTable, core, [made], (), ["nothing"])
    print("right")


if __name__ == "__main__":
    main(*sys.argv[1:])
