// The operators fa_tune::fwd, fwd_lse and fwd_out on the stable ABI of torch 2.10 and later.
//
// Python declares their schemas, says for which device type they stand (fa_tune_torch_register) and
// chooses kernels (fa_tune_torch_set_resolver).  A call here is a lookup of what was chosen before,
// and a launch by the C++ core.
//
// A choice serves all problems of a bucket: of one dtype, head dimension, mask, log-sum-exp and
// group size whose batch * heads and lengths have the same nearest powers of two.  So growing
// lengths need a choice per doubling.  Problems that were tuned by themselves are no part of it.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_map>

#include "fa_tune.h"
#include "problem.h"

extern "C" {

// Makes a kernel for a problem ready on a device.  `text` gets why not, in one line that begins
// with the name of an exception.  1: done.
typedef int (*fa_tune_torch_resolver)(const fa_tune_problem* problem, int device,
                                      fa_tune_kernel** kernel, char* text, std::size_t size);
// aoti_torch_get_current_cuda_stream, which torch without CUDA does not have.
typedef std::int32_t (*fa_tune_torch_stream)(std::int32_t device, void** stream);

// Registers the operators for a dispatch key, as "CUDA", for as long as the process lives.
FA_TUNE_API void fa_tune_torch_register(const char* dispatch_key);
FA_TUNE_API void fa_tune_torch_set_resolver(fa_tune_torch_resolver resolver);
FA_TUNE_API void fa_tune_torch_set_stream(fa_tune_torch_stream stream);
// A problem that no bucket serves.
FA_TUNE_API void fa_tune_torch_add_exact(const fa_tune_problem* problem, int device);
// Chooses a kernel for a problem, unless it is chosen.  1: done; else `text` says why not.
FA_TUNE_API int fa_tune_torch_prepare(const fa_tune_problem* problem, int device, char* text,
                                      std::size_t size);
// Forgets every choice.
FA_TUNE_API void fa_tune_torch_forget(void);
// How many buckets and exact problems there are.
FA_TUNE_API std::size_t fa_tune_torch_choices(void);

}  // extern "C"

namespace {

using torch::stable::Tensor;
using torch::stable::detail::StableLibrary;

constexpr std::size_t kTextBytes = 2048;
constexpr std::int64_t kMaxSize = INT32_MAX;  // of the core; products of two stay within 64 bits

[[noreturn]] void fail(const std::string& text) { throw std::runtime_error(text); }

[[noreturn]] void refuse(const std::string& text) { fail("InvalidConfig: " + text); }

void check(fa_tune_status status) {
    if (status == FA_TUNE_OK) return;
    const char* kind = status == FA_TUNE_INVALID     ? "InvalidConfig: "
                       : status == FA_TUNE_NOT_FOUND ? "NoUsableVariant: "
                       : status == FA_TUNE_NO_DRIVER ? "ToolMissing: "
                                                     : "DriverError: ";
    fail(std::string(kind) + fa_tune_last_error());
}

// Choices ------------------------------------------------------------------------------------

using Key = std::array<std::int64_t, 7>;

struct Hash {
    std::size_t operator()(const Key& key) const {
        std::uint64_t hash = 0;
        for (const std::int64_t word : key) {
            hash = (hash ^ static_cast<std::uint64_t>(word)) * 0x9e3779b97f4a7c15u;
            hash ^= hash >> 29;
        }
        return hash;
    }
};

// What decides the choice whatever the sizes.
std::int64_t kind_of(const fa_tune_problem& p, int device) {
    const bool bottom_right = p.mask == FA_TUNE_MASK_CAUSAL_BR && p.seq_len_q != p.seq_len_kv;
    const int mask = p.mask == FA_TUNE_MASK_FULL ? 0 : bottom_right ? 2 : 1;
    return (static_cast<std::int64_t>(p.d_head) << 32) |
           (static_cast<std::int64_t>(device + 1) << 16) | (p.dtype << 8) | (mask << 1) |
           (p.lse != 0);
}

Key exact_key(const fa_tune_problem& p, int device) {
    return {kind_of(p, device), p.d_head_v,  p.batch,     p.heads,
            p.kv_heads,         p.seq_len_q, p.seq_len_kv};
}

// The exponent of the nearest power of two, in doublings.
int nearest_log2(std::int64_t n) {
    return (64 - __builtin_clzll(static_cast<unsigned long long>(n) *
                                 static_cast<unsigned long long>(n))) >>
           1;
}

Key bucket_key(const fa_tune_problem& p, int device) {
    const std::int64_t work = std::min(p.batch * p.heads, kMaxSize);
    return {kind_of(p, device),
            p.d_head_v,
            p.heads / p.kv_heads,
            nearest_log2(work),
            nearest_log2(p.seq_len_q),
            nearest_log2(p.seq_len_kv),
            -1};
}

// Of one choice: compiled for whole blocks, and for any lengths.
struct Kernels {
    fa_tune_kernel* whole = nullptr;
    fa_tune_kernel* ragged = nullptr;

