# SPDX-License-Identifier: Apache-2.0
"""Who may launch collectives while planes go over the backend (decision 0110). A unit test of one
private module, `_launches`: its backends are a device's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import nn

from addend import Unsupported
from addend.torch import _group
from addend.torch._launches import Launches, only_the_hook


def watch(_rank: int, _world: int) -> None:
    here: Any = _group
    here.HOST_BACKENDS = ()  # as if the one backend that there is were a device's
    own, other = dist.new_group(), dist.new_group()
    launches = Launches((own,))
    launches.begin()
    dist.all_reduce(torch.zeros(3), group=own)
    launches.check()
    dist.all_reduce(torch.zeros(3), group=other)
    with pytest.raises(Unsupported, match="1 collectives of other groups came during backward"):
        launches.check()
    launches.begin()
    dist.destroy_process_group(other)  # takes its count along
    launches.check()
    dist.all_reduce(torch.zeros(3))
    with pytest.raises(Unsupported, match="ADDEND_MESH=off"):
        launches.check()


def test_a_collective_of_another_group_is_found() -> None:
    run_ranks(1, watch)


@pytest.mark.parametrize(
    ("module", "options", "alone"),
    [
        (nn.Linear(2, 2), {}, True),
        (nn.Linear(2, 2), {"find_unused_parameters": True}, False),
        (nn.Linear(2, 2), {"find_unused_parameters": True, "static_graph": True}, True),
        (nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2)), {}, False),
        (nn.Linear(2, 2).double(), {}, False),  # no codec: the hook leaves it to another group
        (nn.Linear(2, 2).double().requires_grad_(False), {}, True),
    ],
)
def test_models_whose_backward_has_collectives_keep_the_mesh(
    module: nn.Module, options: dict[str, bool], alone: bool
) -> None:
    said = {"find_unused_parameters": False, "static_graph": False, **options}
    model: Any = SimpleNamespace(module=module, **said)
    assert only_the_hook(model) == alone
