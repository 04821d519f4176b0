# SPDX-License-Identifier: Apache-2.0
"""Training over a real aggregation server: `addend serve` on loopback."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks, notes, run_ranks
from torch.nn.parallel import DistributedDataParallel

import addend.torch
from addend import ServiceReducer

COMMAND = os.environ.get("ADDEND_COMMAND") or shutil.which("addend")


@pytest.fixture
def running(tmp_path: Path) -> Any:
    """The server's process, address and key file."""
    if COMMAND is None:
        pytest.skip("no `addend` command: name it in ADDEND_COMMAND")
    key = tmp_path / "lab.key"
    subprocess.run([COMMAND, "keygen", str(key)], check=True, capture_output=True)
    config = tmp_path / "serve.toml"
    config.write_text(
        '[server]\naddress = "127.0.0.1"\ncontrol_port = 0\ndata_port = 0\n'
        f'[http]\nenabled = false\n[[tenant]]\nname = "default"\nkey_file = "{key}"\n'
    )
    process = subprocess.Popen(
        [COMMAND, "serve", "--config", str(config)], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        found = re.search(r"control[^0-9]*(?:127\.0\.0\.1:)?(\d{4,5})", line)
        if found:
            yield process, f"127.0.0.1:{found.group(1)}", str(key)
            break
    else:
        pytest.fail("the server said no control port")
    process.terminate()
    process.communicate(timeout=60)


@pytest.fixture
def server(running: tuple[Any, str, str]) -> tuple[str, str]:
    return running[1:]


def _train(rank: int, codec: str | None, **options: Any) -> list[float]:
    torch.manual_seed(0)
    layers = [torch.nn.Embedding(2000, 32), torch.nn.Flatten(), torch.nn.Linear(128, 1)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    handle = addend.torch.attach(model, codec=codec, **options) if codec else None
    generator = torch.Generator().manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(5):
        rows = torch.randint(0, 2000, (8, 4), generator=generator)
        loss = (model(rows) - rows.float().mean(1, keepdim=True) / 2000).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    everyone = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, flat)
    assert all(torch.equal(one, flat) for one in everyone)
    if handle is not None:
        handle.close()
    return losses


def _body(rank: int, world: int, address: str, key: str) -> None:
    os.environ["ADDEND_KEY_FILE"] = key
    plain = _train(rank, None)
    for number, codec in enumerate(("exact", "dense", "exact:values=reproducible")):
        aggregator = addend.Aggregator(address, job=f"lossless-{number}")
        assert _train(rank, codec, aggregator=aggregator) == pytest.approx(plain, rel=1e-5)
    assert _train(rank, "quant:bits=4", aggregator=address) == pytest.approx(plain, abs=0.05)


def test_training_over_a_server(server: tuple[str, str]) -> None:
    run_ranks(3, _body, *server)


def _sums(rank: int, world: int, address: str, key: str) -> None:
    os.environ["ADDEND_KEY_FILE"] = key
    torch.manual_seed(rank)
    tensor = torch.randn(50_000) * (torch.rand(50_000) < 0.05)
    expected = tensor.clone()
    dist.all_reduce(expected)
    server = addend.Aggregator(address, job="sums")

    def check(got: torch.Tensor) -> None:
        torch.testing.assert_close(got.to_dense(), expected)

    check(addend.torch.all_reduce(tensor.clone(), aggregator=server))
    # Later calls go there, too.
    check(addend.torch.all_reduce(tensor.to_sparse()))
    check(addend.torch.all_reduce(tensor.clone(), aggregator=server, async_op=True).wait())
    mean = addend.torch.all_reduce(tensor.clone(), "mean", codec="exact:values=reproducible")
    check(mean * world)
    close = addend.torch.all_reduce(tensor.clone(), codec="quant:bits=8")
    assert (close - expected).norm() < 0.05 * expected.norm()
    whole = addend.torch.all_reduce(torch.full((3,), rank + 1))  # no codec takes integers
    assert whole.tolist() == [world * (world + 1) // 2] * 3
    with pytest.raises(addend.InvalidArgument, match=f"began at {address}, job 'sums'"):
        addend.torch.all_reduce(tensor.clone(), aggregator=address)
    assert sum(addend.torch.metrics()[f"time/{stage}_s"] for stage in ("encode", "reduce")) > 0

    beside = dist.new_group([0, 1, 2])
    addend.torch.all_reduce(tensor.clone(), group=beside)
    with pytest.raises(addend.InvalidArgument, match="began without a server"):
        addend.torch.all_reduce(tensor.clone(), group=beside, aggregator=server)
    fixed = dist.new_group([0, 1, 2])
    with pytest.raises(addend.Unsupported, match="not deterministic"):
        addend.torch.all_reduce(tensor.clone(), group=fixed, deterministic=True, aggregator=server)
    with pytest.raises(addend.InvalidArgument, match="aggregator 7 is not 'host:port'"):
        addend.torch.all_reduce(tensor.clone(), group=fixed, aggregator=7)  # type: ignore[arg-type]
    quorum = addend.Aggregator(address, job="late", quorum=2, patience_s=2.0)
    for late, words in ((tensor.to_sparse(), "sparse tensors"), (torch.ones(3).int(), "int32")):
        with pytest.raises(addend.Unsupported, match=f"{words}: no sums without late ranks"):
            addend.torch.all_reduce(late, group=fixed, aggregator=quorum)
    check(
        addend.torch.all_reduce(
            tensor.clone(),
            codec="exact:values=reproducible",
            group=fixed,
            deterministic=True,
            aggregator=address,
        )
    )


def test_sums_of_tensors_over_a_server(server: tuple[str, str]) -> None:
    run_ranks(3, _sums, *server)


def _several_models(rank: int, world: int, address: str, key: str) -> list[str]:
    """Models of all ranks and of some, one after the other and at once, by one server."""
    os.environ["ADDEND_KEY_FILE"] = key
    names: list[str] = []
    join = ServiceReducer.__init__

    def noting(reducer: ServiceReducer, *args: Any) -> None:
        join(reducer, *args)
        names.append(reducer.job)

    ServiceReducer.__init__ = noting  # type: ignore[assignment, method-assign]
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    first = _Training(rank, aggregator=address)
    second = _Training(rank, aggregator=address)
    third = _Training(rank, aggregator=address, process_group=pairs[rank // 2])
    for _ in range(3):
        for one in (first, second, third):
            one.step()
    first.check_replicas()
    second.check_replicas()
    assert second.handle is not None
    second.handle.close()
    # The name is free again, and the others did not notice.
    fourth = _Training(rank, aggregator=address)
    for _ in range(3):
        for one in (third, fourth, first):
            one.step()
    fourth.check_replicas()
    for one in (first, second, third, fourth):
        assert one.handle is not None
        one.handle.close()
    return names


def test_each_model_has_a_job_of_its_own(server: tuple[str, str]) -> None:
    for rank, names in enumerate(run_ranks(4, _several_models, *server)):
        of_pair = "default.3" if rank < 2 else "default.rank2"
        assert names == ["default", "default.2", of_pair, "default.2"]


class _Training:
    """Steps of a small model, the same parameters on all ranks after each."""

    def __init__(
        self, rank: int, process_group: Any = None, layers: int = 1, **options: Any
    ) -> None:
        """Each layer has a bucket of its own after the first step."""
        torch.manual_seed(0)
        sizes = [64, *[32] * layers]
        net = torch.nn.Sequential(*(torch.nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])))
        self.model = DistributedDataParallel(
            net, process_group=process_group, bucket_cap_mb=0.001 if layers > 1 else 25
        )
        self.handle = addend.torch.attach(self.model, **options) if options else None
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.generator = torch.Generator().manual_seed(rank)

    def step(self) -> float:
        x = torch.randn(16, 64, generator=self.generator)
        loss = (self.model(x) - x[:, :32]).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss)

    def check_replicas(self) -> None:
        flat = torch.cat([p.detach().flatten() for p in self.model.parameters()])
        everyone = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, flat)
        assert all(torch.equal(one, flat) for one in everyone)


