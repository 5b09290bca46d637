// A stub of the CUDA driver, libcuda.so.1: two devices, host memory for device memory, and kernels
// that do nothing but to be recorded.  Tensor maps hold what they were made of.
#include "stub_driver.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "stub_binary.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kInvalidValue = 1, kInvalidContext = 201, kNotFound = 500, kUnsupported = 900;

struct Stream {
    std::atomic<std::uint64_t> id{0};
    bool capturing = false;
};

struct Context {
    int device;
};

struct Attributes {
    std::string name = "NVIDIA H200";
    int capability = 90, multiprocessors = 132, l2_bytes = 60 << 20;
};

std::mutex mutex;
std::vector<stub_launch> launches;
std::map<std::string, int> fail_error, fail_times;
std::map<std::string, std::size_t> calls;
auto& memory = *new std::map<unsigned long long, std::size_t>;  // the driver's until the very end
std::vector<std::unique_ptr<Stream>> streams;
std::vector<std::unique_ptr<Library>> libraries;  // kept, so that tests can ask
Attributes attributes;
std::atomic<bool> recording{std::getenv("STUB_SILENT") == nullptr};
std::atomic<std::uint64_t> next_id{100};
Context contexts[kDevices] = {{0}, {1}};
thread_local std::vector<Context*> stack;
thread_local int capture_mode = 0;

// Counts a call; the error that it shall give.  Without recording, nothing costs anything.
int called(const char* function) {
    if (!recording.load(std::memory_order_relaxed)) return 0;
    const std::lock_guard<std::mutex> lock(mutex);
    ++calls[function];
    auto left = fail_times.find(function);
    if (left == fail_times.end() || left->second == 0) return 0;
    --left->second;
    return fail_error[function];
}

int cuInit(unsigned) { return 0; }

int cuGetErrorName(int error, const char** name) {
    *name = error == kInvalidValue  ? "CUDA_ERROR_INVALID_VALUE"
            : error == kNotFound    ? "CUDA_ERROR_NOT_FOUND"
            : error == kUnsupported ? "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
                                    : "CUDA_ERROR_OF_THE_STUB";
    return 0;
}

int cuDeviceGet(int* device, int ordinal) {
    if (ordinal < 0 || ordinal >= kDevices) return 101;
    *device = ordinal;
    return 0;
}

int cuDeviceGetName(char* name, int size, int) {
    std::strncpy(name, attributes.name.c_str(), static_cast<std::size_t>(size) - 1);
    return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int) {
    switch (attribute) {
        case 16:
            *value = attributes.multiprocessors;
            return 0;
        case 38:
            *value = attributes.l2_bytes;
            return 0;
        case 75:
            *value = attributes.capability / 10;
            return 0;
        case 76:
            *value = attributes.capability % 10;
            return 0;
        default:
            return kInvalidValue;
    }
}

int cuDevicePrimaryCtxRetain(Context** context, int device) {
    *context = &contexts[device];
    return 0;
}

int cuCtxGetCurrent(Context** context) {
    *context = stack.empty() ? nullptr : stack.back();
    return 0;
}

int cuCtxGetDevice(int* device) {
    if (stack.empty()) return kInvalidContext;
    *device = stack.back()->device;
    return 0;
}

int cuCtxPushCurrent(Context* context) {
    stack.push_back(context);
    return 0;
}

int cuCtxPopCurrent(Context** context) {
    if (stack.empty()) return kInvalidContext;
    *context = stack.back();
    stack.pop_back();
    return 0;
}

int cuLibraryLoadData(Library** library, const void* code, int*, void**, unsigned, int*, void**,
                      unsigned) {
    auto made = std::make_unique<Library>(static_cast<const char*>(code));
    const std::lock_guard<std::mutex> lock(mutex);
    *library = made.get();
    libraries.push_back(std::move(made));
    return 0;
}

int cuLibraryUnload(Library*) { return 0; }

