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

Status check_plan(const fa_tune_plan& plan) {
    const struct {
        const char* name;
        std::int32_t value, least, most;
    } ranges[] = {
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
        {"decode_shape", plan.decode_shape, 0, 1},
        {"compute_capability", plan.compute_capability, 10, 999},
        {"portability", plan.portability, FA_TUNE_PORTABILITY_MINOR, FA_TUNE_PORTABILITY_LATER},
    };
    for (const auto& [name, value, least, most] : ranges) {
        if (value < least || value > most) {
            return failure(FA_TUNE_INVALID, "%s of a plan must be between %d and %d, not %d", name,
                           least, most, value);
        }
    }
    if (!is_operation(plan.operation)) {
        return failure(FA_TUNE_INVALID, "unknown operation %d of a plan", plan.operation);
    }
    if (dtype_of(plan.dtype) == nullptr) {
        return failure(FA_TUNE_INVALID, "unknown dtype %d of a plan", plan.dtype);
    }
    return {};
}

bool has_cluster(const fa_tune_description& launch) {
    return launch.cluster[0] * launch.cluster[1] * launch.cluster[2] > 1;
}

Status enqueue_with(const Driver& driver, const fa_tune_description& launch, CUkernel kernel,
                    CUstream stream, void** pointers) {
    if (!has_cluster(launch) && launch.dependent == 0) {
        return driver.check(driver.cuLaunchKernel(kernel, launch.grid[0], launch.grid[1],
                                                  launch.grid[2], launch.block[0], 1, 1,
                                                  launch.shared_bytes, stream, pointers, nullptr),
                            "cuLaunchKernel");
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
    return driver.check(driver.cuLaunchKernelEx(&config, kernel, pointers, nullptr),
                        "cuLaunchKernelEx");
}

Status is_capturing(const Driver& driver, CUstream stream, bool* capturing) {
    int status = kCaptureNone;
    Status asked = driver.check(driver.cuStreamIsCapturing(stream, &status), "cuStreamIsCapturing");
    *capturing = status != kCaptureNone;
    return asked;
}

}  // namespace

Status fa_tune_kernel::make(const fa_tune_kernel_info& info,
                            std::unique_ptr<fa_tune_kernel>* kernel) {
    Status status = check_plan(info.plan);
    if (!status.ok()) return status;
    if (info.config == nullptr || info.launches == nullptr) {
        return failure(FA_TUNE_INVALID, "a kernel needs config and launches");
    }
    std::unique_ptr<fa_tune_kernel> made(new fa_tune_kernel);
    made->config_ = info.config;
    made->plan_ = info.plan;
    made->launches_.resize(static_cast<std::size_t>(info.plan.launches));
    for (std::size_t i = 0; i < made->launches_.size(); ++i) {
        status = fa_tune::core::check_plan(info.launches[i], &made->launches_[i]);
        if (!status.ok()) return status;
    }
    *kernel = std::move(made);
    return {};
}

Status fa_tune_kernel::create(const fa_tune_kernel_info& info,
                              std::unique_ptr<fa_tune_kernel>* kernel) {
    std::unique_ptr<fa_tune_kernel> made;
    Status status = make(info, &made);
    if (!status.ok()) return status;
    if (info.symbols == nullptr || info.image == nullptr || info.image_bytes == 0) {
        return failure(FA_TUNE_INVALID, "a kernel needs symbols and image");
    }
    made->image_ = info.image;
    for (std::int32_t i = 0; i < info.plan.launches; ++i) {
        if (info.symbols[i] == nullptr || info.symbols[i][0] == '\0') {
            return failure(FA_TUNE_INVALID, "launch %d of %s has no symbol", i, info.config);
        }
        made->symbols_.emplace_back(info.symbols[i]);
    }
    *kernel = std::move(made);
    return {};
}

