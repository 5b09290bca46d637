#include "problem.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace fa_tune::core {

namespace {

// The scale is multiplied in fp32, whose normal numbers it and its product with log2(e) must be.
constexpr double kMinScale = 1e-30, kMaxScale = 1e30;
constexpr std::int64_t kMaxSize = std::numeric_limits<std::int32_t>::max();

const char* dtype_name(std::int32_t dtype) {
    return dtype == FA_TUNE_DTYPE_FP16 ? "fp16" : dtype == FA_TUNE_DTYPE_BF16 ? "bf16" : "unknown";
}

Status check_size(const char* name, std::int64_t size) {
    if (size < 1) {
        return failure(FA_TUNE_INVALID, "%s must be at least 1, not %lld", name,
                       static_cast<long long>(size));
    }
    if (size > kMaxSize) {
        return failure(FA_TUNE_INVALID, "%s must be at most %lld, not %lld", name,
                       static_cast<long long>(kMaxSize), static_cast<long long>(size));
    }
    return {};
}

bool is_ragged(const fa_tune_plan& plan, const fa_tune_problem& problem) {
    return problem.seq_len_q % plan.block_q != 0 || problem.seq_len_kv % plan.block_kv != 0;
}

}  // namespace

Status check_problem(const fa_tune_problem& problem) {
    const struct {
        const char* name;
        std::int64_t size;
    } sizes[] = {{"batch", problem.batch},           {"heads", problem.heads},
                 {"kv_heads", problem.kv_heads},     {"seq_len_q", problem.seq_len_q},
                 {"seq_len_kv", problem.seq_len_kv}, {"d_head", problem.d_head}};
    for (const auto& [name, size] : sizes) {
        Status status = check_size(name, size);
        if (!status.ok()) return status;
    }
    if (problem.heads % problem.kv_heads != 0) {
        return failure(FA_TUNE_INVALID, "%lld kv heads do not divide %lld heads",
                       static_cast<long long>(problem.kv_heads),
                       static_cast<long long>(problem.heads));
    }
    if (problem.operation != FA_TUNE_OPERATION_FORWARD) {
        return failure(FA_TUNE_INVALID, "unknown operation %d", problem.operation);
    }
    if (problem.dtype != FA_TUNE_DTYPE_FP16 && problem.dtype != FA_TUNE_DTYPE_BF16) {
        return failure(FA_TUNE_INVALID, "unknown dtype %d; allowed: %d (fp16), %d (bf16)",
                       problem.dtype, FA_TUNE_DTYPE_FP16, FA_TUNE_DTYPE_BF16);
    }
    if (problem.mask < FA_TUNE_MASK_FULL || problem.mask > FA_TUNE_MASK_DIAGONAL) {
        return failure(FA_TUNE_INVALID, "unknown mask %d", problem.mask);
    }
    if (problem.diagonal != 0 && problem.mask != FA_TUNE_MASK_DIAGONAL) {
        return failure(FA_TUNE_INVALID, "a diagonal needs FA_TUNE_MASK_DIAGONAL");
    }
    if (problem.lse != 0 && problem.lse != 1) {
        return failure(FA_TUNE_INVALID, "lse must be 0 or 1, not %d", problem.lse);
    }
    if (problem.reserved != 0) return failure(FA_TUNE_INVALID, "reserved must be 0");
    const double scale = problem.softmax_scale;
    if (scale != 0 && !(scale >= kMinScale && scale <= kMaxScale)) {  // NaN is not, either
        return failure(FA_TUNE_INVALID, "softmax_scale must be between %g and %g, not %g",
                       kMinScale, kMaxScale, scale);
    }
    return {};
}

bool computes(const fa_tune_plan& plan, const fa_tune_problem& problem) {
    return plan.operation == problem.operation && plan.dtype == problem.dtype &&
           plan.d_head == problem.d_head && (plan.causal != 0) == is_causal(problem) &&
           plan.lse == problem.lse && (plan.ragged != 0 || !is_ragged(plan, problem));
}

Status check_computes(const fa_tune_plan& plan, const fa_tune_problem& problem) {
    if (computes(plan, problem)) return {};
    return failure(FA_TUNE_INVALID, "a kernel for %s, blocks %dx%d, does not compute %s",
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

std::int32_t diagonal_of(const fa_tune_problem& problem) {
    std::int64_t diagonal = 0;
    if (problem.mask == FA_TUNE_MASK_CAUSAL_BR) diagonal = problem.seq_len_kv - problem.seq_len_q;
    if (problem.mask == FA_TUNE_MASK_DIAGONAL) diagonal = problem.diagonal;
    // Beyond the tensor it is the same mask as at its edge, and sums stay within 32 bits.
    return static_cast<std::int32_t>(std::clamp(diagonal, -problem.seq_len_q, problem.seq_len_kv));
}

double scale_of(const fa_tune_problem& problem) {
    return problem.softmax_scale != 0 ? problem.softmax_scale : 1 / std::sqrt(problem.d_head);
}

std::string key_of(const fa_tune_problem& p) {
    char text[256];
    std::snprintf(text, sizeof text, "b%lld_h%lld_kv%lld_q%lld_k%lld_d%d_%s_%s",
                  static_cast<long long>(p.batch), static_cast<long long>(p.heads),
                  static_cast<long long>(p.kv_heads), static_cast<long long>(p.seq_len_q),
                  static_cast<long long>(p.seq_len_kv), p.d_head, dtype_name(p.dtype),
                  is_causal(p) ? "causal" : "full");
    std::string key = text;
    if (p.mask == FA_TUNE_MASK_CAUSAL_BR && p.seq_len_q != p.seq_len_kv) key += "_br";
    if (p.mask == FA_TUNE_MASK_DIAGONAL) key += "_diagonal" + std::to_string(p.diagonal);
    if (p.lse != 0) key += "_lse";
    return key;
}

std::string kind_of(const fa_tune_plan& plan) {
    const char* form = plan.portability == FA_TUNE_PORTABILITY_LATER ? "compute" : "sm";
    return std::string(dtype_name(plan.dtype)) + ", d_head " + std::to_string(plan.d_head) +
           (plan.causal != 0 ? ", causal" : ", full") + (plan.ragged != 0 ? ", ragged" : "") +
           (plan.lse != 0 ? ", with lse" : "") + ", " + form + "_" +
           std::to_string(plan.compute_capability) +
           (plan.portability == FA_TUNE_PORTABILITY_EXACT ? "a" : "");
}

}  // namespace fa_tune::core
