#include "driver.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <mutex>

namespace fa_tune::core {

namespace {

constexpr int kCudaVersion = 12000;  // whose forms of the functions are asked for
constexpr int kFuncLoadVersion = 12040;

using GetProcAddress = CUresult (*)(const char* name, void** function, int version,
                                    std::uint64_t flags, int* status);

std::atomic<const Driver*> loaded{nullptr};

Status load(Driver& driver) {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        return failure(FA_TUNE_NO_DRIVER,
                       "no CUDA driver found: libcuda.so.1 cannot be loaded; install the driver");
    }
    // The one name that is looked up directly; it is there since CUDA 12.0.
    const auto find = reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
    if (find == nullptr) {
        return failure(FA_TUNE_NO_DRIVER,
                       "the CUDA driver is too old: one for CUDA 12.0 or later is needed");
    }
    const auto look_up = [find](const char* name, int version) {
        void* found = nullptr;
        int status = 0;
        return find(name, &found, version, 0, &status) == kCudaSuccess ? found : nullptr;
    };
#define FA_TUNE_FIND(name, parameters)                                                   \
    driver.name = reinterpret_cast<decltype(driver.name)>(look_up(#name, kCudaVersion)); \
    if (driver.name == nullptr) {                                                        \
        return failure(FA_TUNE_NO_DRIVER,                                                \
                       "the CUDA driver has no %s; one for CUDA 12.0 or "                \
                       "later is needed",                                                \
                       #name);                                                           \
    }
    FA_TUNE_DRIVER_FUNCTIONS(FA_TUNE_FIND)
#undef FA_TUNE_FIND
    driver.cuFuncLoad =
        reinterpret_cast<decltype(driver.cuFuncLoad)>(look_up("cuFuncLoad", kFuncLoadVersion));
    const CUresult result = driver.cuInit(0);
    if (result == kCudaNoDevice) return failure(FA_TUNE_NO_DRIVER, "the CUDA driver has no device");
    return driver.check(result, "cuInit");
}

}  // namespace

Status Driver::check(CUresult result, const char* what) const {
    if (result == kCudaSuccess) return {};
    const char* name = nullptr;
    if (cuGetErrorName(result, &name) != kCudaSuccess || name == nullptr) name = "unknown";
    return failure(FA_TUNE_DRIVER_ERROR, "%s: %s (error %d)", what, name, result);
}

Status get_driver(const Driver** driver) {
    *driver = loaded.load(std::memory_order_acquire);
    if (*driver != nullptr) return {};
    static std::mutex mutex;
    const std::lock_guard<std::mutex> lock(mutex);
    static Driver found;
    if (loaded.load(std::memory_order_acquire) == nullptr) {
        Status status = load(found);
        if (!status.ok()) return status;
        loaded.store(&found, std::memory_order_release);
    }
    *driver = &found;
    return {};
}

}  // namespace fa_tune::core
