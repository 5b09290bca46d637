// The specialisations of WgmmaM64K16 (wgmma.cuh), one for each kN and element type.
//
// asm wants every operand written out: it knows no arrays, templates cannot expand operands, and
// NVRTC takes no names for them.  Their numbers depend on kN, since the kN / 2 accumulators come
// first:
//
//     kN 16     %0 ... %7  accumulators    %8, %9, ... what else the statement takes: o0, o1, ...
//     kN 32     %0 ... %15                 %16, %17, ...
//
// So there is a macro for each of the four statements, and lists of numbers to fill in.
#pragma once

namespace fa_tune::ptx {

// clang-format off

// Eight numbers, from this one on.
#define FA_FROM_0 %0, %1, %2, %3, %4, %5, %6, %7
#define FA_FROM_8 %8, %9, %10, %11, %12, %13, %14, %15
#define FA_FROM_16 %16, %17, %18, %19, %20, %21, %22, %23
#define FA_FROM_24 %24, %25, %26, %27, %28, %29, %30, %31
#define FA_FROM_32 %32, %33, %34, %35, %36, %37, %38, %39
#define FA_FROM_40 %40, %41, %42, %43, %44, %45, %46, %47
#define FA_FROM_48 %48, %49, %50, %51, %52, %53, %54, %55
#define FA_FROM_56 %56, %57, %58, %59, %60, %61, %62, %63
#define FA_FROM_64 %64, %65, %66, %67, %68, %69, %70, %71
#define FA_FROM_72 %72, %73, %74, %75, %76, %77, %78, %79
#define FA_FROM_80 %80, %81, %82, %83, %84, %85, %86, %87
#define FA_FROM_88 %88, %89, %90, %91, %92, %93, %94, %95
#define FA_FROM_96 %96, %97, %98, %99, %100, %101, %102, %103
#define FA_FROM_104 %104, %105, %106, %107, %108, %109, %110, %111
#define FA_FROM_112 %112, %113, %114, %115, %116, %117, %118, %119
#define FA_FROM_120 %120, %121, %122, %123, %124, %125, %126, %127
#define FA_FROM_128 %128, %129, %130, %131, %132, %133, %134, %135
#define FA_FROM_136 %136, %137, %138, %139, %140, %141, %142, %143
#define FA_FROM_144 %144, %145, %146, %147, %148, %149, %150, %151

// The accumulators of kN columns: their numbers, and the operands.
#define FA_NUMBERS_16 FA_FROM_0
#define FA_NUMBERS_32 FA_NUMBERS_16, FA_FROM_8
#define FA_NUMBERS_48 FA_NUMBERS_32, FA_FROM_16
#define FA_NUMBERS_64 FA_NUMBERS_48, FA_FROM_24
#define FA_NUMBERS_80 FA_NUMBERS_64, FA_FROM_32
#define FA_NUMBERS_96 FA_NUMBERS_80, FA_FROM_40
#define FA_NUMBERS_112 FA_NUMBERS_96, FA_FROM_48
#define FA_NUMBERS_128 FA_NUMBERS_112, FA_FROM_56
#define FA_NUMBERS_144 FA_NUMBERS_128, FA_FROM_64
#define FA_NUMBERS_160 FA_NUMBERS_144, FA_FROM_72
#define FA_NUMBERS_176 FA_NUMBERS_160, FA_FROM_80
#define FA_NUMBERS_192 FA_NUMBERS_176, FA_FROM_88
#define FA_NUMBERS_208 FA_NUMBERS_192, FA_FROM_96
#define FA_NUMBERS_224 FA_NUMBERS_208, FA_FROM_104
#define FA_NUMBERS_240 FA_NUMBERS_224, FA_FROM_112
#define FA_NUMBERS_256 FA_NUMBERS_240, FA_FROM_120

#define FA_EIGHT(i)                                                                     \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]),                         \
    "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define FA_ACCUMULATORS_16 FA_EIGHT(0)
#define FA_ACCUMULATORS_32 FA_ACCUMULATORS_16, FA_EIGHT(8)
#define FA_ACCUMULATORS_48 FA_ACCUMULATORS_32, FA_EIGHT(16)
#define FA_ACCUMULATORS_64 FA_ACCUMULATORS_48, FA_EIGHT(24)
#define FA_ACCUMULATORS_80 FA_ACCUMULATORS_64, FA_EIGHT(32)
#define FA_ACCUMULATORS_96 FA_ACCUMULATORS_80, FA_EIGHT(40)
#define FA_ACCUMULATORS_112 FA_ACCUMULATORS_96, FA_EIGHT(48)
#define FA_ACCUMULATORS_128 FA_ACCUMULATORS_112, FA_EIGHT(56)
#define FA_ACCUMULATORS_144 FA_ACCUMULATORS_128, FA_EIGHT(64)
#define FA_ACCUMULATORS_160 FA_ACCUMULATORS_144, FA_EIGHT(72)
#define FA_ACCUMULATORS_176 FA_ACCUMULATORS_160, FA_EIGHT(80)
#define FA_ACCUMULATORS_192 FA_ACCUMULATORS_176, FA_EIGHT(88)
#define FA_ACCUMULATORS_208 FA_ACCUMULATORS_192, FA_EIGHT(96)
#define FA_ACCUMULATORS_224 FA_ACCUMULATORS_208, FA_EIGHT(104)
#define FA_ACCUMULATORS_240 FA_ACCUMULATORS_224, FA_EIGHT(112)
#define FA_ACCUMULATORS_256 FA_ACCUMULATORS_240, FA_EIGHT(120)

#define FA_STR_OF(...) #__VA_ARGS__
#define FA_STR(...) FA_STR_OF(__VA_ARGS__)

#define FA_MMA(n, type)                                                      \
    "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type          \
    " {" FA_STR(FA_NUMBERS_##n) "}, "
#define FA_IF(accumulate) "{\n.reg .pred p;\nsetp.ne.b32 p, " FA_STR(accumulate) ", 0;\n"
#define FA_A(...) "{" FA_STR(__VA_ARGS__) "}, "

#define FA_WGMMA_SS(n, type, o0, o1, o2, ...)                                                     \
    asm volatile(FA_IF(o2)                                                                        \
                 FA_MMA(n, type) FA_STR(o0, o1) ", p, 1, 1, 0, 0;\n}"                             \
                 : FA_ACCUMULATORS_##n                                                            \
                 : "l"(a), "l"(b), "r"(accumulate))

#define FA_WGMMA_SS4(n, type, o0, o1, o2, ...)                                                    \
    asm volatile(FA_IF(o2) ".reg .b64 a, b;\n"                                                    \
                 FA_MMA(n, type) FA_STR(o0, o1) ", p, 1, 1, 0, 0;\n"                              \
                 "add.s64 a, " FA_STR(o0) ", 2;\nadd.s64 b, " FA_STR(o1) ", 2;\n"                 \
                 FA_MMA(n, type) "a, b, 1, 1, 1, 0, 0;\n"                                         \
                 "add.s64 a, " FA_STR(o0) ", 4;\nadd.s64 b, " FA_STR(o1) ", 4;\n"                 \
                 FA_MMA(n, type) "a, b, 1, 1, 1, 0, 0;\n"                                         \
                 "add.s64 a, " FA_STR(o0) ", 6;\nadd.s64 b, " FA_STR(o1) ", 6;\n"                 \
                 FA_MMA(n, type) "a, b, 1, 1, 1, 0, 0;\n}"                                        \
                 : FA_ACCUMULATORS_##n                                                            \
                 : "l"(a), "l"(b), "r"(accumulate))

#define FA_WGMMA_RS(n, type, o0, o1, o2, o3, o4, o5, o6, ...)                                     \
    asm volatile(FA_IF(o5)                                                                        \
                 FA_MMA(n, type) FA_A(o0, o1, o2, o3) FA_STR(o4) ", p, 1, 1, " FA_STR(o6) ";\n}"  \
                 : FA_ACCUMULATORS_##n                                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate),           \
                   "n"(kNMajor ? 1 : 0))

#define FA_WGMMA_RS4(n, type, o0, o1, o2, o3, o4, o5, o6, o7, o8, o9, o10, o11, o12, o13, o14,    \
                     o15, o16, o17, o18, o19, o20, o21, ...)                                      \
    asm volatile(FA_IF(o17) ".reg .b64 b;\n"                                                      \
                 FA_MMA(n, type) FA_A(o0, o1, o2, o3) FA_STR(o16) ", p, 1, 1, " FA_STR(o18) ";\n" \
                 "add.s64 b, " FA_STR(o16, o19) ";\n"                                             \
                 FA_MMA(n, type) FA_A(o4, o5, o6, o7) "b, 1, 1, 1, " FA_STR(o18) ";\n"            \
                 "add.s64 b, " FA_STR(o16, o20) ";\n"                                             \
                 FA_MMA(n, type) FA_A(o8, o9, o10, o11) "b, 1, 1, 1, " FA_STR(o18) ";\n"          \
                 "add.s64 b, " FA_STR(o16, o21) ";\n"                                             \
                 FA_MMA(n, type) FA_A(o12, o13, o14, o15) "b, 1, 1, 1, " FA_STR(o18) ";\n}"       \
                 : FA_ACCUMULATORS_##n                                                            \
                 : "r"(a[0][0]), "r"(a[0][1]), "r"(a[0][2]), "r"(a[0][3]),                        \
                   "r"(a[1][0]), "r"(a[1][1]), "r"(a[1][2]), "r"(a[1][3]),                        \
                   "r"(a[2][0]), "r"(a[2][1]), "r"(a[2][2]), "r"(a[2][3]),                        \
                   "r"(a[3][0]), "r"(a[3][1]), "r"(a[3][2]), "r"(a[3][3]),                        \
                   "l"(b), "r"(accumulate), "n"(kNMajor ? 1 : 0), "n"(kNMajor ? 128 : 2),         \
                   "n"(kNMajor ? 256 : 4), "n"(kNMajor ? 384 : 6))

