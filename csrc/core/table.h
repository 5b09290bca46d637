// Problem -> kernel: what was chosen for it, else for the nearest workload, else a default.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "device.h"
#include "kernel.h"

namespace fa_tune::core {

// Of a problem, as powers of two.
struct Sizes {
    double seq_len_q;
    double seq_len_kv;
    double work;        // batch times heads
    double group;       // heads that share a kv head
    double tiles;       // of at most 64 rows that share a head of K and V
    double keys;        // that some query sees
    double rows;        // of a tile, 16 at least
    bool decode_shape;  // see is_decode_shape
};

}  // namespace fa_tune::core

// The C ABI's opaque type.
struct fa_tune_table {
  public:
    explicit fa_tune_table(const fa_tune_table_info& info);
    fa_tune_table(const fa_tune_table&) = delete;
    fa_tune_table& operator=(const fa_tune_table&) = delete;
    ~fa_tune_table();

    // `why`, if not null, is told.
    fa_tune_kernel* find(const fa_tune_problem& problem, const fa_tune::core::Device& device,
                         std::string* why) const;
    fa_tune_kernel* find_config(const char* config, const fa_tune_problem& problem,
                                const fa_tune::core::Device& device) const;

    // Loads every kernel that runs on a device.
    void prepare(const fa_tune::core::Device& device) const;

  private:
    struct Entry {
        std::string gpu;
        fa_tune_problem problem;
        fa_tune::core::Sizes sizes;
        std::string config;
    };
    struct SizedDefault {
        int compute_capability;
        fa_tune_problem problem;
        fa_tune::core::Sizes sizes;
        std::string config;
    };
    // A problem that was asked for, and what was found.
    struct Found {
        fa_tune_problem problem;
        int device;
        fa_tune_kernel* kernel;
    };
    static constexpr std::size_t kRemembered = 4096;

    // The name of a config that has a kernel; refuses others.
    const char* config_of(const char* config, const char* where) const;
    // Of a reduced problem; remembered.  Null: nothing computes it.
    fa_tune_kernel* look_up(const fa_tune_problem& asked, const fa_tune::core::Device& device,
                            std::string* why) const;
    fa_tune_kernel* choose(const fa_tune_problem& problem, const fa_tune::core::Device& device,
                           std::string* why) const;
    fa_tune_kernel* default_for(const fa_tune_problem& problem, const fa_tune::core::Device& device,
                                std::string* why) const;
    fa_tune_kernel* sized_default_for(const fa_tune_problem& problem,
                                      const fa_tune::core::Device& device, std::string* why) const;
    fa_tune_kernel* kernel_of(const std::string& config, const fa_tune_problem& problem,
                              const fa_tune::core::Device& device) const;
    std::string kinds(const char* config) const;

    std::vector<std::unique_ptr<fa_tune_kernel>> kernels_;
    std::unordered_map<std::string, std::vector<fa_tune_kernel*>> by_config_;
    std::vector<Entry> entries_;
    std::vector<SizedDefault> sized_defaults_;
    std::vector<std::string> defaults_;
    // Written once each, so that readers need no lock.
    mutable std::array<std::atomic<const Found*>, kRemembered> found_{};
};
