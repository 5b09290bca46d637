#include "launch.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "operands.h"
#include "params/layout.h"
#include "problem.h"
#include "shares.h"
#include "tensor_maps.h"

namespace fa_tune::core {

namespace {

constexpr std::int64_t kMaxGridRows = 65535;  // of a grid's second and third dimension

std::int64_t tile_keys_of_head(const fa_tune_launch_plan& plan, const fa_tune_problem& problem) {
    return blocks_of(problem, keys_of(problem), plan.tile_rows);
}

void set_tile_grid(const fa_tune_launch_plan& plan, const Call& call, std::uint32_t* grid) {
    const fa_tune_problem& problem = call.problem;
    // Sizes are below 2^31, so each product is below 2^62 once the other is a number of tiles.
    const bool of_keys =
        plan.grid == FA_TUNE_GRID_KEY_TILES || plan.grid == FA_TUNE_GRID_PERSISTENT_KEYS;
    std::int64_t tiles = of_keys ? tile_keys_of_head(plan, problem) * problem.kv_heads
                                 : tile_rows_of_head(plan, problem) * problem.heads;
    if (tiles <= kMaxTiles) tiles *= batch_of(problem);
    const bool persistent =
        plan.grid == FA_TUNE_GRID_PERSISTENT || plan.grid == FA_TUNE_GRID_PERSISTENT_KEYS;
    if (!persistent && tiles <= kMaxTiles) tiles *= plan.cluster_x;
    if (tiles > kMaxTiles) {
        fail(FA_TUNE_INVALID, "%s has more than %lld tiles, which a launch takes",
             key_of(problem).c_str(), wide(kMaxTiles));
    }
    const std::int64_t resident =
        std::max<std::int64_t>(1, call.multiprocessors * plan.ctas_per_sm);
    grid[0] = static_cast<std::uint32_t>(persistent ? std::min(tiles, resident) : tiles);
    grid[1] = grid[2] = 1;
}

void set_grid(const fa_tune_launch_plan& plan, const Call& call, const Shares& shares,
              fa_tune_description& found) {
    const fa_tune_problem& problem = call.problem;
    std::uint32_t* grid = found.grid;
    if (plan.grid == FA_TUNE_GRID_BLOCKS_HEADS_BATCH) {
        for (const auto& [name, size] :
             {std::pair{"heads", problem.heads}, std::pair{"batch", batch_of(problem)}}) {
            if (size > kMaxGridRows) {
                fail(FA_TUNE_INVALID, "%s must be at most %lld, not %lld", name, wide(kMaxGridRows),
                     wide(size));
            }
        }
        grid[0] = static_cast<std::uint32_t>(tile_rows_of_head(plan, problem));
        grid[1] = static_cast<std::uint32_t>(problem.heads);
        grid[2] = static_cast<std::uint32_t>(batch_of(problem));
    } else if (plan.share_keys > 0) {
        const bool rows = plan.grid == FA_TUNE_GRID_TILES_ROWS;
        grid[0] = static_cast<std::uint32_t>(rows ? shares.tiles : shares.ctas);
        grid[1] = static_cast<std::uint32_t>(rows ? shares.part_rows : 1);
        grid[2] = 1;
    } else {
        set_tile_grid(plan, call, grid);
    }
    const std::int32_t cluster[3] = {plan.cluster_x, plan.cluster_y, plan.cluster_z};
    for (int i = 0; i < 3; ++i) {
        found.cluster[i] = static_cast<std::uint32_t>(cluster[i]);
        if (grid[i] % found.cluster[i] != 0) {
            fail(FA_TUNE_INVALID, "a grid of %u x %u x %u has no whole clusters of %d x %d x %d",
                 grid[0], grid[1], grid[2], plan.cluster_x, plan.cluster_y, plan.cluster_z);
        }
    }
}

void set_maps(const Launchable& launch, const Call& call, fa_tune_description& found) {
    const fa_tune_problem& p = call.problem;
    for (int i = 0; i < launch.layout->maps.count; ++i) {
        const fa_tune_tensor_role role = launch.layout->maps.of[i];
        const bool of_queries = role == FA_TUNE_TENSOR_Q || role == FA_TUNE_TENSOR_O ||
                                role == FA_TUNE_TENSOR_DO || role == FA_TUNE_TENSOR_DQ;
        const bool of_scores = role == FA_TUNE_TENSOR_Q || role == FA_TUNE_TENSOR_K ||
                               role == FA_TUNE_TENSOR_DQ || role == FA_TUNE_TENSOR_DK;
        const std::int32_t columns = of_scores ? p.d_head : d_v_of(p);
        const MapShape shape =
            of_queries ? MapShape{columns, rows_of(p), p.heads, launch.plan.q_box_rows}
                       : MapShape{columns, keys_of(p), p.kv_heads, launch.plan.kv_box_rows};
        found.maps[found.map_count++] =
            map_of(p, element_of(p, role), call.tensors.of[role], shape);
    }
}

}  // namespace

std::int64_t tile_rows_of_head(const fa_tune_launch_plan& plan, const fa_tune_problem& problem) {
    return blocks_of(problem, rows_of(problem), plan.tile_rows);
}

Launchable check_plan(const fa_tune_launch_plan& plan) {
    const char* name = plan.params == nullptr ? "" : plan.params;
    const ParamsLayout* layout = ParamsLayout::find(name);
    if (layout == nullptr) {
        fail(FA_TUNE_INVALID, "params of a launch plan: no kernel takes '%s' here", name);
    }
    const std::int32_t shares = layout->shares ? 1 : 0;
    check_ranges(
        "launch plan",
        {
            {"grid", plan.grid, FA_TUNE_GRID_BLOCKS_HEADS_BATCH, FA_TUNE_GRID_PERSISTENT_KEYS},
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
            {"share_keys", plan.share_keys, shares, shares << 16},
            {"min_blocks", plan.min_blocks, shares, 1 << 16},
            {"aligned", plan.aligned, 0, shares},
            {"order", plan.order, FA_TUNE_TILE_ORDER_SHARES,
             shares * FA_TUNE_TILE_ORDER_CTA_PER_TILE},
            {"dependent", plan.dependent, 0, 1},
            {"sum_rows", plan.sum_rows, 0, 1 << 16},
        });
    Launchable found{plan, layout};
    found.plan.params = layout->name;  // the caller's text need not stay
    return found;
}

std::int64_t workspace_bytes(const Launchable& launch, const fa_tune_problem& problem,
                             std::int64_t multiprocessors) {
    const fa_tune_launch_plan& plan = launch.plan;
    if (launch.layout->workspace != nullptr) return launch.layout->workspace(plan, problem);
    if (plan.share_keys == 0 || plan.cluster_x > 1) {
        const bool has_list = problem.packed != 0 && plan.q_box_rows > 0;
        return has_list ? kMemberBytes * (problem.batch + 1) : 0;
    }
    const Shares shares = share_blocks(plan, problem, multiprocessors);
    constexpr int kParts = 2, kRowSums = 2, kSumBytes = 4;
    const std::int64_t columns = d_v_of(problem) + kRowSums;
    return kParts * shares.most_ctas * shares.part_rows * columns * kSumBytes;
}

void describe(const Launchable& launch, const Call& call, fa_tune_description& found) {
    const fa_tune_launch_plan& plan = launch.plan;
    check_cache(plan, call);
    found.workspace_bytes =
        static_cast<std::uint64_t>(workspace_bytes(launch, call.problem, call.multiprocessors));
    Shares shares{};
    if (plan.share_keys > 0) {
        shares = share_blocks(plan, call.problem, call.multiprocessors);
        const bool lengths = call.tensors.of[FA_TUNE_TENSOR_CACHE_SEQLENS].address != nullptr;
        if (lengths) share_on_device(plan, call.problem, shares);
    }
    set_grid(plan, call, shares, found);
    found.block[0] = static_cast<std::uint32_t>(plan.threads);
    found.block[1] = found.block[2] = 1;
    found.shared_bytes = static_cast<std::uint32_t>(plan.dynamic_smem_bytes);
    found.dependent = plan.dependent;
    found.map_count = 0;
    if (plan.q_box_rows > 0) set_maps(launch, call, found);
    found.params_bytes = static_cast<std::uint32_t>(launch.layout->bytes);
    std::memset(found.params, 0, launch.layout->bytes);
    launch.layout->fill({plan, call, shares}, found.params);
}

void set_counters(const Launchable& launch, void* counters, fa_tune_description& found) {
    auto* params = reinterpret_cast<unsigned char*>(found.params);
    std::memcpy(params + launch.layout->counters, &counters, sizeof counters);
}

}  // namespace fa_tune::core
