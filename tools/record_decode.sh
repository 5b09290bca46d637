#!/usr/bin/env bash
# Record decoding on the GPU at hand: tools/record_decode.sh [FOLDER]
#
# Searches of one and four queries after many keys, by events, each step a recording of its own,
# decode_<step>_events.csv in FOLDER/<gpu>/ (FOLDER is profiles/ if not given).  The grid is what a
# registry is filled from; `lengths` are those that the device knows, log-normal ones beside as many
# keys in equal ones; `between` are lengths and batches between, which tell what its rule for
# them loses (fa-tune bench-between); `splits` are fixed numbers of
# key blocks for a CTA, on standard output alone.
#
#   FA_TUNE      the command that runs fa-tune; ./run if not given ("python3 -m fa_tune")
#   REFERENCES   what to measure against; read,fa2,cudnn if not given
#   STEPS        only these steps, by name, "grid between" say; all if not given
#   HEADS        heads of queries and keys, "64/8 32/8" say; "64/8 32/8 32/32" if not given
#   ONLY         of the grid only the large batches, if it is not empty
#   SECONDS_LEFT begin no search later than so many seconds after the start; no limit if not given
#
# Afterwards: python tools/pages/ladder_page.py
set -uo pipefail
cd "$(dirname "$0")/.."
mkdir -p "${1:-profiles}"
folder=$(cd "${1:-profiles}" && pwd)
read -ra fa_tune <<<"${FA_TUNE:-./run}"
references=${REFERENCES:-read,fa2,cudnn}
registry=$(mktemp -d)/registry.json
failed=0

keep() { # PARTS NAME: what a search has recorded, under its own name
    local file gpu
    for file in "$1"/*/*; do
        [[ -e $file ]] || continue
        gpu=$folder/$(basename "$(dirname "$file")")
        mkdir -p "$gpu"
        mv "$file" "$gpu/decode_$2_events${file##*_events}"
    done
    rm -rf "$1"
    rmdir "$folder/parts" 2>/dev/null || true
}

search() { # NAME OPTION…
    local name=$1 parts=$folder/parts/$1 began=$SECONDS status=0
    shift
    if ((SECONDS > ${SECONDS_LEFT:-SECONDS})); then
        echo "record_decode: $name left out after $SECONDS s" >&2
        return 0
    fi
    "${fa_tune[@]}" search --kernels fast --family decode --profiler events --dtype bf16 \
        --runs 3 --no-confirm --ref "$references" --limit 3 --record "$parts" \
        --registry "$registry" "$@" &
    local child=$!
    trap 'kill $child; wait $child; keep "$parts" "$name"; exit 143' INT TERM
    wait "$child" || status=$?
    trap - INT TERM
    keep "$parts" "$name"
    ((status == 0)) || failed=$status
    echo "record_decode: $name took $((SECONDS - began)) s, status $status, $SECONDS s in all" >&2
}

wanted() { [[ " ${STEPS:-grid queries lengths splits between} " == *" $1 "* ]]; }

for heads in ${HEADS:-64/8 32/8 32/32}; do
    name=h${heads%/*}_kv${heads#*/}
    given=(--heads "${heads%/*}" --kv-heads "${heads#*/}")
    few=1,4,16 many=64,128
    long=1024,8192,32768,131072 short=1024,8192,32768
    [[ $heads == 32/32 ]] && few=1,4 many=16,64,128 short=1024,8192
    for step in grid queries; do
        wanted $step || continue
        if [[ $step == grid ]]; then seq_len=1 mask=full; else seq_len=4 mask=causal_br; fi
        given+=(--seq-lens "$seq_len" --mask "$mask")
        [[ -n ${ONLY:-} ]] ||
            search "${name}_q${seq_len}" "${given[@]}" --batch "$few" --seq-lens-kv "$long"
        search "${name}_q${seq_len}_batches" "${given[@]}" --batch "$many" --seq-lens-kv "$short"
    done
    if wanted lengths; then
        given+=(--seq-lens 1 --mask full)
        search "${name}_lognormal" "${given[@]}" --batch 64 --seq-lens-kv 32768 \
            --cache-lengths lognormal-1-0
        search "${name}_equal" "${given[@]}" --batch 64 --seq-lens-kv 5860 --cache-lengths equal
        search "${name}_pages" "${given[@]}" --batch 64 --seq-lens-kv 8192 --page-size 16
    fi
    if wanted splits; then # the same tile, with at least so many blocks of keys for a CTA
        given+=(--seq-lens 1 --mask full)
        splits=()
        for blocks in 1 2 4 8 16 32 64; do
            splits+=("decode(BF16, 128, 16, 128, 8): stages_2+min_blocks_$blocks")
        done
        "${fa_tune[@]}" profile "${splits[@]}" --profiler events --ref "$references" \
            --runs 15 "${given[@]}" --batch 1,4,16 --seq-lens-kv 1024,8192,32768 || failed=$?
    fi
    if wanted between; then
        given+=(--seq-lens 1 --mask full)
        search "${name}_between" "${given[@]}" --batch 1,8,32 --seq-lens-kv 3000,16384
        search "${name}_between_batches" "${given[@]}" --batch 2,8,32 --seq-lens-kv 1024,8192
    fi
done
exit "$failed"
