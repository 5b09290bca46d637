// See machine.h.
#include "machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <sstream>

namespace emulator {

Thread* current = nullptr;
Dim3 grid_dim, block_dim;

namespace {

constexpr std::size_t kStackBytes = 256 << 10;
// NaN in all types of elements: the largest integer but for its sign, or all bits.
constexpr std::uint8_t kPoisons[][2] = {{0xff, 0xff}, {0xff, 0x7f}};

// Of the launch that runs.
struct Machine {
    Schedule schedule;
    std::mt19937_64 dice;
    std::vector<std::unique_ptr<Cluster>> clusters;
    std::vector<std::unique_ptr<Thread>> threads;
    std::vector<Thread*> ready;  // a heap, the highest priority on top
    std::vector<Copy> copies;
    Place outside;
    std::function<void()> kernel;
    std::vector<Region> hidden;
    std::string error;
    std::vector<std::uint8_t> left;  // in shared memory by a CTA that has returned
    bool copying = false;            // whether a copy runs rather than `current`
    double lowest = 0;               // priority given so far
};
Machine* machine = nullptr;

double chance() { return std::uniform_real_distribution<>()(machine->dice); }

// A lambda, which heaps inline; a function would be called.
constexpr auto comes_later = [](const Thread* a, const Thread* b) {
    return a->priority < b->priority;
};

void make_ready(Thread* thread) {
    machine->ready.push_back(thread);
    std::push_heap(machine->ready.begin(), machine->ready.end(), comes_later);
}

std::string where(const Thread& thread) {
    std::ostringstream text;
    text << "at " << thread.at;
    if (thread.at_number >= 0) text << " " << thread.at_number;
    if (thread.at_parity >= 0) text << " parity " << thread.at_parity;
    return text.str();
}

std::string warp_of(const Thread& thread) {
    std::ostringstream text;
    text << "CTA " << thread.cta->index.x << " warp " << thread.index.x / kLanes;
    return text.str();
}

// Whoever has not returned, by warp and place, each with how many lanes.
std::string places() {
    std::map<std::pair<const Warp*, std::string>, int> lanes;
    std::vector<std::pair<std::string, int*>> order;
    for (const auto& thread : machine->threads) {
        if (thread->done) continue;
        const auto [found, fresh] = lanes.try_emplace({thread->warp, where(*thread)}, 0);
        if (fresh) order.emplace_back(warp_of(*thread) + " " + found->first.second, &found->second);
        ++found->second;
    }
    std::ostringstream text;
    for (const auto& [what, count] : order) {
        text << (text.tellp() > 0 ? "; " : "") << what << " (" << *count << ")";
    }
    return text.str();
}

[[noreturn]] void stop(const std::string& error);

void run_copy(std::vector<Copy>::iterator which) {
    const Copy copy = std::move(*which);
    machine->copies.erase(which);
    machine->copying = true;
    copy.run();
    machine->copying = false;
    if (copy.store_of) {
        --copy.store_of->stores;
        wake(copy.store_of->waiters);
    }
}

// Whoever goes on next, after the copies that come before; null when all have returned.
Thread* choose() {
    Machine& m = *machine;
    while (true) {
        const auto copy =
            std::max_element(m.copies.begin(), m.copies.end(),
                             [](const Copy& a, const Copy& b) { return a.priority < b.priority; });
        if (copy != m.copies.end() &&
            (m.ready.empty() || copy->priority > m.ready.front()->priority)) {
            run_copy(copy);
            continue;
        }
        if (!m.ready.empty()) {
            std::pop_heap(m.ready.begin(), m.ready.end(), comes_later);
            Thread* const next = m.ready.back();
            m.ready.pop_back();
            return next;
        }
        if (const std::string left = places(); !left.empty()) stop("nobody can go on: " + left);
        return nullptr;
    }
}

[[noreturn]] void enter(Place& place) {
    if (place.started) _longjmp(place.jump, 1);
    place.started = true;
    setcontext(&place.start);
    std::abort();
}

void go_on(Place& from) {
    Thread* const next = choose();
    if (next && next == current) return;
    current = next;
    if (_setjmp(from.jump) == 0) enter(next ? next->place : machine->outside);
}

// Back to `run`, for good.
[[noreturn]] void stop(const std::string& error) {
    machine->error = error;
    enter(machine->outside);
}

void begin_thread() {
    machine->kernel();
    Thread& t = *current;
    for (const auto& group : t.copies) {
        if (!group.empty()) fail("returns with a cp.async that nobody has waited for");
    }
    if (t.open_stores > 0) fail("returns with a bulk store that is in no group");
    t.done = true;
    t.warp->live &= ~(1u << t.lane);
    --t.cta->live;
    --t.cta->cluster->live;
    if (t.cta->live == 0) {
        machine->left = t.cta->memory;
        for (const Copy& copy : machine->copies) {
            if (copy.from == t.cta || copy.to == t.cta) {
                fail("a copy is under way in the shared memory of a CTA that returns");
            }
        }
    }
    go_on(t.place);
}

std::vector<std::uint8_t> shared_memory_at_first(unsigned bytes) {
    const auto kind = machine->dice() % (machine->left.empty() ? 2 : 3);
    if (kind == 2) return machine->left;
    std::vector<std::uint8_t> memory(bytes);
    for (unsigned i = 0; i < bytes; ++i) memory[i] = kPoisons[kind][i % 2];
    return memory;
}

void start_cluster(const Launch& launch, unsigned first_block, char* stacks,
                   std::size_t& n_stacks) {
    auto cluster = std::make_unique<Cluster>();
    const unsigned n_threads = launch.block.x * launch.block.y * launch.block.z;
    cluster->live = n_threads * launch.cluster;
    for (unsigned rank = 0; rank < launch.cluster; ++rank) {
        const unsigned block = first_block + rank;
        auto cta = std::make_unique<Cta>();
        cta->cluster = cluster.get();
        cta->index = {block % launch.grid.x, block / launch.grid.x % launch.grid.y,
                      block / launch.grid.x / launch.grid.y};
        cta->rank = rank;
        cta->live = n_threads;
        cta->memory = shared_memory_at_first(launch.smem_bytes);
        cta->fenced = cta->memory;
        cta->unfenced.resize(launch.smem_bytes / 16 + 1);
        cta->barriers.resize(launch.smem_bytes / 8);
        cta->warps.resize((n_threads + kLanes - 1) / kLanes);
        cta->products.resize((n_threads + 127) / 128);
        const double of_cta = chance();
        double of_group = 0, of_warp = 0;
        for (unsigned i = 0; i < n_threads; ++i) {
            auto thread = std::make_unique<Thread>();
            if (i % 128 == 0) of_group = chance();
            if (i % kLanes == 0) {
                of_warp = chance();
                Warp& warp = cta->warps[i / kLanes];
                warp.cta = cta.get();
                warp.elected = machine->dice() % kLanes;
            }
            const double chosen[] = {chance(), of_warp, of_group, of_cta};
            thread->cta = cta.get();
            thread->warp = &cta->warps[i / kLanes];
            thread->warp->live |= 1u << i % kLanes;
            thread->index = {i, 0, 0};
            thread->lane = i % kLanes;
            thread->priority = chosen[machine->schedule.unit] + 1e-6 * chance();
            ucontext_t& start = thread->place.start;
            getcontext(&start);
            start.uc_stack.ss_sp = stacks + kStackBytes * n_stacks++;
            start.uc_stack.ss_size = kStackBytes;
            start.uc_link = nullptr;
            makecontext(&start, begin_thread, 0);
            make_ready(thread.get());
            machine->threads.push_back(std::move(thread));
        }
        cluster->ctas.push_back(std::move(cta));
    }
    machine->clusters.push_back(std::move(cluster));
}

}  // namespace

std::string run(const Launch& launch, const Schedule& schedule) {
    Machine here;
    machine = &here;
    here.schedule = schedule;
    here.dice.seed(schedule.seed);
    here.kernel = launch.kernel;
    here.hidden = launch.hidden;
    here.outside.started = true;
    grid_dim = launch.grid;
    block_dim = launch.block;
    const unsigned n_blocks = launch.grid.x * launch.grid.y * launch.grid.z;
    const std::size_t n_threads = std::size_t{launch.block.x} * launch.block.y * launch.block.z;
    const std::size_t bytes = kStackBytes * n_threads * launch.cluster * launch.resident;
    void* const stacks = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) return "no memory for the threads' stacks";
    for (unsigned block = 0; block < n_blocks && here.error.empty();) {
        std::size_t n_stacks = 0;
        here.clusters.clear();
        here.threads.clear();
        here.ready.clear();
        for (unsigned i = 0; i < launch.resident && block < n_blocks; ++i) {
            start_cluster(launch, block, static_cast<char*>(stacks), n_stacks);
            block += launch.cluster;
        }
        current = nullptr;
        go_on(here.outside);
    }
    earlier_are_done();  // if nobody has waited
    munmap(stacks, bytes);
    machine = nullptr;
    return here.error;
}

