/* What the stub of the CUDA driver tells tests beside the driver's own functions. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { STUB_MAX_PARAMS = 2048 };

/* A launch as the driver saw it.  `params`: the values of all parameters, one after another. */
typedef struct stub_launch {
    char symbol[128];
    uint32_t grid[3], block[3], cluster[3], shared_bytes;
    int32_t device, captured, dependent;
    uint64_t stream;
    uint32_t params_bytes;
    unsigned char params[STUB_MAX_PARAMS];
} stub_launch;

/* Back to the beginning: nothing recorded, nothing fails, no context is current. */
void stub_reset(void);
void stub_set_device(const char* name, int capability, int multiprocessors, int l2_bytes);
/* Whether launches are recorded; they are at first, unless STUB_SILENT is in the environment. */
void stub_record(int on);
size_t stub_launch_count(void);
/* 0 if there is no launch of that index. */
int stub_get_launch(size_t index, stub_launch* launch);
/* How often a driver function was called. */
size_t stub_calls(const char* function);
/* The function's next `times` calls give this error. */
void stub_fail(const char* function, int error, int times);
/* A stream with a handle of its own, or with that of `reused`, whose id is another all the same. */
void* stub_stream(int capturing);
void stub_renew_stream(void* stream);
/* Makes a device's primary context current; -1: none. */
void stub_use_device(int device);
int stub_current_device(void);
/* The kernel of that name that was loaded last, NULL if none was. */
void* stub_kernel(const char* symbol);
/* The dynamic shared memory that a kernel was allowed on a device; -1: not set. */
int stub_shared_limit(const char* symbol, int device);
/* Bytes of device memory that are allocated. */
size_t stub_memory(void);

#ifdef __cplusplus
}
#endif
