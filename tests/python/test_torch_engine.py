# SPDX-License-Identifier: Apache-2.0
"""Planes are added alike in every way, whatever the number of ranks and lanes."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from by_hand import LANES, at, reduce_planes  # noqa: E402
from ranks import run_ranks  # noqa: E402

import addend  # noqa: E402
from addend import Op, Plane  # noqa: E402
from addend.mesh import Bytes, aligned  # noqa: E402
from addend.torch import _engine, _group, _header  # noqa: E402
from addend.torch._engine import Engine, Link, Pool  # noqa: E402
from addend.torch._rollcall import RollCall  # noqa: E402

CPU = torch.device("cpu")
FREE_STEPS = Link(latency_us=-1.0)  # an exchange never pays
DEAR_STEPS = Link(latency_us=1e12)  # it always does
LANE_COUNTS = (0, 1, 2, 3, 15, 16, 17, 31, 63, 65, 97, 257, 1009, 4099, 100_003)
FEWER_LANE_COUNTS = (0, 1, 97, 4099, 20_011)  # of many ranks on few cores
WAYS = ("exchange", "all-reduce", "scatter", "mesh", "haul")


def make_engine(way: str) -> Engine:
    native = frozenset(op for op in Op if not op.is_table_sum) if way == "all-reduce" else ()
    link = DEAR_STEPS if way in ("exchange", "mesh") else FREE_STEPS
    engine = Engine(dist.group.WORLD, CPU, frozenset(native), link)
    if way in ("mesh", "haul"):
        add_mesh(engine, way == "haul")
        assert (engine.mesh is None) == (engine.world == 1)
    return engine


def add_mesh(engine: Engine, with_hauler: bool) -> None:
    def exchange(message: bytes) -> list[bytes]:
        return _group.exchange_blocking(engine.group, CPU, message)

    rollcall = RollCall(engine.rank, engine.world, exchange, patience_s=30)
    try:
        engine.mesh = _engine.open_mesh(rollcall, exchange)
        if with_hauler and engine.mesh is not None:
            engine.hauler = _engine.open_hauler(engine.mesh, rollcall, exchange)
            assert engine.hauler is not None
    finally:
        exchange(b".")  # all ranks have linked
        rollcall.close()


class Lanes:
    """A plane with memory of its own."""

    def __init__(self, op: Op, data: Any, table: Any = None) -> None:
        self.op, self.data, self.table = op, data, table
        self.count = 2 * data.size if op.is_table_sum else data.size
        self.sums: Any = None

    @classmethod
    def of_indices(cls, op: Op, packed: Any, table: Any, count: int) -> Lanes:
        made = cls(op, packed, table)
        made.count = count
        made.sums = np.full(count, 77, LANES[op])  # what was there before must not be added
        return made

    def plane(self) -> Plane:
        return Plane(
            self.op,
            self.count,
            self.data.ctypes.data,
            0 if self.table is None else self.table.ctypes.data,
            0 if self.sums is None else self.sums.ctypes.data,
            self.op.nbytes(self.count),
            self.op.sum_nbytes(self.count),
        )

    def result(self) -> bytes:
        """The bytes of the sum; of table sums, the indices too, which must stay."""
        return bytes(self.data.tobytes() + (b"" if self.sums is None else self.sums.tobytes()))


def draw(op: Op, count: int, rank: int, world: int) -> Lanes:
    """Lanes of one rank whose sums need no rounding and do not overflow."""
    random = np.random.default_rng([int(op), count, rank])
    if op.is_table_sum:
        most = np.iinfo(LANES[op]).max // world
        table = np.random.default_rng(int(op)).integers(0, most + 1, 16).astype(LANES[op])
        packed = random.integers(0, 256, (count + 1) // 2).astype(np.uint8)
        if count % 2:
            packed[-1] &= 15
        return Lanes.of_indices(op, packed, table, count)
    if op == Op.SUM_BF16:
        small = random.integers(-3, 4, count).astype(np.float32)
        return Lanes(op, (small.view(np.uint32) >> 16).astype(np.uint16))
    if op in (Op.SUM_F32, Op.SUM_F16):
        return Lanes(op, random.integers(-100, 101, count).astype(LANES[op]))
    if op in (Op.SUM_I32, Op.SUM_I64):
        most = np.iinfo(LANES[op]).max // world
        return Lanes(op, random.integers(-most, most, count).astype(LANES[op]))
    shared = world if op in (Op.SUM_U8, Op.SUM_U16) else 1  # of MAX and OR, the whole range
    most = np.iinfo(LANES[op]).max // shared
    return Lanes(op, random.integers(0, most, count, dtype=np.uint64).astype(LANES[op]))


def expected(op: Op, count: int, world: int) -> bytes:
    """What numpy makes of all ranks' lanes, as rank 0 sees it."""
    drawn = [draw(op, count, rank, world) for rank in range(world)]
    if count:
        reduce_planes([lanes.plane() for lanes in drawn])
    return drawn[0].sums.tobytes() if op.is_table_sum else drawn[0].result()


