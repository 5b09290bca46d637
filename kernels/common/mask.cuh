// Which keys a query sees.
//
//              keys
//     row i    x x x x x . . .        key j counts when
//     row i+1  x x x x x x . .            j < keys           (the sequence ends)
//        ...                              j <= i + diagonal  (causal)
//                                         j >= i + first_diagonal  (window)
#pragma once

namespace fa_tune {

// Row `row` sees the keys before this one.
template <bool kCausal>
__device__ __forceinline__ int keys_seen(int row, const int& keys, const int& diagonal) {
    return kCausal ? min(keys, row + diagonal + 1) : keys;
}

// With a window row `row` sees no key before this one, which may be negative.
__device__ __forceinline__ int first_key_seen(int row, const int& first_diagonal) {
    return row + first_diagonal;
}

}  // namespace fa_tune
