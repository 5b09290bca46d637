// Translation unit of the sm90 family.  A variant is one instantiation,
//     sm90_forward_kernel<Sm90Config{...}, WorkloadTraits{...}>
// asked for by name; nothing here names one.
#include "sm90/fwd/kernel.cuh"

using namespace fa_tune;
using namespace fa_tune::sm90;
