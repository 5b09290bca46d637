#include "problem.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <tuple>
#include <utility>

#include "operands.h"

namespace fa_tune::core {

namespace {

// The scale is multiplied in fp32, whose normal numbers it and its product with log2(e) must be.
constexpr double kMinScale = 1e-30, kMaxScale = 1e30;
// A score below a soft cap is off by up to 2^-23 of the cap.
constexpr double kMinSoftcap = 1e-3, kMaxSoftcap = 1e3;
constexpr std::int64_t kMaxSize = std::numeric_limits<std::int32_t>::max();

const char* dtype_name(std::int32_t dtype) {
    const ElementType* found = dtype_of(dtype);
    return found != nullptr ? found->word : "unknown";
}

void check_size(const char* name, std::int64_t size) {
    if (size < 1) {
        fail(FA_TUNE_INVALID, "%s must be at least 1, not %lld", name, wide(size));
    }
    if (size > kMaxSize) {
        fail(FA_TUNE_INVALID, "%s must be at most %lld, not %lld", name, wide(kMaxSize),
             wide(size));
    }
}

void check_packed(const fa_tune_problem& problem) {
    if (problem.packed == 0) {
        if (problem.total_q == 0 && problem.total_kv == 0) return;
        fail(FA_TUNE_INVALID, "total_q and total_kv are those of a packed batch");
    }
    if (problem.mask == FA_TUNE_MASK_DIAGONAL || problem.mask == FA_TUNE_MASK_FULL_DIAGONAL) {
        fail(FA_TUNE_INVALID, "each sequence of a packed batch has a diagonal of its own");
    }
    check_size("total_q", problem.total_q);
    check_size("total_kv", problem.total_kv);
}

void check_window(const fa_tune_problem& problem) {
    constexpr std::int32_t kBoth = FA_TUNE_WINDOW_LEFT + FA_TUNE_WINDOW_RIGHT;
    if (problem.window < FA_TUNE_WINDOW_NONE || problem.window > kBoth) {
        fail(FA_TUNE_INVALID, "unknown window %d", problem.window);
    }
    const struct {
        const char* name;
        std::int32_t side;
        std::int64_t keys;
    } sides[] = {{"window_left", FA_TUNE_WINDOW_LEFT, problem.window_left},
                 {"window_right", FA_TUNE_WINDOW_RIGHT, problem.window_right}};
    for (const auto& [name, side, keys] : sides) {
        if (keys < 0) {
            fail(FA_TUNE_INVALID, "%s must be at least 0, not %lld", name, wide(keys));
        }
        if (keys != 0 && (problem.window & side) == 0) {
            fail(FA_TUNE_INVALID, "%s needs that side in window", name);
        }
    }
}

bool has(const fa_tune_problem& problem, fa_tune_window side) {
    return (problem.window & side) != 0;
}

// Beyond the tensor it is the same mask as at its edge, and sums stay within 32 bits.  Those of a
// packed batch are counted from the alignment of last queries with last keys.
std::int32_t at_edge(std::int64_t diagonal, const fa_tune_problem& problem) {
    const bool packed = problem.packed != 0;
    const std::int64_t least = packed ? -problem.seq_len_kv : -problem.seq_len_q;
    const std::int64_t most = packed ? problem.seq_len_q : problem.seq_len_kv;
    return static_cast<std::int32_t>(std::clamp(diagonal, least, most));
}

// Diagonals and windows beyond these hide all or nothing of sizes below 2^31, and their sums are
// within 64 bits.
constexpr std::int64_t kFar = std::int64_t{1} << 40, kWide = std::int64_t{1} << 33;

bool is_ragged(const fa_tune_plan& plan, const fa_tune_problem& problem) {
    return problem.packed != 0 || problem.seq_len_q % plan.block_q != 0 ||
           problem.seq_len_kv % plan.block_kv != 0;
}

}  // namespace

void check_problem(const fa_tune_problem& problem) {
    const struct {
        const char* name;
        std::int64_t size;
    } sizes[] = {{"batch", problem.batch},           {"heads", problem.heads},
                 {"kv_heads", problem.kv_heads},     {"seq_len_q", problem.seq_len_q},
                 {"seq_len_kv", problem.seq_len_kv}, {"d_head", problem.d_head}};
    for (const auto& [name, size] : sizes) check_size(name, size);
    if (problem.heads % problem.kv_heads != 0) {
        fail(FA_TUNE_INVALID, "%lld kv heads do not divide %lld heads", wide(problem.kv_heads),
             wide(problem.heads));
    }
    if (!is_operation(problem.operation)) {
        fail(FA_TUNE_INVALID, "unknown operation %d", problem.operation);
    }
    if (dtype_of(problem.dtype) == nullptr) {
        std::string allowed;
        for (const ElementType& one : kDtypes) {
            allowed += allowed.empty() ? "" : ", ";
            allowed += std::to_string(one.number) + " (" + one.word + ")";
        }
        fail(FA_TUNE_INVALID, "unknown dtype %d; allowed: %s", problem.dtype, allowed.c_str());
    }
    if (problem.mask < FA_TUNE_MASK_FULL || problem.mask > FA_TUNE_MASK_FULL_DIAGONAL) {
        fail(FA_TUNE_INVALID, "unknown mask %d", problem.mask);
    }
    if (problem.diagonal != 0 && problem.mask != FA_TUNE_MASK_DIAGONAL &&
        problem.mask != FA_TUNE_MASK_FULL_DIAGONAL) {
        fail(FA_TUNE_INVALID, "a diagonal needs FA_TUNE_MASK_DIAGONAL");
    }
    for (const auto& [name, value] :
         {std::pair{"lse", problem.lse}, std::pair{"sink", problem.sink},
          std::pair{"alibi", problem.alibi}, std::pair{"kv_e4m3", problem.kv_e4m3},
          std::pair{"cached", problem.cached}, std::pair{"score_hook", problem.score_hook},
          std::pair{"packed", problem.packed}, std::pair{"exact", problem.exact}}) {
        if (value != 0 && value != 1) {
            fail(FA_TUNE_INVALID, "%s must be 0 or 1, not %d", name, value);
        }
    }
    if (problem.d_head_v < 0) {
        fail(FA_TUNE_INVALID, "d_head_v must be at least 1, or 0 as d_head, not %d",
             problem.d_head_v);
    }
    if (problem.score_hook != 0 && problem.softcap != 0) {
        fail(FA_TUNE_INVALID, "softcap and a score hook: write the cap into the hook");
    }
    check_window(problem);
    check_packed(problem);
    for (const auto& [name, value, least, most] :
         {std::tuple{"softmax_scale", problem.softmax_scale, kMinScale, kMaxScale},
          std::tuple{"softcap", problem.softcap, kMinSoftcap, kMaxSoftcap}}) {
        if (value != 0 && !(value >= least && value <= most)) {  // NaN is not, either
            fail(FA_TUNE_INVALID, "%s must be between %g and %g, not %g", name, least, most, value);
        }
    }
}

// Whether masks are those that a kernel was compiled with.
static bool has_mask(const fa_tune_plan& plan, const fa_tune_problem& problem) {
    return (plan.causal != 0) == (is_causal(problem) || has(problem, FA_TUNE_WINDOW_RIGHT)) &&
           (plan.window != 0) == has(problem, FA_TUNE_WINDOW_LEFT);
}

// The same of a mask in any of its forms.
static bool has_form_of_mask(const fa_tune_plan& plan, const fa_tune_problem& problem) {
    return has_mask(plan, problem) ||
           (problem.window != 0 && has_mask(plan, with_settled_window(problem))) ||
           (is_causal(problem) && has_mask(plan, settled(problem)));
}

// The same with what changes scores.  Kernels with a window compute wide ones as well.
static bool computes_scores(const fa_tune_plan& plan, const fa_tune_problem& problem) {
    return has_form_of_mask(plan, problem) && plan.sink == problem.sink &&
           (plan.softcap != 0) == (problem.softcap != 0) && plan.alibi == problem.alibi &&
           plan.hook == problem.score_hook;
}

bool computes(const fa_tune_plan& plan, const fa_tune_problem& problem) {
    return plan.operation == problem.operation && plan.dtype == problem.dtype &&
           plan.d_head == problem.d_head && plan.d_v == d_v_of(problem) &&
           plan.lse == problem.lse && plan.packed == problem.packed &&
           plan.kv_e4m3 == problem.kv_e4m3 && plan.exact >= problem.exact &&
           (plan.ragged != 0 || !is_ragged(plan, problem)) && computes_scores(plan, problem);
}

void check_computes(const fa_tune_plan& plan, const fa_tune_problem& problem) {
    if (computes(plan, problem)) return;
    fail(FA_TUNE_INVALID, "a kernel for %s, blocks %dx%d, does not compute %s",
         kind_of(plan).c_str(), plan.block_q, plan.block_kv, key_of(problem).c_str());
}

bool runs_on(const fa_tune_plan& plan, int compute_capability) {
    switch (plan.portability) {
        case FA_TUNE_PORTABILITY_EXACT:
            return plan.compute_capability == compute_capability;
        case FA_TUNE_PORTABILITY_LATER:
            return plan.compute_capability <= compute_capability;
        default:
            return plan.compute_capability / 10 == compute_capability / 10 &&
                   plan.compute_capability <= compute_capability;
    }
}

std::int64_t diagonal_of(const fa_tune_problem& problem) {
    if (problem.packed != 0) return 0;
    if (problem.mask == FA_TUNE_MASK_CAUSAL_BR) return problem.seq_len_kv - problem.seq_len_q;
    return std::clamp(problem.diagonal, -kFar, kFar);  // 0 unless the mask has one
}

std::int32_t last_diagonal_of(const fa_tune_problem& problem) {
    const std::int64_t right = is_causal(problem) ? 0 : std::min(problem.window_right, kWide);
    return at_edge(diagonal_of(problem) + right, problem);
}

std::int32_t first_diagonal_of(const fa_tune_problem& problem) {
    if (!has(problem, FA_TUNE_WINDOW_LEFT)) return at_edge(-kWide, problem);
    return at_edge(diagonal_of(problem) - std::min(problem.window_left, kWide), problem);
}

// Sequences that may differ in length are aligned by the end of each, whatever the mask.
static std::int64_t longest_diagonal_of(const fa_tune_problem& problem) {
    const bool by_their_ends = problem.packed != 0 || problem.cached != 0;
    return by_their_ends ? problem.seq_len_kv - problem.seq_len_q : diagonal_of(problem);
}

std::int64_t keys_seen_of(const fa_tune_problem& problem) {
    const std::int64_t diagonal = longest_diagonal_of(problem);
    std::int64_t first = 0, end = problem.seq_len_kv;
    if (has(problem, FA_TUNE_WINDOW_LEFT)) {
        first = std::max(first, diagonal - std::min(problem.window_left, kWide));
    }
    if (is_causal(problem) || has(problem, FA_TUNE_WINDOW_RIGHT)) {
        const std::int64_t right = is_causal(problem) ? 0 : std::min(problem.window_right, kWide);
        end = std::min(end, problem.seq_len_q + diagonal + right);
    }
    return std::max(end - first, std::int64_t{0});
}

fa_tune_problem with_settled_window(const fa_tune_problem& problem) {
    fa_tune_problem found = problem;
    const std::int64_t diagonal = longest_diagonal_of(problem);
    if (has(found, FA_TUNE_WINDOW_LEFT) && found.window_left >= found.seq_len_q - 1 + diagonal) {
        found.window -= FA_TUNE_WINDOW_LEFT;
        found.window_left = 0;
    }
    if (has(found, FA_TUNE_WINDOW_RIGHT) &&
        (is_causal(found) || found.window_right >= found.seq_len_kv - 1 - diagonal ||
         found.window_right == 0)) {
        const bool hides = found.window_right < found.seq_len_kv - 1 - diagonal;
        if (!is_causal(found) && hides) {
            if (is_bottom_right(found)) {
                found.mask = FA_TUNE_MASK_CAUSAL_BR;
                found.diagonal = 0;
            } else {
                const bool plain = problem.packed != 0 || diagonal == 0;
                found.mask = plain ? FA_TUNE_MASK_CAUSAL : FA_TUNE_MASK_DIAGONAL;
            }
        }
        found.window -= FA_TUNE_WINDOW_RIGHT;
        found.window_right = 0;
    }
    return found;
}

fa_tune_problem settled(const fa_tune_problem& problem) {
    fa_tune_problem found = with_settled_window(problem);
    const std::int64_t diagonal = longest_diagonal_of(found);
    if (!is_causal(found) || diagonal < found.seq_len_kv - 1) return found;
    const bool counts = found.packed == 0 && (found.window != 0 || found.alibi != 0);
    found.mask = counts ? FA_TUNE_MASK_FULL_DIAGONAL : FA_TUNE_MASK_FULL;
    found.diagonal = counts ? diagonal : 0;
    return found;
}

bool is_decode_shape(const fa_tune_problem& problem) {
    constexpr std::int64_t kFewRows = 32, kFewQueries = 16;
    constexpr std::int64_t kFewRowsInAll = 2560, kKeysOfQuery = 4;
    if (problem.operation != FA_TUNE_OPERATION_FORWARD || problem.packed != 0) return false;
    const std::int64_t queries = problem.seq_len_q, heads = problem.batch * problem.heads;
    // The product of three sizes may be beyond 64 bits.
    const bool few_in_all = heads <= kFewRowsInAll && heads * queries <= kFewRowsInAll;
    return rows_of_kv_head(problem) <= kFewRows || queries <= kFewQueries ||
           (few_in_all && problem.seq_len_kv >= kKeysOfQuery * queries);
}

bool is_bottom_right(const fa_tune_problem& problem) {
    if (problem.cached != 0) return is_causal(problem) || problem.window != 0 || problem.alibi != 0;
    if (problem.packed != 0 || problem.seq_len_q == problem.seq_len_kv) return false;
    if (problem.mask == FA_TUNE_MASK_CAUSAL_BR) return true;
    return problem.mask == FA_TUNE_MASK_FULL_DIAGONAL &&
           problem.diagonal == problem.seq_len_kv - problem.seq_len_q;
}

const ElementType* dtype_of(std::int32_t number) {
    for (const ElementType& one : kDtypes) {
        if (one.number == number) return &one;
    }
    return nullptr;
}

const ElementType& element_of(const fa_tune_problem& problem, fa_tune_tensor_role role) {
    const bool of_keys = role == FA_TUNE_TENSOR_K || role == FA_TUNE_TENSOR_V ||
                         role == FA_TUNE_TENSOR_NEW_K || role == FA_TUNE_TENSOR_NEW_V;
    return of_keys && problem.kv_e4m3 != 0 ? kE4m3 : *dtype_of(problem.dtype);
}

double scale_of(const fa_tune_problem& problem) {
    return problem.softmax_scale != 0 ? problem.softmax_scale : 1 / std::sqrt(problem.d_head);
}

std::string key_of(const fa_tune_problem& p) {
    char text[256];
    std::snprintf(text, sizeof text, "b%lld_h%lld_kv%lld_q%lld_k%lld_d%d_%s_%s", wide(p.batch),
                  wide(p.heads), wide(p.kv_heads), wide(p.seq_len_q), wide(p.seq_len_kv), p.d_head,
                  dtype_name(p.dtype), is_causal(p) ? "causal" : "full");
    std::string key = std::string(key_prefix(p.operation)) + text;
    if (is_bottom_right(p)) {
        key += "_br";
    } else if (p.mask == FA_TUNE_MASK_DIAGONAL || p.mask == FA_TUNE_MASK_FULL_DIAGONAL) {
        key += "_diagonal" + std::to_string(p.diagonal);
    }
    if (p.lse != 0) key += "_lse";
    if (has(p, FA_TUNE_WINDOW_LEFT)) key += "_left" + std::to_string(p.window_left);
    if (has(p, FA_TUNE_WINDOW_RIGHT)) key += "_right" + std::to_string(p.window_right);
    if (p.sink != 0) key += "_sink";
    if (p.softcap != 0) {
        std::snprintf(text, sizeof text, "_softcap%g", p.softcap);
        key += text;
    }
    if (p.alibi != 0) key += "_alibi";
    if (p.score_hook != 0) key += "_hook";
    if (d_v_of(p) != p.d_head) key += "_dv" + std::to_string(p.d_head_v);
    if (p.packed != 0) {
        key += "_packed_tq" + std::to_string(p.total_q) + "_tk" + std::to_string(p.total_kv);
    }
    if (p.cached != 0) key += "_cached";
    if (p.kv_e4m3 != 0) key += "_e4m3";
    if (p.exact != 0) key += "_exact";
    return key;
}

std::string kind_of(const fa_tune_plan& plan) {
    const char* form = plan.portability == FA_TUNE_PORTABILITY_LATER ? "compute" : "sm";
    const std::string d_v = plan.d_v != plan.d_head ? "/" + std::to_string(plan.d_v) : "";
    return key_prefix(plan.operation) + std::string(dtype_name(plan.dtype)) + ", d_head " +
           std::to_string(plan.d_head) + d_v + (plan.causal != 0 ? ", causal" : ", full") +
           (plan.ragged != 0 ? ", ragged" : "") + (plan.lse != 0 ? ", with lse" : "") +
           (plan.window != 0 ? ", with a window" : "") + (plan.sink != 0 ? ", with a sink" : "") +
           (plan.softcap != 0 ? ", with a soft cap" : "") +
           (plan.alibi != 0 ? ", with alibi" : "") + (plan.hook != 0 ? ", with a hook" : "") +
           (plan.packed != 0 ? ", packed" : "") + (plan.kv_e4m3 != 0 ? ", K and V e4m3" : "") +
           (plan.exact != 0 ? ", exact" : "") + ", " + form + "_" +
           std::to_string(plan.compute_capability) +
           (plan.portability == FA_TUNE_PORTABILITY_EXACT ? "a" : "");
}

}  // namespace fa_tune::core
