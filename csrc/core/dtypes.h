// Element types, numbered as PyTorch numbers them.
// Generated from fa_tune/core/dtypes.py by `python -m fa_tune.export.config_headers`; do not edit.
#pragma once

#include <cstdint>

namespace fa_tune::core {

struct ElementType {
    std::int32_t number;
    const char* word;
    std::int32_t size_bytes;
    std::uint32_t tma_code;  // CUtensorMapDataType
};

constexpr ElementType kE4m3 = {24, "e4m3", 1, 0};
// Those that Q may have.
constexpr ElementType kDtypes[] = {
    {5, "fp16", 2, 6},
    {15, "bf16", 2, 9},
};

}  // namespace fa_tune::core
