#include "table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>

#include "problem.h"

using namespace fa_tune::core;

namespace {

constexpr std::int64_t kTileRows = 16;  // no tile has fewer
// Doublings between problems of few rows beyond which a default is the better guess than what was
// tuned for the other; a doubling is not beyond, however it is rounded.
constexpr double kNearEnough = 1.001;

// When an entry serves: before the defaults, for lack of one, or, where one has few rows and the
// other many, last of all.
enum class Serves { kFirst, kAfterDefaults, kLast };

Sizes sizes_of(const fa_tune_problem& problem) {
    const auto log2 = [](std::int64_t size) { return std::log2(static_cast<double>(size)); };
    const std::int64_t rows = problem.packed != 0 ? problem.total_q : problem.batch;
    const std::int64_t group = problem.heads / problem.kv_heads;
    const std::int64_t shared = rows_of_kv_head(problem);
    const std::int64_t row_tiles = (shared + kMostTileRows - 1) / kMostTileRows;
    Sizes found{};
    found.seq_len_q = log2(problem.seq_len_q);
    found.seq_len_kv = log2(problem.seq_len_kv);
    found.work = log2(rows * problem.heads);
    found.group = log2(group);
    found.tiles =
        std::log2(static_cast<double>(rows * problem.kv_heads) * static_cast<double>(row_tiles));
    found.keys = log2(std::max(keys_seen_of(problem), std::int64_t{1}));
    found.rows = log2(std::max(kTileRows, (shared + row_tiles - 1) / row_tiles));
    found.decode_shape = is_decode_shape(problem);
    return found;
}

bool same_kind(const fa_tune_problem& a, const fa_tune_problem& b) {
    return a.operation == b.operation && a.dtype == b.dtype && a.d_head == b.d_head &&
           d_v_of(a) == d_v_of(b) && is_causal(a) == is_causal(b) && a.packed == b.packed &&
           a.kv_e4m3 == b.kv_e4m3 && a.exact == b.exact;
}

// What decides among entries that are equally near, the weightier first: whether it differs.
using Details = std::array<bool, 8>;

Details differing(const fa_tune_problem& a, const fa_tune_problem& b) {
    const auto side_differs = [&](std::int32_t side, std::int64_t one, std::int64_t other) {
        return (a.window & side) != (b.window & side) || one != other;
    };
    return {is_bottom_right(a) != is_bottom_right(b),
            a.lse != b.lse,
            side_differs(FA_TUNE_WINDOW_LEFT, a.window_left, b.window_left),
            side_differs(FA_TUNE_WINDOW_RIGHT, a.window_right, b.window_right),
            a.sink != b.sink,
            a.softcap != b.softcap,
            a.alibi != b.alibi,
            a.cached != b.cached};
}

// Other than what costs no time: the scale, and which diagonal.
bool same_time(const fa_tune_problem& a, const fa_tune_problem& b) {
    return a.batch == b.batch && a.heads == b.heads && a.kv_heads == b.kv_heads &&
           a.seq_len_q == b.seq_len_q && a.seq_len_kv == b.seq_len_kv && a.total_q == b.total_q &&
           a.total_kv == b.total_kv && differing(a, b) == Details{};
}

// Sequences of a cache may differ in length.
bool is_uneven(const fa_tune_problem& problem) { return problem.cached != 0 && problem.batch > 1; }

// Of two problems of few rows, in doublings.
double apart(const Sizes& a, const Sizes& b) {
    return std::abs(a.tiles - b.tiles) + std::abs(a.keys - b.keys) + std::abs(a.rows - b.rows);
}

// How well an entry serves, the smallest best; fa_tune/store/registry/lookup.py has the same
// rules.  All distances are in doublings.
using Rank = std::tuple<bool, Serves, double, double, Details, bool>;

Rank rank_of(const fa_tune_problem& entry, const Sizes& its, const fa_tune_problem& asked,
             const Sizes& wanted) {
    const double seq_len = (std::abs(its.seq_len_q - wanted.seq_len_q) +
                            std::abs(its.seq_len_kv - wanted.seq_len_kv)) /
                           2.0;
    const double work = std::abs(its.work - wanted.work);
    const double group = std::abs(its.group - wanted.group);
    double distance = seq_len + work + group;
    bool first = entry.cached != 0 || !is_uneven(asked);  // else it was tuned for equal lengths
    if (its.decode_shape && wanted.decode_shape) {
        distance = apart(its, wanted);
        first = first && distance <= kNearEnough;
    }
    Serves serves = first ? Serves::kFirst : Serves::kAfterDefaults;
    if (its.decode_shape != wanted.decode_shape) serves = Serves::kLast;
    const bool same = same_time(entry, asked);
    return {!same,
            serves,
            distance,
            seq_len,
            differing(entry, asked),
            !same || scale_of(entry) != scale_of(asked)};
}

// Only what the choice depends on, the rest 0.
fa_tune_problem reduced(const fa_tune_problem& given) {
    fa_tune_problem found = given.window != 0 ? with_settled_window(given) : given;
    const bool causal = is_causal(found), bottom_right = is_bottom_right(found);
    const bool aligned = bottom_right && (found.window != 0 || found.alibi != 0);
    if (causal || !aligned) found.diagonal = 0;
    found.mask = causal    ? bottom_right ? FA_TUNE_MASK_CAUSAL_BR : FA_TUNE_MASK_CAUSAL
                 : aligned ? FA_TUNE_MASK_FULL_DIAGONAL
                           : FA_TUNE_MASK_FULL;
    found.d_head_v = d_v_of(found);
    found.softmax_scale = scale_of(found);
    found.score_hook = 0;
    // Kernels of these are exact, and entries do not say so.
    if (found.cached != 0 || found.operation != FA_TUNE_OPERATION_FORWARD) found.exact = 0;
    return found;
}

std::size_t hash_of(const fa_tune_problem& problem, int device) {
    std::uint64_t words[sizeof problem / sizeof(std::uint64_t)];
    static_assert(sizeof words == sizeof problem);
    std::memcpy(words, &problem, sizeof words);
    std::uint64_t hash = static_cast<std::uint64_t>(device) + 1;
    for (const std::uint64_t word : words) {
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 32;
    }
    return static_cast<std::size_t>(hash);
}

// Words in order, each once; `none` for lack of any.
std::string listed(std::vector<std::string> words, const char* none) {
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    std::string text;
    for (const std::string& word : words) text += (text.empty() ? "" : "; ") + word;
    return text.empty() ? none : text;
}

// Of two kernels of a config that compute a problem, the one to take: compiled for more of the
// device, and for no more lengths than it needs.
bool better(const fa_tune_plan& a, const fa_tune_plan& b) {
    const auto merit = [](const fa_tune_plan& plan) {
        return std::tuple(plan.portability != FA_TUNE_PORTABILITY_LATER, plan.compute_capability,
                          plan.portability == FA_TUNE_PORTABILITY_EXACT, plan.ragged == 0);
    };
    return merit(a) > merit(b);
}

// Whether a default is for such a problem.  Kernels for few rows are for no other, and by no larger
// a tile than rows need, as `suits` of their family has it.
bool suits(const fa_tune_kernel& kernel, const fa_tune_problem& problem) {
    if (kernel.plan().decode_shape == 0) return true;
    const std::int64_t rows = kernel.tile_rows();
    return is_decode_shape(problem) && (rows <= kTileRows || rows < 2 * rows_of_kv_head(problem));
}

}  // namespace

