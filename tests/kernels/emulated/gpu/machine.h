// A part of a GPU on the host: the threads of some clusters as coroutines, in whatever order a
// schedule wants, with all that they share.
//
//     launch -> clusters -> CTAs (shared memory, barriers) -> warps (where lanes meet) -> threads
//
// A thread runs until it waits for something, or until one with a higher priority can go on.  What
// a GPU does beside its threads (bulk copies, wgmma, cp.async) happens as late as a wait allows, as
// early as possible, or in between, again as the schedule wants; the destination of a copy under
// way holds NaN.  So a kernel that relies on more than the barriers promise gives other numbers,
// waits for ever, or breaks a rule that is checked here:
//
//     - lanes that meet (shuffles, matrix instructions, __syncwarp) meet at the same instruction
//     - nobody arrives at a barrier more often in a phase than it counts
//     - no copy is under way to or from the shared memory of a CTA that is gone
//
// Ordinary writes to shared memory reach bulk copies and wgmma only by the proxy fence, so there
// are two views of it, and no bulk copy comes to where such writes have not been fenced.  At first
// shared memory holds one NaN or another, or what the CTA before has left there.  A dependent
// launch finds global memory as it will be only when it has waited.  What is not modelled: the
// memory order between ordinary accesses.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace emulator {

// Where a coroutine goes on.  The first time it is entered by its ucontext; after that by a jump,
// which unlike that asks nothing of the operating system.
struct Place {
    ucontext_t start;
    jmp_buf jump;
    bool started = false;
};

struct Dim3 {
    unsigned x = 1, y = 1, z = 1;
};

constexpr int kLanes = 32;
constexpr int kNamedBarriers = 16;

struct Cta;
struct Thread;
struct Warp;
using Waiters = std::vector<Thread*>;

// A barrier that counts arrivals and bytes (mbarrier).
struct Barrier {
    bool ready = false;
    int count = 0, pending = 0;
    long long bytes = 0;
    unsigned phase = 0;
    Waiters waiters;
};

// A barrier of a CTA by number, or of a cluster.  Whole warps arrive, each lane once.
struct Meeting {
    unsigned arrived = 0, wanted = 0, generation = 0;
    std::map<const Warp*, unsigned> lanes;
    Waiters waiters;
};

// One wgmma of a warp: where each lane has its accumulators and, unless A is in shared memory, its
// registers of A.
struct Product {
    int n = 0;
    bool bf16 = false, n_major = false, accumulate = false, a_in_registers = false;
    std::uint64_t a = 0, b = 0;
    float* d[kLanes] = {};
    const unsigned* a_registers[kLanes] = {};
    int issued = 0;  // lanes

    bool same_instruction(const Product& other) const {
        return n == other.n && a == other.a && b == other.b && n_major == other.n_major &&
               accumulate == other.accumulate && a_in_registers == other.a_in_registers;
    }
};

struct Warp {
    Cta* cta;
    unsigned live = 0;  // lanes that have not returned
    // Where lanes meet.
    const char* at = nullptr;
    unsigned arrived = 0, generation = 0;
    Waiters waiters;
    std::uint64_t given[kLanes][2] = {}, taken[kLanes][4] = {};
    // wgmma, oldest first; lane l has issued `issued[l]` and closed groups that end at `closed[l]`.
    std::deque<Product> products;
    std::size_t n_done = 0;  // products that are not in the queue any more
    std::size_t issued[kLanes] = {};
    std::vector<std::size_t> closed[kLanes];
    int elected = 0;
};

// Something that the GPU does beside its threads.
struct Copy {
    std::function<void()> run;
    double priority;
    const Cta *from, *to;  // whose shared memory has to outlast it
    Thread* store_of;      // in whose bulk group it is
};

struct Thread {
    Cta* cta = nullptr;
    Warp* warp = nullptr;
    Dim3 index;
    int lane = 0;
    double priority = 0;
    bool done = false;
    // Where it is, or waits.
    const char* at = "its start";
    long long at_number = -1;  // of a barrier
    int at_parity = -1;
    // Ordinary writes to shared memory that no proxy fence has followed.
    std::vector<std::pair<unsigned, unsigned>> unfenced;
    std::vector<std::vector<std::function<void()>>> copies = {{}};  // cp.async, by group
    int stores = 0;                                                 // bulk ones under way
    int open_stores = 0;                                            // in no group as yet
    unsigned generation = 0;  // of the cluster's barrier, where it has arrived
    Waiters waiters;          // itself, for those
    Place place;
};

