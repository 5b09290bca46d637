// The kernels' own parameter structs.
#pragma once

#include "sm80/fwd/params.cuh"
#include "sm90/fwd/params.cuh"

namespace fa_tune::core {

union KernelParams {
    sm80::ForwardParams sm80_forward;
    sm90::ForwardParams sm90_forward;
};

}  // namespace fa_tune::core
