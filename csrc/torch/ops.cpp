// The operators fa_tune::fwd, fwd_lse and fwd_out, and those of packed batches, on the stable ABI
// of torch 2.10 and later.
//
// Python declares their schemas, says for which device type they stand (fa_tune_torch_register) and
// chooses kernels (fa_tune_torch_set_resolver).  A call here is a lookup of what was chosen before,
// and a launch by the C++ core.
//
// A choice serves all problems of a bucket: of one dtype, head dimension, mask, log-sum-exp, group
// size and changes of scores, whose batch * heads and lengths have the same nearest powers of two.
// So growing lengths need a choice per doubling.  Problems that were tuned by themselves are no
// part of it.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

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

using Key = std::array<std::int64_t, 12>;

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
    const bool causal = fa_tune::core::is_causal(p);
    const bool aligned = causal || p.window != 0 || p.alibi != 0;
    const int mask = (aligned && fa_tune::core::is_bottom_right(p) ? 2 : 0) + (causal ? 1 : 0);
    const int scores =
        (p.packed << 5) | ((p.softcap != 0) << 4) | (p.window << 2) | (p.sink << 1) | p.alibi;
    return (static_cast<std::int64_t>(p.d_head) << 32) |
           (static_cast<std::int64_t>(device + 1) << 20) |
           (static_cast<std::int64_t>(scores) << 12) | (p.dtype << 4) | (mask << 1) | (p.lse != 0);
}

std::int64_t bits_of(double value) {
    std::int64_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

// Of a problem whose mask is settled.
Key exact_key(const fa_tune_problem& p, int device) {
    return {kind_of(p, device), p.d_head_v,         p.batch,      p.heads,
            p.kv_heads,         p.seq_len_q,        p.seq_len_kv, p.window_left,
            p.window_right,     bits_of(p.softcap), p.total_q,    p.total_kv};
}

// The exponent of the nearest power of two, in doublings.
int nearest_log2(std::int64_t n) {
    return (64 - __builtin_clzll(static_cast<unsigned long long>(n) *
                                 static_cast<unsigned long long>(n))) >>
           1;
}

int nearest_log2_of_product(std::int64_t one, std::int64_t other) {
    return nearest_log2(std::min(one * other, kMaxSize));
}

// Of a problem whose mask is settled.  In the place of what only a packed batch has stands -1 where
// an exact key has a size.
Key bucket_key(const fa_tune_problem& p, int device) {
    Key key = {kind_of(p, device),
               p.d_head_v,
               p.heads / p.kv_heads,
               nearest_log2_of_product(p.batch, p.packed != 0 ? 1 : p.heads),
               nearest_log2(p.seq_len_q),
               nearest_log2(p.seq_len_kv),
               -1,
               p.window_left,
               p.window_right,
               bits_of(p.softcap),
               -1,
               -1};
    if (p.packed != 0) {
        key[10] = nearest_log2_of_product(p.total_q, p.heads);
        key[11] = nearest_log2_of_product(p.total_kv, p.heads);
    }
    return key;
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
    const fa_tune_problem settled = fa_tune::core::settled(problem);
    if (const auto found = all.exact.find(exact_key(settled, device)); found != all.exact.end()) {
        return found->second;
    }
    const auto found = all.buckets.find(bucket_key(settled, device));
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
    const fa_tune_problem settled = fa_tune::core::settled(problem);
    if (const auto found = all.exact.find(exact_key(settled, device)); found != all.exact.end()) {
        found->second = kernel;
    } else {
        all.buckets[bucket_key(settled, device)].add(kernel);
    }
    return kernel;
}

// Tensors ------------------------------------------------------------------------------------

// What operators are told beside tensors, in the order of the schemas.
struct Traits {
    bool causal;
    bool bottom_right;
    std::optional<double> scale;
    std::optional<std::int64_t> window_left;
    std::optional<std::int64_t> window_right;
    std::optional<Tensor> sink;
    std::optional<double> softcap;
    std::optional<Tensor> alibi_slopes;
};

// Where the sequences of a packed batch begin, and how long the longest are.
struct Lengths {
    const Tensor& cum_q;
    const Tensor& cum_kv;
    std::int64_t longest_q;
    std::int64_t longest_kv;
};

std::string shape_text(const std::int64_t* sizes, std::int64_t dimensions) {
    std::string text = "(";
    for (std::int64_t i = 0; i < dimensions; ++i) {
        text += (i == 0 ? "" : ", ") + std::to_string(sizes[i]);
    }
    return text + ")";
}

// A tensor as torch knows it.
struct Described {
    std::int64_t dimensions = 0;
    std::int64_t* sizes = nullptr;
    std::int64_t* strides = nullptr;
    std::int32_t dtype = 0;
    std::int32_t device_type = 0;
    std::int32_t device = 0;
    void* address = nullptr;

    explicit Described(const Tensor& tensor) {
        const AtenTensorHandle handle = tensor.get();
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(handle, &dimensions));
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(handle, &sizes));
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(handle, &strides));
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(handle, &dtype));
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(handle, &device_type));
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(handle, &device));
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(handle, &address));
    }
    bool is_beside(const Described& other) const {
        return device == other.device && device_type == other.device_type;
    }
    bool has_sizes(std::initializer_list<std::int64_t> wanted) const {
        return dimensions == static_cast<std::int64_t>(wanted.size()) &&
               std::equal(wanted.begin(), wanted.end(), sizes);
    }
    // Elements follow each other; the stride of an extent of 1 may be anything.
    bool is_contiguous() const {
        std::int64_t step = 1;
        for (std::int64_t i = dimensions - 1; i >= 0; --i) {
            if (sizes[i] > 1 && strides[i] != step) return false;
            step *= sizes[i];
        }
        return true;
    }
};

