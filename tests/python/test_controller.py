# SPDX-License-Identifier: Apache-2.0
"""The controller through the C ABI, and its traces through `addend replay`."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import addend
from addend.controller import (
    BIASED,
    BUCKET_SIGNALS,
    CANDIDATE_SIGNALS,
    STEP_SIGNALS,
    UNBIASED,
    Candidate,
    Controller,
    Decision,
    factors,
)

COMMAND = os.environ.get("ADDEND_COMMAND") or shutil.which("addend")
CANDIDATES = (
    Candidate("dense"),
    Candidate("exact", rounds=2, bits=1, union_bits=40),
    Candidate("quant", UNBIASED, rounds=2, bits=6),
)
ELEMENTS = 1 << 20
NAN = math.nan


def make(options: str = "", gbit_per_s: float = 1.0) -> Controller:
    return Controller(
        options,
        world=2,
        candidates=CANDIDATES,
        buckets=[(ELEMENTS, 4 * ELEMENTS)] * 2,
        gbit_per_s=gbit_per_s,
    )


def signals(step_s: float = 0.1, density: float = 0.01, nonfinite: float = 0.0) -> list[float]:
    """One rank's, of a job whose network is not measured."""
    known: dict[str, float] = {"world": 2, "steps": 100, "step_s": step_s}
    bucket = {"energy": 1.0, "mean_energy": 0.5, "union_density": density, "nonfinite": nonfinite}
    candidate = {"encode_s": 1e-4, "decode_s": 1e-4, "error": 0.01}
    values = [known.get(name, NAN) for name in STEP_SIGNALS]
    for _ in range(2):
        values += [bucket.get(name, NAN) for name in BUCKET_SIGNALS]
        for _ in CANDIDATES:
            values += [candidate.get(name, NAN) for name in CANDIDATE_SIGNALS]
    return values


def run(controller: Controller, windows: int, **changed: float) -> Decision:
    for _ in range(windows):
        decision = controller.decide(signals(**changed) * 2)
    return decision


def test_signals_of_all_ranks_become_a_plan() -> None:
    controller = make()
    assert controller.signals == len(signals())
    assert controller.first_steps == 10  # the first window is a tenth of the others
    decision = run(controller, 1)
    assert decision.predicted_s < decision.predicted_dense_s
    assert run(controller, 3).plan == (1, 1)
    assert run(make(), 4, density=1.0).plan == (2, 2)
    assert run(make("floor=exact"), 4, density=1.0).plan == (0, 0)
    assert run(controller, 1, nonfinite=1.0).why == ("nonfinite", "nonfinite")


def test_the_order_of_signals_is_the_headers() -> None:
    header = (Path(__file__).parents[2] / "include/addend/control.h").read_text()
    for struct, names in (
        ("StepSignals", STEP_SIGNALS),
        ("BucketSignals", BUCKET_SIGNALS),
        ("CandidateSignals", CANDIDATE_SIGNALS),
    ):
        body = header.partition(f"struct {struct} {{")[2].partition("};")[0]
        fields = [
            line.split()[1] for line in body.splitlines() if line.strip().startswith("double")
        ]
        assert tuple(fields) == names


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(addend.InvalidArgument, match="polcy"):
        make("polcy=auto")
    with pytest.raises(addend.InvalidArgument, match="each rank has"):
        make().decide([0.0])
    with pytest.raises(addend.InvalidArgument, match="dense"):
        Controller("", world=2, candidates=[Candidate("topk", BIASED, factor=10)], buckets=[])
    with pytest.raises(addend.InvalidArgument, match="factor 10"):
        make("policy=gravac")


def test_gravac_says_which_factors_it_needs() -> None:
    assert factors("policy=gravac") == [10, 20, 40, 160, 1000]
    assert factors("policy=gravac,selector=redsync,most=20") == [10, 20]
    ladder = [Candidate("topk", BIASED, factor=f) for f in factors("")]
    Controller("policy=gravac", world=2, candidates=[CANDIDATES[0], *ladder], buckets=[(1, 4)])


# ---- addend replay


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    controller = make()
    run(controller, 6)
    run(controller, 1, nonfinite=1.0)
    run(controller, 3, density=1.0)
    path = tmp_path / "trace.json"
    path.write_text(controller.trace())
    return path


def replay(*arguments: Any) -> subprocess.CompletedProcess[str]:
    if COMMAND is None:
        pytest.skip("no `addend` command: name it in ADDEND_COMMAND")
    return subprocess.run(
        [COMMAND, "replay", *map(str, arguments)], capture_output=True, text=True, check=False
    )


def test_a_trace_replays_to_the_same_decisions(trace: Path) -> None:
    shown = replay(trace)
    assert shown.returncode == 0, shown.stderr
    assert "10 windows, all decisions as recorded" in shown.stdout
    assert "exact x2" in shown.stdout
    assert "nonfinite" in shown.stdout
    read = json.loads(replay(trace, "--json").stdout)
    assert read["different"] == 0
    assert read["windows"][3]["plan"] == ["exact", "exact"]


def test_a_trace_from_before_every_replays(trace: Path) -> None:
    read = json.loads(trace.read_text())
    assert read["options"].pop("every") == 1
    trace.write_text(json.dumps(read))
    shown = replay(trace)
    assert shown.returncode == 0, shown.stderr


def test_a_decision_that_differs_is_shown_and_fails(trace: Path) -> None:
    read = json.loads(trace.read_text())
    read["windows"][4]["decision"]["plan"][0] = 0
    trace.write_text(json.dumps(read))
    shown = replay(trace)
    assert shown.returncode == 1
    assert "1 decisions differ" in shown.stdout
    assert "DIFFERS" in shown.stdout
    again = replay(trace, "--json")
    assert again.returncode == 1
    assert [w["same"] for w in json.loads(again.stdout)["windows"]].count(False) == 1


def test_what_is_no_trace_is_refused_in_words(trace: Path, tmp_path: Path) -> None:
    missing = replay(tmp_path / "none.json")
    assert missing.returncode == 1
    assert "cannot be read" in missing.stderr
    whole = trace.read_text()
    for text, word in (
        (whole[:200], "not a trace"),
        ("{}", "format"),
        (whole.replace('"version":3', '"version":2'), "version 2"),
        (whole.replace('"signals":[', '"signals":[1,'), "signals"),
        (whole.replace('"policy":"auto"', '"policy":"best"'), "best"),
        (whole.replace('"plan":[', '"plan":[0,'), "plan"),
    ):
        trace.write_text(text)
        shown = replay(trace)
        assert shown.returncode == 1, text[:100]
        assert word in shown.stderr, shown.stderr
