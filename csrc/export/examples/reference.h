/* Attention on the host, for C and C++: fp16 and bf16 as 16 bits, sums in double. */
#pragma once

#include <fa_tune/fa_tune.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float to_float(uint16_t element, int dtype) {
    const uint32_t sign = (uint32_t)(element & 0x8000) << 16;
    const uint32_t exponent = (element >> 10) & 31, fraction = element & 1023;
    if (dtype == FA_TUNE_DTYPE_BF16) return float_of_bits((uint32_t)element << 16);
    if (exponent == 31) return float_of_bits(sign | 0x7f800000 | fraction << 13);
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * ldexpf((float)fraction, -24);
    return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

/* Toward zero, and 0 below the normal numbers of fp16; for values of a magnitude up to 65504. */
static uint16_t to_element(float value, int dtype) {
    const uint32_t bits = bits_of_float(value);
    const uint32_t exponent = (bits >> 23) & 255;
    if (dtype == FA_TUNE_DTYPE_BF16) return (uint16_t)(bits >> 16);
    if (exponent <= 112) return (uint16_t)(bits >> 16 & 0x8000);
    return (uint16_t)((bits >> 16 & 0x8000) | (exponent - 112) << 10 | (bits >> 13 & 1023));
}

/* The same numbers between -1 and 1 in every run. */
static void fill(uint16_t* elements, size_t count, int dtype, uint32_t seed) {
    uint32_t state = seed * 2654435761u + 1;
    for (size_t i = 0; i < count; ++i) {
        state = state * 1664525u + 1013904223u;
        elements[i] = to_element((float)(state >> 8) / 8388608.0f - 1.0f, dtype);
    }
}

/* The problem of a key such as b2_h4_kv2_q300_k413_d128_fp16_causal_br or, with values of another
 * head dimension, ..._d192_fp16_full_dv128, of a backward pass with backward_ in front; 0 if it is
 * none. */
static int parse_problem(const char* key, fa_tune_problem* problem) {
    long long batch, heads, kv_heads, seq_len_q, seq_len_kv;
    int d_head;
    char dtype[5], mask[32];
    char* values;
    const size_t prefix = strlen("backward_");
    const int is_backward = strncmp(key, "backward_", prefix) == 0;
    if (is_backward) key += prefix;
    if (sscanf(key, "b%lld_h%lld_kv%lld_q%lld_k%lld_d%d_%4[a-z0-9]_%31s", &batch, &heads, &kv_heads,
               &seq_len_q, &seq_len_kv, &d_head, dtype, mask) != 8) {
        return 0;
    }
    memset(problem, 0, sizeof *problem);
    problem->operation = is_backward ? FA_TUNE_OPERATION_BACKWARD : FA_TUNE_OPERATION_FORWARD;
    problem->dtype = strcmp(dtype, "bf16") == 0 ? FA_TUNE_DTYPE_BF16 : FA_TUNE_DTYPE_FP16;
    problem->batch = batch;
    problem->heads = heads;
    problem->kv_heads = kv_heads;
    problem->seq_len_q = seq_len_q;
    problem->seq_len_kv = seq_len_kv;
    problem->d_head = d_head;
    values = strstr(mask, "_dv");
    if (values != NULL) {
        problem->d_head_v = atoi(values + 3);
        if (problem->d_head_v < 1) return 0;
        *values = 0;
    }
    problem->mask = strcmp(mask, "causal") == 0      ? FA_TUNE_MASK_CAUSAL
                    : strcmp(mask, "causal_br") == 0 ? FA_TUNE_MASK_CAUSAL_BR
                                                     : FA_TUNE_MASK_FULL;
    return problem->mask != FA_TUNE_MASK_FULL || strcmp(mask, "full") == 0;
}

/* A contiguous tensor [batch, seq_len, heads, d_head]. */
static fa_tune_tensor contiguous(unsigned long long address, int64_t seq_len, int64_t heads,
                                 int64_t d_head) {
    fa_tune_tensor tensor;
    tensor.address = (void*)(uintptr_t)address;
    tensor.head_stride = d_head;
    tensor.seq_stride = heads * d_head;
    tensor.batch_stride = seq_len * heads * d_head;
    return tensor;
}

/* Head dimension of V and O. */
static int values_of(const fa_tune_problem* p) {
    return p->d_head_v != 0 ? p->d_head_v : p->d_head;
}

/* The largest difference between o and attention computed here, of contiguous tensors. */
static inline double largest_error(const fa_tune_problem* p, const uint16_t* q, const uint16_t* k,
                                   const uint16_t* v, const uint16_t* o) {
    const double scale = p->softmax_scale != 0 ? p->softmax_scale : 1 / sqrt((double)p->d_head);
    const int d_v = values_of(p);
    const int64_t shift = p->mask == FA_TUNE_MASK_CAUSAL_BR ? p->seq_len_kv - p->seq_len_q : 0;
    double* const weights = (double*)malloc(sizeof(double) * (size_t)(p->seq_len_kv + d_v));
    double* const sums = weights + p->seq_len_kv;
    double largest = 0;
    for (int64_t row = 0; row < p->batch * p->seq_len_q * p->heads; ++row) {
        const int64_t head = row % p->heads, i = row / p->heads % p->seq_len_q;
        const int64_t of_keys = row / p->heads / p->seq_len_q * p->seq_len_kv * p->kv_heads +
                                head / (p->heads / p->kv_heads);
        int64_t seen = p->mask == FA_TUNE_MASK_FULL ? p->seq_len_kv : i + shift + 1;
        double maximum = -INFINITY, total = 0;
        if (seen > p->seq_len_kv) seen = p->seq_len_kv;
        for (int64_t j = 0; j < seen; ++j) {
            const uint16_t* const key = k + (of_keys + j * p->kv_heads) * p->d_head;
            double score = 0;
            for (int x = 0; x < p->d_head; ++x) {
                score += (double)to_float(q[row * p->d_head + x], p->dtype) *
                         (double)to_float(key[x], p->dtype);
            }
            weights[j] = score * scale;
            if (weights[j] > maximum) maximum = weights[j];
        }
        for (int x = 0; x < d_v; ++x) sums[x] = 0;
        for (int64_t j = 0; j < seen; ++j) {
            const uint16_t* const value = v + (of_keys + j * p->kv_heads) * d_v;
            const double weight = exp(weights[j] - maximum);
            total += weight;
            for (int x = 0; x < d_v; ++x) {
                sums[x] += weight * (double)to_float(value[x], p->dtype);
            }
        }
        for (int x = 0; x < d_v; ++x) {
            const double expected = seen > 0 ? sums[x] / total : 0; /* a query without keys: 0 */
            const double error = fabs((double)to_float(o[row * d_v + x], p->dtype) - expected);
            if (largest == largest && !(error <= largest)) largest = error; /* NaN stays */
        }
    }
    free(weights);
    return largest;
}

/* Roundings of P and of O, whose magnitudes are at most 1. */
static double allowed_error(int dtype) { return dtype == FA_TUNE_DTYPE_BF16 ? 1.6e-2 : 2e-3; }
