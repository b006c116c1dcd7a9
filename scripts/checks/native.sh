#!/usr/bin/env bash
# Checks of the native kernels that need no Python binding: the selftest program under sanitizers,
# valgrind, another compiler and an emulator, and the fuzz targets. At the end it prints what it ran
# and what it could not run.
#
#   scripts/checks/native.sh         everything
#   scripts/checks/native.sh --ci    what CI runs: GCC, sanitizers, constant time; some minutes
#   scripts/checks/native.sh --build compiles what --ci runs under sanitizers, and runs nothing
#
#   CXX             the compiler of the builds that CI runs (default: g++)
#   FUZZ_SECONDS    time for each fuzz target (default: 20)
#   CLIENT_INPUTS   inputs for the client core under sanitizers (default: 3000)
#   TORCHFSL_PYTHON interpreter for the scripts (default: python3)
#
# Builds lie in build/check_native and are taken up again. Exit status 0 if nothing failed.
set -uo pipefail

ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
BUILD=$ROOT/build/check_native
CXX=${CXX:-g++}
FUZZ_SECONDS=${FUZZ_SECONDS:-20}
PYTHON=${TORCHFSL_PYTHON:-python3}
ARM_CXX=aarch64-linux-gnu-g++
TARGETS="trees hints retrieval checks answers gathering matching products rings"
passed=() failed=() skipped=()

say() { printf '[native] %s\n' "$*"; }
has() { command -v "$1" >/dev/null; }
skip() {
    say "skipped: $1"
    skipped+=("$1")
}

# try NAME COMMAND...: runs the command and notes how it went.
try() {
    local name=$1
    shift
    say "$name"
    if "$@"; then
        passed+=("$name")
    else
        failed+=("$name")
        return 1
    fi
}

# build FOLDER SETTING...: builds without the Python extension.
build() {
    local folder=$BUILD/$1 log=$BUILD/$1.log
    shift
    mkdir -p -- "$BUILD"
    if has ccache; then set -- "$@" -DCMAKE_CXX_COMPILER_LAUNCHER=ccache; fi
    if ! { cmake -S "$ROOT/torchfsl/kernels/csrc" -B "$folder" -DTORCHFSL_BINDING=OFF "$@" &&
        cmake --build "$folder" --parallel "$(nproc)"; } >"$log" 2>&1; then
        tail -n 40 -- "$log"
        return 1
    fi
    if grep -E 'warning: ' -- "$log"; then
        say "warnings count as failures"
        return 1
    fi
}

build_and_replay() {
    build "$@" -DTORCHFSL_SELFTEST=ON && "$BUILD/$1/selftest" vectors "$BUILD/vectors.txt"
}

