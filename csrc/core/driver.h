// The CUDA driver's functions that the core calls, found at run time.  The declarations are the
// core's own: they say what the driver's ABI is, for CUDA 12.0 and later.
#pragma once

#include <cstddef>
#include <cstdint>

#include "status.h"

namespace fa_tune::core {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUlibrary = struct CUlib_st*;
using CUkernel = struct CUkern_st*;
using CUfunction = struct CUfunc_st*;

struct alignas(64) CUtensorMap {
    std::uint64_t opaque[16];
};

struct CUlaunchAttribute {
    int id;
    char pad[4];
    union {
        char bytes[64];
        int flag;
        struct {
            unsigned x, y, z;
        } cluster;
    } value;
};

struct CUlaunchConfig {
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned shared_bytes;
    CUstream stream;
    CUlaunchAttribute* attributes;
    unsigned attribute_count;
};

constexpr CUresult kCudaSuccess = 0;
constexpr CUresult kCudaNoDevice = 100;

constexpr int kAttributeMultiprocessors = 16;
constexpr int kAttributeL2Bytes = 38;
constexpr int kAttributeMajor = 75;
constexpr int kAttributeMinor = 76;
constexpr int kFunctionMaxDynamicShared = 8;
constexpr int kLaunchClusterDimension = 4;
constexpr int kLaunchProgrammatic = 6;  // programmatic stream serialization
constexpr int kCaptureModeRelaxed = 2;
constexpr int kCaptureNone = 0;
constexpr unsigned kStreamNonBlocking = 1;

// X(name, parameters): every function, all of which return a CUresult.
#define FA_TUNE_DRIVER_FUNCTIONS(X)                                                            \
    X(cuInit, (unsigned flags))                                                                \
    X(cuGetErrorName, (CUresult error, const char** name))                                     \
    X(cuDeviceGet, (CUdevice * device, int ordinal))                                           \
    X(cuDeviceGetName, (char* name, int size, CUdevice device))                                \
    X(cuDeviceGetAttribute, (int* value, int attribute, CUdevice device))                      \
    X(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                        \
    X(cuCtxGetCurrent, (CUcontext * context))                                                  \
    X(cuCtxGetDevice, (CUdevice * device))                                                     \
    X(cuCtxPushCurrent, (CUcontext context))                                                   \
    X(cuCtxPopCurrent, (CUcontext * context))                                                  \
    X(cuLibraryLoadData,                                                                       \
      (CUlibrary * library, const void* code, int* jit_options, void** jit_values,             \
       unsigned jit_count, int* options, void** values, unsigned count))                       \
    X(cuLibraryUnload, (CUlibrary library))                                                    \
    X(cuLibraryGetKernel, (CUkernel * kernel, CUlibrary library, const char* name))            \
    X(cuKernelSetAttribute, (int attribute, int value, CUkernel kernel, CUdevice device))      \
    X(cuKernelGetFunction, (CUfunction * function, CUkernel kernel))                           \
    X(cuLaunchKernel, (CUkernel kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,     \
                       unsigned block_x, unsigned block_y, unsigned block_z,                   \
                       unsigned shared_bytes, CUstream stream, void** params, void** extra))   \
    X(cuLaunchKernelEx,                                                                        \
      (const CUlaunchConfig* config, CUkernel kernel, void** params, void** extra))            \
    X(cuTensorMapEncodeTiled, (CUtensorMap * map, int data_type, unsigned rank, void* address, \
                               const std::uint64_t* dimensions, const std::uint64_t* strides,  \
                               const std::uint32_t* box, const std::uint32_t* element_strides, \
                               int interleave, int swizzle, int l2_promotion, int fill))       \
    X(cuMemAlloc, (CUdeviceptr * address, std::size_t bytes))                                  \
    X(cuMemFree, (CUdeviceptr address))                                                        \
    X(cuMemsetD8Async,                                                                         \
      (CUdeviceptr address, unsigned char value, std::size_t count, CUstream stream))          \
    X(cuStreamCreate, (CUstream * stream, unsigned flags))                                     \
    X(cuStreamDestroy, (CUstream stream))                                                      \
    X(cuStreamSynchronize, (CUstream stream))                                                  \
    X(cuStreamIsCapturing, (CUstream stream, int* status))                                     \
    X(cuStreamGetId, (CUstream stream, unsigned long long* id))                                \
    X(cuThreadExchangeStreamCaptureMode, (int* mode))

// Fails with the driver's name for an error.
[[noreturn]] void fail_of_driver(const char* function, CUresult error);

template <class Type>
struct DriverFunction;

template <class... Parameters>
struct DriverFunction<CUresult(Parameters...)> {
    const char* name;
    CUresult (*call)(Parameters...) = nullptr;

    void operator()(Parameters... given) const {
        const CUresult result = call(given...);
        if (result != kCudaSuccess) fail_of_driver(name, result);
    }
};

struct Driver {
#define FA_TUNE_MEMBER(name, parameters) DriverFunction<CUresult parameters> name{#name};
    FA_TUNE_DRIVER_FUNCTIONS(FA_TUNE_MEMBER)
#undef FA_TUNE_MEMBER
    // CUDA 12.4 and later; without it a kernel's code is loaded by its first launch.
    DriverFunction<CUresult(CUfunction function)> cuFuncLoad{"cuFuncLoad"};
};

// The driver, loaded and initialised by the first call.
const Driver& get_driver();

}  // namespace fa_tune::core
