#include "kernel.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "launch.h"
#include "problem.h"
#include "slots.h"

using namespace fa_tune::core;

namespace {

constexpr int kMaxLaunches = 8;
constexpr int kMaxHead = 1024;
static_assert(kMaxDevices <= 64, "fa_tune_kernel has a bit for each");

Status check_plan(const fa_tune_plan& plan) {
    const struct {
        const char* name;
        std::int32_t value, least, most;
    } ranges[] = {
        {"operation", plan.operation, FA_TUNE_OPERATION_FORWARD, FA_TUNE_OPERATION_FORWARD},
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
        {"few_rows", plan.few_rows, 0, 1},
        {"compute_capability", plan.compute_capability, 10, 999},
        {"portability", plan.portability, FA_TUNE_PORTABILITY_MINOR, FA_TUNE_PORTABILITY_LATER},
    };
    for (const auto& [name, value, least, most] : ranges) {
        if (value < least || value > most) {
            return failure(FA_TUNE_INVALID, "%s of a plan must be between %d and %d, not %d", name,
                           least, most, value);
        }
    }
    if (plan.dtype != FA_TUNE_DTYPE_FP16 && plan.dtype != FA_TUNE_DTYPE_BF16) {
        return failure(FA_TUNE_INVALID, "dtype of a plan must be %d or %d, not %d",
                       FA_TUNE_DTYPE_FP16, FA_TUNE_DTYPE_BF16, plan.dtype);
    }
    return {};
}

Status enqueue(const Driver& driver, LaunchStep& step, CUkernel kernel, CUstream stream) {
    if (!step.has_cluster() && !step.dependent) {
        return driver.check(
            driver.cuLaunchKernel(kernel, step.grid[0], step.grid[1], step.grid[2], step.threads, 1,
                                  1, step.shared_bytes, stream, step.pointers, nullptr),
            "cuLaunchKernel");
    }
    CUlaunchAttribute attributes[2]{};
    unsigned count = 0;
    if (step.has_cluster()) {
        attributes[count].id = kLaunchClusterDimension;
        attributes[count++].value.cluster = {step.cluster[0], step.cluster[1], step.cluster[2]};
    }
    if (step.dependent) {
        attributes[count].id = kLaunchProgrammatic;
        attributes[count++].value.flag = 1;
    }
    const CUlaunchConfig config{step.grid[0],      step.grid[1], step.grid[2], step.threads, 1, 1,
                                step.shared_bytes, stream,       attributes,   count};
    return driver.check(driver.cuLaunchKernelEx(&config, kernel, step.pointers, nullptr),
                        "cuLaunchKernelEx");
}

Status is_capturing(const Driver& driver, CUstream stream, bool* capturing) {
    int status = kCaptureNone;
    Status asked = driver.check(driver.cuStreamIsCapturing(stream, &status), "cuStreamIsCapturing");
    *capturing = status != kCaptureNone;
    return asked;
}

}  // namespace

Status fa_tune_kernel::create(const fa_tune_kernel_info& info,
                              std::unique_ptr<fa_tune_kernel>* kernel) {
    Status status = check_plan(info.plan);
    if (!status.ok()) return status;
    if (info.config == nullptr || info.launches == nullptr || info.symbols == nullptr ||
        info.image == nullptr || info.image_bytes == 0) {
        return failure(FA_TUNE_INVALID, "a kernel needs config, launches, symbols and image");
    }
    std::unique_ptr<fa_tune_kernel> made(new fa_tune_kernel);
    made->config_ = info.config;
    made->plan_ = info.plan;
    made->image_ = info.image;
    for (std::int32_t i = 0; i < info.plan.launches; ++i) {
        status = check_plan(info.launches[i]);
        if (!status.ok()) return status;
        if (info.symbols[i] == nullptr || info.symbols[i][0] == '\0') {
            return failure(FA_TUNE_INVALID, "launch %d of %s has no symbol", i, info.config);
        }
        made->launches_.push_back(info.launches[i]);
        made->symbols_.emplace_back(info.symbols[i]);
    }
    *kernel = std::move(made);
    return {};
}

fa_tune_kernel::~fa_tune_kernel() {
    const Driver* driver = nullptr;
    if (library_ != nullptr && get_driver(&driver).ok()) driver->cuLibraryUnload(library_);
}

Status fa_tune_kernel::load(const Driver& driver) {
    if (library_ != nullptr) return {};
    CUlibrary library = nullptr;
    Status status = driver.check(
        driver.cuLibraryLoadData(&library, image_, nullptr, nullptr, 0, nullptr, nullptr, 0),
        "cuLibraryLoadData");
    std::vector<CUkernel> kernels(symbols_.size());
    for (std::size_t i = 0; status.ok() && i < kernels.size(); ++i) {
        status = driver.check(driver.cuLibraryGetKernel(&kernels[i], library, symbols_[i].c_str()),
                              "cuLibraryGetKernel");
    }
    if (status.ok()) {
        library_ = library;
        kernels_ = std::move(kernels);
    } else if (library != nullptr) {
        driver.cuLibraryUnload(library);
    }
    return status;
}