// A [batch, seq, heads, d_head] tensor, or one [rows, heads, d_head] of a packed batch, which
// counts as one of its batch.
struct View : Described {
    std::int64_t rows;
    std::int64_t heads;
    std::int64_t d_head;

    View(const Tensor& tensor, const char* name, bool packed) : Described(tensor) {
        const std::int64_t wanted = packed ? 3 : 4;
        if (dimensions != wanted) {
            refuse(std::string("Q, K, V must be ") +
                   (packed ? "[rows, heads, d_head]; " : "[batch, seq, heads, d_head]; ") + name +
                   " has " + std::to_string(dimensions) + " dimensions");
        }
        rows = sizes[wanted - 3];
        heads = sizes[wanted - 2];
        d_head = sizes[wanted - 1];
        if (strides[wanted - 1] != 1 && d_head > 1) {
            refuse(std::string(name) + " must have d_head contiguous; its stride is " +
                   std::to_string(strides[wanted - 1]));
        }
    }
    std::int64_t batch() const { return dimensions == 4 ? sizes[0] : 1; }
    std::string shape() const { return shape_text(sizes, dimensions); }
    fa_tune_tensor tensor() const {
        const std::int64_t* inner = strides + dimensions - 3;
        return {address, dimensions == 4 ? strides[0] : 0, inner[0], inner[1]};
    }
};