    fa_tune_kernel* serving(const fa_tune_problem& problem) const {
        if (whole != nullptr && fa_tune::core::computes(*fa_tune_kernel_plan(whole), problem)) {
            return whole;
        }
        if (ragged == nullptr) return nullptr;
        const fa_tune_plan& plan = *fa_tune_kernel_plan(ragged);
        const bool odd =
            problem.seq_len_q % plan.block_q != 0 || problem.seq_len_kv % plan.block_kv != 0;
        return odd ? ragged : nullptr;
    }
    void add(fa_tune_kernel* kernel) {
        (fa_tune_kernel_plan(kernel)->ragged != 0 ? ragged : whole) = kernel;
    }
};

struct Choices {
    std::shared_mutex mutex;
    std::unordered_map<Key, fa_tune_kernel*, Hash> exact;  // null: not chosen yet
    std::unordered_map<Key, Kernels, Hash> buckets;
};

Choices*& choices() {
    static Choices* found = new Choices;  // never destroyed: calls may come until the very end
    return found;
}

// Grows when choices are forgotten or may change.
std::atomic<std::uint64_t> generation{1};

// What a thread ran last: most calls are of the problem before.
struct Last {
    std::uint64_t generation = 0;
    fa_tune_problem problem{};
    int device = -1;
    fa_tune_kernel* kernel = nullptr;

    bool is(const fa_tune_problem& asked, int on) const {
        return generation == ::generation.load(std::memory_order_acquire) && device == on &&
               std::memcmp(&problem, &asked, sizeof problem) == 0;
    }
};

thread_local Last last;

fa_tune_torch_resolver resolver = nullptr;
fa_tune_torch_stream stream_of = nullptr;

fa_tune_kernel* chosen(const fa_tune_problem& problem, int device) {
    Choices& all = *choices();
    const std::shared_lock<std::shared_mutex> lock(all.mutex);
    if (const auto found = all.exact.find(exact_key(problem, device)); found != all.exact.end()) {
        return found->second;
    }
    const auto found = all.buckets.find(bucket_key(problem, device));
    return found == all.buckets.end() ? nullptr : found->second.serving(problem);
}

// Without the lock while Python chooses: it waits for other threads that may want it.
fa_tune_kernel* kernel_for(const fa_tune_problem& problem, int device) {
    if (fa_tune_kernel* found = chosen(problem, device)) return found;
    if (resolver == nullptr) fail("ToolMissing: nothing chooses kernels");
    fa_tune_kernel* kernel = nullptr;
    std::array<char, kTextBytes> text{};
    if (resolver(&problem, device, &kernel, text.data(), text.size()) != 1 || kernel == nullptr) {
        fail(text[0] != '\0' ? text.data() : "the choice of a kernel failed");
    }
    Choices& all = *choices();
    const std::unique_lock<std::shared_mutex> lock(all.mutex);
    if (const auto found = all.exact.find(exact_key(problem, device)); found != all.exact.end()) {
        found->second = kernel;
    } else {
        all.buckets[bucket_key(problem, device)].add(kernel);
    }
    return kernel;
}

// Tensors ------------------------------------------------------------------------------------

std::string shape_text(const std::int64_t* sizes) {
    std::string text = "(";
    for (int i = 0; i < 4; ++i) text += std::to_string(sizes[i]) + (i < 3 ? ", " : ")");
    return text;
}

// Sizes and strides of a [batch, seq, heads, d_head] tensor.
struct View {
    const std::int64_t* sizes;
    const std::int64_t* strides;
    std::int32_t dtype;
    std::int32_t device_type;
    std::int32_t device;
    void* address;

    View(const Tensor& tensor, const char* name) {
        const AtenTensorHandle handle = tensor.get();
        std::int64_t dimensions = 0;
        std::int64_t* found = nullptr;
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(handle, &dimensions));
        if (dimensions != 4) {
            refuse(std::string("Q, K, V must be [batch, seq, heads, d_head]; ") + name + " has " +
                   std::to_string(dimensions) + " dimensions");
        }
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(handle, &found));
        sizes = found;
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(handle, &found));
        strides = found;
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(handle, &dtype));
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(handle, &device_type));
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(handle, &device));
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(handle, &address));
        if (strides[3] != 1 && sizes[3] > 1) {
            refuse(std::string(name) + " must have d_head contiguous; its stride is " +
                   std::to_string(strides[3]));
        }
    }
    std::string shape() const { return shape_text(sizes); }
    fa_tune_tensor tensor() const { return {address, strides[0], strides[1], strides[2]}; }
};

