// exported.h with exceptions, header only.
//
//     fa_tune::launch(problem, tensors, device, stream);
#pragma once

#include <cstddef>
#include <string>

#include "exported.h"
#include "fa_tune.hpp"

namespace fa_tune {
inline namespace FA_TUNE_EXPORT {

// The library's own table.
inline const fa_tune_table* exported() {
    const fa_tune_table* table = nullptr;
    check(fa_tune_exported(&table));
    return table;
}

// The kernel for a problem.
inline fa_tune_kernel* find(const fa_tune_problem& problem, int device = -1) {
    fa_tune_kernel* kernel = nullptr;
    check(fa_tune_find(exported(), &problem, device, &kernel));
    return kernel;
}

// Which config runs a problem, and why.
inline std::string why(const fa_tune_problem& problem, int device = -1) {
    char text[1024];
    check(fa_tune_why(exported(), &problem, device, text, sizeof text));
    return text;
}

// Device memory that a launch for a problem takes as `tensors.workspace`; mostly none.
inline std::size_t workspace_bytes(const fa_tune_problem& problem, int device = -1) {
    std::size_t bytes = 0;
    check(fa_tune_workspace_bytes(find(problem, device), &problem, device, &bytes));
    return bytes;
}

// Enqueues the kernel for a problem.
inline void launch(const fa_tune_problem& problem, const fa_tune_tensors& tensors, int device = -1,
                   void* stream = nullptr) {
    check(fa_tune_launch(find(problem, device), &problem, &tensors, device, stream));
}

// Loads every kernel that runs on the device, ahead of captures.
inline void prepare(int device = -1) { check(fa_tune_table_prepare(exported(), device)); }

}  // namespace FA_TUNE_EXPORT
}  // namespace fa_tune
