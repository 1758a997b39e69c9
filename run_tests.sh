#!/usr/bin/env bash
# Sets up .venv if needed, then runs the linter, the type checker and the tests.
set -euo pipefail
unset CDPATH

usage() {
    cat <<'USAGE'
usage: run_tests.sh [--fast | --all] [PYTEST ARGUMENT ...]

Sets up .venv if needed, checks lint, format and types (scripts/check.sh), then runs the tests.

  --fast       leave out the tests that start whole jobs (marked slow)
  --all        run every program of the zoo, and every fault under every launcher, not a selection; the evidence that was
               recorded of all of them is diagnosed either way
  -h, --help   show this text

Tests run side by side, as many at a time as there are cores and one more, eight at most (another number: -n 4; one
after the other: -n 0). Those that measure time, or fill the machine by themselves (marked alone), come after them, one
after the other.

With CI set in the environment, tests that failed are run a second time, alone; a wrong blame in the zoo
fails for good the first time, and so does everything where more than five tests fail.

Everything else goes to pytest, which runs in the repository's folder:
  run_tests.sh -k waits
  run_tests.sh tests/test_scripts.py
USAGE
}

fast=no
selection=()
arguments=()
for argument in "$@"; do
    case $argument in
        -h | --help)
            usage
            exit 0
            ;;
        --fast)
            fast=yes
            selection=(-m "not slow")
            ;;
        --all) selection=(--whole-zoo) ;;
        *) arguments+=("$argument") ;;
    esac
done

# Under some schedulers standard input is closed; the next file opened would then take its place.
{ : <&0; } 2>/dev/null || exec </dev/null

# The incident page is looked at in a real browser, the board in a real terminal, jobs of other launchers under those;
# where they are missing, those tests are skipped and say so.
ensure_package() {
    local packages=$1 what_for=$2 name
    shift 2
    for name in "$@"; do
        if command -v "$name" >/dev/null; then return 0; fi
    done
    if ((EUID == 0)) && command -v apt-get >/dev/null; then
        echo "run_tests.sh: installing $packages, for the tests of $what_for" >&2
        env DEBIAN_FRONTEND=noninteractive PACKAGES="$packages" sh -c \
            'apt-get update && apt-get install --yes --no-install-recommends $PACKAGES' \
            >".venv/$1.log" 2>&1 </dev/null || echo "run_tests.sh: going on without it; see .venv/$1.log" >&2
    fi
}

cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
bash scripts/setup.sh
ensure_package "chromium fonts-dejavu-core" "the pages" chromium chromium-browser google-chrome google-chrome-stable
ensure_package tmux "the board" tmux
if [[ $fast == no ]]; then ensure_package openmpi-bin "rankscope watch" mpirun; fi
bash scripts/check.sh

# Hundreds of tests start a Python of their own. One that may keep no compiled modules compiles Rankscope each time.
unset PYTHONDONTWRITEBYTECODE
# One more than the cores: a test that starts a job mostly waits for it.
cores=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
export PYTEST_XDIST_AUTO_NUM_WORKERS=$((cores < 8 ? cores + 1 : 8))

run() { .venv/bin/python -m pytest "$@"; }

both=(${selection[@]+"${selection[@]}"} ${arguments[@]+"${arguments[@]}"})
status=0
run --turn beside -n auto --maxschedchunk 1 ${both[@]+"${both[@]}"} || status=$?
# 5: there was no such test, which is as well where the other turn has some. What stopped the first one stops both.
if [[ $fast == no && $status == [015] ]]; then
    alone=0
    run --turn alone ${both[@]+"${both[@]}"} -n 0 || alone=$?
    if ((alone != 5 && (status == 5 || alone > status))); then status=$alone; fi
fi
# 1: some tests failed. Hundreds of them start real processes: those that failed get a second look, alone. Both are
# shown; a wrong blame in the zoo fails for good the first time.
if [[ $status == 1 && -n ${CI:-} ]]; then
    echo "run_tests.sh: a second look at the tests that failed"
    status=0
    run --last-failed --last-failed-no-failures none --second-look || status=$?
fi
exit "$status"
