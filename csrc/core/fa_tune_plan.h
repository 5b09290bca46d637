// A plan: what the core needs to know of a compiled kernel to launch it.
// Generated from fa_tune/families/plan.py by `python -m fa_tune.export.config_headers`; do not
// edit.
#pragma once

#include <stdint.h>

// Element type of Q, K, V and O; the values are those of torch's ScalarType.
typedef enum fa_tune_dtype {
    FA_TUNE_DTYPE_FP16 = 5,
    FA_TUNE_DTYPE_BF16 = 15,
} fa_tune_dtype;

// What a kernel computes.
typedef enum fa_tune_operation {
    FA_TUNE_OPERATION_FORWARD = 0,
} fa_tune_operation;

// Which devices run what was compiled for some compute capability.
//
// MINOR: a cubin, the same major version and no lower minor one.
// EXACT: architecture-specific code (sm_90a), that very one.
// LATER: PTX, that one and every later one.
typedef enum fa_tune_portability {
    FA_TUNE_PORTABILITY_MINOR = 0,
    FA_TUNE_PORTABILITY_EXACT = 1,
    FA_TUNE_PORTABILITY_LATER = 2,
} fa_tune_portability;

// The parameters that a kernel takes after its tensor maps.
//
// SM80_FORWARD: kernels/sm80/fwd/params.cuh, ForwardParams.
// SM90_FORWARD: kernels/sm90/fwd/params.cuh, ForwardParams.
// DECODE: kernels/decode/params.cuh, DecodeParams.
typedef enum fa_tune_params_layout {
    FA_TUNE_PARAMS_LAYOUT_SM80_FORWARD = 0,
    FA_TUNE_PARAMS_LAYOUT_SM90_FORWARD = 1,
    FA_TUNE_PARAMS_LAYOUT_DECODE = 2,
} fa_tune_params_layout;

// How CTAs are numbered.
//
// BLOCKS_HEADS_BATCH: x, blocks of query rows; y, heads; z, batch.
// TILES: x, a CTA for each tile, which is a block of query rows of one head.
// PERSISTENT: x, as many as are resident at a time, at most one for each tile.
// SHARES: x, as many as are resident at a time; they share the blocks of keys of all tiles
// evenly.  A tile is rows of all query heads that share one of K and V.  With clusters there is
// one for each tile.
// TILES_ROWS: x, these tiles; y, the rows of one.
typedef enum fa_tune_grid {
    FA_TUNE_GRID_BLOCKS_HEADS_BATCH = 0,
    FA_TUNE_GRID_TILES = 1,
    FA_TUNE_GRID_PERSISTENT = 2,
    FA_TUNE_GRID_SHARES = 3,
    FA_TUNE_GRID_TILES_ROWS = 4,
} fa_tune_grid;

// One launch of a call.
typedef struct fa_tune_launch_plan {
    // parameters of the kernel: fa_tune_params_layout
    int32_t params;
    // how CTAs are numbered: fa_tune_grid
    int32_t grid;
    // query rows of a CTA's tile
    int32_t tile_rows;
    // resident CTAs of a multiprocessor that a persistent grid counts on
    int32_t ctas_per_sm;
    // threads of a CTA
    int32_t threads;
    // dynamic shared memory of a CTA
    int32_t dynamic_smem_bytes;
    // CTAs of a cluster along x, as it was compiled; 1 is none
    int32_t cluster_x;
    // CTAs of a cluster along y
    int32_t cluster_y;
    // CTAs of a cluster along z
    int32_t cluster_z;
    // rows of a box of Q and of O; 0: the kernel takes no tensor maps, else those of Q, K, V and O
    // before its parameters
    int32_t q_box_rows;
    // rows of a box of K and of V
    int32_t kv_box_rows;
    // global memory of counters, zero before and after a launch; 0: none
    int32_t counter_bytes;
    // keys of a block, where CTAs share blocks of keys; 0: they do not
    int32_t share_keys;
    // of them that a CTA takes at least
    int32_t min_blocks;
    // 1: tiles begin where CTAs do, or at equal parts of them
    int32_t aligned;
    // 1: the launch may begin before the one in front of it is done; the kernel waits
    int32_t dependent;
} fa_tune_launch_plan;

// A compiled variant: which problems it computes, on which devices.
typedef struct fa_tune_plan {
    // what it computes: fa_tune_operation
    int32_t operation;
    // kernels of a call, launched one after another
    int32_t launches;
    // element type of Q, K, V and O: fa_tune_dtype
    int32_t dtype;
    // head dimension of Q and K
    int32_t d_head;
    // head dimension of V and O
    int32_t d_v;
    // numbers of queries that are no multiples of it need `ragged`
    int32_t block_q;
    // numbers of keys that are no multiples of it need `ragged`
    int32_t block_kv;
    // 1: compiled with a causal mask or a right side of a window, which it always applies
    int32_t causal;
    // 1: compiled for lengths that are no multiples of the blocks
    int32_t ragged;
    // 1: compiled to write the log-sum-exp, always
    int32_t lse;
    // 1: compiled with a left side of a window, which it always applies
    int32_t window;
    // 1: compiled with a sink for each head
    int32_t sink;
    // 1: compiled with a soft cap, which it always applies
    int32_t softcap;
    // 1: compiled with ALiBi slopes, which it always applies
    int32_t alibi;
    // 1: compiled with a function for scores of one's own
    int32_t hook;
    // 1: compiled for packed batches, and for no others
    int32_t packed;
    // 1: compiled for K and V in e4m3, and for no other
    int32_t kv_e4m3;
    // 1: made for few rows that share a head of K and V: the default of no other problem
    int32_t few_rows;
    // compiled for: ten times the major version and the minor
    int32_t compute_capability;
    // which devices that serves: fa_tune_portability
    int32_t portability;
} fa_tune_plan;
