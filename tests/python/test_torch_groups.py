# SPDX-License-Identifier: Apache-2.0
"""Groups with several backends: tensors go to the one for their type of device. A unit test of one
private module, `_group`, and a sum over such a group."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from ranks import run_ranks  # noqa: E402

from addend.torch import _group, all_reduce  # noqa: E402


@pytest.mark.parametrize(
    ("config", "of_cpu", "of_cuda", "transport"),
    [
        ("gloo", "gloo", "gloo", "cpu"),
        ("cpu:gloo,cuda:gloo", "gloo", "gloo", "cpu"),
        ("cpu:gloo,cuda:nccl", "gloo", "nccl", "cpu"),
        ("cuda:nccl", "nccl", "nccl", "cuda"),
        ("nccl", "nccl", "nccl", "cuda"),
        ("cuda:gloo_like", "gloo_like", "gloo_like", "cuda"),
    ],
)
def test_a_group_may_have_a_backend_for_each_type_of_device(
    monkeypatch: pytest.MonkeyPatch, config: str, of_cpu: str, of_cuda: str, transport: str
) -> None:
    monkeypatch.setattr(dist, "get_backend_config", lambda group: config)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert _group.backend_for(None, "cpu") == of_cpu
    assert _group.backend_for(None, "cuda") == of_cuda
    assert _group.transport_device(None).type == transport


def groups_of_several_backends(rank: int, world: int) -> list[str]:
    own = []
    for backend in ("cpu:gloo,cuda:gloo", "cpu:gloo"):
        group = dist.new_group(backend=backend)
        found = all_reduce(torch.full((1000,), float(rank + 1)), group=group)
        assert torch.equal(found, torch.full((1000,), world * (world + 1) / 2))
        own.append(str(dist.get_backend(_group.make_own(group, timeout_s=30))))
    return own


def test_our_own_group_has_the_one_backend_that_its_tensors_need() -> None:
    assert run_ranks(2, groups_of_several_backends) == [["gloo", "gloo"]] * 2
