// wgmma that overwrites its accumulators, and wgmma whose B is n-major while A is in shared memory.
// PTX ISA: wgmma.mma_async.sync.aligned.m64nNk16.  Minimum: sm_90a.
//
// What WgmmaM64K16 (wgmma.cuh) is given as accumulators it may read, so that these take up their
// registers before the product begins as well.  Those of WgmmaOverwriting are outputs alone: what
// they held before is free until then.  Each statement is four steps along k, or two.
//     ss2, ss4       D = A B, both k-major
//     ss4_n_major    D = A B, B n-major
#pragma once

#include "ptx/wgmma.cuh"

namespace fa_tune::ptx {

template <int kN, bool kBf16>
struct WgmmaOverwriting;

// D += A B, B n-major.
template <int kN, bool kBf16>
struct WgmmaNMajor;

// clang-format off

#define FA_OUT(i)                                                                       \
    "=f"(d[i]), "=f"(d[i + 1]), "=f"(d[i + 2]), "=f"(d[i + 3]),                         \
    "=f"(d[i + 4]), "=f"(d[i + 5]), "=f"(d[i + 6]), "=f"(d[i + 7])
#define FA_OUTPUTS_16 FA_OUT(0)
#define FA_OUTPUTS_32 FA_OUTPUTS_16, FA_OUT(8)
#define FA_OUTPUTS_48 FA_OUTPUTS_32, FA_OUT(16)
#define FA_OUTPUTS_64 FA_OUTPUTS_48, FA_OUT(24)
#define FA_OUTPUTS_80 FA_OUTPUTS_64, FA_OUT(32)
#define FA_OUTPUTS_96 FA_OUTPUTS_80, FA_OUT(40)
#define FA_OUTPUTS_112 FA_OUTPUTS_96, FA_OUT(48)
#define FA_OUTPUTS_128 FA_OUTPUTS_112, FA_OUT(56)

// The second to fourth of four steps: A goes on by 32 bytes, B by `by` of its units each.
#define FA_THREE_MORE(n, type, major, by1, by2, by3, o0, o1)                                       \
    "add.s64 a, " FA_STR(o0) ", 2;\nadd.s64 b, " FA_STR(o1) ", " #by1 ";\n"                        \
    FA_MMA(n, type) "a, b, 1, 1, 1, 0, " #major ";\n"                                              \
    "add.s64 a, " FA_STR(o0) ", 4;\nadd.s64 b, " FA_STR(o1) ", " #by2 ";\n"                        \
    FA_MMA(n, type) "a, b, 1, 1, 1, 0, " #major ";\n"                                              \
    "add.s64 a, " FA_STR(o0) ", 6;\nadd.s64 b, " FA_STR(o1) ", " #by3 ";\n"                        \
    FA_MMA(n, type) "a, b, 1, 1, 1, 0, " #major ";\n}"

#define FA_WGMMA_NEW(n, type, major, by1, by2, by3, o0, o1, ...)                                   \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n.reg .b64 a, b;\n"                       \
                 FA_MMA(n, type) FA_STR(o0, o1) ", p, 1, 1, 0, " #major ";\n"                      \
                 FA_THREE_MORE(n, type, major, by1, by2, by3, o0, o1)                              \
                 : FA_OUTPUTS_##n                                                                  \
                 : "l"(a), "l"(b))

#define FA_WGMMA_NEW_TWO(n, type, o0, o1, ...)                                                     \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n.reg .b64 a, b;\n"                       \
                 FA_MMA(n, type) FA_STR(o0, o1) ", p, 1, 1, 0, 0;\n"                              \
                 "add.s64 a, " FA_STR(o0) ", 2;\nadd.s64 b, " FA_STR(o1) ", 2;\n"                 \
                 FA_MMA(n, type) "a, b, 1, 1, 1, 0, 0;\n}"                                        \
                 : FA_OUTPUTS_##n                                                                  \
                 : "l"(a), "l"(b))

#define FA_WGMMA_N_MAJOR(n, type, o0, o1, ...)                                                     \
    asm volatile("{\n.reg .b64 a, b;\n"                                                            \
                 FA_MMA(n, type) FA_STR(o0, o1) ", 1, 1, 1, 0, 1;\n"                               \
                 FA_THREE_MORE(n, type, 1, 128, 256, 384, o0, o1)                                  \
                 : FA_ACCUMULATORS_##n                                                             \
                 : "l"(a), "l"(b))

#define FA_WGMMA_NEW_STRUCT(n, bf16, type, ...)                                                    \
    template <>                                                                                    \
    struct WgmmaOverwriting<n, bf16> {                                                             \
        __device__ __forceinline__ static void ss2(float (&d)[n / 2], unsigned long long a,        \
                                                   unsigned long long b) {                         \
            FA_WGMMA_NEW_TWO(n, type, __VA_ARGS__);                                                \
        }                                                                                          \
        __device__ __forceinline__ static void ss4(float (&d)[n / 2], unsigned long long a,        \
                                                   unsigned long long b) {                         \
            FA_WGMMA_NEW(n, type, 0, 2, 4, 6, __VA_ARGS__);                                        \
        }                                                                                          \
        __device__ __forceinline__ static void ss4_n_major(                                        \
            float (&d)[n / 2], unsigned long long a, unsigned long long b) {                       \
            FA_WGMMA_NEW(n, type, 1, 128, 256, 384, __VA_ARGS__);                                  \
        }                                                                                          \
    };                                                                                             \
    template <>                                                                                    \
    struct WgmmaNMajor<n, bf16> {                                                                  \
        __device__ __forceinline__ static void ss4(float (&d)[n / 2], unsigned long long a,        \
                                                   unsigned long long b) {                         \
            FA_WGMMA_N_MAJOR(n, type, __VA_ARGS__);                                                \
        }                                                                                          \
    };

// o0, o1 of kN columns are number kN / 2 and the next.
#define FA_WGMMA_NEW_BOTH(n, ...)                     \
    FA_WGMMA_NEW_STRUCT(n, false, "f16", __VA_ARGS__) \
    FA_WGMMA_NEW_STRUCT(n, true, "bf16", __VA_ARGS__)

FA_WGMMA_NEW_BOTH(32, FA_FROM_16)
FA_WGMMA_NEW_BOTH(48, FA_FROM_24)
FA_WGMMA_NEW_BOTH(64, FA_FROM_32)
FA_WGMMA_NEW_BOTH(80, FA_FROM_40)
FA_WGMMA_NEW_BOTH(96, FA_FROM_48)
FA_WGMMA_NEW_BOTH(112, FA_FROM_56)
FA_WGMMA_NEW_BOTH(128, FA_FROM_64)

// clang-format on

}  // namespace fa_tune::ptx
