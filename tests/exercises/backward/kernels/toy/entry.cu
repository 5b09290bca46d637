#include "common/problem.cuh"
#include "toy/config.cuh"
#include "toy/params.cuh"

namespace fa_tune::toy {

union Word {
    float value;
    unsigned bits;
};

// A number of 16 bits as fp32, and back: to the nearest, ties to even.
template <DType DTYPE>
struct Element {
    static constexpr int kShift = DTYPE == DType::FP16 ? 13 : 16;
    static constexpr float kFactor = DTYPE == DType::FP16 ? 5.192296858534828e33f : 1.0f;  // 2^112

    static __device__ float wide(unsigned short element) {
        Word word;
        word.bits = (element & 0x8000u) << 16 | (element & 0x7fffu) << kShift;
        return word.value * kFactor;
    }
    static __device__ unsigned short narrow(float value) {
        Word word;
        word.value = value / kFactor;
        const unsigned size = word.bits & 0x7fffffffu, odd = size >> kShift & 1;
        return word.bits >> 16 & 0x8000u | (size + (1u << (kShift - 1)) - 1 + odd) >> kShift;
    }
};

// One head of a batch element.
template <ToyConfig CFG>
struct Head {
    using Type = Element<CFG.dtype>;

    const BackwardParams& p;
    int batch, head;

    __device__ long long at(const Tensor& tensor, int row) const {
        return batch * tensor.batch + row * tensor.seq + head * tensor.head;
    }
    __device__ float get(const Tensor& tensor, int row, int column) const {
        return Type::wide(
            static_cast<const unsigned short*>(tensor.address)[at(tensor, row) + column]);
    }
    __device__ void set(const Tensor& tensor, int row, int column, float value) const {
        const long long place = at(tensor, row) + column;
        if (p.wide_sums) {
            static_cast<float*>(tensor.address)[place] = value;
        } else {
            static_cast<unsigned short*>(tensor.address)[place] = Type::narrow(value);
        }
    }
    __device__ float product(const Tensor& a, int row_a, const Tensor& b, int row_b, int n) const {
        float sum = 0;
        for (int i = 0; i < n; ++i) sum += get(a, row_a, i) * get(b, row_b, i);
        return sum;
    }
    __device__ float weight(int row, int key) const {  // not yet divided by the row's sum
        return expf(p.scale * product(p.q, row, p.k, key, CFG.d_head));
    }
    __device__ float slope(int row, int key) const {  // of the row's result by that weight
        return product(p.d_o, row, p.v, key, CFG.d_v());
    }
    // The sum of a row's weights, and the mean of their slopes.
    __device__ void sums(int row, float& total, float& mean) const {
        total = mean = 0;
        for (int key = 0; key < p.seq_len_kv; ++key) {
            total += weight(row, key);
            mean += weight(row, key) * slope(row, key);
        }
        mean /= total;
    }
    __device__ void of_query(int row) const {
        float total, mean, sum[CFG.d_head] = {};
        sums(row, total, mean);
        for (int key = 0; key < p.seq_len_kv; ++key) {
            const float ds = p.scale * weight(row, key) / total * (slope(row, key) - mean);
            for (int i = 0; i < CFG.d_head; ++i) sum[i] += ds * get(p.k, key, i);
        }
        for (int i = 0; i < CFG.d_head; ++i) set(p.dq, row, i, sum[i]);
    }
    __device__ void of_key(int key) const {
        float dk[CFG.d_head] = {}, dv[CFG.d_v()] = {};
        for (int row = 0; row < p.seq_len_q; ++row) {
            float total, mean;
            sums(row, total, mean);
            const float share = weight(row, key) / total;
            const float ds = p.scale * share * (slope(row, key) - mean);
            for (int i = 0; i < CFG.d_head; ++i) dk[i] += ds * get(p.q, row, i);
            for (int i = 0; i < CFG.d_v(); ++i) dv[i] += share * get(p.d_o, row, i);
        }
        for (int i = 0; i < CFG.d_head; ++i) set(p.dk, key, i, dk[i]);
        for (int i = 0; i < CFG.d_v(); ++i) set(p.dv, key, i, dv[i]);
    }
};

}  // namespace fa_tune::toy

using namespace fa_tune;

template <ToyConfig CFG, WorkloadTraits TRAITS>
__global__ void toy_backward_kernel(const toy::BackwardParams params) {
    const toy::Head<CFG> head{params, static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y)};
    const int first = blockIdx.x * CFG.B_r + threadIdx.x, all = gridDim.x * CFG.B_r;
    if (first < params.seq_len_q) head.of_query(first);
    for (int key = first; key < params.seq_len_kv; key += all) head.of_key(key);
}
