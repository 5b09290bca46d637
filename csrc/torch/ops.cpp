// The operators fa_tune::fwd, fwd_lse and fwd_out, with all traits and of packed batches too, on
// the stable ABI of torch 2.10 and later.
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
#include "kernel.h"
#include "status.h"
#include "tensors.h"

extern "C" {

// aoti_torch_get_current_cuda_stream, which torch without CUDA does not have.
typedef std::int32_t (*fa_tune_torch_stream)(std::int32_t device, void** stream);

// Registers the operators for a dispatch key, as "CUDA", for as long as the process lives.
FA_TUNE_API void fa_tune_torch_register(const char* dispatch_key);
FA_TUNE_API void fa_tune_torch_set_stream(fa_tune_torch_stream stream);
// What is called before each copy of tensors whose rows no kernel reads.
FA_TUNE_API void fa_tune_torch_set_teller(void (*teller)());

}  // extern "C"

namespace fa_tune::op {

namespace {

fa_tune_torch_stream stream_of = nullptr;

const char* kind_of(fa_tune_status status) {
    return status == FA_TUNE_INVALID     ? "InvalidConfig: "
           : status == FA_TUNE_NOT_FOUND ? "NoUsableVariant: "
           : status == FA_TUNE_NO_DRIVER ? "ToolMissing: "
                                         : "DriverError: ";
}

void launch(const fa_tune_problem& problem, fa_tune_tensors& tensors, const View& q) try {
    void* stream = nullptr;
    if (stream_of != nullptr) TORCH_ERROR_CODE_CHECK(stream_of(q.device, &stream));
    Choice& chosen = choice_of(problem, q.device);
    if (!chosen.has_run) {
        const fa_tune_status status =
            fa_tune_workspace_bytes(chosen.kernel, &problem, q.device, &chosen.workspace_bytes);
        if (status != FA_TUNE_OK) throw core::Failure(status, fa_tune_last_error());
    }
    Owned workspace;  // torch gives its memory to later work of this stream alone
    if (chosen.workspace_bytes > 0) {
        const auto words = static_cast<std::int64_t>((chosen.workspace_bytes + 3) / 4);
        workspace = empty(q, &words, 1, aoti_torch_dtype_float32());
        tensors.workspace = workspace.address();
    }
    const auto run = chosen.has_run ? &fa_tune_kernel::launch_again : &fa_tune_kernel::launch;
    (chosen.kernel->*run)(problem, tensors, q.device, static_cast<core::CUstream>(stream));
    chosen.has_run = true;
} catch (const core::Failure& failure) {
    fail(std::string(kind_of(failure.code)) + failure.what());
}

// What torch gives an operator, one by one.
class Arguments {
  public:
    explicit Arguments(StableIValue* stack) : next_(stack) {}

    template <class T>
    T take() {
        return torch::stable::detail::to<T>(*next_++);
    }
    Owned tensor() { return Owned(take<AtenTensorHandle>()); }
    Lengths lengths() {
        Lengths found;
        found.cum_q = tensor();
        found.cum_kv = tensor();
        found.longest_q = take<std::int64_t>();
        found.longest_kv = take<std::int64_t>();
        return found;
    }
    // In the order of the schemas; `all` but the first three have usual values else.
    template <bool all>
    Traits traits() {
        Traits found;
        found.causal = take<bool>();
        found.bottom_right = take<bool>();
        found.scale = take<std::optional<double>>();
        if constexpr (all) {
            found.window_left = take<std::optional<std::int64_t>>();
            found.window_right = take<std::optional<std::int64_t>>();
            found.sink = take<std::optional<Tensor>>();
            found.softcap = take<std::optional<double>>();
            found.alibi_slopes = take<std::optional<Tensor>>();
            found.exact = take<bool>();
        }
        return found;
    }

  private:
    StableIValue* next_;
};

// One call of an operator, but for where its results go.
class Call {
  public:
    Call(const Traits& traits, Owned& q, Owned& k, Owned& v, bool lse, const Lengths* lengths)
        : q_(with_whole_rows(q, "Q", lengths != nullptr)),
          k_(with_whole_rows(k, "K", lengths != nullptr)),
          v_(with_whole_rows(v, "V", lengths != nullptr)),
          problem_(problem_of(q_, k_, v_, traits, lengths, lse)) {
        check_refusal();
        tensors_.of[FA_TUNE_TENSOR_Q] = q_.tensor();
        tensors_.of[FA_TUNE_TENSOR_K] = k_.tensor();
        tensors_.of[FA_TUNE_TENSOR_V] = v_.tensor();
        if (traits.sink.has_value()) {
            tensors_.of[FA_TUNE_TENSOR_SINK].address = address_of(
                traits.sink->get(), "sink", aoti_torch_dtype_float32(), "fp32", {q_.heads}, q_);
        }
        if (traits.alibi_slopes.has_value()) {
            set_slopes(tensors_, traits.alibi_slopes->get(), problem_.batch, q_);
        }
        if (lengths != nullptr) {
            tensors_.of[FA_TUNE_TENSOR_CU_SEQLENS_Q].address =
                starts(lengths->cum_q.get(), "cu_seqlens_q");
            tensors_.of[FA_TUNE_TENSOR_CU_SEQLENS_KV].address =
                starts(lengths->cum_kv.get(), "cu_seqlens_k");
        }
    }

