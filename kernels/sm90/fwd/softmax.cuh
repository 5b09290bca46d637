// Softmax over the keys, block by block, for the 64 rows of a warpgroup.  Row i of a thread
// (i = 0, 1) are the scores s[4j + 2i], s[4j + 2i + 1]; a row lies in a quad of lanes.
//
//     m' = max(m, max_j c s_j)    a = 2^(m - m')          c = scale * log2(e)
//     p_j = 2^(c s_j - m')        l' = a l + sum_j p_j    O' = a O + P V
//
// A thread's l is the sum over its own columns; the quad adds them up at the end.  m need not be
// the maximum, only near enough to it that no p is too large.  Before a row's first score it is so
// low that any score outgrows it, and -inf does not.
//
// c s - m is one fused multiply-add, which knows c s exactly, but m is rounded: the exponent of the
// maximum itself is off by up to half a unit of m's last place, upwards or downwards.  Where m is
// large enough for that to show, the scores are multiplied by c first: rounded alike, the maximum's
// exponent is exact and no other is above it.
#pragma once

#include "common/constants.cuh"
#include "common/scores.cuh"
#include "ptx/cvt.cuh"
#include "ptx/ex2.cuh"
#include "ptx/lg2.cuh"
#include "sm90/fwd/config.cuh"
#include "sm90/fwd/dominant_weight.cuh"
#include "sm90/fwd/first_block.cuh"
#include "sm90/fwd/highest_score.cuh"

namespace fa_tune::sm90 {

template <Sm90Config CFG, int kScores>
struct Softmax {
    using First = FirstBlock<CFG.dtype == DType::BF16, kScores>;
    static constexpr float kLowest = -3e38f;
    static constexpr bool kBf16 = CFG.dtype == DType::BF16;
    static constexpr bool kWatches = CFG.rescale == Rescale::WATCHED_MAX;
    static constexpr bool kStaleMax = CFG.rescale == Rescale::STALE_MAX || kWatches;
    static constexpr bool kExactMax = CFG.rescale == Rescale::EXACT_MAX;
    static constexpr bool kKeepsMax = kStaleMax || CFG.rescale == Rescale::THRESHOLDED;
    // With stale_max m is stored this much above the maximum (in powers of two), ...
    static constexpr float kHeadroom = !kStaleMax ? 0.f : kBf16 ? 28.f : 2.f;
    static constexpr float kHeadroomFactor = !kStaleMax ? 1.f : kBf16 ? 0x1p28f : 4.f;
    // ... and where maxima come first, since the next blocks are likely to have higher ones, ...
    static constexpr float kMaxFirstHeadroom = kStaleMax && !kBf16 ? 6.f : kHeadroom;
    // ... but in fp16, which has fewer digits for small P, not where no block comes after this one
    // or one is not likely to outgrow it.
    static constexpr bool kFinalIsExact = kStaleMax && !kBf16;
    // Nor where rows are one key's in a tile's first block: no lane has more of a row's sum than
    // that key and the little that others leave.
    static constexpr float kMostOfOneKey = 1.f + 0x1p-5f;
    // ... and this is what a thread's share of a row's sum over one block may come to: no P is
    // larger then.  fp16 ends there; bf16 has the range of fp32.
    static constexpr float kMostOfStaleMax = kBf16 ? 256.f : 65504.f;
    // Of a row that is one key's but for this share, O is divided by that key's weight as it is
    // rounded.
    static constexpr float kOthers = kBf16 ? 0x1p-4f : 0x1p-11f;
    // The weight is known from a thread's sums over a block: of all its columns, or, where others
    // may have more, from what the even ones have more than the odd ones.
    static constexpr bool kByHalves = kStaleMax && kBf16;
    // m grows by whole powers of two up to this many, more than P can hold of such a row: the
    // weight's digits stay what they were when it was rounded.
    static constexpr float kWholeGrowth = kBf16 ? 30.f : 9.f;
    // How much a maximum may lag behind (in powers of two) where it is kept.
    static constexpr float kThreshold = 8.f;
    // Where as many of a warp's lanes, two rows to each, grew in two blocks, the next maxima are
    // those of every so many pairs of columns.  Sums show where that was too low.
    static constexpr int kMostGrew = 56;
    static constexpr int kSampled = CFG.rows_in_turn ? kScores / 8 : 4;
    static constexpr int kSteady = 64;
    // In a watched tile a row has a new m where its scores are above the old one by more than this
    // (in powers of two): P of no more than that is not too large.
    static constexpr float kWatchedGrowth = kBf16 ? 3.f : 8.f;
    // The factor `a` of a row that would have been corrected.
    static constexpr float kJump = kBf16 ? 0x1p-34f : 0x1p-16f;
    // The factor `a` of a row that grew so much that it may soon be too large again.
    static constexpr float kGrewMuch = 0x1p-8f;
    // Registers of a thread for O, and for S and P.
    static constexpr int kTileRegisters = CFG.padded_d_v() / 2 + CFG.B_c * 3 / 4;
    // Exponentials of a block that come before the wait for the last product: as many as there are
    // registers for.
    static constexpr bool kHasRoom = CFG.mma_warpgroups == 2 && CFG.min_ctas_per_sm == 1 &&
                                     CFG.padded_d_v() <= 128 && kTileRegisters <= 176;
    static constexpr int kEarly =
        (kStaleMax || kExactMax) && CFG.overlap && kHasRoom && kScores >= 32
            ? (CFG.rows_in_turn && kScores < 64 ? kScores / 2 : 32)
            : 0;
    // Whether maxima may come first.  Single warpgroups, many to a multiprocessor, have no issue
    // slots for the question, and the largest blocks no register.
    static constexpr bool kMaxMayBeFirst =
        kStaleMax && CFG.mma_warpgroups > 1 && kTileRegisters <= 176;

