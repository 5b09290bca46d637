#include "device.h"

#include <algorithm>
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

std::unique_ptr<Device> ask(const Driver& driver, int ordinal) {
    auto device = std::make_unique<Device>();
    driver.cuDeviceGet(&device->handle, ordinal);
    device->ordinal = ordinal;
    char name[256] = {};
    driver.cuDeviceGetName(name, sizeof name, device->handle);
    device->name = name;
    const auto attribute = [&](int asked) {
        int value = 0;
        driver.cuDeviceGetAttribute(&value, asked, device->handle);
        return value;
    };
    device->compute_capability = 10 * attribute(kAttributeMajor) + attribute(kAttributeMinor);
    device->multiprocessors = attribute(kAttributeMultiprocessors);
    device->l2_bytes = attribute(kAttributeL2Bytes);
    return device;
}

// What is kept in a place, which `make` fills once, under the lock.
template <class Kept, class Make>
Kept kept_or(std::atomic<Kept>& place, Make make) {
    Kept found = place.load(std::memory_order_acquire);
    if (found != nullptr) return found;
    const std::lock_guard<std::mutex> lock(mutex);
    found = place.load(std::memory_order_acquire);
    if (found == nullptr) place.store(found = make(), std::memory_order_release);
    return found;
}

Context* known(CUcontext handle) {
    Context* found = contexts.load(std::memory_order_acquire);
    while (found != nullptr && found->handle != handle) found = found->next;
    return found;
}

// The current context's.
Context& context_of(const Driver& driver, CUcontext handle) {
    if (Context* found = known(handle)) return *found;
    CUdevice number = 0;
    driver.cuCtxGetDevice(&number);
    const Device& device = get_device(driver, number);
    const std::lock_guard<std::mutex> lock(mutex);
    if (Context* found = known(handle)) return *found;
    auto made = std::make_unique<Context>();
    made->handle = handle;
    made->device = &device;
    made->next = contexts.load(std::memory_order_relaxed);
    contexts.store(made.get(), std::memory_order_release);
    return *made.release();
}

CUcontext primary_context(const Driver& driver, const Device& device) {
    return kept_or(primary_contexts[static_cast<std::size_t>(device.ordinal)], [&] {
        CUcontext handle = nullptr;
        driver.cuDevicePrimaryCtxRetain(&handle, device.handle);
        return handle;
    });
}

}  // namespace

const Device& get_device(const Driver& driver, int ordinal) {
    if (ordinal < 0 || ordinal >= kMaxDevices) {
        fail(FA_TUNE_INVALID, "no device has the number %d", ordinal);
    }
    return *kept_or(devices[static_cast<std::size_t>(ordinal)],
                    [&]() -> const Device* { return ask(driver, ordinal).release(); });
}

DeviceGuard::~DeviceGuard() {
    if (driver_ == nullptr) return;
    CUcontext popped = nullptr;
    driver_->cuCtxPopCurrent.call(&popped);
}

Context& DeviceGuard::enter(const Driver& driver, int ordinal) {
    CUcontext current = nullptr;
    driver.cuCtxGetCurrent(&current);
    if (current != nullptr) {
        Context& context = context_of(driver, current);
        if (ordinal < 0 || context.device->ordinal == ordinal) return context;
    }
    const Device& device = get_device(driver, std::max(ordinal, 0));
    CUcontext primary = primary_context(driver, device);
    driver.cuCtxPushCurrent(primary);
    driver_ = &driver;
    return context_of(driver, primary);
}

}  // namespace fa_tune::core
