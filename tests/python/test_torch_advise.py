# SPDX-License-Identifier: Apache-2.0
"""addend.torch.advise: what it records of live steps, and what it makes of the command's answer."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ranks import run_ranks  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import addend  # noqa: E402
from addend.torch import Link, advise, record_job  # noqa: E402

COMMAND = os.environ.get("ADDEND_COMMAND") or shutil.which("addend")
needs_command = pytest.mark.skipif(COMMAND is None, reason="name `addend` in ADDEND_COMMAND")
SLOW = Link(50.0, 0.1)
ANSWER = {"verdict": "", "pays": False, "codec": "", "engine": "", "gain": 1, "band": [1, 1]}


def cost(nbytes: float, seconds: float = 0.0) -> dict[str, Any]:
    lines = {"encode_s": [0, seconds], "decode_s": [0, seconds]}
    return {"density": 1, **lines, "up_bytes": [0, nbytes], "down_bytes": [0, nbytes]}


def calibration(folder: Path) -> str:
    """Dense, and a codec that sends an eighth and loses nothing."""
    named = {"loss": 0, "fidelity": 1, "keeps": 0, "same_positions": False, "rounds": 1}
    models = [{"codec": "dense", **named, "costs": [cost(4)]}]
    models += [{"codec": "exact", **named, "costs": [cost(0.5, 1e-10)]}]
    text = {"format": "addend-calibration", "version": 1, "add_s": [0, 0], "codecs": models}
    path = folder / "calibration.json"
    path.write_text(json.dumps(text))
    return str(path)


class Table(nn.Module):
    """Of which a step touches one row in ten; and a layer behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(1000, 64)
        self.out = nn.Linear(64, 1)

    def forward(self, rows: Any) -> Any:
        return self.out(self.table(rows)).square().mean()


def steps_of(model: nn.Module) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = torch.arange(0, 1000, 10)

    def step() -> None:
        optimizer.zero_grad()
        model(rows).backward()
        optimizer.step()

    return step


def record(model: nn.Module, step_fn: Any, steps: int, folder: Path) -> Any:
    """What `addend plan` is given to read: a command in its place keeps that."""
    command, job = folder / "plan", folder / "kept.json"
    command.write_text(f"#!/bin/sh\ncp \"$3\" {job}\necho '{json.dumps(ANSWER)}'\n")
    command.chmod(0o700)
    answer = advise(model, step_fn, steps=steps, workers=2, link=SLOW, command=str(command))
    assert answer.document == ANSWER
    return json.loads(job.read_text())


