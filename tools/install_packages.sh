#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes sure that the Debian packages named as arguments (or in the sets below) are there: installs what is missing as root, names
# it otherwise. (openssh-client: mpirun looks for ssh even to start ranks on this machine.)  usage: install_packages.sh build|test|fuzz|python ...
set -euo pipefail

declare -A sets=(
  [build]="g++ cmake ninja-build pkg-config libhwy-dev libcli11-dev libfmt-dev nlohmann-json3-dev libxxhash-dev libssl-dev libtomlplusplus-dev clang-14 libbpf-dev libopenmpi-dev openmpi-bin python3"
  [test]="libgtest-dev clang-format-14 binutils openssh-client iproute2 curl openssl clang-14 libc6-dev chromium systemd python3-yaml"
  [fuzz]="clang-14 libclang-rt-14-dev"
  [python]="python3-venv"
  [demo]="bible-kjv bible-kjv-text iproute2"
)

wanted=()
for set in "$@"; do
  [ -n "${sets[$set]:-}" ] || { echo "unknown package set '$set'; there are: ${!sets[*]}" >&2; exit 2; }
  read -ra names <<<"${sets[$set]}"
  wanted+=("${names[@]}")
done

command -v dpkg-query >/dev/null || { echo "not a Debian system: install the equivalents of: ${wanted[*]}" >&2; exit 1; }
missing=()
for package in "${wanted[@]}"; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" -ne 0 ]; then
  echo "These Debian packages are missing: ${missing[*]}" >&2
  echo "Install them (apt-get install ${missing[*]}) or run this as root, which does." >&2
  exit 1
fi
echo "installing: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
{ apt-get update && apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 ||
  { tail -n 20 "$log" >&2; echo "apt-get failed for: ${missing[*]}" >&2; exit 1; }
