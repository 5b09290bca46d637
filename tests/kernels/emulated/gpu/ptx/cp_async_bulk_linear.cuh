// On the host: kernels/ptx/cp_async_bulk_linear.cuh.
#pragma once

#include "ptx/mbarrier.cuh"

namespace fa_tune::ptx {

inline void cp_async_bulk_load(unsigned destination, const void* source, int bytes,
                               unsigned barrier) {
    emulator::Cta* const to = emulator::current->cta;
    if (destination % 16 || bytes % 16 || reinterpret_cast<std::uintptr_t>(source) % 16) {
        emulator::fail("a bulk copy of no multiples of 16 bytes");
    }
    if (destination + bytes > to->memory.size()) emulator::fail("a copy beyond the shared memory");
    for (unsigned place = destination / 8; place < (destination + bytes) / 8; ++place) {
        if (to->barriers[place].ready) emulator::fail("a copy over the place of a barrier");
    }
    emulator::need_fenced(*to, destination, bytes);
    // NaN while it is under way.
    std::memset(to->memory.data() + destination, 0xff, bytes);
    std::memset(to->fenced.data() + destination, 0xff, bytes);
    emulator::start_copy(
        [=] {
            std::memcpy(to->memory.data() + destination, source, bytes);
            std::memcpy(to->fenced.data() + destination, source, bytes);
            emulator::complete(to->barriers[barrier / 8], bytes);
        },
        nullptr, to);
}

inline void fence_proxy_async_global() {}

}  // namespace fa_tune::ptx
