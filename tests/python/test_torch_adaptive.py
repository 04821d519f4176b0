# SPDX-License-Identifier: Apache-2.0
"""codec="adaptive": plans that change while a model trains, alike on all ranks, and lose nothing.

With deterministic=True and a link that is given, plans follow from gradients alone: so what a plan
is can be asserted on any machine.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import types
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from failing import break_copies, break_jobs, fail_at  # noqa: E402
from ranks import run_ranks  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from training import (  # noqa: E402
    Recommender,
    assert_lossless,
    fit,
    generator,
    recommender_loss,
    trainer,
)

import addend  # noqa: E402
from addend.controller import BUCKET_SIGNALS, STEP_SIGNALS  # noqa: E402
from addend.torch import Link, _look, attach  # noqa: E402
from addend.torch._look import SELECTORS, Look, candidates_for  # noqa: E402

STEPS = 40
SLOW, FAST = Link(50.0, 0.05), Link(50.0, 100.0)


def asked(link: Link = SLOW, options: str = "window=5,window_s=0", **more: Any) -> dict[str, Any]:
    return {"codec": f"adaptive:{options}", "deterministic": True, "link": link, **more}


def plans(handle: Any) -> list[list[int]]:
    """Those of all windows, having seen that all ranks have the same trace."""
    text = handle._adaptive.trace()
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, text)
    assert len(set(everyone)) == 1
    return [window["decision"]["plan"] for window in json.loads(text)["windows"]]


# ---- what it chooses


def train_sparse(rank: int, world: int) -> None:
    plain = fit(Recommender, recommender_loss, None, steps=STEPS)
    made = trainer(
        Recommender, recommender_loss, "", attach=asked(options="window=5,window_s=0,floor=exact")
    )
    assert "dense" in made.handle.explain()
    made.run(0, STEPS)
    found = plans(made.handle)
    assert found[-1] != [0] * len(found[-1])
    words, metrics = made.handle.explain(), made.handle.metrics()
    assert ", exact: " in words
    assert metrics["adaptive/switches"] >= 1
    assert metrics["adaptive/phi"] == 1
    assert metrics["ratio"] > 1.5
    assert metrics["mode/dense"] > 0  # the first window, and steps to compare with
    assert_lossless(made.result(), plain)
    made.handle.close()


@pytest.mark.parametrize("world", [2, 4])
def test_sparse_gradients_on_a_slow_link_go_over_to_exact(world: int) -> None:
    run_ranks(world, train_sparse)


def dense_model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))


def dense_loss(model: nn.Module, rank: int, step: int) -> Tensor:
    x = torch.randn(16, 64, generator=generator(rank, step))
    loss: Tensor = ((model(x) - 0.5) ** 2).mean()
    return loss


def train_dense(rank: int, world: int) -> None:
    plain = fit(dense_model, dense_loss, None, steps=STEPS)
    made = trainer(dense_model, dense_loss, "", attach=asked(FAST))
    made.run(0, STEPS)
    assert {choice for plan in plans(made.handle) for choice in plan} == {0}
    assert_lossless(made.result(), plain)
    # Backward goes on without us.
    made.handle.detach()
    made.run(STEPS, 2)
    made.result()


@pytest.mark.parametrize("world", [2, 4])
def test_a_small_dense_model_stays_dense(world: int) -> None:
    run_ranks(world, train_dense)


def train_policy(rank: int, world: int, policy: str, selector: str = "topk") -> list[list[int]]:
    plain = fit(Recommender, recommender_loss, None, steps=STEPS)
    options = f"policy={policy},window=10,least=10,most=40,epsilon=0.5"
    if selector != "topk":  # which needs not be said
        options += f",selector={selector}"
    made = trainer(Recommender, recommender_loss, "", attach=asked(options=options))
    made.run(0, STEPS)
    assert f", {selector}:density=" in made.handle.explain()
    # What is left out comes later, so it learns nearly as well.
    assert made.result().losses[-1] < 0.5 * (plain.losses[0] + plain.losses[-1])
    found = plans(made.handle)
    made.handle.close()
    return found


@pytest.mark.parametrize("selector", SELECTORS)
def test_gravac_climbs_its_ladder_of_factors(selector: str) -> None:
    found = run_ranks(2, train_policy, "gravac", selector)[0]
    rungs = [plan[0] for plan in found]
    assert rungs[0] == 1, rungs  # after one dense step
    assert max(rungs) > 1, rungs
    assert len(rungs) >= STEPS // 5


def test_accordion_has_two_factors() -> None:
    found = run_ranks(2, train_policy, "accordion")[0]
    assert {choice for plan in found for choice in plan} <= {1, 2}
    assert found[0] == [1] * len(found[0])


def train_measured(rank: int, world: int, folder: Path) -> list[list[int]]:
    options = "window=8,window_s=0,floor=fast"
    model = functools.partial(Recommender, depth=3)
    made = trainer(model, recommender_loss, "", attach={"codec": f"adaptive:{options}"})
    made.run(0, 60)
    made.handle.save_decisions(str(folder / f"{rank}.json"))
    metrics = made.handle.metrics()
    assert metrics["adaptive/windows"] >= 3
    assert metrics["adaptive/realised_s"] > 0
    made.result()
    found = plans(made.handle)
    made.handle.close()
    return found


def test_with_measured_times_all_ranks_still_decide_alike(tmp_path: Path) -> None:
    first, *others = run_ranks(2, train_measured, tmp_path)
    assert all(other == first for other in others)
    assert (tmp_path / "0.json").read_text() == (tmp_path / "1.json").read_text()


def change_a_rate(rank: int, world: int, who: tuple[int, ...]) -> list[dict[str, Any]]:
    """Windows have 100 steps, but for the first ones; in step 60 some learning rates fall."""
    model = DistributedDataParallel(OneMatrix())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = attach(model, optimizer=optimizer, **asked(options="window=100,window_s=0"))
    for step in range(130):
        if step == 60 and rank in who:
            optimizer.param_groups[0]["lr"] = 0.01
        send(model, rank, step)
    found = made.decisions()
    made.close()
    return found


@pytest.mark.parametrize("who", [(), (1,), (0, 1)])
def test_a_learning_rate_that_changes_on_any_rank_ends_the_window(who: tuple[int, ...]) -> None:
    found, other = run_ranks(2, change_a_rate, who)
    assert found == other
    ended = [one for one in found if one["step"] > 60]
    if not who:
        assert all(one["step"] > 120 for one in ended)
        return
    # It is asked for every 10 steps, and then the next step looks.
    assert 62 <= ended[0]["step"] <= 72
    # By what counts of all ranks' rates, which is the highest, it has changed if all have.
    assert ("learning-rate" in ended[0]["why"]) == (who == (0, 1))
    if who == (1,):
        assert len([one for one in ended if one["step"] < 120]) == 1, "but ends no other"


def bucket_signal(signals: list[float], name: str) -> float:
    """Of rank 0's first bucket."""
    return signals[len(STEP_SIGNALS) + BUCKET_SIGNALS.index(name)]


