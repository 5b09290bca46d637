// The C ABI: statuses out, no exception ever.
#include "fa_tune.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
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

// Runs `body`, which gives a Status, and keeps the text of a failure.
template <class Body>
fa_tune_status guarded(Body&& body) noexcept {
    try {
        Status status = body();
        if (!status.ok()) last_error() = std::move(status.text);
        return status.code;
    } catch (const std::bad_alloc&) {
        try {
            last_error() = "no host memory";
        } catch (...) {  // the text before stays
        }
        return FA_TUNE_NO_MEMORY;
    }
}

Status missing(const char* what) { return failure(FA_TUNE_INVALID, "%s is NULL", what); }

Status current_or(const Driver& driver, int ordinal, const Device** device) {
    if (ordinal >= 0) return get_device(driver, ordinal, device);
    CUcontext current = nullptr;
    Status status = driver.check(driver.cuCtxGetCurrent(&current), "cuCtxGetCurrent");
    if (!status.ok()) return status;
    CUdevice number = 0;
    if (current != nullptr) {
        status = driver.check(driver.cuCtxGetDevice(&number), "cuCtxGetDevice");
        if (!status.ok()) return status;
    }
    return get_device(driver, number, device);
}

template <class Found>
Status with_device(int ordinal, Found&& found) {
    const Driver* driver = nullptr;
    Status status = get_driver(&driver);
    if (!status.ok()) return status;
    const Device* device = nullptr;
    status = current_or(*driver, ordinal, &device);
    return status.ok() ? found(*device) : status;
}

}  // namespace

extern "C" {

int fa_tune_abi_version(void) { return FA_TUNE_ABI_VERSION; }

const char* fa_tune_last_error(void) { return last_error().c_str(); }

fa_tune_status fa_tune_init(void) {
    return guarded([] {
        const Driver* driver = nullptr;
        return get_driver(&driver);
    });
}

fa_tune_status fa_tune_kernel_create(const fa_tune_kernel_info* info, fa_tune_kernel** kernel) {
    return guarded([=] {
        if (info == nullptr || kernel == nullptr) return missing("info or kernel");
        std::unique_ptr<fa_tune_kernel> made;
        Status status = fa_tune_kernel::create(*info, &made);
        if (status.ok()) *kernel = made.release();
        return status;
    });
}

fa_tune_status fa_tune_kernel_adopt(const fa_tune_kernel_info* info, void* const* functions,
                                    int device, int multiprocessors, fa_tune_kernel** kernel) {
    return guarded([=] {
        if (info == nullptr || kernel == nullptr) return missing("info or kernel");
        return with_device(device, [=](const Device& here) {
            std::unique_ptr<fa_tune_kernel> made;
            Status status =
                fa_tune_kernel::adopt(*info, functions, here.ordinal, multiprocessors, &made);
            if (status.ok()) *kernel = made.release();
            return status;
        });
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
    return guarded([=] { return kernel == nullptr ? missing("kernel") : kernel->prepare(device); });
}

fa_tune_status fa_tune_workspace_bytes(const fa_tune_kernel* kernel, const fa_tune_problem* problem,
                                       int device, size_t* bytes) {
    return guarded([=] {
        if (kernel == nullptr || problem == nullptr || bytes == nullptr) {
            return missing("kernel, problem or bytes");
        }
        // Most kernels need none, on whatever device.
        if (!kernel->has_workspace()) {
            *bytes = 0;
            return Status{};
        }
        return with_device(device, [=](const Device& here) {
            return kernel->workspace_bytes(*problem, here, bytes);
        });
    });
}

fa_tune_status fa_tune_launch(fa_tune_kernel* kernel, const fa_tune_problem* problem,
                              const fa_tune_tensors* tensors, int device, void* stream) {
    return guarded([=] {
        if (kernel == nullptr || problem == nullptr || tensors == nullptr) {
            return missing("kernel, problem or tensors");
        }
        return kernel->launch(*problem, *tensors, device, static_cast<CUstream>(stream));
    });
}

fa_tune_status fa_tune_describe(const fa_tune_kernel* kernel, const fa_tune_problem* problem,
                                const fa_tune_tensors* tensors, const fa_tune_device_facts* device,
                                int launch, fa_tune_description* description) {
    return guarded([=] {
        if (kernel == nullptr || problem == nullptr || tensors == nullptr || device == nullptr ||
            description == nullptr) {
            return missing("kernel, problem, tensors, device or description");
        }
        return kernel->describe(*problem, *tensors, *device, launch, description);
    });
}

fa_tune_status fa_tune_table_create(const fa_tune_table_info* info, fa_tune_table** table) {
    return guarded([=] {
        if (info == nullptr || table == nullptr) return missing("info or table");
        std::unique_ptr<fa_tune_table> made;
        Status status = fa_tune_table::create(*info, &made);
        if (status.ok()) *table = made.release();
        return status;
    });
}

void fa_tune_table_destroy(fa_tune_table* table) { delete table; }

fa_tune_status fa_tune_find(const fa_tune_table* table, const fa_tune_problem* problem, int device,
                            fa_tune_kernel** kernel) {
    return guarded([=] {
        if (table == nullptr || problem == nullptr || kernel == nullptr) {
            return missing("table, problem or kernel");
        }
        return with_device(device, [=](const Device& here) {
            return table->find(*problem, here, kernel, nullptr);
        });
    });
}

fa_tune_status fa_tune_find_config(const fa_tune_table* table, const char* config,
                                   const fa_tune_problem* problem, int device,
                                   fa_tune_kernel** kernel) {
    return guarded([=] {
        if (table == nullptr || config == nullptr || problem == nullptr || kernel == nullptr) {
            return missing("table, config, problem or kernel");
        }
        return with_device(device, [=](const Device& here) {
            return table->find_config(config, *problem, here, kernel);
        });
    });
}

fa_tune_status fa_tune_why(const fa_tune_table* table, const fa_tune_problem* problem, int device,
                           char* text, size_t size) {
    return guarded([=] {
        if (table == nullptr || problem == nullptr || text == nullptr || size == 0) {
            return missing("table, problem or text");
        }
        return with_device(device, [=](const Device& here) {
            fa_tune_kernel* kernel = nullptr;
            std::string why;
            Status status = table->find(*problem, here, &kernel, &why);
            const std::size_t length = std::min(why.size(), size - 1);
            std::memcpy(text, why.data(), length);
            text[length] = '\0';
            return status;
        });
    });
}

fa_tune_status fa_tune_table_prepare(const fa_tune_table* table, int device) {
    return guarded([=] {
        if (table == nullptr) return missing("table");
        return with_device(device, [=](const Device& here) { return table->prepare(here); });
    });
}

}  // extern "C"
