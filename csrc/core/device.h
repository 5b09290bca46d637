// Devices and contexts: what is known of each, and which one is current.
#pragma once

#include <cstdint>
#include <string>

#include "driver.h"
#include "slots.h"

namespace fa_tune::core {

constexpr int kMaxDevices = 64;

struct Device {
    int ordinal;
    CUdevice handle;
    std::string name;
    int compute_capability;  // ten times the major version and the minor
    int multiprocessors;
    std::int64_t l2_bytes;
};

// A device by its number; asked for once, then kept.
const Device& get_device(const Driver& driver, int ordinal);

// What the core keeps for a CUDA context.  Kept until the process ends.
struct Context {
    CUcontext handle;
    const Device* device;
    CounterSlots slots;
    Context* next;
};

// Makes a device current while it lives, if it is not.
class DeviceGuard {
  public:
    DeviceGuard() = default;
    DeviceGuard(const DeviceGuard&) = delete;
    DeviceGuard& operator=(const DeviceGuard&) = delete;
    ~DeviceGuard();

    // `ordinal` -1: the current device, or 0 if there is none.  Gives the context that is current
    // from then on: the caller's if it is of that device, else the primary one.
    Context& enter(const Driver& driver, int ordinal);

  private:
    const Driver* driver_ = nullptr;  // null: nothing to undo
};

// Allows this thread, while it lives, what a capture by any thread would forbid: memory that is not
// part of the graph.
class RelaxedCapture {
  public:
    explicit RelaxedCapture(const Driver& driver) : driver_(driver) {
        driver_.cuThreadExchangeStreamCaptureMode.call(&mode_);
    }
    RelaxedCapture(const RelaxedCapture&) = delete;
    RelaxedCapture& operator=(const RelaxedCapture&) = delete;
    ~RelaxedCapture() { driver_.cuThreadExchangeStreamCaptureMode.call(&mode_); }

  private:
    const Driver& driver_;
    int mode_ = kCaptureModeRelaxed;
};

}  // namespace fa_tune::core
