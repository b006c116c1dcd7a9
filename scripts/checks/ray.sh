#!/usr/bin/env bash
# Makes an environment with Ray on top of the packages of another one, and runs the tests of the integration in it.
#
#   scripts/checks/ray.sh [pytest options]
#   scripts/checks/ray.sh --ci    where Ray does not install, says so and ends well
#
#   RAY_VENV         where it lies (default: build/ray-venv in the checkout)
#   TORCHFSL_PYTHON  the interpreter whose packages are used (default: python3)
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore RAY_USAGE_STATS_ENABLED=0
base=${TORCHFSL_PYTHON:-python3}
VENV=${RAY_VENV:-$PWD/build/ray-venv}

packages_of() {
    "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
}

"$base" -m venv --clear "$VENV"
python=$VENV/bin/python
printf "import site; site.addsitedir('%s')\n" "$(packages_of "$base")" >"$(packages_of "$python")/base.pth"
requirement=$("$base" -c '
import tomllib
with open("pyproject.toml", "rb") as file:
    print(*tomllib.load(file)["project"]["optional-dependencies"]["ray"])
')
if ! "$python" -m pip install -qq --no-warn-conflicts "$requirement"; then
    [ "${1:-}" = --ci ] || exit 1
    printf '[ray] SKIPPED: Ray does not install here, pip says why above; tests that need it did not run\n'
    exit
fi
[ "${1:-}" != --ci ] || shift
"$python" -m pytest -q tests/integrations/ray "$@"
