# SPDX-License-Identifier: Apache-2.0
"""attach: training with the hook is the training of plain DDP, whatever DDP is asked to do.

Every test trains one model on the same data with and without the hook. Lossless runs of two ranks
have the bits of plain DDP, those of more ranks are equal to float rounding, because there the order
of additions counts. Replicas have equal bits always.
"""

from __future__ import annotations

import copy
import functools
from typing import Any, Callable

import pytest
import torch
import torch.distributed as dist
from ranks import notes, run_ranks
from torch import nn
from training import (
    MANY_BUCKETS,
    ROWS,
    MixedTypes,
    Recommender,
    Run,
    Trainer,
    assert_close,
    assert_lossless,
    assert_same_bits,
    fit,
    generator,
    mixed_types_loss,
    recommender_loss,
    trainer,
)

# ---- what DDP can be asked to do

OPTIONS: dict[str, tuple[dict[str, Any], int | None]] = {
    # options of DDP, and after which step it moves parameters to other buckets
    "default": ({}, None),  # all in one bucket
    "rebuild": (MANY_BUCKETS, 1),
    "views": ({**MANY_BUCKETS, "gradient_as_bucket_view": True}, 1),
    "static graph": ({**MANY_BUCKETS, "static_graph": True}, 2),
    "unused": ({**MANY_BUCKETS, "find_unused_parameters": True}, None),
}


def train_with_options(rank: int, world: int) -> None:
    for name, (ddp, rebuilt_after) in OPTIONS.items():
        print(name)
        plain = fit(Recommender, recommender_loss, None, ddp=ddp)
        run = fit(Recommender, recommender_loss, "", ddp=ddp)
        assert_lossless(run, plain)
        # The buckets that the option promises were really there.
        assert len(set(run.buckets[rebuilt_after:])) == 1, (name, run.buckets)
        if rebuilt_after is not None:
            assert run.buckets[rebuilt_after - 1] < run.buckets[rebuilt_after]


@pytest.mark.parametrize("world", [2, 3])
def test_training_is_that_of_plain_ddp(world: int) -> None:
    run_ranks(world, train_with_options)


def wide_loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    loss: torch.Tensor = (
        model(torch.randn(2, 1100, generator=generator(rank, step))).square().mean()
    )
    return loss


def train_large_dense_buckets(rank: int, world: int) -> None:
    make = functools.partial(nn.Sequential, nn.Linear(1100, 1100), nn.Linear(1100, 1100))
    for views in (False, True):
        ddp = {"gradient_as_bucket_view": views}
        plain = fit(lambda: copy.deepcopy(make()), wide_loss, None, ddp=ddp)
        run = fit(lambda: copy.deepcopy(make()), wide_loss, "", ddp=ddp)
        assert_lossless(run, plain)
        # Pieces save nothing where each has to be copied, for the case that a later one fails.
        assert (run.metrics["mode/dense"] > sum(run.buckets)) == (not views), run.metrics


def test_large_buckets_that_are_dense_go_in_pieces_and_change_nothing() -> None:
    run_ranks(2, train_large_dense_buckets)


def train_with_a_slow_rank(rank: int, world: int, slow: int) -> list[int]:
    """The slow rank begins backward only when all others have nearly ended theirs."""
    make = functools.partial(Recommender, depth=24, width=256)

    def loss(key: str, model: nn.Module, rank: int, step: int) -> torch.Tensor:
        found = recommender_loss(model, rank, step)
        if rank == slow:
            notes().wait([f"{key} {step} {r}" for r in range(world) if r != slow])
        else:
            first: torch.Tensor = model.get_parameter("module.layers.0.0.weight")
            first.register_hook(lambda _: notes().set(f"{key} {step} {rank}", ""))
        return found

    ddp = {"bucket_cap_mb": 1}
    plain = fit(make, recommender_loss, None, steps=3, ddp=ddp)
    run = fit(make, functools.partial(loss, f"slow {slow}"), "", steps=3, ddp=ddp)
    assert_close(run, plain)
    return run.buckets


@pytest.mark.parametrize("slow", [0, 2])
def test_a_slow_rank_changes_nothing(slow: int) -> None:
    for buckets in run_ranks(3, train_with_a_slow_rank, slow):
        assert buckets[-1] >= 6


