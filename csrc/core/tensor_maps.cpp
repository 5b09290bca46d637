#include "tensor_maps.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace fa_tune::core {

namespace {

// CUDA driver API, CUtensorMap_enum.
constexpr std::uint32_t kPanelColumns = 64;  // 128 bytes, the widest that 128-byte swizzle allows
constexpr std::uint32_t kDataFloat16 = 6, kDataBfloat16 = 9;
constexpr int kInterleaveNone = 0, kSwizzle128B = 3, kPromotion128B = 2, kFillZeros = 0;
constexpr std::int64_t kTooLong = std::int64_t{1} << 40;  // a stride in elements

constexpr std::size_t kMostDimensions = 5;

// All that a map depends on; what its rank leaves unused is 0.
struct Request {
    std::uint64_t address;
    std::array<std::uint64_t, kMostDimensions> dimensions;
    std::array<std::uint64_t, kMostDimensions - 1> strides;  // in bytes
    std::uint32_t type, rank, box_rows, unused;

    bool operator==(const Request& other) const {
        return std::memcmp(this, &other, sizeof *this) == 0;
    }
};
static_assert(std::has_unique_object_representations_v<Request>);

// Maps by their requests, one for each remainder of a hash.
class KeptMaps {
  public:
    struct Kept {
        Request request{};
        CUtensorMap map{};
    };
    Kept& place_of(const Request& request) {
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
std::uint64_t in_bytes(std::int64_t elements) {
    return kElementBytes * (elements >= 0 && elements < kTooLong
                                ? static_cast<std::uint64_t>(elements)
                                : std::uint64_t{kTooLong});
}

Request packed_request(const fa_tune_tensor& tensor, const MapShape& shape) {
    constexpr std::uint64_t kFar = std::uint64_t{1} << 30, kFarBytes = std::uint64_t{1} << 34;
    const std::uint64_t row =
        shape.rows == 1 ? std::uint64_t{kChunkBytes} : in_bytes(tensor.seq_stride);
    const std::uint64_t head =
        shape.heads == 1 ? std::uint64_t{kChunkBytes} : in_bytes(tensor.head_stride);
    Request request{};
    request.rank = 5;
    request.dimensions = {static_cast<std::uint64_t>(shape.columns), kFar,
                          static_cast<std::uint64_t>(shape.heads), kFar + 1,
                          static_cast<std::uint64_t>(shape.rows) + 1};
    request.strides = {row, head, kFarBytes - row, row};
    return request;
}

Request dense_request(std::int64_t batch, const fa_tune_tensor& tensor, const MapShape& shape) {
    Request request{};
    request.rank = 4;
    request.dimensions = {
        static_cast<std::uint64_t>(shape.columns), static_cast<std::uint64_t>(shape.rows),
        static_cast<std::uint64_t>(shape.heads), static_cast<std::uint64_t>(batch), 0};
    const std::int64_t elements[3] = {tensor.seq_stride, tensor.head_stride, tensor.batch_stride};
    for (std::size_t i = 0; i < 3; ++i) {
        // An extent of 1 is never stepped along; the driver still wants a legal stride.
        const bool is_stepped = request.dimensions[i + 1] != 1;
        request.strides[i] = is_stepped ? in_bytes(elements[i]) : std::uint64_t{kChunkBytes};
    }
    return request;
}

CUresult make(const Driver& driver, const Request& request, void* address, CUtensorMap& map) {
    const std::uint32_t box[kMostDimensions] = {kPanelColumns, request.box_rows, 1, 1, 1};
    const std::uint32_t steps[kMostDimensions] = {1, 1, 1, 1, 1};
    return driver.cuTensorMapEncodeTiled(&map, static_cast<int>(request.type), request.rank,
                                         address, request.dimensions.data(), request.strides.data(),
                                         box, steps, kInterleaveNone, kSwizzle128B, kPromotion128B,
                                         kFillZeros);
}

Status refused(CUresult result, const Request& request) {
    const auto wide = [](std::uint64_t value) { return static_cast<long long>(value); };
    const auto& size = request.dimensions;
    const auto& stride = request.strides;
    if (request.rank == 5) {
        return failure(FA_TUNE_INVALID,
                       "the driver made no tensor map (error %d) of %lld packed rows of %lld heads "
                       "with strides of (%lld, %lld) bytes and boxes of %u rows",
                       result, wide(size[4] - 1), wide(size[2]), wide(stride[0]), wide(stride[1]),
                       request.box_rows);
    }
    return failure(FA_TUNE_INVALID,
                   "the driver made no tensor map (error %d) of dimensions (%lld, %lld, %lld, "
                   "%lld) with strides of (%lld, %lld, %lld) bytes and boxes of %u rows",
                   result, wide(size[0]), wide(size[1]), wide(size[2]), wide(size[3]),
                   wide(stride[0]), wide(stride[1]), wide(stride[2]), request.box_rows);
}

}  // namespace

Status encode_map(const Driver& driver, const fa_tune_problem& problem,
                  const fa_tune_tensor& tensor, const MapShape& shape, CUtensorMap& map) {
    Request request = problem.packed != 0 ? packed_request(tensor, shape)
                                          : dense_request(problem.batch, tensor, shape);
    request.address = reinterpret_cast<std::uintptr_t>(tensor.address);
    request.type = problem.dtype == FA_TUNE_DTYPE_FP16 ? kDataFloat16 : kDataBfloat16;
    request.box_rows = static_cast<std::uint32_t>(shape.box_rows);
    thread_local KeptMaps kept_maps;
    KeptMaps::Kept& kept = kept_maps.place_of(request);
    if (!(kept.request == request)) {
        const CUresult result = make(driver, request, tensor.address, kept.map);
        kept.request = result == kCudaSuccess ? request : Request{};
        if (result != kCudaSuccess) return refused(result, request);
    }
    map = kept.map;
    return {};
}

}  // namespace fa_tune::core