Status fa_tune_kernel::make_ready(const Driver& driver, const Device& device) {
    if (!runs_on(plan_, device.compute_capability)) {
        return failure(FA_TUNE_INVALID, "a kernel for %s does not run on %s, sm_%d",
                       kind_of(plan_).c_str(), device.name.c_str(), device.compute_capability);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_ready(device)) return {};
    const RelaxedCapture relaxed(driver);
    Status status = load(driver);
    for (std::size_t i = 0; status.ok() && i < kernels_.size(); ++i) {
        status = driver.check(
            driver.cuKernelSetAttribute(kFunctionMaxDynamicShared, launches_[i].dynamic_smem_bytes,
                                        kernels_[i], device.handle),
            "cuKernelSetAttribute");
        // The code itself, which a captured launch could not load.
        CUfunction function = nullptr;
        if (status.ok()) {
            status = driver.check(driver.cuKernelGetFunction(&function, kernels_[i]),
                                  "cuKernelGetFunction");
        }
        if (status.ok() && driver.cuFuncLoad != nullptr) {
            status = driver.check(driver.cuFuncLoad(function), "cuFuncLoad");
        }
    }
    if (!status.ok()) {
        status.text = "loading " + config_ + ": " + status.text;
        return status;
    }
    ready_.fetch_or(std::uint64_t{1} << device.ordinal, std::memory_order_release);
    return {};
}

Status fa_tune_kernel::prepare(int device) {
    const Driver* driver = nullptr;
    Status status = get_driver(&driver);
    if (!status.ok()) return status;
    DeviceGuard guard;
    Context* context = nullptr;
    status = guard.enter(*driver, device, &context);
    if (!status.ok()) return status;
    return make_ready(*driver, *context->device);
}

bool fa_tune_kernel::has_workspace() const {
    for (const fa_tune_launch_plan& plan : launches_) {
        if (plan.share_keys > 0) return true;
    }
    return plan_.packed != 0;
}

Status fa_tune_kernel::workspace_bytes(const fa_tune_problem& problem, const Device& device,
                                       std::size_t* bytes) const {
    Status status = check_problem(problem);
    if (status.ok()) status = check_computes(plan_, problem);
    *bytes = 0;
    for (std::size_t i = 0; status.ok() && i < launches_.size(); ++i) {
        std::int64_t needed = 0;
        status = fa_tune::core::workspace_bytes(launches_[i], problem, device, &needed);
        *bytes = std::max(*bytes, static_cast<std::size_t>(needed));
    }
    return status;
}

Status fa_tune_kernel::launch(const fa_tune_problem& problem, const fa_tune_tensors& tensors,
                              int ordinal, CUstream stream) {
    Status status = check_problem(problem);
    fa_tune_problem asked = problem;
    // What a window hides depends on where it counts from, so that others may compute it.
    if (tensors.cache.lengths != nullptr) asked.cached = 1;
    if (status.ok()) status = check_computes(plan_, asked);
    return status.ok() ? launch_again(problem, tensors, ordinal, stream) : status;
}

Status fa_tune_kernel::launch_again(const fa_tune_problem& problem, const fa_tune_tensors& tensors,
                                    int ordinal, CUstream stream) {
    Status status = check_tensors(problem, tensors);
    if (!status.ok()) return status;
    const Driver* found = nullptr;
    status = get_driver(&found);
    if (!status.ok()) return status;
    const Driver& driver = *found;
    DeviceGuard guard;
    Context* context = nullptr;
    status = guard.enter(driver, ordinal, &context);
    if (!status.ok()) return status;
    const Device& device = *context->device;
    const bool ready = is_ready(device);
    bool has_counters = false;
    for (const fa_tune_launch_plan& plan : launches_) has_counters |= plan.counter_bytes > 0;
    bool capturing = false;
    if (has_counters || !ready) {
        status = is_capturing(driver, stream, &capturing);
        if (!status.ok()) return status;
    }
    if (!ready) {
        if (capturing) {
            return failure(FA_TUNE_CAPTURING,
                           "%s is not loaded, and the stream is being captured: call "
                           "fa_tune_prepare before",
                           config_.c_str());
        }
        status = make_ready(driver, device);
        if (!status.ok()) return status;
    }
    const Call call{problem, tensors, device};
    for (std::size_t i = 0; i < launches_.size(); ++i) {
        LaunchStep step;
        status = make_step(driver, launches_[i], call, step);
        if (!status.ok()) return status;
        if (launches_[i].counter_bytes > 0) {  // which a refused launch shall not keep
            CUdeviceptr counters = 0;
            status = capturing ? context->slots.of_captured_launch(driver, &counters)
                               : context->slots.of_stream(driver, stream, &counters);
            if (!status.ok()) return status;
            set_counters(launches_[i], counters, step);
        }
        status = enqueue(driver, step, kernels_[i], stream);
        if (!status.ok()) return status;
    }
    return {};
}
