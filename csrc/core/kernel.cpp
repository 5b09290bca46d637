#include "kernel.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "operands.h"
#include "params/layout.h"
#include "problem.h"
#include "slots.h"
#include "tensor_maps.h"

using namespace fa_tune::core;

namespace {

constexpr int kMaxLaunches = 8;
constexpr int kMaxHead = 1024;
static_assert(kMaxDevices <= 64, "fa_tune_kernel has a bit for each");

void check_plan(const fa_tune_plan& plan) {
    check_ranges("plan", {
                             {"launches", plan.launches, 1, kMaxLaunches},
                             {"d_head", plan.d_head, 1, kMaxHead},
                             {"d_v", plan.d_v, 1, kMaxHead},
                             {"block_q", plan.block_q, 1, 1 << 16},
                             {"block_kv", plan.block_kv, 1, 1 << 16},
                             {"causal", plan.causal, 0, 1},
                             {"ragged", plan.ragged, 0, 1},
                             {"lse", plan.lse, 0, 1},
                             {"packed", plan.packed, 0, 1},
                             {"kv_e4m3", plan.kv_e4m3, 0, 1},
                             {"exact", plan.exact, 0, 1},
                             {"decode_shape", plan.decode_shape, 0, 1},
                             {"compute_capability", plan.compute_capability, 10, 999},
                             {"portability", plan.portability, FA_TUNE_PORTABILITY_MINOR,
                              FA_TUNE_PORTABILITY_LATER},
                         });
    if (!is_operation(plan.operation)) {
        fail(FA_TUNE_INVALID, "unknown operation %d of a plan", plan.operation);
    }
    if (dtype_of(plan.dtype) == nullptr) {
        fail(FA_TUNE_INVALID, "unknown dtype %d of a plan", plan.dtype);
    }
}

bool has_cluster(const fa_tune_description& launch) {
    return launch.cluster[0] * launch.cluster[1] * launch.cluster[2] > 1;
}

void enqueue_with(const Driver& driver, const fa_tune_description& launch, CUkernel kernel,
                  CUstream stream, void** pointers) {
    if (!has_cluster(launch) && launch.dependent == 0) {
        driver.cuLaunchKernel(kernel, launch.grid[0], launch.grid[1], launch.grid[2],
                              launch.block[0], 1, 1, launch.shared_bytes, stream, pointers,
                              nullptr);
        return;
    }
    CUlaunchAttribute attributes[2]{};
    unsigned count = 0;
    if (has_cluster(launch)) {
        attributes[count].id = kLaunchClusterDimension;
        attributes[count++].value.cluster = {launch.cluster[0], launch.cluster[1],
                                             launch.cluster[2]};
    }
    if (launch.dependent != 0) {
        attributes[count].id = kLaunchProgrammatic;
        attributes[count++].value.flag = 1;
    }
    const CUlaunchConfig config{
        launch.grid[0], launch.grid[1], launch.grid[2], launch.block[0], 1, 1, launch.shared_bytes,
        stream,         attributes,     count};
    driver.cuLaunchKernelEx(&config, kernel, pointers, nullptr);
}

bool is_capturing(const Driver& driver, CUstream stream) {
    int status = kCaptureNone;
    driver.cuStreamIsCapturing(stream, &status);
    return status != kCaptureNone;
}

}  // namespace

fa_tune_kernel::fa_tune_kernel(const fa_tune_kernel_info& info) : plan_(info.plan) {
    ::check_plan(info.plan);
    if (info.config == nullptr || info.launches == nullptr) {
        fail(FA_TUNE_INVALID, "a kernel needs config and launches");
    }
    config_ = info.config;
    for (std::int32_t i = 0; i < info.plan.launches; ++i) {
        launches_.push_back(fa_tune::core::check_plan(info.launches[i]));
    }
}

