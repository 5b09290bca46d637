#include "launch.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <utility>

#include "problem.h"
#include "shares.h"
#include "tensor_maps.h"

namespace fa_tune::core {

namespace {

constexpr std::int64_t kMaxGridRows = 65535;  // of a grid's second and third dimension
constexpr std::int64_t kMaxGroupedHeads = 64;
constexpr double kL2Share = 0.5;
constexpr std::int64_t kRoomyDHead = 128;  // up to which the heads at work may have all of L2
constexpr int kPageKeys = 16;              // that a page has whole numbers of

long long wide(std::int64_t value) { return value; }  // for printf

std::int64_t tile_rows_of_head(const fa_tune_launch_plan& plan, const fa_tune_problem& problem) {
    const std::int64_t rest = plan.tile_rows - 1;
    // Of a packed batch as many as there can be, whatever the lengths.
    if (problem.packed != 0) return (problem.total_q + problem.batch * rest) / plan.tile_rows;
    return (problem.seq_len_q + rest) / plan.tile_rows;
}

// Neighbouring query heads, a power of two, whose keys and values fit in their share of L2
// together.
std::int32_t l2_head_group(const fa_tune_problem& problem, std::int64_t l2_bytes, double share) {
    const std::int64_t columns = std::int64_t{problem.d_head} + d_v_of(problem);
    const std::int64_t of_kv_head = problem.seq_len_kv * columns * kElementBytes;
    const double of_head =
        static_cast<double>(of_kv_head) / static_cast<double>(problem.heads / problem.kv_heads);
    std::int32_t heads = 1;
    while (heads < kMaxGroupedHeads &&
           2 * heads * of_head <= share * static_cast<double>(l2_bytes)) {
        heads *= 2;
    }
    return heads;
}

// The part of L2 for the heads at work: fa_tune/families/sm90/launch.py, _l2_share.
double l2_share(const fa_tune_problem& problem) {
    const bool large = std::max<std::int64_t>(problem.d_head, d_v_of(problem)) > kRoomyDHead;
    return large || problem.packed != 0 ? kL2Share : 1.0;
}

Status set_grid(const fa_tune_launch_plan& plan, const Call& call, const Shares& shares,
                LaunchStep& step) {
    const fa_tune_problem& problem = call.problem;
    const std::int64_t blocks = tile_rows_of_head(plan, problem);
    if (plan.grid == FA_TUNE_GRID_BLOCKS_HEADS_BATCH) {
        for (const auto& [name, size] :
             {std::pair{"heads", problem.heads}, std::pair{"batch", batch_of(problem)}}) {
            if (size > kMaxGridRows) {
                return failure(FA_TUNE_INVALID, "%s must be at most %lld, not %lld", name,
                               wide(kMaxGridRows), wide(size));
            }
        }
        step.grid[0] = static_cast<unsigned>(blocks);
        step.grid[1] = static_cast<unsigned>(problem.heads);
        step.grid[2] = static_cast<unsigned>(batch_of(problem));
    } else if (plan.share_keys > 0) {
        const bool rows = plan.grid == FA_TUNE_GRID_TILES_ROWS;
        step.grid[0] = static_cast<unsigned>(rows ? shares.tiles : shares.ctas);
        step.grid[1] = static_cast<unsigned>(rows ? shares.part_rows : 1);
        step.grid[2] = 1;
    } else {
        // Sizes are below 2^31, so each product is below 2^62 once the other is a number of tiles.
        std::int64_t tiles = blocks * problem.heads;
        if (tiles <= kMaxTiles) tiles *= batch_of(problem);
        if (tiles > kMaxTiles) {
            return failure(FA_TUNE_INVALID, "%s has more than %lld tiles, which a launch takes",
                           key_of(problem).c_str(), wide(kMaxTiles));
        }
        const std::int64_t resident =
            std::max<std::int64_t>(1, std::int64_t{call.device.multiprocessors} * plan.ctas_per_sm);
        const bool persistent = plan.grid == FA_TUNE_GRID_PERSISTENT;
        step.grid[0] = static_cast<unsigned>(persistent ? std::min(tiles, resident) : tiles);
        step.grid[1] = step.grid[2] = 1;
    }
    const std::int32_t cluster[3] = {plan.cluster_x, plan.cluster_y, plan.cluster_z};
    for (int i = 0; i < 3; ++i) {
        step.cluster[i] = static_cast<unsigned>(cluster[i]);
        if (step.grid[i] % step.cluster[i] != 0) {
            return failure(FA_TUNE_INVALID,
                           "a grid of %u x %u x %u has no whole clusters of %d x %d x %d",
                           step.grid[0], step.grid[1], step.grid[2], plan.cluster_x, plan.cluster_y,
                           plan.cluster_z);
        }
    }
    return {};
}

Status set_maps(const Driver& driver, const fa_tune_launch_plan& plan, const Call& call,
                LaunchStep& step) {
    const fa_tune_problem& p = call.problem;
    const MapShape queries{p.d_head, rows_of(p), p.heads, plan.q_box_rows};
    const MapShape keys{p.d_head, keys_of(p), p.kv_heads, plan.kv_box_rows};
    const MapShape values{d_v_of(p), keys_of(p), p.kv_heads, plan.kv_box_rows};
    const MapShape outputs{d_v_of(p), rows_of(p), p.heads, plan.q_box_rows};
    Status status = encode_map(driver, p, call.tensors.q, queries, step.maps[0]);
    if (status.ok()) status = encode_map(driver, p, call.tensors.k, keys, step.maps[1]);
    if (status.ok()) status = encode_map(driver, p, call.tensors.v, values, step.maps[2]);
    if (status.ok()) status = encode_map(driver, p, call.tensors.o, outputs, step.maps[3]);
    return status;
}

sm80::TensorStrides strides_of(const fa_tune_tensor& tensor) {
    return {tensor.batch_stride, tensor.seq_stride, tensor.head_stride};
}

// Masks, and what changes scores.
template <class Params>
void set_scores(const Call& call, Params& params) {
    const fa_tune_problem& problem = call.problem;
    const fa_tune_tensors& tensors = call.tensors;
    params.diagonal = last_diagonal_of(problem);
    const double scale = scale_of(problem), cap = problem.softcap;
    params.softmax_scale = static_cast<float>(cap != 0 ? 2 * cap : scale);
    ScoreParams& score = params.score;
    score.score_scale = static_cast<float>(cap != 0 ? -2 * scale / cap / std::log(2) : scale);
    score.sink = static_cast<const float*>(tensors.sink);
    score.alibi_slopes = static_cast<const float*>(tensors.alibi_slopes);
    score.alibi_batch_stride = static_cast<int>(tensors.alibi_batch_stride);
    score.first_diagonal = first_diagonal_of(problem);
    if (problem.alibi != 0) {
        const auto farthest = std::int64_t{1} << 30;
        score.alibi_diagonal =
            static_cast<int>(std::clamp(diagonal_of(problem), -farthest, farthest));
    }
}

// What forward kernels of all families are told.
template <class Params>
void set_problem(const Call& call, Params& params) {
    const fa_tune_problem& problem = call.problem;
    const fa_tune_tensors& tensors = call.tensors;
    params.heads = static_cast<int>(problem.heads);
    params.heads_per_kv = static_cast<int>(problem.heads / problem.kv_heads);
    params.seq_len_q = static_cast<int>(rows_of(problem));
    params.seq_len_kv = static_cast<int>(keys_of(problem));
    set_scores(call, params);
    if (problem.packed != 0) {
        params.packed = {static_cast<int>(problem.batch),
                         0,
                         tensors.cu_seqlens_q,
                         tensors.cu_seqlens_kv,
                         tensors.used_q,
                         tensors.used_kv,
                         static_cast<PackedMember*>(tensors.workspace)};
    }
}

void set_params(const fa_tune_launch_plan& plan, const Call& call, sm80::ForwardParams& params) {
    const fa_tune_tensors& tensors = call.tensors;
    params.q = static_cast<const unsigned short*>(tensors.q.address);
    params.k = static_cast<const unsigned short*>(tensors.k.address);
    params.v = static_cast<const unsigned short*>(tensors.v.address);
    params.o = static_cast<unsigned short*>(tensors.o.address);
    params.lse = static_cast<float*>(tensors.lse);
    params.q_strides = strides_of(tensors.q);
    params.k_strides = strides_of(tensors.k);
    params.v_strides = strides_of(tensors.v);
    params.o_strides = strides_of(tensors.o);
    set_problem(call, params);
    params.batch = static_cast<int>(batch_of(call.problem));
    if (plan.grid != FA_TUNE_GRID_BLOCKS_HEADS_BATCH) {
        params.l2_head_group = l2_head_group(call.problem, call.device.l2_bytes, kL2Share);
    }
}

void set_params(const fa_tune_launch_plan& plan, const Call& call, sm90::ForwardParams& params) {
    params.lse = static_cast<float*>(call.tensors.lse);
    set_problem(call, params);
    params.m_blocks = static_cast<int>(tile_rows_of_head(plan, call.problem));
    params.total_heads = static_cast<int>(call.problem.heads * batch_of(call.problem));
    params.l2_head_group =
        l2_head_group(call.problem, call.device.l2_bytes, l2_share(call.problem));
}

// Of 0, by which nothing is divided, zeros.
decode::Divisor divisor_of(std::int64_t number) {
    if (number == 0) return {};
    int shift = 0;
    while (std::int64_t{1} << shift < number) ++shift;
    const std::uint64_t rounded_up = (std::uint64_t{1} << (31 + shift)) + number - 1;
    return {static_cast<unsigned>(rounded_up / number), shift};
}

void set_params(const Call& call, const Shares& shares, decode::DecodeParams& params) {
    const fa_tune_tensors& tensors = call.tensors;
    const fa_tune_problem& problem = call.problem;
    params.q = static_cast<const unsigned short*>(tensors.q.address);
    params.k = static_cast<const unsigned short*>(tensors.k.address);
    params.v = static_cast<const unsigned short*>(tensors.v.address);
    params.o = static_cast<unsigned short*>(tensors.o.address);
    params.lse = static_cast<float*>(tensors.lse);
    params.parts = static_cast<float*>(tensors.workspace);
    const fa_tune_cache& cache = tensors.cache;
    const auto strides = [](const fa_tune_tensor& tensor) {
        return decode::TensorStrides{tensor.batch_stride, tensor.seq_stride, tensor.head_stride};
    };
    params.cache = {cache.lengths,
                    cache.pages,
                    cache.added,
                    cache.page_size,
                    cache.page_stride,
                    static_cast<const unsigned short*>(cache.new_k.address),
                    static_cast<const unsigned short*>(cache.new_v.address),
                    strides(cache.new_k),
                    strides(cache.new_v)};
    params.scales = {
        static_cast<const float*>(tensors.k_scale), static_cast<const float*>(tensors.v_scale),
        static_cast<int>(tensors.scale_batch_stride), static_cast<int>(tensors.scale_head_stride)};
    params.q_strides = strides(tensors.q);
    params.k_strides = strides(tensors.k);
    params.v_strides = strides(tensors.v);
    params.o_strides = strides(tensors.o);
    params.heads_per_kv = static_cast<int>(problem.heads / problem.kv_heads);
    params.kv_heads = static_cast<int>(problem.kv_heads);
    params.batch = static_cast<int>(problem.batch);
    params.seq_len_q = static_cast<int>(problem.seq_len_q);
    params.seq_len_kv = static_cast<int>(problem.seq_len_kv);
    params.row_tiles = static_cast<int>(shares.row_tiles);
    params.blocks = static_cast<int>(shares.blocks);
    params.pitch = static_cast<int>(shares.pitch);
    params.share = static_cast<int>(shares.share);
    params.ctas = static_cast<int>(shares.ctas);
    params.part_rows = static_cast<int>(shares.part_rows);
    const std::int64_t tiles = problem.kv_heads * shares.row_tiles;
    params.by = {
        divisor_of(params.heads_per_kv), divisor_of(shares.row_tiles),     divisor_of(tiles),
        divisor_of(shares.pitch),        divisor_of(tiles * shares.pitch), divisor_of(shares.share),
        divisor_of(cache.page_size)};
    set_scores(call, params);
    if (cache.lengths == nullptr) return;
    // Less keys - seq_len_q, which the kernel adds.
    const auto within = [](std::int64_t keys) {
        return static_cast<int>(std::min(keys, std::int64_t{1} << 30));
    };
    const bool left = (problem.window & FA_TUNE_WINDOW_LEFT) != 0;
    params.diagonal = is_causal(problem) ? 0 : within(problem.window_right);
    params.score.first_diagonal = -within(left ? problem.window_left : problem.seq_len_kv);
}

// Whether a stride in elements is whole chunks.
bool is_chunks(std::int64_t stride) { return stride % (kChunkBytes / kElementBytes) == 0; }

Status check_tensor(const char* name, std::int64_t batch, const fa_tune_tensor& tensor,
                    std::int64_t rows, std::int64_t heads) {
    const auto address = reinterpret_cast<std::uintptr_t>(tensor.address);
    if (address == 0) return failure(FA_TUNE_INVALID, "%s is missing", name);
    const bool aligned = address % kChunkBytes == 0 &&
                         (batch == 1 || is_chunks(tensor.batch_stride)) &&
                         (rows == 1 || is_chunks(tensor.seq_stride)) &&
                         (heads == 1 || is_chunks(tensor.head_stride));
    if (aligned) return {};
    return failure(FA_TUNE_INVALID,
                   "%s must have every row at a multiple of %d bytes; it starts at address %#llx "
                   "and has strides (%lld, %lld, %lld) of %d-byte elements",
                   name, kChunkBytes, static_cast<unsigned long long>(address),
                   wide(tensor.batch_stride), wide(tensor.seq_stride), wide(tensor.head_stride),
                   kElementBytes);
}

Status check_cache(const fa_tune_launch_plan& plan, const Call& call) {
    const fa_tune_cache& cache = call.tensors.cache;
    const fa_tune_tensor *k = &cache.new_k, *v = &cache.new_v;
    const bool has_new = k->address != nullptr || v->address != nullptr;
    if (cache.lengths == nullptr && cache.pages == nullptr && !has_new) return {};
    if (plan.share_keys == 0) {
        return failure(FA_TUNE_INVALID,
                       "this kernel takes no lengths or pages that only the device knows");
    }
    if (cache.pages != nullptr && (cache.page_size < 1 || cache.page_size % kPageKeys != 0)) {
        return failure(FA_TUNE_INVALID, "page_size must be a multiple of %d, not %d", kPageKeys,
                       cache.page_size);
    }
    if (cache.lengths != nullptr && cache.added < 0) {
        return failure(FA_TUNE_INVALID, "added must be at least 0, not %d", cache.added);
    }
    if (!has_new) return {};
    if (k->address == nullptr || v->address == nullptr || cache.lengths == nullptr) {
        return failure(FA_TUNE_INVALID, "new keys and values come together, and with lengths");
    }
    if (cache.added < 1) {
        return failure(FA_TUNE_INVALID, "added must be at least 1, not %d", cache.added);
    }
    const fa_tune_problem& problem = call.problem;
    if ((problem.window & FA_TUNE_WINDOW_LEFT) != 0 &&
        cache.added - problem.seq_len_q > problem.window_left) {
        return failure(FA_TUNE_INVALID,
                       "a window of %lld to the left does not see all of %d new keys",
                       wide(problem.window_left), cache.added);
    }
    Status status = check_tensor("new_k", problem.batch, *k, cache.added, problem.kv_heads);
    if (!status.ok()) return status;
    return check_tensor("new_v", problem.batch, *v, cache.added, problem.kv_heads);
}

}  // namespace

Status check_plan(const fa_tune_launch_plan& plan) {
    const struct {
        const char* name;
        std::int32_t value, least, most;
    } ranges[] = {
        {"params", plan.params, FA_TUNE_PARAMS_LAYOUT_SM80_FORWARD, FA_TUNE_PARAMS_LAYOUT_DECODE},
        {"grid", plan.grid, FA_TUNE_GRID_BLOCKS_HEADS_BATCH, FA_TUNE_GRID_TILES_ROWS},
        {"tile_rows", plan.tile_rows, 1, 1 << 16},
        {"ctas_per_sm", plan.ctas_per_sm, 1, 64},
        {"threads", plan.threads, 1, 1024},
        {"dynamic_smem_bytes", plan.dynamic_smem_bytes, 0, 1 << 20},
        {"cluster_x", plan.cluster_x, 1, 16},
        {"cluster_y", plan.cluster_y, 1, 16},
        {"cluster_z", plan.cluster_z, 1, 16},
        {"q_box_rows", plan.q_box_rows, 0, kMaxBoxRows},
        {"kv_box_rows", plan.kv_box_rows, plan.q_box_rows > 0 ? 1 : 0, kMaxBoxRows},
        {"counter_bytes", plan.counter_bytes, 0,
         static_cast<std::int32_t>(CounterSlots::kSlotBytes)},
        {"share_keys", plan.share_keys, plan.params == FA_TUNE_PARAMS_LAYOUT_DECODE ? 1 : 0,
         plan.params == FA_TUNE_PARAMS_LAYOUT_DECODE ? 1 << 16 : 0},
        {"min_blocks", plan.min_blocks, plan.share_keys > 0 ? 1 : 0, 1 << 16},
        {"aligned", plan.aligned, 0, plan.share_keys > 0 ? 1 : 0},
        {"dependent", plan.dependent, 0, 1},
    };
    for (const auto& [name, value, least, most] : ranges) {
        if (value < least || value > most) {
            return failure(FA_TUNE_INVALID, "%s of a launch plan must be between %d and %d, not %d",
                           name, least, most, value);
        }
    }
    return {};
}

Status workspace_bytes(const fa_tune_launch_plan& plan, const fa_tune_problem& problem,
                       const Device& device, std::int64_t* bytes) {
    const bool has_list = problem.packed != 0 && plan.q_box_rows > 0;
    *bytes = has_list ? static_cast<std::int64_t>(sizeof(PackedMember)) * (problem.batch + 1) : 0;
    if (plan.share_keys == 0 || plan.cluster_x > 1) return {};
    Shares shares{};
    Status status = share_blocks(plan, problem, device, shares);
    if (!status.ok()) return status;
    constexpr int kParts = 2, kRowSums = 2, kSumBytes = 4;
    const std::int64_t columns = d_v_of(problem) + kRowSums;
    *bytes = kParts * shares.most_ctas * shares.part_rows * columns * kSumBytes;
    return {};
}

Status check_tensors(const fa_tune_problem& problem, const fa_tune_tensors& tensors) {
    const std::int64_t rows = rows_of(problem), keys = keys_of(problem), batch = batch_of(problem);
    const std::int64_t of_keys = tensors.cache.pages == nullptr ? batch : 2;  // pages, or more
    Status status = check_tensor("Q", batch, tensors.q, rows, problem.heads);
    if (status.ok()) status = check_tensor("K", of_keys, tensors.k, keys, problem.kv_heads);
    if (status.ok()) status = check_tensor("V", of_keys, tensors.v, keys, problem.kv_heads);
    if (status.ok()) status = check_tensor("O", batch, tensors.o, rows, problem.heads);
    if (!status.ok()) return status;
    const bool packed = problem.packed != 0;
    const struct {
        const char* name;
        bool wanted;
        const void* address;
    } more[] = {{"sink", problem.sink != 0, tensors.sink},
                {"alibi_slopes", problem.alibi != 0, tensors.alibi_slopes},
                {"cu_seqlens_q", packed, tensors.cu_seqlens_q},
                {"cu_seqlens_kv", packed, tensors.cu_seqlens_kv}};
    for (const auto& [name, wanted, address] : more) {
        if (wanted && address == nullptr) {
            return failure(FA_TUNE_INVALID, "%s needs %s, which the launch does not give",
                           key_of(problem).c_str(), name);
        }
    }
    const bool scaled = tensors.k_scale != nullptr || tensors.v_scale != nullptr;
    for (const auto& [name, stride, used] :
         {std::tuple("alibi_batch_stride", tensors.alibi_batch_stride,
                     tensors.alibi_slopes != nullptr && problem.batch > 1),
          std::tuple("scale_batch_stride", tensors.scale_batch_stride, scaled && problem.batch > 1),
          std::tuple("scale_head_stride", tensors.scale_head_stride,
                     scaled && problem.kv_heads > 1)}) {
        if (used && (stride < INT32_MIN || stride > INT32_MAX)) {
            return failure(FA_TUNE_INVALID, "%s must fit 32 bits, not %lld", name, wide(stride));
        }
    }
    if (problem.lse == 0) return {};
    if (tensors.lse == nullptr) {
        return failure(FA_TUNE_INVALID, "%s has the log-sum-exp: the launch must give lse",
                       key_of(problem).c_str());
    }
    const auto address = reinterpret_cast<std::uintptr_t>(tensors.lse);
    if (address % kChunkBytes == 0) return {};
    return failure(FA_TUNE_INVALID, "lse must start at a multiple of %d bytes, not at %#llx",
                   kChunkBytes, static_cast<unsigned long long>(address));
}

Status check_workspace(const fa_tune_launch_plan& plan, const Call& call) {
    std::int64_t needed = 0;
    const Status status = workspace_bytes(plan, call.problem, call.device, &needed);
    if (!status.ok() || needed == 0) return status;
    const auto address = reinterpret_cast<std::uintptr_t>(call.tensors.workspace);
    if (address != 0 && address % kChunkBytes == 0) return {};
    if (address != 0) {
        return failure(FA_TUNE_INVALID,
                       "workspace must start at a multiple of %d bytes, not at %#llx", kChunkBytes,
                       static_cast<unsigned long long>(address));
    }
    return failure(FA_TUNE_INVALID,
                   "%s needs a workspace of fa_tune_workspace_bytes: the launch must give it",
                   key_of(call.problem).c_str());
}

Status make_step(const Driver& driver, const fa_tune_launch_plan& plan, const Call& call,
                 LaunchStep& step) {
    Shares shares{};
    Status status = check_cache(plan, call);
    if (status.ok()) status = check_workspace(plan, call);
    if (status.ok() && plan.share_keys > 0) {
        status = share_blocks(plan, call.problem, call.device, shares);
        if (status.ok() && call.tensors.cache.lengths != nullptr) {
            status = share_on_device(plan, call.problem, shares);
        }
    }
    if (!status.ok()) return status;
    status = set_grid(plan, call, shares, step);
    if (!status.ok()) return status;
    step.threads = static_cast<unsigned>(plan.threads);
    step.shared_bytes = static_cast<unsigned>(plan.dynamic_smem_bytes);
    step.dependent = plan.dependent != 0;
    void** next = step.pointers;
    if (plan.q_box_rows > 0) {
        status = set_maps(driver, plan, call, step);
        if (!status.ok()) return status;
        for (CUtensorMap& map : step.maps) *next++ = &map;
    }
    std::memset(&step.params, 0, sizeof step.params);
    if (plan.params == FA_TUNE_PARAMS_LAYOUT_SM80_FORWARD) {
        set_params(plan, call, step.params.sm80_forward);
    } else if (plan.params == FA_TUNE_PARAMS_LAYOUT_DECODE) {
        set_params(call, shares, step.params.decode);
    } else {
        set_params(plan, call, step.params.sm90_forward);
    }
    *next = &step.params;
    return {};
}

void set_counters(const fa_tune_launch_plan& plan, CUdeviceptr counters, LaunchStep& step) {
    auto* words = reinterpret_cast<unsigned*>(static_cast<std::uintptr_t>(counters));
    if (plan.params == FA_TUNE_PARAMS_LAYOUT_SM80_FORWARD) {
        step.params.sm80_forward.counters = words;
    } else if (plan.params == FA_TUNE_PARAMS_LAYOUT_DECODE) {
        step.params.decode.counters = words;
    } else {
        step.params.sm90_forward.counters = words;
    }
}

}  // namespace fa_tune::core
