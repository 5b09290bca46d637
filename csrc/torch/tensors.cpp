#include "tensors.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "choices.h"
#include "problem.h"

namespace fa_tune::op {

std::string shape_text(const std::int64_t* sizes, std::int64_t dimensions) {
    std::string text = "(";
    for (std::int64_t i = 0; i < dimensions; ++i) {
        text += (i == 0 ? "" : ", ") + std::to_string(sizes[i]);
    }
    return text + ")";
}

namespace {

// What the problem is of, but for how its scores are masked and changed.
void set_sizes(fa_tune_problem& problem, const View& q, const View& k, const View& v) {
    if (!std::equal(k.sizes, k.sizes + k.dimensions - 1, v.sizes)) {
        refuse("K and V differ in batch, length or heads: " + k.shape() + " and " + v.shape());
    }
    if (q.batch() != k.batch() || q.d_head != k.d_head) {
        refuse("Q and K differ in batch or d_head: " + q.shape() + " and " + k.shape());
    }
    if (core::dtype_of(q.dtype) == nullptr || k.dtype != q.dtype || v.dtype != q.dtype) {
        refuse("Q, K, V must all be fp16 or all bf16");
    }
    if (!k.is_beside(q) || !v.is_beside(q)) refuse("Q, K, V must be on one GPU");
    problem.operation = FA_TUNE_OPERATION_FORWARD;
    problem.dtype = q.dtype;
    problem.batch = q.batch();
    problem.heads = q.heads;
    problem.kv_heads = k.heads;
    problem.seq_len_q = q.rows;
    problem.seq_len_kv = k.rows;
    problem.d_head = static_cast<std::int32_t>(std::min(q.d_head, kMaxSize));
    if (v.d_head < 1) refuse("V has no columns: " + v.shape());
    if (v.d_head != q.d_head) {  // 0 where it is the same, as Python has it
        problem.d_head_v = static_cast<std::int32_t>(std::min(v.d_head, kMaxSize));
    }
}

void set_traits(fa_tune_problem& problem, const Traits& traits) {
    const bool windowed = traits.window_left.has_value() || traits.window_right.has_value();
    const bool aligned = traits.causal || windowed || traits.alibi_slopes.has_value();
    if (traits.bottom_right && !aligned) {
        refuse("bottom_right aligns a causal mask; this problem has no mask");
    }
    for (const auto& [name, value] :
         {std::pair{"softmax_scale", traits.scale}, std::pair{"softcap", traits.softcap}}) {
        if (value.has_value() && *value == 0)
            refuse(std::string(name) + " must be positive, not 0");
    }
    problem.mask = traits.causal ? FA_TUNE_MASK_CAUSAL : FA_TUNE_MASK_FULL;
    if (traits.bottom_right && problem.packed == 0) {  // a packed batch always is
        problem.mask = traits.causal ? FA_TUNE_MASK_CAUSAL_BR : FA_TUNE_MASK_FULL_DIAGONAL;
        if (!traits.causal) problem.diagonal = problem.seq_len_kv - problem.seq_len_q;
    }
    problem.softmax_scale = traits.scale.value_or(0.0);
    problem.softcap = traits.softcap.value_or(0.0);
    if (traits.window_left.has_value()) problem.window |= FA_TUNE_WINDOW_LEFT;
    if (traits.window_right.has_value()) problem.window |= FA_TUNE_WINDOW_RIGHT;
    problem.window_left = traits.window_left.value_or(0);
    problem.window_right = traits.window_right.value_or(0);
    problem.sink = traits.sink.has_value();
    problem.alibi = traits.alibi_slopes.has_value();
    problem.exact = traits.exact;
}

}  // namespace

fa_tune_problem problem_of(const View& q, const View& k, const View& v, const Traits& traits,
                           const Lengths* lengths, bool lse) {
    fa_tune_problem problem{};
    set_sizes(problem, q, k, v);
    if (lengths != nullptr) {
        const Described starts(lengths->cum_q.get());
        problem.packed = 1;
        problem.batch = starts.dimensions == 1 ? starts.sizes[0] - 1 : 0;
        problem.seq_len_q = lengths->longest_q;
        problem.seq_len_kv = lengths->longest_kv;
        problem.total_q = q.rows;
        problem.total_kv = k.rows;
    }
    set_traits(problem, traits);
    problem.lse = lse;
    return problem;
}

void* address_of(AtenTensorHandle tensor, const char* name, std::int32_t dtype,
                 const char* dtype_name, std::initializer_list<std::int64_t> sizes, const View& q) {
    const Described found(tensor);
    if (!found.has_sizes(sizes) || found.dtype != dtype || !found.is_beside(q) ||
        !found.is_contiguous()) {
        refuse(std::string(name) + " must be " + dtype_name + " " +
               shape_text(sizes.begin(), static_cast<std::int64_t>(sizes.size())) +
               ", contiguous, on Q's GPU");
    }
    return found.address;
}

void set_slopes(fa_tune_tensors& tensors, AtenTensorHandle slopes, std::int64_t batch,
                const View& q) {
    const Described found(slopes);
    const bool of_batch = found.has_sizes({batch, q.heads});
    if ((!of_batch && !found.has_sizes({q.heads})) || found.dtype != aoti_torch_dtype_float32() ||
        !found.is_beside(q) || (q.heads > 1 && found.strides[found.dimensions - 1] != 1)) {
        refuse("alibi_slopes must be fp32 (" + std::to_string(q.heads) + ") or (" +
               std::to_string(batch) + ", " + std::to_string(q.heads) +
               ") with contiguous heads, on Q's GPU");
    }
    tensors.of[FA_TUNE_TENSOR_ALIBI_SLOPES] = {found.address, of_batch ? found.strides[0] : 0, 0,
                                               1};
}

void (*tell_of_copies)() = nullptr;

View with_whole_rows(Owned& tensor, const char* name, bool packed, bool expanded) {
    View given(tensor.get(), name, packed);
    const bool whole = given.has_whole_rows();
    if (whole && (expanded || !given.is_expanded())) return given;
    if (!whole && tell_of_copies != nullptr) tell_of_copies();
    Owned copy = empty(given, given.sizes, given.dimensions, given.dtype);
    TORCH_ERROR_CODE_CHECK(aoti_torch_copy_(copy.get(), tensor.get(), 0));
    tensor = std::move(copy);
    return View(tensor.get(), name, packed);
}

Owned empty(const View& like, const std::int64_t* sizes, std::int64_t dimensions,
            std::int32_t dtype) {
    std::array<std::int64_t, 4> strides{};
    std::int64_t step = 1;
    for (std::int64_t i = dimensions - 1; i >= 0; --i) {
        strides[static_cast<std::size_t>(i)] = step;
        step *= sizes[i];
    }
    AtenTensorHandle made = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(dimensions, sizes, strides.data(), dtype,
                                                    like.device_type, like.device, &made));
    return Owned(made);
}

}  // namespace fa_tune::op
