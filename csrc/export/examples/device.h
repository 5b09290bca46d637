/* Device memory through the CUDA driver, found at run time, for C and C++.  A program that uses
 * the CUDA runtime or another library for it passes those addresses instead. */
#pragma once

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

/* What a test program ends with where there is nothing to run on. */
enum { NOTHING_TO_RUN_ON = 77 };

typedef unsigned long long device_address;

static void* driver_function(const char* name) {
    static void* library = NULL;
    void* function = NULL;
    if (library == NULL) library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library != NULL) function = dlsym(library, name);
    if (function == NULL) {
        fprintf(stderr, "the CUDA driver has no %s\n", name);
        exit(1);
    }
    return function;
}

static void require(int error, const char* what) {
    if (error == 0) return;
    fprintf(stderr, "%s: error %d of the CUDA driver\n", what, error);
    exit(1);
}

/* Makes the primary context of a device current for this thread. */
static void use_device(int ordinal) {
    void* context = NULL;
    int device = 0;
    int (*const get)(int*, int) = (int (*)(int*, int))driver_function("cuDeviceGet");
    int (*const retain)(void**, int) =
        (int (*)(void**, int))driver_function("cuDevicePrimaryCtxRetain");
    int (*const set)(void*) = (int (*)(void*))driver_function("cuCtxSetCurrent");
    require(get(&device, ordinal), "cuDeviceGet");
    require(retain(&context, device), "cuDevicePrimaryCtxRetain");
    require(set(context), "cuCtxSetCurrent");
}

static device_address device_allocate(size_t bytes) {
    device_address address = 0;
    int (*const allocate)(device_address*, size_t) =
        (int (*)(device_address*, size_t))driver_function("cuMemAlloc_v2");
    require(allocate(&address, bytes), "cuMemAlloc");
    return address;
}

static void device_free(device_address address) {
    int (*const release)(device_address) = (int (*)(device_address))driver_function("cuMemFree_v2");
    require(release(address), "cuMemFree");
}

static void copy_to_device(device_address target, const void* source, size_t bytes) {
    int (*const copy)(device_address, const void*, size_t) =
        (int (*)(device_address, const void*, size_t))driver_function("cuMemcpyHtoD_v2");
    require(copy(target, source, bytes), "cuMemcpyHtoD");
}

/* Waits for what was enqueued on the default stream. */
static void copy_from_device(void* target, device_address source, size_t bytes) {
    int (*const copy)(void*, device_address, size_t) =
        (int (*)(void*, device_address, size_t))driver_function("cuMemcpyDtoH_v2");
    require(copy(target, source, bytes), "cuMemcpyDtoH");
}