def test_what_every_rank_works_out_for_itself_has_no_order_of_additions() -> None:
    """A unit test of `_look`."""
    sums = torch.randn(5000, generator=generator(0))
    orders = [torch.randperm(5000, generator=generator(1, i)) for i in range(20)]
    look = Look(sums, 1.0, False, {}, {}, 0.0)
    (found,) = {look.mean_energy(sums[order], 1) for order in orders}
    assert found == pytest.approx(math.fsum(sums.double().square().tolist()))
    assert look.mean_energy(2e18 * sums, 2) == pytest.approx(1e36 * found)
    assert look.mean_energy(torch.zeros(3), 2) == look.mean_energy(torch.zeros(0), 2) == 0
    assert look.mean_energy(torch.tensor([1.0, math.inf]), 2) == math.inf
    assert math.isnan(look.mean_energy(torch.tensor([1.0, math.nan]), 2))


# ---- what it keeps

SHAPE = (96, 64)
FACTORS, TOP, FEW = "lowrank:rank=4", "topk:density=0.1", "topk:density=0.025"
LEVELS = "quant:carrier=indices,feedback=float"
INDEXED = "quant:index=auto,carrier=indices,feedback=float"
CAST = "cast:bf16,feedback=float"


def tour(*specs: str) -> tuple[str, ...]:
    """Every change that there is, from each to each other one."""
    found: list[str] = []
    for number, one in enumerate(specs):
        found += [one, *(spec for other in specs[number + 1 :] for spec in (other, one))]
    return tuple(found)


SCRIPT = tour("dense", "exact", FACTORS, TOP, LEVELS, INDEXED)
# Those that copy elements, and a cast of few bits: then whole numbers stay whole numbers.
COPYING = tour("dense", TOP, "exact", FEW, CAST)


