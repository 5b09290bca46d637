// On the host: kernels/ptx/red_v4.cuh.  Other threads may come between the words.
#pragma once

namespace fa_tune::ptx {

inline void red_add_v4(float* address, float a, float b, float c, float d) {
    const float words[4] = {a, b, c, d};
    for (int i = 0; i < 4; ++i) {
        if (i % 2 == 0) emulator::point();
        address[i] += words[i];
    }
}

}  // namespace fa_tune::ptx
