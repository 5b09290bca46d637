// Shared memory, and where threads wait for each other.  See machine.h.
#include <cstring>

#include "machine.h"

namespace emulator {

Cta& cta_of(unsigned address) {
    const unsigned rank = address >> 24;
    if (rank == 0) return *current->cta;
    if (rank > current->cta->cluster->ctas.size()) fail("an address of no CTA of the cluster");
    Cta& cta = *current->cta->cluster->ctas[rank - 1];
    if (cta.live == 0) fail("an address of a CTA that has returned");
    return cta;
}

unsigned in_cta(unsigned address, unsigned rank) {
    return (address & 0xffffffu) | (rank + 1) << 24;
}

std::uint8_t* ordinary(unsigned address, unsigned bytes) {
    Cta& cta = cta_of(address);
    address &= 0xffffffu;
    if (address % bytes || address + bytes > cta.memory.size()) {
        fail("access of " + std::to_string(bytes) + " bytes at shared address " +
             std::to_string(address));
    }
    for (unsigned at = address / 8; at <= (address + bytes - 1) / 8; ++at) {
        if (cta.barriers[at].ready) fail("access to the place of a barrier");
    }
    return cta.memory.data() + address;
}

namespace {

constexpr unsigned kChunk = 16;

// The chunks of some bytes: `visit` gets the count of unfenced writes of each.
template <class Counts, class Visit>
void for_chunks(Counts& counts, unsigned address, unsigned bytes, Visit visit) {
    for (unsigned at = address / kChunk; at <= (address + bytes - 1) / kChunk; ++at) {
        visit(counts[at]);
    }
}

}  // namespace

void wrote(unsigned address, unsigned bytes) {
    ordinary(address, bytes);  // for its checks
    current->unfenced.emplace_back(address, bytes);
    for_chunks(current->cta->unfenced, address, bytes, [](unsigned& count) { ++count; });
}

void proxy_fence() {
    Cta& cta = *current->cta;
    for (const auto& [address, bytes] : current->unfenced) {
        std::memcpy(cta.fenced.data() + address, cta.memory.data() + address, bytes);
        for_chunks(cta.unfenced, address, bytes, [](unsigned& count) { --count; });
    }
    current->unfenced.clear();
}

void need_fenced(const Cta& cta, unsigned address, unsigned bytes) {
    for_chunks(cta.unfenced, address, bytes, [](unsigned count) {
        if (count > 0) fail("a bulk copy to where writes came that no proxy fence has followed");
    });
}

// --- barriers -----------------------------------------------------------------------------

Barrier& barrier_at(unsigned address) {
    Cta& cta = cta_of(address);
    address &= 0xffffffu;
    if (address % 8 || address + 8 > cta.memory.size()) fail("a barrier at no such address");
    return cta.barriers[address / 8];
}

namespace {

void advance_if_complete(Barrier& barrier) {
    if (barrier.pending == 0 && barrier.bytes == 0) {
        ++barrier.phase;
        barrier.pending = barrier.count;
        wake(barrier.waiters);
    }
}

}  // namespace

void arrive(unsigned address, long long bytes) {
    now_at("an arrival at mbarrier", address);
    point();
    Barrier& barrier = barrier_at(address);
    if (!barrier.ready) fail("the barrier is not initialised");
    if (barrier.pending == 0) fail("more arrivals in a phase than the barrier counts");
    --barrier.pending;
    barrier.bytes += bytes;
    advance_if_complete(barrier);
    point();
}

void complete(Barrier& barrier, long long bytes) {
    if (!barrier.ready) fail("bytes arrive at a barrier that is not initialised");
    barrier.bytes -= bytes;  // below 0 where another CTA's copy is here before the own arrival
    advance_if_complete(barrier);
}

namespace {

void meet_at(Meeting& meeting, unsigned threads, bool waits) {
    point();
    if (meeting.arrived != 0 && meeting.wanted != threads) {
        fail("threads that disagree on how many meet at a barrier");
    }
    meeting.wanted = threads;
    unsigned& lanes = meeting.lanes[current->warp];
    if (lanes >> current->lane & 1) fail("a lane that arrives twice where all meet once");
    lanes |= 1u << current->lane;
    const unsigned generation = meeting.generation;
    if (++meeting.arrived == threads) {
        for (const auto& [warp, of_warp] : meeting.lanes) {
            if (of_warp != ~0u) fail("a part of a warp is counted where whole warps meet");
        }
        meeting.lanes.clear();
        meeting.arrived = 0;
        ++meeting.generation;
        wake(meeting.waiters);
        point();
    } else if (waits) {
        while (meeting.generation == generation) sleep(meeting.waiters);
    }
}

}  // namespace

void named_barrier(int number, unsigned threads, bool waits) {
    now_at("named barrier", number);
    if (number < 0 || number >= kNamedBarriers) fail("there is no such barrier");
    meet_at(current->cta->meetings[number], threads, waits);
}

void cluster_arrive() {
    Cluster& cluster = *current->cta->cluster;
    now_at("an arrival at the cluster's barrier");
    current->generation = cluster.meeting.generation;
    meet_at(cluster.meeting, cluster.live, false);
}

void cluster_wait() {
    Meeting& meeting = current->cta->cluster->meeting;
    now_at("the cluster's barrier");
    point();
    while (meeting.generation == current->generation) sleep(meeting.waiters);
}

}  // namespace emulator