// What the problem is of, but for how its scores are masked and changed.
void set_sizes(fa_tune_problem& problem, const View& q, const View& k, const View& v) {
    if (!std::equal(k.sizes, k.sizes + k.dimensions - 1, v.sizes)) {
        refuse("K and V differ in batch, length or heads: " + k.shape() + " and " + v.shape());
    }
    if (q.batch() != k.batch() || q.d_head != k.d_head) {
        refuse("Q and K differ in batch or d_head: " + q.shape() + " and " + k.shape());
    }
    if ((q.dtype != FA_TUNE_DTYPE_FP16 && q.dtype != FA_TUNE_DTYPE_BF16) || k.dtype != q.dtype ||
        v.dtype != q.dtype) {
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
}

// Those of a dense batch, or with the rows of all sequences of a packed one.
fa_tune_problem problem_of(const View& q, const View& k, const View& v, const Traits& traits,
                           const Lengths* lengths, bool lse) {
    fa_tune_problem problem{};
    set_sizes(problem, q, k, v);
    if (lengths != nullptr) {
        const Described starts(lengths->cum_q);
        problem.packed = 1;
        problem.batch = starts.dimensions == 1 ? starts.sizes[0] - 1 : 0;
        problem.seq_len_q = lengths->longest_q;
        problem.seq_len_kv = lengths->longest_kv;
        problem.total_q = q.rows;
        problem.total_kv = k.rows;
    }
    set_traits(problem, traits);
    problem.lse = lse;
    const fa_tune::core::Status status = fa_tune::core::check_problem(problem);
    if (!status.ok()) refuse(status.text);
    return problem;
}

// The address of what kernels read element by element.
void* address_of(const Tensor& tensor, const char* name, std::int32_t dtype, const char* dtype_name,
                 std::initializer_list<std::int64_t> sizes, const View& q) {
    const Described found(tensor);
    if (!found.has_sizes(sizes) || found.dtype != dtype || !found.is_beside(q) ||
        !found.is_contiguous()) {
        refuse(std::string(name) + " must be " + dtype_name + " " +
               shape_text(sizes.begin(), static_cast<std::int64_t>(sizes.size())) +
               ", contiguous, on Q's GPU");
    }
    return found.address;
}

void set_slopes(fa_tune_tensors& tensors, const Tensor& slopes, std::int64_t batch, const View& q) {
    const Described found(slopes);
    const bool of_batch = found.has_sizes({batch, q.heads});
    if ((!of_batch && !found.has_sizes({q.heads})) || found.dtype != aoti_torch_dtype_float32() ||
        !found.is_beside(q) || (q.heads > 1 && found.strides[found.dimensions - 1] != 1)) {
        refuse("alibi_slopes must be fp32 (" + std::to_string(q.heads) + ") or (" +
               std::to_string(batch) + ", " + std::to_string(q.heads) +
               ") with contiguous heads, on Q's GPU");
    }
    tensors.alibi_slopes = found.address;
    tensors.alibi_batch_stride = of_batch ? found.strides[0] : 0;
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

void launch(const fa_tune_problem& problem, fa_tune_tensors& tensors, const View& q) {
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
        tensors.workspace = workspace->data_ptr();
    }
    check(fa_tune_launch(kernel, &problem, &tensors, q.device, stream));
}

// One call of an operator, but for where its results go.
class Call {
  public:
    Call(const Traits& traits, const Tensor& q, const Tensor& k, const Tensor& v, bool lse,
         const Lengths* lengths)
        : q_(q, "Q", lengths != nullptr),
          k_(k, "K", lengths != nullptr),
          v_(v, "V", lengths != nullptr),
          problem_(problem_of(q_, k_, v_, traits, lengths, lse)) {
        tensors_.q = q_.tensor();
        tensors_.k = k_.tensor();
        tensors_.v = v_.tensor();
        if (traits.sink.has_value()) {
            tensors_.sink = address_of(*traits.sink, "sink", aoti_torch_dtype_float32(), "fp32",
                                       {q_.heads}, q_);
        }
        if (traits.alibi_slopes.has_value()) {
            set_slopes(tensors_, *traits.alibi_slopes, problem_.batch, q_);
        }
        if (lengths != nullptr) {
            tensors_.cu_seqlens_q = starts(lengths->cum_q, "cu_seqlens_q");
            tensors_.cu_seqlens_kv = starts(lengths->cum_kv, "cu_seqlens_k");
        }
    }

    // A contiguous tensor like Q, with V's last dimension.
    Tensor make_out() {
        std::array<std::int64_t, 4> shape = out_shape();
        Tensor made = empty(q_, shape.data(), q_.dimensions, q_.dtype);
        const std::int64_t row = q_.heads * v_.d_head;
        tensors_.o = {made.data_ptr(), q_.rows * row, row, v_.d_head};
        return made;
    }
    Tensor make_lse() {
        const std::array<std::int64_t, 3> dense = {q_.batch(), q_.heads, q_.rows};
        const bool packed = problem_.packed != 0;
        Tensor made = empty(q_, dense.data() + packed, 3 - packed, aoti_torch_dtype_float32());
        tensors_.lse = made.data_ptr();
        return made;
    }
    void take_out(const Tensor& out) {
        const std::array<std::int64_t, 4> shape = out_shape();
        const View given(out, "out", problem_.packed != 0);
        if (!std::equal(given.sizes, given.sizes + given.dimensions, shape.data())) {
            refuse("out must be like q with v's last dimension, " +
                   shape_text(shape.data(), q_.dimensions) + ", not " + given.shape());
        }
        if (given.dtype != q_.dtype || !given.is_beside(q_)) {
            refuse("out must have Q's dtype and be on its GPU");
        }
        tensors_.o = given.tensor();
    }
    void take_lse(const Tensor& lse) {
        const auto fp32 = aoti_torch_dtype_float32();
        tensors_.lse =
            problem_.packed != 0
                ? address_of(lse, "lse", fp32, "fp32", {q_.heads, q_.rows}, q_)
                : address_of(lse, "lse", fp32, "fp32", {q_.batch(), q_.heads, q_.rows}, q_);
    }
    void run() { launch(problem_, tensors_, q_); }

  private:
    std::array<std::int64_t, 4> out_shape() const {
        std::array<std::int64_t, 4> shape{};
        std::copy(q_.sizes, q_.sizes + q_.dimensions - 1, shape.begin());
        shape[static_cast<std::size_t>(q_.dimensions - 1)] = v_.d_head;
        return shape;
    }
    const std::int32_t* starts(const Tensor& tensor, const char* name) const {
        return static_cast<const std::int32_t*>(
            address_of(tensor, name, aoti_torch_dtype_int32(), "int32", {problem_.batch + 1}, q_));
    }

    View q_, k_, v_;
    fa_tune_problem problem_;
    fa_tune_tensors tensors_{};
};

// Operators ----------------------------------------------------------------------------------

Tensor run(Call call) {
    Tensor out = call.make_out();
    call.run();
    return out;
}

std::tuple<Tensor, Tensor> run_with_lse(Call call) {
    Tensor out = call.make_out(), lse = call.make_lse();
    call.run();
    return {std::move(out), std::move(lse)};
}

void run_into(Call call, const Tensor& out, const std::optional<Tensor>& lse) {
    call.take_out(out);
    if (lse.has_value()) call.take_lse(*lse);
    call.run();
}

Tensor fwd(const Traits& traits, const Tensor& q, const Tensor& k, const Tensor& v) {
    return run(Call(traits, q, k, v, false, nullptr));
}

std::tuple<Tensor, Tensor> fwd_lse(const Traits& traits, const Tensor& q, const Tensor& k,
                                   const Tensor& v) {
    return run_with_lse(Call(traits, q, k, v, true, nullptr));
}

void fwd_out(const Traits& traits, const Tensor& q, const Tensor& k, const Tensor& v,
             const Tensor& out, std::optional<Tensor> lse) {
    run_into(Call(traits, q, k, v, lse.has_value(), nullptr), out, lse);
}

Tensor packed_fwd(const Traits& traits, const Tensor& q, const Tensor& k, const Tensor& v,
                  const Tensor& cum_q, const Tensor& cum_kv, std::int64_t longest_q,
                  std::int64_t longest_kv) {
    const Lengths lengths{cum_q, cum_kv, longest_q, longest_kv};
    return run(Call(traits, q, k, v, false, &lengths));
}

std::tuple<Tensor, Tensor> packed_fwd_lse(const Traits& traits, const Tensor& q, const Tensor& k,
                                          const Tensor& v, const Tensor& cum_q,
                                          const Tensor& cum_kv, std::int64_t longest_q,
                                          std::int64_t longest_kv) {
    const Lengths lengths{cum_q, cum_kv, longest_q, longest_kv};
    return run_with_lse(Call(traits, q, k, v, true, &lengths));
}

void packed_fwd_out(const Traits& traits, const Tensor& q, const Tensor& k, const Tensor& v,
                    const Tensor& cum_q, const Tensor& cum_kv, std::int64_t longest_q,
                    std::int64_t longest_kv, const Tensor& out, std::optional<Tensor> lse) {
    const Lengths lengths{cum_q, cum_kv, longest_q, longest_kv};
    run_into(Call(traits, q, k, v, lse.has_value(), &lengths), out, lse);
}

// An operator as torch calls it: what is given, then the traits one by one.
template <auto body>
struct Flat;

template <class Result, class... Given, Result (*body)(const Traits&, Given...)>
struct Flat<body> {
    static Result call(Given... given, bool causal, bool bottom_right, std::optional<double> scale,
                       std::optional<std::int64_t> window_left,
                       std::optional<std::int64_t> window_right, std::optional<Tensor> sink,
                       std::optional<double> softcap, std::optional<Tensor> alibi_slopes) {
        const Traits traits{causal,       bottom_right,    scale,   window_left,
                            window_right, std::move(sink), softcap, std::move(alibi_slopes)};
        return body(traits, std::forward<Given>(given)...);
    }
};

}  // namespace

