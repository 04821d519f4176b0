# SPDX-License-Identifier: Apache-2.0
"""A language model on any text: torchrun --nproc-per-node 2 examples/torch/words.py TEXT_FILE"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import addend.torch


class LanguageModel(nn.Module):
    def __init__(self, vocabulary: int, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.output = nn.Linear(width, vocabulary)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.output(self.lstm(self.embedding(words))[0])
        return output


words = Path(sys.argv[1]).read_text(encoding="utf-8").lower().split()
number = {word: i for i, word in enumerate(dict.fromkeys(words))}
text = torch.tensor([number[word] for word in words])
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(LanguageModel(len(number)))
# Lossy where nothing is zero; lossless, by itself, for the table, whose rows of other words are.
handle = addend.torch.attach(model, codec="quant:bits=4,feedback=float")
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
torch.manual_seed(1 + dist.get_rank())
for step in range(100):
    windows = text[torch.randint(len(text) - 21, (8, 1)) + torch.arange(21)]
    logits = model(windows[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 33 == 0 and dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item():.3f}, {handle.metrics()['ratio']:.1f}x fewer bytes")
handle.close()
dist.destroy_process_group()