    float row_max[2], row_sum[2];  // m, l
    float largest[2];              // with stale_max: the most that one key of a block may have
    // Of a first block: how far m is above the maximum, and how far apart the warp's scores are.
    float room[2];
    unsigned apart;
    float scale_log2;  // c
    // Blocks to come whose maxima come before their exponentials.  With adaptive_max kSteady is
    // added where nearly all rows grew in the last of them, and twice that where they did in two.
    int max_first;
    int corrections;  // with watched_max, in this tile
    // With exact_max and in a watched tile: whether some m of the warp is negative, or its rounding
    // shows.
    bool any_special;

    __device__ __forceinline__ void set_scale(float softmax_scale) {
        scale_log2 = softmax_scale * kLog2E;
    }

    // s becomes p, unrounded; `a` is what O must be multiplied with.  kRaise: with adaptive_max, in
    // a first block that may have a mask.  `last`: no block of the tile comes after this one.
    template <bool kFirst, bool kRaise = false>
    __device__ __forceinline__ void update(float (&s)[kScores], float (&a)[2], bool last) {
        constexpr bool kRange = kFirst && kStaleMax && (kRaise || kMaxMayBeFirst);
        bool any_large = false;
        int least = 0;
        if constexpr (kRange) least = First::least_of_few(s, scale_log2);
        if constexpr (kFirst && !kRange) apart = ~0u;  // not known
        float highest[2], raise[2] = {0.f, 0.f};
#pragma unroll
        for (int i = 0; i < 2; ++i) highest[i] = scaled_max(highest_score(s, i));
        if constexpr (kRaise) {
            const int most = First::highest_of(highest);
            apart = First::range(least, most);
            if (!kFinalIsExact || !last) {
                First::raise_to(most, apart, s, scale_log2, highest, raise);
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float new_max = with_headroom(highest[i], kHeadroom, last);
            if constexpr (kRaise) new_max += raise[i];
            if constexpr (kFirst && kFinalIsExact) room[i] = last ? 0.f : kHeadroom + raise[i];
            new_max = fmaxf(kFirst ? kLowest : row_max[i], new_max);
            if constexpr (kKeepsMax && !kFirst) {
                if (row_max[i] - highest[i] >= -kThreshold) new_max = row_max[i];
            }
            if constexpr (kStaleMax && !kFirst) new_max = in_whole_powers(row_max[i], new_max);
            if constexpr (!kFirst) a[i] = ptx::ex2_approx(row_max[i] - new_max);
            row_max[i] = new_max;
            const bool large = any_lane(large_max(i));
            any_large |= large;
            const float factor = large ? scale_scores(s, i) : scale_log2;
            float part[2] = {0.f, 0.f};
#pragma unroll
            for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    float& x = s[4 * j + 2 * i + c];
                    x = exponential(x, factor, i);
                    part[kByHalves ? c : 0] += x;
                }
            }
            const float sum = kByHalves ? part[0] + part[1] : part[0];
            row_sum[i] = kFirst ? sum : fmaf(row_sum[i], a[i], sum);
            if constexpr (kStaleMax) {
                const float one = kByHalves ? fabsf(part[0] - part[1]) : sum;
                largest[i] = kFirst ? one : fmaxf(largest[i] * a[i], one);
            }
        }
        if constexpr (kStaleMax) {
            if constexpr (kRange && !kRaise) {
                const float maxima[2] = {row_max[0] - kHeadroom, row_max[1] - kHeadroom};
                apart = First::range(least, First::highest_of(maxima));
            }
            if (any_large) {
                max_first = kFirst ? 1 : max(max_first, 1);
            } else if constexpr (kFirst && kMaxMayBeFirst) {
                max_first = First::peaked_blocks(apart);
            } else if constexpr (kFirst) {
                max_first = 0;
            }
        }
    }