fa_tune_table::~fa_tune_table() {
    for (auto& found : found_) delete found.load(std::memory_order_acquire);
}

fa_tune_table::fa_tune_table(const fa_tune_table_info& info) {
    for (const auto& [name, count, there] :
         {std::tuple("kernels", info.kernel_count, info.kernels != nullptr),
          std::tuple("entries", info.entry_count, info.entries != nullptr),
          std::tuple("defaults", info.default_count, info.defaults != nullptr),
          std::tuple("sized_defaults", info.sized_default_count, info.sized_defaults != nullptr)}) {
        if (count > 0 && !there) {
            fail(FA_TUNE_INVALID, "%s of a table is NULL, but there are %zu", name, count);
        }
    }
    for (std::size_t i = 0; i < info.kernel_count; ++i) {
        kernels_.push_back(fa_tune_kernel::create(info.kernels[i]));
        by_config_[kernels_.back()->config()].push_back(kernels_.back().get());
    }
    for (std::size_t i = 0; i < info.entry_count; ++i) {
        const fa_tune_entry& entry = info.entries[i];
        check_problem(entry.problem);
        const char* config = config_of(entry.config, "an entry");
        if (entry.gpu == nullptr) fail(FA_TUNE_INVALID, "an entry has no GPU");
        entries_.push_back({entry.gpu, reduced(entry.problem), sizes_of(entry.problem), config});
    }
    for (std::size_t i = 0; i < info.default_count; ++i) {
        defaults_.emplace_back(config_of(info.defaults[i], "a default"));
    }
    for (std::size_t i = 0; i < info.sized_default_count; ++i) {
        const fa_tune_sized_default& given = info.sized_defaults[i];
        check_problem(given.problem);
        const char* config = config_of(given.config, "a sized default");
        const Sizes sizes = sizes_of(given.problem);
        if (!sizes.decode_shape) {
            fail(FA_TUNE_INVALID, "a sized default is for %s, which is not of few queries",
                 key_of(given.problem).c_str());
        }
        sized_defaults_.push_back(
            {given.compute_capability, reduced(given.problem), sizes, config});
    }
}

