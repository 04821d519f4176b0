# SPDX-License-Identifier: Apache-2.0
"""What is refused before anything is collective: once a rank takes part, the others wait for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from addend import Aggregator, InvalidArgument, Unavailable, Unsupported
from addend.reducer import Link
from addend.torch._bucket import DTYPES
from addend.torch._hook import Hook
from addend.torch._specs import keeps_residual, kind_of, options_of, tuned

# Element types that no codec takes, and every backend adds.
_PLAIN_DTYPES = (torch.float64, torch.int64, torch.int32, torch.int8, torch.uint8)
_DEVICES = ("cpu", "cuda")
_MOST_SECONDS = 1e9  # more than a backend's clock may hold
_MOST_THREADS = 64


def check_seconds(what: str, value: object) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not 0 < value < _MOST_SECONDS
    ):
        raise InvalidArgument(f"{what} {value!r} is not a number of seconds above 0")


def check_threads(value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_THREADS:
        raise InvalidArgument(f"threads {value!r} is not a number from 1 to {_MOST_THREADS}")


def pinned(deterministic: object) -> bool:
    """Whether plans may depend on nothing that is measured; by default as torch is told."""
    if deterministic is None:
        return torch.are_deterministic_algorithms_enabled()
    if not isinstance(deterministic, bool):
        raise InvalidArgument(f"deterministic {deterministic!r} is not True, False or None")
    return deterministic


def check_group(group: Any) -> Any:
    """The group that is meant, of which this rank is a member."""
    if not dist.is_initialized():
        raise InvalidArgument("torch.distributed.init_process_group has not been called")
    if group is None:
        group = dist.group.WORLD
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        raise InvalidArgument("this rank is not a member of the group")
    if not isinstance(group, dist.ProcessGroup):
        raise InvalidArgument(f"group {group!r} is not a process group")
    if dist.get_rank(group) < 0:
        raise InvalidArgument("this rank is not a member of the group")
    return group


def check_tensor(tensor: object) -> None:
    """Whether it is a tensor that has elements of its own, so that its shape says how many."""
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgument(f"all_reduce takes a torch tensor, not {type(tensor).__name__}")
    # A subclass that sees every operation stands for other tensors: sharded, fake, packed ones.
    stands_for_others = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    if stands_for_others or tensor.is_nested:
        what = "a nested tensor" if tensor.is_nested else f"a {type(tensor).__name__}"
        raise Unsupported(f"all_reduce of {what}: give it the local tensor with the elements")


def check_call(tensor: torch.Tensor, op: object, codec: str, name: object) -> None:
    if op not in ("sum", "mean"):
        raise InvalidArgument(f"op {op!r} is not sum or mean")
    if name is not None and not (isinstance(name, str) and name):
        raise InvalidArgument(f"name {name!r} is not a name")
    spec = tuned(codec)
    if tensor.dtype not in DTYPES and tensor.dtype not in _PLAIN_DTYPES:
        raise Unsupported(f"all_reduce of {tensor.dtype}")
    if tensor.dtype not in DTYPES and not _needs_no_codec(spec, tensor.dtype):
        raise Unsupported(f"codec {codec!r} does not take {tensor.dtype}")
    if keeps_residual(spec):
        if name is None:
            raise InvalidArgument(
                f"codec {codec!r} keeps a residual from call to call: say by name= whose sum it is"
            )
        if tensor.layout == torch.sparse_coo:
            raise InvalidArgument(f"{name}: feedback needs dense gradients, this one is sparse")
    if op == "mean" and not tensor.is_floating_point():
        raise InvalidArgument(f"the mean of {tensor.dtype} is not of that type")
    _check_memory(tensor)


def _check_memory(tensor: torch.Tensor) -> None:
    if tensor.layout not in (torch.strided, torch.sparse_coo):
        raise Unsupported(f"all_reduce of layout {tensor.layout}")
    if tensor.device.type not in _DEVICES:
        raise Unsupported(f"all_reduce of a tensor on {tensor.device.type}")
    if tensor.layout == torch.sparse_coo:
        if tensor.sparse_dim() == 0:
            raise Unsupported("all_reduce of a sparse tensor without sparse dimensions")
    elif _may_share_memory(tensor):
        raise InvalidArgument(
            "elements of this tensor share memory (it is expanded, or a view that overlaps"
            " itself), so there is no place for its sum: clone it first"
        )


def _may_share_memory(tensor: torch.Tensor) -> bool:
    """Whether two elements may lie in one place. False for all slices and transpositions."""
    reach = 0  # how far the dimensions so far go
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def _needs_no_codec(spec: str, dtype: torch.dtype) -> bool:
    """Whether a plain sum keeps the codec's promise."""
    if kind_of(spec) == "exact" and dtype.is_floating_point:
        return options_of(spec).get("values") != "reproducible"
    return kind_of(spec) in ("dense", "exact")


def check_model(model: Any) -> Any:
    """The DistributedDataParallel that is meant: `torch.compile` may be around it."""
    inner = getattr(model, "_orig_mod", model)
    if not isinstance(inner, DistributedDataParallel):
        raise InvalidArgument(
            f"attach takes a model wrapped in DistributedDataParallel, not {type(inner).__name__}"
        )
    if getattr(inner, "process_group", None) is None:
        raise Unavailable("the model has no process group")
    for hook, _ in getattr(inner, "_comm_hooks", []):
        ours = getattr(hook, "__self__", None)
        if not isinstance(ours, Hook) or ours.handle is not None:
            raise InvalidArgument("the model has a communication hook already")
    return inner


def check_options(overrides: object, scaler: object, seed: object, link: object) -> None:
    if not isinstance(overrides, Mapping) or not all(isinstance(p, str) for p in overrides):
        raise InvalidArgument("overrides are a mapping from parameter name patterns to specs")
    if scaler is not None and not (hasattr(scaler, "get_scale") and hasattr(scaler, "is_enabled")):
        raise InvalidArgument(f"scaler {scaler!r} is not a GradScaler")
    if not isinstance(seed, int) or not 0 <= seed < 1 << 64:
        raise InvalidArgument(f"seed {seed!r} is not an integer of 64 bits")
    if link is not None:
        _check_link(link)


def check_aggregator(aggregator: object) -> Aggregator:
    """The server that somebody means, with a key that can be read."""
    if isinstance(aggregator, str):
        aggregator = Aggregator(aggregator)
    if not isinstance(aggregator, Aggregator):
        raise InvalidArgument(f"aggregator {aggregator!r} is not 'host:port' or an Aggregator")
    aggregator.key()
    return aggregator


def check_order_is_nothing(name: str, spec: str) -> None:
    """A server may add floats in the order in which they arrive."""
    if kind_of(spec) != "quant" and options_of(spec).get("values") != "reproducible":
        raise Unsupported(
            f"{name}: a server's sums of floats, as of codec {spec}, are not deterministic:"
            " use exact:values=reproducible or quant"
        )


def _check_link(link: object) -> None:
    if not isinstance(link, Link):
        raise InvalidArgument(f"link {link!r} is not an addend.torch.Link")
    figures = (link.latency_us, link.gbit_per_s)
    if not all(isinstance(one, (int, float)) and 0 <= one < math.inf for one in figures):
        raise InvalidArgument(f"{link}: figures are not negative, and finite (link)")
    if link.gbit_per_s == 0:
        raise InvalidArgument(f"{link}: a link that moves nothing")
