// What a launch through the C ABI costs the host, over a bare cuLaunchKernel of the same kernel.
//
//     host_cost PLAN CUBIN [ROUNDS]
//
// PLAN: a text file of the plan's integers, in the order of fa_tune_plan, of its one launch, in
// that of fa_tune_launch_plan, a name and integers, and the kernel's symbol.  Prints JSON: medians
// over rounds of the nanoseconds per launch, of rounds that alternate, with an idle GPU before each
// and without the queue ever being full, and the time of the first launch, the kernel's loading in
// it.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "device.h"
#include "driver.h"
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

[[noreturn]] void end(const std::string& text) {
    std::fprintf(stderr, "error: %s\n", text.c_str());
    std::exit(1);
}

struct Kernel {
    fa_tune_plan plan{};
    fa_tune_launch_plan launch{};
    std::string params;
    std::string symbol;
    std::vector<char> image;

    Kernel(const char* plan_file, const char* cubin) {
        std::ifstream text(plan_file);
        const auto read = [&](std::int32_t* first, const std::int32_t* last) {
            while (first <= last) text >> *first++;
        };
        read(&plan.operation, &plan.portability);
        text >> params;
        launch.params = params.c_str();
        read(&launch.grid, &launch.dependent);
        text >> symbol;
        if (!text) end(std::string(plan_file) + " is no plan");
        std::ifstream binary(cubin, std::ios::binary);
        image.assign(std::istreambuf_iterator<char>(binary), {});
        if (image.empty()) end(std::string(cubin) + " cannot be read");
        image.push_back('\0');
    }

    fa_tune_kernel_info info(const char* const* symbols) const {
        return {"bench", plan, &launch, symbols, image.data(), image.size()};
    }
};

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

int run(const Kernel& given, int rounds) {
    const Driver& driver = get_driver();
    DeviceGuard guard;
    Context& context = guard.enter(driver, 0);
    const Device& device = *context.device;
    CUstream stream = nullptr;
    driver.cuStreamCreate(&stream, kStreamNonBlocking);
    const fa_tune_problem problem = small_problem(given.plan);
    fa_tune_tensors tensors = allocate(driver, problem);

    const char* symbols[] = {given.symbol.c_str()};
    const fa_tune_kernel_info info = given.info(symbols);
    const char* defaults[] = {"bench"};
    auto start = Clock::now();
    fa_tune::Table table({&info, 1, nullptr, 0, defaults, 1, nullptr, 0});
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
    driver.cuLibraryLoadData(&library, given.image.data(), nullptr, nullptr, 0, nullptr, nullptr,
                             0);
    driver.cuLibraryGetKernel(&bare, library, symbols[0]);
    driver.cuKernelSetAttribute(kFunctionMaxDynamicShared, given.launch.dynamic_smem_bytes, bare,
                                device.handle);
    const Launchable launchable = check_plan(given.launch);
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
    if (count < 3) end("usage: host_cost PLAN CUBIN [ROUNDS]");
    try {
        return run(Kernel(arguments[1], arguments[2]), count > 3 ? std::atoi(arguments[3]) : 50);
    } catch (const std::runtime_error& error) {
        end(error.what());
    }
}
