# SPDX-License-Identifier: Apache-2.0
"""state_dict and load_state_dict: an interrupted run ends with the bits of one that was not.

Saved states are files by rank; what goes on is another set of processes, whose first step has other
buckets than the run that was saved.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ranks import notes, run_ranks  # noqa: E402
from training import (  # noqa: E402
    MANY_BUCKETS,
    Lines,
    Recommender,
    Run,
    Trainer,
    assert_replicas,
    digest,
    recommender_loss,
    trainer,
)

ROOT = Path(__file__).resolve().parents[2]
BEFORE, AFTER = 4, 4  # steps

CODECS: dict[str, tuple[str, dict[str, str]]] = {
    "float": ("quant:bits=4,feedback=float", {}),
    "byte": ("quant:bits=4,feedback=byte", {}),
    "auto": ("quant:bits=auto,budget=3,feedback=float", {}),
    "none": ("quant:bits=4", {}),
    "mixed": ("quant:bits=2,feedback=float", {"*.bias": "dense", "layers.0.*": "quant:bits=8"}),
    "reproducible": ("exact:values=reproducible", {}),
}


def make(key: str, seed: int = 5) -> Trainer:
    codec, overrides = CODECS[key]
    options = {"overrides": overrides, "seed": seed}
    return trainer(Recommender, recommender_loss, codec, MANY_BUCKETS, options)


def save(made: Trainer, path: Path) -> None:
    torch.save({"model": made.model.module.state_dict(), "handle": made.handle.state_dict()}, path)


def load(made: Trainer, path: Path) -> dict[str, Any]:
    """Also shows that the state needs nothing but tensors and plain values to be read."""
    saved: dict[str, Any] = torch.load(path, weights_only=True)
    made.model.module.load_state_dict(saved["model"])
    made.handle.load_state_dict(saved["handle"])
    handle: dict[str, Any] = saved["handle"]
    return handle


# ---- restarts


def train_and_save(rank: int, world: int, folder: Path) -> dict[str, Run]:
    runs = {}
    for key in CODECS:
        made = make(key)
        made.run(0, BEFORE)
        save(made, folder / f"{key}-{rank}.pt")
        made.run(BEFORE, AFTER)
        runs[key] = made.result()
    return runs


def load_and_train(rank: int, world: int, folder: Path) -> dict[str, Run]:
    log = Lines("addend.state")
    runs = {}
    for key in CODECS:
        made = make(key, seed=6)
        state = load(made, folder / f"{key}-{rank}.pt")
        assert log.take() == "seed 5 of the state replaces 6"
        assert state["step"] == BEFORE
        assert set(state["parameters"]) == set(made.parameters())
        made.run(BEFORE, AFTER)
        runs[key] = made.result()
    assert not log.lines, log.lines
    return runs


def forget_and_train(rank: int, world: int, folder: Path) -> dict[str, Run]:
    """As load_and_train, with residuals, or steps where there are none, forgotten."""
    runs = {}
    for key in CODECS:
        made = make(key)
        state = load(made, folder / f"{key}-{rank}.pt")
        for saved in state["parameters"].values():
            saved["residual"] = torch.empty(0, dtype=torch.uint8)
        made.handle.load_state_dict({**state, "step": 0 if key == "none" else state["step"]})
        made.run(BEFORE, AFTER)
        runs[key] = made.result()
    return runs


@pytest.mark.parametrize("world", [2, 3])
def test_a_restart_changes_no_bit(world: int, tmp_path: Path) -> None:
    whole = run_ranks(world, train_and_save, tmp_path)
    resumed = run_ranks(world, load_and_train, tmp_path)
    forgetful = run_ranks(world, forget_and_train, tmp_path)
    for rank in range(world):
        for key in CODECS:
            before, after = whole[rank][key], resumed[rank][key]
            assert after.losses == before.losses[BEFORE:], key
            assert digest(after.parameters) == digest(before.parameters), key
            # The restarted run began with one bucket, where the other had many.
            assert after.buckets[0] == 1 < min(*after.buckets[1:], before.buckets[BEFORE])
            # And what was saved mattered.
            same = digest(forgetful[rank][key].parameters) == digest(before.parameters)
            assert same == (key == "reproducible"), key


def rewind_over_a_rebuild(rank: int, world: int) -> None:
    """Saved when all was in one bucket, loaded when it is in many."""
    for key in ("float", "byte"):
        made = make(key)
        made.run(0, 1)
        kept = {name: p.detach().clone() for name, p in made.parameters().items()}
        state = made.handle.state_dict()
        made.run(1, 4)
        end = digest(made.parameters())
        assert made.buckets[0] == 1 < made.buckets[1]

        made.model.module.load_state_dict(kept)
        made.handle.load_state_dict(state)
        again = made.handle.state_dict()  # nothing has run, so nothing has changed
        assert again["step"] == state["step"] == 1
        for name, saved in state["parameters"].items():
            assert torch.equal(again["parameters"][name]["residual"], saved["residual"])
        made.run(1, 4)
        assert digest(made.parameters()) == end
        assert_replicas(made.parameters())


def test_a_state_from_before_a_rebuild_loads_after_it() -> None:
    run_ranks(2, rewind_over_a_rebuild)


def scaled_run(made: Trainer, scaler: Any, rank: int, first: int, steps: int) -> None:
    for step in range(first, first + steps):
        made.optimizer.zero_grad()
        loss = recommender_loss(made.model, rank, step)
        if scaler is None:
            loss.backward()
            made.optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(made.optimizer)
            scaler.update()


def restart_with_another_loss_scale(rank: int, world: int) -> None:
    def fresh(scale: float | None) -> tuple[Trainer, Any]:
        scaler = None
        if scale is not None:
            scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=3)
        codec = "quant:bits=4,feedback=float"
        ddp = {"find_unused_parameters": True}  # no rebuild: states move by loading alone
        return trainer(Recommender, recommender_loss, codec, ddp, {"scaler": scaler}), scaler

    made, scaler = fresh(2.0**10)
    scaled_run(made, scaler, rank, 0, 4)
    kept = {name: p.detach().clone() for name, p in made.parameters().items()}
    state = made.handle.state_dict()
    scaled_run(made, scaler, rank, 4, 4)
    end = digest(made.parameters())
    for scale in (2.0**10, 2.0**5, None):  # powers of two lose no bit
        made, scaler = fresh(scale)
        made.model.module.load_state_dict(kept)
        made.handle.load_state_dict(state)
        scaled_run(made, scaler, rank, 4, 4)
        assert digest(made.parameters()) == end, scale


@pytest.mark.skipif(
    not hasattr(torch.amp, "GradScaler"), reason="this torch has no GradScaler for CPUs"
)
def test_a_restart_with_another_loss_scale() -> None:
    run_ranks(2, restart_with_another_loss_scale)


# ---- states that do not fit: a logged decision


def load_elsewhere(rank: int, world: int, folder: Path) -> None:
    log = Lines("addend.state")
    # Another world size: this rank's residuals are still good.
    ends = []
    for keep in (True, False):
        made = make("float")
        state = load(made, folder / f"float-{rank}.pt")
        assert "world size was 3, is 2" in log.take()
        if not keep:
            for saved in state["parameters"].values():
                saved["residual"] = torch.empty(0, dtype=torch.uint8)
            made.handle.load_state_dict(state)
        log.take()
        made.run(BEFORE, 2)
        assert not log.lines, log.lines
        ends.append(digest(made.result().parameters))
    assert ends[0] != ends[1]

    # Another rank's: its residuals are of no use here.
    made = make("float")
    load(made, folder / f"float-{(rank + 1) % 3}.pt")
    assert f"rank {rank} loads the state of rank {(rank + 1) % 3}" in log.take()
    made.run(BEFORE, 2)
    assert digest(made.result().parameters) == ends[1]

    # The same codec in other words.
    made = trainer(Recommender, recommender_loss, "quant:feedback=float,bits=4", MANY_BUCKETS)
    load(made, folder / f"float-{rank}.pt")
    log.take()
    made.run(BEFORE, 2)
    assert not log.lines, log.lines
    assert digest(made.result().parameters) == ends[0]

    # Another codec for some parameters: the others keep theirs.
    codec = "quant:bits=4,feedback=float"
    options = {"overrides": {"layers.*": "exact"}, "seed": 5}
    made = trainer(Recommender, recommender_loss, codec, None, options)
    state = load(made, folder / f"float-{rank}.pt")
    dropped = [line for line in log.take().splitlines() if "the codec changed" in line]
    assert len(dropped) == 1
    assert "layers.0.0.weight" in dropped[0]
    assert "embedding" not in dropped[0]
    kept = made.handle.state_dict()["parameters"]
    name = "embedding.weight"
    assert list(kept) == [name]
    assert torch.equal(kept[name]["residual"], state["parameters"][name]["residual"])
    made.run(BEFORE, 2)
    made.result()

    # Another size of some parameters.
    narrow = functools.partial(Recommender, width=32)
    made = trainer(narrow, recommender_loss, codec)
    made.handle.load_state_dict(state)
    log.take()
    made.run(BEFORE, 2)
    lines = log.take()
    assert "residual of layers.0.0.weight dropped" in lines
    assert "embedding" not in lines
    made.result()


def test_states_that_do_not_fit_are_logged(tmp_path: Path) -> None:
    run_ranks(3, train_and_save, tmp_path)
    run_ranks(2, load_elsewhere, tmp_path)


def refuse_other_formats(rank: int, world: int) -> None:
    import addend

    made = make("float")
    state = made.handle.state_dict()
    assert state["step"] == 0
    assert state["parameters"] == {}
    made.handle.load_state_dict(state)  # a state from before the first step
    with pytest.raises(addend.InvalidArgument, match="format"):
        made.handle.load_state_dict({**state, "format": 99})
    with pytest.raises(addend.InvalidArgument, match="format"):
        made.handle.load_state_dict({})
    made.run(0, 2)
    made.result()


def test_other_formats_are_refused() -> None:
    run_ranks(2, refuse_other_formats)


# ---- the example


def run_example(rank: int, world: int, *arguments: str) -> str:
    """Runs it as torchrun would, in this process."""
    import torch.distributed as dist

    dist.destroy_process_group()
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        notes().set("port", str(store.port))
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = notes().get("port").decode()
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), str(world)
    example = ROOT / "examples/torch/checkpoint.py"
    sys.argv = [str(example), *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(example), run_name="__main__")
    return printed.getvalue()


def test_checkpoint_example(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder, steps, first in ((whole, 20, 0), (parts, 10, 0), (parts, 20, 10)):
        folder.mkdir(exist_ok=True)
        printed = run_ranks(2, run_example, str(folder), str(steps))[0]
        assert f"step {first}:" in printed
        assert f"step {steps - 1}:" in printed
    for rank in range(2):
        one, other = (torch.load(folder / f"rank-{rank}.pt") for folder in (whole, parts))
        assert one["step"] == other["step"] == 20
        assert digest(one["model"]) == digest(other["model"])
        for name, saved in one["addend"]["parameters"].items():
            assert torch.equal(other["addend"]["parameters"][name]["residual"], saved["residual"])
