#!/usr/bin/env bash
# Record anew what comes with fa-tune, on the GPU at hand: tools/record_profiles.sh [FOLDER]
#
# Each step writes to FOLDER (profiles/ if not given) when it ends, the most wanted ones first;
# what was measured before an interruption is in the journal, so the same command goes on from
# there.  About half an hour on one H200, less with several; REFERENCES=fa2,cudnn,fa4 has
# FlashAttention 4 beside the others where it is installed.  Afterwards: python tools/pages/ladder_page.py
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-profiles}
lengths=512,1024,2048,4096,8192,16384
common=(--record "$folder" --registry "$(mktemp -d)/registry.json" --limit 4)

search() { ./run search --kernels "$1" --profiler "$2" --devices all "${common[@]}" "${@:3}"; }
references=${REFERENCES:-fa2,cudnn}

# Both families, all lengths, both types, with a causal mask and without.
search fast events --seq-lens "$lengths" --d-head 64,128 --mask full,causal --ref "$references"
search fast ncu --seq-lens "$lengths"

# The ladder of the sm80 family, with its counters.
tools/record_ladder.sh "$folder"
