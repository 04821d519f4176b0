# SPDX-License-Identifier: Apache-2.0
"""A recommender, gradients mostly zero: torchrun --nproc-per-node 2 examples/torch/ncf.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import addend.torch

dist.init_process_group("gloo")
torch.manual_seed(0)
tastes, model = torch.randn(25_000, 4), DistributedDataParallel(nn.Embedding(25_000, 32))
handle = addend.torch.attach(model)  # lossless; all the rest is plain PyTorch
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
torch.manual_seed(1 + dist.get_rank())
for step in range(100):
    users = (20_000 * torch.rand(512) ** 4).long()  # a few come often, most rarely
    items = 20_000 + (5_000 * torch.rand(512) ** 4).long()
    likes = ((tastes[users] * tastes[items]).sum(1) > 0).float()
    rows = model(torch.cat([users, items]))
    loss = nn.functional.binary_cross_entropy_with_logits((rows[:512] * rows[512:]).sum(1), likes)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 33 == 0 and dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item():.3f}, {handle.metrics()['ratio']:.1f}x fewer bytes")
handle.close()
dist.destroy_process_group()
