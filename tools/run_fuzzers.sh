#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every fuzzer of a build for a while, from its stored corpus; new inputs stay in the build folder.
# usage: run_fuzzers.sh DIRECTORY SECONDS
set -euo pipefail
directory=$1 seconds=$2
root=$(cd "$(dirname "$0")/.." && pwd)
ran=0
for fuzzer in "$directory"/*_fuzz; do
  [ -x "$fuzzer" ] || continue
  name=$(basename "$fuzzer" _fuzz)
  mkdir -p "$directory/found/$name"
  echo "== $name, $seconds s"
  log=$directory/found/$name.log
  if ! (cd "$directory" && "./${name}_fuzz" -max_total_time="$seconds" -print_final_stats=1 "found/$name" \
        "$root/fuzz/corpus/$name") >"$log" 2>&1; then
    tail -n 40 "$log"
    echo "$name found something; the input is in $directory" >&2
    exit 1
  fi
  grep 'stat::number_of_executed_units' "$log"
  ran=$((ran + 1))
done
[ "$ran" -gt 0 ] || { echo "no fuzzers in $directory" >&2; exit 1; }
echo "$ran fuzzers found nothing"