    // After the first block: without the room above m where all of the warp's rows are one key's,
    // which no later block is likely to outgrow.  Powers of two, so that nothing is rounded, which
    // a large m would be.
    __device__ __forceinline__ void lower_max_of_one_key(float (&s)[kScores]) {
        if (apart <= First::kClose) return;
        bool stays = false;
        float factor[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            factor[i] = __int_as_float(__float2int_rn(room[i]) + 127 << 23);
            if (row_sum[i] * factor[i] > kMostOfOneKey || large_max(i)) stays = true;
        }
        if (any_lane(stays)) return;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            row_max[i] -= room[i];
            row_sum[i] *= factor[i];
            largest[i] *= factor[i];
        }
#pragma unroll
        for (int x = 0; x < kScores; ++x) s[x] *= factor[x / 2 % 2];
    }

    // --- with a stale maximum --------------------------------------------------------------

    // Exponentials of kEarly scores by the m that is there, the first ones or with rows_in_turn the
    // first ones of row 0, and their sums: `part` is that of even and of odd columns for either
    // row.
    struct Early {
        float p[kEarly > 0 ? kEarly : 1];
        float part[2][2];
    };

    __device__ __forceinline__ void begin_with_stale_max(const float (&s)[kScores],
                                                         Early& early) const {
#pragma unroll
        for (int x = 0; x < kEarly; ++x) {
            const int score = CFG.rows_in_turn ? x / 2 * 4 + x % 2 : x;
            early.p[x] = exponential(s[score], scale_log2, score / 2 % 2);
            float& part = early.part[score / 2 % 2][score % 2];
            part = score < 4 ? early.p[x] : part + early.p[x];
        }
    }

    // A block's sums of P for a thread's rows, and with kByHalves what those of its even columns
    // have more than those of its odd ones.
    struct BlockSums {
        float row[2], difference[2];

        __device__ __forceinline__ void set(int i, const float (&part)[2]) {
            row[i] = part[0] + part[1];
            if constexpr (kByHalves) difference[i] = part[0] - part[1];
        }
    };

    // P of all scores, rounded and packed in order, and its sums over the block.  The scores stay
    // as they are.
    template <int kSteps>
    __device__ __forceinline__ void with_stale_max(const float (&s)[kScores], Early& early,
                                                   unsigned (&packed)[kSteps][4],
                                                   BlockSums& sums) const {
        auto& part = early.part;
#pragma unroll
        for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int x = 4 * j + 2 * i;
                float even, odd;
                const int place = CFG.rows_in_turn ? (i == 0 ? x / 2 : kEarly) : x;
                if (place < kEarly) {
                    even = early.p[place < kEarly ? place : 0];
                    odd = early.p[place < kEarly ? place + 1 : 0];
                } else {
                    even = exponential(s[x], scale_log2, i);
                    odd = exponential(s[x + 1], scale_log2, i);
                    part[i][0] = j == 0 ? even : part[i][0] + even;
                    part[i][1] = j == 0 ? odd : part[i][1] + odd;
                }
                packed[j / 2][j % 2 * 2 + i] = round(even, odd);
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) sums.set(i, part[i]);
    }

    // Whether P of some row i of the warp, by the m that was there, may not stay as it is.  A sum
    // of NaN may: its row has NaN whatever m is.
    __device__ __forceinline__ bool overflowed(const BlockSums& sums, int i) const {
        return any_lane(large_max(i) || sums.row[i] > kMostOfStaleMax);
    }

    __device__ __forceinline__ bool overflowed(const BlockSums& sums) const {
        return any_lane(max_first > 0 || sums.row[0] > kMostOfStaleMax ||
                        sums.row[1] > kMostOfStaleMax);
    }

    // m of row i becomes the maximum, of a sample where `of_sample`; `a` is what O must be
    // multiplied with.  `final`: the row's last, or one that few blocks will outgrow, for the row
    // overflowed (kCorrects).
    template <bool kCorrects = false>
    __device__ __forceinline__ void refresh_max(const float (&s)[kScores], float (&a)[2], int i,
                                                bool final, bool of_sample = false) {
        constexpr int kEach = CFG.adaptive_max ? kSampled : 1;
        float highest = s[2 * i];
#pragma unroll
        for (int j = 0; j < kScores / 4; j += kEach) {
            highest = fmaxf(highest, fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]));
        }
        if (kEach > 1 && !of_sample) {
#pragma unroll
            for (int j = 0; j < kScores / 4; ++j) {
                if (j % kEach == 0) continue;
                highest = fmaxf(highest, fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]));
            }
        }
        raise_max<kBf16 || kCorrects>(highest, a, i, final);
    }

    // The same of every kEach-th pair, not before `first` is there, a number of at least 0.
    // Otherwise the assembler puts both rows' maxima before all exponentials, which is no work for
    // the unit that takes those.
    template <int kEach>
    __device__ __forceinline__ void refresh_max_after(float first, const float (&s)[kScores],
                                                      float (&a)[2], int i, bool final) {
        float highest = fmaf(first, 0.f, negative_infinity());
#pragma unroll
        for (int j = 0; j < kScores / 4; j += kEach) {
            highest = fmaxf(fmaxf(highest, s[4 * j + 2 * i]), s[4 * j + 2 * i + 1]);
        }
        raise_max<kBf16>(highest, a, i, final);
    }

    // P and the sum of row i anew, by the m that is there now.  The scores are gone afterwards.
    template <int kSteps>
    __device__ __forceinline__ void with_new_max(float (&s)[kScores], unsigned (&packed)[kSteps][4],
                                                 BlockSums& sums, int i, bool large) const {
        const float factor = large ? scale_scores(s, i) : scale_log2;
        float part[2];
#pragma unroll
        for (int j = 0; j < kScores / 4; ++j) {
            const float even = exponential(s[4 * j + 2 * i], factor, i);
            const float odd = exponential(s[4 * j + 2 * i + 1], factor, i);
            part[0] = j == 0 ? even : part[0] + even;
            part[1] = j == 0 ? odd : part[1] + odd;
            packed[j / 2][j % 2 * 2 + i] = round(even, odd);
        }
        sums.set(i, part);
    }

    // After a block whose maxima came first and made rows grow by 1 / `a`: the next block's come
    // first as well while a quarter of the rows grow.  Returns whether P has to be taken again: a
    // row has an m whose rounding shows, or one of a sample was too low.
    __device__ __forceinline__ bool decide_max_first(const float (&a)[2], const BlockSums& sums) {
        bool again = large_max(0) || large_max(1);
        if constexpr (CFG.adaptive_max) {
            again = again || sums.row[0] > kMostOfStaleMax || sums.row[1] > kMostOfStaleMax;
        }
        again = any_lane(again);
        const int grew = count_lanes(a[0] < 1.f) + count_lanes(a[1] < 1.f);
        if constexpr (CFG.adaptive_max) {
            const int steady = max_first >= kSteady ? 2 * kSteady : kSteady;
            max_first = max(max_first % kSteady - 1, again || grew >= 16 ? 1 : 0) +
                        (grew >= kMostGrew ? steady : 0);
        } else {
            max_first = max(max_first - 1, again || grew >= 16 ? 1 : 0);
        }
        return again;
    }

    // Whether the next maxima that come first are those of a sample.
    __device__ __forceinline__ bool samples() const {
        return CFG.adaptive_max && max_first >= 2 * kSteady;
    }

    __device__ __forceinline__ void add(const BlockSums& sums) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            row_sum[i] += sums.row[i];
            const float one = kByHalves ? fabsf(sums.difference[i]) : sums.row[i];
            largest[i] = fmaxf(largest[i], one);
        }
    }

    // --- with maxima in every block --------------------------------------------------------

    // m of rows from `first` to before `end` becomes c times the highest score so far, or in a
    // watched tile remains near it; `a` is what O must be multiplied with.  Not before `number` is
    // there.
    __device__ __forceinline__ void take_maxima(const float (&s)[kScores], float (&a)[2], int first,
                                                int end, float number) {
        int highest[2];
#pragma unroll
        for (int i = first; i < end; ++i) highest[i] = highest_bits(s, i, number);
        if (any_special) {
#pragma unroll
            for (int i = first; i < end; ++i) {
                const int of_negative = highest_bits_of_negative(s, i);
                highest[i] = highest[i] < 0 ? of_negative : highest[i];
            }
        }
#pragma unroll
        for (int i = first; i < end; ++i) {
            const float most = scaled_max(__int_as_float(highest[i]));
            float new_max = fmaxf(row_max[i], most);
            if constexpr (kWatches) {
                const float next =
                    in_whole_powers(row_max[i], with_headroom(most, kHeadroom, true));
                new_max = most > row_max[i] + kWatchedGrowth ? next : row_max[i];
            }
            a[i] = ptx::ex2_approx(row_max[i] - new_max);
            row_max[i] = new_max;
        }
    }

    // After new maxima.
    __device__ __forceinline__ void look_at_maxima() {
        any_special =
            any_lane(row_max[0] < 0.f || row_max[1] < 0.f || large_max(0) || large_max(1));
    }

    __device__ __forceinline__ void count_jumps(const float (&a)[2]) {
        if (any_lane(a[0] < kJump || a[1] < kJump)) ++corrections;
    }

    __device__ __forceinline__ void add(const BlockSums& sums, const float (&a)[2]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            row_sum[i] = fmaf(row_sum[i], a[i], sums.row[i]);
            const float one = kByHalves ? fabsf(sums.difference[i]) : sums.row[i];
            if constexpr (kStaleMax) largest[i] = fmaxf(largest[i] * a[i], one);
        }
    }

    // --- parts -----------------------------------------------------------------------------

    // The largest of a thread's scores of row i.
    __device__ __forceinline__ static float highest_score(const float (&s)[kScores], int i) {
        float even = s[2 * i], odd = s[2 * i + 1];
#pragma unroll
        for (int j = 1; j < kScores / 4; ++j) {
            even = fmaxf(even, s[4 * j + 2 * i]);
            odd = fmaxf(odd, s[4 * j + 2 * i + 1]);
        }
        return fmaxf(even, odd);
    }

    // m of row i becomes that of its largest score of a block, kWhole: in whole powers of two.
    template <bool kWhole>
    __device__ __forceinline__ void raise_max(float highest, float (&a)[2], int i, bool final) {
        const float next = with_headroom(scaled_max(highest), kMaxFirstHeadroom, final);
        float new_max = fmaxf(row_max[i], next);
        if constexpr (kWhole) new_max = in_whole_powers(row_max[i], new_max);
        a[i] = ptx::ex2_approx(row_max[i] - new_max);
        row_max[i] = new_max;
        row_sum[i] *= a[i];
        largest[i] *= a[i];
    }

    // The m that follows one, `next` or up to 2^0.5 less.
    __device__ __forceinline__ static float in_whole_powers(float m, float next) {
        const float growth = next - m;
        const float whole = (growth + 0x1.8p23f) - 0x1.8p23f;
        return growth <= kWholeGrowth ? m + whole : next;
    }

    // c times the largest of a row's scores.
    __device__ __forceinline__ float scaled_max(float highest) const {
        return __fmul_rn(quad_max(highest), scale_log2);
    }

    // The m that is stored for c times a maximum, which may be the row's final one.
    __device__ __forceinline__ static float with_headroom(float highest, float room, bool final) {
        return room == 0.f || kFinalIsExact && final ? highest : highest + room;
    }

    // Whether the rounding of row i's m shows.
    __device__ __forceinline__ bool large_max(int i) const {
        return fabsf(row_max[i]) >= kLargeMax && row_max[i] != kLowest;
    }

    // The scores of row i times c, rounded as m is; returns the factor that is left, 1.
    __device__ __forceinline__ float scale_scores(float (&s)[kScores], int i) const {
#pragma unroll
        for (int j = 0; j < kScores / 4; ++j) {
            s[4 * j + 2 * i] = __fmul_rn(s[4 * j + 2 * i], scale_log2);
            s[4 * j + 2 * i + 1] = __fmul_rn(s[4 * j + 2 * i + 1], scale_log2);
        }
        return 1.f;
    }

    __device__ __forceinline__ static bool any_lane(bool of_lane) {
        return __any_sync(kAllLanes, of_lane);
    }

    // Of the warp's lanes, four for each row.
    __device__ __forceinline__ static int count_lanes(bool of_lane) {
        return __popc(__ballot_sync(kAllLanes, of_lane));
    }

    // Of score x of row i; `factor` is c, or 1 where the score has been multiplied by c.
    __device__ __forceinline__ float exponential(float x, float factor, int i) const {
        return ptx::ex2_approx(fmaf(x, factor, -row_max[i]));
    }

    __device__ __forceinline__ static unsigned round(float lower, float upper) {
        return CFG.dtype == DType::BF16 ? ptx::cvt_rn_bf16x2_f32(lower, upper)
                                        : ptx::cvt_rn_f16x2_f32(lower, upper);
    }

    // What tells a dominant key's weight apart from the sums.
    struct TileFacts {
        int blocks;  // of keys, that the tile had
        float v;     // the largest of a few elements of V, in magnitude
    };

    // What O of each row is to be divided by besides its sum.
    template <int kOutputs>
    __device__ __forceinline__ void take_rounding(const float (&sum)[2], const float (&o)[kOutputs],
                                                  const TileFacts& tile, float (&off)[2]) const {
        off[0] = off[1] = 0.f;
        constexpr float kLeast = 1.f - kOthers;
        if (!any_lane(largest[0] > sum[0] * kLeast || largest[1] > sum[1] * kLeast)) return;
        const float most[2] = {quad_max(largest[0]), quad_max(largest[1])};
        // One of so many sums has the key, and as much of the others as the rest of the sums each.
        const float share = kByHalves ? 0.f : 1.f / static_cast<float>(4 * tile.blocks - 1);
        DominantWeight<CFG.dtype> weight[2];
        bool unsure = false;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float others = sum[i] - most[i];
            weight[i] = {most[i] - others * share, others};
            if (others < sum[i] * kOthers) off[i] = weight[i].rounding();
            if (weight[i].unsure(off[i])) unsure = true;
            // fp16 has no digits to lose there: the others' weights have lost more.
            if (kBf16 && weight[i].has_no_value(o, i, tile.v)) off[i] = 0.f;
        }
        if (!any_lane(unsure)) return;
