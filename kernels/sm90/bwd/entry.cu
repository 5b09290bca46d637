// Translation unit of the sm90_bwd family.  A variant's kernels are instantiations,
//     sm90_backward_kernel<Sm90BackwardConfig{...}, WorkloadTraits{...}>
// and likewise the others, asked for by name; nothing here names one.
#include "sm90/bwd/dq_kernel.cuh"
#include "sm90/bwd/finish.cuh"
#include "sm90/bwd/kernel.cuh"
#include "sm90/bwd/prepare.cuh"
#include "sm90/bwd/wide_kernel.cuh"

using namespace fa_tune;
using namespace fa_tune::sm90::backward;
