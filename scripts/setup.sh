#!/usr/bin/env bash
# Makes the repository's virtual environment, .venv, and installs torch by its pin and Rankscope with its
# development tools into it. Does nothing, quickly and silently, when nothing changed since the last time.
#
#   RANKSCOPE_PYTHON=/path/to/python3 scripts/setup.sh     chooses the interpreter (Python 3.10 or newer)
set -euo pipefail
unset CDPATH PYTHONHOME PYTHONPATH # each of them would lead a step below out of the virtual environment

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=$root/.venv
stamp=$venv/setup.stamp
lock=$venv/setup.lock
log=$venv/setup.log
ticker=
PATH=${PATH//"$venv/bin:"/} # .venv may be activated, and cannot be the interpreter that makes it anew

say() { printf 'setup: %s\n' "$*" >&2; }

fail() {
    say "$*"
    exit 1
}

version_of() { "$1" -V 2>&1 | sed -n 's/^Python \([0-9][0-9.]*\).*/\1/p'; }

is_new_enough() { [[ $(version_of "$1") =~ ^3\.([0-9]+) ]] && ((BASH_REMATCH[1] >= 10)); }

find_python() {
    local candidate
    if [[ -n ${RANKSCOPE_PYTHON:-} ]]; then
        is_new_enough "$RANKSCOPE_PYTHON" ||
            fail "RANKSCOPE_PYTHON=$RANKSCOPE_PYTHON is not a working Python 3.10 or newer"
        printf '%s\n' "$RANKSCOPE_PYTHON"
        return
    fi
    for candidate in python3 python3.{14,13,12,11,10} python; do
        if command -v "$candidate" >/dev/null && is_new_enough "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    fail "no Python 3.10 or newer found; install one, or name it with RANKSCOPE_PYTHON=/path/to/python3"
}

# Says why .venv cannot be used as it is; says nothing when it can.
what_is_wrong_with_venv() {
    if [[ ! -x $venv/bin/python ]]; then
        echo "there is none yet"
    elif ! is_new_enough "$venv/bin/python"; then
        echo "its interpreter is gone or too old"
    elif [[ -n ${RANKSCOPE_PYTHON:-} && $(version_of "$RANKSCOPE_PYTHON") != "$(version_of "$venv/bin/python")" ]]; then
        echo "RANKSCOPE_PYTHON is another version"
    elif ! grep -qsF -- "$venv" "$venv/bin/activate"; then
        echo "it was made in another folder"
    elif ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        echo "it has no pip"
    fi
}

# Everything the installed packages depend on.
fingerprint() {
    {
        printf '%s\n' "$root"
        version_of "$venv/bin/python"
        if [[ -n ${RANKSCOPE_PYTHON:-} ]]; then version_of "$RANKSCOPE_PYTHON"; else version_of "$venv/bin/python"; fi
        cat "$root/pyproject.toml" "$root/constraints.txt" "$root/scripts/setup.sh" "$root/hatch_build.py"
        cat "$root"/src/rankscope/probe/native/*
    } | sha256sum
}

is_up_to_date() {
    [[ -x $venv/bin/python && -f $stamp ]] && [[ $(fingerprint) == "$(<"$stamp")" ]]
}

# The lock belongs to descriptor 9, so it ends with this script. Python takes it, since not every system has flock(1).
take_lock() {
    exec 9>"$lock"
    "$1" -c '
import fcntl, sys
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("setup: another set-up of this folder is running; waiting for it", file=sys.stderr)
    fcntl.flock(9, fcntl.LOCK_EX)
'
}

show_progress() {
    local began=$SECONDS next=15 spent doing
    # The sleep holds none of our descriptors: whoever reads our output need not wait for it to end.
    while sleep 1 >/dev/null 2>&1 && kill -0 "$$" 2>/dev/null; do
        spent=$((SECONDS - began))
        doing=$(sed -nE 's/^(Collecting [^ ]+|Installing collected packages).*/\1/p' "$log" | tail -n 1)
        if [[ -t 2 ]]; then
            printf '\rsetup: %s: %d s%.60s\033[K' "$1" "$spent" "${doing:+, $doing}" >&2
        elif ((spent >= next)); then
            say "$1: $spent s${doing:+, $doing}"
            next=$((spent + 15))
        fi
    done
}

stop_progress() {
    [[ -n $ticker ]] || return 0
    kill "$ticker" 2>/dev/null || true
    wait "$ticker" 2>/dev/null || true
    ticker=
    if [[ -t 2 ]]; then printf '\r\033[K' >&2; fi
}

# Runs a long command with its output in the log. When it fails, the first error it wrote there is shown in one line.
run_logged() {
    local what=$1 status=0 before reason
    shift
    say "$what"
    before=$(wc -l <"$log")
    printf '\n== %s: %s\n' "$what" "$*" >>"$log"
    show_progress "$what" 9>&- &
    ticker=$!
    "$@" >>"$log" 2>&1 </dev/null || status=$?
    stop_progress
    ((status != 0)) || return 0
    reason=$(sed "1,${before}d" "$log" | grep -iE '^ *(error|e): ' | sed -n '1s/^ *//p' || true)
    fail "$what failed${reason:+ ($reason)}; see $log"
}

has_venv_module() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

# Debian and Ubuntu ship Python without the part that makes virtual environments.
ensure_venv_module() {
    has_venv_module "$1" && return
    local package
    package=python$(version_of "$1" | cut -d. -f1,2)-venv
    if ((EUID == 0)) && command -v apt-get >/dev/null; then
        run_logged "installing the system package $package" env DEBIAN_FRONTEND=noninteractive \
            sh -c 'apt-get update && apt-get install --yes --no-install-recommends "$0"' "$package"
    fi
    has_venv_module "$1" || fail "$1 cannot make virtual environments; install $package (apt-get install $package)"
}

# The probe's shortcuts are compiled where that is possible; everything works without them.
ensure_compiler() {
    local package missing=()
    command -v "${CC:-cc}" >/dev/null || missing+=(gcc libc6-dev)
    package=libpython$(version_of "$1" | cut -d. -f1,2)-dev
    "$1" -c 'import os, sysconfig; os.stat(os.path.join(sysconfig.get_path("include"), "Python.h"))' 2>/dev/null ||
        missing+=("$package")
    if ((${#missing[@]})) && ((EUID == 0)) && command -v apt-get >/dev/null; then
        (run_logged "installing a compiler for the probe's shortcuts (${missing[*]})" env \
            DEBIAN_FRONTEND=noninteractive sh -c \
            'apt-get update && apt-get install --yes --no-install-recommends "$@"' sh "${missing[@]}") ||
            say "going on without them"
    fi
}

make_venv() {
    ensure_venv_module "$1"
    # The lock must stay the same file, and the log is still being written.
    find "$venv" -mindepth 1 -maxdepth 1 ! -path "$lock" ! -path "$log" -exec rm -rf {} +
    run_logged "making .venv with Python $(version_of "$1")" "$1" -m venv "$venv"
}

install_packages() {
    local pip=("$venv/bin/python" -m pip install -c "$root/constraints.txt")
    local pin
    pin=$(sed -n 's/^torch==//p' "$root/constraints.txt")
    export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_USER=0
    run_logged "installing torch $pin (the long step)" "${pip[@]}" torch
    run_logged "installing rankscope and its development tools" "${pip[@]}" -e "$root[dev]"
}

main() {
    (($# == 0)) || fail "takes no arguments, got: $*"
    is_up_to_date && return

    local python flaw began=$SECONDS
    python=$(find_python) # it has said what is missing, if anything is
    mkdir -p "$venv"
    take_lock "$python"
    is_up_to_date && return # another set-up was at it, and has done the work

    trap stop_progress EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    rm -f "$stamp"
    echo "set-up of $(date)" >"$log"
    flaw=$(what_is_wrong_with_venv)
    if [[ -n $flaw ]]; then
        if [[ -e $venv/bin ]]; then say "making .venv anew: $flaw"; fi
        make_venv "$python"
    fi
    ensure_compiler "$venv/bin/python"
    install_packages
    fingerprint >"$stamp.new"
    mv "$stamp.new" "$stamp"
    say "ready after $((SECONDS - began)) s; the log is .venv/setup.log"
}

main "$@"
