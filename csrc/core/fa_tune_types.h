// What the core is told of problems, tensors and compiled kernels.
// Generated from fa_tune/build/native/abi.py and fa_tune/families/plan.py by
// `python -m fa_tune.export.config_headers`; do not edit.
#pragma once

#include <stddef.h>
#include <stdint.h>

// What a function of the core says.
//
// INVALID: a problem, tensor, plan or name that means nothing, or that the kernel does not
// compute.
// NOT_FOUND: nothing that is there computes it, or a config that is not there.
// NO_DRIVER: no CUDA driver, one that is too old, or no device.
// DRIVER_ERROR: the driver refused or failed; the text has its name for the error.
// CAPTURING: not loaded yet, which a stream that is being captured does not allow:
// fa_tune_prepare.
// NO_MEMORY: no host memory.
typedef enum fa_tune_status {
    FA_TUNE_OK = 0,
    FA_TUNE_INVALID = 1,
    FA_TUNE_NOT_FOUND = 2,
    FA_TUNE_NO_DRIVER = 3,
    FA_TUNE_DRIVER_ERROR = 4,
    FA_TUNE_CAPTURING = 5,
    FA_TUNE_NO_MEMORY = 6,
} fa_tune_status;

// Element type of Q, K, V and O; the values are those of torch's ScalarType.
typedef enum fa_tune_dtype {
    FA_TUNE_DTYPE_FP16 = 5,
    FA_TUNE_DTYPE_BF16 = 15,
} fa_tune_dtype;

