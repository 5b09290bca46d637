// Attention on the GPU, compared with the host's.
//
//     attend b2_h4_kv2_q300_k413_d128_fp16_causal_br [FILE]
//
// FILE gets Q, K, V and O as they are in memory, one after another.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fa_tune/exported.hpp>

#include "on_device.h"
#include "reference.h"

namespace {

struct Example {
    fa_tune_problem problem;
    Elements q, k, v, o;

    explicit Example(const fa_tune_problem& p)
        : problem(p),
          q(count(p.seq_len_q, p.heads, p.d_head)),
          k(count(p.seq_len_kv, p.kv_heads, p.d_head)),
          v(count(p.seq_len_kv, p.kv_heads, values_of(&p))),
          o(count(p.seq_len_q, p.heads, values_of(&p))) {
        std::uint32_t seed = 0;
        for (Elements* tensor : {&q, &k, &v}) {
            fill(tensor->data(), tensor->size(), p.dtype, ++seed);
        }
    }

    void compute() {
        const fa_tune_problem& p = problem;
        const OnDevice dq(q), dk(k), dv(v), d_o(o);
        const OnDevice workspace(Elements(fa_tune::workspace_bytes(p) / 2 + 1));
        fa_tune_tensors tensors{};
        tensors.of[FA_TUNE_TENSOR_Q] = contiguous(dq.address(), p.seq_len_q, p.heads, p.d_head);
        tensors.of[FA_TUNE_TENSOR_K] = contiguous(dk.address(), p.seq_len_kv, p.kv_heads, p.d_head);
        tensors.of[FA_TUNE_TENSOR_V] =
            contiguous(dv.address(), p.seq_len_kv, p.kv_heads, values_of(&p));
        tensors.of[FA_TUNE_TENSOR_O] =
            contiguous(d_o.address(), p.seq_len_q, p.heads, values_of(&p));
        tensors.workspace = reinterpret_cast<void*>(workspace.address());
        fa_tune::launch(p, tensors);
        d_o.read(o);
    }

  private:
    std::size_t count(std::int64_t seq_len, std::int64_t heads, std::int64_t columns) const {
        return static_cast<std::size_t>(problem.batch * seq_len * heads * columns);
    }
};

}  // namespace

int main(int argc, char** argv) {
    fa_tune_problem problem;
    if (argc < 2 || !parse_problem(argv[1], &problem) ||
        problem.operation != FA_TUNE_OPERATION_FORWARD) {
        std::fprintf(stderr, "usage: attend b2_h4_kv2_q300_k413_d128_fp16_causal_br [FILE]\n");
        return 2;
    }
    try {
        fa_tune::init();
        use_device(0);
        Example example(problem);
        example.compute();
        const double error = largest_error(&problem, example.q.data(), example.k.data(),
                                           example.v.data(), example.o.data());
        std::printf("%s\nlargest error %.2e, allowed %.2e\n", fa_tune::why(problem).c_str(), error,
                    allowed_error(problem.dtype));
        if (argc > 2) {
            write_file(argv[2], {&example.q, &example.k, &example.v, &example.o});
        }
        return error <= allowed_error(problem.dtype) ? 0 : 1;
    } catch (const fa_tune::Error& error) {
        std::fprintf(stderr, "attend: %s\n", error.what());
        return error.status() == FA_TUNE_NO_DRIVER ? NOTHING_TO_RUN_ON : 1;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "attend: %s\n", error.what());
        return 1;
    }
}
