#!/usr/bin/env bash
# Sets up .venv if needed, then runs the linter, the type checker and the tests.
set -euo pipefail
unset CDPATH

usage() {
    cat <<'USAGE'
usage: run_tests.sh [--fast] [PYTEST ARGUMENT ...]

Sets up .venv if needed, checks lint, format and types (scripts/check.sh), then runs the tests.

  --fast       leave out the tests that start whole jobs (marked slow)
  -h, --help   show this text

Everything else goes to pytest, which runs in the repository's folder:
  run_tests.sh -k waits
  run_tests.sh tests/test_scripts.py
USAGE
}

selection=()
arguments=()
for argument in "$@"; do
    case $argument in
        -h | --help)
            usage
            exit 0
            ;;
        --fast) selection=(-m "not slow") ;;
        *) arguments+=("$argument") ;;
    esac
done

# Under some schedulers standard input is closed; the next file opened would then take its place.
{ : <&0; } 2>/dev/null || exec </dev/null

cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
bash scripts/setup.sh
bash scripts/check.sh
exec .venv/bin/python -m pytest ${selection[@]+"${selection[@]}"} ${arguments[@]+"${arguments[@]}"}