int cuLibraryGetKernel(Kernel** kernel, Library* library, const char* name) {
    const std::lock_guard<std::mutex> lock(mutex);
    *kernel = library->find(name);
    return *kernel == nullptr ? kNotFound : 0;
}

int cuKernelSetAttribute(int attribute, int value, Kernel* kernel, int device) {
    if (attribute != 8) return kInvalidValue;
    const std::lock_guard<std::mutex> lock(mutex);
    kernel->shared_limit[device] = value;
    return 0;
}

int cuKernelGetFunction(Kernel** function, Kernel* kernel) {
    if (stack.empty()) return kInvalidContext;
    *function = kernel;
    return 0;
}

int cuFuncLoad(Kernel*) { return 0; }

struct Shape {
    std::uint32_t cluster[3] = {1, 1, 1};
    std::int32_t dependent = 0;
};

int launch(Kernel* kernel, const std::uint32_t (&grid)[3], const std::uint32_t (&block)[3],
           const Shape& shape, unsigned shared_bytes, Stream* stream, void** params) {
    if (stack.empty()) return kInvalidContext;
    if (!recording.load(std::memory_order_relaxed)) return 0;
    const std::lock_guard<std::mutex> lock(mutex);
    const int device = stack.back()->device;
    // As the driver: more than 48 KiB must have been allowed.
    if (static_cast<int>(shared_bytes) > (48 << 10) &&
        static_cast<int>(shared_bytes) > kernel->shared_limit[device]) {
        return kInvalidValue;
    }
    stub_launch seen{};
    std::strncpy(seen.symbol, kernel->symbol.c_str(), sizeof seen.symbol - 1);
    std::memcpy(seen.grid, grid, sizeof grid);
    std::memcpy(seen.block, block, sizeof block);
    std::memcpy(seen.cluster, shape.cluster, sizeof shape.cluster);
    seen.dependent = shape.dependent;
    seen.shared_bytes = shared_bytes;
    seen.device = device;
    seen.captured = stream != nullptr && stream->capturing;
    seen.stream = reinterpret_cast<std::uintptr_t>(stream);
    for (std::size_t i = 0; i < kernel->params.size(); ++i) {
        if (seen.params_bytes + kernel->params[i] > STUB_MAX_PARAMS) return kInvalidValue;
        std::memcpy(seen.params + seen.params_bytes, params[i], kernel->params[i]);
        seen.params_bytes += static_cast<std::uint32_t>(kernel->params[i]);
    }
    launches.push_back(seen);
    return 0;
}

int cuLaunchKernel(Kernel* kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   Stream* stream, void** params, void**) {
    return launch(kernel, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, {}, shared_bytes,
                  stream, params);
}

struct LaunchConfig {
    std::uint32_t grid[3], block[3];
    unsigned shared_bytes;
    Stream* stream;
    struct Attribute {
        int id;
        char pad[4];
        union {
            char bytes[64];
            std::uint32_t cluster[3];
            std::int32_t flag;
        } value;
    }* attributes;
    unsigned attribute_count;
};

int cuLaunchKernelEx(const LaunchConfig* config, Kernel* kernel, void** params, void**) {
    Shape shape;
    for (unsigned i = 0; i < config->attribute_count; ++i) {
        const auto& attribute = config->attributes[i];
        if (attribute.id == 4) {
            std::memcpy(shape.cluster, attribute.value.cluster, sizeof shape.cluster);
        } else if (attribute.id == 6) {  // programmatic stream serialization
            shape.dependent = attribute.value.flag;
        } else {
            return kInvalidValue;
        }
    }
    return launch(kernel, config->grid, config->block, shape, config->shared_bytes, config->stream,
                  params);
}

