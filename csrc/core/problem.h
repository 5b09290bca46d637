// Problems: what is no problem at all, what a kernel does not compute, and in words.
#pragma once

#include <cstdint>
#include <string>

#include "dtypes.h"
#include "status.h"

namespace fa_tune::core {

// Fails for one that makes no sense, whatever kernel is to compute it.
void check_problem(const fa_tune_problem& problem);

// Whether a kernel computes it, on whatever device.  Nothing is said in words: this is asked of
// many kernels.
bool computes(const fa_tune_plan& plan, const fa_tune_problem& problem);

// Fails with why not, for people.
void check_computes(const fa_tune_plan& plan, const fa_tune_problem& problem);

// Whether its binary runs on a device of a compute capability, ten times the major version and the
// minor.
bool runs_on(const fa_tune_plan& plan, int compute_capability);

// What the place of query i among the keys is more than i.
std::int64_t diagonal_of(const fa_tune_problem& problem);

// Query i sees keys j <= i + last_diagonal; within the tensor.
std::int32_t last_diagonal_of(const fa_tune_problem& problem);

// Query i sees keys j >= i + first_diagonal; within the tensor.
std::int32_t first_diagonal_of(const fa_tune_problem& problem);

// Keys of a sequence that some query sees.
std::int64_t keys_seen_of(const fa_tune_problem& problem);

// The same mask, where sides of a window that hide nothing are not there, and one that is a causal
// mask is that.
fa_tune_problem with_settled_window(const fa_tune_problem& problem);

// The same mask in one form: a causal mask that hides nothing is not there, either.
fa_tune_problem settled(const fa_tune_problem& problem);

// Aligned bottom-right, where that is another problem than top-left.
bool is_bottom_right(const fa_tune_problem& problem);

double scale_of(const fa_tune_problem& problem);

// The type of that number, which Q may have; null: there is none.
const ElementType* dtype_of(std::int32_t number);

// The elements of Q, K, V, O or of new keys or values of a checked problem.
const ElementType& element_of(const fa_tune_problem& problem, fa_tune_tensor_role role);

// Extents of the tensors: a packed batch is one element with the rows of all sequences.
inline std::int64_t batch_of(const fa_tune_problem& p) { return p.packed != 0 ? 1 : p.batch; }
inline std::int64_t rows_of(const fa_tune_problem& p) {
    return p.packed != 0 ? p.total_q : p.seq_len_q;
}
inline std::int64_t keys_of(const fa_tune_problem& p) {
    return p.packed != 0 ? p.total_kv : p.seq_len_kv;
}

// Blocks of so many rows of a head; of a packed batch as many as there can be, whatever the
// lengths.
inline std::int64_t blocks_of(const fa_tune_problem& p, std::int64_t rows, std::int64_t of_block) {
    const std::int64_t sequences = p.packed != 0 ? p.batch : 1;
    return (rows + sequences * (of_block - 1)) / of_block;
}

inline bool is_causal(const fa_tune_problem& problem) {
    return problem.mask != FA_TUNE_MASK_FULL && problem.mask != FA_TUNE_MASK_FULL_DIAGONAL;
}

// Rows that share a head of K and V, of which more are several tiles.
constexpr std::int64_t kMostTileRows = 64;
inline std::int64_t rows_of_kv_head(const fa_tune_problem& p) {
    return p.seq_len_q * (p.heads / p.kv_heads);
}

// Whether reading K and V takes the time; fa_tune/core/workload.py has the same rule, and says why.
bool is_decode_shape(const fa_tune_problem& problem);

// Head dimension of V and O.
inline std::int32_t d_v_of(const fa_tune_problem& problem) {
    return problem.d_head_v != 0 ? problem.d_head_v : problem.d_head;
}

// b16_h16_kv16_q4096_k4096_d128_fp16_full, with _br, _lse, _left127, ... or _diagonal3 where it is
// so.
std::string key_of(const fa_tune_problem& problem);

// fp16, d_head 128, causal, ragged, with lse, sm_90
std::string kind_of(const fa_tune_plan& plan);

}  // namespace fa_tune::core