const char* fa_tune_table::config_of(const char* config, const char* where) const {
    if (config == nullptr) fail(FA_TUNE_INVALID, "%s has no config", where);
    if (by_config_.count(config) != 0) return config;
    fail(FA_TUNE_INVALID, "%s names %s, which has no kernel", where, config);
}

fa_tune_kernel* fa_tune_table::find(const fa_tune_problem& problem, const Device& device,
                                    std::string* why) const {
    check_problem(problem);
    if (fa_tune_kernel* kernel = look_up(reduced(problem), device, why)) return kernel;
    throw Failure(FA_TUNE_NOT_FOUND,
                  "no kernel computes " + key_of(problem) + " on " + device.name + ", sm_" +
                      std::to_string(device.compute_capability) + "; there is: " + kinds(nullptr));
}

fa_tune_kernel* fa_tune_table::look_up(const fa_tune_problem& asked, const Device& device,
                                       std::string* why) const {
    auto& place = found_[hash_of(asked, device.ordinal) % kRemembered];
    const Found* known = place.load(std::memory_order_acquire);
    if (why == nullptr && known != nullptr && known->device == device.ordinal &&
        std::memcmp(&known->problem, &asked, sizeof asked) == 0) {
        return known->kernel;
    }
    // A causal mask may hide nothing: kernels with one serve where there are no others.
    const bool is_moot = asked.mask == FA_TUNE_MASK_CAUSAL_BR && !is_causal(settled(asked));
    fa_tune_kernel* kernel = is_moot ? choose(reduced(settled(asked)), device, why) : nullptr;
    if (kernel == nullptr) kernel = choose(asked, device, why);
    if (kernel != nullptr && known == nullptr) {
        auto found = std::make_unique<Found>();
        std::memcpy(&found->problem, &asked, sizeof asked);
        found->device = device.ordinal;
        found->kernel = kernel;
        if (place.compare_exchange_strong(known, found.get(), std::memory_order_release,
                                          std::memory_order_relaxed)) {
            (void)found.release();
        }
    }
    return kernel;
}

fa_tune_kernel* fa_tune_table::choose(const fa_tune_problem& problem, const Device& device,
                                      std::string* why) const {
    std::vector<std::pair<Rank, std::size_t>> ranked;
    ranked.reserve(entries_.size());
    const Sizes wanted = sizes_of(problem);
    for (std::size_t i = 0; i < entries_.size(); ++i) {
        const Entry& entry = entries_[i];
        if (same_kind(entry.problem, problem) && entry.gpu == device.name) {
            ranked.emplace_back(rank_of(entry.problem, entry.sizes, problem, wanted), i);
        }
    }
    // Mostly the first one serves: a heap, not an order.
    const auto later = std::greater<>();
    std::make_heap(ranked.begin(), ranked.end(), later);
    const auto from_entries = [&](Serves last) -> fa_tune_kernel* {
        while (!ranked.empty() && std::get<1>(ranked.front().first) <= last) {
            std::pop_heap(ranked.begin(), ranked.end(), later);
            const auto [rank, i] = ranked.back();
            ranked.pop_back();
            const Entry& entry = entries_[i];
            fa_tune_kernel* kernel = kernel_of(entry.config, problem, device);
            if (kernel == nullptr) continue;
            if (why != nullptr) {
                const std::string key = key_of(entry.problem);
                *why =
                    entry.config + ": " +
                    (std::get<0>(rank) ? "no entry for " + key_of(problem) + "; nearest is " + key
                                       : "measured on " + key);
            }
            return kernel;
        }
        return nullptr;
    };
    fa_tune_kernel* kernel = from_entries(Serves::kFirst);
    if (kernel == nullptr) kernel = sized_default_for(problem, device, why);
    if (kernel == nullptr) kernel = default_for(problem, device, why);
    return kernel != nullptr ? kernel : from_entries(Serves::kLast);
}

