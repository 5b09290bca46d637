// On the host: kernels/ptx/cp_async.cuh.  A copy lands at once or when it is waited for; one of no
// bytes has a legal address, too.
#pragma once

namespace fa_tune::ptx {

template <bool = true>
inline void cp_async_cg_16_zfill(unsigned dst, const void* src, int bytes) {
    std::uint8_t* const to = emulator::ordinary(dst, 16);
    (void)*static_cast<const volatile std::uint8_t*>(src);
    const auto copy = [=] {
        std::memset(to, 0, 16);
        std::memcpy(to, src, bytes);
    };
    if (emulator::early()) {
        copy();
    } else {
        std::memset(to, 0xff, 16);  // NaN while it is under way
        emulator::current->copies.back().push_back(copy);
    }
}

template <bool = true>
inline void cp_async_cg_16(unsigned dst, const void* src) {
    cp_async_cg_16_zfill(dst, src, 16);
}

inline void cp_async_commit_group() { emulator::current->copies.emplace_back(); }

template <int kPending>
inline void cp_async_wait_group() {
    auto& groups = emulator::current->copies;  // the last one is open
    while (groups.size() > kPending + 1) {
        for (const auto& copy : groups.front()) copy();
        groups.erase(groups.begin());
    }
}

}  // namespace fa_tune::ptx
