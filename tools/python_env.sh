#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes or updates the repository's .venv: what requirements-dev.txt names, and this package, editable (a release build of the
# library in build/python). Does nothing where nothing changed.  usage: [PYTHON=python3.12] python_env.sh
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv

# up_to_date STAMP INPUTS: whether `done_with STAMP INPUTS` was said of these inputs.
up_to_date() { [ "$(cat "$venv/$1" 2>/dev/null)" = "$2" ]; }
done_with() { echo "$2" >"$venv/$1"; }
quietly() {
  local log
  log=$(mktemp)
  "$@" >"$log" 2>&1 || { tail -n 40 "$log" >&2; rm -f "$log"; echo "python_env.sh: failed: $*" >&2; exit 1; }
  rm -f "$log"
}

[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"

requirements=$("$venv/bin/python" -V; sha256sum requirements-dev.txt)
if ! up_to_date .requirements "$requirements"; then
  echo "installing requirements-dev.txt into $venv"
  quietly "$venv/bin/python" -m pip install --disable-pip-version-check -r requirements-dev.txt
  done_with .requirements "$requirements"
fi

# Python files are found where they are; only which there are is fixed by the installation.
native=$({ find python/addend -name '*.py' | sort; find CMakeLists.txt pyproject.toml cmake include src -type f | sort |
           xargs sha256sum; } | sha256sum)
if ! up_to_date .package "$native"; then
  echo "building and installing the package into $venv"
  quietly "$venv/bin/python" -m pip install --disable-pip-version-check --no-build-isolation --no-deps -e .
  done_with .package "$native"
fi