#define FA_WGMMA_STRUCT(n, bf16, type, ...)                                                       \
    template <>                                                                                   \
    struct WgmmaM64K16<n, bf16> {                                                                 \
        __device__ __forceinline__ static void ss(float (&d)[n / 2], unsigned long long a,        \
                                                  unsigned long long b, int accumulate) {         \
            FA_WGMMA_SS(n, type, __VA_ARGS__);                                                    \
        }                                                                                         \
        __device__ __forceinline__ static void ss4(float (&d)[n / 2], unsigned long long a,       \
                                                   unsigned long long b, int accumulate) {        \
            FA_WGMMA_SS4(n, type, __VA_ARGS__);                                                   \
        }                                                                                         \
        template <bool kNMajor>                                                                   \
        __device__ __forceinline__ static void rs(float (&d)[n / 2], const unsigned (&a)[4],      \
                                                  unsigned long long b, int accumulate) {         \
            FA_WGMMA_RS(n, type, __VA_ARGS__);                                                    \
        }                                                                                         \
        template <bool kNMajor>                                                                   \
        __device__ __forceinline__ static void rs4(float (&d)[n / 2], const unsigned (*a)[4],     \
                                                   unsigned long long b, int accumulate) {        \
            FA_WGMMA_RS4(n, type, __VA_ARGS__);                                                   \
        }                                                                                         \
    };

