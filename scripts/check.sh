#!/usr/bin/env bash
# Lint, format and types, all three even when the first finds something. Changes no file.
set -euo pipefail
unset CDPATH
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh

failed=()
echo "check: ruff check"
.venv/bin/ruff check || failed+=("ruff check")
echo "check: ruff format --check"
.venv/bin/ruff format --check || failed+=("ruff format --check")
echo "check: mypy"
.venv/bin/mypy || failed+=("mypy")

if ((${#failed[@]} > 0)); then
    printf 'check: failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
