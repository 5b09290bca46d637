// Translation unit of the sm80 family.  A variant is one instantiation,
//     flash_forward_kernel<FlashForwardKernelConfig{...}, WorkloadTraits{...}>
// asked for by name; nothing here names one.
#include "sm80/fwd/kernel.cuh"

using namespace fa_tune;
using namespace fa_tune::sm80;
