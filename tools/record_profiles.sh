#!/usr/bin/env bash
# Record anew what comes with fa-tune, on the GPU at hand: tools/record_profiles.sh [FOLDER]
#
# Each step writes to FOLDER (profiles/ if not given) when it ends, the most wanted ones first;
# what was measured before an interruption is in the journal, so the same command goes on from
# there.  About half an hour on one H200, less with several; REFERENCES=fa2,cudnn,fa4 has
# FlashAttention 4 beside the others where it is installed.  Afterwards: python tools/ladder_page.py
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-profiles}
lengths=512,1024,2048,4096,8192,16384
common=(--record "$folder" --registry "$(mktemp -d)/registry.json" --limit 4)

search() { ./run search --kernels "$1" --profiler "$2" --devices all "${common[@]}" "${@:3}"; }
references=${REFERENCES:-fa2,cudnn}

# Both families, all lengths, both types, with a causal mask and without.
search fast events --seq-lens "$lengths" --d-head 64,128 --mask full,causal --ref "$references"
# The ladders of both families.
search prog events --seq-lens 4096 --dtype fp16
search prog ncu --seq-lens 4096 --dtype fp16
search fast ncu --seq-lens "$lengths"

# The counters of the sm80 ladder and of its best config, for docs/ladder.md.
async=async+eager+swizzled
gpu=$(dirname "$(ls -t "$folder"/*/fast_events.csv | head -1)")
./run profile --profiler ncu --metrics explain --runs 1 --seq-lens 4096 --ref fa2,cudnn --json \
    "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles" \
    "(FP16, 128, 64, 64, 4): async+swizzled+load_0_0_0_tiles" \
    "(FP16, 128, 64, 64, 4): $async+load_0_0_0_tiles" \
    "(FP16, 128, 64, 64, 4): $async+load_2_2_2_tiles" \
    "(FP16, 128, 64, 64, 4): $async+load_2_2_2_tiles+buffer" \
    "(FP16, 128, 64, 64, 4): $async+load_2_2_2_tiles+buffer+opt_softmax" \
    "(FP16, 128, 64, 64, 4): $async+load_0_2_2_tiles+opt_softmax" \
    "(FP16, 128, 256, 64, 8): $async+load_1_1_1_tiles+opt_softmax+stages_3+rescale_8+pingpong" \
    >"$gpu/ladder_explain.json.new"
mv "$gpu/ladder_explain.json.new" "$gpu/ladder_explain.json"