Status fa_tune_kernel::adopt(const fa_tune_kernel_info& info, void* const* functions, int device,
                             int multiprocessors, std::unique_ptr<fa_tune_kernel>* kernel) {
    std::unique_ptr<fa_tune_kernel> made;
    Status status = make(info, &made);
    if (!status.ok()) return status;
    for (std::int32_t i = 0; i < info.plan.launches; ++i) {
        if (functions == nullptr || functions[i] == nullptr) {
            return failure(FA_TUNE_INVALID, "launch %d of %s has no function", i, info.config);
        }
        // To the driver's launches a CUkernel is a CUfunction.
        made->kernels_.push_back(static_cast<CUkernel>(functions[i]));
    }
    made->multiprocessors_ = multiprocessors;
    made->ready_ = std::uint64_t{1} << device;
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
    if (image_ == nullptr) {
        return failure(FA_TUNE_INVALID, "%s was adopted on another device than %d", config_.c_str(),
                       device.ordinal);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_ready(device)) return {};
    const RelaxedCapture relaxed(driver);
    Status status = load(driver);
    for (std::size_t i = 0; status.ok() && i < kernels_.size(); ++i) {
        status = driver.check(driver.cuKernelSetAttribute(kFunctionMaxDynamicShared,
                                                          launches_[i].plan.dynamic_smem_bytes,
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
    for (const Launchable& launch : launches_) {
        if (launch.plan.share_keys > 0 || launch.layout->workspace != nullptr) return true;
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
        status = fa_tune::core::workspace_bytes(launches_[i], problem, multiprocessors_of(device),
                                                &needed);
        *bytes = std::max(*bytes, static_cast<std::size_t>(needed));
    }
    return status;
}

Status fa_tune_kernel::check_call(const fa_tune_problem& problem,
                                  const fa_tune_tensors& tensors) const {
    Status status = check_problem(problem);
    fa_tune_problem asked = problem;
    // What a window hides depends on where it counts from, so that others may compute it.
    if (tensors.of[FA_TUNE_TENSOR_CACHE_SEQLENS].address != nullptr) asked.cached = 1;
    return status.ok() ? check_computes(plan_, asked) : status;
}

Status fa_tune_kernel::describe(const fa_tune_problem& problem, const fa_tune_tensors& tensors,
                                const fa_tune_device_facts& device, int launch,
                                fa_tune_description* description) const {
    if (launch < 0 || launch >= plan_.launches) {
        return failure(FA_TUNE_INVALID, "%s has no launch %d", config_.c_str(), launch);
    }
    Status status = check_call(problem, tensors);
    if (status.ok()) status = check_tensors(problem, tensors);
    if (!status.ok()) return status;
    const Launchable& described = launches_[static_cast<std::size_t>(launch)];
    const Call call{problem, tensors, device.multiprocessors, device.l2_bytes};
    *description = {};
    status = fa_tune::core::describe(described, call, *description);
    for (std::uint32_t i = 0; status.ok() && i < description->map_count; ++i) {
        status = check_map(description->maps[i]);
    }
    if (described.plan.counter_bytes > 0) {
        set_counters(described, device.counters, *description);
    }
    return status;
}

Status fa_tune_kernel::launch(const fa_tune_problem& problem, const fa_tune_tensors& tensors,
                              int ordinal, CUstream stream) {
    Status status = check_call(problem, tensors);
    return status.ok() ? launch_again(problem, tensors, ordinal, stream) : status;
}

Status fa_tune_kernel::launch_again(const fa_tune_problem& problem, const fa_tune_tensors& tensors,
                                    int ordinal, CUstream stream) {
    Status status = check_tensors(problem, tensors);
    if (!status.ok()) return status;
    const Driver* driver = nullptr;
    status = get_driver(&driver);
    if (!status.ok()) return status;
    DeviceGuard guard;
    Context* context = nullptr;
    status = guard.enter(*driver, ordinal, &context);
    if (!status.ok()) return status;
    const Device& device = *context->device;
    const bool ready = is_ready(device);
    bool has_counters = false;
    for (const Launchable& launch : launches_) has_counters |= launch.plan.counter_bytes > 0;
    bool capturing = false;
    if (has_counters || !ready) {
        status = is_capturing(*driver, stream, &capturing);
        if (!status.ok()) return status;
    }
    if (!ready) {
        if (capturing) {
            return failure(FA_TUNE_CAPTURING,
                           "%s is not loaded, and the stream is being captured: call "
                           "fa_tune_prepare before",
                           config_.c_str());
        }
        status = make_ready(*driver, device);
    }
    const Call call{problem, tensors, multiprocessors_of(device), device.l2_bytes};
    for (std::size_t i = 0; status.ok() && i < launches_.size(); ++i) {
        status = enqueue(*driver, i, call, *context, stream, capturing);
    }
    return status;
}

Status fa_tune_kernel::enqueue(const Driver& driver, std::size_t launch, const Call& call,
                               Context& context, CUstream stream, bool capturing) {
    fa_tune_description step;
    Status status = fa_tune::core::describe(launches_[launch], call, step);
    if (status.ok() && step.workspace_bytes > 0) {
        status = check_workspace(call.problem, call.tensors);
    }
    CUtensorMap maps[std::size(step.maps)];
    void* pointers[std::size(step.maps) + 1];
    void** next = pointers;
    for (std::uint32_t i = 0; status.ok() && i < step.map_count; ++i) {
        status = encode_map(driver, step.maps[i], maps[i]);
        *next++ = &maps[i];
    }
    *next = step.params;
    if (!status.ok()) return status;
    if (launches_[launch].plan.counter_bytes > 0) {  // which a refused launch shall not keep
        const bool adopted = image_ == nullptr;
        CUdeviceptr counters = counters_;
        if (counters == 0) {
            status = capturing || adopted ? context.slots.of_captured_launch(driver, &counters)
                                          : context.slots.of_stream(driver, stream, &counters);
            if (!status.ok()) return status;
            if (adopted) counters_ = counters;
        }
        set_counters(launches_[launch], reinterpret_cast<void*>(counters), step);
    }
    return enqueue_with(driver, step, kernels_[launch], stream, pointers);
}