def test_records_order_sizes_and_density_of_gradients(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = Table()
    job = record(model, steps_of(model), 8, tmp_path)
    (bucket,) = job["buckets"]
    assert bucket["elements"] == 64_065
    assert bucket["tables"] == 64_000
    assert bucket["ready_s"] > 0
    assert job["rest_s"] > 0
    assert job["density"] == pytest.approx((6400 + 65) / 64_065)


def test_large_models_have_several_buckets_and_the_last_layer_is_ready_first() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4000, 2000), nn.Linear(2000, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.ones(1, 4000)

    def step() -> None:
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    job = record_job(model, step, 6)
    assert sum(one["elements"] for one in job["buckets"]) == 4000 * 2000 + 2000 + 20_010
    assert [one["ready_s"] for one in job["buckets"]] == sorted(
        one["ready_s"] for one in job["buckets"]
    )


def test_leaves_no_hook_and_trains_as_without(tmp_path: Path) -> None:
    ends = []
    for advised in (False, True):
        torch.manual_seed(1)
        model = Table()
        step = steps_of(model)
        if advised:
            record(model, step, 6, tmp_path)
        else:
            for _ in range(6):
                step()
        assert not any(parameter._backward_hooks for parameter in model.parameters())
        ends.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert torch.equal(*ends)


@needs_command
def test_says_what_pays_on_a_slow_link_and_that_nothing_does_on_a_fast_one(tmp_path: Path) -> None:
    model = Table()
    named: dict[str, Any] = {"calibration": calibration(tmp_path), "command": COMMAND, "steps": 6}
    slow = advise(model, steps_of(model), workers=4, link=Link(10.0, 0.001), **named)
    assert slow.pays
    assert slow.codec == "exact"
    assert str(slow).startswith("use exact over")
    assert slow.band[0] <= slow.gain <= slow.band[1]
    assert slow.document["job"]["buckets"][0]["elements"] == 64_065
    fast = advise(model, steps_of(model), workers=4, link=Link(0.0, 10_000.0), **named)
    assert not fast.pays
    assert str(fast).startswith("nothing pays")


def test_says_what_is_missing(tmp_path: Path) -> None:
    model = Table()
    step = steps_of(model)
    with pytest.raises(addend.InvalidArgument, match="give workers= and link="):
        advise(model, step)
    with pytest.raises(addend.InvalidArgument, match="one worker"):
        advise(model, step, link=SLOW)
    with pytest.raises(addend.InvalidArgument, match="steps=3"):
        advise(model, step, steps=3, link=SLOW, workers=2)
    with pytest.raises(addend.InvalidArgument, match="steps=3"):
        record_job(model, step, steps=3)
    with pytest.raises(addend.Unsupported, match="no-such-command"):
        advise(model, step, link=SLOW, workers=2, command="no-such-command")
    with pytest.raises(addend.InvalidArgument, match="gave no parameter"):
        record(model, lambda: None, 6, tmp_path)
    frozen = Table().requires_grad_(False)
    with pytest.raises(addend.InvalidArgument, match="no parameter that is trained"):
        record(frozen, step, 6, tmp_path)


@needs_command
def test_the_commands_complaint_is_passed_on(tmp_path: Path) -> None:
    model = Table()
    with pytest.raises(addend.InvalidArgument, match=r"nowhere\.json"):
        advise(
            model,
            steps_of(model),
            steps=6,
            workers=2,
            link=SLOW,
            calibration=str(tmp_path / "nowhere.json"),
            command=str(COMMAND),
        )


def advised(rank: int, world: int, costs: str, command: str) -> Any:
    torch.manual_seed(1)
    model = DistributedDataParallel(Table())
    answer = advise(model, steps_of(model), steps=6, calibration=costs, command=command)
    return answer.verdict, answer.document["network"]


@needs_command
def test_ranks_measure_their_link_and_get_one_answer(tmp_path: Path) -> None:
    one, other = run_ranks(2, advised, calibration(tmp_path), COMMAND)
    assert one == other
    assert one[1]["workers"] == 2
    assert one[1]["gbit"] > 0
    assert one[1]["latency_us"] > 0


def advised_without(rank: int, world: int, here: str) -> str:
    """Only rank 0's command counts: others have one that is there, or not."""
    model = DistributedDataParallel(Table())
    command = "no-such-command" if rank == 0 else here
    with pytest.raises(addend.Unsupported) as caught:
        advise(model, steps_of(model), steps=6, link=SLOW, command=command)
    return str(caught.value)


def test_a_command_that_rank_0_lacks_is_refused_on_all_ranks() -> None:
    one, other = run_ranks(2, advised_without, "true")
    assert "no-such-command" in one
    assert "which is not there" in other


def advised_where_only_rank_0_has_it(rank: int, world: int, costs: str, command: str) -> str:
    model = DistributedDataParallel(Table())
    command = command if rank == 0 else "no-such-command"
    named: Any = {"steps": 6, "link": SLOW, "calibration": costs}
    return advise(model, steps_of(model), command=command, **named).verdict


@needs_command
def test_the_command_of_rank_0_is_enough(tmp_path: Path) -> None:
    costs = calibration(tmp_path)
    one, other = run_ranks(2, advised_where_only_rank_0_has_it, costs, COMMAND)
    assert one == other
