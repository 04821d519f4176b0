# SPDX-License-Identifier: Apache-2.0
"""A process group of our own beside the user's, and what its backend can do.

Collectives are matched by the order in which a group's members issue them, so rounds that run in a
thread of ours need a group that nobody else uses.
"""

import contextlib
import ctypes
import inspect
import os
import socket
import stat
import threading
import weakref
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from addend import Op, Unsupported

Group = Any  # dist.ProcessGroup; the class moved between releases


def group_ranks(group: Group) -> list[int]:
    """Global ranks of a group's members, in group order."""
    if hasattr(dist, "get_process_group_ranks"):
        return list(dist.get_process_group_ranks(group))
    if group is None or group is dist.group.WORLD:
        return list(range(dist.get_world_size()))
    table: dict[int, int] = dist.distributed_c10d._pg_group_ranks[group]
    return sorted(table, key=lambda rank: table[rank])


# Held while groups of ours come and go: models end in threads of their own.
_torchs_groups = threading.Lock()


def make_own(group: Group, timeout_s: float, device_type: str = "cpu") -> Group:
    """A second group with the same members, and with the one backend that the first has for
    tensors on such a device. Collective over the members."""
    ranks = group_ranks(group)
    options: dict[str, Any] = {
        "backend": backend_for(group, device_type),
        "timeout": timedelta(seconds=timeout_s),
    }
    naming: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if len(ranks) < dist.get_world_size():
        # Otherwise every process of the job would have to make this call, members or not.
        if "use_local_synchronization" not in inspect.signature(dist.new_group).parameters:
            raise Unsupported(
                "this torch cannot make a group for some ranks only: use the default group"
            )
        options["use_local_synchronization"] = True
        naming = _named_alike(group)
    before = _connections()
    with _torchs_groups, naming:
        own = dist.new_group(ranks, **options)
    made = {fd: identity for fd, identity in _connections().items() if before.get(fd) != identity}
    if len(made) == len(ranks) - 1:  # otherwise a thread of the user's made some too
        _connections_of[own] = made
    return own


_groups_known = 0  # as many as we said the last time


@contextlib.contextmanager
def _named_alike(group: Group) -> Iterator[None]:
    """Within, torch gives a group of some ranks the same name on all of them.

    It names such a group after the number of groups that a rank knows. Ranks that know different
    numbers would wait for each other under different names, so all pretend to know as many as the
    one that knows most; and more each time, because a name must be new.
    """
    global _groups_known
    names = dist.distributed_c10d._world.pg_names
    known = torch.tensor([max(len(names), _groups_known + 1)], device=transport_device(group))
    dist.all_reduce(known, op=dist.ReduceOp.MAX, group=group)
    _groups_known = int(known)
    pretended: list[Any] = [object() for _ in range(len(names), _groups_known)]
    names.update({one: f"addend's {i}" for i, one in enumerate(pretended)})
    try:
        yield
    finally:
        for one in pretended:
            del names[one]


# Backends that take host memory; others move a device's.
HOST_BACKENDS = ("gloo", "mpi", "ucc")


def backends(group: Group) -> dict[str, str]:
    """A group's backends by the type of device that they are for."""
    config = getattr(dist, "get_backend_config", dist.get_backend)(group)
    pairs = [part.partition(":") for part in str(config).lower().split(",")]
    # An older torch names the one backend there is.
    return {
        device if name else ("cpu" if device in HOST_BACKENDS else "cuda"): name or device
        for device, _, name in pairs
    }


def backend_for(group: Group, device_type: str) -> str:
    """The backend for tensors on such a device, or the one that they must be copied for."""
    found = backends(group)
    return found.get(device_type) or next(iter(found.values()))


def transport_device(group: Group) -> torch.device:
    """Where tensors must be for a group: host memory, unless all it has is a device's backend."""
    if any(name in HOST_BACKENDS for name in backends(group).values()):
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def timeout_s(group: Group) -> float:
    """How long the group's own collectives wait for a rank."""
    device = transport_device(group)
    for find in (
        lambda: group._get_backend(device).options._timeout,
        lambda: group.options._timeout,  # of an older torch
        lambda: dist.distributed_c10d.default_pg_timeout,
    ):
        with contextlib.suppress(AttributeError, RuntimeError):
            return float(find().total_seconds())
    return 1800.0


# How a plane's lanes look to a backend. u8 and u16 lanes cannot overflow, so neighbours may share a
# wider lane: no carry ever crosses. Unsigned order becomes signed order by flipping the top bit.
_VIEWS = {
    Op.SUM_F32: (torch.float32, 4, "SUM"),
    Op.SUM_BF16: (torch.bfloat16, 2, "SUM"),
    Op.SUM_F16: (torch.float16, 2, "SUM"),
    Op.SUM_I32: (torch.int32, 4, "SUM"),
    Op.SUM_I64: (torch.int64, 8, "SUM"),
    Op.SUM_U8: (torch.int64, 8, "SUM"),
    Op.SUM_U16: (torch.int64, 8, "SUM"),
    Op.OR_U64: (torch.int64, 8, "BOR"),
    Op.MAX_U32: (torch.int32, 4, "MAX"),
}


