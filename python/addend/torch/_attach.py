# SPDX-License-Identifier: Apache-2.0
"""attach: a model gets its hook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

import addend
from addend import Aggregator, InvalidArgument, Unsupported
from addend.reducer import Link
from addend.torch import _group, _log
from addend.torch._checks import (
    check_aggregator,
    check_model,
    check_options,
    check_order_is_nothing,
    check_seconds,
    check_threads,
    pinned,
)
from addend.torch._engine import Engine
from addend.torch._hook import Handle
from addend.torch._launches import only_the_hook
from addend.torch._specs import (
    Specs,
    keeps_residual,
    names_of,
    tables_of,
)
from addend.torch._start import start


def attach(
    model: Any,
    codec: str = "exact",
    *,
    overrides: Mapping[str, str] | None = None,
    scaler: Any | None = None,
    optimizer: Any | None = None,
    deadline: float | None = None,
    seed: int = 0,
    link: Link | None = None,
    in_place: bool | None = None,
    aggregator: str | Aggregator | None = None,
    deterministic: bool | None = None,
    threads: int | None = None,
) -> Handle:
    """Sends the gradients of a DistributedDataParallel model compressed. Collective.

    codec: "exact" (lossless, chosen per bucket, dense where that is cheaper), "quant:bits=4", or
    any other spec; "adaptive" chooses among them for each bucket while training runs, and
    Handle.explain says why (docs/adaptive.md). overrides: specs by parameter name pattern
    ({"*.bias": "dense"}), the first match counts. scaler: the GradScaler in use, if any, so that
    residuals follow its scale. optimizer: for "adaptive", whose learning rate it is that changes.
    A lossy codec without an index leaves embedding tables to "exact" unless overrides name them
    (docs/pytorch.md).
    deadline: seconds that a bucket may wait for another rank before the step fails on all of them;
    the timeout of the model's process group when not given. seed: of quantisation; the same on all
    ranks. link: the network's latency and speed, measured when not given. in_place: let plain sums
    run in the bucket itself; by default only where a failure then still leaves the gradients alone
    (gradient_as_bucket_view=False). aggregator:
    "host:port" of an aggregation server (docs/service.md) that does the sums, its key in the file
    that ADDEND_KEY_FILE names, or an addend.Aggregator with everything said. deterministic: plans
    follow from the gradients alone, so that runs end with the same bits; by default if
    torch.use_deterministic_algorithms asks for that. threads: that encode and decode one bucket; by
    default this rank's share of the host's cores, at most 4. No result depends on it.
    """
    model = check_model(model)
    if overrides is None:
        overrides = {}
    if aggregator is not None:
        aggregator = check_aggregator(aggregator)
    if deadline is None:
        deadline = _group.timeout_s(model.process_group)
    check_seconds("deadline", deadline)
    check_threads(threads)
    check_options(overrides, scaler, seed, link)
    group = model.process_group
    names, tables = names_of(model.module), tables_of(model.module)
    sparse = _sparse_parameters(model.module)
    world = dist.get_world_size(group)
    specs = Specs(codec, overrides, world, [names[i] for i in tables], sparse)
    if pinned(deterministic):
        link = link or Link()
        if aggregator is not None:
            for name in names.values():
                check_order_is_nothing(name, specs.of(name, "dense" if specs.adaptive else None))
    for name in sparse:
        if keeps_residual(specs.of(name)):
            raise InvalidArgument(f"{name}: feedback needs dense gradients, this one is sparse")
    device = next(model.module.parameters()).device
    if in_place is None:  # views are the gradients themselves, which must survive a failure
        in_place = not getattr(model, "gradient_as_bucket_view", False)
    said = f", {'in place' if in_place else 'not in place'}"  # which decides what goes in pieces
    engine = start(group, deadline, device, link, aggregator, threads, said)
    try:
        if engine.launches is not None and not only_the_hook(model):
            raise Unsupported(
                "planes go over the backend here (ADDEND_MESH=off, more than 64 ranks, or ranks"
                " that cannot connect), and this model's backward pass launches collectives of its"
                " own there (SyncBatchNorm, find_unused_parameters without static_graph, gradients"
                " that no codec takes): ranks could wait for each other for good"
            )
        if engine.repeats and sparse:
            raise Unsupported(f"{sparse[0]}: sparse gradients have no sums without late ranks")
        if engine.repeats and specs.adaptive:
            raise Unsupported("adaptive has no sums without late ranks")
        handle = Handle(
            model,
            specs,
            engine,
            seed=seed,
            in_place=in_place,
            scaler=scaler,
            optimizer=optimizer,
            fixed=pinned(deterministic),
        )
    except Exception:
        engine.close()
        raise
    engine.close_with(model, "the model went")
    _log_start(model, specs, engine)
    if engine.rank == 0:
        _warn(specs, list(names.values()))
    return handle


def _sparse_parameters(module: torch.nn.Module) -> list[str]:
    """Names of parameters whose gradients are sparse, as DDP finds them."""
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    tables = [m.weight for m in module.modules() if isinstance(m, kinds) and m.sparse]
    names = names_of(module)
    return [names[id(p)] for p in tables if p.requires_grad]


def _warn(specs: Specs, names: list[str]) -> None:
    """Of what the caller may not expect."""
    unmatched = specs.unmatched(names)
    if unmatched:
        _log.PLAN.warning("overrides that match no parameter: %s", ", ".join(unmatched))
    if specs.spared:
        _log.PLAN.warning(
            "%s is lossy, so embedding tables stay with exact: %s (overrides= says otherwise)",
            specs.default,
            ", ".join(sorted(specs.spared)),
        )


def _log_start(model: Any, specs: Specs, engine: Engine) -> None:
    parameters = [p for p in model.module.parameters() if p.requires_grad]
    _log.INIT.info(
        "version %s, rank %d of %d, %d parameters, %d elements of %s, codec %s, backend %s,"
        " link %.0f us %.2f Gbit/s, %s, %s",
        addend.__version__,
        engine.rank,
        engine.world,
        len(parameters),
        sum(p.numel() for p in parameters),
        ", ".join(sorted({str(p.dtype) for p in parameters})),
        specs,
        dist.get_backend(model.process_group),
        engine.link.latency_us,
        engine.link.gbit_per_s,
        engine.way,
        _where(engine, parameters),
    )


def _where(engine: Engine, parameters: list[torch.nn.Parameter]) -> str:
    if all(p.device.type == "cpu" for p in parameters):
        return "tensors on the CPU"
    if not engine.on_device:
        return "tensors staged through pinned memory"
    return "planes on the device" if engine.planes_stay else "planes staged through pinned memory"
