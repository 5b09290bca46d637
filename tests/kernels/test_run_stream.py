"""mma_sync/run_stream.cuh on the host: every step meets its own fragment, loaded in time."""

import shutil
import subprocess
from pathlib import Path

import pytest

from fa_tune.core.paths import kernels_dir

_PROGRAM = """
#include <cstdio>
#define __device__
#define __forceinline__ inline
#include "mma_sync/run_stream.cuh"

template <int kFragments, int kLength, int kRuns, int kLead, bool kTurning>
int check() {
    using Stream = fa_tune::mma_sync::RunStream<kFragments, kLength, kRuns, kLead, kTurning>;
    Stream stream;
    for (auto& slot : stream.registers) slot[0] = ~0u;
    int now = -1, wrong = 0, late = 0, loads = 0;
    int loaded_in[kFragments];
    auto load = [&](unsigned (&slot)[4], int x) { slot[0] = x; loaded_in[x] = now; ++loads; };
    stream.start(load);
    for (now = 0; now < Stream::kSteps; ++now) {
        stream.advance(now, load);
        const int forth = now / kLength % kRuns, group = now / (kLength * kRuns);
        const int run = kTurning && group % 2 == 1 ? kRuns - 1 - forth : forth;
        const int wanted = now / (kLength * kRuns) * kLength + now % kLength;
        const bool first_use = forth == 0;
        wrong += stream.at(now)[0] != unsigned(wanted) || Stream::run(now) != run;
        late += first_use && loaded_in[wanted] >= 0 && now - loaded_in[wanted] < kLead;
    }
    return 1000 * wrong + 100 * late + (loads != kFragments);
}

template <int kLead, bool kTurning>
int every() {
    return check<32, 4, 2, kLead, kTurning>() + check<48, 8, 2, kLead, kTurning>() +
           check<18, 3, 2, kLead, kTurning>() + check<32, 4, 1, kLead, kTurning>() +
           check<7, 1, 1, kLead, kTurning>() + check<12, 2, 3, kLead, kTurning>() +
           check<32, 2, 2, kLead, kTurning>() + check<4, 4, 2, kLead, kTurning>();
}

template <int kLead>
int all() {
    return every<kLead, false>() + every<kLead, true>();
}

int main() { std::printf("%d", all<1>() + all<2>() + all<4>() + all<6>() + all<8>() + all<12>()); }
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_every_step_meets_its_fragment(tmp_path: Path) -> None:
    (tmp_path / "main.cpp").write_text(_PROGRAM, "utf-8")
    binary = tmp_path / "main"
    command = ["g++", "-std=c++20", f"-I{kernels_dir()}", tmp_path / "main.cpp", "-o", binary]
    subprocess.run(command, check=True)
    assert subprocess.run([binary], capture_output=True, check=True, text=True).stdout == "0"
