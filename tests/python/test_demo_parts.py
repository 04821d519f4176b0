# SPDX-License-Identifier: Apache-2.0
"""The parts of the demo that need no second process."""

from __future__ import annotations

import io
import itertools
import math
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from demo import checks, collect, launch, results, training  # noqa: E402
from demo.models import MODELS  # noqa: E402
from demo.progress import Progress  # noqa: E402

needs_text = pytest.mark.skipif(shutil.which("bible") is None, reason="package bible-kjv missing")
each_model = pytest.mark.parametrize(
    "name", ["ncf", "digits", pytest.param("words", marks=needs_text)]
)


@pytest.mark.parametrize(
    ("name", "steps"), [("ncf", 60), ("digits", 60), pytest.param("words", 15, marks=needs_text)]
)
def test_a_model_learns(name: str, steps: int, tmp_path: Path) -> None:
    model = MODELS[name]
    model.prepare(tmp_path, seed=1)
    torch.set_num_threads(1)  # as in the demo; more get in each other's way
    torch.manual_seed(1)
    module = model.build()
    optimizer = model.optimizer(module)
    losses = []
    for batch in itertools.islice(model.batches(tmp_path, 0, 1, seed=1), steps):
        loss = module(*batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert statistics.fmean(losses[-5:]) < 0.9 * statistics.fmean(losses[:5])
    assert math.isfinite(model.score(module, tmp_path))


@each_model
def test_batches_are_the_workers_own_and_repeat(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    model.prepare(tmp_path, seed=3)

    def third(worker: int) -> list[Any]:
        batches = model.batches(tmp_path, worker, 2, seed=3)
        return list(next(itertools.islice(batches, 2, None)))

    assert all(map(torch.equal, third(0), third(0)))
    assert not all(map(torch.equal, third(0), third(1)))


def done(run: int, **changes: Any) -> dict[str, Any]:
    message = {
        "event": "done",
        "run": run,
        "losses": [1.0, 0.5, 0.25, 0.125],
        "step_s": [0.3, 0.1, 0.2, 0.1],
        "together_s": [0.09, 0.09, 0.08, 0.08],
        "alone_s": [0.02, 0.03],
        "link_bytes": [900, 100, 200, 300],
        "metrics": {"wire_bytes": 80.0},
        "score": 0.5,
        "digest": "same",
        "parameters": 10,
    }
    return {**message, **changes}


def test_combine_takes_means_over_workers_and_medians_over_settled_steps() -> None:
    run = results.combine("exact", [done(0), done(0, losses=[3.0, 0.5, 0.25, 0.125])])
    assert run["losses"] == [2.0, 0.5, 0.25, 0.125]
    assert run["median_step_s"] == pytest.approx(0.15)
    assert run["link_bytes"] == 250
    assert run["step_link_bytes"] == [900, 100, 200, 300]
    assert run["wire_bytes"] == 20
    assert run["replicas_identical"]
    assert not results.combine("exact", [done(0), done(0, digest="other")])["replicas_identical"]
    assert results.combine("ddp", [done(0)])["wire_bytes"] == 40


def test_decisions_of_an_adaptive_run_are_worker_0s() -> None:
    run = results.combine("adaptive", [done(0, decisions=[{"step": 3}]), done(0, decisions=[])])
    assert run["decisions"] == [{"step": 3}]
    assert results.combine("exact", [done(0)])["decisions"] is None


def test_exposed_is_with_communication_minus_without() -> None:
    # The first two of the four steps are not counted.
    early = done(0, together_s=[9.0, 9.0, 0.14, 0.20], alone_s=[0.06])
    late = done(0, together_s=[9.0, 9.0, 0.10, 0.20], alone_s=[0.02])
    assert results.exposed_seconds([early, late]) == pytest.approx(0.16 - 0.04)


@pytest.mark.parametrize("steps", [1, 2, 6, 17, 150])
def test_probes_lie_in_the_run_and_past_its_start(steps: int) -> None:
    probed = training.probe_steps(steps)
    assert 1 <= len(probed) <= training.PROBES
    assert all(training.warm_up(steps) <= step < steps for step in probed)


def test_collect_copes_with_messages_that_overtake() -> None:
    runs = [training.Run("digits", codec, 4, 1) for codec in ("ddp", "exact")]
    messages = [(0, done(0)), (0, done(1)), (1, done(0)), (1, done(1))]
    (model,) = collect.collect(messages, runs, world=2)
    assert [run["codec"] for run in model["runs"]] == ["ddp", "exact"]
    assert model["dense_bytes"] == 40


def model_of(**losses: list[float]) -> dict[str, Any]:
    runs = [{"codec": k, "losses": v, "replicas_identical": True} for k, v in losses.items()]
    return {"name": "ncf", "runs": runs}


def failed(model: dict[str, Any]) -> list[str]:
    return [check["claim"] for check in checks.check_runs(model) if not check["passed"]]


def test_checks_pass_and_tell_the_difference() -> None:
    model = model_of(ddp=[1.0, 0.5], exact=[1.0, 0.5 + 1e-6], quant=[1.1, 0.9])
    assert failed(model) == []
    assert model["runs"][1]["loss_difference"] == pytest.approx(2e-6)
    assert "loss_difference" not in model["runs"][2]


@pytest.mark.parametrize("losses", [[1.0, 0.6], [1.0, math.nan], [math.inf, 0.5]])
def test_a_lossless_codec_that_trains_otherwise_fails(losses: list[float]) -> None:
    assert failed(model_of(ddp=[1.0, 0.5], exact=losses)) == [
        "ncf, exact: the losses are those of plain DDP"
    ]


def test_replicas_that_differ_and_losses_without_number_fail() -> None:
    model = model_of(ddp=[1.0], quant=[math.nan])
    model["runs"][0]["replicas_identical"] = False
    assert failed(model) == [
        "ncf, ddp: all workers end with the same bits",
        "ncf, quant: every loss is a number",
    ]


def test_wrong_options_of_adaptive_are_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    for right in ("adaptive:floor=exact", "adaptive:policy=gravac,window=10"):
        assert launch.parse(["--codecs", right]).codecs == [right]
    with pytest.raises(SystemExit):
        launch.parse(["--codecs", "adaptive:window=x"])
    assert "window" in capsys.readouterr().err


def test_failed_checks_make_the_status(capsys: pytest.CaptureFixture[str]) -> None:
    good = {"claim": "a", "passed": True, "detail": ""}
    assert launch.status([good]) == 0
    assert launch.status([good, {"claim": "b", "passed": False, "detail": "why"}]) == 1
    assert "FAILED: b: why" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_bar_on_a_terminal_and_a_line_elsewhere() -> None:
    shown = {}
    for stream in (Terminal(), io.StringIO()):
        progress = Progress(stream)
        progress.start("ncf", 4)
        progress.step(2, "loss 1")
        progress.done("loss 0")
        shown[stream.isatty()] = stream.getvalue()
    assert "[############............] 2/4  loss 1" in shown[True]
    assert shown[False] == "ncf 4 steps  loss 0\n"
