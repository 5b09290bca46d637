// Translation unit of the sm80_bwd family.  A variant's kernels are instantiations,
//     sm80_backward_kernel<Sm80BackwardConfig{...}, WorkloadTraits{...}>
// and likewise the others, asked for by name; nothing here names one.
#include "sm80/bwd/kernel.cuh"

using namespace fa_tune;
using namespace fa_tune::sm80::backward;
