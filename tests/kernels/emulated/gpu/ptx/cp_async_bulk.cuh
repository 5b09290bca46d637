// On the host: kernels/ptx/cp_async_bulk.cuh.
#pragma once

#include "ptx/mbarrier.cuh"

namespace fa_tune::ptx {

// What tests/kernels/emulated/emulation.py writes in place of the driver.
struct alignas(64) TensorMap {
    std::uint64_t address;
    std::uint64_t lengths[5];  // innermost first
    std::uint64_t strides[4];  // bytes, of all dimensions but the innermost
    std::uint32_t box[5];
    std::uint32_t unused[7];
};
static_assert(sizeof(TensorMap) == 128);

constexpr unsigned long long kEvictNormal = 0, kEvictFirst = 1, kEvictLast = 2;

inline void prefetch_tensormap(const TensorMap&) {}

// Row by row, in panels of 64 elements whose 16-byte chunks are swizzled: `visit` gets the address
// of a chunk of a box in shared memory, where it lies in the tensor (null: outside), and whether
// all of it does.
template <class Visit>
inline void for_each_chunk(const TensorMap& map, unsigned at, const int (&c)[5], Visit visit) {
    constexpr unsigned kChunk = 16, kElement = 2;
    if (at % 128 != 0 || map.box[0] * kElement != 128) {
        emulator::fail("a box that is not of 128-byte rows");
    }
    for (unsigned i = 0; i < map.box[1] * map.box[2] * map.box[3] * map.box[4]; ++i) {
        const long long row[4] = {
            c[1] + static_cast<long long>(i % map.box[1]),
            c[2] + static_cast<long long>(i / map.box[1] % map.box[2]),
            c[3] + static_cast<long long>(i / map.box[1] / map.box[2] % map.box[3]),
            c[4] + static_cast<long long>(i / map.box[1] / map.box[2] / map.box[3])};
        bool inside = true;
        std::uint64_t offset = 0;
        for (int d = 0; d < 4; ++d) {
            inside = inside && row[d] >= 0 && row[d] < static_cast<long long>(map.lengths[d + 1]);
            offset += row[d] * map.strides[d];
        }
        for (unsigned chunk = 0; chunk < 128 / kChunk; ++chunk) {
            const long long column = c[0] + chunk * (kChunk / kElement);
            const bool there =
                inside && column + kChunk / kElement <= map.lengths[0] && column >= 0;
            const unsigned linear = at + 128 * i + kChunk * chunk;
            visit(linear ^ (linear >> 7 & 7) << 4,
                  there ? reinterpret_cast<std::uint8_t*>(map.address + offset + column * kElement)
                        : nullptr);
        }
    }
}

inline unsigned box_bytes(const TensorMap& map) {
    return 2 * map.box[0] * map.box[1] * map.box[2] * map.box[3] * map.box[4];
}

// To the same place of each CTA in `ctas`, by rank.
inline void load_box(unsigned destination, const TensorMap& map, unsigned barrier, unsigned ctas,
                     const int (&c)[5]) {
    for (auto& cta : emulator::current->cta->cluster->ctas) {
        if (!(ctas >> cta->rank & 1)) continue;
        emulator::Cta* const to = cta.get();
        if (to->live == 0) emulator::fail("a copy to a CTA that has returned");
        if (destination + box_bytes(map) > to->memory.size()) {
            emulator::fail("a box beyond the shared memory");
        }
        for (unsigned place = destination / 8; place < (destination + box_bytes(map)) / 8;
             ++place) {
            if (to->barriers[place].ready) emulator::fail("a box over the place of a barrier");
        }
        emulator::need_fenced(*to, destination, box_bytes(map));
        // NaN while it is under way.
        std::memset(to->memory.data() + destination, 0xff, box_bytes(map));
        std::memset(to->fenced.data() + destination, 0xff, box_bytes(map));
        emulator::start_copy(
            [=, c0 = c[0], c1 = c[1], c2 = c[2], c3 = c[3], c4 = c[4]] {
                for_each_chunk(map, destination, {c0, c1, c2, c3, c4},
                               [&](unsigned at, const std::uint8_t* from) {
                                   std::uint8_t chunk[16] = {};
                                   if (from) std::memcpy(chunk, from, 16);
                                   std::memcpy(to->memory.data() + at, chunk, 16);
                                   std::memcpy(to->fenced.data() + at, chunk, 16);
                               });
                emulator::complete(to->barriers[barrier / 8], box_bytes(map));
            },
            nullptr, to);
    }
}

inline void cp_async_bulk_tensor_5d_load(unsigned destination, const TensorMap& map,
                                         unsigned barrier, unsigned long long, int c0, int c1,
                                         int c2, int c3, int c4) {
    load_box(destination, map, barrier, 1u << emulator::current->cta->rank, {c0, c1, c2, c3, c4});
}

inline void cp_async_bulk_tensor_4d_load(unsigned destination, const TensorMap& map,
                                         unsigned barrier, unsigned long long policy, int c0,
                                         int c1, int c2, int c3) {
    cp_async_bulk_tensor_5d_load(destination, map, barrier, policy, c0, c1, c2, c3, 0);
}

inline void cp_async_bulk_tensor_5d_store(const TensorMap& map, unsigned source, int c0, int c1,
                                          int c2, int c3, int c4) {
    emulator::Cta* const from = emulator::current->cta;
    if (source + box_bytes(map) > from->fenced.size()) {
        emulator::fail("a box beyond the shared memory");
    }
    emulator::start_copy(
        [=] {
            for_each_chunk(map, source, {c0, c1, c2, c3, c4}, [&](unsigned at, std::uint8_t* to) {
                if (to) std::memcpy(to, from->fenced.data() + at, 16);
            });
        },
        from, nullptr, emulator::current);
}

inline void cp_async_bulk_tensor_4d_store(const TensorMap& map, unsigned source, int c0, int c1,
                                          int c2, int c3) {
    cp_async_bulk_tensor_5d_store(map, source, c0, c1, c2, c3, 0);
}

inline void cp_async_bulk_commit_group() { emulator::current->open_stores = 0; }

inline void cp_async_bulk_wait_group_read() {
    emulator::Thread& mine = *emulator::current;
    emulator::now_at("cp.async.bulk.wait_group");
    if (mine.open_stores > 0) emulator::fail("waits for a bulk store that is in no group");
    emulator::wait_until("cp.async.bulk.wait_group", mine.waiters,
                         [&] { return mine.stores == 0; });
}

inline void fence_proxy_async_shared() { emulator::proxy_fence(); }

}  // namespace fa_tune::ptx
