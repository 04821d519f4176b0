# SPDX-License-Identifier: Apache-2.0
"""Who launches collectives on a device while gradients are summed there.

Kernels of collectives wait on the device for those of other ranks. Two groups that are used at once
must therefore be used in one order on all ranks, or ranks wait for each other
(docs/decisions/0110-one-communicator-during-backward.md). Rounds of ours are launched by a thread
of ours, at times of its own: so nobody else may launch any from the first bucket of a backward pass
to its last. Who would is told apart before; who does so all the same is found here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
import torch.distributed as dist

from addend import Unsupported
from addend.torch import _group
from addend.torch._bucket import DTYPES
from addend.torch._group import Group


def only_the_hook(model: torch.nn.parallel.DistributedDataParallel) -> bool:
    """Whether a model's backward pass has no collectives beside its hook's, as far as one sees. The
    same on all ranks, whose models are the same."""
    if model.find_unused_parameters and not model.static_graph:
        return False  # DDP sums up which parameters were used, at the end
    if any(isinstance(module, torch.nn.SyncBatchNorm) for module in model.module.modules()):
        return False
    # Others have no codec, so the hook leaves them to another group.
    return all(p.dtype in DTYPES for p in model.module.parameters() if p.requires_grad)


class Launches:
    """What this process launches on groups of a device, but for `own`."""

    def __init__(self, own: Sequence[Group]) -> None:
        self._own = own
        self._seen: dict[Group, int] = {}

    def begin(self) -> None:
        """A backward pass hands over its first bucket."""
        self._seen = self._counts()

    def check(self) -> None:
        """Raises if somebody has launched a collective since."""
        now = self._counts()  # of groups that were there before and still are
        launched = sum(now.get(group, before) - before for group, before in self._seen.items())
        if launched > 0:
            raise Unsupported(
                f"{launched} collectives of other groups came during backward, while planes"
                " go over the backend: ranks that launch them in another order would wait for each"
                " other for good. Without ADDEND_MESH=off, planes have connections of their own"
            )

    def _counts(self) -> dict[Group, int]:
        counts = {}
        for group, (backend, _) in list(dist.distributed_c10d._world.pg_map.items()):
            if backend in _group.HOST_BACKENDS or group in self._own:
                continue
            with contextlib.suppress(RuntimeError, AttributeError):  # a backend that does not count
                issued = group._get_sequence_number_for_group  # type: ignore[attr-defined]
                counts[group] = int(issued())
        return counts
