# SPDX-License-Identifier: Apache-2.0
"""The PyTorch front against torch's own collectives, in one run, answers checked first.

    python bench/torch_bars.py                  all cases
    python bench/torch_bars.py embedding ddp    some of them

embedding  2 and 4 ranks, loopback: a 100k x 64 embedding gradient with 512 rows touched by each
           rank, as a dense tensor with zeros and as a sparse COO tensor, against torch's all_reduce
           of each
plain      2 ranks, loopback: 4 MB without a zero by exact, which looks for zeros where a sum has
           no name, and by dense, against torch's all_reduce
overlaps   2, 4 and 8 ranks, links of 100 Mbit/s: a 262k x 16 gradient with 2621 rows touched by
           each rank, of which none to all are the same ones everywhere: exact, as it chooses,
           against its gather, its sum of the union, and torch's all_reduce of COO tensors, in time
           and in bytes on the link; beside them the processor's time, and our sum of COO tensors,
           which has no zeros to look for
shaped     4 and 2 ranks in network namespaces with 1 Gbit/s links: 64 MB with 5 % union density
           by exact, 64 MB of dense data by quant:bits=4, against torch's all_reduce of the same
           tensor
quant      4 ranks, 1 Gbit/s links: training steps of a 10 M parameter MLP by quant:bits=4,
           feedback=float, against plain DDP
halves     4 ranks, links of 1, 2 and 5 Gbit/s: steps of the same MLP by cast and by quant, against
           plain DDP and torch's fp16_compress_hook
lowrank    4 ranks, 1 Gbit/s links: training steps of a 21 M parameter MLP by lowrank:rank=1, in
           DDP's own buckets, against torch's PowerSGD hook of that rank, in one bucket: time, bytes
           on the link, and the loss at the end
recommender  4 ranks, 1 Gbit/s links: steps of the demo's recommender by exact, and what they would
           take without us: with a hook that sends nothing, and without DDP; the processor's time of
           a rank beside each
ddp        4 and 2 ranks, loopback: training steps of three models with dense gradients, attach()
           against plain DDP, and the time inside the hook, a step's mean over its buckets. Then, in
           turn with plain DDP again: DDP's own all-reduce as a hook written in Python
links      the same of the two smaller models, on links of 1 and 10 Gbit/s

A time is the median over calls, with calls of both sides alternating. A call takes from when the
last rank begins until the last is done: all ranks are on one host and read one monotonic clock, and
what a barrier lets ranks begin apart is nobody's work.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from demo import hooks  # noqa: E402
from demo.models import digits as digits_model  # noqa: E402
from demo.models import ncf as ncf_model  # noqa: E402
from demo.network import CABLE, open_network, run_ranks  # noqa: E402

import addend.torch  # noqa: E402

Times = dict[str, list[float]]


def alternate(sides: dict[str, Callable[[], Callable[[], Any]]], calls: int, warm: int) -> Times:
    """Times calls of all sides in turn. A side makes its input, untimed, and returns the call."""
    times: Times = {name: [] for name in sides}
    for i in range(warm + calls):
        for name, prepare in sides.items():
            call = prepare()
            dist.barrier()
            begin = time.perf_counter()
            call()
            end = time.perf_counter()
            latest = torch.tensor([begin, end], dtype=torch.float64)
            dist.all_reduce(latest, op=dist.ReduceOp.MAX)
            if i >= warm:
                times[name].append(float(latest[1] - latest[0]))
    return times


def in_place(tensor: torch.Tensor, reduce: Callable[[torch.Tensor], Any]) -> Callable[[], Any]:
    return lambda: reduce(tensor)


def embedding(rank: int, world: int) -> dict[str, Any]:
    torch.manual_seed(rank)
    rows, values = torch.randperm(100_000)[:512], torch.randn(512, 64)
    dense = torch.zeros(100_000, 64)
    dense[rows] = values
    sparse = torch.sparse_coo_tensor(rows.unsqueeze(0), values, dense.shape, check_invariants=False)
    expected, got, got_sparse = dense.clone(), dense.clone(), sparse.clone()
    dist.all_reduce(expected)
    addend.torch.all_reduce(got)
    addend.torch.all_reduce(got_sparse)
    assert torch.equal(got, expected), "dense with zeros: wrong sum"
    assert torch.equal(got_sparse.to_dense(), expected), "sparse: wrong sum"
    ours, theirs = addend.torch.all_reduce, dist.all_reduce
    return {
        "dense with zeros": alternate(
            {
                "torch": lambda: in_place(dense.clone(), theirs),
                "addend": lambda: in_place(dense.clone(), ours),
            },
            calls=40,
            warm=5,
        ),
        "sparse COO": alternate(
            {
                "torch": lambda: in_place(sparse.clone(), theirs),
                "addend": lambda: in_place(sparse.clone(), ours),
            },
            calls=100,
            warm=10,
        ),
    }


def plain(rank: int, world: int) -> dict[str, Any]:
    torch.manual_seed(rank)
    full = torch.randn(1 << 20)
    expected = full.clone()
    dist.all_reduce(expected)
    result: dict[str, Any] = {}
    for codec in ("exact", "dense"):
        ours = functools.partial(addend.torch.all_reduce, codec=codec)
        assert torch.equal(ours(full.clone()), expected), f"{codec}: wrong sum"
        sides: dict[str, Callable[[], Callable[[], Any]]] = {
            "torch": lambda: in_place(full.clone(), dist.all_reduce),
            "addend": functools.partial(lambda reduce: in_place(full.clone(), reduce), ours),
        }
        result[f"4 MB, {codec}"] = alternate(sides, calls=200, warm=20)
    return result


ROWS, WIDTH, TOUCHED = 1 << 18, 16, 2621
SHARED = (0.0, 0.25, 0.5, 0.75, 1.0)  # of what a rank touches, the part that all touch


def overlaps(rank: int, world: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for shared in SHARED:
        common = round(shared * TOUCHED)
        drawn = torch.randperm(ROWS, generator=torch.Generator().manual_seed(7))
        first = common + rank * (TOUCHED - common)
        rows = torch.cat([drawn[:common], drawn[first : first + TOUCHED - common]]).sort().values
        dense = torch.zeros(ROWS, WIDTH)
        dense[rows] = torch.randn(TOUCHED, WIDTH, generator=torch.Generator().manual_seed(rank))
        name = f"{shared:.0%} of the rows shared"
        times, sent, busy = overlap(dense, rows, name)
        result |= {f"time, {name}": times, f"bytes on the link, {name}": sent}
        result[f"a rank's processor, {name}"] = busy
    return result


def overlap(dense: torch.Tensor, rows: torch.Tensor, name: str) -> tuple[Times, Times, Times]:
    sparse = torch.sparse_coo_tensor(
        rows.unsqueeze(0), dense[rows], dense.shape, check_invariants=False, is_coalesced=True
    )

    def ours(codec: str) -> Callable[[], Callable[[], Any]]:
        reduce = functools.partial(addend.torch.all_reduce, codec=codec, name=f"{name}, {codec}")
        return lambda: in_place(dense.clone(), reduce)

    sides: dict[str, Callable[[], Callable[[], Any]]] = {
        "exact": ours("exact"),
        "gather": ours("exact:mode=gather"),
        "union": ours("exact:mode=two-level"),
        "torch's COO": lambda: in_place(sparse.clone(), dist.all_reduce),
        "(exact of COO)": lambda: in_place(sparse.clone(), addend.torch.all_reduce),
    }
    expected = dense.clone()
    dist.all_reduce(expected)
    for codec in ("exact", "exact:mode=gather", "exact:mode=two-level"):
        got = addend.torch.all_reduce(dense.clone(), codec=codec, name=f"{name}, {codec}")
        assert torch.allclose(got, expected, rtol=1e-6, atol=1e-6), f"{codec}: wrong sum"
    times = alternate(sides, calls=9, warm=2)
    sent: Times = {side: [] for side in sides}
    busy: Times = {side: [] for side in sides}
    for side, prepare in [*sides.items()] * 3:
        call = prepare()
        dist.barrier()
        before, begin = sent_bytes(), time.process_time()
        call()
        busy[side].append(time.process_time() - begin)
        dist.barrier()  # what others still send is theirs
        sent[side].append(sent_bytes() - before)
    return times, sent, busy


def shaped(rank: int, world: int) -> dict[str, Any]:
    count = 16 << 20
    generator = torch.Generator().manual_seed(7)  # the same positions on all ranks: union 5 %
    live = torch.rand(count, generator=generator) < 0.05
    torch.manual_seed(rank)
    full = torch.randn(count)
    some = full * live
    expected, got = some.clone(), some.clone()
    dist.all_reduce(expected)
    addend.torch.all_reduce(got)
    assert torch.allclose(got, expected, rtol=1e-6, atol=1e-6), "exact: wrong sum"
    expected, got = full.clone(), full.clone()
    dist.all_reduce(expected)
    quant = "quant:bits=4"
    addend.torch.all_reduce(got, codec=quant)
    error = float((got - expected).norm() ** 2 / expected.norm() ** 2)
    assert error < 0.02, f"quant: NMSE {error}"
    ours, theirs = addend.torch.all_reduce, dist.all_reduce
    return {
        "64 MB, 5 % union": alternate(
            {
                "torch": lambda: in_place(some.clone(), theirs),
                "addend": lambda: in_place(some.clone(), ours),
            },
            calls=5,
            warm=2,
        ),
        "64 MB, quant:bits=4": alternate(
            {
                "torch": lambda: in_place(full.clone(), theirs),
                "addend": lambda: in_place(full.clone(), lambda t: ours(t, codec=quant)),
            },
            calls=5,
            warm=2,
        ),
    }


def wide() -> tuple[torch.nn.Module, torch.Tensor]:
    layers = [f for _ in range(8) for f in (torch.nn.Linear(1024, 1024), torch.nn.GELU())]
    return torch.nn.Sequential(*layers), torch.randn(128, 1024)


def mlp() -> tuple[torch.nn.Module, torch.Tensor]:
    layers = [f for _ in range(10) for f in (torch.nn.Linear(512, 512), torch.nn.GELU())]
    return torch.nn.Sequential(*layers), torch.randn(64, 512)


def digits() -> tuple[torch.nn.Module, torch.Tensor]:
    return digits_model.Network().layers, torch.randn(digits_model.BATCH, 1, 8, 8)


class Regression:
    """A deep MLP that learns what another function of its input is; how it is summed is `way`."""

    def __init__(self, rank: int, way: str) -> None:
        torch.manual_seed(0)
        width, depth = 2048, 5
        layers = [f for _ in range(depth) for f in (torch.nn.Linear(width, width), torch.nn.GELU())]
        self.model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Sequential(*layers[:-1]), **hooks.ddp_options(way)
        )
        self.wanted = torch.randn(width, width) / width**0.5
        if way in hooks.NAMES:
            hooks.register(self.model, way, rank=1)
        else:
            self.handle = addend.torch.attach(self.model, codec=way)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2, momentum=0.9)
        self.data = torch.Generator().manual_seed(rank + 1)
        self.losses: list[float] = []
        self.link_bytes: list[float] = []

    def step(self) -> None:
        before = sent_bytes()
        inputs = torch.randn(32, self.wanted.shape[0], generator=self.data)
        self.optimizer.zero_grad()
        loss = (self.model(inputs) - torch.tanh(inputs @ self.wanted)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        dist.barrier()  # what others still send is theirs
        self.link_bytes.append(sent_bytes() - before)


def sent_bytes() -> float:
    return float(Path("/sys/class/net", CABLE, "statistics/tx_bytes").read_text())


def lowrank(rank: int, world: int) -> dict[str, Any]:
    sides = {
        "torch": Regression(rank, hooks.POWERSGD),
        "addend": Regression(rank, "lowrank:rank=1"),
    }
    warm, calls = 5, 25
    times = alternate(
        {name: functools.partial(lambda side: side.step, side) for name, side in sides.items()},
        calls=calls,
        warm=warm,
    )
    last = {name: torch.tensor(side.losses[-5:]).mean() for name, side in sides.items()}
    sides["addend"].handle.close()
    for loss in last.values():
        dist.all_reduce(loss)
    return {
        "step, rank 1": times,
        "bytes on the link, rank 1": {n: s.link_bytes[warm:] for n, s in sides.items()},
        "loss, rank 1": {name: [float(loss) / world] for name, loss in last.items()},
    }


def million_mlp(way: str) -> tuple[torch.nn.Module, addend.torch.Handle | None]:
    """Ten million parameters, summed by plain DDP, by a hook of torch's, or by us."""
    torch.manual_seed(0)
    layers = [f for _ in range(10) for f in (torch.nn.Linear(1000, 1000), torch.nn.GELU())]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    if way in hooks.NAMES:
        hooks.register(model, way)
    elif way != PLAIN:
        return model, addend.torch.attach(model, codec=way)
    return model, None


