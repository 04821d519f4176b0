# SPDX-License-Identifier: Apache-2.0
"""Jobs at aggregation servers. Models of one program that use one server need a job each."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

import torch
import torch.distributed as dist

from addend import Aggregator, Capacity, ServiceReducer
from addend.torch import _group

_MOST = 64  # jobs of a name at a time
# This process's, by server and name; closed ones count no more.
_joined: weakref.WeakValueDictionary[tuple[str, str], ServiceReducer] = (
    weakref.WeakValueDictionary()
)


def join(aggregator: Aggregator, group: Any, device: torch.device) -> ServiceReducer:
    """This rank's end of a job that no living model of any rank uses; its name is the same on all
    ranks. Collective."""
    names = _names(aggregator, min(_group.group_ranks(group)))
    taken = sum(1 << i for i, name in enumerate(names) if _alive(aggregator.address, name))
    for reply in _group.exchange_blocking(group, device, taken.to_bytes(_MOST // 8, "little")):
        taken |= int.from_bytes(reply, "little")
    free = next((name for i, name in enumerate(names) if not taken >> i & 1), None)
    if free is None:
        raise Capacity(f"{_MOST} models use job {aggregator.job!r}: name others")
    one = dataclasses.replace(aggregator, job=free)
    reducer = ServiceReducer(one, dist.get_world_size(group), dist.get_rank(group))
    _joined[aggregator.address, free] = reducer
    return reducer


def _names(aggregator: Aggregator, first_rank: int) -> list[str]:
    """The first is the job as it was named, which an operator may have made. Groups that share no
    rank know nothing of each other, so where nobody named the job the first rank does."""
    unnamed = aggregator.job == type(aggregator).job and first_rank > 0
    job = f"{aggregator.job}.rank{first_rank}" if unnamed else aggregator.job
    return [job, *(f"{job}.{number}" for number in range(2, _MOST + 1))]


def _alive(address: str, name: str) -> bool:
    reducer = _joined.get((address, name))
    return reducer is not None and not reducer.closed
