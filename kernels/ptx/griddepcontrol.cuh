// A launch that begins before the one in front of it is done.
// PTX ISA: griddepcontrol.  Minimum: sm_90.
#pragma once

namespace fa_tune::ptx {

// The launch behind this one may begin once all CTAs have said so or are done.
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Until the launches in front of this one are done and what they wrote is to be seen.
__device__ __forceinline__ void griddepcontrol_wait() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

}  // namespace fa_tune::ptx
