// Whose counters a launch gets.
#include <cstddef>
#include <cstdint>
#include <set>

#include "check.h"
#include "fixture.h"
#include "stub_driver.h"

namespace {

void captured_launches_have_counters_of_their_own() {
    stub_reset();
    const fa_tune::Kernel kernel = Variant::persistent().kernel();
    void* capturing = stub_stream(1);
    CHECK_FAILS(launch(kernel, problem(), capturing), FA_TUNE_CAPTURING, "fa_tune_prepare");
    CHECK(stub_calls("cuLibraryLoadData") == 0);
    CHECK(fa_tune_prepare(kernel.get(), 0) == FA_TUNE_OK);
    std::set<std::uint64_t> seen;
    CHECK(launch(kernel, problem()) == FA_TUNE_OK);
    const std::uint64_t plain = counters_of(last_launch());
    seen.insert(plain);
    for (int i = 0; i < 3000; ++i) {
        CHECK(launch(kernel, problem(), capturing) == FA_TUNE_OK);
        CHECK(last_launch().captured == 1);
        CHECK(seen.insert(counters_of(last_launch())).second);
    }
    CHECK(launch(kernel, problem()) == FA_TUNE_OK);
    CHECK(counters_of(last_launch()) == plain);
    const std::size_t memory = stub_memory();
    const fa_tune_problem refused = problem(2, 1 << 30);
    for (int i = 0; i < 3000; ++i) CHECK(launch(kernel, refused, capturing) == FA_TUNE_INVALID);
    CHECK(stub_memory() == memory);  // a refused launch keeps none
}

void counters_are_zero_and_belong_to_streams_not_to_handles() {
    stub_reset();
    const fa_tune::Kernel kernel = Variant::persistent().kernel();
    void* stream = stub_stream(0);
    CHECK(launch(kernel, problem(), stream) == FA_TUNE_OK);
    const std::uint64_t before = counters_of(last_launch());
    CHECK(before % 128 == 0);
    for (std::uint64_t i = 0; i < 128; ++i) CHECK(reinterpret_cast<const char*>(before)[i] == 0);
    stub_renew_stream(stream);  // destroyed, and another made at the same place
    CHECK(launch(kernel, problem(), stream) == FA_TUNE_OK);
    CHECK(counters_of(last_launch()) != before);
}

void many_streams_take_no_more_memory_and_a_stream_in_use_keeps_its_counters() {
    stub_reset();
    const fa_tune::Kernel kernel = Variant::persistent().kernel();
    void* kept = stub_stream(0);
    void* renewed = stub_stream(0);
    CHECK(launch(kernel, problem(), kept) == FA_TUNE_OK);
    const std::uint64_t its = counters_of(last_launch());
    std::size_t memory = 0;
    std::set<std::uint64_t> others;
    for (int i = 0; i < 20000; ++i) {
        stub_renew_stream(renewed);
        CHECK(launch(kernel, problem(), renewed) == FA_TUNE_OK);
        CHECK(counters_of(last_launch()) != its);
        others.insert(counters_of(last_launch()));
        if (i % 100 == 0) {
            CHECK(launch(kernel, problem(), kept) == FA_TUNE_OK);
            CHECK(counters_of(last_launch()) == its);
            stub_reset();  // forgets the records
        }
        if (i == 10000) memory = stub_memory();
    }
    CHECK(stub_memory() == memory);
    CHECK(others.size() > 4000);
}

}  // namespace

int main() {
    fa_tune::init();
    captured_launches_have_counters_of_their_own();
    counters_are_zero_and_belong_to_streams_not_to_handles();
    many_streams_take_no_more_memory_and_a_stream_in_use_keeps_its_counters();
}