class Branches(nn.Module):
    """One part is used always, one only if asked to, one never."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes, self.never = (nn.Linear(8, 8) for _ in range(3))
        self.last = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, detour: bool) -> torch.Tensor:
        x = self.always(x)
        output: torch.Tensor = self.last(torch.tanh(self.sometimes(x) if detour else x))
        return output


def branches_loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    x = torch.randn(4, 8, generator=generator(rank, step))
    detour = step % 3 == 0 or (step % 3 == 1 and rank == 0)  # by all, by one, by none
    loss: torch.Tensor = ((model(x, detour) - 1.0) ** 2).mean()
    return loss


def train_with_unused_parameters(rank: int, world: int) -> None:
    for views in (False, True):
        ddp = {"find_unused_parameters": True, "gradient_as_bucket_view": views}
        seen: dict[str | None, list[Any]] = {}
        runs = {}
        for codec in (None, "exact"):
            made = trainer(Branches, branches_loss, codec, ddp)
            seen[codec] = []
            for step in range(6):
                made.run(step, 1)
                gradients = [p.grad for p in made.model.parameters()]
                seen[codec].append([None if g is None else g.clone() for g in gradients])
            runs[codec] = made.result()
        assert_same_bits(runs["exact"], runs[None])
        unused = 0
        for ours, theirs in zip(seen["exact"], seen[None]):
            for own, other in zip(ours, theirs):
                assert (own is None) == (other is None)
                assert own is None or torch.equal(own, other)
                unused += own is None
        assert unused >= 6 * 2 + 2 * 2  # `never` in all steps, `sometimes` in two


def test_unused_parameters() -> None:
    run_ranks(2, train_with_unused_parameters)


def train_with_accumulation(rank: int, world: int) -> None:
    def accumulate(made: Trainer) -> Run:
        for step in range(5):
            made.optimizer.zero_grad()
            with made.model.no_sync():
                for part in range(2):
                    recommender_loss(made.model, rank, 3 * step + part).backward()
            loss = recommender_loss(made.model, rank, 3 * step + 2)
            loss.backward()
            made.optimizer.step()
            made.note(loss)
        return made.result()

    for views in (False, True):
        ddp = {**MANY_BUCKETS, "gradient_as_bucket_view": views}
        plain = accumulate(trainer(Recommender, recommender_loss, None, ddp))
        run = accumulate(trainer(Recommender, recommender_loss, "", ddp))
        assert_same_bits(run, plain)
        assert run.metrics["step"] == 4  # one step for every three backwards


def test_no_sync_accumulates() -> None:
    run_ranks(2, train_with_accumulation)


def train_with_mixed_types(rank: int, world: int) -> None:
    make = functools.partial(
        MixedTypes, torch.float32, torch.bfloat16, torch.float16, torch.float64
    )
    plain = fit(make, mixed_types_loss, None)
    for codec in ("exact", "exact:values=reproducible", "dense"):
        run = fit(make, mixed_types_loss, codec)
        assert_same_bits(run, plain)
        assert run.metrics["fallback/dtype"] == 6  # no codec takes float64
    run = fit(make, mixed_types_loss, "quant:bits=8")
    assert run.losses == pytest.approx(plain.losses, rel=0.02)


def test_mixed_types() -> None:
    run_ranks(2, train_with_mixed_types)


def train_with_uneven_inputs(rank: int, world: int) -> None:
    """Rank 2 has two batches more than rank 0: DDP's join feeds zeros meanwhile."""

    def uneven(made: Trainer) -> Run:
        with made.model.join():
            made.run(0, 4 + rank)
        return made.result()

    plain = uneven(trainer(Recommender, recommender_loss, None, MANY_BUCKETS))
    run = uneven(trainer(Recommender, recommender_loss, "", MANY_BUCKETS))
    assert_close(run, plain)


def test_uneven_inputs() -> None:
    run_ranks(3, train_with_uneven_inputs)


# ---- sparse gradients


def one_idle_rank_loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    """The last rank looks up nothing; in one step nobody does."""
    items = torch.randint(ROWS, (16, 3), generator=generator(rank, step))
    if rank == dist.get_world_size() - 1 or step == 2:
        items = items[:0]
    loss: torch.Tensor = ((model(items) - 2.0) ** 2).sum() / 16
    return loss


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, 8, sparse=True)

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.embedding(items).sum(1)
        return output


def train_with_sparse_gradients(rank: int, world: int) -> None:
    beside_dense = functools.partial(Recommender, sparse=True)
    for make, loss in (
        (beside_dense, recommender_loss),
        (beside_dense, one_idle_rank_loss),
        (Table, one_idle_rank_loss),
    ):
        plain = fit(make, loss, None, ddp=MANY_BUCKETS)
        for codec in ("exact", "exact:values=reproducible", "dense"):
            run = fit(make, loss, codec, ddp=MANY_BUCKETS)
            assert_close(run, plain)
    rules = {"overrides": {"embedding.weight": "quant:bits=8"}}
    run = fit(beside_dense, recommender_loss, "exact", attach=rules)
    plain = fit(beside_dense, recommender_loss, None)
    assert run.losses != plain.losses
    assert run.losses == pytest.approx(plain.losses, rel=0.01)