def backward(model: torch.nn.Module, data: torch.Tensor) -> Callable[[], Callable[[], None]]:
    def prepare() -> Callable[[], None]:
        for parameter in model.parameters():
            parameter.grad = None
        # Of a plain mean, gradients of the first layers are less than f16 holds.
        return lambda: model(data).square().sum().mul(1000).backward()

    return prepare


PLAIN = "plain DDP"
QUANT = "quant:bits=4,feedback=float"


def quant(rank: int, world: int) -> dict[str, Any]:
    data = torch.randn(32, 1000, generator=torch.Generator().manual_seed(rank))
    plain, _ = million_mlp(PLAIN)
    attached, handle = million_mlp(QUANT)
    sides = {"torch": backward(plain, data), "addend": backward(attached, data)}
    times = alternate(sides, calls=12, warm=3)
    assert handle is not None
    error = handle.metrics()["nmse"]
    assert error < 0.05, f"quant: NMSE {error}"
    handle.close()
    return {"step, 10 M MLP, quant:bits=4": times}


def halves(rank: int, world: int) -> dict[str, Any]:
    """Each way has turns with plain DDP alone, for the reason that ddp_model has."""
    data = torch.randn(32, 1000, generator=torch.Generator().manual_seed(rank))
    plain, _ = million_mlp(PLAIN)
    result: dict[str, Any] = {}
    for way in ("torch:fp16", "cast:f16", "cast:bf16", QUANT):
        model, handle = million_mlp(way)
        sides = {"torch": backward(plain, data), "halves": backward(model, data)}
        result[f"step, 10 M MLP, {way}"] = alternate(sides, calls=12, warm=3)
        if way != QUANT:
            for a, b in zip(plain.parameters(), model.parameters()):
                assert a.grad is not None
                assert b.grad is not None
                assert (a.grad - b.grad).norm() <= 0.01 * a.grad.norm(), f"{way}: wrong sum"
        if handle is not None:
            handle.close()
        del model
    return result