    // A contiguous tensor like Q, with V's last dimension.
    Owned make_out() {
        const std::array<std::int64_t, 4> shape = out_shape();
        Owned made = room(shape.data(), q_.dimensions, q_.dtype);
        const std::int64_t row = q_.heads * v_.d_head;
        tensors_.of[FA_TUNE_TENSOR_O] = {made.address(), q_.rows * row, row, v_.d_head};
        return made;
    }
    Owned make_lse() {
        const std::array<std::int64_t, 3> dense = {q_.batch(), q_.heads, q_.rows};
        const bool packed = problem_.packed != 0;
        Owned made = room(dense.data() + packed, 3 - packed, aoti_torch_dtype_float32());
        tensors_.of[FA_TUNE_TENSOR_LSE].address = made.address();
        return made;
    }
    void take_out(AtenTensorHandle out) {
        const std::array<std::int64_t, 4> shape = out_shape();
        const View given(out, "out", problem_.packed != 0);
        if (!std::equal(given.sizes, given.sizes + given.dimensions, shape.data())) {
            refuse("out must be like q with v's last dimension, " +
                   shape_text(shape.data(), q_.dimensions) + ", not " + given.shape());
        }
        if (given.dtype != q_.dtype || !given.is_beside(q_)) {
            refuse("out must have Q's dtype and be on its GPU");
        }
        if (given.strides[given.dimensions - 1] != 1 && given.d_head > 1) {
            refuse("out must have d_head contiguous");
        }
        if (given.is_expanded()) {
            refuse("out must have a place for each element; it is expanded");
        }
        tensors_.of[FA_TUNE_TENSOR_O] = given.tensor();
    }
    // Or its gradient.
    void take_lse(AtenTensorHandle lse, fa_tune_tensor_role role = FA_TUNE_TENSOR_LSE,
                  const char* name = "lse") {
        const auto fp32 = aoti_torch_dtype_float32();
        tensors_.of[role].address =
            problem_.packed != 0
                ? address_of(lse, name, fp32, "fp32", {q_.heads, q_.rows}, q_)
                : address_of(lse, name, fp32, "fp32", {q_.batch(), q_.heads, q_.rows}, q_);
    }
    void run() { launch(problem_, tensors_, q_); }

    // dQ, dK and dV, contiguous, by kernels of our own.
    std::array<Owned, 3> gradients(Owned& grad_out, Owned& out, AtenTensorHandle lse) {
        problem_.operation = FA_TUNE_OPERATION_BACKWARD;
        problem_.exact = 0;
        const std::array<std::int64_t, 4> shape = out_shape();
        for (const auto& [role, tensor, name] :
             {std::tuple{FA_TUNE_TENSOR_DO, &grad_out, "grad_out"},
              std::tuple{FA_TUNE_TENSOR_O, &out, "out"}}) {
            const View given = with_whole_rows(*tensor, name, problem_.packed != 0, false);
            if (!std::equal(given.sizes, given.sizes + q_.dimensions, shape.begin()) ||
                given.dtype != q_.dtype || !given.is_beside(q_)) {
                refuse(std::string(name) + " must be like q with v's last dimension");
            }
            tensors_.of[role] = given.tensor();
        }
        take_lse(lse);
        std::array<Owned, 3> made;
        const View* const like[] = {&q_, &k_, &v_};
        for (std::size_t i = 0; i < made.size(); ++i) {
            const View& view = *like[i];
            const std::int64_t row = view.heads * view.d_head;
            made[i] = room(view.sizes, view.dimensions, q_.dtype);
            tensors_.of[FA_TUNE_TENSOR_DQ + i] = {made[i].address(), view.rows * row, row,
                                                  view.d_head};
        }
        run();
        return made;
    }

