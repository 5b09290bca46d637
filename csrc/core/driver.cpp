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

Driver loaded;
std::atomic<bool> is_loaded{false};

void load() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        fail(FA_TUNE_NO_DRIVER,
             "no CUDA driver found: libcuda.so.1 cannot be loaded; install the driver");
    }
    // The one name that is looked up directly; it is there since CUDA 12.0.
    const auto find = reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
    if (find == nullptr) {
        fail(FA_TUNE_NO_DRIVER, "the CUDA driver is too old: one for CUDA 12.0 or later is needed");
    }
    const auto look_up = [find](auto& function, int version) {
        void* found = nullptr;
        int status = 0;
        if (find(function.name, &found, version, 0, &status) != kCudaSuccess) return false;
        function.call = reinterpret_cast<decltype(function.call)>(found);
        return found != nullptr;
    };
#define FA_TUNE_FIND(name, parameters)                                                             \
    if (!look_up(loaded.name, kCudaVersion)) {                                                     \
        fail(FA_TUNE_NO_DRIVER, "the CUDA driver has no %s; one for CUDA 12.0 or later is needed", \
             #name);                                                                               \
    }
    FA_TUNE_DRIVER_FUNCTIONS(FA_TUNE_FIND)
#undef FA_TUNE_FIND
    look_up(loaded.cuFuncLoad, kFuncLoadVersion);
    const CUresult result = loaded.cuInit.call(0);
    if (result == kCudaNoDevice) fail(FA_TUNE_NO_DRIVER, "the CUDA driver has no device");
    if (result != kCudaSuccess) fail_of_driver("cuInit", result);
}

}  // namespace

void fail_of_driver(const char* function, CUresult error) {
    const char* name = nullptr;
    if (loaded.cuGetErrorName.call(error, &name) != kCudaSuccess || name == nullptr) {
        name = "unknown";
    }
    fail(FA_TUNE_DRIVER_ERROR, "%s: %s (error %d)", function, name, error);
}

const Driver& get_driver() {
    if (!is_loaded.load(std::memory_order_acquire)) {
        static std::mutex mutex;
        const std::lock_guard<std::mutex> lock(mutex);
        if (!is_loaded.load(std::memory_order_acquire)) load();
        is_loaded.store(true, std::memory_order_release);
    }
    return loaded;
}

}  // namespace fa_tune::core