def whole_numbers(rank: int, step: int) -> Tensor:
    numbers: Tensor = torch.randint(-8, 9, SHAPE, generator=generator(rank, step)).float()
    return numbers


def follow(handle: Any, script: tuple[str, ...]) -> list[list[float]]:
    """Makes the controller say this, whatever it sees; which is returned, window by window."""
    adaptive = handle._adaptive
    specs = [one.spec for one in adaptive._candidates]
    inner = adaptive._make_controller
    heard: list[list[float]] = []

    def scripted(shapes: Any) -> Any:
        controller = inner(shapes)
        decide, left = controller.decide, list(script)

        def said(signals: list[float]) -> Any:
            heard.append(list(signals))
            found = decide(signals)
            choice = specs.index(left.pop(0) if len(left) > 1 else left[0])
            return found._replace(plan=(choice,) * len(found.plan), reference_steps=1, steps=5)

        controller.decide = said
        return controller

    adaptive._make_controller = scripted
    return heard


def send(model: Any, rank: int, step: int, factor: float = 1.0) -> Tensor:
    """A step whose gradient is known; what came back."""
    weight = next(model.parameters())
    weight.grad = None
    (model(torch.ones(1)) * whole_numbers(rank, step) * factor).sum().backward()
    assert weight.grad is not None
    grad: Tensor = weight.grad.clone()
    return grad


class OneMatrix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(SHAPE))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x


def conserve(rank: int, world: int, script: tuple[str, ...], factor: float) -> float:
    """The largest difference, at any step, of what was sent and kept to all gradients; beyond what
    a sum of 16-bit floats may round, which no rank knows."""
    model = DistributedDataParallel(OneMatrix())
    handle = attach(model, **asked())
    follow(handle, script)
    sent, given, rounded = (torch.zeros(SHAPE, dtype=torch.float64) for _ in range(3))
    worst, had = -math.inf, set()
    for step in range(5 * len(script) + 7):
        sums = send(model, rank, step, factor).double() * world
        spec = handle._buckets.known[0].spec
        sent += sums
        rounded += sums.abs() * 2**-8 if factor != 1.0 and spec == CAST else 0.0
        given += factor * sum(whole_numbers(r, step).double() for r in range(world))
        kept = handle._buckets.kept(0)
        everyone: list[Any] = [None] * world
        dist.all_gather_object(everyone, torch.zeros(SHAPE) if kept is None else kept.view(SHAPE))
        all_kept = sum(one.double() for one in everyone)
        if all_kept.abs().max() > 0:
            had.add(spec)
        worst = max(worst, float(((sent + all_kept - given).abs() - rounded).max()))
    lossless = {"dense", "exact"}
    assert had - lossless == {*script} - lossless - ({CAST} if factor == 1.0 else set())
    handle.close()
    return worst


def test_what_is_sent_and_what_is_kept_is_all_there_was_across_every_switch() -> None:
    # Sums of some 180 steps of up to 8: what a float rounds there, and no gradient.
    assert max(run_ranks(2, conserve, SCRIPT, 1.0)) < 2e-3


def test_to_the_last_bit_where_codecs_copy_whole_numbers() -> None:
    assert max(run_ranks(2, conserve, COPYING, 1.0)) == 0


def test_a_cast_loses_what_its_sums_round_and_nothing_else() -> None:
    """Thirds, which no 16-bit float is."""
    assert max(run_ranks(2, conserve, tour("dense", CAST, LEVELS), 1 / 3)) < 2e-3


def restart(rank: int, world: int, folder: Path) -> None:
    """A state is saved with something kept, and loaded where everything begins dense."""
    model = DistributedDataParallel(OneMatrix())
    handle = attach(model, **asked())
    follow(handle, ("lowrank:rank=4",))
    for step in range(14):
        send(model, rank, step)
    kept = handle._buckets.kept(0)
    assert kept is not None
    state = handle.state_dict()
    handle.close()
    other = DistributedDataParallel(OneMatrix())
    second = attach(other, **asked())
    second.load_state_dict(state)
    got = send(other, rank, 14).double() * world
    everyone: list[Any] = [None] * world
    dist.all_gather_object(everyone, kept.view(SHAPE).double())
    wanted = sum(whole_numbers(r, 14).double() for r in range(world)) + sum(everyone)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-4)
    second.close()


def test_a_restart_sends_what_was_kept(tmp_path: Path) -> None:
    run_ranks(2, restart, tmp_path)


