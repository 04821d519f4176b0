# SPDX-License-Identifier: Apache-2.0
"""Training over a real aggregation server: `addend serve` on loopback."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel

import addend.torch

COMMAND = os.environ.get("ADDEND_COMMAND") or shutil.which("addend")


@pytest.fixture
def server(tmp_path: Path) -> Any:
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
            yield f"127.0.0.1:{found.group(1)}", str(key)
            break
    else:
        pytest.fail("the server said no control port")
    process.terminate()
    process.communicate(timeout=60)


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
