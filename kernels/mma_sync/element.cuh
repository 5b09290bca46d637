// What differs between fp16 and bf16: the multiply-accumulate and the rounding.
#pragma once

#include "common/dtype.cuh"
#include "ptx/cvt.cuh"
#include "ptx/mma.cuh"

namespace fa_tune::mma_sync {

template <DType kType>
struct Element;

template <>
struct Element<DType::FP16> {
    __device__ __forceinline__ static void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0,
                                               unsigned b1) {
        ptx::mma_m16n8k16_f32_f16(d, a, b0, b1);
    }
    __device__ __forceinline__ static unsigned pack(float lower, float upper) {
        return ptx::cvt_rn_f16x2_f32(lower, upper);
    }
};

template <>
struct Element<DType::BF16> {
    __device__ __forceinline__ static void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0,
                                               unsigned b1) {
        ptx::mma_m16n8k16_f32_bf16(d, a, b0, b1);
    }
    __device__ __forceinline__ static unsigned pack(float lower, float upper) {
        return ptx::cvt_rn_bf16x2_f32(lower, upper);
    }
};

}  // namespace fa_tune::mma_sync
