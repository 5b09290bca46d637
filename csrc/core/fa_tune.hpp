// The C ABI of fa_tune.h with owners and exceptions, header only.
//
//     fa_tune::Table table(info);
//     table.launch(problem, tensors, device, stream);
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>

#include "fa_tune.h"

namespace fa_tune {

// What a function of the C ABI refused or failed at.
class Error : public std::runtime_error {
  public:
    Error(fa_tune_status status, const std::string& text)
        : std::runtime_error(text), status_(status) {}
    fa_tune_status status() const { return status_; }

  private:
    fa_tune_status status_;
};

inline void check(fa_tune_status status) {
    if (status != FA_TUNE_OK) throw Error(status, fa_tune_last_error());
}

// Whether the library is of this header's version; throws if not.
inline void check_version() {
    if (fa_tune_abi_version() == FA_TUNE_ABI_VERSION) return;
    throw Error(FA_TUNE_INVALID, "the library has version " +
                                     std::to_string(fa_tune_abi_version()) + " of the ABI, not " +
                                     std::to_string(FA_TUNE_ABI_VERSION));
}

// Throws where there is no driver.
inline void init() {
    check_version();
    check(fa_tune_init());
}

// Owns a kernel.
class Kernel {
  public:
    explicit Kernel(const fa_tune_kernel_info& info) {
        check(fa_tune_kernel_create(&info, &kernel_));
    }
    Kernel(Kernel&& other) noexcept : kernel_(std::exchange(other.kernel_, nullptr)) {}
    Kernel& operator=(Kernel&& other) noexcept {
        std::swap(kernel_, other.kernel_);
        return *this;
    }
    ~Kernel() { fa_tune_kernel_destroy(kernel_); }

    fa_tune_kernel* get() const { return kernel_; }
    void prepare(int device = -1) { check(fa_tune_prepare(kernel_, device)); }
    std::size_t workspace_bytes(const fa_tune_problem& problem, int device = -1) const {
        std::size_t bytes = 0;
        check(fa_tune_workspace_bytes(kernel_, &problem, device, &bytes));
        return bytes;
    }
    void launch(const fa_tune_problem& problem, const fa_tune_tensors& tensors, int device = -1,
                void* stream = nullptr) {
        check(fa_tune_launch(kernel_, &problem, &tensors, device, stream));
    }

  private:
    fa_tune_kernel* kernel_ = nullptr;
};

// Owns a table and its kernels.
class Table {
  public:
    explicit Table(const fa_tune_table_info& info) { check(fa_tune_table_create(&info, &table_)); }
    Table(Table&& other) noexcept : table_(std::exchange(other.table_, nullptr)) {}
    Table& operator=(Table&& other) noexcept {
        std::swap(table_, other.table_);
        return *this;
    }
    ~Table() { fa_tune_table_destroy(table_); }

    fa_tune_table* get() const { return table_; }

    // The kernel for a problem, of `config` if it is not null.
    fa_tune_kernel* find(const fa_tune_problem& problem, int device = -1,
                         const char* config = nullptr) const {
        fa_tune_kernel* kernel = nullptr;
        check(config == nullptr ? fa_tune_find(table_, &problem, device, &kernel)
                                : fa_tune_find_config(table_, config, &problem, device, &kernel));
        return kernel;
    }

    // Which config runs a problem, and why.
    std::string why(const fa_tune_problem& problem, int device = -1) const {
        char text[1024];
        check(fa_tune_why(table_, &problem, device, text, sizeof text));
        return text;
    }

    // Enqueues the kernel for a problem.
    void launch(const fa_tune_problem& problem, const fa_tune_tensors& tensors, int device = -1,
                void* stream = nullptr) const {
        check(fa_tune_launch(find(problem, device), &problem, &tensors, device, stream));
    }

    // Loads every kernel that runs on the device, ahead of captures.
    void prepare(int device = -1) const { check(fa_tune_table_prepare(table_, device)); }

  private:
    fa_tune_table* table_ = nullptr;
};

}  // namespace fa_tune