@pytest.mark.parametrize("world", [2, 4])
def test_sparse_embeddings(world: int) -> None:
    run_ranks(world, train_with_sparse_gradients)


# ---- torch.compile


def train_compiled_models(rank: int, world: int) -> None:
    """Within DDP, around it, around it before attach, and a part of a model."""
    import addend.torch

    compiled: Callable[[nn.Module], Any] = functools.partial(torch.compile, backend="aot_eager")
    plain = fit(Recommender, recommender_loss, None)
    names = set(plain.parameters)

    def inside() -> Any:
        return compiled(Recommender())

    def partly() -> Any:
        model = Recommender()
        model.layers[0] = compiled(model.layers[0])
        return model

    for make in (inside, partly):
        made = trainer(make, recommender_loss, "")
        assert any("_orig_mod." in name for name in made.parameters())
        made.run(0, 6)
        run = made.result()
        run.parameters = {n.replace("_orig_mod.", ""): p for n, p in run.parameters.items()}
        assert_lossless(run, plain)
        assert set(made.handle.state_dict()["parameters"]) == names
        made.handle.close()
    for attached_first in (True, False):
        made = trainer(Recommender, recommender_loss, "" if attached_first else None)
        around = compiled(made.model)
        if not attached_first:
            made.handle = addend.torch.attach(around)

        def loss(_: nn.Module, rank: int, step: int, around: Any = around) -> torch.Tensor:
            return recommender_loss(around, rank, step)

        made.loss = loss
        made.run(0, 6)
        run = made.result()
        assert_lossless(run, plain)
        assert run.metrics["step"] == 5
        assert run.metrics["hook_calls"] == 6
        made.handle.close()


def test_compiled_models() -> None:
    run_ranks(2, train_compiled_models)


def load_the_state_of_a_compiled_model(rank: int, world: int) -> None:
    codec = "quant:bits=4,feedback=float"
    compiled: Callable[[nn.Module], Any] = functools.partial(torch.compile, backend="eager")
    made = trainer(lambda: compiled(Recommender()), recommender_loss, codec)
    made.run(0, 3)
    state = made.handle.state_dict()
    # As it was before names were stripped.
    state["parameters"] = {f"_orig_mod.{name}": one for name, one in state["parameters"].items()}
    other = trainer(Recommender, recommender_loss, codec)
    other.model.module.load_state_dict(made.model.module._orig_mod.state_dict())
    other.handle.load_state_dict(state)
    for one in (made, other):
        one.run(3, 3)
    for mine, its in zip(made.parameters().values(), other.parameters().values()):
        assert torch.equal(mine, its)


def test_states_move_between_compiled_models_and_others() -> None:
    run_ranks(2, load_the_state_of_a_compiled_model)


# ---- several models, subgroups


def train_two_models(rank: int, world: int) -> None:
    def train(codecs: tuple[str | None, str | None]) -> list[Run]:
        pair = [
            trainer(functools.partial(Recommender, depth=depth), recommender_loss, codec, ddp)
            for depth, codec, ddp in zip((1, 3), codecs, (MANY_BUCKETS, {}))
        ]
        for step in range(5):
            losses = [recommender_loss(one.model, rank, step) for one in pair]
            for one in pair:
                one.optimizer.zero_grad()
            if step % 2:
                torch.stack(losses).sum().backward()  # buckets of both, in whatever order
            else:
                for loss in reversed(losses):
                    loss.backward()
            for one, loss in zip(pair, losses):
                one.optimizer.step()
                one.note(loss)
        return [one.result() for one in pair]

    plain = train((None, None))
    for run, other in zip(train(("exact", "exact:mode=packed")), plain):
        assert_same_bits(run, other)
    mixed = train(("quant:bits=4,feedback=float", None))
    assert mixed[0].losses != plain[0].losses
    assert_same_bits(mixed[1], plain[1])


def test_models_in_one_process_do_not_mix() -> None:
    run_ranks(2, train_two_models)


def train_on_subgroups(rank: int, world: int) -> Run:
    groups = [dist.new_group([0, 2]), dist.new_group([3, 1])]
    ddp = {**MANY_BUCKETS, "process_group": groups[rank % 2]}
    codec = ("exact", "quant:bits=4,feedback=float")[rank % 2]
    plain = fit(Recommender, recommender_loss, None, ddp=ddp)
    run = fit(Recommender, recommender_loss, codec, ddp=ddp)
    if rank % 2 == 0:
        assert_same_bits(run, plain)
    else:
        assert run.losses == pytest.approx(plain.losses, rel=0.2)
    return run


def test_models_on_subgroups() -> None:
    runs = run_ranks(4, train_on_subgroups)
    for a, b in ((0, 2), (1, 3)):
        for name, value in runs[a].parameters.items():
            assert torch.equal(runs[b].parameters[name], value)
