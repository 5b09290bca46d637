#include "choices.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "errors.h"
#include "kernel.h"
#include "problem.h"

namespace fa_tune::op {

namespace {

constexpr std::size_t kTextBytes = 2048;

using Key = std::array<std::int64_t, 12>;

struct Hash {
    std::size_t operator()(const Key& key) const {
        std::uint64_t hash = 0;
        for (const std::int64_t word : key) {
            hash = (hash ^ static_cast<std::uint64_t>(word)) * 0x9e3779b97f4a7c15u;
            hash ^= hash >> 29;
        }
        return hash;
    }
};

// What decides the choice whatever the sizes.
std::int64_t kind_of(const fa_tune_problem& p, int device) {
    const bool causal = fa_tune::core::is_causal(p);
    const bool aligned = causal || p.window != 0 || p.alibi != 0;
    const int mask = (aligned && fa_tune::core::is_bottom_right(p) ? 2 : 0) + (causal ? 1 : 0);
    const int scores = (p.operation << 6) | (p.packed << 5) | ((p.softcap != 0) << 4) |
                       (p.window << 2) | (p.sink << 1) | p.alibi;
    return (static_cast<std::int64_t>(p.d_head) << 32) |
           (static_cast<std::int64_t>(device + 1) << 20) |
           (static_cast<std::int64_t>(scores) << 12) | (p.exact << 8) | (p.dtype << 4) |
           (mask << 1) | (p.lse != 0);
}

std::int64_t bits_of(double value) {
    std::int64_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

// Of a problem whose mask is settled.
Key exact_key(const fa_tune_problem& p, int device) {
    return {kind_of(p, device), p.d_head_v,         p.batch,      p.heads,
            p.kv_heads,         p.seq_len_q,        p.seq_len_kv, p.window_left,
            p.window_right,     bits_of(p.softcap), p.total_q,    p.total_kv};
}

// The exponent of the nearest power of two, in doublings.
int nearest_log2(std::int64_t n) {
    return (64 - __builtin_clzll(static_cast<unsigned long long>(n) *
                                 static_cast<unsigned long long>(n))) >>
           1;
}

int nearest_log2_of_product(std::int64_t one, std::int64_t other) {
    return nearest_log2(std::min(one * other, kMaxSize));
}

constexpr std::int64_t kBlock = 64;  // rows, or keys, that tiles are multiples of

std::int64_t blocks_in(std::int64_t length) { return (length + kBlock - 1) / kBlock; }

// Whether a default may divide the work of a tile among several CTAs, and so hangs on how many
// tiles there are: of queries, in a backward pass also of keys.  fa_tune/store/registry/buckets.py
bool are_few(const fa_tune_problem& p, std::int64_t heads, std::int64_t length) {
    constexpr std::int64_t kFewBlocks = 1024;
    return p.packed == 0 && std::min(p.batch * heads, kMaxSize) * blocks_in(length) <= kFewBlocks;
}
bool has_few_query_tiles(const fa_tune_problem& p) { return are_few(p, p.heads, p.seq_len_q); }
bool has_few_key_tiles(const fa_tune_problem& p) {
    return p.operation == FA_TUNE_OPERATION_BACKWARD && are_few(p, p.kv_heads, p.seq_len_kv);
}

// Of a problem whose mask is settled; of few rows, tiles and queries are those of all of a bucket,
// and of few tiles batch elements and heads, less than 0.
// In the place of what only a packed batch has stands -1, or -2 with few rows, where an exact key
// has a size.
Key bucket_key(const fa_tune_problem& p, int device) {
    const std::int64_t group = p.heads / p.kv_heads;
    const bool few = fa_tune::core::is_decode_shape(p);
    Key key = {kind_of(p, device),
               p.d_head_v,
               group,
               few ? std::min(p.batch * p.kv_heads, kMaxSize)
               : has_few_query_tiles(p) || has_few_key_tiles(p)
                   ? -std::min(p.batch * p.heads, kMaxSize)
                   : nearest_log2_of_product(p.batch, p.packed != 0 ? 1 : p.heads),
               few ? p.seq_len_q : nearest_log2(p.seq_len_q),
               nearest_log2(p.seq_len_kv),
               few ? -2 : -1,
               p.window_left,
               p.window_right,
               bits_of(p.softcap),
               -1,
               -1};
    if (p.packed != 0) {
        key[10] = nearest_log2_of_product(p.total_q, p.heads);
        key[11] = nearest_log2_of_product(p.total_kv, p.heads);
    }
    return key;
}

// Short lengths of a bucket, and all of few tiles, are apart by the blocks that they fill, since a
// default has the tile that visits fewest of them; 0 of others.
using Blocks = std::pair<std::int64_t, std::int64_t>;

Blocks blocks_of(const fa_tune_problem& p) {
    constexpr std::int64_t kShort = 1024;
    const bool few = fa_tune::core::is_decode_shape(p);
    const auto blocks = [&](std::int64_t length, bool has_few_tiles) {
        const bool counts = length <= kShort || has_few_tiles;
        return p.packed != 0 || few || !counts ? 0 : blocks_in(length);
    };
    return {blocks(p.seq_len_q, has_few_query_tiles(p)),
            blocks(p.seq_len_kv, has_few_key_tiles(p))};
}

// Of one bucket, and blocks.  A default may have tiles of several sizes, and the one is chosen
// whose tiles end with the queries.
struct Kernels {
    std::vector<fa_tune_kernel*> whole;  // compiled for whole blocks; of queries that fill tiles
    fa_tune_kernel* partial = nullptr;   // the same of others
    fa_tune_kernel* ragged = nullptr;    // compiled for any lengths

    fa_tune_kernel* serving(const fa_tune_problem& problem) const {
        for (fa_tune_kernel* kernel : whole) {
            if (fills_tiles(*kernel, problem) && serves(*kernel, problem)) return kernel;
        }
        if (partial != nullptr && !fills_tiles(*partial, problem) && serves(*partial, problem)) {
            return partial;
        }
        if (ragged == nullptr) return nullptr;
        const fa_tune_plan& plan = *fa_tune_kernel_plan(ragged);
        const bool odd = problem.packed != 0 || problem.seq_len_q % plan.block_q != 0 ||
                         problem.seq_len_kv % plan.block_kv != 0;
        return odd ? ragged : nullptr;
    }
    void add(fa_tune_kernel* kernel, const fa_tune_problem& problem) {
        if (fa_tune_kernel_plan(kernel)->ragged != 0) {
            ragged = kernel;
        } else if (!fills_tiles(*kernel, problem)) {
            partial = kernel;
        } else if (std::find(whole.begin(), whole.end(), kernel) == whole.end()) {
            whole.push_back(kernel);
        }
    }

  private:
    static bool fills_tiles(const fa_tune_kernel& kernel, const fa_tune_problem& problem) {
        return problem.seq_len_q % kernel.tile_rows() == 0;
    }
    static bool serves(const fa_tune_kernel& kernel, const fa_tune_problem& problem) {
        return fa_tune::core::computes(kernel.plan(), problem);
    }
};

struct Choices {
    std::shared_mutex mutex;
    std::unordered_map<Key, fa_tune_kernel*, Hash> exact;  // null: not chosen yet
    std::unordered_map<Key, std::map<Blocks, Kernels>, Hash> buckets;
};

Choices*& choices() {
    static Choices* found = new Choices;  // never destroyed: calls may come until the very end
    return found;
}

// Grows when choices are forgotten or may change.
std::atomic<std::uint64_t> generation{1};

// What a thread ran last: most calls are of the problem before.
struct Last {
    std::uint64_t generation = 0;
    fa_tune_problem problem{};
    int device = -1;
    Choice choice{};

    bool is(const fa_tune_problem& asked, int on) const {
        return generation == op::generation.load(std::memory_order_acquire) && device == on &&
               std::memcmp(&problem, &asked, sizeof problem) == 0;
    }
};

thread_local Last last;

fa_tune_torch_resolver resolver = nullptr;
std::string refusal;  // set where there is one thread: in a child that was forked

fa_tune_kernel* chosen(const fa_tune_problem& problem, int device) {
    Choices& all = *choices();
    const std::shared_lock<std::shared_mutex> lock(all.mutex);
    const fa_tune_problem settled = fa_tune::core::settled(problem);
    if (const auto found = all.exact.find(exact_key(settled, device)); found != all.exact.end()) {
        return found->second;
    }
    const auto bucket = all.buckets.find(bucket_key(settled, device));
    if (bucket == all.buckets.end()) return nullptr;
    const auto found = bucket->second.find(blocks_of(settled));
    return found == bucket->second.end() ? nullptr : found->second.serving(problem);
}

// Without the lock while Python chooses: it waits for other threads that may want it.
fa_tune_kernel* kernel_for(const fa_tune_problem& problem, int device) {
    if (fa_tune_kernel* found = chosen(problem, device)) return found;
    if (resolver == nullptr) fail("ToolMissing: nothing chooses kernels");
    fa_tune_kernel* kernel = nullptr;
    std::array<char, kTextBytes> text{};
    if (resolver(&problem, device, &kernel, text.data(), text.size()) != 1 || kernel == nullptr) {
        fail(text[0] != '\0' ? text.data() : "the choice of a kernel failed");
    }
    Choices& all = *choices();
    const std::unique_lock<std::shared_mutex> lock(all.mutex);
    const fa_tune_problem settled = fa_tune::core::settled(problem);
    if (const auto found = all.exact.find(exact_key(settled, device)); found != all.exact.end()) {
        found->second = kernel;
    } else {
        all.buckets[bucket_key(settled, device)][blocks_of(settled)].add(kernel, problem);
    }
    return kernel;
}

}  // namespace

void check_refusal() {
    if (!refusal.empty()) fail(refusal);
}

Choice& choice_of(const fa_tune_problem& problem, int device) {
    if (!last.is(problem, device)) {
        fa_tune::core::check_problem(problem);
        const std::uint64_t now = generation.load(std::memory_order_acquire);
        last = {now, problem, device, {kernel_for(problem, device)}};
    }
    return last.choice;
}

}  // namespace fa_tune::op

using namespace fa_tune::op;

extern "C" {

void fa_tune_torch_set_resolver(fa_tune_torch_resolver chooser) { resolver = chooser; }

void fa_tune_torch_add_exact(const fa_tune_problem* problem, int device) {
    Choices& all = *choices();
    const std::unique_lock<std::shared_mutex> lock(all.mutex);
    all.exact.try_emplace(exact_key(fa_tune::core::settled(*problem), device), nullptr);
    ++generation;
}

int fa_tune_torch_prepare(const fa_tune_problem* problem, int device, char* text,
                          std::size_t size) {
    try {
        kernel_for(*problem, device);
        return 1;
    } catch (const std::exception& error) {
        std::snprintf(text, size, "%s", error.what());
        return 0;
    }
}

void fa_tune_torch_forget(const char* text) {
    refusal = text;
    // A lock that another thread held when the process forked is held for ever, so leave it.
    choices() = new Choices;
    ++generation;
}

std::size_t fa_tune_torch_choices(void) {
    Choices& all = *choices();
    const std::shared_lock<std::shared_mutex> lock(all.mutex);
    return all.exact.size() + all.buckets.size();
}

}  // extern "C"
