// What the workload is, of whatever family the kernel: its sizes and its compile-time facts.
#pragma once

namespace fa_tune {

// Compile-time facts of a workload.  What a workload does not use is not in its code.
struct WorkloadTraits {
    bool causal;  // mask keys after the diagonal
    bool ragged;  // a sequence length is no multiple of its block
    bool lse;     // write the log-sum-exp of every row
    bool packed = false;  // sequences of any lengths, one after another; ragged as well
};

// Two words of global memory of a dynamic scheduler, zero before and after a launch.
struct SchedulerCounters {
    unsigned taken;     // work tiles that were asked for, beyond every CTA's first
    unsigned finished;  // CTAs that found none left
};

}  // namespace fa_tune
