#!/usr/bin/env bash
# Sets up .venv if needed, prepares the dataset once, then trains on every GPU of this machine, or on two CPU ranks.
set -euo pipefail
unset CDPATH

usage() {
    cat <<'USAGE'
usage: run_training.sh [--debug | --preset NAME] [--config FILE] [--override A.B=C] [--max-steps N] [...]

Sets up .venv if needed, then runs `rankscope prepare` and `rankscope train` with these options: one rank for each GPU
that CUDA_VISIBLE_DEVICES allows, or two ranks on the CPU where there is none.

  --debug              a small model, ten steps
  --preset NAME        production (default), stable, micro, 14b, 32b, mtp-3b, gpt2-124m, gpt2-1.5b, llama-8b
  --config FILE        JSON (with // comments), YAML or TOML
  --override A.B=C     one value, as training.batch_size=4; may be repeated
  --max-steps N        optimizer steps
  --plan               parameters, and the memory of a GPU for 1, 4 and 8 of them; then stop
  --gpus LIST          0,3 by number; auto for all that are free, auto:2 for the two freest
  --strategy NAME      auto, single, ddp, fsdp, hsdp
  --resume WHAT        auto, no, or a checkpoint
  --fault KIND@rank=1,step=5   plant a failure and see the verdict
  -h, --help           show this text

Every other option of `rankscope train` works too. The exit code is the run's own.
USAGE
}

refuse() {
    printf 'run_training.sh: %s; see run_training.sh --help\n' "$1" >&2
    exit 2
}

# Mistakes are caught here, before a set-up that may take minutes. What decides the data goes to `prepare` too.
arguments=("$@")
data=()
chosen=
prepare=yes
while (($# > 0)); do
    name=${1%%=*}
    case $1 in
        -h | --help)
            usage
            exit 0
            ;;
        --) break ;; # the rest is for `rankscope run`
        --debug) data+=("$1") chosen=yes ;;
        --show-config | --plan) prepare= ;;
        --preset=?* | --config=?*) data+=("$1") chosen=yes ;;
        --override=?*) data+=("$1") ;;
        --replay-nan=?* | --export=?*) prepare= ;;
        --wait) ;;
        --max-steps=?* | --gpus=?* | --strategy=?* | --resume=?* | --fault=?* | --nproc-per-node=?* | --run-dir=?*) ;;
        --preset | --config | --override | --max-steps | --gpus | --strategy | --resume | --fault | --nproc-per-node | \
            --run-dir | --replay-nan | --export)
            (($# > 1)) || refuse "$1 needs a value"
            case $name in
                --preset | --config) data+=("$1" "$2") chosen=yes ;;
                --override) data+=("$1" "$2") ;;
                --replay-nan | --export) prepare= ;;
            esac
            shift
            ;;
        *) refuse "unknown argument $1" ;;
    esac
    shift
done

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
bash "$root/scripts/setup.sh"

if [[ -n $prepare ]]; then
    [[ -n $chosen ]] || data+=(--preset production)
    "$root/.venv/bin/rankscope" prepare "${data[@]}"
fi
exec "$root/.venv/bin/rankscope" train ${arguments[@]+"${arguments[@]}"}
