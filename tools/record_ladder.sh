#!/usr/bin/env bash
# Record the sm80 ladder anew on the GPU at hand: tools/record_ladder.sh [FOLDER]
#
# Its steps by ncu and by events, and the counters of the steps, of the best config beyond them
# (BEST, below if not given) and of two references: what docs/ladder.md shows.  Two minutes on one
# H200.  FA_TUNE is the command that runs fa-tune, ./run if not given.  The page also wants the
# best config in fast_ncu.csv and fast_events.csv at seq_len 4096: tools/record_profiles.sh.
# Afterwards: python tools/pages/ladder_page.py
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-profiles}
read -ra fa_tune <<<"${FA_TUNE:-./run}"
async=async+eager+swizzled
best=${BEST:-"(FP16, 128, 256, 64, 8): $async+load_1_1_1_tiles+opt_softmax+stages_3+rescale_8+pingpong"}

search() {
    "${fa_tune[@]}" search --kernels prog --profiler "$1" --seq-lens 1024,4096 --dtype fp16 \
        --inputs normal --ref fa2,cudnn --limit 4 \
        --record "$folder" --registry "$(mktemp -d)/registry.json"
}
search ncu
search events

gpu=$(dirname "$(ls -t "$folder"/*/prog_events.csv | head -1)")
"${fa_tune[@]}" profile --profiler ncu --metrics explain --runs 1 --seq-lens 4096 \
    --inputs normal --ref fa2,cudnn --json \
    "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles" \
    "(FP16, 128, 64, 64, 4): async+swizzled+load_0_0_0_tiles" \
    "(FP16, 128, 64, 64, 4): $async+load_0_0_0_tiles" \
    "(FP16, 128, 64, 64, 4): $async+load_2_2_2_tiles" \
    "(FP16, 128, 64, 64, 4): $async+load_2_2_2_tiles+buffer" \
    "(FP16, 128, 64, 64, 4): $async+load_2_2_2_tiles+buffer+opt_softmax" \
    "(FP16, 128, 64, 64, 4): $async+load_0_2_2_tiles+opt_softmax" \
    "$best" >"$gpu/ladder_explain.json.new"
mv "$gpu/ladder_explain.json.new" "$gpu/ladder_explain.json"
