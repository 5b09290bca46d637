#pragma once

#include "sm90/config.cuh"

template <Sm90Config CFG>
struct Constraints {
    static_assert(CFG.B_r == 64 * CFG.consumers, "B_r must be 64 times consumers");
};