def _stall(rank: int, world: int, address: str, key: str) -> dict[str, float]:
    aggregator = addend.Aggregator(address, key_file=key, quorum=2, patience_s=2.0)
    training = _Training(rank, codec="quant:bits=8,feedback=float", aggregator=aggregator)
    for _ in range(4):
        training.step()
    assert training.handle is not None
    assert training.handle.metrics().get("partial", 0) == 0
    if rank == 2:
        notes().set("stalls", "")
        os.kill(os.getpid(), signal.SIGSTOP)
    training.step()
    notes().set(f"partial/{rank}", "")
    notes().wait([f"partial/{r}" for r in range(world)])
    for _ in range(3):
        training.step()
    training.check_replicas()
    metrics = training.handle.metrics()
    training.handle.close()
    return metrics


def test_a_stalled_rank_is_done_without(server: tuple[str, str]) -> None:
    with Ranks(3, _stall, *server) as ranks:
        ranks.notes.wait([f"partial/{rank}" for rank in (0, 1)])
        ranks.send_signal(2, signal.SIGCONT)
        values = ranks.values()
    # On a busy machine others may be late as well, but then all ranks are told the same.
    for metrics in values:
        assert metrics["partial"] >= 1
        assert metrics["missing/rank_2"] >= 1
        assert metrics["partial"] == values[0]["partial"]