std::array<std::int64_t, 4> output_shape(const View& q, const View& v) {
    return {q.sizes[0], q.sizes[1], q.sizes[2], v.sizes[3]};
}

fa_tune_problem problem_of(const View& q, const View& k, const View& v, bool causal,
                           bool bottom_right, std::optional<double> scale, bool lse) {
    for (int i = 0; i < 3; ++i) {
        if (k.sizes[i] != v.sizes[i]) {
            refuse("K and V differ in batch, length or heads: " + k.shape() + " and " + v.shape());
        }
    }
    if (q.sizes[0] != k.sizes[0] || q.sizes[3] != k.sizes[3]) {
        refuse("Q and K differ in batch or d_head: " + q.shape() + " and " + k.shape());
    }
    if ((q.dtype != FA_TUNE_DTYPE_FP16 && q.dtype != FA_TUNE_DTYPE_BF16) || k.dtype != q.dtype ||
        v.dtype != q.dtype) {
        refuse("Q, K, V must all be fp16 or all bf16");
    }
    for (const View* one : {&k, &v}) {
        if (one->device != q.device || one->device_type != q.device_type) {
            refuse("Q, K, V must be on one GPU");
        }
    }
    if (bottom_right && !causal) {
        refuse("bottom_right aligns a causal mask; this problem has no mask");
    }
    if (scale.has_value() && *scale == 0) refuse("softmax_scale must be positive, not 0");
    fa_tune_problem problem{};
    problem.operation = FA_TUNE_OPERATION_FORWARD;
    problem.dtype = q.dtype;
    problem.batch = q.sizes[0];
    problem.heads = q.sizes[2];
    problem.kv_heads = k.sizes[2];
    problem.seq_len_q = q.sizes[1];
    problem.seq_len_kv = k.sizes[1];
    problem.d_head = static_cast<std::int32_t>(std::min(q.sizes[3], kMaxSize));
    if (v.sizes[3] < 1) refuse("V has no columns: " + v.shape());
    if (v.sizes[3] != q.sizes[3]) {  // 0 where it is the same, as Python has it
        problem.d_head_v = static_cast<std::int32_t>(std::min(v.sizes[3], kMaxSize));
    }
    problem.mask = !causal        ? FA_TUNE_MASK_FULL
                   : bottom_right ? FA_TUNE_MASK_CAUSAL_BR
                                  : FA_TUNE_MASK_CAUSAL;
    problem.lse = lse;
    problem.softmax_scale = scale.value_or(0.0);
    const fa_tune::core::Status status = fa_tune::core::check_problem(problem);
    if (!status.ok()) refuse(status.text);
    return problem;
}

void* lse_address(const Tensor& lse, const View& q) {
    const std::array<std::int64_t, 3> shape = {q.sizes[0], q.sizes[2], q.sizes[1]};
    const AtenTensorHandle handle = lse.get();
    std::int64_t dimensions = 0;
    std::int64_t* sizes = nullptr;
    std::int32_t dtype = 0, device = 0;
    bool contiguous = false;
    void* address = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(handle, &dimensions));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(handle, &sizes));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(handle, &dtype));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(handle, &device));
    TORCH_ERROR_CODE_CHECK(aoti_torch_is_contiguous(handle, &contiguous));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(handle, &address));
    if (dimensions != 3 || sizes[0] != shape[0] || sizes[1] != shape[1] || sizes[2] != shape[2] ||
        dtype != aoti_torch_dtype_float32() || device != q.device || !contiguous) {
        refuse("lse must be fp32 (" + std::to_string(shape[0]) + ", " + std::to_string(shape[1]) +
               ", " + std::to_string(shape[2]) + "), contiguous, on Q's GPU");
    }
    return address;
}

Tensor empty(const View& like, const std::int64_t* sizes, std::int64_t dimensions,
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
    return Tensor(made);
}

void launch(const fa_tune_problem& problem, const View& q, const View& k, const View& v,
            const fa_tune_tensor& out, void* lse) {
    void* stream = nullptr;
    if (stream_of != nullptr) TORCH_ERROR_CODE_CHECK(stream_of(q.device, &stream));
    if (!last.is(problem, q.device)) {
        const std::uint64_t now = generation.load(std::memory_order_acquire);
        last = {now, problem, q.device, kernel_for(problem, q.device)};
    }
    fa_tune_kernel* kernel = last.kernel;
    std::size_t workspace_bytes = 0;
    check(fa_tune_workspace_bytes(kernel, &problem, q.device, &workspace_bytes));
    std::optional<Tensor> workspace;  // torch gives its memory to later work of this stream alone
    if (workspace_bytes > 0) {
        const auto words = static_cast<std::int64_t>((workspace_bytes + 3) / 4);
        workspace = empty(q, &words, 1, aoti_torch_dtype_float32());
    }
    fa_tune_tensors tensors{q.tensor(), k.tensor(), v.tensor(), out, lse};
    if (workspace) tensors.workspace = workspace->data_ptr();
    check(fa_tune_launch(kernel, &problem, &tensors, q.device, stream));
}

