#!/usr/bin/env bash
# Record anew what comes with fa-tune, on the GPU at hand: tools/record_profiles.sh [FOLDER]
#
# The grid of workloads, shapes off it, and masks, heads and packed batches of today's models, by
# events.  Each step is a recording of its own in
# FOLDER/<gpu>/ (FOLDER is profiles/ if not given), the most wanted first.  A step that is cut off
# leaves its table as fast_…_unfinished.csv; the same command goes on from there, since finished
# measurements are in the journal.
#
#   FA_TUNE      the command that runs fa-tune; ./run if not given ("python3 -m fa_tune")
#   REFERENCES   the libraries to measure against; fa2,cudnn,fa4 if not given
#   DEVICES      as --devices has it; one GPU, the first, if not given
#   INPUTS       what Q, K and V hold, as --inputs has it, one after another, "normal trained" say;
#                normal if not given.  Those of other inputs are fast_…_<inputs>_events.csv
#   STEPS        only these steps, by name, "grid off" say; all but ncu and sustained if not
#                given
#   SECONDS_LEFT begin no step later than so many seconds after the start; no limit if not given
#
# An estimated 11 to 13 minutes for each kind of inputs on one H200 with 16 cores.  Not among it:
# tools/record_ladder.sh, and STEPS=ncu, the set under ncu; docs/ladder.md shows both.  Nor
# STEPS=sustained: times back to back at the power limit, in recordings of their own
# (fast_…sustained.csv), 5 to 10 minutes.
# Afterwards: python tools/pages/ladder_page.py
set -uo pipefail
cd "$(dirname "$0")/.."
mkdir -p "${1:-profiles}"
folder=$(cd "${1:-profiles}" && pwd)
read -ra fa_tune <<<"${FA_TUNE:-./run}"
references=${REFERENCES:-fa2,cudnn,fa4}
lengths=512,1024,2048,4096,8192,16384
usual="grid bf16 large off one gpt_oss_128 gpt_oss_1024 mistral gemma_1024 gemma_4096 d_v_128 mixture"
failed=0

# FlashAttention 4 compiles a kernel for each kind of problem; kept, later workers need not.
export FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED=${FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED:-1}

keep() { # PARTS SUFFIX: what a step has recorded, as fast<SUFFIX>_…
    local file name gpu
    for file in "$1"/*/*; do
        [[ -e $file ]] || continue
        name=$(basename "$file")
        gpu=$folder/$(basename "$(dirname "$file")")
        mkdir -p "$gpu"
        mv "$file" "$gpu/fast$2${name#fast}"
    done
    rm -rf "$1"
    rmdir "$folder/parts" 2>/dev/null || true
}

cut_off() { # CHILD PARTS SUFFIX
    kill "$1" 2>/dev/null
    wait "$1"
    keep "$2" "$3"
    exit 143
}

step() { # NAME SUFFIX search|bench OPTION…
    local name=$1 suffix=$2 command=$3 parts=$folder/parts/$1 began=$SECONDS status=0 own=()
    shift 3
    [[ " ${STEPS:-$usual} " == *" $name "* ]] || return 0
    if ((SECONDS > ${SECONDS_LEFT:-SECONDS})); then
        echo "record_profiles: $name, $inputs inputs, left out after $SECONDS s" >&2
        return 0
    fi
    [[ $command == search ]] && own=(--registry "$registry" ${DEVICES:+--devices "$DEVICES"})
    "${fa_tune[@]}" "$command" --kernels fast --ref "$references" --inputs "$inputs" --limit 4 \
        --record "$parts" "${own[@]}" "$@" &
    local child=$!
    trap 'cut_off $child "$parts" "$suffix"' INT TERM
    wait "$child" || status=$?
    trap - INT TERM
    keep "$parts" "$suffix"
    ((status == 0)) || failed=$status
    echo "record_profiles: $name, $inputs inputs, took $((SECONDS - began)) s, status $status," \
        "$SECONDS s in all" >&2
}

masks=(--mask full,causal)
for inputs in ${INPUTS:-normal}; do
    registry=$(mktemp -d)/registry.json # what was chosen on other inputs stays out
    # Both families in one type: the other one tells nothing new of sm80.
    step grid "" search --profiler events --seq-lens "$lengths" --d-head 64,128 --dtype fp16 \
        "${masks[@]}"
    step bf16 _bf16 search --profiler events --family sm90 --seq-lens "$lengths" --d-head 64,128 \
        --dtype bf16 "${masks[@]}"
    step large _d192_d256 search --profiler events --seq-lens 1024,4096 --d-head 192,256 \
        --dtype fp16 "${masks[@]}"
    # Odd lengths, grouped heads, few batch elements.
    step off _off_grid search --profiler events --family sm90 --seq-lens 1000,3001 \
        --d-head 64,128 --dtype fp16 "${masks[@]}" --batch 3 --heads 20 --kv-heads 4
    step one _off_grid_batch_1 search --profiler events --family sm90 --seq-lens 3001,16384 \
        --d-head 128 --dtype bf16 "${masks[@]}" --batch 1
    # Windows, sinks and soft caps as models have them; V of fewer columns; a packed batch.
    step gpt_oss_128 _gpt_oss_128 search --profiler events --family sm90 --seq-lens 4096,8192 \
        --d-head 64 --dtype bf16 --mask causal --batch 2 --heads 64 --kv-heads 8 \
        --window-left 127 --sink
    step gpt_oss_1024 _gpt_oss_1024 search --profiler events --family sm90 --seq-lens 4096,8192 \
        --d-head 64 --dtype bf16 --mask causal --batch 2 --heads 64 --kv-heads 8 \
        --window-left 1023 --sink
    step mistral _mistral search --profiler events --family sm90 --seq-lens 8192 \
        --d-head 128 --dtype bf16 --mask causal --batch 2 --heads 32 --kv-heads 8 \
        --window-left 4095
    step gemma_1024 _gemma_1024 search --profiler events --family sm90 --seq-lens 8192 \
        --d-head 256 --dtype bf16 --mask causal --batch 2 --kv-heads 8 \
        --window-left 1023 --softcap 50
    step gemma_4096 _gemma_4096 search --profiler events --family sm90 --seq-lens 8192 \
        --d-head 256 --dtype bf16 --mask causal --batch 2 --kv-heads 8 \
        --window-left 4095 --softcap 50
    step d_v_128 _d_v_128 search --profiler events --family sm90 --seq-lens 2048,4096,8192,16384 \
        --d-head 192 --d-head-v 128 --dtype bf16 --mask causal
    step mixture _mixture search --profiler events --family sm90 --seq-lens 4096 --batch 64 \
        --lengths lognormal-1-1 --d-head 64,128 --dtype bf16 --mask causal
    step ncu "" search --profiler ncu --seq-lens 1024,4096
    step sustained "" bench --regime sustained --runs 3 --family sm90 --dtype fp16 \
        --seq-lens 1024,4096,16384 --d-head 64,128 "${masks[@]}"
done
exit "$failed"
