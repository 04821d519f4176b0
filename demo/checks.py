# SPDX-License-Identifier: Apache-2.0
"""What must hold for the demo to pass."""

from __future__ import annotations

import math
from typing import Any

from demo.training import BASELINE

# Sums of the same floats in another order differ in the last bit or two; training amplifies that.
LOSS_TOLERANCE = 1e-4


def is_lossless(codec: str) -> bool:
    return codec.split(":")[0] in ("dense", "exact") and "tolerance=" not in codec


def loss_difference(losses: list[float], reference: list[float]) -> float:
    """The largest relative difference of two loss curves; infinite if either has no number."""
    pairs = list(zip(losses, reference))
    if not all(math.isfinite(a) and math.isfinite(b) for a, b in pairs):
        return math.inf
    return max(abs(a - b) / max(abs(b), 1e-3) for a, b in pairs)


def check_runs(model: dict[str, Any]) -> list[dict[str, Any]]:
    """Claims about one model's runs: {"claim", "passed", "detail"}."""
    reference = next(run for run in model["runs"] if run["codec"] == BASELINE)
    checks = []
    for run in model["runs"]:
        name = f"{model['name']}, {run['codec']}"
        checks.append(
            _claim(
                f"{name}: all workers end with the same bits",
                run["replicas_identical"],
                "parameters compared by hash",
            )
        )
        if is_lossless(run["codec"]):
            difference = loss_difference(run["losses"], reference["losses"])
            run["loss_difference"] = difference
            checks.append(
                _claim(
                    f"{name}: the losses are those of plain DDP",
                    difference <= LOSS_TOLERANCE,
                    f"largest relative difference {difference:.1e} over {len(run['losses'])} steps",
                )
            )
        else:
            finite = all(map(math.isfinite, run["losses"]))
            checks.append(_claim(f"{name}: every loss is a number", finite, ""))
    return checks


def _claim(claim: str, passed: bool, detail: str) -> dict[str, Any]:
    return {"claim": claim, "passed": passed, "detail": detail}