WARM = 6  # steps of a model before one is timed
RECOMMENDER_CALLS = 40


def recommender(rank: int, world: int) -> dict[str, Any]:
    def model() -> torch.nn.Module:
        torch.manual_seed(0)
        return ncf_model.build()

    def nothing(
        state: Any,
        bucket: Any,
    ) -> torch.futures.Future[torch.Tensor]:
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    nothing.__annotations__.clear()  # torch reads them, and ours are strings

    def ddp() -> torch.nn.parallel.DistributedDataParallel:
        return torch.nn.parallel.DistributedDataParallel(model())

    sides: dict[str, torch.nn.Module] = {
        name: ddp() for name in ("addend", "a hook that sends nothing", QUANT, PLAIN)
    }
    handles = [
        addend.torch.attach(sides[side], codec=codec)
        for side, codec in (("addend", "exact"), (QUANT, QUANT))
    ]
    sides["a hook that sends nothing"].register_comm_hook(None, nothing)  # type: ignore[operator]
    sides["no DDP"] = model()
    optimizers = {name: ncf_model.optimizer(side) for name, side in sides.items()}
    busy: Times = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as folder:
        ncf_model.prepare(Path(folder), 1)
        drawn = ncf_model.batches(Path(folder), rank, world, 1)
        batches = iter(list(itertools.islice(drawn, len(sides) * (WARM + RECOMMENDER_CALLS))))

    def prepare(name: str) -> Callable[[], None]:
        batch = next(batches)

        def step() -> None:
            begin = time.process_time()
            sides[name](*batch).backward()
            optimizers[name].step()
            optimizers[name].zero_grad()
            busy[name].append(time.process_time() - begin)

        return step

    times: Times = {}
    # Plain DDP's steps are so long that connections that wait for them begin slowly: it has turns
    # with quant alone, which takes nearly as long.
    for names in (("addend", "a hook that sends nothing", "no DDP"), (QUANT, PLAIN)):
        times |= alternate(
            {name: functools.partial(prepare, name) for name in names}, RECOMMENDER_CALLS, WARM
        )
    for handle in handles:
        handle.close()
    busy = {name: spent[WARM:] for name, spent in busy.items()}
    return {"step of the recommender": times, "of it, a rank's processor": busy}


