// The specialisations of WgmmaM64K16: lists of operands, one for each kN.  Nothing to read here;
// wgmma.cuh says what they do.
#pragma once

namespace fa_tune::ptx {

#define FA_REGS_8 "%0, %1, %2, %3"
#define FA_REGS_16 FA_REGS_8 ", %4, %5, %6, %7"
#define FA_REGS_24 FA_REGS_16 ", %8, %9, %10, %11"
#define FA_REGS_32 FA_REGS_24 ", %12, %13, %14, %15"
#define FA_REGS_40 FA_REGS_32 ", %16, %17, %18, %19"
#define FA_REGS_48 FA_REGS_40 ", %20, %21, %22, %23"
#define FA_REGS_56 FA_REGS_48 ", %24, %25, %26, %27"
#define FA_REGS_64 FA_REGS_56 ", %28, %29, %30, %31"
#define FA_REGS_72 FA_REGS_64 ", %32, %33, %34, %35"
#define FA_REGS_80 FA_REGS_72 ", %36, %37, %38, %39"
#define FA_REGS_88 FA_REGS_80 ", %40, %41, %42, %43"
#define FA_REGS_96 FA_REGS_88 ", %44, %45, %46, %47"
#define FA_REGS_104 FA_REGS_96 ", %48, %49, %50, %51"
#define FA_REGS_112 FA_REGS_104 ", %52, %53, %54, %55"
#define FA_REGS_120 FA_REGS_112 ", %56, %57, %58, %59"
#define FA_REGS_128 FA_REGS_120 ", %60, %61, %62, %63"
#define FA_REGS_136 FA_REGS_128 ", %64, %65, %66, %67"
#define FA_REGS_144 FA_REGS_136 ", %68, %69, %70, %71"
#define FA_REGS_152 FA_REGS_144 ", %72, %73, %74, %75"
#define FA_REGS_160 FA_REGS_152 ", %76, %77, %78, %79"
#define FA_REGS_168 FA_REGS_160 ", %80, %81, %82, %83"
#define FA_REGS_176 FA_REGS_168 ", %84, %85, %86, %87"
#define FA_REGS_184 FA_REGS_176 ", %88, %89, %90, %91"
#define FA_REGS_192 FA_REGS_184 ", %92, %93, %94, %95"
#define FA_REGS_200 FA_REGS_192 ", %96, %97, %98, %99"
#define FA_REGS_208 FA_REGS_200 ", %100, %101, %102, %103"
#define FA_REGS_216 FA_REGS_208 ", %104, %105, %106, %107"
#define FA_REGS_224 FA_REGS_216 ", %108, %109, %110, %111"
#define FA_REGS_232 FA_REGS_224 ", %112, %113, %114, %115"
#define FA_REGS_240 FA_REGS_232 ", %116, %117, %118, %119"
#define FA_REGS_248 FA_REGS_240 ", %120, %121, %122, %123"
#define FA_REGS_256 FA_REGS_248 ", %124, %125, %126, %127"

#define FA_OPERANDS_8 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define FA_OPERANDS_16 FA_OPERANDS_8, "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define FA_OPERANDS_24 FA_OPERANDS_16, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define FA_OPERANDS_32 FA_OPERANDS_24, "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define FA_OPERANDS_40 FA_OPERANDS_32, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define FA_OPERANDS_48 FA_OPERANDS_40, "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define FA_OPERANDS_56 FA_OPERANDS_48, "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27])
#define FA_OPERANDS_64 FA_OPERANDS_56, "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define FA_OPERANDS_72 FA_OPERANDS_64, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define FA_OPERANDS_80 FA_OPERANDS_72, "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define FA_OPERANDS_88 FA_OPERANDS_80, "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43])
#define FA_OPERANDS_96 FA_OPERANDS_88, "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define FA_OPERANDS_104 FA_OPERANDS_96, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51])
#define FA_OPERANDS_112 FA_OPERANDS_104, "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define FA_OPERANDS_120 FA_OPERANDS_112, "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59])
#define FA_OPERANDS_128 FA_OPERANDS_120, "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define FA_OPERANDS_136 FA_OPERANDS_128, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
#define FA_OPERANDS_144 FA_OPERANDS_136, "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define FA_OPERANDS_152 FA_OPERANDS_144, "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75])
#define FA_OPERANDS_160 FA_OPERANDS_152, "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define FA_OPERANDS_168 FA_OPERANDS_160, "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83])
#define FA_OPERANDS_176 FA_OPERANDS_168, "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define FA_OPERANDS_184 FA_OPERANDS_176, "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91])
#define FA_OPERANDS_192 FA_OPERANDS_184, "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define FA_OPERANDS_200 FA_OPERANDS_192, "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99])
#define FA_OPERANDS_208 FA_OPERANDS_200, "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define FA_OPERANDS_216 FA_OPERANDS_208, "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107])
#define FA_OPERANDS_224 FA_OPERANDS_216, "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define FA_OPERANDS_232 FA_OPERANDS_224, "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115])
#define FA_OPERANDS_240 FA_OPERANDS_232, "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define FA_OPERANDS_248 FA_OPERANDS_240, "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123])
#define FA_OPERANDS_256 FA_OPERANDS_248, "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

// clang-format off
#define FA_MMA(n, type) \
    "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" FA_REGS_##n "}, "
#define FA_IF(accumulate) "{\n.reg .pred p;\nsetp.ne.b32 p, " accumulate ", 0;\n"
#define FA_A(r0, r1, r2, r3) "{" r0 ", " r1 ", " r2 ", " r3 "}, "

// Operands after the kN / 2 accumulators are numbered o0, o1, ...
#define FA_WGMMA_SS4(n, type, o0, o1, o2)                                                \
    asm volatile(FA_IF(o2) ".reg .b64 a, b;\n"                                           \
                 FA_MMA(n, type) o0 ", " o1 ", p, 1, 1, 0, 0;\n"                         \
                 "add.s64 a, " o0 ", 2;\nadd.s64 b, " o1 ", 2;\n"                        \
                 FA_MMA(n, type) "a, b, 1, 1, 1, 0, 0;\n"                                \
                 "add.s64 a, " o0 ", 4;\nadd.s64 b, " o1 ", 4;\n"                        \
                 FA_MMA(n, type) "a, b, 1, 1, 1, 0, 0;\n"                                \
                 "add.s64 a, " o0 ", 6;\nadd.s64 b, " o1 ", 6;\n"                        \
                 FA_MMA(n, type) "a, b, 1, 1, 1, 0, 0;\n}"                               \
                 : FA_OPERANDS_##n                                                       \
                 : "l"(a), "l"(b), "r"(accumulate))

#define FA_WGMMA_RS(n, type, o0, o1, o2, o3, o4, o5, o6)                                 \
    asm volatile(FA_IF(o5)                                                               \
                 FA_MMA(n, type) FA_A(o0, o1, o2, o3) o4 ", p, 1, 1, " o6 ";\n}"         \
                 : FA_OPERANDS_##n                                                       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate),  \
                   "n"(kNMajor ? 1 : 0))

#define FA_WGMMA_RS4(n, type, o0, o1, o2, o3, o4, o5, o6, o7, o8, o9, o10, o11, o12,     \
                     o13, o14, o15, o16, o17, o18, o19, o20, o21)                        \
    asm volatile(FA_IF(o17) ".reg .b64 b;\n"                                             \
                 FA_MMA(n, type) FA_A(o0, o1, o2, o3) o16 ", p, 1, 1, " o18 ";\n"        \
                 "add.s64 b, " o16 ", " o19 ";\n"                                        \
                 FA_MMA(n, type) FA_A(o4, o5, o6, o7) "b, 1, 1, 1, " o18 ";\n"           \
                 "add.s64 b, " o16 ", " o20 ";\n"                                        \
                 FA_MMA(n, type) FA_A(o8, o9, o10, o11) "b, 1, 1, 1, " o18 ";\n"         \
                 "add.s64 b, " o16 ", " o21 ";\n"                                        \
                 FA_MMA(n, type) FA_A(o12, o13, o14, o15) "b, 1, 1, 1, " o18 ";\n}"      \
                 : FA_OPERANDS_##n                                                       \
                 : "r"(a[0][0]), "r"(a[0][1]), "r"(a[0][2]), "r"(a[0][3]),               \
                   "r"(a[1][0]), "r"(a[1][1]), "r"(a[1][2]), "r"(a[1][3]),               \
                   "r"(a[2][0]), "r"(a[2][1]), "r"(a[2][2]), "r"(a[2][3]),               \
                   "r"(a[3][0]), "r"(a[3][1]), "r"(a[3][2]), "r"(a[3][3]),               \
                   "l"(b), "r"(accumulate), "n"(kNMajor ? 1 : 0), "n"(kNMajor ? 128 : 2), \
                   "n"(kNMajor ? 256 : 4), "n"(kNMajor ? 384 : 6))
