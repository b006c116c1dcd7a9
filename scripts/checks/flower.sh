#!/usr/bin/env bash
# Makes an environment with Flower and Ray, runs the tests of the integration in it, and the runs of
# scripts/checks/flower_runs.py, whose options may follow.
#
#   FLOWER_VENV      where it lies (default: build/flower-venv in the checkout)
#   PYTHON           interpreter to use (default: python3)
#   TORCH_INDEX      package index to take torch from (default: whatever pip is configured for)
#   TORCHFSL_NATIVE  on to compile the native part (default: off, which is slow and enough for this)
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
VENV=${FLOWER_VENV:-$PWD/build/flower-venv}
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
export TORCHFSL_NATIVE=${TORCHFSL_NATIVE:-off} FLWR_TELEMETRY_ENABLED=0
[ -x "$VENV/bin/python" ] || "${PYTHON:-python3}" -m venv "$VENV"
"$VENV/bin/python" -m pip install -qq ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch==2.13.0
"$VENV/bin/python" -m pip install -qq --editable ".[service,flower]" "flwr[simulation]<1.42" pytest
"$VENV/bin/python" -m pip check
"$VENV/bin/python" -m pytest -q tests/integrations
"$VENV/bin/python" -m scripts.checks.flower_runs "$@"
