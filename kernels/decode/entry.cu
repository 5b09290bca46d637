// Translation unit of the decode family.  A variant is one instantiation,
//     decode_kernel<DecodeConfig{...}, WorkloadTraits{...}>
// and, with Combine::KERNEL, decode_combine_kernel of the same; nothing here names one.
#include "decode/kernel.cuh"

using namespace fa_tune;
using namespace fa_tune::decode;