# Step 0 shows the bucket, the first window has 5 steps, and so have all others: one begins at
WINDOWS = (1, 6, 11, 16)


def overflow(rank: int, world: int) -> None:
    """Gradients overflow once, as a GradScaler's do: for the rest of the window all goes dense."""
    model = DistributedDataParallel(OneMatrix())
    handle = attach(model, codec="adaptive:window=5,window_s=0", link=SLOW)
    heard = follow(handle, (FACTORS,))
    for step in range(WINDOWS[3] + 1):
        send(model, rank, step, factor=float("inf") if step == WINDOWS[1] else 1.0)
    _, broken, whole = heard
    assert bucket_signal(broken, "nonfinite") == 1
    assert bucket_signal(whole, "nonfinite") == 0
    for name in ("encode_s", "network_s", "decode_s", "bytes", "error"):
        assert math.isnan(bucket_signal(broken, name)), name
        assert not math.isnan(bucket_signal(whole, name)), name
    handle.close()


def test_dense_steps_after_an_overflow_are_not_taken_for_the_plans() -> None:
    run_ranks(2, overflow)


def end_after_a_window(rank: int, world: int) -> None:
    """A rank ends when its last step is over. What ranks tell each other of a window is under way
    then: the other one begins that only when it is told that the first is about to end."""
    store = dist.distributed_c10d._get_default_store()
    model = DistributedDataParallel(OneMatrix())
    handle = attach(model, **asked())
    adaptive: Any = handle._adaptive
    for step in range(WINDOWS[1] - 1):
        send(model, rank, step)
    begin = adaptive._send_signals

    def late(step: int) -> Any:
        store.wait(["ends"])
        return begin(step)

    if rank == 1:
        adaptive._send_signals = late
    send(model, rank, WINDOWS[1] - 1)
    assert adaptive._exchange is not None
    if rank == 0:
        store.set("ends", "")
    addend.torch.close_all()
    assert handle.failure is None


def test_a_script_may_end_when_a_window_does() -> None:
    run_ranks(2, end_after_a_window)


def fail_a_switch(rank: int, world: int, after: str, views: bool, stage: str) -> None:
    """The first step of another codec fails: what the one before kept is still there, and apart
    from the gradient."""
    model = DistributedDataParallel(OneMatrix(), gradient_as_bucket_view=views)
    handle = attach(model, **asked())
    follow(handle, (TOP, after))
    for step in range(WINDOWS[2]):
        send(model, rank, step)
    before = handle.state_dict()["parameters"]
    assert before["weight"]["residual"].any()
    if rank == 0 and stage == "memory":
        break_copies(RuntimeError("broken by the test"))
    elif rank == 0:
        break_jobs(stage, 1, ValueError("broken by the test"))
    assert "broken by the test" in fail_at(lambda: send(model, rank, WINDOWS[2]))[0]
    # The other rank may hear of it while it waits for what decides the switch.
    assert handle._buckets.known[0].spec in ((after,) if rank == 0 else (TOP, after))
    grad = next(model.parameters()).grad
    assert torch.equal(grad, whole_numbers(rank, WINDOWS[2]))
    state = handle.state_dict()["parameters"]
    assert state.keys() == before.keys()
    assert torch.equal(state["weight"]["residual"], before["weight"]["residual"])
    handle.close()


@pytest.mark.parametrize("stage", ["memory", "submit", "encode"])
@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("after", ["exact", FEW])
def test_what_is_kept_outlives_the_failure_of_a_switch(after: str, views: bool, stage: str) -> None:
    run_ranks(2, fail_a_switch, after, views, stage)