class Counted:
    """Counts the collectives that are issued."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._counts: Counter[str] = Counter()
        for module, name in (
            (dist, "all_to_all_single"),
            (dist, "all_reduce"),
            (_group, "start_all_gather"),
        ):
            monkeypatch.setattr(module, name, self._counting(name, getattr(module, name)))

    def _counting(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self._counts[name] += 1
            return real(*arguments, **named)

        return call

    def take(self) -> dict[str, int]:
        """What was issued since the last time."""
        counts = dict(self._counts)
        self._counts.clear()
        return counts


def check_sums(
    engine: Engine, kinds: Sequence[tuple[Op, int]], known: dict[tuple[Op, int], bytes]
) -> None:
    """Reduces one round of planes and compares every one with what numpy says."""
    lanes = [draw(op, count, engine.rank, engine.world) for op, count in kinds]
    _engine.run(engine.reduce([one.plane() for one in lanes], last=True))
    for (op, count), one in zip(kinds, lanes):
        if (op, count) not in known:
            known[op, count] = expected(op, count, engine.world)
        got = one.sums.tobytes() if op.is_table_sum else one.result()
        assert got == known[op, count], (op.name, count)
        if op.is_table_sum:
            assert one.data.tobytes() == draw(op, count, engine.rank, engine.world).data.tobytes()


# ---- bodies of ranks


def every_operation(rank: int, world: int) -> None:
    known: dict[tuple[Op, int], bytes] = {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        counted = Counted(monkeypatch)
        for way in WAYS:
            engine = make_engine(way)
            for count in LANE_COUNTS if world <= 4 else FEWER_LANE_COUNTS:
                # Together, with a plane of another size in front so that places differ.
                check_sums(engine, [(Op.OR_U64, 5), *((op, count) for op in Op)], known)
            counted.take()
            for op in Op if world <= 4 else ():
                check_sums(engine, [(op, 1009)], known)
                assert counted.take() == collectives(way, op, 1009, world), (way, op.name)


SCATTERED = {"all_to_all_single": 1, "start_all_gather": 1}


def collectives(way: str, op: Op, count: int, world: int) -> dict[str, int]:
    """What one plane takes."""
    if world == 1 or way in ("mesh", "haul"):  # nothing of the group
        return {}
    if way == "exchange":
        return {"all_to_all_single": 1}
    if way == "scatter" or op.is_table_sum:
        return SCATTERED
    fills_words = op.nbytes(count) % 8 == 0 or op not in (Op.SUM_U8, Op.SUM_U16)
    return {"all_reduce": 1 if fills_words else 2}


def rounding_sums(rank: int, world: int) -> dict[str, str]:
    """Random floats: what every way gives, as digests."""
    digests = {}
    count = 5003
    for way in WAYS:
        engine = make_engine(way)
        for op, dtype in DTYPES.items():
            mine = random_floats(rank, count, dtype)
            nbytes = op.nbytes(count)
            plane = Plane(op, count, mine.data_ptr(), 0, 0, nbytes, nbytes)
            _engine.run(engine.reduce([plane], last=True))
            digests[f"{way} {op.name}"] = digest(mine)
    return digests


DTYPES = {Op.SUM_F32: torch.float32, Op.SUM_BF16: torch.bfloat16, Op.SUM_F16: torch.float16}


def random_floats(rank: int, count: int, dtype: Any) -> Any:
    random = torch.Generator().manual_seed(1000 + rank)
    return torch.randn(count, generator=random).to(dtype)


def digest(tensor: Any) -> str:
    return hashlib.sha256(tensor.view(torch.uint8).numpy().tobytes()).hexdigest()


def exchanges(rank: int, world: int) -> None:
    for way in ("exchange", "mesh"):
        engine = make_engine(way)
        for size in (0, 1, 63, 64, 65, 4095, 100_003):
            pieces = [bytes_of(rank, size), bytes_of(rank + 100, 10)]
            room = aligned(size) + 10
            replies: list[Bytes] = []
            given = [Bytes(piece.data_ptr(), piece.numel()) for piece in pieces]
            _engine.run(engine.exchange(given, room, replies))
            assert len(replies) == world
            for peer, reply in enumerate(replies):
                assert reply.size == room
                got = _engine.tensor_at(*reply)
                assert torch.equal(got[:size], bytes_of(peer, size))
                assert torch.equal(got[aligned(size) :], bytes_of(peer + 100, 10))
        if engine.mesh is not None:
            messages_of_any_length(engine, rank)


def messages_of_any_length(engine: Engine, rank: int) -> None:
    for size in (0, 5, 100_000):
        message = bytes_of(rank, size * rank)
        replies: list[Bytes] = []
        _engine.run(engine.exchange([Bytes(message.data_ptr(), message.numel())], 1, replies))
        for peer, reply in enumerate(replies):
            assert reply.size == size * peer
            if reply.size:
                assert torch.equal(_engine.tensor_at(*reply), bytes_of(peer, reply.size))


def bytes_of(rank: int, size: int) -> Any:
    random = torch.Generator().manual_seed(rank)
    return torch.randint(0, 256, (size,), generator=random, dtype=torch.uint8)


def rounds_in_flight(rank: int, world: int) -> None:
    """Rounds of several jobs at once, ended in another order than they began."""
    known: dict[tuple[Op, int], bytes] = {}
    kinds = [(Op.SUM_I64, 97), (Op.OR_U64, 97), (Op.TABLE_SUM_U8, 97), (Op.SUM_U8, 97)]
    for way in WAYS:
        engine = make_engine(way)
        jobs = []
        for op, count in kinds:
            lanes = draw(op, count, rank, world)
            steps = engine.reduce([lanes.plane()], last=True)
            jobs.append((op, count, lanes, steps, next(steps)))
        for op, count, lanes, steps, first in reversed(jobs):
            for wait in itertools.chain([first], steps):
                for work in wait.works:
                    work.wait()
            known[op, count] = expected(op, count, world)
            got = lanes.sums.tobytes() if op.is_table_sum else lanes.result()
            assert got == known[op, count], (way, op.name)


def waits_that_are_polled(rank: int, world: int) -> None:
    """The worker asks is_completed() and waits later: u8 lanes that fill no word must be there."""
    engine = make_engine("all-reduce")
    lanes = draw(Op.SUM_U8, 13, rank, world)
    steps = engine.reduce([lanes.plane()], last=True)
    wait = next(steps)
    assert wait.final
    while not wait.done():
        pass
    for work in wait.works:
        work.wait()
    assert next(steps, None) is None
    assert lanes.result() == expected(Op.SUM_U8, 13, world)


def last_waits(rank: int, world: int) -> list[Any]:
    """Of which waits a round consists, and which says that no more follow."""
    out = []
    for way in WAYS:
        for last in (False, True):
            lanes = draw(Op.SUM_I32, 64, rank, world)
            finals = []
            for wait in make_engine(way).reduce([lanes.plane()], last):
                finals.append(wait.final)
                for work in wait.works:
                    work.wait()
            out.append((way, last, finals))
    return out


def small_and_large_rounds(rank: int, world: int) -> dict[str, dict[str, int]]:
    """Which way an engine takes by itself."""
    out = {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        counted = Counted(monkeypatch)
        engine = Engine(dist.group.WORLD, CPU, frozenset(), Link(50.0, 10.0))
        for name, count in (("small", 100), ("large", 1_000_000)):
            lanes = draw(Op.SUM_I32, count, rank, world)
            _engine.run(engine.reduce([lanes.plane()], last=True))
            out[name] = counted.take()
    return out


def whole_engines(rank: int, world: int) -> tuple[Link, frozenset[Op], list[int]]:
    engine = _engine.make_engine(dist.group.WORLD, timeout_s=30)
    assert engine.group is not dist.group.WORLD
    assert (engine.rank, engine.world, engine.device) == (rank, world, CPU)
    engine.link = _engine.measure_link(engine)
    check_sums(engine, [(op, 1009) for op in Op], {})
    return engine.link, engine.native, _group.group_ranks(engine.group)


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
    """A twin has the one backend that its tensors need."""
    found = []
    for backend in ("cpu:gloo,cuda:gloo", "cpu:gloo"):
        group = dist.new_group(backend=backend)
        engine = _engine.make_engine(group, timeout_s=30)
        engine.link = DEAR_STEPS
        check_sums(engine, [(Op.SUM_F32, 100)], {})
        found.append(dist.get_backend(engine.group))
    return found


def test_a_twin_has_one_backend() -> None:
    assert run_ranks(2, groups_of_several_backends) == [["gloo", "gloo"]] * 2


def engines_of_some_ranks(rank: int, world: int) -> Any:
    evens = dist.new_group([0, 2, 4])
    if rank % 2:
        return None
    engine = _engine.make_engine(evens, timeout_s=30)
    engine.link = DEAR_STEPS
    lanes = torch.full((4,), float(rank))
    plane = Plane(Op.SUM_F32, 4, lanes.data_ptr(), 0, 0, 16, 16)
    _engine.run(engine.reduce([plane], last=True))
    messages = _group.exchange_blocking(engine.group, CPU, bytes([rank] * 3))
    return engine.rank, _group.group_ranks(engine.group), lanes.tolist(), messages, engine.link


def greetings(rank: int, world: int) -> None:
    greeter = _header.Greeter(make_engine("exchange"))
    rooms = []
    for step, size in enumerate((0, 10, 500, 400, *([0] * 17), 10)):
        # Ranks have payloads of different sizes; the largest decides.
        payload = bytes_of(rank, max(size - rank, 0))
        header = _header.Header(
            step, 3, 5, 7, 2.0, payload.numel(), _header.HEADER_BYTES + payload.numel()
        )
        headers: list[Any] = []
        messages: list[Bytes] = []
        rooms.append(greeter.room)
        given = [Bytes(payload.data_ptr(), payload.numel())]
        _engine.run(greeter.greet(header, given, str, headers, messages))
        assert [one.rows for one in headers] == [max(size - peer, 0) for peer in range(world)]
        assert {one[:5] for one in headers} == {(step, 3, 5, 7, 2.0)}
        fits = _header.HEADER_BYTES + size <= rooms[-1]
        assert len(messages) == (world if fits else 0)
        for peer, message in enumerate(messages):
            n = max(size - peer, 0)
            got = _engine.tensor_at(*message)[_header.HEADER_BYTES :]
            assert torch.equal(got[:n], bytes_of(peer, n))
    assert rooms[0] == rooms[1] == _header.HEADER_BYTES
    assert rooms[3] >= _header.HEADER_BYTES + 500  # it has learnt, and 400 fit at once
    assert rooms[-1] == _header.HEADER_BYTES  # and forgotten


def differing_greetings(rank: int, world: int) -> list[str]:
    """What each rank is told when rank 2 differs in one field after another."""
    greeter = _header.Greeter(make_engine("exchange"))
    common = _header.Header(4, 1, 0xAA << 40, 0xBB << 40, 1.0)
    told = []
    for field in ("step", "bucket", "layout", "plan", "loss_scale", "rows"):
        changed = {field: getattr(common, field) + 1} if rank == 2 else {}
        try:
            _engine.run(
                greeter.greet(common._replace(**changed), (), lambda: "layout here", [], [])
            )
            told.append("nothing")
        except addend.Mismatch as error:
            told.append(str(error))
    return told


# ---- tests


@pytest.mark.parametrize("world", [1, 2, 4, 15, 16, 17])
def test_every_operation_in_every_way_is_the_fold(world: int) -> None:
    run_ranks(world, every_operation)


@pytest.mark.parametrize("world", [2, 5])
def test_sums_that_round_have_the_same_bits_on_all_ranks(world: int) -> None:
    digests = run_ranks(world, rounding_sums)
    assert all(one == digests[0] for one in digests)
    for op, dtype in DTYPES.items():
        total = random_floats(0, 5003, dtype)
        for rank in range(1, world):
            total = total + random_floats(rank, 5003, dtype)
        for way in ("exchange", "scatter"):  # both fold in the order of ranks
            assert digests[0][f"{way} {op.name}"] == digest(total), (way, op.name)


@pytest.mark.parametrize("world", [1, 3])
def test_an_exchange_gives_every_message_to_everyone(world: int) -> None:
    run_ranks(world, exchanges)


def test_rounds_of_several_jobs_do_not_disturb_each_other() -> None:
    run_ranks(3, rounds_in_flight)


def test_a_wait_that_says_it_is_done_is_done() -> None:
    run_ranks(3, waits_that_are_polled)


def test_only_the_last_collective_of_a_last_round_is_final() -> None:
    for rank in run_ranks(3, last_waits):
        assert rank == [
            ("exchange", False, [False]),
            ("exchange", True, [True]),
            ("all-reduce", False, [False]),
            ("all-reduce", True, [True]),
            ("scatter", False, [False, False]),
            ("scatter", True, [False, True]),
            ("mesh", False, [False]),
            ("mesh", True, [True]),
            ("haul", False, [False]),
            ("haul", True, [True]),
        ]


def test_small_rounds_are_exchanged_and_large_ones_scattered() -> None:
    for rank in run_ranks(4, small_and_large_rounds):
        assert rank == {"small": {"all_to_all_single": 1}, "large": SCATTERED}


def test_an_engine_has_a_group_of_its_own_and_one_opinion_of_the_link() -> None:
    links, natives, members = zip(*run_ranks(3, whole_engines))
    assert len(set(links)) == 1
    assert links[0].latency_us > 0
    assert links[0].gbit_per_s > 0
    assert set(natives) == {frozenset(op for op in Op if not op.is_table_sum)}
    assert list(members) == [[0, 1, 2]] * 3


def test_an_engine_of_some_ranks_leaves_the_others_alone() -> None:
    values = run_ranks(5, engines_of_some_ranks)
    assert values[1] is None
    messages = [bytes([rank] * 3) for rank in (0, 2, 4)]
    for place, rank in enumerate((0, 2, 4)):
        assert values[rank] == (place, [0, 2, 4], [6.0] * 4, messages, DEAR_STEPS)


def test_first_messages_carry_payloads_once_they_have_learnt_the_size() -> None:
    run_ranks(3, greetings)


def test_first_messages_that_differ_are_a_mismatch_on_all_ranks() -> None:
    told = run_ranks(4, differing_greetings)
    assert all(one == told[0] for one in told)
    step, bucket, layout, plan, loss_scale, rows = told[0]
    assert "ranks differ in step: most have 4, rank 2 has 5" in step
    assert "bucket: most have 1, rank 2 has 2" in bucket
    assert "rank 2 has" in layout
    assert "here: layout here" in layout
    assert "codec plan" in plan
    assert "loss scale: most have 1.0, rank 2 has 2.0" in loss_scale
    assert rows == "nothing"


def test_a_pool_lends_again_what_came_back() -> None:
    pool = Pool(pinned=False)
    first = pool.take(5000)
    assert first.numel() >= 5000
    second = pool.take(5000)
    assert first.data_ptr() != second.data_ptr()
    pool.give(first)
    assert pool.take(6000).data_ptr() == first.data_ptr()
    assert pool.take(0).numel() > 0


def test_all_odd_ranks_are_named_up_to_eight() -> None:
    headers = [_header.Header(0, 0, 0, 0)] * 12 + [_header.Header(0, 1, 0, 0)] * 9
    with pytest.raises(addend.Mismatch, match=r"rank 12 has 1, .*rank 19 has 1$"):
        _header.check(headers, str)


def test_roomy_is_above_and_rarely_changes() -> None:
    sizes = [_header.roomy(n) for n in range(5000)]
    assert all(size > n for n, size in enumerate(sizes))
    assert all(size <= 1.5 * max(n, 128) for n, size in enumerate(sizes))
    assert len(set(sizes)) < 60


def test_memory_at_an_address_is_not_copied() -> None:
    lanes = np.arange(10, dtype=np.uint8)
    _engine.tensor_at(lanes.ctypes.data, 10)[3] = 99
    assert at(lanes.ctypes.data, np.uint8, 10)[3] == 99