std::unique_ptr<fa_tune_kernel> fa_tune_kernel::create(const fa_tune_kernel_info& info) {
    std::unique_ptr<fa_tune_kernel> made(new fa_tune_kernel(info));
    if (info.symbols == nullptr || info.image == nullptr || info.image_bytes == 0) {
        fail(FA_TUNE_INVALID, "a kernel needs symbols and image");
    }
    made->image_ = info.image;
    for (std::int32_t i = 0; i < info.plan.launches; ++i) {
        if (info.symbols[i] == nullptr || info.symbols[i][0] == '\0') {
            fail(FA_TUNE_INVALID, "launch %d of %s has no symbol", i, info.config);
        }
        made->symbols_.emplace_back(info.symbols[i]);
    }
    return made;
}

std::unique_ptr<fa_tune_kernel> fa_tune_kernel::adopt(const fa_tune_kernel_info& info,
                                                      void* const* functions, int device,
                                                      int multiprocessors) {
    std::unique_ptr<fa_tune_kernel> made(new fa_tune_kernel(info));
    for (std::int32_t i = 0; i < info.plan.launches; ++i) {
        if (functions == nullptr || functions[i] == nullptr) {
            fail(FA_TUNE_INVALID, "launch %d of %s has no function", i, info.config);
        }
        // To the driver's launches a CUkernel is a CUfunction.
        made->kernels_.push_back(static_cast<CUkernel>(functions[i]));
    }
    made->multiprocessors_ = multiprocessors;
    made->ready_ = std::uint64_t{1} << device;
    return made;
}

fa_tune_kernel::~fa_tune_kernel() {
    if (library_ != nullptr) get_driver().cuLibraryUnload.call(library_);
}

void fa_tune_kernel::load(const Driver& driver, const Device& device) {
    if (library_ == nullptr) {
        driver.cuLibraryLoadData(&library_, image_, nullptr, nullptr, 0, nullptr, nullptr, 0);
    }
    if (kernels_.empty()) {
        std::vector<CUkernel> kernels(symbols_.size());
        for (std::size_t i = 0; i < kernels.size(); ++i) {
            driver.cuLibraryGetKernel(&kernels[i], library_, symbols_[i].c_str());
        }
        kernels_ = std::move(kernels);
    }
    for (std::size_t i = 0; i < kernels_.size(); ++i) {
        driver.cuKernelSetAttribute(kFunctionMaxDynamicShared, launches_[i].plan.dynamic_smem_bytes,
                                    kernels_[i], device.handle);
        // The code itself, which a captured launch could not load.
        CUfunction function = nullptr;
        driver.cuKernelGetFunction(&function, kernels_[i]);
        if (driver.cuFuncLoad.call != nullptr) driver.cuFuncLoad(function);
    }
}

void fa_tune_kernel::make_ready(const Driver& driver, const Device& device) {
    if (!runs_on(plan_, device.compute_capability)) {
        fail(FA_TUNE_INVALID, "a kernel for %s does not run on %s, sm_%d", kind_of(plan_).c_str(),
             device.name.c_str(), device.compute_capability);
    }
    if (image_ == nullptr) {
        fail(FA_TUNE_INVALID, "%s was adopted on another device than %d", config_.c_str(),
             device.ordinal);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_ready(device)) return;
    const RelaxedCapture relaxed(driver);
    try {
        load(driver, device);
    } catch (const Failure& failure) {
        throw Failure(failure.code, "loading " + config_ + ": " + failure.what());
    }
    ready_.fetch_or(std::uint64_t{1} << device.ordinal, std::memory_order_release);
}

void fa_tune_kernel::prepare(int device) {
    const Driver& driver = get_driver();
    DeviceGuard guard;
    make_ready(driver, *guard.enter(driver, device).device);
}

bool fa_tune_kernel::has_workspace() const {
    for (const Launchable& launch : launches_) {
        if (launch.plan.share_keys > 0 || launch.layout->workspace != nullptr) return true;
    }
    return plan_.packed != 0;
}

std::size_t fa_tune_kernel::workspace_bytes(const fa_tune_problem& problem,
                                            const Device& device) const {
    check_problem(problem);
    check_computes(plan_, problem);
    std::int64_t bytes = 0;
    for (const Launchable& launch : launches_) {
        bytes = std::max(
            bytes, fa_tune::core::workspace_bytes(launch, problem, multiprocessors_of(device)));
    }
    return static_cast<std::size_t>(bytes);
}