@pytest.mark.parametrize("disturbed", range(13))
def test_a_probe_that_was_disturbed_does_not_count(
    disturbed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks share cores: one of them may be away for longer than a codec takes."""
    calls = itertools.count()
    clock = itertools.accumulate(9.0 if call == disturbed else 1e-3 for call in calls)
    monkeypatch.setattr(_look, "time", types.SimpleNamespace(perf_counter=lambda: next(clock)))
    looker = _look.Looker(candidates_for("", 2), 0, lambda index: None, (), fed=False)
    seen = looker.look(0, torch.ones(1 << 18), [], [1])
    looker.close()
    # A quarter of it is tried.
    assert seen.probes[1].encode_s == pytest.approx(4e-3)
    assert seen.probes[1].decode_s == pytest.approx(4e-3)


@pytest.mark.parametrize("elements", [100, 1 << 18])
def test_what_was_seen_of_a_gradient_outlives_its_sum(elements: int) -> None:
    """Which is made in the same memory, before ranks exchange what they saw."""
    looker = _look.Looker(candidates_for("", 2), 0, lambda index: None, (), fed=False)
    gradient = torch.ones(elements)
    seen = looker.look(0, gradient, [], [])
    looker.close()
    gradient.fill_(7)
    assert seen.energy() == elements
    assert set(seen.sample.tolist()) == {1.0}


@pytest.mark.parametrize("fed", [False, True])
def test_gains_of_all_densities_are_known_without_a_probe(fed: bool) -> None:
    """10 ones in a hundred; one bucket owes 9 times as much, which is gravac's to count."""
    gradient = torch.tensor([1.0] * 10 + [0.0] * 90)
    candidates = candidates_for("policy=gravac,least=10,most=20" if fed else "", 2)
    owed = {0: None, 1: 9 * gradient.flip(0)}
    looker = _look.Looker(candidates, 0, owed.get, (), fed=fed)
    alone, owing = (looker.look(index, gradient, [], []) for index in owed)
    looker.close()
    by_factor = [
        {candidates[number].factor: gain for number, gain in look.gains.items()}
        for look in (alone, owing)
    ]
    if fed:
        assert (alone.whole_energy, owing.whole_energy) == (10.0, 820.0)
        assert by_factor[0] == {10: 1.0, 20: 0.5}
        assert by_factor[1] == pytest.approx({10: 810 / 820, 20: 405 / 820})
    else:
        assert alone.whole_energy == owing.whole_energy == 10.0
        assert by_factor[0] == by_factor[1] == {10: 1.0, 20: 0.5, 40: 0.2}
    assert alone.probes == {}


def test_gains_count_tables_as_kept() -> None:
    """10 twos and 90 zeros of a layer, which also owes 20, and 100 ones of a table."""
    layer, table = nn.Parameter(torch.zeros(100)), nn.Parameter(torch.zeros(100))
    bucket = torch.cat([torch.tensor([2.0] * 10 + [0.0] * 90), torch.ones(100)])
    owed = torch.zeros(200)
    owed[99] = 20.0
    candidates = candidates_for("policy=gravac,least=10,most=20", 2)
    looker = _look.Looker(candidates, 0, {0: owed}.get, {id(table)}, fed=True)
    look = looker.look(0, bucket, [layer, table], [])
    of_tables = looker.look(1, torch.ones(100), [table], [])
    looker.close()
    assert look.whole_energy == 540.0
    gains = {candidates[number].factor: gain for number, gain in look.gains.items()}
    # The table's 100, the layer's largest, and 9 or 4 of its twos.
    assert gains == pytest.approx({10: (100 + 400 + 36) / 540, 20: (100 + 400 + 16) / 540})
    assert set(of_tables.gains.values()) == {1.0}


# ---- what is refused


@dataclasses.dataclass
class _Refusal:
    arguments: dict[str, Any]
    word: str


def refuse(rank: int, world: int) -> None:
    model = DistributedDataParallel(OneMatrix())
    for refusal in (
        _Refusal({"codec": "adaptive:floor=best"}, "safe"),
        _Refusal({"codec": "adaptive:speed=9"}, "speed"),
        _Refusal({"codec": "adaptive", "overrides": {"*": "quant:feedback=float"}}, "adaptive"),
        _Refusal({"codec": "adaptive:policy=best"}, "gravac"),
        _Refusal({"codec": "adaptive:policy=gravac,selector=dgc"}, "velocities"),
        _Refusal({"codec": "adaptive:policy=gravac,selector=random"}, "tells nothing"),
        _Refusal({"codec": "adaptive:policy=gravac,selector=leader"}, "another rank"),
        _Refusal({"codec": "adaptive:policy=gravac,selector=best"}, "topk, threshold, redsync"),
        _Refusal({"codec": "adaptive:selector=topk"}, "policy=gravac"),
    ):
        with pytest.raises(addend.Error, match=refusal.word):
            attach(model, **refusal.arguments)
    fixed = attach(model, codec="exact")
    send(model, rank, 0)
    assert "exact" in fixed.explain()
    with pytest.raises(addend.InvalidArgument, match="adaptive"):
        fixed.save_decisions("nowhere")
    fixed.close()


def test_what_it_cannot_do_it_says() -> None:
    run_ranks(2, refuse)