// clang-format on

#define FA_WGMMA_STRUCT(n, bf16, type, o0, o1, o2, o3, o4, o5, o6, o7, o8, o9, o10, o11, o12, o13, \
                        o14, o15, o16, o17, o18, o19, o20, o21)                                    \
    template <>                                                                                    \
    struct WgmmaM64K16<n, bf16> {                                                                  \
        __device__ __forceinline__ static void ss4(float (&d)[n / 2], unsigned long long a,        \
                                                   unsigned long long b, int accumulate) {         \
            FA_WGMMA_SS4(n, type, o0, o1, o2);                                                     \
        }                                                                                          \
        template <bool kNMajor>                                                                    \
        __device__ __forceinline__ static void rs(float (&d)[n / 2], const unsigned (&a)[4],       \
                                                  unsigned long long b, int accumulate) {          \
            FA_WGMMA_RS(n, type, o0, o1, o2, o3, o4, o5, o6);                                      \
        }                                                                                          \
        template <bool kNMajor>                                                                    \
        __device__ __forceinline__ static void rs4(float (&d)[n / 2], const unsigned (*a)[4],      \
                                                   unsigned long long b, int accumulate) {         \
            FA_WGMMA_RS4(n, type, o0, o1, o2, o3, o4, o5, o6, o7, o8, o9, o10, o11, o12, o13, o14, \
                         o15, o16, o17, o18, o19, o20, o21);                                       \
        }                                                                                          \
    };