MODELS = {"33.6 MB MLP": wide, "10.5 MB MLP": mlp, "1.1 MB CNN of the demo": digits}


def ddp(rank: int, world: int) -> dict[str, Any]:
    return ddp_models(rank, list(MODELS), calls=60)


def links(rank: int, world: int) -> dict[str, Any]:
    return ddp_models(rank, list(MODELS)[1:], calls=30)


def ddp_models(rank: int, names: list[str], calls: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name in names:
        times, hooks = ddp_model(rank, MODELS[name], calls)
        result[f"training step, {name}"] = times["attach"]
        result[f"hook, {name}"] = {"addend": hooks}
        result[f"torch's hook, {name}"] = times["torch's hook"]
    return result


def ddp_model(
    rank: int, make: Callable[[], tuple[torch.nn.Module, torch.Tensor]], calls: int
) -> tuple[dict[str, Times], list[float]]:
    """Plain DDP has turns with one other at a time: connections that rest for longer than a step of
    two would begin slowly, and those of DDP, which all but attach() use, would rest less."""

    def model() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.parallel.DistributedDataParallel(make()[0])

    def step(which: torch.nn.Module) -> None:
        for parameter in which.parameters():
            parameter.grad = None
        which(data).square().mean().backward()

    plain, attached, hooked = model(), model(), model()
    hooked.register_comm_hook(None, default_hooks.allreduce_hook)  # type: ignore[operator]
    handle = addend.torch.attach(attached)
    torch.manual_seed(rank)
    data = make()[1]
    totals = []

    def attached_step() -> Callable[[], None]:
        totals.append(handle.metrics())  # counting what was done is not part of a step
        return lambda: step(attached)

    others = {"attach": attached_step, "torch's hook": lambda: lambda: step(hooked)}
    times = {
        name: alternate({"torch": lambda: lambda: step(plain), "other": other}, calls, WARM)
        for name, other in others.items()
    }
    hooks = [
        (after["time/hook_s"] - before["time/hook_s"])
        / (after["hook_calls"] - before["hook_calls"])
        for before, after in zip(totals[WARM:], totals[WARM + 1 :])
    ]
    for a, b in zip(plain.parameters(), attached.parameters()):
        assert a.grad is not None
        assert b.grad is not None
        assert torch.allclose(a.grad, b.grad, rtol=1e-5, atol=1e-7), "gradients differ"
    handle.close()
    return times, hooks


# What runs, on how many ranks, and the speed of their links in Gbit/s (0: loopback).
Case = tuple[Callable[[int, int], dict[str, Any]], tuple[int, ...], tuple[float, ...]]
CASES: dict[str, Case] = {
    "embedding": (embedding, (2, 4), (0.0,)),
    "plain": (plain, (2,), (0.0,)),
    "overlaps": (overlaps, (2, 4, 8), (0.1,)),
    "shaped": (shaped, (4, 2), (1.0,)),
    "quant": (quant, (4,), (1.0,)),
    "halves": (halves, (4,), (1.0, 2.0, 5.0)),
    "lowrank": (lowrank, (4,), (1.0,)),
    "recommender": (recommender, (4,), (1.0,)),
    "ddp": (ddp, (4, 2), (0.0,)),
    "links": (links, (4, 2), (1.0, 10.0)),
}
# Ratios of torch's time to ours, at least.
BARS = {
    "dense with zeros": ("times faster than torch", 8.0),
    "sparse COO": ("times faster than torch", 2.0),
    "4 MB, exact": ("times faster than torch", 1.0),
    "4 MB, dense": ("times faster than torch", 1.0),
    "64 MB, 5 % union": ("times faster than torch", 7.0),
    "64 MB, quant:bits=4": ("times faster than torch", 4.0),
    "step, 10 M MLP, quant:bits=4": ("times faster than plain DDP", 2.1),
    "step, rank 1": ("times faster than torch's PowerSGD", 1.0),
    "bytes on the link, rank 1": ("times fewer bytes than torch's PowerSGD", 1.0),
    "loss, rank 1": ("of torch's loss over ours", 0.98),  # the same, but for the batches' noise
}
UNITS = {"bytes on the link, rank 1": (1e-3, "KB"), "loss, rank 1": (1.0, "")}  # or ms
MOST_OVER_BETTER = 1.05  # of exact's time or bytes, over the best that stands beside it
MOST_RECOMMENDER_SECONDS = 30e-3
MOST_OVERHEAD = 0.02
MOST_HOOK_SECONDS = 0.3e-3


def judge(name: str, times: Times) -> bool:
    middle = {side: statistics.median(values) for side, values in times.items()}
    if name.startswith("hook"):
        good = middle["addend"] <= MOST_HOOK_SECONDS
        text = f"{middle['addend'] * 1e3:.3f} ms inside the hook (bar {MOST_HOOK_SECONDS * 1e3} ms)"
    elif "no DDP" in times:
        bound = name.startswith("step")
        good = middle["addend"] <= MOST_RECOMMENDER_SECONDS or not bound
        text = ", ".join(f"{side} {value * 1e3:.1f} ms" for side, value in middle.items())
        text += f" (bar {MOST_RECOMMENDER_SECONDS * 1e3:g} ms)" if bound else " (no bar)"
    elif "halves" in times:
        good = True  # which is best where is what it shows
        text = f"plain DDP {middle['torch'] * 1e3:.1f} ms, {middle['halves'] * 1e3:.1f} ms with it:"
        text += f" {middle['torch'] / middle['halves']:.2f} times faster (no bar)"
    elif "exact" in times:
        best = min(value for side, value in middle.items() if "exact" not in side)
        bound = not name.startswith("a rank's processor")
        good = middle["exact"] <= MOST_OVER_BETTER * best or not bound
        factor, unit = (1e-3, "KB") if name.startswith("bytes") else (1e3, "ms")
        text = ", ".join(f"{side} {value * factor:.4g}" for side, value in middle.items())
        text += f" {unit}: {middle['exact'] / best:.3f} of the better"
        text += f" (bar {MOST_OVER_BETTER})" if bound else " (no bar)"
    elif "other" in times:
        # Pairs of neighbouring steps share the machine's mood.
        ratios = [b / a - 1 for a, b in zip(times["torch"], times["other"])]
        low, cost, high = statistics.quantiles(ratios, n=4)
        bound = name.startswith("training step")
        good = cost <= MOST_OVERHEAD or not bound
        text = f"{middle['torch'] * 1e3:.1f} ms plain, {middle['other'] * 1e3:.1f} ms with it:"
        text += f" {cost:+.1%}, quartiles {low:+.1%} and {high:+.1%}"
        text += " (bar 2 %)" if bound else " (no bar)"
    else:
        what, bar = BARS[name]
        ratio = middle["torch"] / middle["addend"]
        good = ratio >= bar
        factor, unit = UNITS.get(name, (1e3, "ms"))
        torchs, ours = (f"{middle[s] * factor:.4g} {unit}".strip() for s in ("torch", "addend"))
        text = f"torch {torchs}, addend {ours}: {ratio:.2f} {what} (bar {bar:g})"
    print(f"{'pass' if good else 'FAIL'}  {name}: {text}", flush=True)
    return good


def run_case(case: str, world: int, gbit: float) -> bool:
    with open_network(world, gbit) as network, tempfile.TemporaryDirectory() as folder:
        print(f"{case}: {world} ranks, {network.note}", flush=True)
        if gbit and network.gbit is None:
            print(f"skip  {case}: its bars are about shaped links")
            return True
        command = [sys.executable, __file__, "--world", str(world), "--folder", folder, case]
        said = run_ranks(network, command)
        if said is None:
            print(f"FAIL  {case}: a rank ended with an error")
            return False
        result: dict[str, Times] = json.loads(said.splitlines()[-1])
        passed = [judge(name, times) for name, times in result.items()]
        return all(passed)


def run_rank(case: str, rank: int, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world
    )
    result = CASES[case][0](rank, world)
    addend.torch.close_all()
    dist.destroy_process_group()
    print(json.dumps(result))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="case", help=", ".join(CASES))
    for hidden in ("--rank", "--world", "--folder"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    unknown = [case for case in arguments.cases if case not in CASES]
    if unknown:
        parser.error(f"no such case: {unknown[0]} (there are {', '.join(CASES)})")
    if arguments.rank is not None:
        rank, world = int(arguments.rank), int(arguments.world)
        run_rank(arguments.cases[0], rank, world, arguments.folder)
        return 0
    passed = [
        run_case(case, world, gbit)
        for case in arguments.cases or CASES
        for world, gbit in itertools.product(*CASES[case][1:])
    ]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
