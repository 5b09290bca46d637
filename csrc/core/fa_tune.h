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

#include "fa_tune_types.h"

#if defined(__GNUC__)
#define FA_TUNE_API __attribute__((visibility("default")))
#else
#define FA_TUNE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

// Changes with any function, struct or field of the ABI.
#define FA_TUNE_ABI_VERSION 8

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

// Checks the plan; the binary is loaded later, see fa_tune_prepare.
FA_TUNE_API fa_tune_status fa_tune_kernel_create(const fa_tune_kernel_info* info,
                                                 fa_tune_kernel** kernel);

// A kernel of functions that the caller has loaded on a device (-1: the current one), one
// CUfunction or CUkernel for each launch, allowed as much dynamic shared memory as the plan says.
// It is launched there alone, one call after another; the caller keeps the module.  `info` needs
// neither symbols nor image.
// `multiprocessors`: how many grids of resident CTAs are made for; 0: all of the device.
FA_TUNE_API fa_tune_status fa_tune_kernel_adopt(const fa_tune_kernel_info* info,
                                                void* const* functions, int device,
                                                int multiprocessors, fa_tune_kernel** kernel);

// Unloads it.  No launch of it may be under way; graphs that hold one must be gone.  NULL is fine.
FA_TUNE_API void fa_tune_kernel_destroy(fa_tune_kernel* kernel);

// The name of its config, valid as long as the kernel; "" of NULL.
FA_TUNE_API const char* fa_tune_kernel_config(const fa_tune_kernel* kernel);

// Its plan, valid as long as the kernel; NULL of NULL.
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

// What fa_tune_launch would pass to the driver for one of the launches of a call, from 0 on.  It
// needs neither driver nor device, and asks for no workspace.
FA_TUNE_API fa_tune_status fa_tune_describe(const fa_tune_kernel* kernel,
                                            const fa_tune_problem* problem,
                                            const fa_tune_tensors* tensors,
                                            const fa_tune_device_facts* device, int launch,
                                            fa_tune_description* description);

// Tables -------------------------------------------------------------------------------------

typedef struct fa_tune_table fa_tune_table;

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
