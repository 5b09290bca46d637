#include "slots.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

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
CUdeviceptr zeros(const Driver& driver, std::size_t bytes) {
    const RelaxedCapture relaxed(driver);
    CUdeviceptr memory = 0;
    driver.cuMemAlloc(&memory, bytes);
    // A stream of its own: one that waits for others could be drawn into a capture.
    CUstream stream = nullptr;
    try {
        driver.cuStreamCreate(&stream, kStreamNonBlocking);
        driver.cuMemsetD8Async(memory, 0, bytes, stream);
        driver.cuStreamSynchronize(stream);
    } catch (...) {
        if (stream != nullptr) driver.cuStreamDestroy.call(stream);
        driver.cuMemFree.call(memory);
        throw;
    }
    driver.cuStreamDestroy.call(stream);
    return memory;
}

}  // namespace

CUdeviceptr CounterSlots::of_stream(const Driver& driver, CUstream stream) {
    // Handles are used again once a stream is destroyed, whose work may still be under way.
    unsigned long long number = 0;
    driver.cuStreamGetId(stream, &number);
    const std::uint64_t owner = number + 1;
    Hint& hint = hints[owner % kHints];
    if (hint.slots != this || hint.owner != owner || !take(hint.index, owner)) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto found = indices_.find(owner);
        const std::size_t index = found != indices_.end() ? found->second : assign(driver, owner);
        (void)take(index, owner);
        hint = {this, owner, index};
    }
    return address(hint.index);
}

// Either this sees that the slot is another's now, or take_over sees that it is in use.
bool CounterSlots::take(std::size_t index, std::uint64_t owner) {
    Slot& taken = slot(index);
    taken.last_used.store(streams_.load(std::memory_order_relaxed), std::memory_order_seq_cst);
    return taken.owner.load(std::memory_order_seq_cst) == owner;
}

std::size_t CounterSlots::assign(const Driver& driver, std::uint64_t owner) {
    streams_.fetch_add(1, std::memory_order_relaxed);
    const bool full = assigned_ % kBlockSlots == 0;  // all blocks that there are
    std::size_t index = 0;
    if (!full || !take_over(&index)) {
        if (full) add_block(driver);
        index = assigned_++;
    }
    slot(index).owner.store(owner);
    indices_[owner] = index;
    return index;
}

void CounterSlots::add_block(const Driver& driver) {
    const std::size_t number = assigned_ / kBlockSlots;
    if (number == kMaxBlocks) {
        fail(FA_TUNE_DRIVER_ERROR, "launches on more than %zu streams at a time",
             kMaxBlocks * kBlockSlots);
    }
    auto block = std::make_unique<Block>();
    block->memory = zeros(driver, kBlockSlots * kSlotBytes);
    blocks_[number].store(block.release(), std::memory_order_release);
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

CUdeviceptr CounterSlots::of_captured_launch(const Driver& driver) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (captured_left_ == 0) {
        captured_ = zeros(driver, kBlockSlots * kSlotBytes);
        captured_left_ = kBlockSlots;
    }
    --captured_left_;
    return std::exchange(captured_, captured_ + kSlotBytes);
}

}  // namespace fa_tune::core