// What a kernel computes.
typedef enum fa_tune_operation {
    FA_TUNE_OPERATION_FORWARD = 0,
    FA_TUNE_OPERATION_BACKWARD = 1,
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

// What a tensor is to a call: its place in fa_tune_tensors.
typedef enum fa_tune_tensor_role {
    FA_TUNE_TENSOR_Q = 0,
    FA_TUNE_TENSOR_K = 1,
    FA_TUNE_TENSOR_V = 2,
    FA_TUNE_TENSOR_O = 3,
    FA_TUNE_TENSOR_LSE = 4,
    FA_TUNE_TENSOR_SINK = 5,
    FA_TUNE_TENSOR_ALIBI_SLOPES = 6,
    FA_TUNE_TENSOR_CU_SEQLENS_Q = 7,
    FA_TUNE_TENSOR_CU_SEQLENS_KV = 8,
    FA_TUNE_TENSOR_USED_Q = 9,
    FA_TUNE_TENSOR_USED_KV = 10,
    FA_TUNE_TENSOR_K_SCALE = 11,
    FA_TUNE_TENSOR_V_SCALE = 12,
    FA_TUNE_TENSOR_CACHE_SEQLENS = 13,
    FA_TUNE_TENSOR_PAGE_TABLE = 14,
    FA_TUNE_TENSOR_NEW_K = 15,
    FA_TUNE_TENSOR_NEW_V = 16,
    FA_TUNE_TENSOR_DO = 17,
    FA_TUNE_TENSOR_DQ = 18,
    FA_TUNE_TENSOR_DK = 19,
    FA_TUNE_TENSOR_DV = 20,
    FA_TUNE_TENSOR_DLSE = 21,
    FA_TUNE_TENSORS = 22,
} fa_tune_tensor_role;

// How CTAs are numbered.
//
// BLOCKS_HEADS_BATCH: x, blocks of query rows; y, heads; z, batch.
// TILES: x, a CTA, or a cluster, for each tile, which is a block of query rows of one head.
// PERSISTENT: x, as many as are resident at a time, at most one for each tile.
// SHARES: x, as many as are resident at a time; they share the blocks of keys of all tiles
// evenly, or have tiles as TileOrder says.  A tile is rows of all query heads that share one of K
// and V.  With clusters there is one for each tile.
// TILES_ROWS: x, these tiles; y, the rows of one.
// KEY_TILES: x, a CTA, or a cluster, for each tile of keys of one head of K and V.
// PERSISTENT_KEYS: x, as many as are resident at a time, at most one for each of these.
typedef enum fa_tune_grid {
    FA_TUNE_GRID_BLOCKS_HEADS_BATCH = 0,
    FA_TUNE_GRID_TILES = 1,
    FA_TUNE_GRID_PERSISTENT = 2,
    FA_TUNE_GRID_SHARES = 3,
    FA_TUNE_GRID_TILES_ROWS = 4,
    FA_TUNE_GRID_KEY_TILES = 5,
    FA_TUNE_GRID_PERSISTENT_KEYS = 6,
} fa_tune_grid;

// Who has which tiles of a grid of shares.
//
// SHARES: all blocks of all tiles stand in a line, of which CTAs have equal parts.
// WHOLE_ROUNDS: CTAs have a whole tile each, and again: as many as need no more rounds.
// CTA_PER_TILE: a CTA for each tile, however many these are.
typedef enum fa_tune_tile_order {
    FA_TUNE_TILE_ORDER_SHARES = 0,
    FA_TUNE_TILE_ORDER_WHOLE_ROUNDS = 1,
    FA_TUNE_TILE_ORDER_CTA_PER_TILE = 2,
} fa_tune_tile_order;

// Which keys a query sees.
//
// CAUSAL: aligned top-left: query i sees key j when j <= i.
// CAUSAL_BR: aligned bottom-right: j <= i + seq_len_kv - seq_len_q.
// DIAGONAL: j <= i + diagonal.
// FULL_DIAGONAL: all, but what windows and ALiBi count from is i + diagonal.
typedef enum fa_tune_mask {
    FA_TUNE_MASK_FULL = 0,
    FA_TUNE_MASK_CAUSAL = 1,
    FA_TUNE_MASK_CAUSAL_BR = 2,
    FA_TUNE_MASK_DIAGONAL = 3,
    FA_TUNE_MASK_FULL_DIAGONAL = 4,
} fa_tune_mask;

// Sides of a window; both: their sum.
//
// LEFT: query i sees key j when j >= i + diagonal - window_left.
// RIGHT: query i sees key j when j <= i + diagonal + window_right; without a causal mask only.
typedef enum fa_tune_window {
    FA_TUNE_WINDOW_NONE = 0,
    FA_TUNE_WINDOW_LEFT = 1,
    FA_TUNE_WINDOW_RIGHT = 2,
} fa_tune_window;

// One launch of a call.
typedef struct fa_tune_launch_plan {
    // parameters of the kernel: the name of a file in csrc/core/params
    const char* params;
    // how CTAs are numbered: fa_tune_grid
    int32_t grid;
    // query rows, or keys, of a CTA's tile
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
    // rows of a box of Q, of O and their gradients; 0: the kernel takes no tensor maps, else those
    // that its parameters name before them
    int32_t q_box_rows;
    // rows of a box of K, of V and their gradients
    int32_t kv_box_rows;
    // global memory of counters, zero before and after a launch; 0: none
    int32_t counter_bytes;
    // keys of a block, where CTAs share blocks of keys; 0: they do not
    int32_t share_keys;
    // of them that a CTA takes at least
    int32_t min_blocks;
    // 1: tiles begin where CTAs do, or at equal parts of them
    int32_t aligned;
    // who has which of these tiles: fa_tune_tile_order
    int32_t order;
    // 1: the launch may begin before the one in front of it is done; the kernel waits
    int32_t dependent;
    // query rows of a tile of fp32 sums of dQ in the workspace of a backward pass; 0: none
    int32_t sum_rows;
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
    // 1: the largest weight of a row is exactly 1
    int32_t exact;
    // 1: made for few rows that share a head of K and V: the default of no other problem
    int32_t decode_shape;
    // compiled for: ten times the major version and the minor
    int32_t compute_capability;
    // which devices that serves: fa_tune_portability
    int32_t portability;
} fa_tune_plan;

// O = softmax(scores) V, scores = softmax_scale * Q K^T, changed by softcap, then by alibi,
// then by a hook.  The diagonal is 0, or as the mask says.
typedef struct fa_tune_problem {
    // fa_tune_operation
    int32_t operation;
    // fa_tune_dtype, of Q, K, V and O
    int32_t dtype;
    int64_t batch;
    int64_t heads;
    // divides heads
    int64_t kv_heads;
    int64_t seq_len_q;
    int64_t seq_len_kv;
    int32_t d_head;
    // fa_tune_mask
    int32_t mask;
    // with FA_TUNE_MASK_DIAGONAL and FA_TUNE_MASK_FULL_DIAGONAL only
    int64_t diagonal;
    // 1: the log-sum-exp of each row is wanted
    int32_t lse;
    // fa_tune_window
    int32_t window;
    // 1e-30 to 1e30; 0: the usual one, 1 / sqrt(d_head)
    double softmax_scale;
    // at least 0; 0 without that side of a window
    int64_t window_left;
    // the same
    int64_t window_right;
    // scores s become softcap * tanh(s / softcap), 1e-3 to 1e3; 0: none
    double softcap;
    // 1: each row's sum has another exponential, of the tensor of this role
    int32_t sink;
    // 1: less the head's slope times the distance |i + diagonal - j|
    int32_t alibi;
    // head dimension of V and O; 0: d_head
    int32_t d_head_v;
    // 1: sequences of any lengths one after another, see fa_tune_tensors
    int32_t packed;
    // Of a packed batch: the rows of Q in all.  seq_len_q and seq_len_kv are the longest then, and
    // a causal mask, whichever, is aligned bottom-right in each sequence.
    int64_t total_q;
    // the rows of K in all
    int64_t total_kv;
    // 1: K and V are e4m3, see fa_tune_tensors
    int32_t kv_e4m3;
    // 1: the device says how many keys each sequence has, or where they are.  It decides the choice
    // of a kernel alone: what is fastest where all are as long as one another may be slow where one
    // is much longer.
    int32_t cached;
    // 1: scores go through the function that the kernel was compiled with
    int32_t score_hook;
    // 1: only kernels whose largest weight is exactly 1; 0: any
    int32_t exact;
} fa_tune_problem;

// A tensor in device memory, whose last dimension is contiguous; address NULL: not given.
// The stride of an extent of 1 may be anything.
typedef struct fa_tune_tensor {
    void* address;
    // in elements, as all strides
    int64_t batch_stride;
    int64_t seq_stride;
    int64_t head_stride;
} fa_tune_tensor;

// The tensors of a call by their roles.
//
// Q [batch, seq_len_q, heads, d_head], K [batch, seq_len_kv, kv_heads, d_head], V and O like K
// and Q with d_head_v: the address and the strides in bytes are multiples of 16.
// LSE: fp32 [batch, heads, seq_len_q], contiguous, a multiple of 16; of a packed batch [heads,
// total_q].  SINK: fp32 [heads].  ALIBI_SLOPES: fp32 [batch, heads], heads contiguous; batch
// stride 0: the same slopes for the whole batch.  These are needed where the problem has them.
//
// A backward pass reads O and LSE as the forward pass left them (natural
// logarithms, a sink among them, -inf for rows that see no key) and DO, like O, and no SINK; where
// the problem has lse 1 also DLSE, like LSE, the gradient of that.  It writes all of DQ, like Q,
// of DK, like K, and of DV, like V.
//
// Of a packed batch Q and O are [total_q, heads, d_head], K and V [total_kv, kv_heads, d_head].
// CU_SEQLENS_Q, CU_SEQLENS_KV: int32 [batch + 1], sequence i is rows cu_seqlens[i] to
// cu_seqlens[i + 1].  USED_Q, USED_KV: int32 [batch], how many of them count; not given: all.
//
// What is known of K and V on the device alone is for kernels whose CTAs share blocks of keys
// (fa_tune_launch_plan); the others refuse it.
// CACHE_SEQLENS: int32 [batch]: sequence b has cache_seqlens[b] + added keys, seq_len_kv of the
// problem at most, and none if the sum is negative or beyond 2^31 - 1; a causal mask is then
// aligned bottom-right.  Not given: all have seq_len_kv.
// PAGE_TABLE: int32 [batch, pages of a sequence]: the page of each page_size keys.  K and V are
// then [pages, page_size, kv_heads, d_head].  Entries of pages that no query sees, behind a
// sequence's end or in front of a window, may be anything.  Not given: a sequence lies in one
// piece.
// NEW_K, NEW_V: [batch, added, kv_heads, ...], with CACHE_SEQLENS only: the last `added` keys and
// values of every sequence, which the call writes to their places in K and V.  Not given: they
// are there.  A window to the left must see all of them.
//
// NEW_K and NEW_V are of the type of K and V.  K_SCALE, V_SCALE: fp32 [batch, kv_heads], with the
// same strides, what numbers in e4m3 are multiplied with; not given: 1.
typedef struct fa_tune_tensors {
    fa_tune_tensor of[FA_TUNE_TENSORS];
    // fa_tune_workspace_bytes of device memory, a multiple of 16; NULL where these are 0.  Other
    // calls may use it once this one is done, and it may hold anything.
    void* workspace;
    // keys of a sequence beside CACHE_SEQLENS
    int32_t added;
    // a multiple of 16, with PAGE_TABLE
    int32_t page_size;
} fa_tune_tensors;

// A compiled variant.
typedef struct fa_tune_kernel_info {
    // Its name, which need not be unique, since one config may be compiled for several kinds of
    // problems and devices.
    const char* config;
    fa_tune_plan plan;
    // one for each launch, plan.launches
    const fa_tune_launch_plan* launches;
    // one for each launch
    const char* const* symbols;
    // A cubin, or PTX with a final zero; it is not copied and must stay as it is until the kernel
    // is destroyed.
    const void* image;
    size_t image_bytes;
} fa_tune_kernel_info;

// A workload that was tuned on a GPU model, and the config that was chosen for it.
typedef struct fa_tune_entry {
    // as the driver spells it: "NVIDIA H200"
    const char* gpu;
    fa_tune_problem problem;
    const char* config;
} fa_tune_entry;

// What runs problems of few queries that are like this one, if nobody tuned them, on GPUs of
// this compute capability (ten times the major version and the minor) and on later ones.
typedef struct fa_tune_sized_default {
    int32_t compute_capability;
    fa_tune_problem problem;
    const char* config;
} fa_tune_sized_default;

// `entries` that serve equally well are taken in their order.  `defaults`: configs for what
// nobody tuned, the one to prefer first; `sized_defaults` come before them where they serve.
typedef struct fa_tune_table_info {
    const fa_tune_kernel_info* kernels;
    size_t kernel_count;
    const fa_tune_entry* entries;
    size_t entry_count;
    const char* const* defaults;
    size_t default_count;
    const fa_tune_sized_default* sized_defaults;
    size_t sized_default_count;
} fa_tune_table_info;

// What a launch depends on beside its problem and tensors.
typedef struct fa_tune_device_facts {
    int32_t multiprocessors;
    // 0
    int32_t unused;
    int64_t l2_bytes;
    // device memory of zeros, counter_bytes of the launch's plan
    void* counters;
} fa_tune_device_facts;

// What the driver's cuTensorMapEncodeTiled is told of a tensor, innermost dimension first; what
// its rank leaves unused is 0.  A box has 64 columns, `box_rows` rows and one of all else.
typedef struct fa_tune_tensor_map {
    uint64_t address;
    uint64_t dimensions[5];
    // in bytes, of all dimensions but the innermost
    uint64_t strides[4];
    // CUtensorMapDataType
    uint32_t data_type;
    uint32_t rank;
    uint32_t box_rows;
    // 0
    uint32_t unused;
} fa_tune_tensor_map;

// One launch: what its kernel takes are the tensor maps, and then the struct of parameters.
typedef struct fa_tune_description {
    uint32_t grid[3];
    uint32_t block[3];
    // as it was compiled; 1, 1, 1 is none
    uint32_t cluster[3];
    // dynamic shared memory of a CTA
    uint32_t shared_bytes;
    // 1: it may begin before the launch in front of it is done
    int32_t dependent;
    uint32_t map_count;
    uint32_t params_bytes;
    uint32_t unused;
    // of the call, whether or not it is given
    uint64_t workspace_bytes;
    fa_tune_tensor_map maps[6];
    // params_bytes of it
    uint64_t params[128];
} fa_tune_description;
