// Attention by compiled kernels: which kernel runs a problem, and its launch.  C ABI.
//
//     fa_tune_init                 loads the CUDA driver
//     fa_tune_kernel_create        a kernel: its plan and its binary
//     fa_tune_table_create         many kernels, and which of them serves which problem
//     fa_tune_find                 problem -> kernel
//     fa_tune_launch               kernel, problem, tensors, stream -> enqueued
//
// Functions give a status; what went wrong in words is fa_tune_last_error, of this thread.  All
// functions may be called by any thread at any time, but for an object that another thread
// destroys.  Neither CUDA headers nor libraries are needed to build: libcuda.so.1, of a driver for
// CUDA 12.0 or later, is loaded by fa_tune_init.
//
// The stream that a call is enqueued on, a CUstream or a cudaStream_t, may be captured in a graph.
// What runs at the same time: calls on different streams, of the same kernel as well; graphs of
// different captures.  Not: two executable graphs made of one capture.  A captured launch of a
// kernel with counters (fa_tune_launch_plan) keeps 4 KB of device memory until the process ends.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "fa_tune_plan.h"

#if defined(__GNUC__)
#define FA_TUNE_API __attribute__((visibility("default")))
#else
#define FA_TUNE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

// Changes with any function, struct or plan field of the ABI.
#define FA_TUNE_ABI_VERSION 5

typedef enum fa_tune_status {
    FA_TUNE_OK = 0,
    // A problem, tensor, plan or name that means nothing, or that the kernel does not compute.
    FA_TUNE_INVALID = 1,
    // Nothing that is there computes it, or a config that is not there.
    FA_TUNE_NOT_FOUND = 2,
    // No CUDA driver, one that is too old, or no device.
    FA_TUNE_NO_DRIVER = 3,
    // The driver refused or failed; the text has its name for the error.
    FA_TUNE_DRIVER_ERROR = 4,
    // Not loaded yet, which a stream that is being captured does not allow: fa_tune_prepare.
    FA_TUNE_CAPTURING = 5,
    // No host memory.
    FA_TUNE_NO_MEMORY = 6,
} fa_tune_status;

// Which keys a query sees.
typedef enum fa_tune_mask {
    FA_TUNE_MASK_FULL = 0,
    // Causal, aligned top-left: query i sees key j when j <= i.
    FA_TUNE_MASK_CAUSAL = 1,
    // Causal, aligned bottom-right: j <= i + seq_len_kv - seq_len_q.
    FA_TUNE_MASK_CAUSAL_BR = 2,
    // Causal: j <= i + diagonal.
    FA_TUNE_MASK_DIAGONAL = 3,
    // None, but what windows and ALiBi count from is i + diagonal.
    FA_TUNE_MASK_FULL_DIAGONAL = 4,
} fa_tune_mask;

// Sides of a window; both: their sum.
typedef enum fa_tune_window {
    FA_TUNE_WINDOW_NONE = 0,
    // Query i sees key j when j >= i + diagonal - window_left.
    FA_TUNE_WINDOW_LEFT = 1,
    // Query i sees key j when j <= i + diagonal + window_right; without a causal mask only.
    FA_TUNE_WINDOW_RIGHT = 2,
} fa_tune_window;

// O = softmax(scores) V, scores = softmax_scale * Q K^T, changed by softcap, then by alibi.  The
// diagonal is 0, or as the mask says.
typedef struct fa_tune_problem {
    int32_t operation;  // fa_tune_operation
    int32_t dtype;      // fa_tune_dtype, of Q, K, V and O
    int64_t batch;
    int64_t heads;
    int64_t kv_heads;  // divides heads
    int64_t seq_len_q;
    int64_t seq_len_kv;
    int32_t d_head;
    int32_t mask;          // fa_tune_mask
    int64_t diagonal;      // with FA_TUNE_MASK_DIAGONAL and FA_TUNE_MASK_FULL_DIAGONAL only
    int32_t lse;           // 1: the log-sum-exp of each row is wanted
    int32_t window;        // fa_tune_window
    double softmax_scale;  // 1e-30 to 1e30; 0: the usual one, 1 / sqrt(d_head)
    int64_t window_left;   // at least 0; 0 without that side of a window
    int64_t window_right;  // the same
    double softcap;        // scores s become softcap * tanh(s / softcap), 1e-3 to 1e3; 0: none
    int32_t sink;          // 1: each row's sum has another exponential, of tensors.sink
    int32_t alibi;         // 1: less tensors.alibi_slopes times the distance |i + diagonal - j|
    int32_t d_head_v;      // head dimension of V and O; 0: d_head
    int32_t packed;        // 1: sequences of any lengths one after another, see fa_tune_tensors
    // Of a packed batch: the rows of Q and of K in all.
    // seq_len_q and seq_len_kv are the longest then, and a causal mask, whichever, is aligned
    // bottom-right in each sequence.
    int64_t total_q;
    int64_t total_kv;
    int32_t kv_e4m3;  // 1: K and V are e4m3, see fa_tune_tensors
    // 1: the device says how many keys each sequence has, or where they are (fa_tune_cache).  It
    // decides the choice of a kernel alone: what is fastest where all are as long as one another
    // may be slow where one is much longer.
    int32_t cached;
} fa_tune_problem;

