#!/usr/bin/env bash
# Format, lint and type checks, exactly those that CI runs, with the versions pinned in the `dev`
# extra: python -m pip install --editable ".[dev]"
set -uo pipefail

ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
VENV=${TORCHFSL_VENV:-$ROOT/.venv}
PATH=$VENV/bin:$PATH
cd -- "$ROOT" || exit 1

for tool in ruff mypy lint-imports clang-format check-jsonschema; do
    if ! command -v "$tool" >/dev/null; then
        printf '[check] error: %s is missing; install the dev extra\n' "$tool" >&2
        exit 1
    fi
done

failed=0
check() {
    printf '[check] %s\n' "$*"
    "$@" || failed=1
}

native_sources=()
while IFS= read -r -d '' file; do
    native_sources+=("$file")
done < <(find torchfsl/kernels/csrc -type f \( -name '*.cc' -o -name '*.h' \) -print0)

check ruff format --check .
check ruff check .
check mypy
check lint-imports --no-cache --no-logo
check clang-format --dry-run -Werror "${native_sources[@]}"
# The Python blocks of README and pages, which the tests skip where a tool is missing.
check python -m pytest -q tests/docs/test_typed_blocks.py
# The schemas come with the tool.
check check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
check check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/{bug,proposal}.yml
check check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
check check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff
exit "$failed"
