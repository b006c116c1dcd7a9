# Sourced by scripts/demo, scripts/test and .ci/run: makes a virtual environment in which the project
# is installed and its native part built, from nothing but Python >= 3.11 and a C++ compiler.
#
#   PYTHON         interpreter to use (default: the first suitable one on PATH, 3.11 first)
#   TORCHFSL_VENV  where the virtual environment lies (default: .venv in the checkout)
#   TORCH_INDEX    package index to take torch from (default: whatever pip is configured for)
#   CXX            C++ compiler
#
# Sets ROOT (the checkout), VENV and VENV_PYTHON, and changes to ROOT: models/ and training/ are run
# from there. The project is installed in editable mode, because Python run from the checkout finds
# the source folder torchfsl/ first, which holds no compiled module; the editable hook adds it.

set -euo pipefail

TORCH_VERSION=2.13.0
ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${TORCHFSL_VENV:-$ROOT/.venv}
case $VENV in /*) ;; *) VENV=$PWD/$VENV ;; esac
VENV_PYTHON=$VENV/bin/python

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
# Python compiles what it imports and leaves the rest of torch alone: hence pip's --no-compile here.
# The thousand processes of the tests share what one of them has compiled.
unset PYTHONDONTWRITEBYTECODE

say() { printf '[setup] %s\n' "$*"; }

fail() {
    printf '[setup] error: %s\n' "$*" >&2
    exit 1
}

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

# Prints the interpreter to create the virtual environment with.
find_python() {
    local candidate
    if [ -n "${PYTHON:-}" ]; then
        is_new_enough "$PYTHON" || fail "PYTHON=$PYTHON is not a Python 3.11 or newer"
        printf '%s\n' "$PYTHON"
        return
    fi
    for candidate in python3.11 python3.12 python3.13 python3.14 python3 python; do
        if is_new_enough "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    fail "no Python 3.11 or newer on PATH; install one, or name it with PYTHON=/path/to/python"
}

make_venv() {
    local python
    if [ -e "$VENV_PYTHON" ]; then
        is_new_enough "$VENV_PYTHON" ||
            fail "$VENV does not hold a working Python 3.11 or newer; delete it and try again"
        say "virtual environment: $VENV ($("$VENV_PYTHON" --version))"
        [ -z "${PYTHON:-}" ] || say "PYTHON is not used, since the virtual environment exists"
        return
    fi
    python=$(find_python)
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$python cannot create virtual environments; install its venv package"
    say "virtual environment: creating $VENV with $python ($("$python" --version))"
    "$python" -m venv "$VENV"
}

# A compiler that works and Python's headers, checked before pip would fail with a page of output.
check_compiler() {
    local candidate directory
    directory=$(mktemp -d)
    printf '#include <vector>\nint main() { return 0; }\n' >"$directory/probe.cc"
    for candidate in ${CXX:+"$CXX"} c++ g++ clang++; do
        # Not quoted: CXX may carry options.
        if $candidate -std=c++20 "$directory/probe.cc" -o "$directory/probe" 2>/dev/null; then
            rm -rf -- "$directory"
            say "C++ compiler: $($candidate --version | head -n 1)"
            "$VENV_PYTHON" - <<'PYTHON' || fail "Python's C headers are missing; install its development package"
import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))
PYTHON
            return
        fi
        [ -z "${CXX:-}" ] || break
    done
    rm -rf -- "$directory"
    fail "no working C++20 compiler (tried ${CXX:-c++, g++, clang++});" \
        "install one, or name it with CXX=/path/to/compiler"
}

# Prints what the installation depends on, as one hash. Python files count by name only, since an
# editable installation follows their contents.
fingerprint() {
    "$VENV_PYTHON" - "$TORCH_VERSION" "${CXX:-}" "${TORCH_INDEX:-}" <<'PYTHON'
import hashlib, pathlib, sys
digest = hashlib.sha256(repr([sys.version, sys.argv[1:], str(pathlib.Path.cwd())]).encode())
for path in sorted(pathlib.Path("torchfsl").rglob("*")):
    if path.is_file() and "__pycache__" not in path.parts:
        digest.update(f"{path}\n".encode())
        if "csrc" in path.parts:
            digest.update(path.read_bytes())
digest.update(pathlib.Path("pyproject.toml").read_bytes())
print(digest.hexdigest())
PYTHON
}

install_project() {
    local from="the configured package index"
    [ -z "${TORCH_INDEX:-}" ] || from=$TORCH_INDEX
    say "installing torch $TORCH_VERSION from $from (set TORCH_INDEX to choose another build)"
    "$VENV_PYTHON" -m pip install -qq --no-compile ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} \
        "torch==$TORCH_VERSION" || fail "torch $TORCH_VERSION could not be installed"
    say "installing torchfsl with its training, tensorboard, service, privacy, homomorphic and test extras, building the native part"
    TORCHFSL_NATIVE=on "$VENV_PYTHON" -m pip install -qq --no-compile \
        --editable ".[training,tensorboard,service,privacy,homomorphic,test]" ||
        fail "torchfsl could not be installed; the reason is above"
}

report() {
    "$VENV_PYTHON" - <<'PYTHON' || fail "the installation does not work; delete $VENV and try again"
import torch
build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
print(f"[setup] torch {torch.__version__} ({build} build)")
import torchfsl
import torchfsl.kernels._native
print(f"[setup] torchfsl {torchfsl.__version__}, native part built, backend in use: {torchfsl.backend()}")
PYTHON
}

set_up() {
    local stamp=$VENV/torchfsl.stamp wanted
    cd -- "$ROOT"
    make_venv
    wanted=$(fingerprint)
    if [ -f "$stamp" ] && [ "$(cat -- "$stamp")" = "$wanted" ]; then
        say "installation is up to date"
    else
        rm -f -- "$stamp"
        check_compiler
        install_project
    fi
    report
    printf '%s\n' "$wanted" >"$stamp"
}