struct Cluster {
    Meeting meeting;
    std::vector<std::unique_ptr<Cta>> ctas;
    unsigned live = 0;  // threads
};

struct Cta {
    Cluster* cluster;
    Dim3 index;
    unsigned rank = 0;
    unsigned live = 0;  // threads
    // As ordinary accesses see it, and as bulk copies and wgmma do.
    std::vector<std::uint8_t> memory, fenced;
    std::vector<unsigned> unfenced;  // ordinary writes that no proxy fence has followed, by chunk
    std::vector<Barrier> barriers;   // by address / 8
    Meeting meetings[kNamedBarriers];
    std::vector<Warp> warps;
    std::vector<std::vector<Product>> products;  // of each warpgroup, as its first warp issued them
};

struct Schedule {
    unsigned seed;
    // How threads get their priorities: each lane its own, or all of a warp, of a warpgroup, of a
    // CTA the same.
    unsigned unit;
    double change;  // how often, per event, the thread that ran comes last from then on
    double eager;   // how many of the things beside threads happen as early as possible
};

// Global memory that launches before a dependent one have to do with: what it will be.
struct Region {
    std::uint8_t* at;
    const std::uint8_t* content;
    std::size_t bytes;
};

struct Launch {
    Dim3 grid, block;
    unsigned cluster, smem_bytes, resident;  // clusters at a time
    std::vector<Region> hidden;              // until a thread has waited for the launches before
    std::function<void()> kernel;
};

// Runs a launch; returns "" or what went wrong.
std::string run(const Launch& launch, const Schedule& schedule);

// --- for the instructions -----------------------------------------------------------------

extern Thread* current;
extern Dim3 grid_dim, block_dim;

[[noreturn]] void fail(const std::string& what);

// Where this thread is, for whoever reads of it.
void now_at(const char* what, long long number = -1, int parity = -1);

// Let the schedule have its way here.
void point();

// Let all others go first from now on, now and then.
void yield();

// Until somebody calls `wake` for these.
void sleep(Waiters& waiters);
void wake(Waiters& waiters);

// Go on when the condition, a function without arguments, holds; it changes only where the waiters
// are woken.
template <class Condition>
void wait_until(const char* at, Waiters& waiters, Condition condition) {
    current->at = at;
    point();
    while (!condition()) sleep(waiters);
}

// All lanes of the warp meet here, each with two words; the last one to come turns them into four
// words for each.
using Exchange = void (*)(Warp&);
const std::uint64_t* meet(const char* at, Exchange exchange = nullptr, std::uint64_t first = 0,
                          std::uint64_t second = 0);

// Shared memory.  An address of another CTA of the cluster has its rank + 1 in the upper byte.
Cta& cta_of(unsigned address);
unsigned in_cta(unsigned address, unsigned rank);
std::uint8_t* ordinary(unsigned address, unsigned bytes);  // of this CTA
void wrote(unsigned address, unsigned bytes);              // ordinarily, by this thread
void proxy_fence();
void need_fenced(const Cta& cta, unsigned address, unsigned bytes);  // before a bulk copy to there

// Barriers.
Barrier& barrier_at(unsigned address);
void arrive(unsigned barrier, long long bytes);
void complete(Barrier& barrier, long long bytes);
void named_barrier(int number, unsigned threads, bool waits);
void cluster_arrive();
void cluster_wait();

// A thread waits for the launches before this one; then global memory is as these leave it.
void await_earlier();
void earlier_are_done();

// Beside the threads.
bool early();  // whether the next one happens at once
void start_copy(std::function<void()> run, const Cta* from, const Cta* to,
                Thread* store_of = nullptr);

// wgmma.
void issue(const Product& of_lane);
void close_group();
void wait_for_products(unsigned pending);

}  // namespace emulator
