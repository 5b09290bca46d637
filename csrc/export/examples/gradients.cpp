// A training step of attention on the GPU, a forward and a backward pass; the gradients are
// compared with the host's.
//
//     gradients backward_b2_h4_kv2_q300_k413_d128_fp16_causal_br [FILE]
//
// FILE gets Q, K, V, dO, dQ, dK and dV as they are in memory, one after another.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fa_tune/exported.hpp>

#include "on_device.h"
#include "reference_gradients.h"

namespace {

struct Example {
    fa_tune_problem backward;
    Elements q, k, v, o, d_o, dq, dk, dv, lse;

    explicit Example(const fa_tune_problem& p) : backward(p) {
        const std::int64_t rows = p.batch * p.seq_len_q * p.heads;
        const std::int64_t keys = p.batch * p.seq_len_kv * p.kv_heads;
        for (Elements* tensor : {&q, &dq}) tensor->resize(size(rows * p.d_head));
        for (Elements* tensor : {&k, &dk}) tensor->resize(size(keys * p.d_head));
        for (Elements* tensor : {&v, &dv}) tensor->resize(size(keys * values_of(&p)));
        for (Elements* tensor : {&o, &d_o}) tensor->resize(size(rows * values_of(&p)));
        lse.resize(size(2 * rows));  // numbers of 32 bits
        std::uint32_t seed = 0;
        for (Elements* tensor : {&q, &k, &v, &d_o}) {
            fill(tensor->data(), tensor->size(), p.dtype, ++seed);
        }
    }

    void compute() {
        const fa_tune_problem& p = backward;
        fa_tune_problem forward = p;
        forward.operation = FA_TUNE_OPERATION_FORWARD;
        forward.lse = 1;
        const std::size_t bytes =
            std::max(fa_tune::workspace_bytes(forward), fa_tune::workspace_bytes(p));
        const OnDevice workspace(Elements(bytes / 2 + 1)), sums(lse);
        const OnDevice q_(q), k_(k), v_(v), o_(o), do_(d_o), dq_(dq), dk_(dk), dv_(dv);
        fa_tune_tensors tensors{};
        const auto put = [&](int role, const OnDevice& tensor, bool keys, std::int64_t columns) {
            tensors.of[role] = contiguous(tensor.address(), keys ? p.seq_len_kv : p.seq_len_q,
                                          keys ? p.kv_heads : p.heads, columns);
        };
        put(FA_TUNE_TENSOR_Q, q_, false, p.d_head);
        put(FA_TUNE_TENSOR_K, k_, true, p.d_head);
        put(FA_TUNE_TENSOR_V, v_, true, values_of(&p));
        put(FA_TUNE_TENSOR_O, o_, false, values_of(&p));
        put(FA_TUNE_TENSOR_DO, do_, false, values_of(&p));
        put(FA_TUNE_TENSOR_DQ, dq_, false, p.d_head);
        put(FA_TUNE_TENSOR_DK, dk_, true, p.d_head);
        put(FA_TUNE_TENSOR_DV, dv_, true, values_of(&p));
        tensors.of[FA_TUNE_TENSOR_LSE].address = reinterpret_cast<void*>(sums.address());
        tensors.workspace = reinterpret_cast<void*>(workspace.address());
        fa_tune::launch(forward, tensors);
        fa_tune::launch(p, tensors);
        dq_.read(dq);
        dk_.read(dk);
        dv_.read(dv);
    }

    double error() const {
        const Gradients expected =
            reference_gradients(backward, q.data(), k.data(), v.data(), d_o.data());
        return error_of(expected, dq.data(), dk.data(), dv.data(), backward.dtype);
    }

  private:
    static std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }
};

}  // namespace

int main(int argc, char** argv) {
    fa_tune_problem problem;
    if (argc < 2 || !parse_problem(argv[1], &problem) ||
        problem.operation != FA_TUNE_OPERATION_BACKWARD) {
        std::fprintf(stderr,
                     "usage: gradients backward_b2_h4_kv2_q300_k413_d128_fp16_causal_br [FILE]\n");
        return 2;
    }
    try {
        fa_tune::init();
        use_device(0);
        Example example(problem);
        example.compute();
        const double error = example.error();
        std::printf("%s\nlargest error %.2e, allowed %.2e\n", fa_tune::why(problem).c_str(), error,
                    allowed_error(problem.dtype));
        if (argc > 2) {
            write_file(argv[2], {&example.q, &example.k, &example.v, &example.d_o, &example.dq,
                                 &example.dk, &example.dv});
        }
        return error <= allowed_error(problem.dtype) ? 0 : 1;
    } catch (const fa_tune::Error& error) {
        std::fprintf(stderr, "gradients: %s\n", error.what());
        return error.status() == FA_TUNE_NO_DRIVER ? NOTHING_TO_RUN_ON : 1;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "gradients: %s\n", error.what());
        return 1;
    }
}
