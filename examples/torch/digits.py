# SPDX-License-Identifier: Apache-2.0
"""Digits, gradients dense: torchrun --nproc-per-node 2 examples/torch/digits.py"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import addend.torch

dist.init_process_group("gloo")
torch.manual_seed(0)
pixels, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
images = pixels.view(-1, 1, 8, 8).float() / 16
layers = nn.Conv2d(1, 32, 3), nn.GELU(), nn.Flatten(), nn.Linear(32 * 36, 128), nn.GELU()
model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(128, 10)))
handle = addend.torch.attach(model, codec="quant:bits=4,feedback=float")  # lossy
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
torch.manual_seed(1 + dist.get_rank())
for step in range(100):
    chosen = torch.randint(len(labels), (32,))
    loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 33 == 0 and dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item():.3f}, {handle.metrics()['ratio']:.1f}x fewer bytes")
handle.close()
dist.destroy_process_group()
