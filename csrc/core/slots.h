// Device memory for counters.
//
// A kernel counts in global memory which tile comes next, or which parts of one are done.  It finds
// zeros and leaves zeros, so that launches that follow each other may share a slot, and launches
// that run at the same time must not.  So a slot belongs to a stream; a captured launch, which runs
// whenever its graph does, has one of its own for ever.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "driver.h"

namespace fa_tune::core {

class CounterSlots {
  public:
    static constexpr std::size_t kSlotBytes = 4096;  // whole cache lines of L2
    static constexpr std::size_t kBlockSlots = 1024;
    static constexpr std::size_t kMaxBlocks = 64;
    // A stream that has launched nothing while so many others were new gives up its slot.
    static constexpr std::uint64_t kForgottenAfter = 4096;

    // The slot of a stream of the current context.  Takes no lock but for a new stream, or one that
    // this thread has not used lately.
    CUdeviceptr of_stream(const Driver& driver, CUstream stream);

    // A slot that nobody else gets.
    CUdeviceptr of_captured_launch(const Driver& driver);

  private:
    struct Slot {
        std::atomic<std::uint64_t> owner{0};      // the stream's number plus 1; 0: nobody's
        std::atomic<std::uint64_t> last_used{0};  // how many streams there had been then
    };
    struct Block {
        CUdeviceptr memory = 0;
        std::array<Slot, kBlockSlots> slots;
    };

    Slot& slot(std::size_t index) {
        return blocks_[index / kBlockSlots]
            .load(std::memory_order_acquire)
            ->slots[index % kBlockSlots];
    }
    CUdeviceptr address(std::size_t index) const {
        return blocks_[index / kBlockSlots].load(std::memory_order_acquire)->memory +
               index % kBlockSlots * kSlotBytes;
    }
    bool take(std::size_t index, std::uint64_t owner);
    std::size_t assign(const Driver& driver, std::uint64_t owner);
    void add_block(const Driver& driver);
    bool take_over(std::size_t* index);

    std::mutex mutex_;
    std::array<std::atomic<Block*>, kMaxBlocks> blocks_{};
    std::size_t assigned_ = 0;  // slots that were ever a stream's
    std::size_t next_taken_over_ = 0;
    std::unordered_map<std::uint64_t, std::size_t> indices_;  // owner -> slot
    std::atomic<std::uint64_t> streams_{0};                   // that there have been
    CUdeviceptr captured_ = 0;                                // the rest of a block
    std::size_t captured_left_ = 0;
};

}  // namespace fa_tune::core
