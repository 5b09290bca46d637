#!/usr/bin/env bash
# Record decoding on the GPU at hand: tools/record_decode.sh [FOLDER]
#
# Searches of one and four queries after many keys, by events, decode_<step>_events.csv each.  The
# grid is what a registry is filled from; `lengths` are those that the device knows, log-normal ones
# beside as many keys in equal ones; `splits` is one tile with fixed numbers of key blocks for a
# CTA, which tells what a fixed choice loses; `between` are lengths and batches between, which tell
# what the registry's rule for them loses (fa-tune bench-between); `bounds` are lengths and
# batches where rules for defaults change, of which an H200's are in benchmarks/decode_between/.
# FOLDER is profiles/ if not given; tools/record_steps.sh says how steps are kept, and has the rest
# of the variables.
#
#   REFERENCES   what to measure against; read,fa2,cudnn if not given
#   STEPS        all of grid, queries, lengths, splits, between, bounds if not given
#   HEADS        heads of queries and keys, "64/8 32/8" say; "64/8 32/8 32/32 8/1" if not given.
#                8/1 is what each of eight GPUs has of 64/8
#   PART         of grid and queries only the `few` or `many` sequences; both if not given
#
# A search takes 18 to 20 s for each workload on an H200 with 16 cores and fa4 beside: 6 minutes for
# grid and as many for queries of 64/8 and of 8/1.  Two GPUs can share the heads.
# Afterwards: python tools/fit_decode.py; python tools/pages/ladder_page.py
set -uo pipefail
cd "$(dirname "$0")/.."
source tools/record_steps.sh
begin "${1:-profiles}" "grid queries lengths splits between bounds"
tile="decode(BF16, 128, 16, 128, 8): stages_2+aligned"

decode() { # STEP WHAT QUERIES BATCHES KEYS OPTION…
    local name=$2 queries=$3 batches=$4 keys=$5 mask=full
    wanted "$1" || return 0
    shift 5
    ((queries > 1)) && mask=causal_br
    step "decode_h${heads%/*}_kv${heads#*/}_$name" search --kernels "${kernels:-fast}" \
        --family decode --profiler events --dtype bf16 --runs 3 --no-confirm --limit 3 \
        --ref "${REFERENCES:-read,fa2,cudnn}" --heads "${heads%/*}" --kv-heads "${heads#*/}" \
        --seq-lens "$queries" --mask "$mask" --batch "$batches" --seq-lens-kv "$keys" "$@"
}

for heads in ${HEADS:-64/8 32/8 32/32 8/1}; do
    few=1,4,16 many=64,128
    long=1024,8192,32768,131072 short=1024,8192,32768
    [[ $heads == 32/32 ]] && few=1,4 many=16,64,128 short=1024,8192
    for queries in 1 4; do
        ((queries == 1)) && grid=grid || grid=queries
        [[ ${PART:-few} == few ]] && decode $grid "q$queries" $queries $few $long
        [[ ${PART:-many} == many ]] && decode $grid "q${queries}_batches" $queries $many $short
    done
    for queries in 1 4; do
        ((queries == 1)) && told="" || told=_q4
        decode lengths lognormal$told $queries 64 2560,32768 --cache-lengths lognormal-1-0
        decode lengths equal$told $queries 64 458,5860 --cache-lengths equal
    done
    decode lengths pages 1 64 8192 --page-size 16
    kernels=$tile decode splits splits 1 1,4,16 1024,8192,32768 \
        --axis min_blocks=1,2,4,8,16,32,64
    decode between between 1 1,8,32 3000,16384
    decode between between_batches 1 2,8,32 1024,8192
    [[ $heads == 64/8 ]] || continue
    for queries in 1 4; do
        ((queries == 1)) && told="" || told=_q4
        decode bounds tiles$told $queries 9,12,20,24,100 300,700,1100,4096,16384
        decode bounds short$told $queries 1,2,5 128,300,600
    done
    decode bounds rows 8 2,9 1100,8192
    decode bounds room 1 5,24 1100,4096 --cache-lengths lognormal-1-0
    kernels=e4m3 decode bounds e4m3 1 2,12 1100,8192 --kv-e4m3
done
exit "$failed"
