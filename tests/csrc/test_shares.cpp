// Launches whose CTAs share blocks of keys.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "check.h"
#include "fixture.h"
#include "stub_driver.h"

namespace {

void shares_need_a_workspace() {
    stub_reset();
    const fa_tune::Kernel kernel = Variant::shared().kernel();
    fa_tune_problem p = problem(1, 64, 8192);
    p.kv_heads = 8;
    p.seq_len_q = 1;
    // 132 multiprocessors have 264 CTAs at a time; with 4 of the 1024 blocks each, 256 do it.
    CHECK(kernel.workspace_bytes(p) == 2 * 264 * 8 * (128 + 2) * 4);
    fa_tune_tensors given = tensors(p);
    CHECK(launch(kernel, p, given) == FA_TUNE_OK);
    stub_launch found;
    CHECK(stub_get_launch(0, &found) != 0 && found.grid[0] == 256 && found.grid[1] == 1);
    given.workspace = nullptr;
    CHECK_REFUSED(launch(kernel, p, given), "needs a workspace of fa_tune_workspace_bytes");
    given.workspace = reinterpret_cast<void*>(8);
    CHECK_REFUSED(launch(kernel, p, given), "workspace must start at a multiple of 16 bytes");
    given = tensors(p);
    std::int32_t lengths[1] = {};
    given.of[FA_TUNE_TENSOR_CACHE_SEQLENS].address = lengths;
    CHECK(launch(kernel, p, given) == FA_TUNE_OK);
    CHECK(stub_get_launch(1, &found) != 0 && found.grid[0] == 264);
    given.of[FA_TUNE_TENSOR_PAGE_TABLE].address = lengths;
    given.page_size = 24;
    CHECK_REFUSED(launch(kernel, p, given), "page_size must be a multiple of 16, not 24");
    // One sequence, but any number of pages.
    given.page_size = 16;
    CHECK(launch(kernel, p, given) == FA_TUNE_OK);
    given.of[FA_TUNE_TENSOR_K].batch_stride = 132;
    CHECK_REFUSED(launch(kernel, p, given), "K must have every row at a multiple of 16 bytes");
    given.of[FA_TUNE_TENSOR_K] = tensors(p).of[FA_TUNE_TENSOR_K];
    const fa_tune::Kernel plain = Variant::plain().kernel();
    const fa_tune_problem square = problem();
    CHECK_REFUSED(launch(plain, square, given), "takes no lengths or pages");
    p.batch = 1 << 29;
    CHECK_REFUSED(launch(kernel, p), "too many blocks of keys");
    CHECK(Variant::plain().kernel().workspace_bytes(problem()) == 0);
}

// One that counts from the first keys hides none of one query; from a sequence's end it does.
void a_window_is_not_lost_where_the_device_has_the_lengths() {
    stub_reset();
    const fa_tune::Kernel kernel = Variant::shared().kernel();  // without a window
    fa_tune_problem p = problem(1, 64, 8192);
    p.kv_heads = 8;
    p.seq_len_q = 1;
    fa_tune_tensors given = tensors(p);
    p.window = FA_TUNE_WINDOW_LEFT;
    p.window_left = 100;
    CHECK(launch(kernel, p, given) == FA_TUNE_OK);
    std::int32_t lengths[1] = {};
    given.of[FA_TUNE_TENSOR_CACHE_SEQLENS].address = lengths;
    for (const std::int32_t cached : {0, 1}) {
        p.cached = cached;
        CHECK_REFUSED(launch(kernel, p, given), "does not compute");
    }
    p.window_left = 8191;
    CHECK(launch(kernel, p, given) == FA_TUNE_OK);
}

// As where the host has the lengths.
void a_window_to_the_right_shows_nothing_beyond_a_causal_mask() {
    stub_reset();
    Variant causal = Variant::shared();
    causal.plan.causal = 1;
    const fa_tune::Kernel kernel = causal.kernel();
    fa_tune_problem p = problem(1, 4, 8192);
    p.seq_len_q = 4;
    p.mask = FA_TUNE_MASK_CAUSAL_BR;
    fa_tune_tensors given = tensors(p);
    std::int32_t lengths[1] = {};
    for (std::int32_t* where : {static_cast<std::int32_t*>(nullptr), lengths}) {
        given.of[FA_TUNE_TENSOR_CACHE_SEQLENS].address = where;
        stub_launch found[2];
        for (std::size_t i : {0, 1}) {
            p.window = i == 0 ? FA_TUNE_WINDOW_NONE : FA_TUNE_WINDOW_RIGHT;
            p.window_right = i == 0 ? 0 : 5;
            stub_reset();
            CHECK(launch(kernel, p, given) == FA_TUNE_OK);
            CHECK(stub_get_launch(0, &found[i]) != 0);
        }
        CHECK(std::memcmp(found[0].params, found[1].params, found[0].params_bytes) == 0);
    }
}

// What kernels count is within 32 bits, also with what tiles count for besides.
void more_than_kernels_count_is_refused() {
    stub_reset();
    const fa_tune::Kernel kernel = Variant::shared().kernel();
    fa_tune_problem p = problem(1, 1, 1);
    p.seq_len_kv = (1 << 30) - 1;
    CHECK(launch(kernel, p) == FA_TUNE_OK);
    p.seq_len_kv = 1 << 30;
    CHECK_REFUSED(launch(kernel, p), "fewer keys of a sequence");
    p.seq_len_kv = 64 * 64;  // as many blocks as a tile counts for besides
    p.batch = 1 << 23;
    fa_tune_tensors given = tensors(p);
    std::int32_t lengths[1] = {};
    given.of[FA_TUNE_TENSOR_CACHE_SEQLENS].address = lengths;
    CHECK(launch(kernel, p, given) == FA_TUNE_OK);
    ++p.batch;
    CHECK(launch(kernel, p) == FA_TUNE_OK);
    CHECK_REFUSED(launch(kernel, p, given), "where the device alone knows lengths");
    Variant in_clusters = Variant::shared();
    in_clusters.launch.cluster_x = 2;
    const fa_tune::Kernel clusters = in_clusters.kernel();
    CHECK(launch(clusters, p, given) == FA_TUNE_OK);
    p.batch = 1;
    given.added = -1;
    CHECK_REFUSED(launch(kernel, p, given), "added must be at least 0");
}

}  // namespace

int main() {
    fa_tune::init();
    shares_need_a_workspace();
    a_window_is_not_lost_where_the_device_has_the_lengths();
    a_window_to_the_right_shows_nothing_beyond_a_causal_mask();
    more_than_kernels_count_is_refused();
}
