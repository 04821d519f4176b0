# SPDX-License-Identifier: Apache-2.0
"""The system's own torch, whatever its age, with the package and library of this run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import addend
from addend import _native

SYSTEM_PYTHON = "/usr/bin/python3"


def test_smoke_with_the_systems_torch() -> None:
    found = subprocess.run(
        [SYSTEM_PYTHON, "-c", "import torch, numpy; print(torch.__version__)"],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode != 0:
        pytest.skip(f"{SYSTEM_PYTHON} has no torch (Debian: python3-torch, 637 MB)")
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(addend.__file__).parents[1]),
        "ADDEND_LIBRARY": str(_native.library.path),
        "OPENBLAS_NUM_THREADS": "1",
    }
    script = Path(__file__).with_name("smoke.py")
    ran = subprocess.run(
        [SYSTEM_PYTHON, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "smoke: ok" in ran.stdout
    print(ran.stdout)