fa_tune_kernel* fa_tune_table::default_for(const fa_tune_problem& problem, const Device& device,
                                           std::string* why) const {
    for (const std::string& config : defaults_) {
        fa_tune_kernel* kernel = kernel_of(config, problem, device);
        if (kernel == nullptr || !suits(*kernel, problem)) continue;
        if (why != nullptr) {
            *why = config + ": the default, for lack of an entry for " + key_of(problem) + " on " +
                   device.name;
        }
        return kernel;
    }
    return nullptr;
}

// Of the latest GPUs that are no later than this one, and of tiles that are no larger than it
// needs, the nearest; fa_tune/export/sizes.py has the same rule.
fa_tune_kernel* fa_tune_table::sized_default_for(const fa_tune_problem& problem,
                                                 const Device& device, std::string* why) const {
    const Sizes wanted = sizes_of(problem);
    if (!wanted.decode_shape) return nullptr;
    std::vector<std::tuple<int, double, double, std::size_t>> ranked;
    for (std::size_t i = 0; i < sized_defaults_.size(); ++i) {
        const SizedDefault& given = sized_defaults_[i];
        if (given.compute_capability <= device.compute_capability &&
            same_kind(given.problem, problem) && given.sizes.rows >= wanted.rows &&
            given.problem.cached == problem.cached &&
            is_uneven(given.problem) == is_uneven(problem)) {
            ranked.emplace_back(-given.compute_capability, given.sizes.rows,
                                apart(given.sizes, wanted), i);
        }
    }
    std::sort(ranked.begin(), ranked.end());
    for (const auto& rank : ranked) {
        const SizedDefault& given = sized_defaults_[std::get<3>(rank)];
        fa_tune_kernel* kernel = kernel_of(given.config, problem, device);
        if (kernel == nullptr) continue;
        if (why != nullptr) {
            *why = given.config + ": the default of " + key_of(given.problem) +
                   ", for lack of an entry for " + key_of(problem) + " on " + device.name;
        }
        return kernel;
    }
    return nullptr;
}

fa_tune_kernel* fa_tune_table::kernel_of(const std::string& config, const fa_tune_problem& problem,
                                         const Device& device) const {
    fa_tune_kernel* best = nullptr;
    for (fa_tune_kernel* kernel : by_config_.at(config)) {
        if (computes(kernel->plan(), problem) &&
            runs_on(kernel->plan(), device.compute_capability) &&
            (best == nullptr || better(kernel->plan(), best->plan()))) {
            best = kernel;
        }
    }
    return best;
}

fa_tune_kernel* fa_tune_table::find_config(const char* config, const fa_tune_problem& problem,
                                           const Device& device) const {
    check_problem(problem);
    if (by_config_.count(config) == 0) {
        std::vector<std::string> names;
        for (const auto& [name, kernels] : by_config_) names.push_back(name);
        throw Failure(FA_TUNE_NOT_FOUND, std::string("there is no ") + config +
                                             "; there is: " + listed(std::move(names), "none"));
    }
    if (fa_tune_kernel* kernel = kernel_of(config, problem, device)) return kernel;
    throw Failure(FA_TUNE_NOT_FOUND, std::string(config) + " has no kernel for " + key_of(problem) +
                                         " on sm_" + std::to_string(device.compute_capability) +
                                         "; it has: " + kinds(config));
}

void fa_tune_table::prepare(const Device& device) const {
    for (const auto& kernel : kernels_) {
        if (runs_on(kernel->plan(), device.compute_capability)) kernel->prepare(device.ordinal);
    }
}

// What there is of a config, or of all, each kind once.
std::string fa_tune_table::kinds(const char* config) const {
    std::vector<std::string> found;
    for (const auto& kernel : kernels_) {
        if (config == nullptr || kernel->config() == config)
            found.push_back(kind_of(kernel->plan()));
    }
    return listed(std::move(found), "nothing");
}