extern "C" {

void fa_tune_torch_register(const char* dispatch_key) {
    // Never destroyed: that would drop the operators.
    auto* library =
        new StableLibrary(StableLibrary::Kind::IMPL, "fa_tune", dispatch_key, __FILE__, __LINE__);
    library->impl("fwd", TORCH_BOX(&Flat<&fwd>::call));
    library->impl("fwd_lse", TORCH_BOX(&Flat<&fwd_lse>::call));
    library->impl("fwd_out", TORCH_BOX(&Flat<&fwd_out>::call));
    library->impl("packed_fwd", TORCH_BOX(&Flat<&packed_fwd>::call));
    library->impl("packed_fwd_lse", TORCH_BOX(&Flat<&packed_fwd_lse>::call));
    library->impl("packed_fwd_out", TORCH_BOX(&Flat<&packed_fwd_out>::call));
}

void fa_tune_torch_set_resolver(fa_tune_torch_resolver chooser) { resolver = chooser; }

void fa_tune_torch_set_stream(fa_tune_torch_stream stream) { stream_of = stream; }

void fa_tune_torch_add_exact(const fa_tune_problem* problem, int device) {
    Choices& all = *choices();
    const std::unique_lock<std::shared_mutex> lock(all.mutex);
    all.exact.try_emplace(exact_key(fa_tune::core::settled(*problem), device), nullptr);
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