// Operators ----------------------------------------------------------------------------------

// A contiguous tensor like Q, with V's last dimension.
struct Output {
    Tensor tensor;
    fa_tune_tensor address;

    Output(const View& q, const View& v) : Output(q, output_shape(q, v)) {}

  private:
    Output(const View& q, const std::array<std::int64_t, 4>& shape)
        : tensor(empty(q, shape.data(), 4, q.dtype)),
          address{tensor.data_ptr(), shape[1] * shape[2] * shape[3], shape[2] * shape[3],
                  shape[3]} {}
};

Tensor fwd(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, bool bottom_right,
           std::optional<double> scale) {
    const View vq(q, "Q"), vk(k, "K"), vv(v, "V");
    const fa_tune_problem problem = problem_of(vq, vk, vv, causal, bottom_right, scale, false);
    const Output out(vq, vv);
    launch(problem, vq, vk, vv, out.address, nullptr);
    return out.tensor;
}

std::tuple<Tensor, Tensor> fwd_lse(const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
                                   bool bottom_right, std::optional<double> scale) {
    const View vq(q, "Q"), vk(k, "K"), vv(v, "V");
    const fa_tune_problem problem = problem_of(vq, vk, vv, causal, bottom_right, scale, true);
    const Output out(vq, vv);
    const std::array<std::int64_t, 3> rows = {vq.sizes[0], vq.sizes[2], vq.sizes[1]};
    Tensor lse = empty(vq, rows.data(), 3, aoti_torch_dtype_float32());
    launch(problem, vq, vk, vv, out.address, lse.data_ptr());
    return {out.tensor, std::move(lse)};
}

void fwd_out(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, bool bottom_right,
             std::optional<double> scale, const Tensor& out, std::optional<Tensor> lse) {
    const View vq(q, "Q"), vk(k, "K"), vv(v, "V"), vo(out, "out");
    const fa_tune_problem problem =
        problem_of(vq, vk, vv, causal, bottom_right, scale, lse.has_value());
    const std::array<std::int64_t, 4> shape = output_shape(vq, vv);
    if (!std::equal(shape.begin(), shape.end(), vo.sizes)) {
        refuse("out must be like q with v's last dimension, " + shape_text(shape.data()) +
               ", not " + vo.shape());
    }
    if (vo.dtype != vq.dtype || vo.device != vq.device || vo.device_type != vq.device_type) {
        refuse("out must have Q's dtype and be on its GPU");
    }
    launch(problem, vq, vk, vv, vo.tensor(), lse.has_value() ? lse_address(*lse, vq) : nullptr);
}

}  // namespace

extern "C" {

void fa_tune_torch_register(const char* dispatch_key) {
    // Never destroyed: that would drop the operators.
    auto* library =
        new StableLibrary(StableLibrary::Kind::IMPL, "fa_tune", dispatch_key, __FILE__, __LINE__);
    library->impl("fwd", TORCH_BOX(&fwd));
    library->impl("fwd_lse", TORCH_BOX(&fwd_lse));
    library->impl("fwd_out", TORCH_BOX(&fwd_out));
}

void fa_tune_torch_set_resolver(fa_tune_torch_resolver chooser) { resolver = chooser; }

void fa_tune_torch_set_stream(fa_tune_torch_stream stream) { stream_of = stream; }

void fa_tune_torch_add_exact(const fa_tune_problem* problem, int device) {
    Choices& all = *choices();
    const std::unique_lock<std::shared_mutex> lock(all.mutex);
    all.exact.try_emplace(exact_key(*problem, device), nullptr);
    ++generation;
}

int fa_tune_torch_prepare(const fa_tune_problem* problem, int device, char* text,
                          std::size_t size) {
    try {
        kernel_for(*problem, device);
        return 1;
    } catch (const std::exception& error) {
        std::snprintf(text, size, "%s", error.what());
        return 0;
    }
}

void fa_tune_torch_forget(void) {
    // A lock that another thread held when the process forked is held for ever, so leave it.
    choices() = new Choices;
    ++generation;
}

std::size_t fa_tune_torch_choices(void) {
    Choices& all = *choices();
    const std::shared_lock<std::shared_mutex> lock(all.mutex);
    return all.exact.size() + all.buckets.size();
}

}  // extern "C"
