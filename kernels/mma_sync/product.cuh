// A warp's product of two operands in shared memory or registers, whose fragments come just before
// they are multiplied.
//
//     B   load 0 | load 1 | mul 0 | load 2 | mul 1 | ...    a fragment of 16 columns ahead
//     A   those of the next k-tile with the first B of this one
#pragma once

namespace fa_tune::mma_sync {

// D += A B.  d[m][n]: the 16x8 tile of rows 16 m and columns 8 n.  load_a(fragment, t, m) gives the
// 16x16 tile of rows 16 m and k-tile t, load_b(fragment, t, j) that of k-tile t and columns 16 j.
template <class Element, int kSteps, int kTilesM, int kTilesN, class LoadA, class LoadB>
__device__ __forceinline__ void multiply(float (&d)[kTilesM][kTilesN][4], const LoadA& load_a,
                                         const LoadB& load_b) {
    static_assert(kTilesN % 2 == 0, "a fragment of B has 16 columns");
    constexpr int kPairs = kTilesN / 2, kAll = kSteps * kPairs;
    constexpr int kAhead = 1, kRing = kAhead + 1;
    unsigned a[2][kTilesM][4], b[kRing][4];
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) load_a(a[0][m], 0, m);
#pragma unroll
    for (int u = 0; u < kAhead && u < kAll; ++u) load_b(b[u], u / kPairs, u % kPairs);
#pragma unroll
    for (int t = 0; t < kSteps; ++t) {
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
            const int u = t * kPairs + j;
            const int next = u + kAhead;
            if (next < kAll) load_b(b[next % kRing], next / kPairs, next % kPairs);
            if (j == 0 && t + 1 < kSteps) {
#pragma unroll
                for (int m = 0; m < kTilesM; ++m) load_a(a[(t + 1) % 2][m], t + 1, m);
            }
#pragma unroll
            for (int m = 0; m < kTilesM; ++m) {
                Element::mma(d[m][2 * j], a[t % 2][m], b[u % kRing][0], b[u % kRing][1]);
                Element::mma(d[m][2 * j + 1], a[t % 2][m], b[u % kRing][2], b[u % kRing][3]);
            }
        }
    }
}

template <int kTilesM, int kTilesN>
__device__ __forceinline__ void clear(float (&d)[kTilesM][kTilesN][4]) {
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
        for (int n = 0; n < kTilesN; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) d[m][n][i] = 0.f;
        }
    }
}

}  // namespace fa_tune::mma_sync