// As the driver refuses it; what it makes is the driver's own affair, so here the request itself.
int cuTensorMapEncodeTiled(void* map, int data_type, unsigned rank, void* address,
                           const std::uint64_t* dimensions, const std::uint64_t* strides,
                           const std::uint32_t* box, const std::uint32_t* element_strides,
                           int interleave, int swizzle, int promotion, int fill) {
    const auto start = reinterpret_cast<std::uintptr_t>(address);
    if (reinterpret_cast<std::uintptr_t>(map) % 64 != 0 || start % 16 != 0 ||
        (rank != 4 && rank != 5)) {
        return kInvalidValue;
    }
    std::uint64_t words[16] = {start};
    for (unsigned i = 0; i < rank; ++i) {
        if (dimensions[i] == 0 || dimensions[i] > (std::uint64_t{1} << 32)) return kInvalidValue;
        if (box[i] == 0 || box[i] > 256 || element_strides[i] != 1) return kInvalidValue;
        words[1 + i] = dimensions[i] << 32 | box[i];
    }
    for (unsigned i = 0; i + 1 < rank; ++i) {
        if (strides[i] % 16 != 0 || strides[i] >= (std::uint64_t{1} << 40)) return kInvalidValue;
        words[6 + i] = strides[i];
    }
    const int modes[] = {data_type, interleave, swizzle, promotion, fill};
    for (int i = 0; i < 5; ++i) words[10 + i] = static_cast<std::uint64_t>(modes[i]);
    std::memcpy(map, words, sizeof words);
    return 0;
}

int cuMemAlloc(unsigned long long* address, std::size_t bytes) {
    if (capture_mode != 2) return kUnsupported;  // as if any thread captured
    void* made = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (made == nullptr) return 2;
    std::memset(made, 0xa5, bytes);
    *address = reinterpret_cast<std::uintptr_t>(made);
    const std::lock_guard<std::mutex> lock(mutex);
    memory[*address] = bytes;
    return 0;
}

int cuMemFree(unsigned long long address) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (memory.erase(address) == 0) return kInvalidValue;
    std::free(reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)));
    return 0;
}

int cuMemsetD8Async(unsigned long long address, unsigned char value, std::size_t count, Stream*) {
    std::memset(reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)), value, count);
    return 0;
}

Stream* new_stream(bool capturing) {
    auto made = std::make_unique<Stream>();
    made->id = next_id++;
    made->capturing = capturing;
    const std::lock_guard<std::mutex> lock(mutex);
    streams.push_back(std::move(made));
    return streams.back().get();
}

int cuStreamCreate(Stream** stream, unsigned) {
    *stream = new_stream(false);
    return 0;
}

int cuStreamDestroy(Stream*) { return 0; }

int cuStreamSynchronize(Stream*) { return capture_mode == 2 ? 0 : kUnsupported; }

int cuStreamIsCapturing(Stream* stream, int* status) {
    *status = stream != nullptr && stream->capturing ? 1 : 0;
    return 0;
}

int cuStreamGetId(Stream* stream, unsigned long long* id) {
    *id = stream == nullptr ? 1 : stream->id.load();
    return 0;
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
    std::swap(*mode, capture_mode);
    return 0;
}

// A function that counts its calls, and gives the error that it shall give.
template <auto kFunction>
struct Counted;
template <class... Parameters, int (*kFunction)(Parameters...)>
struct Counted<kFunction> {
    static inline const char* name = nullptr;
    static int call(Parameters... given) {
        const int error = called(name);
        return error != 0 ? error : kFunction(given...);
    }
    static void* as(const char* known) {
        name = known;
        return reinterpret_cast<void*>(call);
    }
};