def backend_view(op: Op) -> Any:
    """(dtype, its bytes, name of the ReduceOp) in which a backend may add planes of `op`."""
    return _VIEWS[op]


def probe(group: Group, device: torch.device) -> frozenset[Op]:
    """The plane operations that the backend does itself. Collective.

    Backends refuse what they lack before anything is sent, alike on all ranks.
    """
    able = []
    known: dict[Any, bool] = {}
    for op, view in _VIEWS.items():
        if view not in known:
            dtype, _, name = view
            try:
                dist.all_reduce(
                    torch.zeros(1, dtype=dtype, device=device),
                    op=getattr(dist.ReduceOp, name),
                    group=group,
                )
                known[view] = True
            except (RuntimeError, ValueError, TypeError):
                known[view] = False
        if known[view]:
            able.append(op)
    return frozenset(able)


def start_all_gather(group: Group, out: torch.Tensor, own: torch.Tensor) -> Any:
    """Every rank's `own`, by rank, in `out`; straight there where torch and backend can."""
    for name in ("all_gather_single", "all_gather_into_tensor"):  # the first is the newer name
        gather = getattr(dist, name, None)
        if gather is not None:
            try:
                return gather(out, own, group=group, async_op=True)
            except RuntimeError:  # refused before anything is sent, on all ranks
                break
    return dist.all_gather(list(out.split(own.numel())), own, group=group, async_op=True)


def exchange_blocking(group: Group, device: torch.device, message: bytes) -> list[bytes]:
    """Every rank's message, by rank; all of one length. For set-up, before rounds run."""
    world = dist.get_world_size(group)
    own = torch.tensor(list(message), dtype=torch.uint8, device=device)
    out = [torch.zeros_like(own) for _ in range(world)]
    dist.all_gather(out, own, group=group)
    return [bytes(t.cpu().tolist()) for t in out]


# Gloo cannot be told to give up: its threads wait for a lost peer until the group's timeout, write
# to memory if that peer comes back, and are joined when the process ends. So the group's own
# connections are remembered, and cut.
_Identity = tuple[int, int]  # device and inode: a descriptor may come to mean another file
_connections_of: "weakref.WeakKeyDictionary[Group, dict[int, _Identity]]" = (
    weakref.WeakKeyDictionary()
)


@contextlib.contextmanager
def _borrowed(fd: int) -> Iterator[tuple[socket.socket, _Identity]]:
    """A descriptor's socket, safe from being closed meanwhile. OSError if it is not one."""
    copy = os.dup(fd)
    status = os.fstat(copy)
    if not stat.S_ISSOCK(status.st_mode):
        os.close(copy)
        raise OSError("not a socket")
    with socket.socket(fileno=copy) as found:
        yield found, (status.st_dev, status.st_ino)


def _connections() -> dict[int, _Identity]:
    """This process's network connections, by descriptor; none where there is no /proc."""
    connections: dict[int, _Identity] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError), _borrowed(int(name)) as (found, identity):
                if found.family in (socket.AF_INET, socket.AF_INET6):
                    found.getpeername()  # raises if not connected
                    connections[int(name)] = identity
    return connections


def abort(group: Group, device: torch.device) -> None:
    """Ends what is in flight, where that can be done; otherwise it ends by its timeout. `device`:
    the group's; torch may have forgotten the group already."""
    for fd, identity in _connections_of.pop(group, {}).items():
        with contextlib.suppress(OSError), _borrowed(fd) as (found, now):
            if now == identity:
                found.shutdown(socket.SHUT_RDWR)
    if device.type == "cpu":
        # Gloo overlooks sends that were half written when a connection ended, and its destructor
        # would wait for them: so it never comes to that.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
    for name in ("abort", "_abort"):
        call = getattr(group, name, None)
        if call is None:
            continue
        # A group that cannot: its timeout does it.
        with contextlib.suppress(Exception):
            call()
        return


def destroy(group: Group) -> None:
    """Gives back a group's threads and connections, as soon as nobody refers to it. Any thread."""
    with _torchs_groups, contextlib.suppress(Exception):  # their owner may have ended all of them
        dist.destroy_process_group(group)


def is_known(group: Group) -> bool:
    """Whether torch has the group still: its owner may have ended all groups."""
    try:
        dist.get_backend(group)
    except Exception:  # which one depends on the release
        return False
    return True