// A tensor in device memory: Q [batch, seq_len_q, heads, d_head], K [batch, seq_len_kv, kv_heads,
// d_head], V and O like K and Q with d_head_v, the last dimension contiguous.  The address and the
// strides in bytes are multiples of 16; the stride of an extent of 1 may be anything.
typedef struct fa_tune_tensor {
    void* address;
    int64_t batch_stride;  // in elements
    int64_t seq_stride;
    int64_t head_stride;
} fa_tune_tensor;

// What is known of K and V on the device alone; zeros: nothing.  For kernels whose CTAs share
// blocks of keys (fa_tune_launch_plan), the others refuse it.
typedef struct fa_tune_cache {
    // Device memory, [batch]: sequence b has lengths[b] + added keys, seq_len_kv of the problem at
    // most, and none if the sum is negative or beyond 2^31 - 1; a causal mask is then aligned
    // bottom-right.  NULL: all have seq_len_kv.
    const int32_t* lengths;
    // Device memory, [batch, page_stride]: the page of each page_size keys of a sequence.  K and V
    // are then [pages, page_size, kv_heads, d_head].  Entries of pages that no query sees, behind a
    // sequence's end or in front of a window, may be anything.  NULL: a sequence lies in one piece.
    const int32_t* pages;
    int32_t added;
    int32_t page_size;  // a multiple of 16
    int64_t page_stride;
    // [batch, added, kv_heads, ...], with lengths only: the last `added` keys and values of every
    // sequence, which the call writes to their places in K and V.  Address NULL: they are there.
    // A window to the left must see all of them.
    fa_tune_tensor new_k;
    fa_tune_tensor new_v;
} fa_tune_cache;

typedef struct fa_tune_tensors {
    fa_tune_tensor q;
    fa_tune_tensor k;
    fa_tune_tensor v;
    fa_tune_tensor o;
    // fp32 [batch, heads, seq_len_q], contiguous, a multiple of 16; needed where the problem has
    // it.  Of a packed batch [heads, total_q].
    void* lse;
    // fp32 [heads]; needed where the problem has it.
    const void* sink;
    // fp32 [batch, heads], heads contiguous; needed where the problem has them.
    const void* alibi_slopes;
    int64_t alibi_batch_stride;  // in elements; 0: the same slopes for the whole batch
    // Of a packed batch, whose Q and O are [total_q, heads, d_head] and K and V [total_kv,
    // kv_heads, d_head]: int32 [batch + 1] in device memory, sequence i is rows cu_seqlens[i] to
    // cu_seqlens[i + 1]; and int32 [batch], how many of them count, NULL: all.
    const int32_t* cu_seqlens_q;
    const int32_t* cu_seqlens_kv;
    const int32_t* used_q;
    const int32_t* used_kv;
    // fa_tune_workspace_bytes of device memory, a multiple of 16; NULL where these are 0.  Other
    // calls may use it once this one is done, and it may hold anything.
    void* workspace;
    fa_tune_cache cache;
    // Where K and V are e4m3: fp32 [batch, kv_heads], what their numbers are multiplied with; NULL:
    // 1.  Strides are those of both, in elements.  Strides of K, V, new_k and new_v are in units of
    // two bytes then.
    const void* k_scale;
    const void* v_scale;
    int64_t scale_batch_stride;
    int64_t scale_head_stride;
} fa_tune_tensors;

// The version of the ABI that this library was built with; compare with FA_TUNE_ABI_VERSION.
FA_TUNE_API int fa_tune_abi_version(void);

// What the last call of this thread that failed says, one line; "" if none has.  The text is valid
// until this thread's next call.
FA_TUNE_API const char* fa_tune_last_error(void);

// Loads and initialises the CUDA driver, which the first call that needs it does otherwise.  It
// makes no context.
FA_TUNE_API fa_tune_status fa_tune_init(void);

// Kernels ------------------------------------------------------------------------------------

