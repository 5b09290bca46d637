// Gradients of attention on the host: sums in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "reference.h"

struct Gradients {
    std::vector<double> dq, dk, dv;
};

inline double dot(const double* a, const double* b, std::int64_t count) {
    double sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
    return sum;
}

inline void add(double* sum, double factor, const double* row, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) sum[i] += factor * row[i];
}

// Of contiguous tensors; `d_o` is the gradient of O.
inline Gradients reference_gradients(const fa_tune_problem& p, const std::uint16_t* q,
                                     const std::uint16_t* k, const std::uint16_t* v,
                                     const std::uint16_t* d_o) {
    const double scale = p.softmax_scale != 0 ? p.softmax_scale : 1 / std::sqrt(p.d_head);
    const std::int64_t d = p.d_head, d_v = values_of(&p);
    const std::int64_t rows = p.batch * p.seq_len_q * p.heads;
    const std::int64_t keys = p.batch * p.seq_len_kv * p.kv_heads;
    const auto numbers = [&](const std::uint16_t* from, std::int64_t count) {
        std::vector<double> found(static_cast<std::size_t>(count));
        for (double& number : found) number = static_cast<double>(to_float(*from++, p.dtype));
        return found;
    };
    const auto zeros = [](std::int64_t count) {
        return std::vector<double>(static_cast<std::size_t>(count));
    };
    const auto queries = numbers(q, rows * d), of_keys = numbers(k, keys * d);
    const auto values = numbers(v, keys * d_v), of_output = numbers(d_o, rows * d_v);
    Gradients found{zeros(rows * d), zeros(keys * d), zeros(keys * d_v)};
    std::vector<double> weights = zeros(p.seq_len_kv), of_weights = zeros(p.seq_len_kv);
    const std::int64_t shift = p.mask == FA_TUNE_MASK_CAUSAL_BR ? p.seq_len_kv - p.seq_len_q : 0;
    for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t head = row % p.heads, i = row / p.heads % p.seq_len_q;
        const std::int64_t first =
            row / p.heads / p.seq_len_q * p.seq_len_kv * p.kv_heads + head / (p.heads / p.kv_heads);
        const std::int64_t causal = std::clamp<std::int64_t>(i + shift + 1, 0, p.seq_len_kv);
        const auto seen =
            static_cast<std::size_t>(p.mask == FA_TUNE_MASK_FULL ? p.seq_len_kv : causal);
        const auto place = [&](std::size_t j) {
            return first + static_cast<std::int64_t>(j) * p.kv_heads;
        };
        const double* const query = &queries[static_cast<std::size_t>(row * d)];
        const double* const gradient = &of_output[static_cast<std::size_t>(row * d_v)];
        double maximum = -INFINITY, total = 0, mean = 0;
        for (std::size_t j = 0; j < seen; ++j) {
            weights[j] = scale * dot(query, &of_keys[static_cast<std::size_t>(place(j) * d)], d);
            maximum = std::max(maximum, weights[j]);
        }
        for (std::size_t j = 0; j < seen; ++j) total += weights[j] = std::exp(weights[j] - maximum);
        for (std::size_t j = 0; j < seen; ++j) {
            const double* const value = &values[static_cast<std::size_t>(place(j) * d_v)];
            weights[j] /= total;
            of_weights[j] = dot(gradient, value, d_v);
            mean += weights[j] * of_weights[j];
        }
        for (std::size_t j = 0; j < seen; ++j) {
            const auto key = static_cast<std::size_t>(place(j) * d);
            const double of_score = scale * weights[j] * (of_weights[j] - mean);
            add(&found.dq[static_cast<std::size_t>(row * d)], of_score, &of_keys[key], d);
            add(&found.dk[key], of_score, query, d);
            add(&found.dv[static_cast<std::size_t>(place(j) * d_v)], weights[j], gradient, d_v);
        }
    }
    return found;
}

// The largest difference, over the largest number expected or 1; NaN where there is one.
inline double error_of(const std::uint16_t* elements, const std::vector<double>& expected,
                       int dtype) {
    double largest = 0, magnitude = 1;
    for (const double number : expected) {
        const double error = std::fabs(static_cast<double>(to_float(*elements++, dtype)) - number);
        magnitude = std::max(magnitude, std::fabs(number));
        if (largest == largest && !(error <= largest)) largest = error;
    }
    return largest / magnitude;
}

// The same of all three.
inline double error_of(const Gradients& expected, const std::uint16_t* dq, const std::uint16_t* dk,
                       const std::uint16_t* dv, int dtype) {
    const double of_q = error_of(dq, expected.dq, dtype), of_k = error_of(dk, expected.dk, dtype);
    const double of_v = error_of(dv, expected.dv, dtype), sum = of_q + of_k + of_v;
    return sum != sum ? sum : std::max({of_q, of_k, of_v});
}
