# Sourced by tools/record_profiles.sh and tools/record_decode.sh: recordings made step by step.
#
# Each step is a recording of its own, in FOLDER/<gpu>/ as soon as it has ended.  One that is cut
# off leaves the workloads that it has measured as …_unfinished.csv, a recording as well; the same
# command goes on from there, since finished measurements are in the journal.  Scripts may run at
# the same time, on one GPU each: registry and unfinished parts are of one script alone, and the
# cache can be, too (FA_TUNE_CACHE_DIR).
#
#   FA_TUNE      the command that runs fa-tune; ./run if not given ("python3 -m fa_tune")
#   OPTIONS      more options of every command, "--no-confirm" say
#   STEPS        only these steps, by name, "grid off" say; the script's usual ones if not given
#   SECONDS_LEFT begin no step later than so many seconds after the start; no limit if not given

begin() { # FOLDER USUAL: recordings go to FOLDER, of these steps if STEPS does not name others
    mkdir -p "$1"
    folder=$(cd "$1" && pwd)
    local names
    read -rd '' -a names <<<"${STEPS:-$2}"
    steps=" ${names[*]} "
    read -ra fa_tune <<<"${FA_TUNE:-./run}"
    read -ra options <<<"${OPTIONS:-}"
    registries=$(mktemp -d)
    parts=$(mktemp -d "$folder/.parts_XXXXXX")
    failed=0
    trap 'rm -rf "$registries" "$parts"' EXIT
}

wanted() { # STEP
    [[ $steps == *" $1 "* ]]
}

keep() { # NAME: what a step has recorded, as NAME_<method>…
    local file gpu
    for file in "$parts/$1"/*/*; do
        [[ $file =~ /([^/]+)/[^/]+_((events|ncu|sustained)[_.][^/]*)$ ]] || continue
        gpu=$folder/${BASH_REMATCH[1]}
        mkdir -p "$gpu"
        mv "$file" "$gpu/$1_${BASH_REMATCH[2]}"
        [[ $file == *_unfinished.* ]] || rm -f "$gpu/$1_${BASH_REMATCH[2]/./_unfinished.}"
    done
    rm -rf "${parts:?}/$1"
}

cut_off() { # CHILD NAME
    kill "$1" 2>/dev/null
    wait "$1"
    keep "$2"
    exit 143
}

step() { # NAME search|bench OPTION…: a recording of this name
    local name=$1 began=$SECONDS status=0 own=()
    shift
    if ((SECONDS > ${SECONDS_LEFT:-SECONDS})); then
        echo "$name: left out after $SECONDS s" >&2
        return 0
    fi
    [[ $1 == search ]] && own=(--registry "$registries/${registry:-registry}.json")
    "${fa_tune[@]}" "$@" --record "$parts/$name" "${own[@]}" "${options[@]}" &
    local child=$!
    trap 'cut_off $child "$name"' INT TERM
    wait "$child" || status=$?
    trap - INT TERM
    keep "$name"
    ((status == 0)) || failed=$status
    echo "$name: took $((SECONDS - began)) s, status $status, $SECONDS s in all" >&2
}
