// A compiled variant: its plan, its binary, and where it is loaded.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device.h"
#include "driver.h"
#include "launch.h"
#include "status.h"

// The C ABI's opaque type.
struct fa_tune_kernel {
  public:
    static std::unique_ptr<fa_tune_kernel> create(const fa_tune_kernel_info& info);
    // Of functions that are loaded on a device.
    static std::unique_ptr<fa_tune_kernel> adopt(const fa_tune_kernel_info& info,
                                                 void* const* functions, int device,
                                                 int multiprocessors);
    fa_tune_kernel(const fa_tune_kernel&) = delete;
    fa_tune_kernel& operator=(const fa_tune_kernel&) = delete;
    ~fa_tune_kernel();

    const std::string& config() const { return config_; }
    const fa_tune_plan& plan() const { return plan_; }
    // Query rows of a tile.
    std::int64_t tile_rows() const { return launches_.front().plan.tile_rows; }

    void prepare(int device);
    bool has_workspace() const;
    std::size_t workspace_bytes(const fa_tune_problem& problem,
                                const fa_tune::core::Device& device) const;
    fa_tune_description describe(const fa_tune_problem& problem, const fa_tune_tensors& tensors,
                                 const fa_tune_device_facts& device, int launch) const;
    void launch(const fa_tune_problem& problem, const fa_tune_tensors& tensors, int device,
                fa_tune::core::CUstream stream);
    // On a problem that `launch` has taken before.
    void launch_again(const fa_tune_problem& problem, const fa_tune_tensors& tensors, int device,
                      fa_tune::core::CUstream stream);

  private:
    // With its config and plans; the rest is of who makes it.
    explicit fa_tune_kernel(const fa_tune_kernel_info& info);

    void check_call(const fa_tune_problem& problem, const fa_tune_tensors& tensors) const;
    // One launch, with counters of its stream or of its capture.
    void enqueue(const fa_tune::core::Driver& driver, std::size_t launch,
                 const fa_tune::core::Call& call, fa_tune::core::Context& context,
                 fa_tune::core::CUstream stream, bool capturing);
    std::int64_t multiprocessors_of(const fa_tune::core::Device& device) const {
        return multiprocessors_ > 0 ? multiprocessors_ : device.multiprocessors;
    }
    bool is_ready(const fa_tune::core::Device& device) const {
        return ((ready_.load(std::memory_order_acquire) >> device.ordinal) & 1) != 0;
    }
    // By a device's current context.
    void make_ready(const fa_tune::core::Driver& driver, const fa_tune::core::Device& device);
    void load(const fa_tune::core::Driver& driver, const fa_tune::core::Device& device);

    std::string config_;
    fa_tune_plan plan_{};
    std::vector<fa_tune::core::Launchable> launches_;
    std::vector<std::string> symbols_;
    const void* image_ = nullptr;  // null: adopted
    // Of an adopted kernel: 0: the device's; 0: none yet, kept until the process ends.
    int multiprocessors_ = 0;
    fa_tune::core::CUdeviceptr counters_ = 0;

    std::mutex mutex_;  // of loading
    fa_tune::core::CUlibrary library_ = nullptr;
    std::vector<fa_tune::core::CUkernel> kernels_;  // of the launches; fixed once a bit is set
    std::atomic<std::uint64_t> ready_{0};           // a bit for each device
};