#define FUNCTION(name) {#name, Counted<name>::as(#name)}
const struct {
    const char* name;
    void* function;
} kFunctions[] = {
    FUNCTION(cuInit),
    FUNCTION(cuGetErrorName),
    FUNCTION(cuDeviceGet),
    FUNCTION(cuDeviceGetName),
    FUNCTION(cuDeviceGetAttribute),
    FUNCTION(cuDevicePrimaryCtxRetain),
    FUNCTION(cuCtxGetCurrent),
    FUNCTION(cuCtxGetDevice),
    FUNCTION(cuCtxPushCurrent),
    FUNCTION(cuCtxPopCurrent),
    FUNCTION(cuLibraryLoadData),
    FUNCTION(cuLibraryUnload),
    FUNCTION(cuLibraryGetKernel),
    FUNCTION(cuKernelSetAttribute),
    FUNCTION(cuKernelGetFunction),
    FUNCTION(cuFuncLoad),
    FUNCTION(cuLaunchKernel),
    FUNCTION(cuLaunchKernelEx),
    FUNCTION(cuTensorMapEncodeTiled),
    FUNCTION(cuMemAlloc),
    FUNCTION(cuMemFree),
    FUNCTION(cuMemsetD8Async),
    FUNCTION(cuStreamCreate),
    FUNCTION(cuStreamDestroy),
    FUNCTION(cuStreamSynchronize),
    FUNCTION(cuStreamIsCapturing),
    FUNCTION(cuStreamGetId),
    FUNCTION(cuThreadExchangeStreamCaptureMode),
};

}  // namespace

EXPORT int cuGetProcAddress_v2(const char* name, void** function, int version, std::uint64_t,
                               int* status) {
    for (const auto& known : kFunctions) {
        // Of newer forms of a function the stub knows nothing.
        if (std::strcmp(known.name, name) != 0 || version < 12000) continue;
        *function = known.function;
        *status = 0;
        return 0;
    }
    *status = 1;
    return kNotFound;
}

EXPORT void stub_reset(void) {
    const std::lock_guard<std::mutex> lock(mutex);
    launches.clear();
    fail_error.clear();
    fail_times.clear();
    calls.clear();
    stack.clear();
    recording = true;
}

EXPORT void stub_set_device(const char* name, int capability, int multiprocessors, int l2_bytes) {
    attributes = {name, capability, multiprocessors, l2_bytes};
}

EXPORT void stub_record(int on) { recording = on != 0; }

EXPORT std::size_t stub_launch_count(void) {
    const std::lock_guard<std::mutex> lock(mutex);
    return launches.size();
}

EXPORT int stub_get_launch(std::size_t index, stub_launch* launch) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (index >= launches.size()) return 0;
    *launch = launches[index];
    return 1;
}

EXPORT std::size_t stub_calls(const char* function) {
    const std::lock_guard<std::mutex> lock(mutex);
    return calls[function];
}

EXPORT void stub_fail(const char* function, int error, int times) {
    const std::lock_guard<std::mutex> lock(mutex);
    fail_error[function] = error;
    fail_times[function] = times;
}

EXPORT void* stub_stream(int capturing) { return new_stream(capturing != 0); }

EXPORT void stub_renew_stream(void* stream) { static_cast<Stream*>(stream)->id = next_id++; }

EXPORT void stub_use_device(int device) {
    stack.clear();
    if (device >= 0) stack.push_back(&contexts[device]);
}

EXPORT int stub_current_device(void) { return stack.empty() ? -1 : stack.back()->device; }

EXPORT void* stub_kernel(const char* symbol) {
    const std::lock_guard<std::mutex> lock(mutex);
    Kernel* found = nullptr;
    for (const auto& library : libraries) {
        for (const auto& kernel : library->kernels()) {
            if (kernel->symbol == symbol) found = kernel.get();
        }
    }
    return found;
}

EXPORT int stub_shared_limit(const char* symbol, int device) {
    const auto* kernel = static_cast<const Kernel*>(stub_kernel(symbol));
    return kernel == nullptr ? -1 : kernel->shared_limit[device];
}

EXPORT std::size_t stub_memory(void) {
    const std::lock_guard<std::mutex> lock(mutex);
    std::size_t bytes = 0;
    for (const auto& [address, size] : memory) bytes += size;
    return bytes;
}