#define FA_WGMMA(n, ...)                          \
    FA_WGMMA_STRUCT(n, false, "f16", __VA_ARGS__) \
    FA_WGMMA_STRUCT(n, true, "bf16", __VA_ARGS__)

FA_WGMMA(16, "%8", "%9", "%10", "%11", "%12", "%13", "%14", "%15", "%16", "%17", "%18", "%19",
         "%20", "%21", "%22", "%23", "%24", "%25", "%26", "%27", "%28", "%29")
FA_WGMMA(32, "%16", "%17", "%18", "%19", "%20", "%21", "%22", "%23", "%24", "%25", "%26", "%27",
         "%28", "%29", "%30", "%31", "%32", "%33", "%34", "%35", "%36", "%37")
FA_WGMMA(48, "%24", "%25", "%26", "%27", "%28", "%29", "%30", "%31", "%32", "%33", "%34", "%35",
         "%36", "%37", "%38", "%39", "%40", "%41", "%42", "%43", "%44", "%45")
FA_WGMMA(64, "%32", "%33", "%34", "%35", "%36", "%37", "%38", "%39", "%40", "%41", "%42", "%43",
         "%44", "%45", "%46", "%47", "%48", "%49", "%50", "%51", "%52", "%53")
FA_WGMMA(80, "%40", "%41", "%42", "%43", "%44", "%45", "%46", "%47", "%48", "%49", "%50", "%51",
         "%52", "%53", "%54", "%55", "%56", "%57", "%58", "%59", "%60", "%61")
FA_WGMMA(96, "%48", "%49", "%50", "%51", "%52", "%53", "%54", "%55", "%56", "%57", "%58", "%59",
         "%60", "%61", "%62", "%63", "%64", "%65", "%66", "%67", "%68", "%69")
FA_WGMMA(112, "%56", "%57", "%58", "%59", "%60", "%61", "%62", "%63", "%64", "%65", "%66", "%67",
         "%68", "%69", "%70", "%71", "%72", "%73", "%74", "%75", "%76", "%77")
FA_WGMMA(128, "%64", "%65", "%66", "%67", "%68", "%69", "%70", "%71", "%72", "%73", "%74", "%75",
         "%76", "%77", "%78", "%79", "%80", "%81", "%82", "%83", "%84", "%85")
FA_WGMMA(144, "%72", "%73", "%74", "%75", "%76", "%77", "%78", "%79", "%80", "%81", "%82", "%83",
         "%84", "%85", "%86", "%87", "%88", "%89", "%90", "%91", "%92", "%93")
