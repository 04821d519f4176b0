# SPDX-License-Identifier: Apache-2.0
"""What torch itself offers to send less, run beside the codecs: its communication hooks."""

# No postponed annotations here: torch reads a hook's.
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

POWERSGD = "torch:powersgd"
HALVES = {
    "torch:fp16": default_hooks.fp16_compress_hook,
    "torch:bf16": default_hooks.bf16_compress_hook,
}
NAMES = (*HALVES, POWERSGD)
# As many as `lowrank` has by default; and the fewest plain steps that torch allows before.
RANK, PLAIN_STEPS = 4, 2
ONE_BUCKET_MB = 4096


def ddp_options(name: str) -> dict[str, Any]:
    """PowerSGD's hook starts its second all-reduce from a callback of the first: with several
    buckets ranks may disagree about whose turn it is, and Gloo then hangs or fails."""
    return {"bucket_cap_mb": ONE_BUCKET_MB} if name == POWERSGD else {}


def register(
    ddp: DistributedDataParallel, name: str, rank: int = RANK
) -> Callable[[], dict[str, float]]:
    """Sends gradients as the named hook does, PowerSGD's with `rank` directions. Returns what says
    how many bytes that took so far."""
    elements = sum(p.numel() for p in ddp.parameters() if p.requires_grad)
    steps = 0

    def counted(hook: Callable[..., Any], state: Any) -> None:
        def call(
            state: Any,
            bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch's own stubs lack it
        ) -> torch.futures.Future[torch.Tensor]:
            nonlocal steps
            steps += int(bucket.is_last())
            sums: torch.futures.Future[torch.Tensor] = hook(state, bucket)
            return sums

        ddp.register_comm_hook(state, call)

    if name != POWERSGD:
        counted(HALVES[name], dist.group.WORLD)
        return lambda: {"wire_bytes": 2.0 * elements * steps}
    state = powerSGD_hook.PowerSGDState(
        dist.group.WORLD, matrix_approximation_rank=rank, start_powerSGD_iter=PLAIN_STEPS
    )
    counted(powerSGD_hook.powerSGD_hook, state)
    return lambda: {
        "wire_bytes": 4.0
        * (state.total_numel_after_compression + elements * min(steps, PLAIN_STEPS))
    }
