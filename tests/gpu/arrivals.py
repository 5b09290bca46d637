"""Kernels of ours in which every lane arrives where one does for its warp, as racecheck can follow.

What lanes have read comes before the arrival of one of them by __syncwarp, which racecheck does not
take into account: it calls a race what refills the place when that one has arrived.  With an
arrival of each lane only the true ones are left."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from fa_tune import families
from fa_tune.build import nvrtc
from fa_tune.build.compile import OPTIONS
from fa_tune.core.model import Artifact

# Of sm90_bwd: what waits for warps, and where one lane arrives for its own.
EDITS = (
    ("constexpr int kConsumerWarps = 8;", "constexpr int kConsumerWarps = 8 * 32;"),
    ("if (lane == 0) ptx::mbarrier_arrive(barrier);", "ptx::mbarrier_arrive(barrier);"),
    ("if (lane == 0) {\n            ptx::mbarrier_arrive(barrier);",
     "{\n            ptx::mbarrier_arrive(barrier);"),
)  # fmt: skip


def of_all_lanes(headers: Mapping[str, str]) -> dict[str, str]:
    """The sources of sm90_bwd with arrivals of all lanes, or any others as they are."""
    if not any(name.startswith("sm90/bwd/") for name in headers):
        return dict(headers)
    found, made = dict(headers), set()
    for name, (old, new) in ((name, edit) for name in headers for edit in EDITS):
        if old in found[name]:
            found[name] = found[name].replace(old, new)
            made.add(old)
    assert len(made) == len(EDITS), "each of the edits is of something"
    return found


def with_all_lanes(artifacts: Sequence[Artifact], folder: Path) -> Iterator[Artifact]:
    """The same kernels, compiled of such sources."""
    with ProcessPoolExecutor() as pool:
        places = (folder / f"{i}.cubin" for i in range(len(artifacts)))
        yield from pool.map(_compiled, artifacts, places)


def _compiled(artifact: Artifact, place: Path) -> Artifact:
    family, config = families.get(artifact.variant.family), families.config_of(artifact.variant)
    headers = of_all_lanes(family.source_files())
    if headers == family.source_files():
        return artifact
    made = nvrtc.compile_source(
        family.entry_source(config, artifact.traits),
        "kernel.cu",
        headers,
        (f"--gpu-architecture={artifact.arch}", *OPTIONS),
        tuple(family.name_expressions(config, artifact.traits)),
    )
    place.write_bytes(made.image)
    return dataclasses.replace(artifact, cubin=str(place))