  private:
    // A packed batch may have rows of no sequence, which no kernel writes: they are 0.
    Owned room(const std::int64_t* sizes, std::int64_t dimensions, std::int32_t dtype) const {
        Owned made = empty(q_, sizes, dimensions, dtype);
        if (problem_.packed != 0) TORCH_ERROR_CODE_CHECK(aoti_torch_zero_(made.get()));
        return made;
    }
    std::array<std::int64_t, 4> out_shape() const {
        std::array<std::int64_t, 4> shape{};
        std::copy(q_.sizes, q_.sizes + q_.dimensions - 1, shape.begin());
        shape[static_cast<std::size_t>(q_.dimensions - 1)] = v_.d_head;
        return shape;
    }
    void* starts(AtenTensorHandle tensor, const char* name) const {
        return address_of(tensor, name, aoti_torch_dtype_int32(), "int32", {problem_.batch + 1},
                          q_);
    }

    View q_, k_, v_;
    fa_tune_problem problem_;
    fa_tune_tensors tensors_{};
};

// Operators ----------------------------------------------------------------------------------

// Which problems: those without a window or what changes scores, any, packed ones.
enum class Kind { kPlain, kScored, kPacked };

// Where results go.
enum class Results { kOut, kOutAndLse, kGiven };

// An operator as torch calls it: Q, K and V; lengths of a packed batch; room for results that is
// given; the traits.
template <Kind kind, Results results>
void run(StableIValue* stack, std::uint64_t, std::uint64_t) {
    constexpr bool packed = kind == Kind::kPacked;
    Arguments given(stack);
    Owned q = given.tensor(), k = given.tensor(), v = given.tensor();
    Lengths lengths;
    if constexpr (packed) lengths = given.lengths();
    Owned out;
    std::optional<Tensor> room_for_lse;
    if constexpr (results == Results::kGiven) {
        out = given.tensor();
        room_for_lse = given.take<std::optional<Tensor>>();
    }
    const Traits traits = given.traits<kind != Kind::kPlain>();
    const bool lse = results == Results::kOutAndLse || room_for_lse.has_value();
    Call call(traits, q, k, v, lse, packed ? &lengths : nullptr);
    if constexpr (results == Results::kGiven) {
        call.take_out(out.get());
        if (lse) call.take_lse(room_for_lse->get());
        call.run();
        return;
    }
    out = call.make_out();
    Owned rows;
    if constexpr (results == Results::kOutAndLse) rows = call.make_lse();
    call.run();
    stack[0] = torch::stable::detail::from(out.release());
    if constexpr (results == Results::kOutAndLse) {
        stack[1] = torch::stable::detail::from(rows.release());
    }
}

template <bool packed>
void run_backward(StableIValue* stack, std::uint64_t, std::uint64_t) {
    Arguments given(stack);
    Owned grad_out = given.tensor(), q = given.tensor(), k = given.tensor(), v = given.tensor();
    Owned out = given.tensor(), lse = given.tensor();
    const auto grad_lse = given.take<std::optional<Tensor>>();
    Lengths lengths;
    if constexpr (packed) lengths = given.lengths();
    const Traits traits = given.traits<true>();
    Call call(traits, q, k, v, grad_lse.has_value(), packed ? &lengths : nullptr);
    if (grad_lse.has_value()) call.take_lse(grad_lse->get(), FA_TUNE_TENSOR_DLSE, "grad_lse");
    std::array<Owned, 3> found = call.gradients(grad_out, out, lse.get());
    for (std::size_t i = 0; i < found.size(); ++i) {
        stack[i] = torch::stable::detail::from(found[i].release());
    }
}

}  // namespace

}  // namespace fa_tune::op

extern "C" {

void fa_tune_torch_register(const char* dispatch_key) {
    using namespace fa_tune::op;
    using torch::stable::detail::StableLibrary;
    // Never destroyed: that would drop the operators.
    auto* library =
        new StableLibrary(StableLibrary::Kind::IMPL, "fa_tune", dispatch_key, __FILE__, __LINE__);
    library->impl("fwd", &run<Kind::kPlain, Results::kOut>);
    library->impl("fwd_lse", &run<Kind::kPlain, Results::kOutAndLse>);
    library->impl("fwd_out", &run<Kind::kPlain, Results::kGiven>);
    library->impl("scored_fwd", &run<Kind::kScored, Results::kOut>);
    library->impl("scored_fwd_lse", &run<Kind::kScored, Results::kOutAndLse>);
    library->impl("scored_fwd_out", &run<Kind::kScored, Results::kGiven>);
    library->impl("packed_fwd", &run<Kind::kPacked, Results::kOut>);
    library->impl("packed_fwd_lse", &run<Kind::kPacked, Results::kOutAndLse>);
    library->impl("packed_fwd_out", &run<Kind::kPacked, Results::kGiven>);
    library->impl("own_bwd", &run_backward<false>);
    library->impl("packed_own_bwd", &run_backward<true>);
}

void fa_tune_torch_set_stream(fa_tune_torch_stream stream) { fa_tune::op::stream_of = stream; }

void fa_tune_torch_set_teller(void (*teller)()) { fa_tune::op::tell_of_copies = teller; }

}  // extern "C"