void fa_tune_kernel::check_call(const fa_tune_problem& problem,
                                const fa_tune_tensors& tensors) const {
    check_problem(problem);
    fa_tune_problem asked = problem;
    // What a window hides depends on where it counts from, so that others may compute it.
    if (tensors.of[FA_TUNE_TENSOR_CACHE_SEQLENS].address != nullptr) asked.cached = 1;
    check_computes(plan_, asked);
}

fa_tune_description fa_tune_kernel::describe(const fa_tune_problem& problem,
                                             const fa_tune_tensors& tensors,
                                             const fa_tune_device_facts& device, int launch) const {
    if (launch < 0 || launch >= plan_.launches) {
        fail(FA_TUNE_INVALID, "%s has no launch %d", config_.c_str(), launch);
    }
    check_call(problem, tensors);
    check_tensors(problem, tensors);
    const Launchable& described = launches_[static_cast<std::size_t>(launch)];
    fa_tune_description found{};
    fa_tune::core::describe(described, {problem, tensors, device.multiprocessors, device.l2_bytes},
                            found);
    for (std::uint32_t i = 0; i < found.map_count; ++i) check_map(found.maps[i]);
    if (described.plan.counter_bytes > 0) set_counters(described, device.counters, found);
    return found;
}

void fa_tune_kernel::launch(const fa_tune_problem& problem, const fa_tune_tensors& tensors,
                            int ordinal, CUstream stream) {
    check_call(problem, tensors);
    launch_again(problem, tensors, ordinal, stream);
}

void fa_tune_kernel::launch_again(const fa_tune_problem& problem, const fa_tune_tensors& tensors,
                                  int ordinal, CUstream stream) {
    check_tensors(problem, tensors);
    const Driver& driver = get_driver();
    DeviceGuard guard;
    Context& context = guard.enter(driver, ordinal);
    const Device& device = *context.device;
    const bool ready = is_ready(device);
    bool has_counters = false;
    for (const Launchable& launch : launches_) has_counters |= launch.plan.counter_bytes > 0;
    const bool capturing = (has_counters || !ready) && is_capturing(driver, stream);
    if (!ready) {
        if (capturing) {
            fail(FA_TUNE_CAPTURING,
                 "%s is not loaded, and the stream is being captured: call fa_tune_prepare before",
                 config_.c_str());
        }
        make_ready(driver, device);
    }
    const Call call{problem, tensors, multiprocessors_of(device), device.l2_bytes};
    for (std::size_t i = 0; i < launches_.size(); ++i) {
        enqueue(driver, i, call, context, stream, capturing);
    }
}

void fa_tune_kernel::enqueue(const Driver& driver, std::size_t launch, const Call& call,
                             Context& context, CUstream stream, bool capturing) {
    fa_tune_description step;
    fa_tune::core::describe(launches_[launch], call, step);
    if (step.workspace_bytes > 0) check_workspace(call.problem, call.tensors);
    CUtensorMap maps[std::size(step.maps)];
    void* pointers[std::size(step.maps) + 1];
    void** next = pointers;
    for (std::uint32_t i = 0; i < step.map_count; ++i) {
        encode_map(driver, step.maps[i], maps[i]);
        *next++ = &maps[i];
    }
    *next = step.params;
    if (launches_[launch].plan.counter_bytes > 0) {  // which a refused launch shall not keep
        const bool adopted = image_ == nullptr;
        CUdeviceptr counters = counters_;
        if (counters == 0) {
            counters = capturing || adopted ? context.slots.of_captured_launch(driver)
                                            : context.slots.of_stream(driver, stream);
            if (adopted) counters_ = counters;
        }
        set_counters(launches_[launch], reinterpret_cast<void*>(counters), step);
    }
    enqueue_with(driver, step, kernels_[launch], stream, pointers);
}