#pragma unroll
        for (int i = 0; i < 2; ++i) off[i] = weight[i].decide(o, i, off[i]);
    }

    __device__ __forceinline__ static float divisor(float sum, float off) {
        return kStaleMax ? sum + off : sum;
    }

    // The rows' 1 / l, their log-sum-exp, and whether no score of theirs was above -inf: these have
    // 0 and -inf.
    // `sink`: with kSink, the exponent of a score that every row has besides.
    template <bool kSink, int kOutputs>
    __device__ __forceinline__ void finish(const float (&o)[kOutputs], float (&inverse)[2],
                                           float (&log_sum_exp)[2], bool (&empty)[2], float sink,
                                           const TileFacts& tile) {
        float sum[2] = {quad_sum(row_sum[0]), quad_sum(row_sum[1])}, off[2];
        if constexpr (kStaleMax) take_rounding(sum, o, tile, off);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            empty[i] = sum[i] == 0.f;
            if constexpr (kSink) {
                const float a = add_sink(sink, row_max[i], sum[i]);
                if constexpr (kStaleMax) off[i] *= a;
                inverse[i] = sum[i] == 0.f ? 0.f : a / divisor(sum[i], off[i]);
                log_sum_exp[i] = sum[i] == 0.f ? negative_infinity()
                                               : (row_max[i] + ptx::lg2_approx(sum[i])) * kLn2;
                continue;
            }
            inverse[i] = empty[i] ? 0.f : 1.f / divisor(sum[i], off[i]);
            log_sum_exp[i] =
                empty[i]
                    ? negative_infinity()
                    : (row_max[i] - kHeadroom + ptx::lg2_approx(sum[i] * kHeadroomFactor)) * kLn2;
        }
    }
};

}  // namespace fa_tune::sm90
