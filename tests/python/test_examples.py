# SPDX-License-Identifier: Apache-2.0
"""The examples under examples/torch run as they stand, and what they train gets better."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]


def run_example(name: str, *arguments: str) -> list[tuple[float, float]]:
    """(loss, ratio) as two workers printed them."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", str(ROOT / "examples/torch" / name), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = re.findall(r"loss ([\d.]+), ([\d.]+)x", done.stdout)
    return [(float(loss), float(ratio)) for loss, ratio in printed]


def check(printed: list[tuple[float, float]], least_ratio: float) -> None:
    losses = [loss for loss, _ in printed]
    assert len(losses) == 4
    assert losses[-1] < 0.9 * losses[0]
    assert printed[-1][1] >= least_ratio


def test_ncf_sends_few_rows() -> None:
    check(run_example("ncf.py"), least_ratio=5)


def test_words_reads_a_text(tmp_path: Path) -> None:
    pages = sorted((ROOT / "docs").rglob("*.md"))
    text = tmp_path / "text"
    text.write_text("\n".join(page.read_text(encoding="utf-8") for page in pages), encoding="utf-8")
    check(run_example("words.py", str(text)), least_ratio=3)


def test_digits_sends_levels() -> None:
    pytest.importorskip("sklearn")
    check(run_example("digits.py"), least_ratio=3)
