#include "tensor_maps.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <type_traits>

#include "launch.h"

namespace fa_tune::core {

namespace {

// CUDA driver API, CUtensorMap_enum.
constexpr std::uint32_t kPanelColumns = 64;  // 128 bytes, the widest that 128-byte swizzle allows
constexpr int kInterleaveNone = 0, kSwizzle128B = 3, kPromotion128B = 2, kFillZeros = 0;
constexpr std::int64_t kTooLong = std::int64_t{1} << 40;  // a stride in elements

constexpr std::size_t kMostDimensions = 5;
static_assert(std::has_unique_object_representations_v<fa_tune_tensor_map>);

bool equal(const fa_tune_tensor_map& a, const fa_tune_tensor_map& b) {
    return std::memcmp(&a, &b, sizeof a) == 0;
}

// Maps by their requests, one for each remainder of a hash.
class KeptMaps {
  public:
    struct Kept {
        fa_tune_tensor_map request{};
        CUtensorMap map{};
    };
    Kept& place_of(const fa_tune_tensor_map& request) {
        constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15;
        const std::uint64_t mixed =
            (request.address ^ request.box_rows << 1 ^ request.dimensions[1] << 40) * kGolden;
        return kept_[mixed >> (64 - kBits)];
    }

  private:
    static constexpr int kBits = 6;
    std::array<Kept, std::size_t{1} << kBits> kept_;
};

// A stride in bytes; what would wrap around is as illegal as what the driver calls too long.
std::uint64_t in_bytes(const ElementType& type, std::int64_t elements) {
    return static_cast<std::uint64_t>(type.size_bytes) *
           static_cast<std::uint64_t>(elements >= 0 && elements < kTooLong ? elements : kTooLong);
}

void set_packed(const ElementType& type, const fa_tune_tensor& tensor, const MapShape& shape,
                fa_tune_tensor_map& map) {
    constexpr std::uint64_t kFarRows = std::uint64_t{1} << 30, kFarBytes = std::uint64_t{1} << 34;
    const std::uint64_t row =
        shape.rows == 1 ? std::uint64_t{kChunkBytes} : in_bytes(type, tensor.seq_stride);
    const std::uint64_t head =
        shape.heads == 1 ? std::uint64_t{kChunkBytes} : in_bytes(type, tensor.head_stride);
    map.rank = 5;
    const std::uint64_t dimensions[] = {static_cast<std::uint64_t>(shape.columns), kFarRows,
                                        static_cast<std::uint64_t>(shape.heads), kFarRows + 1,
                                        static_cast<std::uint64_t>(shape.rows) + 1};
    const std::uint64_t strides[] = {row, head, kFarBytes - row, row};
    std::copy(std::begin(dimensions), std::end(dimensions), map.dimensions);
    std::copy(std::begin(strides), std::end(strides), map.strides);
}

void set_dense(std::int64_t batch, const ElementType& type, const fa_tune_tensor& tensor,
               const MapShape& shape, fa_tune_tensor_map& map) {
    map.rank = 4;
    map.dimensions[0] = static_cast<std::uint64_t>(shape.columns);
    const std::int64_t sizes[] = {shape.rows, shape.heads, batch};
    const std::int64_t strides[] = {tensor.seq_stride, tensor.head_stride, tensor.batch_stride};
    for (std::size_t i = 0; i < 3; ++i) {
        map.dimensions[i + 1] = static_cast<std::uint64_t>(sizes[i]);
        // An extent of 1 is never stepped along; the driver still wants a legal stride.
        map.strides[i] = sizes[i] != 1 ? in_bytes(type, strides[i]) : std::uint64_t{kChunkBytes};
    }
}

CUresult make(const Driver& driver, const fa_tune_tensor_map& request, CUtensorMap& map) {
    const std::uint32_t box[kMostDimensions] = {kPanelColumns, request.box_rows, 1, 1, 1};
    const std::uint32_t steps[kMostDimensions] = {1, 1, 1, 1, 1};
    void* const address = reinterpret_cast<void*>(static_cast<std::uintptr_t>(request.address));
    return driver.cuTensorMapEncodeTiled.call(
        &map, static_cast<int>(request.data_type), request.rank, address, request.dimensions,
        request.strides, box, steps, kInterleaveNone, kSwizzle128B, kPromotion128B, kFillZeros);
}

[[noreturn]] void refuse(CUresult result, const fa_tune_tensor_map& request) {
    const auto wide = [](std::uint64_t value) { return static_cast<long long>(value); };
    const auto& size = request.dimensions;
    const auto& stride = request.strides;
    fail(FA_TUNE_INVALID,
         "the driver made no tensor map (error %d) of dimensions (%lld, %lld, %lld, "
         "%lld, %lld) with strides of (%lld, %lld, %lld, %lld) bytes and boxes of %u rows",
         result, wide(size[0]), wide(size[1]), wide(size[2]), wide(size[3]), wide(size[4]),
         wide(stride[0]), wide(stride[1]), wide(stride[2]), wide(stride[3]), request.box_rows);
}

}  // namespace

fa_tune_tensor_map map_of(const fa_tune_problem& problem, const ElementType& type,
                          const fa_tune_tensor& tensor, const MapShape& shape) {
    fa_tune_tensor_map map{};
    map.address = reinterpret_cast<std::uintptr_t>(tensor.address);
    map.data_type = type.tma_code;
    map.box_rows = static_cast<std::uint32_t>(shape.box_rows);
    if (problem.packed != 0) {
        set_packed(type, tensor, shape, map);
    } else {
        set_dense(problem.batch, type, tensor, shape, map);
    }
    return map;
}

void check_map(const fa_tune_tensor_map& request) {
    constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 40;
    for (std::uint32_t i = 0; i + 1 < request.rank; ++i) {
        const std::uint64_t stride = request.strides[i];
        if (stride % kChunkBytes != 0 || stride >= kMostBytes) refuse(1, request);
    }
}

void encode_map(const Driver& driver, const fa_tune_tensor_map& request, CUtensorMap& map) {
    thread_local KeptMaps kept_maps;
    KeptMaps::Kept& kept = kept_maps.place_of(request);
    if (!equal(kept.request, request)) {
        const CUresult result = make(driver, request, kept.map);
        kept.request = result == kCudaSuccess ? request : fa_tune_tensor_map{};
        if (result != kCudaSuccess) refuse(result, request);
    }
    map = kept.map;
}

}  // namespace fa_tune::core
