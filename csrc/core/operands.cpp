#include "operands.h"

#include <cstdint>
#include <tuple>

#include "problem.h"

namespace fa_tune::core {

namespace {

constexpr int kPageKeys = 16;  // that a page has whole numbers of

// How a tensor is read: rows of queries or of keys in chunks; in chunks from its address on;
// element by element.
enum class Form { kQueries, kKeys, kChunks, kElements };

using Wanted = bool (*)(const fa_tune_problem& problem);

bool always(const fa_tune_problem&) { return true; }
bool with_lse(const fa_tune_problem& problem) { return problem.lse != 0; }
bool with_sink(const fa_tune_problem& problem) { return problem.sink != 0; }
bool with_alibi(const fa_tune_problem& problem) { return problem.alibi != 0; }
bool when_packed(const fa_tune_problem& problem) { return problem.packed != 0; }

// A tensor that a call must have where the problem wants it; the others are optional.
struct Needed {
    fa_tune_tensor_role role;
    const char* name;
    Form form;
    Wanted wanted;
};

constexpr Needed kForward[] = {
    {FA_TUNE_TENSOR_Q, "Q", Form::kQueries, always},
    {FA_TUNE_TENSOR_K, "K", Form::kKeys, always},
    {FA_TUNE_TENSOR_V, "V", Form::kKeys, always},
    {FA_TUNE_TENSOR_O, "O", Form::kQueries, always},
    {FA_TUNE_TENSOR_SINK, "sink", Form::kElements, with_sink},
    {FA_TUNE_TENSOR_ALIBI_SLOPES, "alibi_slopes", Form::kElements, with_alibi},
    {FA_TUNE_TENSOR_CU_SEQLENS_Q, "cu_seqlens_q", Form::kElements, when_packed},
    {FA_TUNE_TENSOR_CU_SEQLENS_KV, "cu_seqlens_kv", Form::kElements, when_packed},
    {FA_TUNE_TENSOR_LSE, "lse", Form::kChunks, with_lse},
};

constexpr Needed kBackward[] = {
    {FA_TUNE_TENSOR_Q, "Q", Form::kQueries, always},
    {FA_TUNE_TENSOR_K, "K", Form::kKeys, always},
    {FA_TUNE_TENSOR_V, "V", Form::kKeys, always},
    {FA_TUNE_TENSOR_O, "O", Form::kQueries, always},
    {FA_TUNE_TENSOR_DO, "dO", Form::kQueries, always},
    {FA_TUNE_TENSOR_LSE, "lse", Form::kChunks, always},
    {FA_TUNE_TENSOR_DLSE, "dlse", Form::kElements, with_lse},
    {FA_TUNE_TENSOR_ALIBI_SLOPES, "alibi_slopes", Form::kElements, with_alibi},
    {FA_TUNE_TENSOR_CU_SEQLENS_Q, "cu_seqlens_q", Form::kElements, when_packed},
    {FA_TUNE_TENSOR_CU_SEQLENS_KV, "cu_seqlens_kv", Form::kElements, when_packed},
    {FA_TUNE_TENSOR_DQ, "dQ", Form::kQueries, always},
    {FA_TUNE_TENSOR_DK, "dK", Form::kKeys, always},
    {FA_TUNE_TENSOR_DV, "dV", Form::kKeys, always},
};

struct Operation {
    std::int32_t number;
    const char* prefix;  // of keys
    const Needed* begin;
    const Needed* end;
};

constexpr Operation kOperations[] = {
    {FA_TUNE_OPERATION_FORWARD, "", std::begin(kForward), std::end(kForward)},
    {FA_TUNE_OPERATION_BACKWARD, "backward_", std::begin(kBackward), std::end(kBackward)},
};

const Operation* operation_of(std::int32_t number) {
    for (const Operation& operation : kOperations) {
        if (operation.number == number) return &operation;
    }
    return nullptr;
}

std::uintptr_t number_of(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

void check_rows(const char* name, const ElementType& type, const fa_tune_tensor& tensor,
                std::int64_t batch, std::int64_t rows, std::int64_t heads) {
    const std::int32_t size_bytes = type.size_bytes;
    const auto is_chunks = [size_bytes](std::int64_t stride) {
        return stride % (kChunkBytes / size_bytes) == 0;
    };
    const bool aligned = number_of(tensor.address) % kChunkBytes == 0 &&
                         (batch == 1 || is_chunks(tensor.batch_stride)) &&
                         (rows == 1 || is_chunks(tensor.seq_stride)) &&
                         (heads == 1 || is_chunks(tensor.head_stride));
    if (aligned) return;
    fail(FA_TUNE_INVALID,
         "%s must have every row at a multiple of %d bytes; it starts at address %#llx "
         "and has strides (%lld, %lld, %lld) of %d-byte elements",
         name, kChunkBytes, static_cast<unsigned long long>(number_of(tensor.address)),
         wide(tensor.batch_stride), wide(tensor.seq_stride), wide(tensor.head_stride), size_bytes);
}

void check_chunks(const char* name, const void* address) {
    if (number_of(address) % kChunkBytes == 0) return;
    fail(FA_TUNE_INVALID, "%s must start at a multiple of %d bytes, not at %#llx", name,
         kChunkBytes, static_cast<unsigned long long>(number_of(address)));
}

void check_strides(const fa_tune_problem& problem, const fa_tune_tensors& tensors) {
    const fa_tune_tensor &slopes = tensors.of[FA_TUNE_TENSOR_ALIBI_SLOPES],
                         &k = tensors.of[FA_TUNE_TENSOR_K_SCALE],
                         &v = tensors.of[FA_TUNE_TENSOR_V_SCALE];
    const bool batch = problem.batch > 1, heads = problem.kv_heads > 1;
    if (k.address != nullptr && v.address != nullptr &&
        ((batch && k.batch_stride != v.batch_stride) ||
         (heads && k.head_stride != v.head_stride))) {
        fail(FA_TUNE_INVALID, "k_scale and v_scale must have the same strides");
    }
    const fa_tune_tensor& scale = k.address != nullptr ? k : v;
    for (const auto& [name, stride, used] :
         {std::tuple("alibi_slopes' batch stride", slopes.batch_stride,
                     slopes.address != nullptr && batch),
          std::tuple("the scales' batch stride", scale.batch_stride,
                     scale.address != nullptr && batch),
          std::tuple("the scales' head stride", scale.head_stride,
                     scale.address != nullptr && heads)}) {
        if (used && (stride < INT32_MIN || stride > INT32_MAX)) {
            fail(FA_TUNE_INVALID, "%s must fit 32 bits, not %lld", name, wide(stride));
        }
    }
}

void check_new(const fa_tune_problem& problem, const fa_tune_tensors& tensors) {
    const fa_tune_tensor &k = tensors.of[FA_TUNE_TENSOR_NEW_K],
                         &v = tensors.of[FA_TUNE_TENSOR_NEW_V];
    if (k.address == nullptr || v.address == nullptr ||
        tensors.of[FA_TUNE_TENSOR_CACHE_SEQLENS].address == nullptr) {
        fail(FA_TUNE_INVALID, "new keys and values come together, and with lengths");
    }
    if (tensors.added < 1) {
        fail(FA_TUNE_INVALID, "added must be at least 1, not %d", tensors.added);
    }
    if ((problem.window & FA_TUNE_WINDOW_LEFT) != 0 &&
        tensors.added - problem.seq_len_q > problem.window_left) {
        fail(FA_TUNE_INVALID, "a window of %lld to the left does not see all of %d new keys",
             wide(problem.window_left), tensors.added);
    }
    const ElementType& type = element_of(problem, FA_TUNE_TENSOR_NEW_K);
    check_rows("new_k", type, k, problem.batch, tensors.added, problem.kv_heads);
    check_rows("new_v", type, v, problem.batch, tensors.added, problem.kv_heads);
}

}  // namespace

bool is_operation(std::int32_t operation) { return operation_of(operation) != nullptr; }

const char* key_prefix(std::int32_t operation) { return operation_of(operation)->prefix; }

void check_tensors(const fa_tune_problem& problem, const fa_tune_tensors& tensors) {
    const std::int64_t rows = rows_of(problem), keys = keys_of(problem), batch = batch_of(problem);
    const bool paged = tensors.of[FA_TUNE_TENSOR_PAGE_TABLE].address != nullptr;
    const std::int64_t of_keys = paged ? 2 : batch;  // pages, or more
    const Operation& operation = *operation_of(problem.operation);
    for (const Needed* needed = operation.begin; needed != operation.end; ++needed) {
        if (!needed->wanted(problem)) continue;
        const fa_tune_tensor& tensor = tensors.of[needed->role];
        const ElementType& type = element_of(problem, needed->role);
        if (tensor.address == nullptr) {
            fail(FA_TUNE_INVALID, "%s needs %s, which the launch does not give",
                 key_of(problem).c_str(), needed->name);
        }
        switch (needed->form) {
            case Form::kQueries:
                check_rows(needed->name, type, tensor, batch, rows, problem.heads);
                break;
            case Form::kKeys:
                check_rows(needed->name, type, tensor, of_keys, keys, problem.kv_heads);
                break;
            case Form::kChunks:
                check_chunks(needed->name, tensor.address);
                break;
            case Form::kElements:
                break;
        }
    }
    check_strides(problem, tensors);
}

void check_cache(const fa_tune_launch_plan& plan, const Call& call) {
    const fa_tune_tensors& tensors = call.tensors;
    const auto is_given = [&](fa_tune_tensor_role role) {
        return tensors.of[role].address != nullptr;
    };
    const bool lengths = is_given(FA_TUNE_TENSOR_CACHE_SEQLENS);
    const bool pages = is_given(FA_TUNE_TENSOR_PAGE_TABLE);
    const bool has_new = is_given(FA_TUNE_TENSOR_NEW_K) || is_given(FA_TUNE_TENSOR_NEW_V);
    if (!lengths && !pages && !has_new) return;
    if (plan.share_keys == 0) {
        fail(FA_TUNE_INVALID, "this kernel takes no lengths or pages that only the device knows");
    }
    if (pages && (tensors.page_size < 1 || tensors.page_size % kPageKeys != 0)) {
        fail(FA_TUNE_INVALID, "page_size must be a multiple of %d, not %d", kPageKeys,
             tensors.page_size);
    }
    if (lengths && tensors.added < 0) {
        fail(FA_TUNE_INVALID, "added must be at least 0, not %d", tensors.added);
    }
    if (has_new) check_new(call.problem, tensors);
}

void check_workspace(const fa_tune_problem& problem, const fa_tune_tensors& tensors) {
    if (tensors.workspace == nullptr) {
        fail(FA_TUNE_INVALID,
             "%s needs a workspace of fa_tune_workspace_bytes: the launch must give it",
             key_of(problem).c_str());
    }
    check_chunks("workspace", tensors.workspace);
}

}  // namespace fa_tune::core
