#!/usr/bin/env bash
# The client core as WebAssembly: one file without a runtime of JavaScript, see docs/client-core.md.
#
#   scripts/build_wasm.sh OUT.wasm            as a release has it
#   scripts/build_wasm.sh OUT.wasm --tape     with random bytes of the tests' choice
#
# Needs em++ (Debian: emscripten). Without SIMD: emscripten 3.1.6 computes wrong tags with it.
set -euo pipefail

ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
SOURCES=$ROOT/torchfsl/kernels/csrc
OUT=${1:?usage: scripts/build_wasm.sh OUT.wasm [--tape]}
if ! command -v em++ >/dev/null; then
    printf 'build_wasm: em++ is missing: apt-get install emscripten\n' >&2
    exit 1
fi
# What takes time is built for speed, the rest for size. There em++ inlines no function unless it is
# told to, which doubles the time of a round where vectors are filled.
fast=("$SOURCES"/path/path_portable.cc "$SOURCES"/client/hash.cc)
inlined=("$SOURCES"/client/{encode,round}.cc)
small=("$SOURCES"/client/{client,seal,json,keys,plan,prove,statement,support,trees}.cc
    "$SOURCES"/host/{check_kernels,dispatch,kernels,matching,order,parallel,polynomials}.cc "$SOURCES"/simd/aes_key.cc)
exported=_malloc,_free
options=()
if [ "${2:-}" = --tape ]; then options+=(-DTORCHFSL_CLIENT_TAPE); fi
for name in $(sed -n 's/^TFSL_API.* \**\(tfsl_[a-z_]*\)(.*/\1/p' "$SOURCES/client/torchfsl_client.h"); do
    if [ "${name#tfsl_test_}" = "$name" ] || [ "${2:-}" = --tape ]; then exported+=,_$name; fi
done
objects=$(mktemp -d)
trap 'rm -rf -- "$objects"' EXIT
cores=$(getconf _NPROCESSORS_ONLN)
started=()
compile() { # OPTIONS FILE...
    local level file
    read -ra level <<<"$1"
    shift
    for file in "$@"; do
        while [ "$(jobs -rp | wc -l)" -ge "$cores" ]; do wait -n; done
        em++ -std=gnu++20 "${level[@]}" -DFSL_CLIENT_KERNELS -fwasm-exceptions -fvisibility=hidden \
            -ffile-prefix-map="$ROOT"=. -I"$SOURCES"/client -I"$SOURCES"/host -I"$SOURCES"/path \
            -I"$SOURCES"/simd "${options[@]}" -c -o "$objects/$(basename -- "$file" .cc).o" "$file" &
        started+=($!)
    done
}
mkdir -p -- "$(dirname -- "$OUT")"
compile -O2 "${fast[@]}"
compile "-Os -finline-functions" "${inlined[@]}"
compile -Os "${small[@]}"
for one in "${started[@]}"; do wait "$one"; done
em++ -Os -fwasm-exceptions --no-entry -sSTANDALONE_WASM=1 -sALLOW_MEMORY_GROWTH=1 \
    -sEXPORTED_FUNCTIONS="$exported" -o "$OUT" "$objects"/*.o
