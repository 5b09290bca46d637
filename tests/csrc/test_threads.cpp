// One kernel, one table, many threads.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "check.h"
#include "fixture.h"
#include "stub_driver.h"

namespace {

constexpr int kThreads = 8, kLaunches = 500;

template <class Body>
void in_threads(Body body) {
    std::atomic<int> waiting{kThreads};
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
        threads.emplace_back([&, i] {
            --waiting;
            while (waiting > 0) {
            }
            body(i);
        });
    }
    for (std::thread& thread : threads) thread.join();
}

void streams_never_share_counters_and_loading_happens_once() {
    stub_reset();
    const fa_tune::Kernel kernel = Variant::persistent().kernel();
    std::vector<void*> streams;
    for (int i = 0; i < kThreads; ++i) streams.push_back(stub_stream(0));
    in_threads([&](int thread) {
        for (int i = 0; i < kLaunches; ++i) {
            // Half of the launches on streams of other threads, and on both devices.
            void* stream = streams[static_cast<std::size_t>(i % 2 ? thread : (thread + i) % 8)];
            CHECK(launch(kernel, problem(), stream, i / 16 % 2) == FA_TUNE_OK);
        }
    });
    CHECK(stub_calls("cuLibraryLoadData") == 1);
    CHECK(stub_launch_count() == kThreads * kLaunches);
    std::map<std::uint64_t, std::pair<std::uint64_t, int>> owners;
    for (std::size_t i = 0; i < stub_launch_count(); ++i) {
        stub_launch seen{};
        CHECK(stub_get_launch(i, &seen) == 1);
        std::uint64_t counters = 0;
        std::memcpy(&counters, seen.params + 4 * 128 + 8, sizeof counters);
        const std::pair owner(seen.stream, seen.device);
        CHECK(owners.emplace(counters, owner).first->second == owner);
    }
    CHECK(owners.size() == 2 * kThreads);
}

void captures_side_by_side() {
    stub_reset();
    const fa_tune::Kernel kernel = Variant::persistent().kernel();
    CHECK(fa_tune_prepare(kernel.get(), 0) == FA_TUNE_OK);
    in_threads([&](int) {
        void* stream = stub_stream(1);
        for (int i = 0; i < kLaunches; ++i) CHECK(launch(kernel, problem(), stream) == FA_TUNE_OK);
    });
    std::set<std::uint64_t> seen;
    for (std::size_t i = 0; i < stub_launch_count(); ++i) {
        stub_launch launched{};
        CHECK(stub_get_launch(i, &launched) == 1);
        std::uint64_t counters = 0;
        std::memcpy(&counters, launched.params + 4 * 128 + 8, sizeof counters);
        CHECK(seen.insert(counters).second);
    }
    CHECK(seen.size() == kThreads * kLaunches);
}

void lookups_side_by_side_agree() {
    stub_reset();
    Variant one = Variant::persistent(), two = Variant::persistent();
    one.config = "short";
    two.config = "long";
    const fa_tune_kernel_info kernels[] = {one.info(), two.info()};
    const fa_tune_entry entries[] = {{"NVIDIA H200", problem(1, 1, 128), "short"},
                                     {"NVIDIA H200", problem(1, 1, 16384), "long"}};
    const fa_tune::Table table({kernels, 2, entries, 2, nullptr, 0, nullptr, 0});
    in_threads([&](int thread) {
        for (int i = 0; i < kLaunches; ++i) {
            const int length = 1 + (i * 37 + thread) % 3000;
            fa_tune_kernel* kernel = table.find(problem(1, 1, length), 0);
            const std::string config = fa_tune_kernel_config(kernel);
            // sqrt(128 * 16384) is 1448.2: below it the shorter one is nearer.
            CHECK(config == (length < 1449 ? "short" : "long"));
            const fa_tune_problem wrong = problem(0);
            CHECK(fa_tune_find(table.get(), &wrong, 0, &kernel) == FA_TUNE_INVALID);
            CHECK(says(fa_tune_last_error(), "batch"));  // this thread's own
        }
    });
}

}  // namespace

int main() {
    streams_never_share_counters_and_loading_happens_once();
    captures_side_by_side();
    lookups_side_by_side_agree();
}
