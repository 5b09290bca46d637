// The kernels' own parameter structs.
#pragma once

#include "decode/params.cuh"
#include "sm80/fwd/params.cuh"
#include "sm90/fwd/params.cuh"

namespace fa_tune::core {

union KernelParams {
    sm80::ForwardParams sm80_forward;
    sm90::ForwardParams sm90_forward;
    decode::DecodeParams decode;
};

}  // namespace fa_tune::core
