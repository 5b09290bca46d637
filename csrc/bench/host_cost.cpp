// What a launch through the C ABI costs the host, over a bare cuLaunchKernel of the same kernel.
//
//     host_cost [ROUNDS]
//
// The kernel, of one launch, is that of exported_table.h, as `fa_tune.export.table_source` writes
// it, and its table's default.  Prints JSON: medians over rounds of the nanoseconds per launch, of
// rounds that alternate, with an idle GPU before each and without the queue ever being full, and
// the time of the first launch, the kernel's loading in it.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <vector>

#include "device.h"
#include "driver.h"
#include "exported_table.h"
#include "fa_tune.hpp"
#include "launch.h"
#include "tensor_maps.h"

namespace {

using namespace fa_tune::core;
using Clock = std::chrono::steady_clock;

constexpr int kLaunches = 200;  // of a round; a stream holds about a thousand

double nanoseconds(Clock::time_point start) {
    return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

// A problem so small that the GPU keeps up with the host.
fa_tune_problem small_problem(const fa_tune_plan& plan) {
    fa_tune_problem made{};
    made.dtype = plan.dtype;
    made.batch = 1;
    made.heads = made.kv_heads = 1;
    made.seq_len_q = plan.block_q;
    made.seq_len_kv = plan.block_kv;
    made.d_head = plan.d_head;
    made.d_head_v = plan.d_v;
    made.mask = plan.causal != 0 ? FA_TUNE_MASK_CAUSAL : FA_TUNE_MASK_FULL;
    made.lse = plan.lse;
    return made;
}

void* allocate(const Driver& driver, std::int64_t bytes) {
    CUdeviceptr address = 0;
    const RelaxedCapture relaxed(driver);
    driver.cuMemAlloc(&address, static_cast<std::size_t>(bytes));
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

fa_tune_tensors allocate(const Driver& driver, const fa_tune_problem& problem) {
    fa_tune_tensors made{};
    for (int role = FA_TUNE_TENSOR_Q; role <= FA_TUNE_TENSOR_O; ++role) {
        fa_tune_tensor* const tensor = &made.of[role];
        const bool keys = role == FA_TUNE_TENSOR_K || role == FA_TUNE_TENSOR_V;
        const std::int64_t rows = keys ? problem.seq_len_kv : problem.seq_len_q;
        const bool values = role == FA_TUNE_TENSOR_V || role == FA_TUNE_TENSOR_O;
        const std::int32_t columns = values ? problem.d_head_v : problem.d_head;
        tensor->address = allocate(driver, 2 * rows * columns);
        tensor->seq_stride = tensor->head_stride = columns;
        tensor->batch_stride = rows * columns;
    }
    made.of[FA_TUNE_TENSOR_LSE].address = allocate(driver, 4 * problem.seq_len_q);
    return made;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

template <class Launch>
double round(const Driver& driver, CUstream stream, Launch launch) {
    const auto start = Clock::now();
    for (int i = 0; i < kLaunches; ++i) launch();
    const double took = nanoseconds(start) / kLaunches;
    const RelaxedCapture relaxed(driver);
    driver.cuStreamSynchronize(stream);
    return took;
}

int run(int rounds) {
    const fa_tune_kernel_info& given = *exported_table.kernels;
    const fa_tune_launch_plan& launch_plan = *given.launches;
    const Driver& driver = get_driver();
    DeviceGuard guard;
    Context& context = guard.enter(driver, 0);
    const Device& device = *context.device;
    CUstream stream = nullptr;
    driver.cuStreamCreate(&stream, kStreamNonBlocking);
    const fa_tune_problem problem = small_problem(given.plan);
    fa_tune_tensors tensors = allocate(driver, problem);

    auto start = Clock::now();
    fa_tune::Table table(exported_table);
    fa_tune_kernel* kernel = table.find(problem);
    std::size_t workspace_bytes = 0;
    fa_tune::check(fa_tune_workspace_bytes(kernel, &problem, 0, &workspace_bytes));
    if (workspace_bytes > 0) {
        tensors.workspace = allocate(driver, static_cast<std::int64_t>(workspace_bytes));
    }
    fa_tune::check(fa_tune_launch(kernel, &problem, &tensors, 0, stream));
    const double first = nanoseconds(start);

    // The same launch with nothing but the driver's call; parameters and maps made before.
    CUlibrary library = nullptr;
    CUkernel bare = nullptr;
    driver.cuLibraryLoadData(&library, given.image, nullptr, nullptr, 0, nullptr, nullptr, 0);
    driver.cuLibraryGetKernel(&bare, library, given.symbols[0]);
    driver.cuKernelSetAttribute(kFunctionMaxDynamicShared, launch_plan.dynamic_smem_bytes, bare,
                                device.handle);
    const Launchable launchable = check_plan(launch_plan);
    fa_tune_description step{};
    describe(launchable, {problem, tensors, device.multiprocessors, device.l2_bytes}, step);
    const CUdeviceptr counters = context.slots.of_stream(driver, stream);
    set_counters(launchable, reinterpret_cast<void*>(counters), step);
    CUtensorMap maps[4];
    void* pointers[5] = {step.params};
    for (std::uint32_t i = 0; i < step.map_count; ++i) {
        encode_map(driver, step.maps[i], maps[i]);
        pointers[i] = &maps[i];
    }
    pointers[step.map_count] = step.params;

    const auto bare_launch = [&] {
        driver.cuLaunchKernel(bare, step.grid[0], step.grid[1], step.grid[2], step.block[0], 1, 1,
                              step.shared_bytes, stream, pointers, nullptr);
    };
    const auto core_launch = [&] {
        fa_tune::check(fa_tune_launch(kernel, &problem, &tensors, 0, stream));
    };
    const auto table_launch = [&] { table.launch(problem, tensors, 0, stream); };
    std::vector<double> bare_ns, core_ns, table_ns;
    for (int i = 0; i < rounds + 2; ++i) {
        const double a = round(driver, stream, bare_launch);
        const double b = round(driver, stream, core_launch);
        const double c = round(driver, stream, table_launch);
        if (i < 2) continue;  // warm-up
        bare_ns.push_back(a);
        core_ns.push_back(b);
        table_ns.push_back(c);
    }
    std::printf(
        "{\"device\": \"%s\", \"rounds\": %d, \"launches\": %d, \"bare_ns\": %.1f, "
        "\"core_ns\": %.1f, \"table_ns\": %.1f, \"first_launch_ns\": %.0f}\n",
        device.name.c_str(), rounds, kLaunches, median(bare_ns), median(core_ns), median(table_ns),
        first);
    return 0;
}

}  // namespace

int main(int count, char** arguments) {
    try {
        return run(count > 1 ? std::atoi(arguments[1]) : 50);
    } catch (const std::runtime_error& error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return 1;
    }
}
