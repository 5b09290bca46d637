// Kernels and problems of the tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <set>
#include <string>

#include "check.h"
#include "fa_tune.hpp"
#include "stub_driver.h"

// A kernel of the stub with a plan of its own.
struct Variant {
    std::string config = "wave";
    std::string symbol = "wave";
    fa_tune_plan plan{};
    fa_tune_launch_plan launch{};
    const char* symbols[1] = {};

    // Persistent, with tensor maps and counters.
    static Variant persistent() {
        Variant made;
        made.plan.launches = 1;
        made.plan.dtype = FA_TUNE_DTYPE_FP16;
        made.plan.d_head = made.plan.d_v = 128;
        made.plan.block_q = 128;
        made.plan.block_kv = 128;
        made.plan.ragged = 1;
        made.plan.compute_capability = 90;
        made.plan.portability = FA_TUNE_PORTABILITY_EXACT;
        made.launch.params = "sm90_forward";
        made.launch.grid = FA_TUNE_GRID_PERSISTENT;
        made.launch.tile_rows = 128;
        made.launch.ctas_per_sm = 1;
        made.launch.threads = 384;
        made.launch.dynamic_smem_bytes = 200 << 10;
        made.launch.cluster_x = made.launch.cluster_y = made.launch.cluster_z = 1;
        made.launch.q_box_rows = 64;
        made.launch.kv_box_rows = 128;
        made.launch.counter_bytes = 8;
        return made;
    }

    // A CTA for each tile, without maps and counters.
    static Variant plain() {
        Variant made = persistent();
        made.plan.compute_capability = 80;
        made.plan.portability = FA_TUNE_PORTABILITY_LATER;
        made.launch.params = "sm80_forward";
        made.launch.grid = FA_TUNE_GRID_BLOCKS_HEADS_BATCH;
        made.launch.q_box_rows = made.launch.kv_box_rows = made.launch.counter_bytes = 0;
        return made;
    }

    // CTAs that share blocks of keys, with counters and a workspace.
    static Variant shared() {
        Variant made = plain();
        made.plan.ragged = 0;
        made.plan.block_q = made.plan.block_kv = 1;
        made.launch.params = "decode";
        made.launch.grid = FA_TUNE_GRID_SHARES;
        made.launch.tile_rows = 16;
        made.launch.ctas_per_sm = 2;
        made.launch.threads = 128;
        made.launch.share_keys = 64;
        made.launch.min_blocks = 1;
        made.launch.counter_bytes = 4096;
        return made;
    }

    // Valid until this changes or ends, but for the image, which stays.
    fa_tune_kernel_info info() {
        static std::set<std::string> images;
        const char* sizes = launch.q_box_rows > 0   ? " 128 128 128 128 56\n"
                            : launch.share_keys > 0 ? " 360\n"
                                                    : " 176\n";
        const std::string& image = *images.insert(symbol + sizes).first;
        symbols[0] = symbol.c_str();
        return {config.c_str(), plan, &launch, symbols, image.c_str(), image.size() + 1};
    }

    fa_tune::Kernel kernel() { return fa_tune::Kernel(info()); }
};

inline fa_tune_problem problem(std::int64_t batch = 2, std::int64_t heads = 4,
                               std::int64_t seq_len = 512) {
    fa_tune_problem made{};
    made.dtype = FA_TUNE_DTYPE_FP16;
    made.batch = batch;
    made.heads = made.kv_heads = heads;
    made.seq_len_q = made.seq_len_kv = seq_len;
    made.d_head = 128;
    return made;
}

// Contiguous, at addresses where nothing is.
inline fa_tune_tensors tensors(const fa_tune_problem& p) {
    fa_tune_tensors made{};
    std::uintptr_t address = std::uintptr_t{1} << 40;
    const auto product = [](std::int64_t a, std::int64_t b) {  // sizes may be absurd
        return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) *
                                         static_cast<std::uint64_t>(b));
    };
    for (int role = FA_TUNE_TENSOR_Q; role <= FA_TUNE_TENSOR_O; ++role) {
        fa_tune_tensor* const tensor = &made.of[role];
        const bool keys = role == FA_TUNE_TENSOR_K || role == FA_TUNE_TENSOR_V;
        tensor->address = reinterpret_cast<void*>(address);
        tensor->head_stride = p.d_head;
        tensor->seq_stride = product(keys ? p.kv_heads : p.heads, p.d_head);
        tensor->batch_stride = product(keys ? p.seq_len_kv : p.seq_len_q, tensor->seq_stride);
        address += std::uintptr_t{1} << 34;
    }
    if (p.lse != 0) made.of[FA_TUNE_TENSOR_LSE].address = reinterpret_cast<void*>(address);
    made.workspace = reinterpret_cast<void*>(address << 1);
    return made;
}

inline fa_tune_status launch(const fa_tune::Kernel& kernel, const fa_tune_problem& p,
                             const fa_tune_tensors& given, void* stream = nullptr, int device = 0) {
    return fa_tune_launch(kernel.get(), &p, &given, device, stream);
}

inline fa_tune_status launch(const fa_tune::Kernel& kernel, const fa_tune_problem& p,
                             void* stream = nullptr, int device = -1) {
    return launch(kernel, p, tensors(p), stream, device);
}

inline stub_launch last_launch() {
    stub_launch found{};
    CHECK(stub_get_launch(stub_launch_count() - 1, &found) == 1);
    return found;
}

// The address of the counters in the parameters of Variant::persistent.
inline std::uint64_t counters_of(const stub_launch& launched) {
    std::uint64_t address = 0;
    std::memcpy(&address, launched.params + 4 * 128 + 8, sizeof address);
    return address;
}
