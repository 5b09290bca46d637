// Tensors of torch, and the problem that they make.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "errors.h"
#include "fa_tune.h"

namespace fa_tune::op {

using torch::stable::Tensor;

// What operators are told beside tensors, in the order of the schemas.
struct Traits {
    bool causal;
    bool bottom_right;
    std::optional<double> scale;
    std::optional<std::int64_t> window_left;
    std::optional<std::int64_t> window_right;
    std::optional<Tensor> sink;
    std::optional<double> softcap;
    std::optional<Tensor> alibi_slopes;
};

// Where the sequences of a packed batch begin, and how long the longest are.
struct Lengths {
    const Tensor& cum_q;
    const Tensor& cum_kv;
    std::int64_t longest_q;
    std::int64_t longest_kv;
};

std::string shape_text(const std::int64_t* sizes, std::int64_t dimensions);

// A tensor as torch knows it.
struct Described {
    std::int64_t dimensions = 0;
    std::int64_t* sizes = nullptr;
    std::int64_t* strides = nullptr;
    std::int32_t dtype = 0;
    std::int32_t device_type = 0;
    std::int32_t device = 0;
    void* address = nullptr;

    explicit Described(const Tensor& tensor) {
        const AtenTensorHandle handle = tensor.get();
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(handle, &dimensions));
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(handle, &sizes));
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(handle, &strides));
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(handle, &dtype));
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(handle, &device_type));
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(handle, &device));
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(handle, &address));
    }
    bool is_beside(const Described& other) const {
        return device == other.device && device_type == other.device_type;
    }
    bool has_sizes(std::initializer_list<std::int64_t> wanted) const {
        return dimensions == static_cast<std::int64_t>(wanted.size()) &&
               std::equal(wanted.begin(), wanted.end(), sizes);
    }
    // Elements follow each other; the stride of an extent of 1 may be anything.
    bool is_contiguous() const {
        std::int64_t step = 1;
        for (std::int64_t i = dimensions - 1; i >= 0; --i) {
            if (sizes[i] > 1 && strides[i] != step) return false;
            step *= sizes[i];
        }
        return true;
    }
};

// A [batch, seq, heads, d_head] tensor, or one [rows, heads, d_head] of a packed batch, which
// counts as one of its batch.
struct View : Described {
    std::int64_t rows;
    std::int64_t heads;
    std::int64_t d_head;

    View(const Tensor& tensor, const char* name, bool packed) : Described(tensor) {
        const std::int64_t wanted = packed ? 3 : 4;
        if (dimensions != wanted) {
            refuse(std::string("Q, K, V must be ") +
                   (packed ? "[rows, heads, d_head]; " : "[batch, seq, heads, d_head]; ") + name +
                   " has " + std::to_string(dimensions) + " dimensions");
        }
        rows = sizes[wanted - 3];
        heads = sizes[wanted - 2];
        d_head = sizes[wanted - 1];
        if (strides[wanted - 1] != 1 && d_head > 1) {
            refuse(std::string(name) + " must have d_head contiguous; its stride is " +
                   std::to_string(strides[wanted - 1]));
        }
    }
    std::int64_t batch() const { return dimensions == 4 ? sizes[0] : 1; }
    std::string shape() const { return shape_text(sizes, dimensions); }
    fa_tune_tensor tensor() const {
        const std::int64_t* inner = strides + dimensions - 3;
        return {address, dimensions == 4 ? strides[0] : 0, inner[0], inner[1]};
    }
};

// Of a dense batch, or with the rows of all sequences of a packed one.  Refuses what makes none.
fa_tune_problem problem_of(const View& q, const View& k, const View& v, const Traits& traits,
                           const Lengths* lengths, bool lse);

// The address of what kernels read element by element.  Refuses other tensors.
void* address_of(const Tensor& tensor, const char* name, std::int32_t dtype, const char* dtype_name,
                 std::initializer_list<std::int64_t> sizes, const View& q);

void set_slopes(fa_tune_tensors& tensors, const Tensor& slopes, std::int64_t batch, const View& q);

// A new contiguous tensor on the same device.
Tensor empty(const View& like, const std::int64_t* sizes, std::int64_t dimensions,
             std::int32_t dtype);

}  // namespace fa_tune::op