# The kernels that setting up has compiled for the Python package: `TORCHFSL_CORE` for the release
# build, so that the very code that is installed is checked, and not compiled a second time. Nothing
# if there are none, or if a source is newer, or if another compiler made them.
installed_core() {
    local core cache compiler
    for core in "$ROOT"/build/cp*/libfsl_core.a; do
        cache=${core%/*}/CMakeCache.txt
        [ -f "$core" ] && [ -f "$cache" ] || continue
        compiler=$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$cache")
        if [ "$(readlink -f -- "$compiler")" = "$(readlink -f -- "$(command -v "$CXX")")" ] &&
            [ -z "$(find "$ROOT/torchfsl/kernels/csrc" -newer "$core" -type f \
                -not -path '*/selftest/*')" ] &&
            grep -q '^CMAKE_BUILD_TYPE:STRING=Release$' "$cache"; then
            printf '%s\n' "-DTORCHFSL_CORE=$core"
            return
        fi
    done
}

build_address() {
    build address -DTORCHFSL_SELFTEST=ON -DCMAKE_CXX_COMPILER="$CXX" -DCMAKE_BUILD_TYPE=None \
        -DTORCHFSL_SANITIZE=address,undefined -DTORCHFSL_CLIENT=ON -DTORCHFSL_CLIENT_TESTS=ON
}

build_threads() {
    build threads -DTORCHFSL_SELFTEST=ON -DCMAKE_CXX_COMPILER="$CXX" -DCMAKE_BUILD_TYPE=None \
        -DTORCHFSL_SANITIZE=thread
}

replay_addresses() {
    build_address && "$BUILD/address/selftest" vectors "$BUILD/vectors.txt"
}

# Without the random addresses that the thread sanitizer of older compilers cannot place. Threads
# are the same on every path. CI takes a quick one.
replay_threads() {
    build_threads || return 1
    local runner=()
    if setarch "$(uname -m)" -R true 2>/dev/null; then runner=(setarch "$(uname -m)" -R); fi
    "${runner[@]}" "$BUILD/threads/selftest" vectors "$BUILD/vectors.txt" "$@"
}

# The quick path of this machine, or nothing where there is none.
quick_path() { if [[ $(uname -m) == x86_64 ]] && grep -qw aes /proc/cpuinfo; then echo aesni; fi; }

# The digest that `selftest` prints is the same on all CPUs.
replay_arm() {
    local here there
    build arm -DTORCHFSL_SELFTEST=ON -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
        -DCMAKE_CXX_COMPILER="$ARM_CXX" -DCMAKE_EXE_LINKER_FLAGS=-static || return 1
    there=$(qemu-aarch64 "$BUILD/arm/selftest" vectors "$BUILD/vectors.txt") || return 1
    printf '%s\n' "$there"
    here=$("$BUILD/release/selftest" vectors "$BUILD/vectors.txt") || return 1
    [ "${here##* }" = "${there##* }" ] || { say "digests differ" && return 1; }
}

# Headers for Arm come with the cross compiler.
parse_arm() {
    local source
    for source in path/path_arm path/path_portable host/kernels host/check_kernels client/sha256_cpu; do
        clang++ --target=aarch64-linux-gnu -std=gnu++20 -march=armv8-a+crypto -Wall -Wextra \
            -fsyntax-only "$ROOT/torchfsl/kernels/csrc/$source.cc" || return 1
    done
}

# Not the portable path: it computes on four blocks at once, also where only the first are used, and
# memcheck cannot tell that bit-slicing keeps them apart.
memcheck() {
    valgrind --quiet --error-exitcode=9 "$BUILD/release/selftest" vectors "$BUILD/vectors.txt" aesni
}

constant_time() { "$PYTHON" -m scripts.checks.constant_time "$BUILD/release/selftest"; }

# The client core under the sanitizers of the build `address`: seeded inputs, then a round of each
# plan with every allocation failing once.
client_inputs() {
    local plans=$ROOT/tests/client_core/plans.txt
    "$BUILD/address/fuzz_client" "$plans" "${CLIENT_INPUTS:-3000}" &&
        "$BUILD/address/fuzz_client" "$plans" allocations
}

build_fuzz() {
    build fuzz -DTORCHFSL_FUZZ=ON -DTORCHFSL_CLIENT=ON -DTORCHFSL_CLIENT_TESTS=ON \
        -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=None \
        -DCMAKE_CXX_FLAGS=-O1 -DTORCHFSL_SANITIZE=address
}

# New inputs go to the build folder, those of the repository are read alone.
fuzz() {
    local found=$BUILD/corpus/$1
    mkdir -p -- "$found"
    "$BUILD/fuzz/fuzz_$1" -max_total_time="$FUZZ_SECONDS" -max_len=512 -timeout=30 \
        -print_final_stats=1 -verbosity=0 -artifact_prefix="$found-" \
        "$found" "$ROOT/tests/corpus/$1"
}

fuzz_client() {
    local found=$BUILD/corpus/client
    mkdir -p -- "$found"
    TORCHFSL_FUZZ_PLANS=$ROOT/tests/client_core/plans.txt "$BUILD/fuzz/fuzz_client" \
        -max_total_time="$FUZZ_SECONDS" -max_len=4096 -timeout=30 -print_final_stats=1 \
        -verbosity=0 -artifact_prefix="$found-" "$found"
}

ci=0 build_only=0
case ${1:-} in
--ci) ci=1 ;;
--build) build_only=1 ;;
"") ;;
*)
    sed -n '2,14s/^# \{0,1\}//p' -- "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
for tool in cmake "$CXX" "$PYTHON"; do
    has "$tool" || {
        say "error: $tool is missing, without which nothing can be checked"
        exit 1
    }
done
cd -- "$ROOT" || exit 1
mkdir -p -- "$BUILD"
if [ "$build_only" = 1 ]; then
    build_address && build_threads
    exit
fi
"$PYTHON" -m scripts.generate.native_vectors >"$BUILD/vectors.txt" || exit 1

core=$(installed_core)
try "$CXX, optimised: vectors on every path${core:+, of the installed kernels}" \
    build_and_replay release -DCMAKE_CXX_COMPILER="$CXX" -DCMAKE_BUILD_TYPE=Release \
    "${core:--DTORCHFSL_CORE=}"
if has valgrind; then
    try "valgrind: constant time" constant_time
else
    skip "constant time: valgrind is not installed"
fi
try "$CXX, address and undefined-behaviour sanitizers: vectors on every path" \
    replay_addresses
try "$CXX, the same sanitizers: hostile inputs of the client core, failing allocations" \
    client_inputs
threads=$([ "$ci" = 0 ] || quick_path)
try "$CXX, thread sanitizer: vectors on ${threads:-every path}" replay_threads ${threads:+"$threads"}

if [ "$ci" = 0 ]; then
    if has valgrind; then try "valgrind: memory errors on the aesni path" memcheck; fi
    if has clang++; then
        try "clang++, optimised: vectors on every path" \
            build_and_replay clang -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=Release
        if try "clang++: fuzz targets" build_fuzz; then
            for target in $TARGETS; do try "fuzz $target" fuzz "$target"; done
            try "fuzz client" fuzz_client
        fi
    else
        skip "clang++ is not installed: no second compiler, no fuzz targets"
    fi
    if ! has "$ARM_CXX"; then
        skip "Arm: $ARM_CXX is not installed"
    elif ! has qemu-aarch64; then
        skip "Arm: qemu-aarch64 is not installed"
    else
        try "$ARM_CXX and qemu-aarch64: vectors on every path" replay_arm
    fi
    if has "$ARM_CXX" && has clang++; then try "clang++ for Arm: the sources parse" parse_arm; fi
fi

printf '[native] passed: %s\n' "${passed[@]}"
[ ${#skipped[@]} = 0 ] || printf '[native] could not run: %s\n' "${skipped[@]}"
[ ${#failed[@]} = 0 ] || {
    printf '[native] FAILED: %s\n' "${failed[@]}"
    exit 1
}
