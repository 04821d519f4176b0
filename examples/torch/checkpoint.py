# SPDX-License-Identifier: Apache-2.0
"""Goes on after a restart: torchrun --nproc-per-node 2 examples/torch/checkpoint.py FOLDER STEPS"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import addend.torch

dist.init_process_group("gloo")
# One file a rank: what error feedback keeps is each rank's own.
path, steps = Path(sys.argv[1], f"rank-{dist.get_rank()}.pt"), int(sys.argv[2])
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 512), nn.Tanh(), nn.Linear(512, 1)))
handle = addend.torch.attach(model, codec="quant:bits=4,feedback=float")
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
parts = {"model": model.module, "optimizer": optimizer, "addend": handle}
first = 0
if path.exists():
    saved = torch.load(path)
    for name, part in parts.items():
        part.load_state_dict(saved[name])
    first = saved["step"]
for step in range(first, steps):
    torch.manual_seed(1000 * step + dist.get_rank())
    inputs = torch.randn(64, 32)
    loss = ((model(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step in (first, steps - 1) and dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item():.3f}, {handle.metrics()['ratio']:.1f}x fewer bytes")
    if (step + 1) % 10 == 0:
        states = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**states, "step": step + 1}, path)
handle.close()
dist.destroy_process_group()
