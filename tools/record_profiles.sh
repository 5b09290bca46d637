#!/usr/bin/env bash
# Record anew what comes with fa-tune, on the GPU at hand: tools/record_profiles.sh [FOLDER]
#
# The grid of workloads, shapes off it, and masks, heads and packed batches of today's models, by
# events, the most wanted first.  FOLDER is profiles/ if not given; tools/record_steps.sh says how
# steps are kept, and has the rest of the variables.
#
#   REFERENCES   the libraries to measure against; fa2,cudnn,fa4 if not given
#   DEVICES      as --devices has it; one GPU, the first, if not given
#   INPUTS       what Q, K and V hold, as --inputs has it, one after another, "normal trained" say;
#                normal if not given.  Those of other inputs are fast_…_<inputs>_events.csv
#   D_HEADS      of grid, bf16, off and mixture, "128" say; 64,128 if not given.  With one of them
#                the recordings are fast_…_d128_events.csv, and go before others of these workloads
#   STEPS        all but ncu and sustained if not given
#
# A search takes 15 to 19 s for each workload on an H200 with 16 cores, less without FlashAttention 4
# and with OPTIONS=--no-confirm: an estimated 25 minutes for each kind of inputs.
# Two GPUs halve it:
#
#   CUDA_VISIBLE_DEVICES=0 STEPS="grid large off gemma_1024 gemma_4096" tools/record_profiles.sh &
#   CUDA_VISIBLE_DEVICES=1 STEPS="bf16 one gpt_oss_128 gpt_oss_1024 mistral d_v_128 mixture" \
#       tools/record_profiles.sh
#
# Not among it: tools/record_ladder.sh, and STEPS=ncu, the set under ncu; docs/ladder.md shows
# both.  Nor STEPS=sustained: times back to back at the power limit, in recordings of their own
# (fast_…sustained.csv), 5 to 10 minutes.
# Afterwards: python tools/pages/ladder_page.py
set -uo pipefail
cd "$(dirname "$0")/.."
source tools/record_steps.sh
begin "${1:-profiles}" "grid bf16 large off one gpt_oss_128 gpt_oss_1024 mistral gemma_1024
    gemma_4096 d_v_128 mixture backward"
lengths=512,1024,2048,4096,8192,16384
heads=${D_HEADS:-64,128}
of_heads=
[[ $heads == *,* ]] || of_heads=_d$heads

# FlashAttention 4 compiles a kernel for each kind of problem; kept, later workers need not.
export FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED=${FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED:-1}

profile() { # NAME SUFFIX search|bench OPTION…
    local name=$1 suffix=$2 command=$3 told=
    shift 3
    wanted "$name" || return 0
    [[ $inputs == normal ]] || told=_${inputs//[^A-Za-z0-9]/_}
    [[ $command == search && -n ${DEVICES:-} ]] && set -- "$@" --devices "$DEVICES"
    step "fast$suffix$told" "$command" --kernels fast --ref "${REFERENCES:-fa2,cudnn,fa4}" \
        --inputs "$inputs" --limit 4 "$@"
}

events() { # NAME SUFFIX OPTION…
    local name=$1 suffix=$2
    shift 2
    profile "$name" "$suffix" search --profiler events "$@"
}

# Windows, sinks and soft caps as models have them.
of_model() { # NAME D_HEAD BATCH HEADS/KV_HEADS LENGTHS OPTION…
    local name=$1 d_head=$2 batch=$3 of=$4 seq_lens=$5
    shift 5
    events "$name" "_$name" --family sm90 --seq-lens "$seq_lens" --d-head "$d_head" --dtype bf16 \
        --mask causal --batch "$batch" --heads "${of%/*}" --kv-heads "${of#*/}" "$@"
}

for inputs in ${INPUTS:-normal}; do
    registry=${inputs//[^A-Za-z0-9]/_} # what was chosen on other inputs stays out
    both=(--mask full,causal)
    # Both families in one type: the other one tells nothing new of sm80.
    events grid "$of_heads" --family sm90,sm80 --seq-lens "$lengths" --d-head "$heads" \
        --dtype fp16 "${both[@]}"
    events bf16 "_bf16$of_heads" --family sm90 --seq-lens "$lengths" --d-head "$heads" \
        --dtype bf16 "${both[@]}"
    events large _d192_d256 --seq-lens 1024,4096 --d-head 192,256 --dtype fp16 "${both[@]}"
    # Odd lengths, grouped heads, few batch elements.
    events off "_off_grid$of_heads" --family sm90 --seq-lens 1000,3001 --d-head "$heads" \
        --dtype fp16 "${both[@]}" --batch 3 --heads 20 --kv-heads 4
    events one _off_grid_batch_1 --family sm90 --seq-lens 3001,16384 --d-head 128 --dtype bf16 \
        "${both[@]}" --batch 1
    of_model gpt_oss_128 64 2 64/8 4096,8192 --window-left 127 --sink
    of_model gpt_oss_1024 64 2 64/8 4096,8192 --window-left 1023 --sink
    of_model mistral 128 2 32/8 8192 --window-left 4095
    of_model gemma_1024 256 2 16/8 8192 --window-left 1023 --softcap 50
    of_model gemma_4096 256 2 16/8 8192 --window-left 4095 --softcap 50
    # V of fewer columns; a packed batch.
    events d_v_128 _d_v_128 --family sm90 --seq-lens 2048,4096,8192,16384 --d-head 192 \
        --d-head-v 128 --dtype bf16 --mask causal
    events mixture "_mixture$of_heads" --family sm90 --seq-lens 4096 --batch 64 \
        --lengths lognormal-1-1 --d-head "$heads" --dtype bf16 --mask causal
    events backward "_backward$of_heads" --op backward --seq-lens 512,1024,4096,16384 \
        --d-head "$heads" --dtype fp16 "${both[@]}"
    profile ncu "" search --profiler ncu --seq-lens 1024,4096
    profile sustained "" bench --regime sustained --runs 3 --family sm90 --dtype fp16 \
        --seq-lens 1024,4096,16384 --d-head "$heads" "${both[@]}"
done
exit "$failed"