typedef struct fa_tune_kernel fa_tune_kernel;

// A compiled variant.  `config`: its name, which need not be unique, since one config may be
// compiled for several kinds of problems and devices.  `launches` and `symbols`: one for each
// launch, plan.launches of them.  `image`: a cubin, or PTX with a final zero; it is not copied and
// must stay as it is until the kernel is destroyed.
typedef struct fa_tune_kernel_info {
    const char* config;
    fa_tune_plan plan;
    const fa_tune_launch_plan* launches;
    const char* const* symbols;
    const void* image;
    size_t image_bytes;
} fa_tune_kernel_info;

// Checks the plan; the binary is loaded later, see fa_tune_prepare.
FA_TUNE_API fa_tune_status fa_tune_kernel_create(const fa_tune_kernel_info* info,
                                                 fa_tune_kernel** kernel);

// Unloads it.  No launch of it may be under way; graphs that hold one must be gone.  NULL is fine.
FA_TUNE_API void fa_tune_kernel_destroy(fa_tune_kernel* kernel);

// The name of its config, valid as long as the kernel.
FA_TUNE_API const char* fa_tune_kernel_config(const fa_tune_kernel* kernel);

// Its plan, valid as long as the kernel.
FA_TUNE_API const fa_tune_plan* fa_tune_kernel_plan(const fa_tune_kernel* kernel);

// Loads a kernel on a device (-1: the current one), which the first launch there does otherwise;
// needed before a launch there is captured.
FA_TUNE_API fa_tune_status fa_tune_prepare(fa_tune_kernel* kernel, int device);

// What a call of the kernel needs as workspace on a device (-1: the current one).
FA_TUNE_API fa_tune_status fa_tune_workspace_bytes(const fa_tune_kernel* kernel,
                                                   const fa_tune_problem* problem, int device,
                                                   size_t* bytes);

// Enqueues a call and returns.  `device`: that of the tensors and of the stream; it is made current
// for the call if it is not (-1: the current one, or 0 if there is none).  `stream`: 0 is the
// legacy default stream.  Errors of the kernel itself come with a later call of the driver.
FA_TUNE_API fa_tune_status fa_tune_launch(fa_tune_kernel* kernel, const fa_tune_problem* problem,
                                          const fa_tune_tensors* tensors, int device, void* stream);

// Tables -------------------------------------------------------------------------------------

typedef struct fa_tune_table fa_tune_table;

// A workload that was tuned on a GPU model, and the config that was chosen for it.
typedef struct fa_tune_entry {
    const char* gpu;  // as the driver spells it: "NVIDIA H200"
    fa_tune_problem problem;
    const char* config;
} fa_tune_entry;

// What runs problems of few queries that are like this one, if nobody tuned them, on GPUs of this
// compute capability (ten times the major version and the minor) and on later ones.
typedef struct fa_tune_sized_default {
    int32_t compute_capability;
    fa_tune_problem problem;
    const char* config;
} fa_tune_sized_default;

// `entries` that serve equally well are taken in their order.  `defaults`: configs for what nobody
// tuned, the one to prefer first; `sized_defaults` come before them where they serve.
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

// Copies all but the images.  Every config that is named here must have a kernel.
FA_TUNE_API fa_tune_status fa_tune_table_create(const fa_tune_table_info* info,
                                                fa_tune_table** table);

// Destroys its kernels as well.  NULL is fine.
FA_TUNE_API void fa_tune_table_destroy(fa_tune_table* table);

// The kernel for a problem on a device (-1: the current one): of the config that was chosen for
// this very problem on this GPU model, else for the nearest one that has a kernel for it, else of a
// default.  FA_TUNE_NOT_FOUND says what is there.  The kernel is the table's.
FA_TUNE_API fa_tune_status fa_tune_find(const fa_tune_table* table, const fa_tune_problem* problem,
                                        int device, fa_tune_kernel** kernel);

// The kernel of a config, by its name, for a problem.
FA_TUNE_API fa_tune_status fa_tune_find_config(const fa_tune_table* table, const char* config,
                                               const fa_tune_problem* problem, int device,
                                               fa_tune_kernel** kernel);

// In words, one line: which config fa_tune_find gives and why.  Writes at most `size` bytes, a
// final zero among them.
FA_TUNE_API fa_tune_status fa_tune_why(const fa_tune_table* table, const fa_tune_problem* problem,
                                       int device, char* text, size_t size);

// fa_tune_prepare for every kernel of the table that runs on the device.
FA_TUNE_API fa_tune_status fa_tune_table_prepare(const fa_tune_table* table, int device);

#ifdef __cplusplus
}
#endif