void fail(const std::string& what) {
    const Thread& t = *current;
    stop(machine->copying
             ? what
             : warp_of(t) + " lane " + std::to_string(t.lane) + " " + where(t) + ": " + what);
}

void await_earlier() {
    if (machine->hidden.empty()) return;
    // Whoever can come here without having waited comes first.
    const double own = current->priority;
    current->priority = --machine->lowest;
    point();
    current->priority = own;
    earlier_are_done();
}

void earlier_are_done() {
    for (const Region& region : machine->hidden) {
        std::memcpy(region.at, region.content, region.bytes);
    }
    machine->hidden.clear();
}

void now_at(const char* what, long long number, int parity) {
    current->at = what;
    current->at_number = number;
    current->at_parity = parity;
}

void point() {
    Machine& m = *machine;
    Thread& t = *current;
    if (m.schedule.change > 0 && chance() < m.schedule.change) t.priority = --m.lowest;
    const bool overtaken = !m.ready.empty() && m.ready.front()->priority > t.priority;
    const bool copies = std::any_of(m.copies.begin(), m.copies.end(),
                                    [&](const Copy& copy) { return copy.priority > t.priority; });
    if (!overtaken && !copies) return;
    make_ready(&t);
    go_on(t.place);
}

void yield() {
    if (chance() < 0.1) current->priority = --machine->lowest;
    point();
}

