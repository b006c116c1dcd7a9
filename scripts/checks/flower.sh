#!/usr/bin/env bash
# Makes an environment with Flower, runs the tests of the integration in it, and an app in Flower itself.
#
#   scripts/checks/flower.sh         all of it, with Ray, then the runs of scripts/checks/flower_runs.py, whose
#                                    options may follow
#   scripts/checks/flower.sh --ci    what CI runs: the tests of Flower alone, on top of the packages of another
#                                    environment; where Flower does not install, says so and ends well
#
#   FLOWER_VENV      where it lies (default: build/flower-venv in the checkout; for CI, build/flower-ci)
#   PYTHON           interpreter to use (default: python3)
#   TORCH_INDEX      package index to take torch from (default: whatever pip is configured for)
#   TORCHFSL_NATIVE  on to compile the native part (default: off, which is slow and enough for this)
#   TORCHFSL_PYTHON  with --ci: the interpreter whose packages are used (default: python3)
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
export TORCHFSL_NATIVE=${TORCHFSL_NATIVE:-off} FLWR_TELEMETRY_ENABLED=0
FLOWER_BOUND='<1.42' # newer ones need packages that some indexes do not have

# Prints the folder of an interpreter's packages.
packages_of() {
    "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
}

# Prints what the extras flower and service require.
required() {
    "$1" -c '
import tomllib
with open("pyproject.toml", "rb") as file:
    extras = tomllib.load(file)["project"]["optional-dependencies"]
print(*extras["flower"], *extras["service"], sep="\n")
'
}

on_top_of_another() {
    local base=${TORCHFSL_PYTHON:-python3} python requirements
    VENV=${FLOWER_VENV:-$PWD/build/flower-ci}
    "$base" -m venv --clear "$VENV"
    python=$VENV/bin/python
    printf "import site; site.addsitedir('%s')\n" "$(packages_of "$base")" >"$(packages_of "$python")/base.pth"
    mapfile -t requirements <<<"$(required "$base")"
    if ! "$python" -m pip install -qq --no-compile --no-warn-conflicts "flwr$FLOWER_BOUND" "${requirements[@]}"; then
        printf '[flower] SKIPPED: Flower does not install here, pip says why above; its tests did not run\n'
        return
    fi
    OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} "$python" -m pytest -q --numprocesses 2 --dist worksteal \
        tests/integrations --ignore tests/integrations/ray # which .ci/run has run with the others
}

if [ "${1:-}" = --ci ]; then
    on_top_of_another
    exit
fi
VENV=${FLOWER_VENV:-$PWD/build/flower-venv}
[ -x "$VENV/bin/python" ] || "${PYTHON:-python3}" -m venv "$VENV"
"$VENV/bin/python" -m pip install -qq ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch==2.13.0
"$VENV/bin/python" -m pip install -qq --editable ".[service,flower]" "flwr[simulation]$FLOWER_BOUND" \
    pytest hypothesis
"$VENV/bin/python" -m pip check
"$VENV/bin/python" -m pytest -q tests/integrations
"$VENV/bin/python" -m scripts.checks.flower_runs "$@"
