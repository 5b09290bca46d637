// Attention by a warp for each query, in the simplest way: --with examples/row_attention.cu:rows
// Q, O [batch, seq_q, heads, d], K, V [batch, seq_kv, kv_heads, d], fp16, contiguous, d = 32·n.
#include <cuda_fp16.h>

constexpr int kMost = 8;                    // 32 lanes of as many numbers: d up to 256
constexpr float kLeast = -3.402823466e38f;  // NVRTC has no INFINITY

extern "C" __global__ void rows(const __half* q, const __half* k, const __half* v, __half* o,
                                int seq_q, int seq_kv, int heads, int kv_heads, int d, float scale,
                                int causal) {
    const int row = blockIdx.x, head = blockIdx.y, batch = blockIdx.z, lane = threadIdx.x;
    const int kv_head = head / (heads / kv_heads), mine = d / 32;
    const long long at = ((long long)(batch * seq_q + row) * heads + head) * d;
    float query[kMost], sum[kMost] = {}, largest = kLeast, total = 0.0f;
    for (int i = 0; i < mine; ++i) query[i] = __half2float(q[at + lane + 32 * i]) * scale;
    const int end = causal ? min(seq_kv, row + 1) : seq_kv;
    for (int key = 0; key < end; ++key) {
        const long long from = ((long long)(batch * seq_kv + key) * kv_heads + kv_head) * d + lane;
        float score = 0.0f;
        for (int i = 0; i < mine; ++i) score += query[i] * __half2float(k[from + 32 * i]);
        for (int step = 16; step; step /= 2) score += __shfl_xor_sync(~0u, score, step);
        const float before = largest;
        largest = fmaxf(largest, score);
        const float kept = expf(before - largest), weight = expf(score - largest);
        total = total * kept + weight;
        for (int i = 0; i < mine; ++i)
            sum[i] = sum[i] * kept + weight * __half2float(v[from + 32 * i]);
    }
    for (int i = 0; i < mine; ++i) o[at + lane + 32 * i] = __float2half(sum[i] / total);
}