void sleep(Waiters& waiters) {
    waiters.push_back(current);
    go_on(current->place);
}

void wake(Waiters& waiters) {
    for (Thread* const thread : waiters) make_ready(thread);
    waiters.clear();
}

const std::uint64_t* meet(const char* at, Exchange exchange, std::uint64_t first,
                          std::uint64_t second) {
    Warp& warp = *current->warp;
    const int lane = current->lane;
    now_at(at);
    if (warp.live != ~0u) fail("lanes meet some of which have returned");
    if (warp.arrived == 0) warp.at = at;
    if (warp.at != at && std::strcmp(warp.at, at) != 0) {
        fail(std::string("other lanes of the warp are at ") + warp.at);
    }
    warp.given[lane][0] = first;
    warp.given[lane][1] = second;
    warp.arrived |= 1u << lane;
    const unsigned generation = warp.generation;
    if (warp.arrived == ~0u) {
        if (exchange) exchange(warp);
        warp.arrived = 0;
        ++warp.generation;
        wake(warp.waiters);
        point();
    } else {
        while (warp.generation == generation) sleep(warp.waiters);
    }
    return warp.taken[lane];
}

// --- beside the threads -------------------------------------------------------------------

bool early() { return chance() < machine->schedule.eager; }

void start_copy(std::function<void()> run, const Cta* from, const Cta* to, Thread* store_of) {
    const double priority = early() ? 2.0 : std::min(0.0, machine->lowest) - 1.0 + 2.0 * chance();
    machine->copies.push_back({std::move(run), priority, from, to, store_of});
    if (store_of) {
        ++store_of->stores;
        ++store_of->open_stores;
    }
    point();
}

}  // namespace emulator
