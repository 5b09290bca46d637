// D, a row's sum of O times dO, and what else the backward pass needs of a row.
#pragma once

#include "common/backward/score_changes.cuh"
#include "common/constants.cuh"
#include "common/dtype.cuh"
#include "ptx/e4m3.cuh"

namespace fa_tune {

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

// LSE to base 2, with what scores have less there; of a row that sees no key, whose P is 0 then,
// +inf.
template <WorkloadTraits TRAITS>
__device__ __forceinline__ float to_base_2(const BackwardParams& p, float lse) {
    if (lse == negative_infinity()) return infinity();
    if constexpr (has_score_shift<TRAITS>()) lse += score_shift<TRAITS>(p);
    return lse * kLog2E;
}

// The sum of the products of two pairs of elements.
template <DType DTYPE>
__device__ __forceinline__ float product_of_pairs(unsigned a, unsigned b) {
    if constexpr (DTYPE == DType::BF16) {
        return __int_as_float(a << 16) * __int_as_float(b << 16) +
               __int_as_float(a & 0xffff0000u) * __int_as_float(b & 0xffff0000u);
    } else {
        float a_lower, a_upper, b_lower, b_upper;
        ptx::cvt_f32_f16x2(a_lower, a_upper, a);
        ptx::cvt_f32_f16x2(b_lower, b_upper, b);
        return a_lower * b_lower + a_upper * b_upper;
    }
}

// The same of eight elements each.
template <DType DTYPE>
__device__ __forceinline__ float product_of_chunks(const uint4& a, const uint4& b) {
    return product_of_pairs<DTYPE>(a.x, b.x) + product_of_pairs<DTYPE>(a.y, b.y) +
           product_of_pairs<DTYPE>(a.z, b.z) + product_of_pairs<DTYPE>(a.w, b.w);
}

}  // namespace fa_tune
