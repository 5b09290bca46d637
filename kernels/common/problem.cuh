// What the workload is, of whatever family the kernel: its sizes and its compile-time facts.
#pragma once

namespace fa_tune {

// Compile-time facts of a workload.  What a workload does not use is not in its code.
struct WorkloadTraits {
    bool causal;   // mask keys after a diagonal
    bool ragged;   // a sequence length is no multiple of its block
    bool lse;      // write the log-sum-exp of every row
    bool window;   // mask keys before a diagonal
    bool sink;     // one more score for every row of a head, of a key whose value is 0
    bool softcap;  // scores within bounds, by tanh
    bool alibi;    // less for keys further away
    bool hook;     // scores through a function that is given as text
    bool packed;   // sequences of any lengths, one after another; ragged as well

    // Whether a row may see nothing of a block that its tile visits.
    __device__ constexpr bool diagonal() const { return causal || window; }
    // Whether scores change before the maximum is taken, other than by a mask.
    __device__ constexpr bool changes_scores() const { return softcap || alibi || hook; }
};

// Two words of global memory of a dynamic scheduler, zero before and after a launch.
struct SchedulerCounters {
    unsigned taken;     // work tiles that were asked for, beyond every CTA's first
    unsigned finished;  // CTAs that found none left
};

}  // namespace fa_tune