def _need_everyone(rank: int, world: int, address: str, key: str) -> str:
    aggregator = addend.Aggregator(address, key_file=key, quorum=2, patience_s=2.0)
    training = _Training(rank, codec="exact", aggregator=aggregator)
    for _ in range(3):
        training.step()
    if rank == 2:
        notes().set("stalls", "")
        os.kill(os.getpid(), signal.SIGSTOP)
    said = ""
    try:
        training.step()
    except Exception as error:  # which class it is, DDP decides
        said = str(error)
    notes().set(f"failed/{rank}", "")
    return said


def test_codecs_that_need_every_rank_say_who_is_missing(server: tuple[str, str]) -> None:
    with Ranks(3, _need_everyone, *server) as ranks:
        ranks.notes.wait([f"failed/{rank}" for rank in (0, 1)])
        ranks.send_signal(2, signal.SIGCONT)
        said = ranks.values()
    for text in said[:2]:
        assert "rank 2 is missing" in text


def _lose_the_server(rank: int, world: int, middle: bool, address: str, key: str) -> list[str]:
    """It goes between two steps, or in the `middle` of one: with buckets before and behind."""
    plain = _Training(rank, layers=6)
    aggregator = addend.Aggregator(address, key_file=key, return_timeout_s=0.5)
    options = {"codec": "exact:values=reproducible", "aggregator": aggregator}
    training = _Training(rank, layers=6, **options)
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("addend.fault").addHandler(handler)
    assert training.handle is not None
    run = training.handle._engine.run

    def wait_for_the_end(*args: Any, **named: Any) -> None:
        if (args[0].step, args[0].bucket) == (4, 3 if middle else 0):
            notes().set(f"ready/{rank}", "")
            notes().wait(["killed"])
        run(*args, **named)

    training.handle._engine.run = wait_for_the_end  # type: ignore[method-assign]
    for _ in range(8):
        assert training.step() == pytest.approx(plain.step(), rel=1e-5)
    training.check_replicas()
    assert training.handle.metrics()["hook_calls"] > 8 * 5
    training.handle.close()
    return said


@pytest.mark.parametrize("middle", [False, True])
def test_training_goes_on_without_the_server(running: tuple[Any, str, str], middle: bool) -> None:
    process, *server = running
    with Ranks(3, _lose_the_server, middle, *server) as ranks:
        ranks.notes.wait([f"ready/{rank}" for rank in range(3)])
        process.kill()
        process.wait()
        ranks.notes.set("killed", "")
        for rank, said in enumerate(ranks.values()):
            assert len(said) == 1
            assert said[0].startswith(f"rank {rank}: the aggregation server is gone (")
            assert said[0].endswith("); the ranks go on without it")


def test_a_key_must_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ADDEND_KEY_FILE", raising=False)
    with pytest.raises(addend.InvalidArgument, match="key_file"):
        addend.Aggregator("127.0.0.1:1").key()
    path = tmp_path / "open.key"
    path.write_text("00" * 32)
    path.chmod(0o644)
    with pytest.raises(addend.InvalidArgument, match="chmod 600"):
        addend.Aggregator("127.0.0.1:1", key_file=str(path)).key()
    path.chmod(0o600)
    path.write_text("nonsense")
    with pytest.raises(addend.InvalidArgument, match="64 hexadecimal"):
        addend.Aggregator("127.0.0.1:1", key_file=str(path)).key()
