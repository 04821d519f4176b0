#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the build into a scratch prefix and builds examples/cpp against it as a stranger would, with find_package.
# usage: consumer_test.sh BUILD_DIR SOURCE_DIR
set -euo pipefail
build=$1 source=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cmake --install "$build" --prefix "$scratch/prefix" >"$scratch/install.log"
cmake -S "$source/examples/cpp" -B "$scratch/build" -G Ninja -DCMAKE_PREFIX_PATH="$scratch/prefix" >"$scratch/configure.log"
cmake --build "$scratch/build" >"$scratch/build.log" || { cat "$scratch/build.log"; exit 1; }
"$scratch/build/allreduce"
# A result that is an error is said, not taken for a value.
code=0
"$scratch/build/allreduce" nonsense 2>"$scratch/refused" || code=$?
[ "$code" -eq 1 ] && grep -q "worker 3: .*nonsense" "$scratch/refused" ||
  { echo "allreduce nonsense: exit $code: $(cat "$scratch/refused")"; exit 1; }
LD_LIBRARY_PATH=$(dirname "$(find "$scratch/prefix" -name 'libaddend.so')") "$scratch/build/allreduce_c"
