// The operators fa_tune::fwd, fwd_lse and fwd_out, and those of packed batches, on the stable ABI
// of torch 2.10 and later.
//
// Python declares their schemas, says for which device type they stand (fa_tune_torch_register) and
// chooses kernels (choices.h).  A call here is a lookup of what was chosen before, and a launch by
// the C++ core.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "choices.h"
#include "errors.h"
#include "fa_tune.h"
#include "tensors.h"

extern "C" {

// aoti_torch_get_current_cuda_stream, which torch without CUDA does not have.
typedef std::int32_t (*fa_tune_torch_stream)(std::int32_t device, void** stream);

// Registers the operators for a dispatch key, as "CUDA", for as long as the process lives.
FA_TUNE_API void fa_tune_torch_register(const char* dispatch_key);
FA_TUNE_API void fa_tune_torch_set_stream(fa_tune_torch_stream stream);

}  // extern "C"

namespace fa_tune::op {

namespace {

fa_tune_torch_stream stream_of = nullptr;

void check(fa_tune_status status) {
    if (status == FA_TUNE_OK) return;
    const char* kind = status == FA_TUNE_INVALID     ? "InvalidConfig: "
                       : status == FA_TUNE_NOT_FOUND ? "NoUsableVariant: "
                       : status == FA_TUNE_NO_DRIVER ? "ToolMissing: "
                                                     : "DriverError: ";
    fail(std::string(kind) + fa_tune_last_error());
}

void launch(const fa_tune_problem& problem, fa_tune_tensors& tensors, const View& q) {
    void* stream = nullptr;
    if (stream_of != nullptr) TORCH_ERROR_CODE_CHECK(stream_of(q.device, &stream));
    fa_tune_kernel* kernel = kernel_of(problem, q.device);
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

}  // namespace fa_tune::op

extern "C" {

void fa_tune_torch_register(const char* dispatch_key) {
    using namespace fa_tune::op;
    using torch::stable::detail::StableLibrary;
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

void fa_tune_torch_set_stream(fa_tune_torch_stream stream) { fa_tune::op::stream_of = stream; }

}  // extern "C"
