#!/usr/bin/env bash
# Sets up .venv if needed, then trains the example on every GPU of this machine, or on two CPU ranks.
set -euo pipefail
unset CDPATH

usage() {
    cat <<'USAGE'
usage: run_training.sh [--debug] [--steps N] [--batch-size N] [--save PATH]

Sets up .venv if needed, then runs examples/plain_ddp.py under `rankscope run`: one rank for each GPU that
CUDA_VISIBLE_DEVICES allows, or two ranks on the CPU where there is none.

  --debug          a few steps of a small model
  --steps N        optimizer steps
  --batch-size N   samples per rank and step
  --save PATH      write a checkpoint there at the end
  -h, --help       show this text

The exit code is the run's own.
USAGE
}

refuse() {
    printf 'run_training.sh: %s; see run_training.sh --help\n' "$1" >&2
    exit 2
}

# Mistakes are caught here, before a set-up that may take minutes and before every rank would report them again.
arguments=("$@")
while (($# > 0)); do
    case $1 in
        -h | --help)
            usage
            exit 0
            ;;
        --debug) ;;
        --steps=?* | --batch-size=?* | --save=?*) ;;
        --steps | --batch-size | --save)
            (($# > 1)) || refuse "$1 needs a value"
            shift
            ;;
        *) refuse "unknown argument $1" ;;
    esac
    shift
done

count_gpus() {
    if [[ -n ${CUDA_VISIBLE_DEVICES+set} ]]; then
        # As CUDA reads it: the list ends at the first entry that is no device, such as -1.
        local device count=0 devices
        IFS=, read -ra devices <<<"$CUDA_VISIBLE_DEVICES"
        for device in ${devices[@]+"${devices[@]}"}; do
            [[ $device =~ ^([0-9]|GPU-|MIG-) ]] || break
            count=$((count + 1))
        done
        echo "$count"
    else
        { nvidia-smi -L 2>/dev/null || true; } | grep -c '^GPU ' || true
    fi
}

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
bash "$root/scripts/setup.sh"

ranks=$(count_gpus)
if ((ranks > 0)); then
    echo "run_training.sh: $ranks ranks, one for each GPU"
else
    ranks=2
    echo "run_training.sh: 2 ranks on the CPU, because no GPU is visible"
fi
exec "$root/.venv/bin/rankscope" run --nproc-per-node "$ranks" "$root/examples/plain_ddp.py" \
    ${arguments[@]+"${arguments[@]}"}
