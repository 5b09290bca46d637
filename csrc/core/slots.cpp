#include "slots.h"

#include <cstddef>
#include <cstdint>
#include <memory>

#include "device.h"

namespace fa_tune::core {

namespace {

// Where this thread found the slots of streams; a wrong hint is found out.
struct Hint {
    const CounterSlots* slots;
    std::uint64_t owner;
    std::size_t index;
};
constexpr std::size_t kHints = 64;
thread_local Hint hints[kHints];

// Memory of zeros, of the current context.
Status zeros(const Driver& driver, std::size_t bytes, CUdeviceptr* memory) {
    const RelaxedCapture relaxed(driver);
    Status status = driver.check(driver.cuMemAlloc(memory, bytes), "cuMemAlloc");
    if (!status.ok()) return status;
    // A stream of its own: one that waits for others could be drawn into a capture.
    CUstream stream = nullptr;
    status = driver.check(driver.cuStreamCreate(&stream, kStreamNonBlocking), "cuStreamCreate");
    if (status.ok()) {
        status = driver.check(driver.cuMemsetD8Async(*memory, 0, bytes, stream), "cuMemsetD8Async");
        if (status.ok()) {
            status = driver.check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
        }
        driver.cuStreamDestroy(stream);
    }
    if (!status.ok()) driver.cuMemFree(*memory);
    return status;
}

}  // namespace

Status CounterSlots::of_stream(const Driver& driver, CUstream stream, CUdeviceptr* slot_address) {
    // Handles are used again once a stream is destroyed, whose work may still be under way.
    unsigned long long number = 0;
    Status status = driver.check(driver.cuStreamGetId(stream, &number), "cuStreamGetId");
    if (!status.ok()) return status;
    const std::uint64_t owner = number + 1;
    Hint& hint = hints[owner % kHints];
    if (hint.slots != this || hint.owner != owner || !take(hint.index, owner)) {
        const std::lock_guard<std::mutex> lock(mutex_);
        std::size_t index = 0;
        const auto found = indices_.find(owner);
        if (found != indices_.end()) {
            index = found->second;
        } else {
            status = assign(driver, owner, &index);
            if (!status.ok()) return status;
        }
        (void)take(index, owner);
        hint = {this, owner, index};
    }
    *slot_address = address(hint.index);
    return {};
}

// Either this sees that the slot is another's now, or take_over sees that it is in use.
bool CounterSlots::take(std::size_t index, std::uint64_t owner) {
    Slot& taken = slot(index);
    taken.last_used.store(streams_.load(std::memory_order_relaxed), std::memory_order_seq_cst);
    return taken.owner.load(std::memory_order_seq_cst) == owner;
}

Status CounterSlots::assign(const Driver& driver, std::uint64_t owner, std::size_t* index) {
    streams_.fetch_add(1, std::memory_order_relaxed);
    const bool full = assigned_ % kBlockSlots == 0;  // all blocks that there are
    if (!full || !take_over(index)) {
        if (full) {
            Status status = add_block(driver);
            if (!status.ok()) return status;
        }
        *index = assigned_++;
    }
    slot(*index).owner.store(owner);
    indices_[owner] = *index;
    return {};
}

Status CounterSlots::add_block(const Driver& driver) {
    const std::size_t number = assigned_ / kBlockSlots;
    if (number == kMaxBlocks) {
        return failure(FA_TUNE_DRIVER_ERROR, "launches on more than %zu streams at a time",
                       kMaxBlocks * kBlockSlots);
    }
    auto block = std::make_unique<Block>();
    Status status = zeros(driver, kBlockSlots * kSlotBytes, &block->memory);
    if (status.ok()) blocks_[number].store(block.release(), std::memory_order_release);
    return status;
}

// The slot of a stream that has launched nothing for long.
bool CounterSlots::take_over(std::size_t* index) {
    const std::uint64_t now = streams_.load(std::memory_order_relaxed);
    for (std::size_t tried = 0; tried < assigned_; ++tried) {
        const std::size_t i = next_taken_over_++ % assigned_;  // those after it are older
        Slot& candidate = slot(i);
        const auto forgotten = [&] { return candidate.last_used.load() + kForgottenAfter < now; };
        if (!forgotten()) continue;
        const std::uint64_t former = candidate.owner.exchange(0);
        if (forgotten()) {
            indices_.erase(former);
            *index = i;
            return true;
        }
        candidate.owner.store(former);  // it has come back
    }
    return false;
}

Status CounterSlots::of_captured_launch(const Driver& driver, CUdeviceptr* slot_address) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (captured_left_ == 0) {
        Status status = zeros(driver, kBlockSlots * kSlotBytes, &captured_);
        if (!status.ok()) return status;
        captured_left_ = kBlockSlots;
    }
    *slot_address = captured_;
    captured_ += kSlotBytes;
    --captured_left_;
    return {};
}

}  // namespace fa_tune::core
