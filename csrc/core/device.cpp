#include "device.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>

namespace fa_tune::core {

namespace {

std::mutex mutex;  // of what is written below; readers take none
std::array<std::atomic<const Device*>, kMaxDevices> devices{};
std::array<std::atomic<CUcontext>, kMaxDevices> primary_contexts{};
std::atomic<Context*> contexts{nullptr};

Status ask(const Driver& driver, int ordinal, Device& device) {
    Status status = driver.check(driver.cuDeviceGet(&device.handle, ordinal), "cuDeviceGet");
    if (!status.ok()) return status;
    device.ordinal = ordinal;
    char name[256] = {};
    status =
        driver.check(driver.cuDeviceGetName(name, sizeof name, device.handle), "cuDeviceGetName");
    if (!status.ok()) return status;
    device.name = name;
    const std::array<int, 4> asked = {kAttributeMajor, kAttributeMinor, kAttributeMultiprocessors,
                                      kAttributeL2Bytes};
    std::array<int, 4> values{};
    for (std::size_t i = 0; i < asked.size(); ++i) {
        status = driver.check(driver.cuDeviceGetAttribute(&values[i], asked[i], device.handle),
                              "cuDeviceGetAttribute");
        if (!status.ok()) return status;
    }
    device.compute_capability = 10 * values[0] + values[1];
    device.multiprocessors = values[2];
    device.l2_bytes = values[3];
    return {};
}

Context* known(CUcontext handle) {
    Context* found = contexts.load(std::memory_order_acquire);
    while (found != nullptr && found->handle != handle) found = found->next;
    return found;
}

// The current context's.
Status context_of(const Driver& driver, CUcontext handle, Context** context) {
    *context = known(handle);
    if (*context != nullptr) return {};
    CUdevice number = 0;
    Status status = driver.check(driver.cuCtxGetDevice(&number), "cuCtxGetDevice");
    if (!status.ok()) return status;
    const Device* device = nullptr;
    status = get_device(driver, number, &device);
    if (!status.ok()) return status;
    const std::lock_guard<std::mutex> lock(mutex);
    *context = known(handle);
    if (*context != nullptr) return {};
    auto made = std::make_unique<Context>();
    made->handle = handle;
    made->device = device;
    made->next = contexts.load(std::memory_order_relaxed);
    *context = made.release();
    contexts.store(*context, std::memory_order_release);
    return {};
}

Status primary_context(const Driver& driver, const Device& device, CUcontext* handle) {
    std::atomic<CUcontext>& kept = primary_contexts[static_cast<std::size_t>(device.ordinal)];
    *handle = kept.load(std::memory_order_acquire);
    if (*handle != nullptr) return {};
    const std::lock_guard<std::mutex> lock(mutex);
    *handle = kept.load(std::memory_order_acquire);
    if (*handle != nullptr) return {};
    Status status = driver.check(driver.cuDevicePrimaryCtxRetain(handle, device.handle),
                                 "cuDevicePrimaryCtxRetain");
    if (status.ok()) kept.store(*handle, std::memory_order_release);
    return status;
}

}  // namespace

Status get_device(const Driver& driver, int ordinal, const Device** device) {
    if (ordinal < 0 || ordinal >= kMaxDevices) {
        return failure(FA_TUNE_INVALID, "no device has the number %d", ordinal);
    }
    std::atomic<const Device*>& kept = devices[static_cast<std::size_t>(ordinal)];
    *device = kept.load(std::memory_order_acquire);
    if (*device != nullptr) return {};
    const std::lock_guard<std::mutex> lock(mutex);
    *device = kept.load(std::memory_order_acquire);
    if (*device != nullptr) return {};
    auto found = std::make_unique<Device>();
    Status status = ask(driver, ordinal, *found);
    if (!status.ok()) return status;
    *device = found.release();
    kept.store(*device, std::memory_order_release);
    return {};
}

DeviceGuard::~DeviceGuard() {
    if (driver_ == nullptr) return;
    CUcontext popped = nullptr;
    driver_->cuCtxPopCurrent(&popped);
}

Status DeviceGuard::enter(const Driver& driver, int ordinal, Context** context) {
    CUcontext current = nullptr;
    Status status = driver.check(driver.cuCtxGetCurrent(&current), "cuCtxGetCurrent");
    if (!status.ok()) return status;
    if (current != nullptr) {
        status = context_of(driver, current, context);
        if (!status.ok()) return status;
        if (ordinal < 0 || (*context)->device->ordinal == ordinal) return {};
    }
    const Device* device = nullptr;
    status = get_device(driver, ordinal < 0 ? 0 : ordinal, &device);
    if (!status.ok()) return status;
    CUcontext primary = nullptr;
    status = primary_context(driver, *device, &primary);
    if (!status.ok()) return status;
    status = driver.check(driver.cuCtxPushCurrent(primary), "cuCtxPushCurrent");
    if (!status.ok()) return status;
    driver_ = &driver;
    return context_of(driver, primary, context);
}

}  // namespace fa_tune::core
