// Tensors of torch, and the problem that they make.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

#include "errors.h"
#include "fa_tune.h"

namespace fa_tune::op {

using torch::stable::Tensor;

// What operators are told beside tensors, in the order of the schemas.
struct Traits {
    bool causal = false;
    bool bottom_right = false;
    std::optional<double> scale;
    std::optional<std::int64_t> window_left;
    std::optional<std::int64_t> window_right;
    std::optional<Tensor> sink;
    std::optional<double> softcap;
    std::optional<Tensor> alibi_slopes;
    bool exact = false;
};

// A tensor that torch keeps for us.
class Owned {
  public:
    Owned() = default;
    explicit Owned(AtenTensorHandle handle) : handle_(handle) {}
    Owned(Owned&& other) noexcept : handle_(other.release()) {}
    Owned& operator=(Owned&& other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~Owned() {
        if (handle_ != nullptr) aoti_torch_delete_tensor_object(handle_);
    }
    AtenTensorHandle get() const { return handle_; }
    AtenTensorHandle release() { return std::exchange(handle_, nullptr); }
    void* address() const {
        void* found = nullptr;
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(handle_, &found));
        return found;
    }

  private:
    AtenTensorHandle handle_ = nullptr;
};

// Where the sequences of a packed batch begin, and how long the longest are.
struct Lengths {
    Owned cum_q;
    Owned cum_kv;
    std::int64_t longest_q = 0;
    std::int64_t longest_kv = 0;
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

    explicit Described(AtenTensorHandle handle) {
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
    // Elements share a place.
    bool is_expanded() const {
        for (std::int64_t i = 0; i < dimensions; ++i) {
            if (sizes[i] > 1 && strides[i] == 0) return true;
        }
        return false;
    }
    // Each row begins at a multiple of 16 bytes and is in one piece, as kernels read it.
    bool has_whole_rows() const {
        constexpr std::int64_t kBytes = 16, kElements = kBytes / 2;
        for (std::int64_t i = 0; i + 1 < dimensions; ++i) {
            if (sizes[i] > 1 && strides[i] % kElements != 0) return false;
        }
        return (strides[dimensions - 1] == 1 || sizes[dimensions - 1] <= 1) &&
               reinterpret_cast<std::uintptr_t>(address) % kBytes == 0;
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

    View(AtenTensorHandle tensor, const char* name, bool packed) : Described(tensor) {
        const std::int64_t wanted = packed ? 3 : 4;
        if (dimensions != wanted) {
            refuse(std::string("Q, K, V must be ") +
                   (packed ? "[rows, heads, d_head]; " : "[batch, seq, heads, d_head]; ") + name +
                   " has " + std::to_string(dimensions) + " dimensions");
        }
        rows = sizes[wanted - 3];
        heads = sizes[wanted - 2];
        d_head = sizes[wanted - 1];
    }
    std::int64_t batch() const { return dimensions == 4 ? sizes[0] : 1; }
    std::string shape() const { return shape_text(sizes, dimensions); }
    fa_tune_tensor tensor() const {
        const std::int64_t* inner = strides + dimensions - 3;
        return {address, dimensions == 4 ? strides[0] : 0, inner[0], inner[1]};
    }
};

// Of a dense batch, or with the rows of all sequences of a packed one.  Refuses tensors that do not
// go together; `choice_of` does so with other problems that make no sense.
fa_tune_problem problem_of(const View& q, const View& k, const View& v, const Traits& traits,
                           const Lengths* lengths, bool lse);

// The address of what kernels read element by element.  Refuses other tensors.
void* address_of(AtenTensorHandle tensor, const char* name, std::int32_t dtype,
                 const char* dtype_name, std::initializer_list<std::int64_t> sizes, const View& q);

void set_slopes(fa_tune_tensors& tensors, AtenTensorHandle slopes, std::int64_t batch,
                const View& q);

// Called before a tensor is copied.
extern void (*tell_of_copies)();

// A tensor as kernels read it, which may become a copy; `expanded`: elements may share a place.
View with_whole_rows(Owned& tensor, const char* name, bool packed, bool expanded = true);

// A new contiguous tensor on the same device.
Owned empty(const View& like, const std::int64_t* sizes, std::int64_t dimensions,
            std::int32_t dtype);

}  // namespace fa_tune::op
