// The C ABI: statuses out, no exception ever.
#include "fa_tune.h"

#include <algorithm>
#include <cstddef>
#include <new>
#include <string>

#include "device.h"
#include "driver.h"
#include "kernel.h"
#include "table.h"

using namespace fa_tune::core;

namespace {

std::string& last_error() {
    thread_local std::string text;
    return text;
}

// Runs `body`, and keeps the text of a failure.
template <class Body>
fa_tune_status guarded(Body&& body) noexcept {
    try {
        try {
            body();
            return FA_TUNE_OK;
        } catch (const Failure& failure) {
            last_error() = failure.what();
            return failure.code;
        } catch (const std::bad_alloc&) {
            last_error() = "no host memory";
        }
    } catch (const std::bad_alloc&) {  // the text before stays
    }
    return FA_TUNE_NO_MEMORY;
}

// Refuses NULL for what must be given, as `names` has it.
template <class... Pointers>
void need(const char* names, Pointers... given) {
    if (((given == nullptr) || ...)) fail(FA_TUNE_INVALID, "%s is NULL", names);
}

const Device& device_or_current(int ordinal) {
    const Driver& driver = get_driver();
    if (ordinal >= 0) return get_device(driver, ordinal);
    CUcontext current = nullptr;
    driver.cuCtxGetCurrent(&current);
    CUdevice number = 0;
    if (current != nullptr) driver.cuCtxGetDevice(&number);
    return get_device(driver, number);
}

}  // namespace

extern "C" {

int fa_tune_abi_version(void) { return FA_TUNE_ABI_VERSION; }

const char* fa_tune_last_error(void) { return last_error().c_str(); }

fa_tune_status fa_tune_init(void) {
    return guarded([] { get_driver(); });
}

fa_tune_status fa_tune_kernel_create(const fa_tune_kernel_info* info, fa_tune_kernel** kernel) {
    return guarded([=] {
        need("info or kernel", info, kernel);
        *kernel = fa_tune_kernel::create(*info).release();
    });
}

fa_tune_status fa_tune_kernel_adopt(const fa_tune_kernel_info* info, void* const* functions,
                                    int device, int multiprocessors, fa_tune_kernel** kernel) {
    return guarded([=] {
        need("info or kernel", info, kernel);
        const int here = device_or_current(device).ordinal;
        *kernel = fa_tune_kernel::adopt(*info, functions, here, multiprocessors).release();
    });
}

void fa_tune_kernel_destroy(fa_tune_kernel* kernel) { delete kernel; }

const char* fa_tune_kernel_config(const fa_tune_kernel* kernel) {
    return kernel == nullptr ? "" : kernel->config().c_str();
}

const fa_tune_plan* fa_tune_kernel_plan(const fa_tune_kernel* kernel) {
    return kernel == nullptr ? nullptr : &kernel->plan();
}

fa_tune_status fa_tune_prepare(fa_tune_kernel* kernel, int device) {
    return guarded([=] {
        need("kernel", kernel);
        kernel->prepare(device);
    });
}

fa_tune_status fa_tune_workspace_bytes(const fa_tune_kernel* kernel, const fa_tune_problem* problem,
                                       int device, size_t* bytes) {
    return guarded([=] {
        need("kernel, problem or bytes", kernel, problem, bytes);
        // Most kernels need none, on whatever device.
        *bytes = kernel->has_workspace()
                     ? kernel->workspace_bytes(*problem, device_or_current(device))
                     : 0;
    });
}

fa_tune_status fa_tune_launch(fa_tune_kernel* kernel, const fa_tune_problem* problem,
                              const fa_tune_tensors* tensors, int device, void* stream) {
    return guarded([=] {
        need("kernel, problem or tensors", kernel, problem, tensors);
        kernel->launch(*problem, *tensors, device, static_cast<CUstream>(stream));
    });
}

fa_tune_status fa_tune_describe(const fa_tune_kernel* kernel, const fa_tune_problem* problem,
                                const fa_tune_tensors* tensors, const fa_tune_device_facts* device,
                                int launch, fa_tune_description* description) {
    return guarded([=] {
        need("kernel, problem, tensors, device or description", kernel, problem, tensors, device,
             description);
        *description = kernel->describe(*problem, *tensors, *device, launch);
    });
}

fa_tune_status fa_tune_table_create(const fa_tune_table_info* info, fa_tune_table** table) {
    return guarded([=] {
        need("info or table", info, table);
        *table = new fa_tune_table(*info);
    });
}

void fa_tune_table_destroy(fa_tune_table* table) { delete table; }

fa_tune_status fa_tune_find(const fa_tune_table* table, const fa_tune_problem* problem, int device,
                            fa_tune_kernel** kernel) {
    return guarded([=] {
        need("table, problem or kernel", table, problem, kernel);
        *kernel = table->find(*problem, device_or_current(device), nullptr);
    });
}

fa_tune_status fa_tune_find_config(const fa_tune_table* table, const char* config,
                                   const fa_tune_problem* problem, int device,
                                   fa_tune_kernel** kernel) {
    return guarded([=] {
        need("table, config, problem or kernel", table, config, problem, kernel);
        *kernel = table->find_config(config, *problem, device_or_current(device));
    });
}

fa_tune_status fa_tune_why(const fa_tune_table* table, const fa_tune_problem* problem, int device,
                           char* text, size_t size) {
    return guarded([=] {
        need("table, problem or text", table, problem, size == 0 ? nullptr : text);
        text[0] = '\0';
        std::string why;
        table->find(*problem, device_or_current(device), &why);
        why.copy(text, size - 1);
        text[std::min(why.size(), size - 1)] = '\0';
    });
}

fa_tune_status fa_tune_table_prepare(const fa_tune_table* table, int device) {
    return guarded([=] {
        need("table", table);
        table->prepare(device_or_current(device));
    });
}

}  // extern "C"
