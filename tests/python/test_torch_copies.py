# SPDX-License-Identifier: Apache-2.0
"""Models after attach: copies of them, and models that are detached."""

from __future__ import annotations

import copy
import functools
import io
import pickle
import threading
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from ranks import run_ranks  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.optim.swa_utils import AveragedModel  # noqa: E402
from training import (  # noqa: E402
    MANY_BUCKETS,
    Recommender,
    assert_replicas,
    fit,
    recommender_loss,
    trainer,
)

import addend.torch  # noqa: E402


def gradients(model: Any, rank: int, step: int = 100) -> dict[str, Any]:
    model.zero_grad(set_to_none=True)
    recommender_loss(model, rank, step).backward()
    return {name: p.grad.clone() for name, p in model.module.named_parameters()}


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name].to_dense(), value.to_dense()), name


def plain_copy(model: Any) -> Any:
    """The same parameters in a model that was never attached."""
    return DistributedDataParallel(copy.deepcopy(model.module))


def saved_and_loaded(model: Any) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "torch.save": saved_and_loaded,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "AveragedModel": lambda model: AveragedModel(model).module,
}


def copy_attached_models(rank: int, world: int) -> None:
    made = trainer(Recommender, recommender_loss, "quant:bits=4", MANY_BUCKETS)
    for step, (name, make) in enumerate(COPIES.items()):
        made.run(step, 1)
        plain = gradients(plain_copy(made.model), rank)
        before = made.handle.metrics()["hook_calls"]
        copied = make(made.model)
        # It trains by itself, as DDP does: nothing of ours is in it.
        assert_equal(gradients(copied, rank), plain)
        assert made.handle.metrics()["hook_calls"] == before, name
        handle = addend.torch.attach(copied, codec="exact:mode=packed")
        assert_replicas(gradients(copied, rank))
        assert handle.metrics()["mode/packed"] > 0, name
        handle.close()
    averaged = AveragedModel(made.model)
    made.run(10, 1)
    averaged.update_parameters(made.model)
    assert made.handle.metrics()["wire_bytes"] > 0
    made.result()
    made.handle.close()


def test_copies_have_no_part_in_the_exchange() -> None:
    run_ranks(3, copy_attached_models)


def detach(rank: int, world: int, sparse: bool, views: bool) -> None:
    make = functools.partial(Recommender, sparse=sparse)
    ddp: dict[str, Any] = {**MANY_BUCKETS, "gradient_as_bucket_view": views}
    threads = threading.active_count()
    made = trainer(make, recommender_loss, "exact:values=reproducible", ddp)
    made.run(0, 3)
    plain = DistributedDataParallel(copy.deepcopy(made.model.module), **ddp)
    gradients(plain, rank)  # then DDP moves parameters into the buckets that the other has
    made.handle.detach()
    assert threading.active_count() == threads
    for step in (3, 4):
        assert_equal(gradients(made.model, rank, step), gradients(plain, rank, step))
    assert made.handle.metrics()["step"] == 2
    made.handle.detach()  # once more does no harm
    again = addend.torch.attach(made.model, codec="exact:mode=packed")
    made.handle = None
    made.run(6, 2)
    made.result()
    assert again.metrics()["step"] == 1
    again.close()


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("views", [False, True])
def test_a_detached_model_sums_as_if_it_had_never_been_attached(sparse: bool, views: bool) -> None:
    run_ranks(3, detach, sparse, views)


def detach_after_a_failure(rank: int, world: int) -> None:
    made = trainer(Recommender, recommender_loss, "exact", attach={"seed": 1})
    made.run(0, 1)
    other = trainer(Recommender, recommender_loss, "exact" if rank else "dense")
    with pytest.raises(Exception, match="ranks differ in layout"):
        other.run(0, 1)
    other.handle.detach()
    other.run(0, 2)
    other.result()
    plain = fit(Recommender, recommender_loss, None, steps=2)
    assert_equal(dict(other.model.module.named_parameters()), plain.parameters)
    dist.barrier()


def test_a_model_can_be_detached_after_a_failure() -> None:
    run_ranks(2, detach_after_a_failure)