// o0, o1, ... of kN columns begin at number kN / 2; no statement takes more than 24.
#define FA_WGMMA(n, ...)                          \
    FA_WGMMA_STRUCT(n, false, "f16", __VA_ARGS__) \
    FA_WGMMA_STRUCT(n, true, "bf16", __VA_ARGS__)

FA_WGMMA(16, FA_FROM_8, FA_FROM_16, FA_FROM_24)
FA_WGMMA(32, FA_FROM_16, FA_FROM_24, FA_FROM_32)
FA_WGMMA(48, FA_FROM_24, FA_FROM_32, FA_FROM_40)
FA_WGMMA(64, FA_FROM_32, FA_FROM_40, FA_FROM_48)
FA_WGMMA(80, FA_FROM_40, FA_FROM_48, FA_FROM_56)
FA_WGMMA(96, FA_FROM_48, FA_FROM_56, FA_FROM_64)
FA_WGMMA(112, FA_FROM_56, FA_FROM_64, FA_FROM_72)
FA_WGMMA(128, FA_FROM_64, FA_FROM_72, FA_FROM_80)
FA_WGMMA(144, FA_FROM_72, FA_FROM_80, FA_FROM_88)
FA_WGMMA(160, FA_FROM_80, FA_FROM_88, FA_FROM_96)
FA_WGMMA(176, FA_FROM_88, FA_FROM_96, FA_FROM_104)
FA_WGMMA(192, FA_FROM_96, FA_FROM_104, FA_FROM_112)
FA_WGMMA(208, FA_FROM_104, FA_FROM_112, FA_FROM_120)
FA_WGMMA(224, FA_FROM_112, FA_FROM_120, FA_FROM_128)
FA_WGMMA(240, FA_FROM_120, FA_FROM_128, FA_FROM_136)
FA_WGMMA(256, FA_FROM_128, FA_FROM_136, FA_FROM_144)

// clang-format on

}  // namespace fa_tune::ptx