FA_WGMMA(160, "%80", "%81", "%82", "%83", "%84", "%85", "%86", "%87", "%88", "%89", "%90", "%91",
         "%92", "%93", "%94", "%95", "%96", "%97", "%98", "%99", "%100", "%101")
FA_WGMMA(176, "%88", "%89", "%90", "%91", "%92", "%93", "%94", "%95", "%96", "%97", "%98", "%99",
         "%100", "%101", "%102", "%103", "%104", "%105", "%106", "%107", "%108", "%109")
FA_WGMMA(192, "%96", "%97", "%98", "%99", "%100", "%101", "%102", "%103", "%104", "%105", "%106",
         "%107", "%108", "%109", "%110", "%111", "%112", "%113", "%114", "%115", "%116", "%117")
FA_WGMMA(208, "%104", "%105", "%106", "%107", "%108", "%109", "%110", "%111", "%112", "%113",
         "%114", "%115", "%116", "%117", "%118", "%119", "%120", "%121", "%122", "%123", "%124",
         "%125")
FA_WGMMA(224, "%112", "%113", "%114", "%115", "%116", "%117", "%118", "%119", "%120", "%121",
         "%122", "%123", "%124", "%125", "%126", "%127", "%128", "%129", "%130", "%131", "%132",
         "%133")
FA_WGMMA(240, "%120", "%121", "%122", "%123", "%124", "%125", "%126", "%127", "%128", "%129",
         "%130", "%131", "%132", "%133", "%134", "%135", "%136", "%137", "%138", "%139", "%140",
         "%141")
FA_WGMMA(256, "%128", "%129", "%130", "%131", "%132", "%133", "%134", "%135", "%136", "%137",
         "%138", "%139", "%140", "%141", "%142", "%143", "%144", "%145", "%146", "%147", "%148",
         "%149")

#undef FA_WGMMA
#undef FA_WGMMA_STRUCT
#undef FA_WGMMA_RS
#undef FA_WGMMA_RS4
#undef FA_WGMMA_SS4
#undef FA_A
#undef FA_IF
#undef FA_MMA
#undef FA_REGS_8
#undef FA_REGS_16
#undef FA_REGS_24
#undef FA_REGS_32
#undef FA_REGS_40
#undef FA_REGS_48
#undef FA_REGS_56
#undef FA_REGS_64
#undef FA_REGS_72
#undef FA_REGS_80
#undef FA_REGS_88
#undef FA_REGS_96
#undef FA_REGS_104
#undef FA_REGS_112
#undef FA_REGS_120
#undef FA_REGS_128
#undef FA_REGS_136
#undef FA_REGS_144
#undef FA_REGS_152
#undef FA_REGS_160
#undef FA_REGS_168
#undef FA_REGS_176
#undef FA_REGS_184
#undef FA_REGS_192
#undef FA_REGS_200
#undef FA_REGS_208
#undef FA_REGS_216
#undef FA_REGS_224
#undef FA_REGS_232
#undef FA_REGS_240
#undef FA_REGS_248
#undef FA_REGS_256
#undef FA_OPERANDS_8
#undef FA_OPERANDS_16
#undef FA_OPERANDS_24
#undef FA_OPERANDS_32
#undef FA_OPERANDS_40
#undef FA_OPERANDS_48
#undef FA_OPERANDS_56
#undef FA_OPERANDS_64
#undef FA_OPERANDS_72
#undef FA_OPERANDS_80
#undef FA_OPERANDS_88
#undef FA_OPERANDS_96
#undef FA_OPERANDS_104
#undef FA_OPERANDS_112
#undef FA_OPERANDS_120
#undef FA_OPERANDS_128
#undef FA_OPERANDS_136
#undef FA_OPERANDS_144
#undef FA_OPERANDS_152
#undef FA_OPERANDS_160
#undef FA_OPERANDS_168
#undef FA_OPERANDS_176
#undef FA_OPERANDS_184
#undef FA_OPERANDS_192
#undef FA_OPERANDS_200
#undef FA_OPERANDS_208
#undef FA_OPERANDS_216
#undef FA_OPERANDS_224
#undef FA_OPERANDS_232
#undef FA_OPERANDS_240
#undef FA_OPERANDS_248
#undef FA_OPERANDS_256

}  // namespace fa_tune::ptx
