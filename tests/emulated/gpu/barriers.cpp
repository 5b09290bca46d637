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
    return cta.memory.data() + address;
}

void wrote(unsigned address, unsigned bytes) { current->unfenced.emplace_back(address, bytes); }

void proxy_fence() {
    Cta& cta = *current->cta;
    for (const auto& [address, bytes] : current->unfenced) {
        std::memcpy(cta.fenced.data() + address, cta.memory.data() + address, bytes);
    }
    current->unfenced.clear();
}

// --- barriers -----------------------------------------------------------------------------

Barrier& barrier_at(unsigned address) {
    Cta& cta = cta_of(address);
    address &= 0xffffffu;
    if (address % 8 || address / 8 >= cta.barriers.size()) fail("a barrier at no such address");
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
    current->at = "an arrival at barrier";
    current->at_address = address;
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
    const unsigned generation = meeting.generation;
    if (++meeting.arrived == threads) {
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
    current->at = "named barrier";
    current->at_address = number;
    meet_at(current->cta->meetings[number], threads, waits);
}

void cluster_barrier() {
    Cluster& cluster = *current->cta->cluster;
    current->at = "the cluster's barrier";
    meet_at(cluster.meeting, cluster.live, true);
}

}  // namespace emulator
