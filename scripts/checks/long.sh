#!/usr/bin/env bash
# What is too long for every change: the tests that fail a write or kill a process do it at each point,
# (CI takes one of three) with all kinds of faults, the client core runs for Arm, and the native kernels
# have all their checks (CI takes GCC's). About an hour
# on two cores. Arguments go to pytest.
#
#   scripts/checks/long.sh
set -euo pipefail

ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
TORCHFSL_LONG=1 "$ROOT/scripts/test" "$@"
TORCHFSL_PYTHON=${TORCHFSL_VENV:-$ROOT/.venv}/bin/python "$ROOT/scripts/checks/native.sh"
