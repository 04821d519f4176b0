# SPDX-License-Identifier: Apache-2.0
"""How an engine comes to be: a group of its own, peers that can be asked, and what adds its planes.

Everything here is collective, and ranks that find that they differ all say so.
"""

from __future__ import annotations

import os
from typing import Any, Callable

import torch
import torch.distributed as dist

from addend import Aggregator, Error, Mismatch
from addend import reducer as reducers
from addend.reducer import Link, Reducer
from addend.torch import _group, _jobs, _log
from addend.torch._bucket import digest
from addend.torch._engine import Engine, Way, can_encode_on, close_orphans
from addend.torch._group import Group
from addend.torch._group_sums import GroupSums
from addend.torch._peers import Peers, listen

# Every rank sends its small messages to every other: with more of them, trees and rings are better.
_MESH_MOST_RANKS = 64
_MESH_S = 20.0  # for all ranks to connect
_ADDRESS_BYTES = 64
_ASIDE_S = 60.0  # for ranks to say why they give up, before a backend ends them


def start(
    group: Any,
    deadline_s: float,
    device: torch.device,
    link: Link | None = None,
    aggregator: Aggregator | None = None,
    threads: int | None = None,
    said: str = "",
) -> Engine:
    """An engine on a group of its own, for tensors of one device. Collective over `group`. `said`:
    what else must be the same on all ranks."""
    close_orphans()
    by = "the group" if aggregator is None else "a server"
    _agree(group, f"tensors on {device.type}, sums by {by}, link {link}{said}")
    own = _group.make_own(group, deadline_s, device.type)
    where = _group.transport_device(own)

    def exchange(message: bytes) -> list[bytes]:
        return _group.exchange_blocking(own, where, message)

    peers = Peers(dist.get_rank(own), dist.get_world_size(own), exchange)
    try:
        if peers.world > 1 and not peers.neighbour_answers():
            _log.INIT.warning(
                "rank %d cannot ask rank %d where it is (a firewall?): errors may not name lost"
                " ranks",
                peers.rank,
                (peers.rank + 1) % peers.world,
            )
        service = None if aggregator is None else _jobs.join(aggregator, own, where)
        there = all(said == b"1" for said in exchange(b"1" if can_encode_on(device) else b"0"))
        reducer, way = _make_reducer(own, where, peers, exchange, service, deadline_s)
        try:
            # All stage or none: chunks are rounds of their own.
            if there and not way.takes_devices:
                reducer = reducers.stage(reducer)
            found = link if link is not None else reducer.measure_link(deadline_s)
            reducer.set_link(found)
            return Engine(own, where, reducer, peers, found, deadline_s, way, there, threads or 0)
        except Exception:
            reducer.close()
            raise
    except Exception:
        peers.close()
        _group.destroy(own)
        raise


def _make_reducer(
    group: Group,
    device: torch.device,
    peers: Peers,
    exchange: Callable[[bytes], list[bytes]],
    service: Reducer | None,
    deadline_s: float,
) -> tuple[Reducer, Way]:
    if service is not None and service.quorum > 0:  # nothing else goes on without late ranks
        return service, Way("server")
    reducer, way = _open_mesh(peers, exchange), Way("mesh", None, peers.world == 1)
    if reducer is None:
        # Not the group of plain sums: those are issued by other threads, in an order of their own.
        # The backend's own patience is longer than ours: its watchdog ends the process.
        patience = deadline_s if device.type == "cpu" else 2 * deadline_s + _ASIDE_S
        way = Way("group", _group.make_own(group, patience, device.type), device.type != "cpu")
        reducer = reducers.call_back(
            peers.world,
            peers.rank,
            GroupSums(way.group, device).reduce,
            takes_devices=way.takes_devices,
        )
    if service is None:
        return reducer, way

    def tell(why: str) -> None:
        _log.FAULT.warning(
            "rank %d: the aggregation server is gone (%s); the ranks go on without it",
            peers.rank,
            why,
        )

    return reducers.fall_back(service, reducer, tell), Way("server", way.group)


def _open_mesh(peers: Peers, exchange: Callable[[bytes], list[bytes]]) -> Reducer | None:
    """Direct connections between all ranks, or None on all of them. Collective."""
    off = os.environ.get("ADDEND_MESH") == "off"
    if peers.world == 1 and not off:
        return reducers.alone()
    refused = off or peers.world > _MESH_MOST_RANKS
    if any(said == b"0" for said in exchange(b"0" if refused else b"1")):
        return None
    listener = listen()
    host, port = listener.getsockname()[:2]
    own = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    addresses = [said.decode().strip() for said in exchange(own.encode().ljust(_ADDRESS_BYTES))]
    reducer: Reducer | None = None
    try:
        reducer = reducers.connect(
            addresses, peers.rank, listener=listener, token=peers.token, timeout_s=_MESH_S
        )
    except Error as error:
        _log.INIT.warning("ranks cannot connect directly: %s", error)
    if all(said == b"1" for said in exchange(b"0" if reducer is None else b"1")):
        return reducer
    if reducer is not None:
        reducer.close()
    _log.INIT.warning("all messages go through the backend")
    return None


def _agree(group: Any, said: str) -> None:
    """Raises Mismatch on all ranks if one says something else: they would wait for each other."""
    own = digest(said).to_bytes(8, "little")
    replies = _group.exchange_blocking(group, _group.transport_device(group), own)
    odd = [str(rank) for rank, reply in enumerate(replies) if reply != replies[0]]
    if odd:
        raise Mismatch(
            f"ranks differ from rank 0 in what they ask for: {', '.join(odd)}; here: {said}"
        )
