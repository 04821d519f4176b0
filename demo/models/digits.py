# SPDX-License-Identifier: Apache-2.0
"""A small convolutional network on scikit-learn's bundled digits: every gradient is dense."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

NAME = "digits"
DESCRIPTION = "convolutional network on 8 x 8 digits, 32 a worker and step"
SCORE = "digits recognised, held out"
STEPS = 120

BATCH, HELD_OUT = 32, 360


def prepare(folder: Path, seed: int) -> None:
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # slow to import

    bunch = load_digits()
    order = np.random.default_rng([seed, 4]).permutation(len(bunch.target))
    images = (bunch.images[order] / 8 - 1).astype(np.float32)[:, None]
    np.savez(folder / "digits.npz", images=images, labels=bunch.target[order].astype(np.int64))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.GELU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.GELU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, 256),
            nn.GELU(),
            nn.Linear(256, 10),
        )

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layers(images), labels)


def build() -> nn.Module:
    return Network()


def optimizer(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.025, momentum=0.9)


def _data(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    with np.load(folder / "digits.npz") as data:
        return torch.from_numpy(data["images"]), torch.from_numpy(data["labels"])


def batches(folder: Path, worker: int, world: int, seed: int) -> Iterator[tuple[torch.Tensor, ...]]:
    images, labels = (tensor[HELD_OUT:] for tensor in _data(folder))
    rng = np.random.default_rng([seed, 5])
    while True:
        order = torch.from_numpy(rng.permutation(len(labels)))
        for start in range(0, len(order) - world * BATCH + 1, world * BATCH):
            own = order[start + worker * BATCH :][:BATCH]
            yield images[own], labels[own]


def score(module: nn.Module, folder: Path) -> float:
    assert isinstance(module, Network)
    images, labels = (tensor[:HELD_OUT] for tensor in _data(folder))
    with torch.no_grad():
        return float((module.layers(images).argmax(1) == labels).float().mean())
