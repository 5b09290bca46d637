# Sourced by ./run and ./check.  `prepare PURPOSE` makes the environment if need be; after it
# "$python" is its interpreter.  FA_TUNE_PYTHON names the Python to make it with, FA_TUNE_VENV
# its folder (else .venv), FA_TUNE_SETUP_CUDA=none|12|13 what to install for (else the driver's).
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
venv=${FA_TUNE_VENV:-$root/.venv}
python=$venv/bin/python

suitable() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

# Every candidate in the order of preference, the environment's own Python last.
candidates() {
    if [[ -n ${FA_TUNE_PYTHON:-} ]]; then
        echo "$FA_TUNE_PYTHON"
        return
    fi
    type -aP python3 python python3.15 python3.14 python3.13 python3.12 python3.11 |
        grep -vxF -e "$venv/bin/python3" -e "$venv/bin/python" || true
    echo "$python"
}

# What set-up depends on; where it differs from the last one's, there may be work to do.
stamp() {
    {
        cat "$root"/pyproject.toml "$root"/tools/{constraints.txt,environment.py,gpu_probe.py}
        readlink -f "$python"
        echo "$root ${PYTHONPATH:-} ${FA_TUNE_SETUP_CUDA:-}"
        ls -d /dev/nvidiactl /dev/dxg 2>/dev/null || true  # a GPU that came or went
    } | sha256sum
}

prepare() {
    local state=$venv/.fa-tune candidate
    if [[ -x $python && ! -e $state/unfinished && -e $state/$1.ready ]] &&
        [[ $(<"$state/$1.ready") == "$(stamp)" ]]; then
        return
    fi
    while IFS= read -r candidate; do
        if suitable "$candidate"; then
            "$candidate" "$root/tools/environment.py" "$venv" "$1" </dev/null || exit
            stamp >"$state/$1.ready"
            return
        fi
    done < <(candidates)
    if [[ -n ${FA_TUNE_PYTHON:-} ]]; then
        echo "error: FA_TUNE_PYTHON=$FA_TUNE_PYTHON is no Python >= 3.11" >&2
    else
        echo "error: no Python >= 3.11 on PATH; install one, or name it in FA_TUNE_PYTHON" >&2
    fi
    exit 3
}
