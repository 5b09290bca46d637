// Which keys a query sees.
//
//              keys
//     row i    x x x x x . . .        key j counts when
//     row i+1  x x x x x x . .            j < keys           (the sequence ends)
//        ...                              j <= i + diagonal  (causal)
#pragma once

namespace fa_tune {

// Row `row` sees the keys before this one.
template <bool kCausal>
__device__ __forceinline__ int keys_seen(int row, const int& keys, const int& diagonal) {
    return kCausal ? min(keys, row + diagonal + 1) : keys;
}

}  // namespace fa_tune
